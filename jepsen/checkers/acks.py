"""Acks: once an acknowledgement had time to reach every holder, nobody is given the job again."""

from __future__ import annotations

from jepsen.checkers.base import Finding, Result
from jepsen.checkers.faults import FOREVER
from jepsen.checkers.lives import Index

NAME = "ack-respected"
CLAIM = "After an acknowledgement has settled no node offers the job again; one that was cut off hears it at the heal."


def check(index: Index) -> Result | None:
    """No GETJOB sent after the bound returns a job whose ack, FASTACK or CANCELJOB was confirmed (C5)."""
    findings = []
    confirmed = late = 0
    for life in index.lives.values():
        if not life.orders or not (ends := life.ends()):
            continue
        confirmed += 1
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
    if not confirmed:
        return None
    numbers = {"confirmed": confirmed, "late_duplicates": late, "bound_ms": index.bounds.facts_ms}
    return Result(NAME, not findings, CLAIM, tuple(findings), numbers)
