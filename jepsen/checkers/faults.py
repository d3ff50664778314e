"""Faults: what the nemesis did, read from its events, and the questions that checkers ask about it.

Nemesis events: `start` and `stop` of a fault, twice each under one `id` (the second has `proven`; one event with
`proven` is both), and `leave`, `forget`, `join`, `wipe` of a `target`. A fault *may* act from the first word of its
start to the last of its stop, and acts *for sure* only in between and if it is proven. `wipes` names nodes that lost
their data; where no event of a fault says so, a killed node without a log is a wiped one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import combinations
from typing import Any, TypeAlias

import attrs

from jepsen.checkers.base import MS, Meta
from jepsen.checkers.bounds import Bounds
from jepsen.history import NEMESIS, Op

FOREVER = 1 << 62

MEMBERSHIP = ("leave", "forget", "join", "wipe")
# kinds by how they begin: a node is dead or stopped; it loses its memory, too; it happens at some time within
DOWN = ("kill", "crash", "restart", "rolling", "mass", "pause", "wipe", "power")
WIPING = ("kill", "crash", "restart", "rolling", "mass", "power")
GRADUAL = ("rolling", "mass")
# kinds in which a node refuses what it can't put into its log
REFUSING = ("disk-full", "fail-fsync")
# kinds that hold jobs up and lose none, beside those that cut links
HOLDING = ("pause", "queue-pause", "flap", "delay", "loss", "reset", "slow", "jitter", "clock")
_NO_LINKS: frozenset[tuple[str, str]] = frozenset()
# kinds whose links aren't silent all the time
UNSURE = ("flap", "delay", "loss", "reset", "slow", "jitter", "clock", "swizzle")


@attrs.define(eq=False)
class Fault:
    """One fault; times in ns, FOREVER for what didn't come. `nodes` and `links` (source, target) are what it hits."""

    id: int
    kind: str
    begun_at: int
    nodes: tuple[str, ...] = ()
    links: frozenset[tuple[str, str]] = frozenset()
    started_at: int = FOREVER
    stopping_at: int = FOREVER
    stopped_at: int = FOREVER
    proven: bool | None = None  # None: nobody said
    heal_proven: bool | None = None
    wipes_started: tuple[str, ...] | None = None  # None: nobody said
    wipes_stopped: tuple[str, ...] | None = None
    damaged: tuple[str, ...] = ()

    @property
    def is_sure(self) -> bool:
        """Its nodes and links are dead all the time between its start and its stop."""
        return self.proven is True and not self.kind.startswith((*UNSURE, *GRADUAL))

    @property
    def may_lose(self) -> bool:
        """It can take the only copy of a job: a node dies, is wiped, leaves, can't write, is told lies."""
        return not (self.links or self.kind.startswith(HOLDING))

    @property
    def down(self) -> tuple[str, ...]:
        """The nodes that are dead or stopped."""
        return self.nodes if self.kind.startswith(DOWN) else ()


@attrs.frozen
class Wipe:
    """A node lost what it stored after `kept_until`, at some time from `begun_at` to `ended_at`."""

    node: str
    begun_at: int
    ended_at: int
    kept_until: int = -1


class Windows:
    """Spans of time, merged, for questions by bisection."""

    def __init__(self, spans: Iterable[tuple[int, int]]) -> None:
        self.starts: list[int] = []
        self.ends: list[int] = []
        for start, end in sorted(spans):
            if self.ends and start <= self.ends[-1]:
                self.ends[-1] = max(self.ends[-1], end)
            else:
                self.starts.append(start)
                self.ends.append(end)

    def touch(self, start: int, end: int) -> bool:
        """True if some span and this one have an instant in common."""
        at = bisect_right(self.starts, end) - 1
        return at >= 0 and self.ends[at] >= start

    def first_after(self, instant: int) -> int:
        """The first instant from this one on that no span covers."""
        at = bisect_right(self.starts, instant) - 1
        if at >= 0 and self.ends[at] >= instant:
            return self.ends[at]
        return instant

    def number(self, instant: int) -> int:
        """The place among all spans of the last one that began by then; -1 before the first."""
        return bisect_right(self.starts, instant) - 1

    @property
    def covered(self) -> int:
        """The length of all spans together."""
        return sum(self.ends) - sum(self.starts)

    def __len__(self) -> int:
        return len(self.starts)


