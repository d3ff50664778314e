"""Delay: nobody gets a job before its DELAY is over, nor before that of a NACK."""

from __future__ import annotations

from collections.abc import Iterator

from jepsen.checkers.base import MS, Finding, Result
from jepsen.checkers.lives import Index, Life
from jepsen.history import FAIL, OK

NAME = "delay"
CLAIM = (
    "DELAY holds on every node: no delivery before its end, unless somebody said ENQUEUE or NACK."
)
HURRIES = frozenset({"enqueue", "nack", "revive"})


def check(index: Index) -> Result | None:
    """First hand-outs against DELAY (C10), and in calm hand-outs after NACK id DELAY."""
    slack = index.bounds.delay_slack_ms * MS
    findings: list[Finding] = []
    delayed = given_back = 0
    for life in index.lives.values():
        if life.delay and life.deliveries:
            delayed += 1
            findings += _early(life, slack)
        if any(order.delay for order in life.orders):
            given_back += 1
            findings += _early_after_nack(index, life, slack)
    if not delayed and not given_back:
        return None
    numbers = {"delayed": delayed, "nacked_with_delay": given_back}
    return Result(NAME, not findings, CLAIM, tuple(findings), numbers)


def _early(life: Life, slack: int) -> Iterator[Finding]:
    due = life.begun_at + life.delay
    for each in life.deliveries:
        hurried = any(
            order.f in HURRIES and order.type != FAIL and order.begun_at <= each.at
            for order in life.orders
        )
        if each.at < due - slack and not hurried:
            text = f"delivered by {each.node} {(due - each.at) / 1e6:.0f} ms before its DELAY ended"
            yield Finding(NAME, "early", text, life.job, life.v, each.at)
            return


def _early_after_nack(index: Index, life: Life, slack: int) -> Iterator[Finding]:
    facts, race = index.bounds.facts_ms * MS, index.bounds.race_ms * MS
    for nack in life.orders:
        if not nack.delay or nack.type != OK:
            continue
        if not any(each.at <= nack.ended_at for each in life.deliveries):
            continue  # what was never handed out can't be given back
        due = nack.begun_at + nack.delay
        for each in life.deliveries:
            # a hand-out close to the NACK may have crossed it
            if not nack.ended_at + race < each.at < due - slack:
                continue
            others = (o for o in life.orders if o is not nack and o.f in HURRIES and o.type != FAIL)
            if any(nack.begun_at - race <= o.begun_at <= each.at for o in others):
                continue
            if index.faults.is_calm(nack.begun_at - facts, each.at):
                text = f"delivered by {each.node} {(due - each.at) / 1e6:.0f} ms before the DELAY of its NACK ended"
                yield Finding(NAME, "early-after-nack", text, life.job, life.v, each.at)
                return
