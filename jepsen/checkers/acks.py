"""Acks: once an acknowledgement had time to reach every holder, nobody is given the job again; nor after a purge."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from jepsen.checkers.base import MS, Finding, Result
from jepsen.checkers.faults import FOREVER
from jepsen.checkers.lives import Index, Life, Purge
from jepsen.history import OK

NAME = "ack-respected"
CLAIM = "After an acknowledgement has settled no node offers the job again; one that was cut off hears it at the heal."


def check(index: Index) -> Result | None:
    """No GETJOB sent after the bound returns a job whose ack, FASTACK or CANCELJOB was confirmed (C5)."""
    findings = []
    confirmed = late = 0
    is_any_settled = False
    for life in index.lives.values():
        if not life.orders or not (ends := life.ends()):
            continue
        confirmed += 1
        is_any_settled = is_any_settled or index.settled_by(life, index.ended_at) < index.ended_at
        first = min(end.ended_at for end in ends)
        again = [each for each in life.deliveries if each.asked_at > first]
        late += len(again)
        for each in again:
            deadline = index.settled_by(life, each.at)
            if deadline != FOREVER and each.asked_at > deadline:
                end = ends[0]
                text = (
                    f"{end.f} confirmed by {end.node} at {end.ended_at / 1e9:.3f} s, delivered by {each.node} "
                    f"{(each.at - first) / 1e9:.2f} s later; all had to know by {deadline / 1e9:.3f} s"
                )
                findings.append(Finding(NAME, "delivered-late", text, life.job, life.v, each.at))
                break
    purged = list(_purged(index))
    findings += [_undead(life, purge) for life, purge in purged if life.deliveries]
    if not confirmed and not purged:
        return None
    numbers = {"confirmed": confirmed, "late_duplicates": late, "bound_ms": index.bounds.facts_ms}
    numbers["purged"] = len(purged)
    if not findings and not is_any_settled and not purged:
        return Result(NAME, None, CLAIM, (), numbers, ("no end had the time to settle",))
    return Result(NAME, not findings, CLAIM, tuple(findings), numbers)


def _purged(index: Index) -> Iterator[tuple[Life, Purge]]:
    """Jobs that surely lay in their queue when it was purged, and the purge: all calm from the add to long after it.

    What moves, waits for its ADDJOB or is on the other side of a cut may survive (B9): so RETRY above 0, and the add
    was answered `facts_ms` before. First hand-outs before the bound say nothing.
    """
    facts = index.bounds.facts_ms * MS
    purges: dict[str, list[Purge]] = {}
    for each in index.purges:
        if each.type == OK and each.ended_at + facts <= index.ended_at:
            purges.setdefault(each.queue, []).append(each)
    begins = {queue: [each.begun_at for each in found] for queue, found in purges.items()}
    for life in index.lives.values():
        if not life.is_ok or not life.retry or life.delay or life.queue not in purges:
            continue
        at = bisect_left(begins[life.queue], life.ended_at + facts)
        if at == len(begins[life.queue]):
            continue
        purge = purges[life.queue][at]
        until = purge.ended_at + facts
        if all(each.asked_at > until for each in life.deliveries):
            if index.faults.is_calm(life.begun_at, until):
                yield life, purge


def _undead(life: Life, purge: Purge) -> Finding:
    first = life.deliveries[0]
    text = (
        f"{life.queue!r} was purged at {purge.ended_at / 1e9:.3f} s, {(purge.begun_at - life.ended_at) / 1e9:.2f} s "
        f"after the add; delivered by {first.node} {(first.at - purge.ended_at) / 1e9:.2f} s later"
    )
    return Finding(NAME, "purged", text, life.job, life.v, first.at)