class Faults:
    """All faults of a run."""

    def __init__(self, meta: Meta, ops: Iterable[Op], bounds: Bounds) -> None:
        self.meta = meta
        self.all, self.phases = _read([op for op in ops if op.process == NEMESIS])
        self.wipes = [wipe for fault in self.all for wipe in _wipes(fault, meta, bounds)]
        spans = [(fault.begun_at, fault.stopped_at) for fault in self.all]
        self.windows = Windows(spans)
        self.unquiet = Windows([*spans, *meta.lags])
        self._facts = settle = bounds.facts_ms * MS
        self._unsettled = Windows(
            (start - settle, end)
            for start, end in zip(self.unquiet.starts, self.unquiet.ends, strict=True)
        )
        views, grace = bounds.views_ms * MS, bounds.cut_grace_ms * MS
        unborn = _unborn(self.all)
        nodes = tuple(dict.fromkeys([*meta.nodes, *unborn]))
        self._surely = Reach(
            nodes,
            [(f.started_at + grace, f.stopping_at, f.links, f.down) for f in self.all if f.is_sure]
            + [(-1, join.begun_at, _NO_LINKS, (node,)) for node, join in unborn.items()],
        )
        self._maybe = Reach(
            nodes,
            [(f.begun_at, f.stopped_at + views, f.links, f.down) for f in self.all]
            + [(-1, join.stopped_at + views, _NO_LINKS, (node,)) for node, join in unborn.items()],
        )
        self._down: dict[str, Windows] = {
            node: Windows(
                (f.begun_at, f.stopped_at)
                for f in self.all
                if node in f.down or (f.kind.startswith(MEMBERSHIP) and node in f.nodes)
            )
            for node in nodes
        }
        self._refusing: dict[str, Windows] = {
            node: Windows(
                (f.begun_at, f.stopped_at + settle)
                for f in self.all
                if node in f.nodes and f.kind.startswith(REFUSING)
            )
            for node in nodes
        }
        self._sides: dict[int, int] = {}

    def is_calm(self, start: int, end: int) -> bool:
        """No fault, and nobody stood still, in this span."""
        return not self.unquiet.touch(start, end)

    def calm_from(self, instant: int) -> int:
        """The first instant from this one on, after which it stays calm for `facts_ms`; FOREVER if none (h of C5)."""
        return self._unsettled.first_after(instant)

    @property
    def has_lost_holders(self) -> bool:
        """Some node lost its data, or left the cluster."""
        return bool(self.wipes) or any(f.kind.startswith(MEMBERSHIP) for f in self.all)

    @property
    def are_dark(self) -> bool:
        """In each fault all nodes are down at once, so that nobody can answer anything."""
        return bool(self.all) and all(
            not fault.kind.startswith("rolling") and set(self.meta.nodes) <= set(fault.down)
            for fault in self.all
        )

    @property
    def healed_at(self) -> int:
        """When the last fault ended; 0 without any, FOREVER if one never did."""
        return max((fault.stopped_at for fault in self.all), default=0)

    def is_down(self, node: str, start: int, end: int) -> bool:
        """The node may be dead, stopped or on its way out at some time of this span."""
        return node in self._down and self._down[node].touch(start, end)

    def may_refuse(self, node: str, instant: int) -> bool:
        """The node can't write its log: the fault is on, or ended less than `facts_ms` ago."""
        return node in self._refusing and self._refusing[node].touch(instant, instant)

    def reach_most(self, node: str, start: int, end: int) -> int:
        """How many nodes, itself included, it could have told and heard of, if by others, at the best of a span."""
        return self._surely.most(node, start, end)

    def reach_least(self, node: str, start: int, end: int) -> int:
        """How many it could count on at the worst instant of a span, given how views lag behind."""
        return self._maybe.least(node, start, end)

    def wiped_since(self, begun_at: int, stored_at: int, until: int = FOREVER) -> list[str]:
        """The nodes, once each, that lost in this span what was stored at `stored_at`; abandoned ones, too."""
        found = dict.fromkeys(self.meta.abandoned)
        for wipe in self.wipes:
            if begun_at <= wipe.ended_at and wipe.begun_at <= until and stored_at > wipe.kept_until:
                found[wipe.node] = None
        return list(found)

    def is_wiped(self, node: str, start: int, end: int) -> bool:
        """The node may have lost its data at some time of this span."""
        return any(
            wipe.node == node and wipe.begun_at <= end and wipe.ended_at >= start
            for wipe in self.wipes
        )

    def may_lose(self, start: int, end: int) -> bool:
        """A fault that can take the only copy of a job acted at some time of this span."""
        return any(f.may_lose and f.begun_at <= end and f.stopped_at >= start for f in self.all)

    def may_hold_back(self, sent_after: int, sent_before: int, arrived_at: int) -> bool:
        """A fault may have kept a message, sent in this span, in a link or a stopped node till this instant.

        What is killed keeps nothing. The bound is `facts_ms` from the end of the fault.
        """
        facts = self._facts
        return any(
            not (fault.kind.startswith(WIPING) or fault.kind.startswith(MEMBERSHIP))
            and fault.begun_at <= sent_before
            and fault.stopped_at >= sent_after
            and arrived_at <= fault.stopped_at + facts
            for fault in self.all
        )

    def sides(self, start: int, end: int) -> int:
        """How many groups of nodes may have acted without each other in this span, at most."""
        near = [f for f in self.all if f.begun_at <= end and f.stopped_at >= start]
        if not near:
            return 1
        if len(near) > 1:
            return max(len(self.meta.nodes), 1)
        if near[0].id not in self._sides:
            self._sides[near[0].id] = _sides(near[0], self.meta.nodes)
        return self._sides[near[0].id]

    def has_left(self, node: str, start: int, end: int) -> bool:
        """The node was out of the cluster, or on its way out, at some time of this span."""
        return node in self.outsiders(start) or any(
            fault.kind in ("leave", "forget")
            and node in fault.nodes
            and fault.begun_at <= end
            and fault.stopped_at >= start
            for fault in self.all
        )

    def outsiders(self, instant: int) -> set[str]:
        """Nodes that were leaving, had left or were forgotten at this time, and hadn't joined again."""
        out: set[str] = set()
        for fault in self.all:
            if fault.kind in MEMBERSHIP and fault.begun_at <= instant:
                if fault.kind == "join":
                    out.difference_update(fault.nodes)
                elif fault.kind != "wipe":
                    out.update(fault.nodes)
        return out


