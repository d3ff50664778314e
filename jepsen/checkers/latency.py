"""Latency: how long calls and deliveries take by phase, and how soon after a heal adds succeed again."""

from __future__ import annotations

from jepsen.checkers.availability import is_left_out
from jepsen.checkers.base import MS, Finding, Result
from jepsen.checkers.faults import FOREVER
from jepsen.checkers.lives import Index, Life
from jepsen.history import OK

NAME = "latency"
CLAIM = "Seconds after a heal the cluster works as before it: adds succeed within 1 s, whatever REPLICATE they ask."
QUANTILES = (50, 95, 99, 99.9, 100)
PHASES = ("healthy", "faulty", "after_heal")


def check(index: Index) -> Result | None:
    """Quantiles in ms, and at least `available_percent` of adds in time once a calm is older than `facts_ms` (C15)."""
    if not index.lives:
        return None
    adds: dict[str, list[int]] = {phase: [] for phase in PHASES}
    gets: dict[str, list[int]] = {phase: [] for phase in PHASES}
    waits: dict[str, list[int]] = {phase: [] for phase in PHASES}
    settled = failed = 0
    first: Finding | None = None
    for life in index.lives.values():
        phase = _phase(index, life.begun_at)
        if life.is_ok:
            adds[phase].append(life.ended_at - life.begun_at)
            if life.deliveries:
                since = max(life.ended_at, life.begun_at + life.delay)
                waits[phase].append(max(0, life.deliveries[0].at - since))
        error = life.reply.error if life.reply else "no answer"
        if _is_settled(index, life) and not is_left_out(index, life.add.node, life.begun_at, error):
            settled += 1
            took = life.ended_at - life.begun_at
            if not life.is_ok or took > index.bounds.answer_ms * MS:
                failed += 1
                text = f"add of value {life.v} at {life.add.node} in calm: {error or f'ok after {took // MS} ms'}"
                first = first or Finding(NAME, "not-recovered", text, "", life.v, life.begun_at)
    for ask in index.asks:
        if ask.type == OK and ask.got:
            gets[_phase(index, ask.invoke.time)].append(ask.ended_at - ask.invoke.time)
    numbers: dict[str, object] = {"settled_adds": settled, "settled_adds_failed": failed}
    for name, phases in (("add", adds), ("get", gets), ("delivery", waits)):
        numbers |= {
            f"{name}_{phase}_ms": quantiles(times) for phase, times in phases.items() if times
        }
    numbers |= _recovery(index)
    allowed = max(1, settled * (100 - index.bounds.available_percent) // 100)
    findings = () if first is None or failed <= allowed else (first,)
    return Result(NAME, not findings, CLAIM, findings, numbers)


def quantiles(times: list[int]) -> dict[str, float]:
    """p50 ... p100 of times in ns, as ms; nearest rank."""
    ordered = sorted(times)
    last = len(ordered) - 1
    return {
        f"p{q:g}": round(ordered[min(last, int(len(ordered) * q / 100))] / MS, 2) for q in QUANTILES
    }


def _phase(index: Index, at: int) -> str:
    if index.faults.windows.touch(at, at):
        return "faulty"
    return (
        "after_heal"
        if index.faults.windows.touch(at - index.bounds.facts_ms * MS, at)
        else "healthy"
    )


def _is_settled(index: Index, life: Life) -> bool:
    """Calm for the bound before, and till an answer is due; and there are as many nodes as it asked copies."""
    bounds, at = index.bounds, life.begun_at
    if life.asked > len(index.meta.nodes) - len(index.faults.outsiders(at)):
        return False
    end = at + bounds.answer_ms * MS
    return end <= index.ended_at and index.faults.is_calm(at - bounds.facts_ms * MS, end)


def _recovery(index: Index) -> dict[str, int]:
    """The worst time from a heal to the last add that didn't succeed, sent before the next fault, in ms."""
    heals = [each for each in index.faults.windows.ends if each != FOREVER]
    starts = index.faults.windows.starts
    bad = [life.begun_at for life in index.lives.values() if not life.is_ok]
    worst = 0
    for number, heal in enumerate(heals):
        until = starts[number + 1] if number + 1 < len(starts) else FOREVER
        worst = max([worst, *(at - heal for at in bad if heal <= at < until)])
    return {"heals": len(heals), "recovery_worst_ms": worst // MS} if heals else {}
