"""Draining: when everything was acked, nothing is left, on any node."""

from __future__ import annotations

from jepsen.checkers.base import MS, Finding, Result, S
from jepsen.checkers.lives import Index
from jepsen.checkers.snapshots import Snapshot
from jepsen.history import ENDING

NAME = "drain-to-zero"
CLAIM = "Everything drains: after the last acknowledgement no node has a job, an ack or a byte of them left."
COUNTERS = ("registered", "queued", "acked")
BYTES = "bytes"
PHASE = "end"
EMPTYING = ("drain", PHASE)
BYTES_SLACK = 4096
EVEN_DIGITS = tuple("02468ace")
# where a holder was wiped or forgotten, tombstones stay till the job's expiry (merge rule M6); bytes of each
TOMBSTONE_BYTES = 300


def check(index: Index) -> Result | None:
    """The last snapshot of each node in phase "end", and any of the whole cluster later than the bound.

    The bound is `drained_ms` from the last order. What the last one still shows is a "leftover"; what went, but later
    than the bound, is "late" (C8).
    """
    last = {each.node: each for each in index.snapshots if each.phase == PHASE}
    looks = [look for node, look in last.items() if node not in index.meta.abandoned]
    silent = [
        node
        for phase, node in index.looked
        if phase == PHASE and node not in last and node not in index.meta.abandoned
    ]
    if not looks and not silent:
        return None
    findings: list[Finding] = []
    kept = 0
    early = False
    ready_at = _last_order_at(index) + index.bounds.drained_ms * MS
    for look in looks:
        in_doubt = _in_doubt(index, look)
        left = {name: _left(look, name, in_doubt) for name in COUNTERS}
        kept += in_doubt
        if any(left.values()) and look.asked_at < ready_at:
            early = True
        elif any(left.values()):
            text = (
                f"{look.node} still has {', '.join(f'{n} {name}' for name, n in left.items() if n)}"
            )
            findings.append(Finding(NAME, "leftover", text, _example(index, look), at=look.at))
        elif (grown := _grown(index, look)) and not in_doubt:
            text = f"{look.node} has no job, yet its job bytes grew from {grown[0]} to {grown[1]}"
            findings.append(Finding(NAME, "leak", text, at=look.at))
    if not findings:
        findings += _late(index)
    notes = []
    if kept:
        notes.append(f"{kept} copies of RETRY 0 jobs in doubt stay until their TTL")
    if early:
        notes.append("jobs were left, but the last snapshot came too early to judge")
    if silent:
        notes.append(f"{', '.join(silent)} never said what was left")
    numbers = {"nodes": len(looks), "drained_ms": _drained_after(index)}
    valid = False if findings else (None if early or silent else True)
    return Result(NAME, valid, CLAIM, tuple(findings), numbers, tuple(notes))


def _last_order_at(index: Index) -> int:
    """When the last order or add ended, of those that did."""
    ends = [o.ended_at for life in index.lives.values() for o in life.orders if o.f in ENDING]
    ends += [life.ended_at for life in index.lives.values()]
    return max((end for end in ends if end <= index.ended_at), default=0)


def _late(index: Index) -> list[Finding]:
    """The last look at a whole cluster, in calm and later than the bound, that shows what clients had ended."""
    since = _last_order_at(index)
    ready_at = index.faults.calm_from(since) + index.bounds.drained_ms * MS
    for each in reversed(index.rounds):
        if each.begun_at <= ready_at:
            break
        if not set(each.looks) >= set(index.meta.nodes):
            continue
        for look in each.looks.values():
            if look.phase in EMPTYING and (ended := _ended(index, look)):
                after, bound = (look.asked_at - since) // MS, index.bounds.drained_ms
                text = f"{look.node} still had {ended} ended jobs {after} ms after the last order, {bound} allowed"
                return [Finding(NAME, "late", text, at=look.at)]
    return []


def _ended(index: Index, look: Snapshot) -> int:
    """Copies there of jobs that are over: acked ones, and those whose end it has not heard of."""
    lives = [index.by_id.get(job) for job in look.ids or ()]
    return (look.count("acked") or 0) + sum(bool(life and life.ends()) for life in lives)


def _in_doubt(index: Index, look: Snapshot) -> int:
    """How many jobs of this node are RETRY 0, and may have gone to somebody whose answer was lost.

    The id of some may be known to no client: then there is an ADDJOB for each, the outcome of which isn't known.
    """
    lives = [index.by_id.get(job) for job in look.ids or ()]
    known = sum([not life.retry and not life.ends() for life in lives if life])
    nameless = sum([_is_at_most_once(job) for job in look.ids or () if job not in index.by_id])
    return known + min(nameless, _nameless_adds(index))


def _is_at_most_once(job: str) -> bool:
    """The last digit of an id is even for RETRY 0."""
    return job.endswith(EVEN_DIGITS)


def _nameless_adds(index: Index) -> int:
    """ADDJOBs of RETRY 0 jobs that may have been added, and of whose id no client has heard."""
    lives = index.lives.values()
    return sum([not life.retry and not life.job and not life.is_refused for life in lives])


def _left(look: Snapshot, name: str, in_doubt: int) -> int:
    count = look.count(name) or 0
    # what is in doubt is never queued
    return max(0, count - in_doubt) if name == "registered" else count


def _example(index: Index, look: Snapshot) -> str:
    return min(look.ids, default="") if look.ids else ""


def _grown(index: Index, look: Snapshot) -> tuple[int, int] | None:
    """Job bytes before the run and now, if they grew by more than 1 % and the tombstones that may stay."""
    before = next((s.count(BYTES) for s in index.snapshots if s.node == look.node), None)
    after = look.count(BYTES)
    kept = TOMBSTONE_BYTES * len(index.lives) if index.faults.has_lost_holders else 0
    if before is None or after is None or after <= before * 1.01 + BYTES_SLACK + kept:
        return None
    return before, after


def _drained_after(index: Index) -> int | None:
    """From the last order to the first round of zeros, in ms; None if there was none."""
    since = _last_order_at(index)
    for each in index.rounds:
        if each.begun_at < since:
            continue
        if not any(
            _left(look, name, _in_doubt(index, look))
            for look in each.looks.values()
            for name in COUNTERS
        ):
            return (each.ended_at - since) * 1000 // S
    return None
