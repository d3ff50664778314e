"""Measures: series that the pictures show, taken from a run in single passes; pure, without any drawing.

Times are seconds since the run began, latencies milliseconds. A call is an invocation with its completion; one that
never completed lasted to the end of the run and is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

import attrs

from jepsen.checkers.base import Finding, Run
from jepsen.history import INFO, OBSERVER, OK, Op, pair

NS: Final = 1e9
QUANTILES: Final = (0.5, 0.95, 0.99, 1.0)
# Findings that say a job is gone, or can't be had.
LOSSES: Final = frozenset({"lost", "stuck"})


# Made by the hundred thousand: a frozen class would take twice the time.
@attrs.define(eq=False)
class Call:
    """An invocation and its completion, None if the run ended before."""

    invoke: Op
    completion: Op | None

    @property
    def type(self) -> str:
        """How it came out: OK, FAIL or INFO."""
        return self.completion.type if self.completion else INFO

    @property
    def is_empty(self) -> bool:
        """Whether it is a get that waited as long as it should and got nothing."""
        return self.invoke.f == "get" and self.type == OK and not jobs_of(self.completion)

    def latency_ms(self, end_ns: int) -> float:
        """Milliseconds until it came back; until `end_ns` if it never did."""
        until = self.completion.time if self.completion else end_ns
        return max(until - self.invoke.time, 1) / 1e6


@attrs.frozen
class Calls:
    """The calls of a run, apart by who made them, and when the run ended."""

    clients: Sequence[Call]
    observers: Sequence[Call]
    end_ns: int

    @classmethod
    def of(cls, run: Run) -> Calls:
        """All calls of a run, in order of invocation."""
        clients: list[Call] = []
        observers: list[Call] = []
        for invoke, completion in pair(run.ops):
            kind = observers if invoke.process == OBSERVER else clients
            kind.append(Call(invoke, completion))
        return cls(clients, observers, run.ops[-1].time if run.ops else 0)

    @property
    def end_s(self) -> float:
        """Seconds of the whole run, more than 0."""
        return self.end_ns / NS or 1.0


@attrs.frozen
class Snapshot:
    """What an observer saw of a node: `counts` by name, registered, queued, acked, rss ..."""

    at_s: float
    node: str
    counts: dict[str, float]


def jobs_of(completion: Op | None) -> Sequence[Any]:
    """The jobs in a completed get, as the history has them."""
    return completion.value.get("jobs") or () if completion else ()


def bin_width_s(end_s: float, widest_s: float) -> float:
    """The width of a bin in seconds: `widest_s`, less in runs with fewer than 30 such bins."""
    return next((w for w in (0.5, 1, 2, 5, 10) if end_s <= 30 * w and w <= widest_s), widest_s)


def rates(calls: Calls, width_s: float) -> dict[tuple[str, str], list[tuple[float, float]]]:
    """Completed calls a second by (f, type), a vertex (middle of bin, rate) for every bin."""
    bins = bin_count(calls, width_s)
    counts: dict[tuple[str, str], list[int]] = {}
    for call in calls.clients:
        at_ns = call.completion.time if call.completion else calls.end_ns
        row = counts.setdefault((call.invoke.f, call.type), [0] * bins)
        row[min(bins - 1, int(at_ns / NS / width_s))] += 1
    return {
        key: [((i + 0.5) * width_s, count / width_s) for i, count in enumerate(row)]
        for key, row in sorted(counts.items())
    }


def latency_quantiles(
    samples: Iterable[tuple[float, float]], width_s: float
) -> dict[float, list[tuple[float, float]]]:
    """Of samples (at s, ms): for each of QUANTILES a vertex (middle of bin, ms) for each bin that has samples."""
    bins: dict[int, list[float]] = {}
    for at_s, ms in samples:
        bins.setdefault(int(at_s / width_s), []).append(ms)
    found: dict[float, list[tuple[float, float]]] = {q: [] for q in QUANTILES}
    for i, values in sorted(bins.items()):
        values.sort()
        for q, vertices in found.items():
            vertices.append(((i + 0.5) * width_s, quantile(values, q)))
    return found


def quantile(ordered: Sequence[float], q: float) -> float:
    """The nearest-rank quantile of an ordered, non-empty sequence."""
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)]


def delivery_latencies(calls: Calls) -> list[tuple[float, float, int]]:
    """(first delivery s, ms waited, v) for each delivered value: since its add was ok and its delay over."""
    ready: dict[int, int] = {}
    for call in calls.clients:
        if call.invoke.f == "add":
            done = call.completion.time if call.completion else call.invoke.time
            due = call.invoke.time + int(call.invoke.value.get("delay", 0) * NS)
            ready[call.invoke.value["v"]] = max(done, due)
    first = first_deliveries(calls)
    return sorted(
        (at / NS, max(0, at - ready[v]) / 1e6, v) for v, at in first.items() if v in ready
    )


def unseen(calls: Calls) -> list[tuple[float, float]]:
    """How many jobs were acknowledged and not yet delivered, as steps (s, count)."""
    delivered = first_deliveries(calls)
    changes: list[tuple[int, int]] = []
    for call in calls.clients:
        if call.invoke.f == "add" and call.type == OK and call.completion:
            acknowledged = call.completion.time
            seen = delivered.get(call.invoke.value["v"])
            if seen is None or seen > acknowledged:
                changes.append((acknowledged, 1))
                if seen is not None:
                    changes.append((seen, -1))
    steps: list[tuple[float, float]] = [(0.0, 0.0)]
    count = 0
    for at, change in sorted(changes):
        steps.append((at / NS, count))
        count += change
        steps.append((at / NS, count))
    steps.append((calls.end_s, count))
    return steps


def first_deliveries(calls: Calls) -> dict[int, int]:
    """The instant (ns) of the first delivery by value."""
    first: dict[int, int] = {}
    for call in calls.clients:
        if call.completion:
            at = call.completion.time
            for job in jobs_of(call.completion):
                first[job["v"]] = min(first.get(job["v"], at), at)
    return first


def snapshots(calls: Calls) -> list[Snapshot]:
    """What the observers saw, in order of time."""
    seen = [
        Snapshot(
            each.completion.time / NS,
            each.invoke.node,
            {k: v for k, v in each.completion.value.items() if isinstance(v, int | float)},
        )
        for each in calls.observers
        if each.completion and each.type == OK
    ]
    return sorted(seen, key=lambda snapshot: snapshot.at_s)


def fates(calls: Calls, findings: Iterable[Finding], concurrency: int) -> list[tuple[Call, str]]:
    """What became of each add, in order of invocation.

    "delivered"; "lost-prefix", "lost-middle", "lost-postfix" where a finding says lost or stuck, by its place among
    what the same producer had acknowledged; "unseen": acknowledged, not delivered, and no finding (expired, deleted,
    excused, or nobody asked); "unknown" and "refused" by the add's own completion.
    """
    lost = {each.v for each in findings if each.kind in LOSSES}
    delivered = first_deliveries(calls)
    adds = [call for call in calls.clients if call.invoke.f == "add"]
    by_producer: dict[int, list[int]] = {}
    for call in adds:
        if call.type == OK:
            producer = call.invoke.process % (concurrency or 1)
            by_producer.setdefault(producer, []).append(call.invoke.value["v"])
    places = {v: where for vs in by_producer.values() for v, where in lost_places(vs, lost).items()}
    return [(call, fate(call, delivered, places)) for call in adds]


def fate(call: Call, delivered: dict[int, int], places: dict[int, str]) -> str:
    """What became of one add; see `fates`."""
    v = call.invoke.value["v"]
    if v in places:
        return f"lost-{places[v]}"
    if v in delivered:
        return "delivered"
    return {OK: "unseen", INFO: "unknown"}.get(call.type, "refused")


def lost_places(vs: Sequence[int], lost: set[int]) -> dict[int, str]:
    """Where the lost ones stand among one producer's values: in its prefix, its postfix, or a hole in the middle.

    A producer that lost everything lost a prefix. After NATS's and Redpanda's tests: a prefix is a queue that started
    over, a hole a copy that was dropped, a postfix often a reader that was behind.
    """
    kept = [i for i, v in enumerate(vs) if v not in lost]
    first, last = (kept[0], kept[-1]) if kept else (len(vs), len(vs))
    return {
        v: "prefix" if i < first else "postfix" if i > last else "middle"
        for i, v in enumerate(vs)
        if v in lost
    }


def bin_count(calls: Calls, width_s: float) -> int:
    """How many bins of that width hold the run."""
    return int(calls.end_s / width_s) + 1
