"""Lease: RETRY counts from the hand-out. Not sooner again in calm, and not much later, if somebody asks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from jepsen.checkers.base import MS, Finding, Result
from jepsen.checkers.excuses import purged_from
from jepsen.checkers.faults import FOREVER
from jepsen.checkers.lives import Ask, Delivery, Index, Life
from jepsen.history import ENDING, FAIL, OK

NAME = "retry-lease"
CLAIM = "RETRY counts from the hand-out, WORKING renews it; then the job is offered again, to whoever asks on any node."
ENDS_LEASE = frozenset({"nack", "enqueue", "dequeue", "revive", "deljob"})
MOVES = frozenset({"dequeue", "purge", *ENDING})


def check(index: Index) -> Result | None:
    """No second hand-out within a lease in calm; none later than the bound while somebody got nothing (C11)."""
    lives = [life for life in index.lives.values() if life.retry and life.is_ok]
    if not lives:
        return None
    findings: list[Finding] = []
    again = 0
    asks = _empty_asks(index)
    for life in lives:
        again += max(0, len(life.deliveries) - 1)
        findings += _too_early(index, life)
        findings += _too_late(index, life, asks)
    return Result(NAME, not findings, CLAIM, tuple(findings), {"jobs": len(lives), "again": again})


def _too_early(index: Index, life: Life) -> Iterator[Finding]:
    """The first pair of hand-outs that are closer than the lease, in calm."""
    facts = index.bounds.facts_ms * MS
    for before, each in pairwise(life.deliveries):
        if before.queue != each.queue or before.queue == life.dead:
            # dead letters have a checker of their own
            continue
        started_at = _lease_from(index, life, before, each)
        lease = life.retry * index.bounds.lease_percent // 100
        if each.at - started_at >= lease or _is_lease_ended(life, each):
            continue
        if index.faults.is_calm(before.at - facts, each.at):
            kind = "early-redelivery" if started_at == before.at else "working-ignored"
            text = (
                f"{before.node} handed it out at {before.at / 1e9:.3f} s, {each.node} again "
                f"{(each.at - started_at) / 1e9:.3f} s into a lease of {life.retry / 1e9:.3f} s, no fault near"
            )
            yield Finding(NAME, kind, text, life.job, life.v, each.at)
            return


def _lease_from(index: Index, life: Life, before: Delivery, each: Delivery) -> int:
    """When the lease began that this second hand-out had to respect: the first one, or a WORKING since."""
    race = index.bounds.race_ms * MS
    renewed = [
        order.begun_at
        for order in life.orders
        if order.f == "working"
        and order.type == OK
        and order.begun_at > before.at
        and order.ended_at + race <= each.at
    ]
    return max(renewed, default=before.at)


def _is_lease_ended(life: Life, each: Delivery) -> bool:
    return any(
        order.f in ENDS_LEASE and order.type != FAIL and order.begun_at <= each.at
        for order in life.orders
    )


def _empty_asks(index: Index) -> dict[str, list[Ask]]:
    """By queue: GETJOBs that were answered with nothing, in order of their sending."""
    found: dict[str, list[Ask]] = {}
    for ask in index.asks:
        if ask.type == OK and not ask.got:
            for queue in ask.invoke.value["queues"]:
                found.setdefault(queue, []).append(ask)
    return found


def _too_late(index: Index, life: Life, asks: dict[str, list[Ask]]) -> Iterator[Finding]:
    """A hand-out that came later than the bound, or not at all, while an asker went away with nothing."""
    empty = asks.get(life.queue)
    if not empty or life.limit:
        return
    moves = [o.begun_at for o in life.orders if o.f in MOVES and o.type != FAIL]
    end = min([*moves, *purged_from(index, life)], default=FOREVER)
    if life.deliveries and end <= life.deliveries[0].at + life.retry and _is_prompt(index, life):
        return
    # a NACK gives it back, and its DELAY may put it off beyond RETRY
    held = [o.ended_at + o.delay for o in life.orders if o.f == "nack" and o.type != FAIL]
    due = max([life.ended_at, life.begun_at + life.delay, *held])
    for each in (*life.deliveries, None):
        until = min(index.ended_at if each is None else each.asked_at, end)
        deadline = due + index.bounds.redelivery_ms * MS
        if until > deadline and (asked := _asked_twice(index, life, empty, deadline, until)):
            if _is_due_in_calm(index, life, due, asked.ended_at):
                text = (
                    f"due at {due / 1e9:.3f} s, not offered by {asked.ended_at / 1e9:.3f} s, when the second GETJOB "
                    f"after the bound, at {asked.invoke.node}, came back empty"
                )
                yield Finding(NAME, "late", text, life.job, life.v, asked.ended_at)
                return
        if each is not None:
            due = max([each.at + life.retry, *held])


def _is_prompt(index: Index, life: Life) -> bool:
    """The common case: handed out within the bound."""
    due = max(life.ended_at, life.begun_at + life.delay)
    return life.deliveries[0].asked_at <= due + index.bounds.redelivery_ms * MS


def _asked_twice(index: Index, life: Life, empty: list[Ask], since: int, until: int) -> Ask | None:
    """The second of two empty answers, a RETRY and more apart: after the first it may have been on its way."""
    first = _asked(empty, since, until)
    if first is None:
        return None
    race = index.bounds.race_ms * MS
    second = _asked(empty, first.ended_at + life.retry + race, until)
    if second is None or second.invoke.node in index.faults.outsiders(second.ended_at):
        return None
    return second


def _asked(empty: list[Ask], since: int, until: int) -> Ask | None:
    """The first empty answer to a GETJOB sent after `since`, come before `until`."""
    low, high = 0, len(empty)
    while low < high:
        middle = (low + high) // 2
        if empty[middle].invoke.time > since:
            high = middle
        else:
            low = middle + 1
    if low < len(empty) and empty[low].ended_at < until:
        return empty[low]
    return None


def _is_due_in_calm(index: Index, life: Life, due: int, until: int) -> bool:
    """Calm since it fell due, not expired, not taken by a lost answer, nor put off by WORKING, ENQUEUE."""
    if until > life.begun_at + life.ttl or index.may_be_taken(life, due - life.retry, until):
        return False
    orders = ENDS_LEASE - {"nack"} | {"working"}
    if any(o.f in orders and o.type != FAIL and o.begun_at > due - life.retry for o in life.orders):
        return False
    return index.faults.is_calm(due - index.bounds.facts_ms * MS, until)
