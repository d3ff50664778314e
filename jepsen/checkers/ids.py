"""Ids: no two jobs share one, over nodes, restarts and steps of the clock, and an id names the node that made it."""

from __future__ import annotations

from jepsen.checkers.base import Finding, Result
from jepsen.checkers.lives import Index

NAME = "unique-ids"
CLAIM = "A job id is never given out twice, and says which node made it."
PREFIX = slice(2, 10)  # D-xxxxxxxx-...


def check(index: Index) -> Result | None:
    """Ids of acknowledged jobs are distinct; no two nodes make ids with one node part (C13)."""
    lives = [life for life in index.lives.values() if life.is_ok]
    if not lives:
        return None
    findings = []
    first: dict[str, int] = {}
    makers: dict[str, str] = {}
    for life in lives:
        assert life.reply is not None
        job, node = str(life.reply.value["id"]), life.add.node
        other = first.setdefault(job, life.v)
        if other != life.v:
            text = f"{node} gave {job} to value {life.v}; value {other} has it"
            findings.append(Finding(NAME, "repeated", text, job, life.v, life.ended_at))
            continue
        maker = makers.setdefault(job[PREFIX], node)
        if maker != node:
            text = f"{node} made {job}, whose node part is that of {maker}"
            findings.append(Finding(NAME, "foreign", text, job, life.v, life.ended_at))
    numbers = {"ids": len(first), "makers": len(makers)}
    return Result(NAME, not findings, CLAIM, tuple(findings), numbers)