def _unborn(faults: list[Fault]) -> dict[str, Fault]:
    """Nodes that a first join brought, which were not there before it, with that join."""
    first: dict[str, Fault] = {}
    for fault in sorted(faults, key=lambda fault: fault.begun_at):
        for node in fault.nodes if fault.kind in MEMBERSHIP else ():
            first.setdefault(node, fault)
    return {node: fault for node, fault in first.items() if fault.kind == "join"}


# from, to, silent links, dead nodes
Cut: TypeAlias = tuple[int, int, frozenset[tuple[str, str]], tuple[str, ...]]


class Reach:
    """Who can talk with whom, as pieces of time between the changes of cuts (from, to, links, dead nodes)."""

    def __init__(
        self,
        nodes: tuple[str, ...],
        cuts: list[Cut],
    ) -> None:
        self._nodes = nodes
        self._cuts = [cut for cut in cuts if cut[0] < cut[1] and (cut[2] or cut[3])]
        changes = sorted({each for cut in self._cuts for each in cut[:2]})
        self._starts = [-1, *changes]
        self._most: dict[tuple[range, str], int] = {}
        self._least: dict[tuple[int, str], int] = {}
        self._active: list[list[int]] = [[] for _ in self._starts]
        for number, cut in enumerate(self._cuts):
            first = bisect_left(self._starts, cut[0])
            for piece in range(first, bisect_left(self._starts, cut[1])):
                self._active[piece].append(number)

    def most(self, node: str, start: int, end: int) -> int:
        """How many it may have told and heard of within a span, if by others and by turns; itself, too."""
        key = (self._pieces(start, end), node)
        if key not in self._most:
            told = heard = frozenset({node})
            for piece in key[0]:
                told = self._spread(piece, told, back=False)
            for piece in reversed(key[0]):
                heard = self._spread(piece, heard, back=True)
            self._most[key] = len(told & heard)
        return self._most[key]

    def least(self, node: str, start: int, end: int) -> int:
        """The smallest number in touch directly at an instant of a span."""
        return min(self._in_touch(piece, node) for piece in self._pieces(start, end))

    def _pieces(self, start: int, end: int) -> range:
        first = bisect_right(self._starts, max(start, 0)) - 1
        return range(first, bisect_right(self._starts, max(end, 0)))

    def _in_touch(self, piece: int, node: str) -> int:
        key = (piece, node)
        if key not in self._least:
            cuts = self._cuts_of(piece)
            near = [
                other for other in self._nodes if other != node and not _is_cut(cuts, node, other)
            ]
            self._least[key] = 1 + len(near)
        return self._least[key]

    def _cuts_of(self, piece: int) -> list[Cut]:
        return [self._cuts[number] for number in self._active[piece]]

    def _spread(self, piece: int, nodes: frozenset[str], *, back: bool) -> frozenset[str]:
        """The nodes that these can tell, step by step, or (back) hear of, within a piece; these, too."""
        cuts = self._cuts_of(piece)
        found, edge = set(nodes), list(nodes)
        while edge:
            here = edge.pop()
            for other in self._nodes:
                link = (other, here) if back else (here, other)
                if other not in found and not any(
                    link in links or here in down or other in down for _, _, links, down in cuts
                ):
                    found.add(other)
                    edge.append(other)
        return frozenset(found)


