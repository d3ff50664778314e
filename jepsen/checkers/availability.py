"""Availability: every live node takes and gives jobs, whatever is cut."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TypeAlias

import attrs

from jepsen.checkers.base import MS, Finding, Result
from jepsen.checkers.lives import Index
from jepsen.history import OK

NAME = "availability"
CLAIM = "While a fault is on, every live node answers ADDJOB REPLICATE 1 and GETJOB in time: at least 99 %, within 1 s."
# the client gave up before its patience ended: nothing is known about the node
CANCELLED = "cancelled"
Refused: TypeAlias = Mapping[str, list[int]]


@attrs.frozen
class Call:
    """One call that a node had to answer."""

    node: str
    at: int
    is_good: bool
    what: str


@attrs.define
class Tally:
    """Calls of one kind, and the first that was bad."""

    all: int = 0
    bad: int = 0
    first: Call | None = None

    def count(self, call: Call) -> None:
        """One more call."""
        self.all += 1
        if not call.is_good:
            self.bad += 1
            self.first = self.first or call

    def is_too_bad(self, percent: int) -> bool:
        """More than one, and fewer than so many percent good."""
        return self.bad > max(1, self.all * (100 - percent) // 100)


def check(index: Index) -> Result | None:
    """REPLICATE 1 adds, and gets, in faults at nodes that are up: all together, and of a node in a window (C14)."""
    windows = index.faults.windows
    if not len(windows):
        return None
    refusals: Counter[str] = Counter()
    findings: list[Finding] = []
    numbers: dict[str, int] = {}
    refused = _refused(index)
    for f, calls in (
        ("add", _adds(index, refused, refusals)),
        ("get", _gets(index, refused, refusals)),
    ):
        total, places = Tally(), dict[tuple[str, int], Tally]()
        for call in calls:
            total.count(call)
            places.setdefault((call.node, windows.number(call.at)), Tally()).count(call)
        numbers |= {f"{f}_calls": total.all, f"{f}_bad": total.bad}
        for tally in (total, *places.values()):
            if tally.first is not None and tally.is_too_bad(index.bounds.available_percent):
                where = "in faults" if tally is total else f"at {tally.first.node} in one fault"
                text = f"{tally.bad} of {tally.all} {f} calls {where} failed or took too long"
                text += f"; first: {tally.first.what}"
                findings.append(Finding(NAME, f"{f}-unavailable", text, at=tally.first.at))
    notes = [f"{n} answers left out: {error}" for error, n in sorted(refusals.items())]
    if not numbers["add_calls"] + numbers["get_calls"]:
        if index.faults.are_dark or not _was_any_sent(index):
            return None
        return Result(
            NAME, None, CLAIM, (), numbers, (*notes, "no call in a fault could be judged")
        )
    return Result(NAME, not findings, CLAIM, tuple(findings), numbers, tuple(notes))


def _was_any_sent(index: Index) -> bool:
    """A call of those kinds was sent while a fault was on."""
    adds = (life.begun_at for life in index.lives.values() if life.asked == 1)
    gets = (ask.invoke.time for ask in index.asks)
    return any(index.faults.windows.touch(at, at) for at in (*adds, *gets))


def _adds(index: Index, refused: Refused, refusals: Counter[str]) -> Iterator[Call]:
    limit = index.bounds.answer_ms * MS
    for life in index.lives.values():
        node, begun_at = life.add.node, life.begun_at
        if life.asked != 1 or not _is_judged(index, node, begun_at, limit):
            continue
        error = life.reply.error if life.reply else "no answer"
        if is_left_out(index, node, begun_at, error):
            refusals[error.split()[0]] += 1
            continue
        took = life.ended_at - begun_at
        if took > limit and _is_held(index, refused.get(node, []), begun_at, life.ended_at):
            refusals["held"] += 1
            continue
        what = f"value {life.v} at {node}, {error or f'ok after {took // MS} ms'}"
        yield Call(node, begun_at, life.is_ok and took <= limit, what)


def _gets(index: Index, refused: Refused, refusals: Counter[str]) -> Iterator[Call]:
    limit = index.bounds.answer_ms * MS
    for ask in index.asks:
        begun_at, node = ask.invoke.time, ask.invoke.node
        patience = limit + int(ask.invoke.value.get("timeout") or 0) * MS
        if not _is_judged(index, node, begun_at, patience):
            continue
        if is_left_out(index, node, begun_at, ask.error):
            refusals[ask.error.split()[0]] += 1
            continue
        took = ask.ended_at - begun_at
        if took > patience and _is_held(index, refused.get(node, []), begun_at, ask.ended_at):
            refusals["held"] += 1
            continue
        what = f"GETJOB at {node}, {ask.error or f'{ask.type} after {took // MS} ms'}"
        yield Call(node, begun_at, ask.type == OK and took <= patience, what)


def is_left_out(index: Index, node: str, begun_at: int, error: str) -> bool:
    """This answer says nothing against the node: the client gave up, or it refuses for a reason that it had."""
    match error.partition(" ")[0]:
        case "MISCONF":  # it can't write its log, and the nemesis saw to it
            return index.faults.may_refuse(node, begun_at)
        case "LEAVING":
            return index.faults.has_left(node, begun_at, begun_at + index.bounds.answer_ms * MS)
        # memory is short here, or at the peers: from outside nobody knows at whom, so all may say so
        case "OOM" | "NOREPL":
            return index.meta.is_external
        case _:
            return error == CANCELLED


def _refused(index: Index) -> Refused:
    """By node: when ADDJOBs began (ns) that it refused since its disk was bad, in order."""
    found: dict[str, list[int]] = {}
    for life in index.lives.values():
        node, error = life.add.node, life.reply.error if life.reply else ""
        if error.startswith("MISCONF") and index.faults.may_refuse(node, life.begun_at):
            found.setdefault(node, []).append(life.begun_at)
    return {node: sorted(instants) for node, instants in found.items()}


def _is_held(index: Index, refused: list[int], begun_at: int, ended_at: int) -> bool:
    """Of those that were under way when the disk failed: their answers wait for it; who comes later is refused."""
    at = bisect_right(refused, begun_at)
    number = index.faults.windows.number
    is_first = at == 0 or number(refused[at - 1]) != number(begun_at)
    return is_first and at < len(refused) and refused[at] <= ended_at


def _is_judged(index: Index, node: str, begun_at: int, patience: int) -> bool:
    """Sent while a fault is on, to a node that is up till its answer is due, and the run goes on so long."""
    end = begun_at + patience
    faults = index.faults
    if not faults.windows.touch(begun_at, begun_at) or end > index.ended_at:
        return False
    is_lagging = any(start <= end and stop >= begun_at for start, stop in index.meta.lags)
    return not is_lagging and not faults.is_down(node, begun_at, end)
