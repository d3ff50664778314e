"""Availability: every live node takes and gives jobs, whatever is cut."""

from __future__ import annotations

from collections import Counter

import attrs

from jepsen.checkers.base import MS, Finding, Result
from jepsen.checkers.lives import Index
from jepsen.history import OK

NAME = "availability"
CLAIM = "While a fault is on, every live node answers ADDJOB REPLICATE 1 and GETJOB in time: at least 99 %, within 1 s."
# the client gave up before its patience ended: nothing is known about the node
CANCELLED = "cancelled"


@attrs.define
class Tally:
    """Calls of one kind."""

    all: int = 0
    bad: int = 0
    first: str = ""
    first_at: int = 0

    def count(self, *, is_good: bool, what: str, at: int) -> None:
        """One more call."""
        self.all += 1
        if not is_good:
            self.bad += 1
            if not self.first:
                self.first, self.first_at = what, at


def check(index: Index) -> Result | None:
    """REPLICATE 1 adds, and gets, in fault windows at nodes that are up (C14)."""
    if not len(index.faults.windows):
        return None
    refusals: Counter[str] = Counter()
    tallies = {"add": _adds(index, refusals), "get": _gets(index, refusals)}
    findings = []
    for f, tally in tallies.items():
        allowed = max(1, tally.all * (100 - index.bounds.available_percent) // 100)
        if tally.bad > allowed:
            text = f"{tally.bad} of {tally.all} {f} calls in faults failed or took too long; first: {tally.first}"
            findings.append(Finding(NAME, f"{f}-unavailable", text, at=tally.first_at))
    total = sum(tally.all for tally in tallies.values())
    if not total:
        return None
    numbers = {f"{f}_calls": tally.all for f, tally in tallies.items()}
    numbers |= {f"{f}_bad": tally.bad for f, tally in tallies.items()}
    notes = tuple(f"{n} answers left out: {error}" for error, n in sorted(refusals.items()))
    return Result(NAME, not findings, CLAIM, tuple(findings), numbers, notes)


def _adds(index: Index, refusals: Counter[str]) -> Tally:
    tally, limit = Tally(), index.bounds.answer_ms * MS
    for life in index.lives.values():
        if life.asked != 1 or not _is_judged(index, life.add.node, life.begun_at, limit):
            continue
        error = life.reply.error if life.reply else "no answer"
        if is_left_out(index, life.add.node, life.begun_at, error):
            refusals[error.split()[0]] += 1
            continue
        took = life.ended_at - life.begun_at
        what = f"value {life.v} at {life.add.node}, {error or f'ok after {took // MS} ms'}"
        tally.count(is_good=life.is_ok and took <= limit, what=what, at=life.begun_at)
    return tally


def _gets(index: Index, refusals: Counter[str]) -> Tally:
    tally, limit = Tally(), index.bounds.answer_ms * MS
    for ask in index.asks:
        begun_at, node = ask.invoke.time, ask.invoke.node
        patience = limit + int(ask.invoke.value.get("timeout") or 0) * MS
        if not _is_judged(index, node, begun_at, patience):
            continue
        if is_left_out(index, node, begun_at, ask.error):
            refusals[ask.error.split()[0]] += 1
            continue
        took = ask.ended_at - begun_at
        what = f"GETJOB at {node}, {ask.error or f'{ask.type} after {took // MS} ms'}"
        tally.count(is_good=ask.type == OK and took <= patience, what=what, at=begun_at)
    return tally


def is_left_out(index: Index, node: str, begun_at: int, error: str) -> bool:
    """This answer says nothing against the node: the client gave up, or it refuses for a reason that it had."""
    match error.partition(" ")[0]:
        case "MISCONF":  # it can't write its log, and the nemesis saw to it
            return index.faults.may_refuse(node, begun_at)
        case "LEAVING":
            return index.faults.has_left(node, begun_at, begun_at + index.bounds.answer_ms * MS)
        case "OOM":
            return index.meta.is_external
        case _:
            return error == CANCELLED


def _is_judged(index: Index, node: str, begun_at: int, patience: int) -> bool:
    """Sent while a fault is on, to a node that is up till its answer is due, and the run goes on so long."""
    end = begun_at + patience
    faults = index.faults
    if not faults.windows.touch(begun_at, begun_at) or end > index.ended_at:
        return False
    is_lagging = any(start <= end and stop >= begun_at for start, stop in index.meta.lags)
    return not is_lagging and not faults.is_down(node, begun_at, end)
