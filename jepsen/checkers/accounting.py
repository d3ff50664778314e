"""Accounting: the total-queue family. Who was added, who came out, and what came out that nobody put in."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from jepsen.checkers.base import MS, Finding, Result
from jepsen.checkers.lives import Delivery, Index, Life

NAME = "accounting"
CLAIM = "Only jobs that were added are delivered, unchanged, under their id, from their queue."


def check(index: Index) -> Result:
    """Jepsen's total-queue keys and ours; invalid for what is unexpected, phantom, mislabelled or misrouted."""
    findings = [_stray(each) for each in index.strays]
    for life in index.lives.values():
        findings += _wrong(life)
    return Result(NAME, not findings, CLAIM, tuple(findings), _numbers(index))


def _stray(delivery: Delivery) -> Finding:
    text = (
        f"{delivery.node} delivered a body that is not ours: {delivery.raw[:80]!r}"
        if delivery.v < 0
        else f"{delivery.node} delivered value {delivery.v}, which nobody added"
    )
    return Finding(NAME, "unexpected", text, delivery.job, delivery.v, delivery.at)


def _wrong(life: Life) -> Iterator[Finding]:
    """What is wrong about the hand-outs of one value, the first of each kind."""
    if not life.deliveries:
        return
    first = life.deliveries[0]
    if life.is_refused:
        error = life.reply.error if life.reply else ""
        text = f"delivered by {first.node} although its ADDJOB was refused ({error})"
        yield Finding(NAME, "phantom", text, first.job, life.v, first.at)
    queues = (life.queue, life.dead)
    for each in life.deliveries:
        if each.job != life.job:
            text = f"value {life.v} is job {life.job}, {each.node} delivered it as {each.job}"
            yield Finding(NAME, "mislabelled", text, life.job, life.v, each.at)
            break
    for each in life.deliveries:
        if each.queue not in queues:
            text = f"added to {life.queue!r}, {each.node} delivered it from {each.queue!r}"
            yield Finding(NAME, "misrouted", text, life.job, life.v, each.at)
            break


def _numbers(index: Index) -> dict[str, Any]:
    attempted = acknowledged = refused = received = recovered = missing = 0
    for life in index.lives.values():
        attempted += 1
        acknowledged += life.is_ok
        refused += life.is_refused
        received += bool(life.deliveries)
        recovered += bool(life.deliveries) and not life.is_ok and not life.is_refused
        missing += life.is_ok and not life.deliveries
    return {
        "attempted": attempted,
        "acknowledged": acknowledged,
        "refused": refused,
        "unknown": attempted - acknowledged - refused,
        "received": received,
        "recovered": recovered,
        "missing": missing,
        "unexpected": len(index.strays),
        **_duplicates(index),
        # the names that Jepsen's total-queue prints
        "attempt-count": attempted,
        "acknowledged-count": acknowledged,
        "ok-count": received,
        "recovered-count": recovered,
        "lost-count": missing,
        "unexpected-count": len(index.strays),
    }


def _duplicates(index: Index) -> dict[str, int]:
    """Second and later hand-outs by class: after a confirmed ack, a NACK, RETRY; else in calm, or near a fault."""
    classes = {"after_ack": 0, "after_nack": 0, "after_retry": 0, "in_calm": 0, "in_faults": 0}
    facts, percent = index.bounds.facts_ms * MS, index.bounds.lease_percent
    for life in index.lives.values():
        for before, each in pairwise(life.deliveries):
            orders = [order for order in life.orders if order.begun_at <= each.at]
            if any(order.f == "ack" and order.ended_at < each.asked_at for order in orders):
                classes["after_ack"] += 1
            elif any(order.f == "nack" for order in orders):
                classes["after_nack"] += 1
            elif each.at - before.at >= life.retry * percent // 100 > 0:
                classes["after_retry"] += 1
            elif index.faults.is_calm(before.at - facts, each.at):
                classes["in_calm"] += 1
            else:
                classes["in_faults"] += 1
    total = sum(classes.values())
    named = {f"duplicated_{name}": count for name, count in classes.items()}
    return {"duplicated": total, "duplicated-count": total, **named}
