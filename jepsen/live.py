"""Live: the lines that a run prints while it goes on; plain text, one line an event, so that a log reads as well.

It counts completions as the history gets them and knows nothing of what is right.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Final

import attrs

from jepsen.history import FAIL, INFO, INVOKE, NEMESIS, OBSERVER, OK, Op
from jepsen.nemesis.field import Fault, Proof

BARS: Final = "▁▂▃▄▅▆▇█"
SAMPLES_MAX: Final = 4_000
SPARKS: Final = 12
LINKS_SHOWN_MAX: Final = 6


@attrs.define(eq=False)
class Live:
    """Takes each event of a history; `tick` prints what came since the last one. `now_s` is the run's clock."""

    say: Callable[[str], None]
    now_s: Callable[[], float]
    counts: Counter[str] = attrs.Factory(Counter)
    _recent: Counter[str] = attrs.Factory(Counter)
    _opened: dict[int, int] = attrs.Factory(dict)
    _taken_ms: list[float] = attrs.Factory(list)
    _unseen: dict[int, None] = attrs.Factory(dict)
    # Delivered before their add was answered.
    _early: dict[int, None] = attrs.Factory(dict)
    _queued: dict[str, int] = attrs.Factory(dict)
    _rates: deque[float] = attrs.Factory(lambda: deque(maxlen=SPARKS))
    _ticked_s: float = 0.0

    def hear(self, op: Op) -> None:
        """Count one event."""
        if op.process == OBSERVER:
            if op.type == OK:
                self._queued[op.node] = op.value["queued"]
            return
        if op.process == NEMESIS:
            return
        if op.type == INVOKE:
            self._opened[op.process] = op.time
            return
        self.counts[op.type] += 1
        self._recent[op.type] += 1
        self._recent[f"{op.f} {op.type}"] += 1
        began = self._opened.pop(op.process, op.time)
        if op.type == OK:
            if op.f != "get" and len(self._taken_ms) < SAMPLES_MAX:
                self._taken_ms.append((op.time - began) / 1e6)
            self._follow(op)

    def tick(self) -> None:
        """Print the line of now."""
        now = self.now_s()
        passed = max(now - self._ticked_s, 0.001)
        self._ticked_s = now
        rates = {f: self._recent[f"{f} {OK}"] / passed for f in ("add", "get", "ack")}
        self._rates.append(self._recent[OK] / passed)
        told = " ".join(f"{f} {rate:.0f}/s" for f, rate in rates.items())
        counts = "  ".join(f"{kind} {self._recent[kind]}" for kind in (OK, INFO, FAIL))
        p99 = percentile(self._taken_ms, 0.99)
        self.event(
            "",
            f"{counts} | {told} | p99 {p99:.0f} ms | backlog {sum(self._queued.values())}"
            f"  unseen {len(self._unseen)} | {spark(list(self._rates))}",
        )
        self._recent.clear()
        self._taken_ms.clear()

    def event(self, word: str, text: str) -> None:
        """Print one line with the time in front."""
        self.say(f"{self.now_s():6.1f}s  {word:<8} {text}".rstrip())

    def fault(self, word: str, fault: Fault, proof: Proof) -> None:
        """Print that a fault began ("start") or ended ("stop"), and what was measured."""
        proven = f"proved {proof.silent}/{proof.asked} ({proof.how})"
        mark = "" if proof.is_proven else "NOT PROVEN: "
        name = fault.kind.upper() if word == "start" else f"end of {fault.kind}"
        self.event(
            "nemesis", f"{name} {describe(fault) if word == 'start' else ''}  {mark}{proven}"
        )

    def _follow(self, op: Op) -> None:
        if op.f == "add":
            v = op.value["v"]
            if v in self._early:
                del self._early[v]
            else:
                self._unseen[v] = None
        elif op.f == "get":
            for job in op.value["jobs"]:
                if self._unseen.pop(job["v"], self) is self and op.time > 0:
                    self._early[job["v"]] = None


def describe(fault: Fault) -> str:
    """Whom a fault hits, in a few words: groups of a partition, else links or nodes, and its numbers."""
    params = " ".join(f"{name}={value}" for name, value in fault.params.items())
    if not fault.links:
        return f"{' '.join(fault.nodes)} {params}".strip()
    groups = groups_of(fault)
    if len(groups) > 1:
        return " | ".join("{" + " ".join(group) + "}" for group in groups) + f" {params}".rstrip()
    links = [f"{a}⇥{b}" for a, b in fault.links]
    more = f" and {len(links) - LINKS_SHOWN_MAX} more" if len(links) > LINKS_SHOWN_MAX else ""
    return f"{' '.join(links[:LINKS_SHOWN_MAX])}{more} {params}".strip()


def groups_of(fault: Fault) -> list[list[str]]:
    """The groups that a fault separates in both directions; one group if it isn't so plain."""
    cut = set(fault.links)
    nodes = sorted({node for link in fault.links for node in link})
    groups: list[list[str]] = []
    for node in nodes:
        for group in groups:
            if all((node, other) not in cut and (other, node) not in cut for other in group):
                group.append(node)
                break
        else:
            groups.append([node])
    whole = all(
        (a, b) in cut
        for mine in groups
        for other in groups
        if mine is not other
        for a in mine
        for b in other
    )
    return groups if whole else [nodes]


def percentile(samples: list[float], share: float) -> float:
    """The nearest-rank percentile; 0 of none."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


def spark(rates: list[float]) -> str:
    """Rates as bars, the highest one full."""
    top = max(rates, default=0.0)
    return "".join(BARS[int(rate / top * (len(BARS) - 1))] if top else BARS[0] for rate in rates)
