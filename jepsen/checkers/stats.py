"""Stats: a run that shows nothing is unknown. Every fault is to be proven, everything tried often enough."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from jepsen.checkers import order, replication
from jepsen.checkers.base import MS, Result
from jepsen.checkers.faults import Windows
from jepsen.checkers.lives import Index
from jepsen.history import OK

NAME = "stats"
CLAIM = "The run did something: every fault is proven, jobs were delivered inside faults, acks came on other nodes."
# of the run, in which the harness may have stood still; nobody is judged in these spans
LAG_PERCENT = 5
# names of nemeses that stand for whatever can be had
ANY_KIND = ("all", "mixed", "sim")
# what a workload has to show beside one ok of each kind of call, if faults were asked for
IN_FAULTS, ACKS_ELSEWHERE = "deliveries_in_faults", "acks_elsewhere"
COPIES = "copies_counted"  # as the checker of replication does
IN_ORDER = "judged_in_order"  # as that of order does
FULL = ("OOM", "NOREPL")  # errors of a node that has no memory, or whose peers have none


def check(index: Index) -> Result:
    """Valid or unknown, never invalid (C19)."""
    demands = _demands(index)
    numbers = _numbers(index)
    if COPIES in demands:
        counted = replication.check(index)
        numbers[COPIES] = counted.numbers["counted"] if counted else 0
    if IN_ORDER in demands:
        ordered = order.check(index)
        numbers[IN_ORDER] = ordered.numbers["judged"] if ordered else 0
    faults = index.faults.all
    notes = [
        f"fault {each.id} {each.kind}: nothing proves that it was there"
        for each in faults
        if not each.proven
    ]
    notes += [
        f"fault {each.id} {each.kind}: nothing proves that it was healed"
        for each in faults
        if each.heal_proven is False
    ]
    notes += _missed(index)
    if numbers["lag_ms"] * MS > index.ended_at * LAG_PERCENT // 100:
        notes.append(
            f"the harness stood still for {numbers['lag_ms']} ms in all: too long to judge the rest"
        )
    if index.meta.drained is None:
        notes.append("cut short: nothing was drained")
    elif not index.meta.drained:
        notes.append("the drain ended by its time limit")
    notes += [
        f"{name} is {numbers[name]}, {least} asked"
        for name, least in demands.items()
        if numbers.get(name, 0) < least
    ]
    if index.meta.demands is None and not index.meta.is_simulated:
        notes.append("nobody said what the run has to show")
    notes += _never(index)
    notes += ["stopped by hand before its time"] * index.meta.is_stopped
    lags = [f"stood still for {(end - start) / 1e9:.2f} s" for start, end in index.meta.lags]
    return Result(NAME, None if notes else True, CLAIM, (), numbers, (*notes, *lags[:5]))


def _demands(index: Index) -> Mapping[str, int]:
    """What the workload has to show, as the harness said; nobody asks it of a simulated run."""
    demands = index.meta.demands or {}
    if index.faults.are_dark:
        return {name: least for name, least in demands.items() if name != IN_FAULTS}
    return demands


def _numbers(index: Index) -> dict[str, int]:
    windows = index.faults.windows
    inside = elsewhere = 0
    for life in index.lives.values():
        for each in life.deliveries:
            inside += windows.touch(each.at, each.at)
        if life.deliveries:
            takers = {each.node for each in life.deliveries}
            elsewhere += any(
                order.f == "ack" and order.type == OK and order.node not in takers
                for order in life.orders
            )
    numbers = {
        "faults": len(index.faults.all),
        "proven": sum(each.proven is True for each in index.faults.all),
        IN_FAULTS: inside,
        ACKS_ELSEWHERE: elsewhere,
        # where no fault is, and nobody asks more copies than there are nodes
        "refused_full": sum(
            life.reply is not None and life.reply.error.startswith(FULL)
            for life in index.lives.values()
        ),
        "lags": len(index.meta.lags),
        "lag_ms": Windows(index.meta.lags).covered // MS,
    }
    for (f, _), count in index.oks.items():
        numbers[f"ok_{f}"] = numbers.get(f"ok_{f}", 0) + count
    return numbers


def _missed(index: Index) -> list[str]:
    """What was asked of the nemesis by name and never began, as nothing fitted it; and events that are lost."""
    kinds, asked = {fault.kind for fault in index.faults.all}, index.meta.nemesis
    is_any = asked in ANY_KIND and bool(kinds)
    wanted = [] if is_any else [each for each in asked.split(",") if each not in ("", "none")]
    notes = [f"nemesis {each} did nothing" for each in wanted if each not in kinds]
    if any(op.index != number for number, op in enumerate(index.run.ops)):
        notes.append("events are missing: the history isn't whole")
    if any(before.time > after.time for before, after in pairwise(index.run.ops)):
        notes.append("time goes backwards in the history")
    return notes


def _never(index: Index) -> list[str]:
    """Kinds of calls that were made and never succeeded; nodes that never did anything (in a real run)."""
    done = {f for f, _ in index.oks}
    notes = [f"no {f} ever succeeded" for f in index.tried if f not in done]
    if index.meta.is_simulated:
        return notes
    if not index.lives:
        notes.append("no add was tried")
    busy = {node for _, node in index.oks}
    idle = [node for node in index.meta.nodes if node not in busy]
    return notes + [f"no call at {node} ever succeeded" for node in idle]
