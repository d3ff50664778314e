"""Order: strict only where it can be promised; else the rate of inversions."""

from __future__ import annotations

from itertools import pairwise

from jepsen.checkers.base import MS, Finding, Result
from jepsen.checkers.lives import Delivery, Index, Life

NAME = "order"
CLAIM = "One producer, one node, one consumer, no fault: first in, first out. Elsewhere roughly so."


def check(index: Index) -> Result | None:
    """First hand-outs of each queue against the order of its adds (C16)."""
    queues: dict[str, list[Life]] = {}
    for life in index.lives.values():
        if life.is_ok and life.deliveries and not life.delay and not life.orders_before_delivery:
            queues.setdefault(life.queue, []).append(life)
    if not queues:
        return None
    findings: list[Finding] = []
    inversions = pairs = strict = 0
    for queue, lives in queues.items():
        lives.sort(key=lambda life: (life.deliveries[0].at, life.deliveries[0].rank))
        out = [(a, b) for a, b in pairwise(lives) if a.begun_at > b.begun_at]
        inversions += len(out)
        pairs += len(lives) - 1
        if _is_strict(index, lives):
            strict += 1
            if out:
                late, early = out[0]
                text = f"{queue!r}: value {late.v} came before {early.v}, which was added first"
                at = early.deliveries[0].at
                findings.append(Finding(NAME, "out-of-order", text, early.job, early.v, at))
    numbers = {
        "queues": len(queues),
        "strict_queues": strict,
        "inversion_percent": round(100 * inversions / pairs, 2) if pairs else 0.0,
    }
    return Result(NAME, not findings, CLAIM, tuple(findings), numbers)


def _is_strict(index: Index, lives: list[Life]) -> bool:
    """One producer and one consumer at one node, and calm all the time."""
    firsts: list[Delivery] = [life.deliveries[0] for life in lives]
    hands = {(life.add.process, life.add.node) for life in lives}
    takers = {(each.process, each.node) for each in firsts}
    if len(hands) != 1 or len(takers) != 1:
        return False
    if {node for _, node in hands} != {node for _, node in takers}:
        return False
    if lives[0].queue in index.unanswered:
        return False
    start = min(life.begun_at for life in lives) - index.bounds.facts_ms * MS
    return index.faults.is_calm(start, firsts[-1].at)
