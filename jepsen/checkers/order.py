"""Order: strict where it is promised, which is on one node in calm; elsewhere only a rate is told.

A node hands out the jobs of a queue by priority, then by when it took them. What the history alone can show of that: a
job that was asked for only after a younger one had come, though it was there all the while. So two jobs make a *pair*
if the same node took both, the second after it had answered the first, and first handed out both; and the first one
stayed there, to be had by anybody: in calm, without DELAY or an order about it, while no other node was asked for its
queue (it may have moved there and back) and no answer was lost that may have had it. Producers and consumers may be
many. Who isn't judged: jobs that travel, ADDJOBs under way at once, answers that crossed. Where each node is asked for
each queue, as in most workloads, that is nearly all; `fifo` is there for this checker.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise

from jepsen.checkers.base import MS, Finding, Result
from jepsen.checkers.faults import FOREVER, Windows
from jepsen.checkers.lives import Index, Life

NAME = "order"
CLAIM = (
    "Asked at one node, in calm: first in, first out, whoever adds and gets. Elsewhere roughly so."
)


def check(index: Index) -> Result | None:
    """First hand-outs of each queue against the order of its adds (C16)."""
    queues: dict[str, list[Life]] = {}
    places: dict[tuple[str, str, int], list[Life]] = {}
    for life in index.lives.values():
        if not life.deliveries or life.deliveries[0].queue != life.queue:
            continue
        if life.is_ok and not life.delay and not life.orders_before_delivery:
            queues.setdefault(life.queue, []).append(life)
        if life.add.node == life.deliveries[0].node:
            places.setdefault((life.queue, life.add.node, life.priority), []).append(life)
    if not queues:
        return None
    numbers = {"queues": len(queues), "judged": 0, **_inversions(queues)}
    findings: list[Finding] = []
    asks = _Asks(index)
    for (queue, node, _), lives in places.items():
        judged = [life for life in lives if _is_steady(index, life, asks)]
        numbers["judged"] += len(judged)
        if pair := next(_overtaken(judged, lives), None):
            early, late = pair
            text = f"{queue!r}: value {late.v} came before {early.v}, which {node} had before it"
            at = early.deliveries[0].at
            findings.append(Finding(NAME, "out-of-order", text, early.job, early.v, at))
    return Result(NAME, not findings, CLAIM, tuple(findings), numbers)


def _inversions(queues: dict[str, list[Life]]) -> dict[str, float]:
    """Of neighbours among the hand-outs of a queue, how many were added the other way round."""
    inversions = pairs = 0
    for lives in queues.values():
        lives.sort(key=_handed_out)
        inversions += sum(a.begun_at > b.begun_at for a, b in pairwise(lives))
        pairs += len(lives) - 1
    return {"inversion_percent": round(100 * inversions / pairs, 2) if pairs else 0.0}


def _handed_out(life: Life) -> tuple[int, int]:
    """When its first hand-out came, and its place in the answer."""
    return life.deliveries[0].at, life.deliveries[0].rank


class _Asks:
    """When which node was asked for which queue; its need is remembered for `facts_ms` by the others."""

    def __init__(self, index: Index) -> None:
        facts = index.bounds.facts_ms * MS
        spans: dict[str, dict[str, list[tuple[int, int]]]] = {}
        for ask in index.asks:
            span = (ask.invoke.time, min(ask.ended_at, FOREVER - facts) + facts)
            for queue in ask.invoke.value["queues"]:
                spans.setdefault(queue, {}).setdefault(ask.invoke.node, []).append(span)
        self._windows = {
            queue: {node: Windows(found) for node, found in nodes.items()}
            for queue, nodes in spans.items()
        }

    def were_elsewhere(self, life: Life, start: int, end: int) -> bool:
        """Another node than its own was asked for its queue in this span, or shortly before."""
        nodes = self._windows.get(life.queue, {})
        return any(
            windows.touch(start, end) for node, windows in nodes.items() if node != life.add.node
        )


def _is_steady(index: Index, life: Life, asks: _Asks) -> bool:
    """From its add to its first hand-out it lay at its node, for anybody to have."""
    start, end = life.begun_at, life.deliveries[0].at
    if not life.is_ok or life.delay or life.orders_before_delivery or index.meta.is_external:
        return False
    if index.may_be_taken(life, start, end) or asks.were_elsewhere(life, start, end):
        return False
    return index.faults.is_calm(start - index.bounds.facts_ms * MS, end)


def _overtaken(judged: list[Life], lives: list[Life]) -> Iterator[tuple[Life, Life]]:
    """Each of `judged` that was handed out after a younger one of `lives`, and that one."""
    younger = sorted(lives, key=lambda life: life.begun_at)
    begins = [life.begun_at for life in younger]
    # of each and all behind it, the one that came first
    soonest = younger[:]
    for at in range(len(soonest) - 2, -1, -1):
        soonest[at] = min(soonest[at : at + 2], key=_handed_out)
    answers: dict[tuple[int, int], list[Life]] = {}
    for life in lives:
        answers.setdefault(_answer(life), []).append(life)
    for life in judged:
        at = bisect_right(begins, life.ended_at)
        if at < len(soonest) and soonest[at].deliveries[0].at < life.deliveries[0].asked_at:
            yield life, soonest[at]
        for other in answers[_answer(life)]:
            if other.begun_at > life.ended_at and _handed_out(other) < _handed_out(life):
                yield life, other


def _answer(life: Life) -> tuple[int, int]:
    """The answer that had its first hand-out."""
    return life.deliveries[0].process, life.deliveries[0].at
