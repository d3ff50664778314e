"""Leaving: a node that said that it may be stopped had no last copy of anything."""

from __future__ import annotations

from jepsen.checkers.base import Finding, Result
from jepsen.checkers.lives import Index
from jepsen.checkers.loss import survey

NAME = "leaving"
CLAIM = "CLUSTER LEAVING hands everything over: stopping a node that says it is safe to stop loses nothing."


def check(index: Index) -> Result | None:
    """Jobs that are gone, and were last seen on nodes that left."""
    left = [fault.nodes[0] for fault in index.faults.all if fault.kind == "leave" and fault.nodes]
    if not left:
        return None
    findings = []
    for missing in survey(index)[0]:
        if missing.left:
            life = missing.life
            text = f"last seen on {missing.left}, which left; gone since"
            findings.append(Finding(NAME, "left-with", text, life.job, life.v, life.ended_at))
    return Result(NAME, not findings, CLAIM, tuple(findings), {"left": len(left)})
