"""Dead letters: a job at its delivery limit is buried once, under its id, and its limit held till then."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from jepsen.checkers.base import MS, Finding, Result
from jepsen.checkers.lives import Index, Life
from jepsen.history import FAIL

NAME = "dead-letter"
CLAIM = (
    "MAXDELIVERIES holds on each side of a cut, and a job has one dead letter in the whole cluster."
)
QUEUES_AT_ONCE = frozenset({"nack", "enqueue"})
BRINGS_BACK = frozenset({"nack", "enqueue", "dequeue", "revive", "deljob"})


def check(index: Index) -> Result | None:
    """Deliveries from the own queue against limit x sides; letters not early, and not two at a time."""
    lives = [life for life in index.lives.values() if life.limit]
    if not lives:
        return None
    findings: list[Finding] = []
    letters = 0
    for life in lives:
        letters += any(each.queue == life.dead for each in life.deliveries)
        findings += _over_limit(index, life)
        findings += _too_soon(index, life)
        findings += _two_letters(index, life)
    return Result(
        NAME, not findings, CLAIM, tuple(findings), {"limited": len(lives), "letters": letters}
    )


def _over_limit(index: Index, life: Life) -> Iterator[Finding]:
    own = life.own
    if len(own) <= life.limit:
        return
    # counters die with the node that kept them, and REVIVE counts from anew
    lost = len(index.faults.wiped_since(life.begun_at, life.begun_at))
    revives = sum(order.f == "revive" and order.type != FAIL for order in life.orders)
    settle = index.bounds.facts_ms * MS
    sides = index.faults.sides(life.begun_at - settle, own[-1].at)
    allowed = life.limit * (sides + lost) * (1 + revives) + _crossed(index, life)
    if len(own) > allowed:
        text = f"limit {life.limit}, {sides} sides, {len(own)} deliveries from {life.queue!r}: {allowed} allowed"
        yield Finding(NAME, "over-limit", text, life.job, life.v, own[allowed].at)


def _crossed(index: Index, life: Life) -> int:
    """Hand-outs that crossed another node's: NACK and ENQUEUE queue a copy where they are, and ask nobody (B1.8)."""
    race = index.bounds.race_ms * MS
    count = 0
    for before, each in pairwise(life.own):
        is_close = before.node != each.node and each.at - before.at <= race
        count += is_close and any(
            order.f in QUEUES_AT_ONCE
            and order.type != FAIL
            and before.at - race <= order.begun_at <= each.at
            for order in life.orders
        )
    return count


def _too_soon(index: Index, life: Life) -> Iterator[Finding]:
    """Buried though fewer deliveries were seen than its limit, and none can have been lost."""
    letter = next((each for each in life.deliveries if each.queue == life.dead), None)
    if letter is None:
        return
    own = sum(each.queue == life.queue and each.at <= letter.at for each in life.deliveries)
    settle = index.bounds.facts_ms * MS
    is_calm = index.faults.is_calm(life.begun_at - settle, letter.at)
    if own < life.limit and is_calm and not index.may_be_taken(life, life.begun_at):
        text = f"in {life.dead!r} after {own} of {life.limit} deliveries"
        yield Finding(NAME, "buried-early", text, life.job, life.v, letter.at)


def _two_letters(index: Index, life: Life) -> Iterator[Finding]:
    """The letter came out twice within its lease, in calm: there were two."""
    letters = [each for each in life.deliveries if each.queue == life.dead]
    facts = index.bounds.facts_ms * MS
    lease = life.retry * index.bounds.lease_percent // 100
    for before, each in pairwise(letters):
        is_asked = any(
            order.f in BRINGS_BACK
            and order.type != FAIL
            and before.asked_at <= order.begun_at <= each.at
            for order in life.orders
        )
        is_close = each.at - before.at < lease and not is_asked
        if is_close and index.faults.is_calm(before.at - facts, each.at):
            text = f"its letter came out at {before.node}, {(each.at - before.at) / 1e9:.3f} s later at {each.node}"
            yield Finding(NAME, "two-letters", text, life.job, life.v, each.at)
            return