def _is_cut(cuts: list[Cut], a: str, b: str) -> bool:
    """One of the two can't be heard by the other."""
    return any(
        (a, b) in links or (b, a) in links or a in down or b in down for _, _, links, down in cuts
    )


def _read(ops: list[Op]) -> tuple[list[Fault], list[tuple[int, str]]]:
    """The faults in order of their beginning, and the phases with their times."""
    opened: dict[Any, Fault] = {}
    faults: list[Fault] = []
    phases: list[tuple[int, str]] = []
    for op in ops:
        if op.f == "phase":
            phases.append((op.time, str(op.value.get("name", ""))))
        elif op.f in MEMBERSHIP:
            _membership(op, opened, faults)
        elif op.f in ("start", "stop"):
            _started_or_stopped(op, opened, faults)
    for fault in faults:
        if fault.started_at == FOREVER:
            fault.started_at = fault.begun_at if fault.stopping_at == FOREVER else fault.stopping_at
    return faults, phases


def _membership(op: Op, opened: dict[Any, Fault], faults: list[Fault]) -> None:
    value = op.value
    key = (op.f, value.get("target"))
    fault = opened.pop(key, None)
    if fault is None:
        fault = Fault(len(faults), op.f, op.time, (str(value.get("target", "")),))
        faults.append(fault)
        if "proven" not in value:
            opened[key] = fault
    fault.started_at = fault.stopping_at = fault.stopped_at = op.time
    fault.proven = bool(value.get("proven", True))
    if "wipes" in value:
        fault.wipes_started = tuple(value["wipes"])


def _started_or_stopped(op: Op, opened: dict[Any, Fault], faults: list[Fault]) -> None:
    value = op.value
    fault = opened.get(value.get("id"))
    if op.f == "start":
        if fault is None or fault.stopped_at != FOREVER:
            fault = Fault(int(value.get("id", -1)), str(value.get("kind", "")), op.time)
            faults.append(fault)
            opened[value.get("id")] = fault
            is_complete = "proven" in value
        else:
            is_complete = True
        fault.nodes = tuple(value.get("nodes") or fault.nodes)
        fault.links = frozenset((a, b) for a, b in value.get("links") or fault.links)
        fault.damaged = tuple(value.get("damaged") or fault.damaged)
        if "wipes" in value:
            fault.wipes_started = tuple(value["wipes"])
        if is_complete:
            fault.started_at = op.time
            fault.proven = bool(value.get("proven", False))
    elif fault is not None:
        is_complete = "proven" in value or fault.stopping_at != FOREVER
        fault.stopping_at = min(fault.stopping_at, op.time)
        if "wipes" in value:
            fault.wipes_stopped = tuple(value["wipes"])
        if is_complete:
            fault.stopped_at = op.time
            fault.heal_proven = bool(value.get("proven", False))


def _wipes(fault: Fault, meta: Meta, bounds: Bounds) -> list[Wipe]:
    """What nodes lost by a fault."""
    early = (fault.begun_at, fault.started_at)
    late = (fault.stopping_at, fault.stopped_at)
    if fault.kind.startswith(GRADUAL):
        early = late = (fault.begun_at, fault.stopped_at)
    found = [Wipe(node, *early) for node in fault.wipes_started or ()]
    found += [Wipe(node, *late) for node in fault.wipes_stopped or ()]
    found += [Wipe(node, *early) for node in fault.damaged]
    if fault.wipes_started is None and fault.wipes_stopped is None:
        if fault.kind in ("forget", "wipe") or (fault.kind.startswith(WIPING) and not meta.log):
            found += [Wipe(node, *early) for node in fault.nodes]
        elif fault.kind.startswith("power") and meta.fsync != "always":
            kept = fault.begun_at - bounds.fsync_ms * MS
            found += [Wipe(node, *early, kept_until=kept) for node in fault.nodes]
    return found


def _sides(fault: Fault, nodes: tuple[str, ...]) -> int:
    """The most nodes of which no two can talk; all of them where that isn't known."""
    if fault.kind.startswith((*UNSURE, *GRADUAL)) or not (fault.links or fault.down):
        return max(len(nodes), 1)
    cut = [(0, 0, fault.links, fault.down)]
    for size in range(len(nodes), 1, -1):
        for group in combinations(nodes, size):
            if all(_is_cut(cut, a, b) for a, b in combinations(group, 2)):
                return size
    return 1
