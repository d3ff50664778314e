"""TTL: an expired job is handed out by nobody, and gone from every node soon after."""

from __future__ import annotations

from collections.abc import Iterator

from jepsen.checkers.base import MS, Finding, Result
from jepsen.checkers.faults import FOREVER
from jepsen.checkers.lives import Delivery, Index, Life

NAME = "ttl"
CLAIM = "A job is not delivered after its TTL, and no node keeps it, however it travelled."
RENEWS = frozenset({"revive"})


def check(index: Index) -> Result | None:
    """Hand-outs (C12) and snapshots after the end of the TTL; dead letters have a life of their own."""
    short = [life for life in index.lives.values() if _expires_at(life) < index.ended_at]
    if not short:
        return None
    slack = index.bounds.ttl_slack_ms * MS
    findings: list[Finding] = []
    for life in short:
        findings += _late(index, life, slack)
    findings += _kept(index, short, slack + index.bounds.facts_ms * MS)
    return Result(NAME, not findings, CLAIM, tuple(findings), {"expired": len(short)})


def _expires_at(life: Life) -> int:
    """When its TTL is over for sure: it was taken before its answer, and before its first hand-out."""
    taken_by = life.ended_at if life.is_ok else FOREVER
    if life.deliveries:
        taken_by = min(taken_by, life.deliveries[0].at)
    return FOREVER if taken_by == FOREVER else taken_by + life.ttl


def _late(index: Index, life: Life, slack: int) -> Iterator[Finding]:
    if life.ordered(RENEWS):
        return
    end = _expires_at(life) + slack
    for each in life.own:
        if _handed_out_at(index, each) > end:
            late = (each.at - _expires_at(life)) / 1e9
            text = f"{each.node} delivered it {late:.2f} s after its TTL of {life.ttl / 1e9:.2f} s"
            yield Finding(NAME, "delivered-expired", text, life.job, life.v, each.at)
            return


def _handed_out_at(index: Index, each: Delivery) -> int:
    """The earliest that it can have been: its arrival in calm, else when it was asked for."""
    return each.at if index.faults.is_calm(each.asked_at, each.at) else each.asked_at


def _kept(index: Index, short: list[Life], slack: int) -> Iterator[Finding]:
    """Expired jobs without a delivery limit in snapshots; the first sight of each."""
    waiting = {life.job: life for life in short if not life.limit and not life.ordered(RENEWS)}
    for snapshot in index.snapshots:
        for job in sorted(waiting.keys() & (snapshot.ids or frozenset())):
            life = waiting[job]
            if snapshot.asked_at > index.faults.calm_from(_expires_at(life)) + slack:
                text = f"{snapshot.node} still has it {(snapshot.at - _expires_at(life)) / 1e9:.2f} s after its TTL"
                yield Finding(NAME, "kept-expired", text, life.job, life.v, snapshot.at)
                del waiting[job]
