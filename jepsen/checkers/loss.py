"""Loss: an acknowledged job is offered again until somebody acknowledges it. What is missing needs an excuse."""

from __future__ import annotations

from collections import Counter

import attrs

from jepsen.checkers import excuses
from jepsen.checkers.base import Finding, Result
from jepsen.checkers.lives import Index, Life
from jepsen.history import ENDING

NAME = "loss"
CLAIM = "As long as one holder lives and its TTL isn't over, an acknowledged job is offered until it is acknowledged."


@attrs.define
class Missing:
    """An acknowledged job with no excuse; `where`: nodes that still hold it, `left`: nodes that left with it."""

    life: Life
    is_delivered: bool
    where: list[str]
    left: list[str]


def check(index: Index) -> Result | None:
    """Judge every acknowledged job with RETRY above 0."""
    jobs = sum([life.is_ok and life.retry > 0 for life in index.lives.values()])
    if not jobs:
        return None
    missing, excused, waiting = survey(index)
    findings = [_finding(each) for each in missing if not each.left]
    notes = [
        f"{count} excused by {code}: {excuses.TITLES[code]}" for code, count in excused.items()
    ]
    if waiting:
        notes.append(f"{waiting} jobs were still missing or un-acked when the run ended undrained")
    is_vague = excused["E3"] * 100 > jobs * excuses.EXCUSED_PERCENT
    if is_vague:
        notes.append(
            f"of {jobs} jobs {excused['E3']} are excused by faults: too many to tell anything"
        )
    classes = _order_classes(index, [each.life for each in missing if not each.is_delivered])
    numbers = {
        "lost": sum(each.kind in ("lost", "unfinished") for each in findings),
        "stuck": sum(each.kind == "stuck" for each in findings),
        "excused": sum(excused.values()),
        **{f"lost_{name}": count for name, count in sorted(classes.items())},
    }
    valid = False if findings else (None if waiting or is_vague else True)
    return Result(NAME, valid, CLAIM, tuple(findings), numbers, tuple(notes))


def survey(index: Index) -> tuple[list[Missing], Counter[str], int]:
    """What is missing without excuse, excuses used by code, and how many can't be judged as nobody drained."""
    missing: list[Missing] = []
    excused: Counter[str] = Counter()
    waiting = 0
    for life in index.lives.values():
        if not life.is_ok or not life.retry:
            continue
        is_delivered = bool(life.deliveries)
        if is_delivered and (life.ordered(ENDING) or excuses.is_purged(index, life)):
            continue
        where = holders_now(index, life)
        if is_delivered and where:
            # the drain's business: it is there, un-acked
            continue
        if code := excuses.excuse(index, life, is_delivered=is_delivered):
            # wiped copies explain nothing about a copy that is still there
            if not (where and code == "E3"):
                excused[code] += 1
                continue
        if index.meta.drained is not True and (where or not _was_seen_gone(index, life)):
            waiting += 1
            continue
        left = [node for node in _last_holders(index, life) if node in _leavers(index)]
        missing.append(Missing(life, is_delivered, where, left))
    return missing, excused, waiting


def holders_now(index: Index, life: Life) -> list[str]:
    """The nodes whose last snapshot shows the job, if they neither lost it since nor left."""
    return [
        node
        for node, look in index.last_looks.items()
        if look.ids and life.job in look.ids and not _is_gone_since(index, node, look.asked_at)
    ]


def _is_gone_since(index: Index, node: str, at: int) -> bool:
    """What it showed then it may not have any more: wiped, forgotten, dead for ever, or it left."""
    return excuses.lost_since(index, node, at) or any(
        fault.kind == "leave" and node in fault.nodes and fault.begun_at >= at
        for fault in index.faults.all
    )


def _was_seen_gone(index: Index, life: Life) -> bool:
    """The last round is full, younger than the job, and calm: no node has it."""
    if not index.full_rounds or index.full_rounds[-1] is not index.rounds[-1]:
        return False
    last = index.full_rounds[-1]
    return last.begun_at > life.ended_at and index.faults.is_calm(last.begun_at, last.ended_at)


def _last_holders(index: Index, life: Life) -> list[str]:
    for each in reversed(index.rounds):
        if holders := each.holders(life.job):
            return holders
    return []


def _leavers(index: Index) -> set[str]:
    return {node for fault in index.faults.all if fault.kind == "leave" for node in fault.nodes}


def _finding(missing: Missing) -> Finding:
    life = missing.life
    seconds = life.ended_at / 1e9
    if missing.where:
        text = f"acknowledged by {life.add.node} at {seconds:.3f} s, still on {missing.where}, never delivered"
        return Finding(NAME, "stuck", text, life.job, life.v, life.ended_at)
    if missing.is_delivered:
        last = life.deliveries[-1]
        text = f"delivered {len(life.deliveries)} times, last by {last.node}, never acknowledged, never offered again"
        return Finding(NAME, "unfinished", text, life.job, life.v, last.at)
    text = f"acknowledged by {life.add.node} at {seconds:.3f} s, never delivered, on no node, no fault explains it"
    return Finding(NAME, "lost", text, life.job, life.v, life.ended_at)


def _order_classes(index: Index, lost: list[Life]) -> Counter[str]:
    """How many lie, among the jobs of their producer, before all that came out, between them, after them."""
    spans: dict[int, tuple[int, int]] = {}
    for life in index.lives.values() if lost else ():
        if life.is_ok and life.deliveries:
            first, _ = spans.get(life.add.process, (life.begun_at, 0))
            spans[life.add.process] = first, life.begun_at
    classes: Counter[str] = Counter()
    for life in lost:
        first, last = spans.get(life.add.process, (0, 0))
        is_early, is_late = life.begun_at < first, life.begun_at > last
        classes["prefix" if is_early else "postfix" if is_late else "middle"] += 1
    return classes
