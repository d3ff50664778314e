"""Shrink: a failing plan made small (delta debugging), then written down.

Streams are named for the one thing that each decides, so what is taken out leaves the rest as it was. First groups of
faults go, then kinds of operations, clients, nodes, time, then single operations. A smaller plan counts only if the
same rule breaks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import attrs

from tests.sim.plan import Chaos, Profile
from tests.sim.run import run_profile

STORE = Path("store/sim")
KEPT_KINDS = ("add", "get", "ack")  # without them nothing happens
LENGTH_MIN_MS = 1_000

Item = TypeVar("Item")


@attrs.define
class Shrinker:
    """Tries ever smaller plans until `seconds` are over; `best` is the smallest that fails."""

    best: Profile
    rule: str
    seconds: float = 60.0
    tries: int = 0
    _end: float = 0.0

    def run(self) -> Profile:
        """The smallest plan found."""
        self._end = time.monotonic() + self.seconds
        self._cut_time()
        for _ in range(2):
            self._fewer_faults()
            self._calm_network()
            self._fewer_kinds_and_clients()
            self._fewer_nodes()
            self._cut_time()
        self._fewer_operations()
        self._fewer_faults()
        return self.best

    def _try(self, profile: Profile) -> bool:
        """True if the plan fails by the same rule, which makes it the best so far."""
        if profile == self.best or time.monotonic() > self._end:
            return False
        self.tries += 1
        violation = run_profile(profile)[0].violation
        if violation is None or violation.rule != self.rule:
            return False
        self.best = profile
        return True

    def _fewer(self, items: Sequence[Item], without: Callable[[Sequence[Item]], Profile]) -> None:
        """Leave out as many items as possible: halves, quarters ... single ones."""
        left = list(items)
        size = max(1, len(left) // 2)
        while left and time.monotonic() <= self._end:
            is_progress = False
            for chunk in list(_chunks(left, size)):
                rest = [item for item in left if item not in chunk]
                if self._try(without(rest)):
                    left, is_progress = rest, True
            if size == 1 and not is_progress:
                break
            size = max(1, size // 2)

    def _fewer_faults(self) -> None:
        self._fewer(self.best.faults, lambda faults: attrs.evolve(self.best, faults=tuple(faults)))

    def _calm_network(self) -> None:
        self._try(attrs.evolve(self.best, chaos=Chaos()))
        self._try(attrs.evolve(self.best, latency_ms=(1, 1)))

    def _fewer_kinds_and_clients(self) -> None:
        """Mute them: what is drawn stays the same, and isn't done."""
        kinds = [kind for kind in self.best.ops if kind not in KEPT_KINDS]
        names = [*kinds, *(f"c{index}" for index in range(self.best.clients))]
        loud = [name for name in names if name not in self.best.muted]
        self._fewer(loud, lambda left: self._muted([n for n in names if n not in left]))

    def _muted(self, names: Sequence[str]) -> Profile:
        return attrs.evolve(self.best, muted=tuple(dict.fromkeys((*self.best.muted, *names))))

    def _fewer_nodes(self) -> None:
        while self.best.nodes > 1:
            last = self.best.nodes - 1
            faults = tuple([fault for fault in self.best.faults if max(fault.nodes) < last])
            if not self._try(attrs.evolve(self.best, nodes=last, faults=faults)):
                return

    def _cut_time(self) -> None:
        """End the work sooner."""
        step = self.best.length_ms // 2
        while step >= LENGTH_MIN_MS and time.monotonic() <= self._end:
            length = max(LENGTH_MIN_MS, self.best.length_ms - step)
            if not self._try(attrs.evolve(self.best, length_ms=length)):
                step //= 2

    def _fewer_operations(self) -> None:
        """Mute single operations, by client and number."""
        _, world = run_profile(self.best)
        done = [name for client in world.clients for name in client.done_names()]
        already = [name for name in done if name in self.best.muted]
        loud = [name for name in done if name not in already]
        self._fewer(loud, lambda left: self._muted([name for name in loud if name not in left]))


def _chunks(items: Sequence[Item], size: int) -> Iterator[list[Item]]:
    for at in range(0, len(items), size):
        yield list(items[at : at + size])


def write(profile: Profile, rule: str) -> Path:
    """Put a plan where `--plan` finds it."""
    STORE.mkdir(parents=True, exist_ok=True)
    path = STORE / f"seed-{profile.seed}-{rule.lower()}.json"
    path.write_text(profile.to_json() + "\n")
    return path


def shrunk(profile: Profile, rule: str, seconds: float, with_bug: str = "") -> str:
    """Shrink, write, and say in a line what came of it; `with_bug` is the rest of the command that shows it."""
    shrinker = Shrinker(profile, rule, seconds)
    best = shrinker.run()
    path = write(best, rule)
    result, _ = run_profile(best)
    before, _ = run_profile(profile)
    was, now = sum(before.operations.values()), sum(result.operations.values())
    faults = f"{len(profile.faults)} -> {len(best.faults)} faults"
    size = f"{was} -> {now} operations, {faults}, {profile.nodes} -> {best.nodes} nodes"
    return f"  minimal  : python -m tests.sim --plan {path}{with_bug}   ({size}, {shrinker.tries} tries)"
