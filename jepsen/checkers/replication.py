"""Replication: an ADDJOB that answers with an id had its copies, on different nodes, before it answered."""

from __future__ import annotations

from bisect import bisect_right

from jepsen.checkers.base import MS, Finding, Result
from jepsen.checkers.lives import Index, Life

NAME = "replication"
CLAIM = "ADDJOB answers with an id only once the asked number of nodes have the job; what can't be met is NOREPL."


def check(index: Index) -> Result | None:
    """Copies in the next full round of a calm, and cuts that made the asked number impossible (C9)."""
    lives = [life for life in index.lives.values() if life.is_ok and life.replicate > 1]
    if not lives:
        return None
    findings, counted = [], 0
    for life in lives:
        most = index.faults.reach_most(life.add.node, life.begun_at, life.ended_at)
        if most < life.replicate and not _may_be_handed_out_first(life):
            text = f"REPLICATE {life.replicate} answered ok by {life.add.node}, which reached {most} nodes at best"
            findings.append(Finding(NAME, "impossible", text, life.job, life.v, life.ended_at))
        elif (holders := _holders(index, life)) is not None:
            counted += 1
            if len(holders) < life.replicate:
                text = f"REPLICATE {life.replicate} answered ok, copies on {holders} only"
                findings.append(
                    Finding(NAME, "too-few-copies", text, life.job, life.v, life.ended_at)
                )
    numbers = {"explicit": len(lives), "counted": counted}
    return Result(NAME, not findings, CLAIM, tuple(findings), numbers)


def _may_be_handed_out_first(life: Life) -> bool:
    """A waiting ADDJOB is ok, too, as soon as anybody works on the job or ends it: it has come out already.

    Peers with a copy offer it after RETRY, whether or not its node has queued it.
    """
    if any(each.begun_at <= life.ended_at for each in life.orders):
        return True
    is_long = life.ended_at - life.begun_at >= life.retry
    return any(
        each.at <= life.ended_at or (is_long and each.asked_at <= life.ended_at)
        for each in life.deliveries
    )


def _holders(index: Index, life: Life) -> list[str] | None:
    """Who had it in the next full round, if it was calm and nobody had ordered anything about it; else None."""
    at = bisect_right(index.full_starts, life.ended_at)
    if at == len(index.full_starts):
        return None
    look = index.full_rounds[at]
    settle = index.bounds.facts_ms * MS
    is_calm = index.faults.is_calm(life.begun_at - settle, look.ended_at)
    is_over = look.ended_at > life.begun_at + life.ttl
    is_purged = any(
        purge.queue == life.queue and purge.begun_at <= look.ended_at for purge in index.purges
    )
    is_ordered = any(order.begun_at <= look.ended_at for order in life.orders)
    if not is_calm or is_over or is_purged or is_ordered:
        return None
    return look.holders(life.job)
