"""Resurrection: a job that was over, and that no node had any more, never comes back."""

from __future__ import annotations

from bisect import bisect_right

from jepsen.checkers.base import Finding, Result
from jepsen.checkers.lives import Index, Life

NAME = "no-resurrection"
CLAIM = "Once a job is over and no node has it, nothing brings it back: no restart, no rejoin, no late message."


def check(index: Index) -> Result | None:
    """Nothing after two full rounds in succession that lack the job everywhere, after its end was confirmed (C6)."""
    if len(index.full_rounds) < 2:
        return None
    findings: dict[int, Finding] = {}
    for life, snapshot in index.sightings:
        if life.v not in findings and _was_gone(index, life, snapshot.asked_at):
            text = f"over and on no node, yet {snapshot.node} has it un-acked ({snapshot.phase})"
            findings[life.v] = Finding(NAME, "resurrected", text, life.job, life.v, snapshot.at)
    for life in index.lives.values():
        if life.v in findings or not life.orders or not life.deliveries:
            continue
        last = life.deliveries[-1]
        if _was_gone(index, life, last.asked_at):
            text = f"over and on no node, yet {last.node} delivered it"
            findings[life.v] = Finding(NAME, "resurrected", text, life.job, life.v, last.at)
    numbers = {"full_rounds": len(index.full_rounds)}
    return Result(NAME, not findings, CLAIM, tuple(findings.values()), numbers)


def _was_gone(index: Index, life: Life, before: int) -> bool:
    """Two full rounds in succession, between the first confirmed end and this instant, have it nowhere.

    A copy that a cut held back on its way may arrive when it ends; its node must hear of the end within the bound.
    """
    ends = life.ends()
    if not ends:
        return False
    over_at = min(end.ended_at for end in ends)
    if over_at >= before:
        return False
    missed = 0
    for each in index.full_rounds[bisect_right(index.full_starts, over_at) :]:
        if each.ended_at >= before:
            break
        missed = 0 if each.holders(life.job) else missed + 1
        if missed == 2:
            return not index.faults.may_hold_back(life.begun_at, each.ended_at, before)
    return False
