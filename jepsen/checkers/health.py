"""Health: no server stops by itself, and none has a traceback in its log."""

from __future__ import annotations

from jepsen.checkers.base import Finding, Result
from jepsen.checkers.lives import Index

NAME = "health"
CLAIM = "No server crashes, whatever order commands, faults and messages come in."


def check(index: Index) -> Result:
    """What the harness found in logs and exit codes (C17)."""
    findings = [Finding(NAME, "traceback", text) for text in index.meta.tracebacks]
    findings += [Finding(NAME, "exit", text) for text in index.meta.exits]
    if index.meta.drained is None and not findings:
        return Result(NAME, None, CLAIM, notes=("cut short: nobody read the logs to their end",))
    return Result(NAME, not findings, CLAIM, tuple(findings))
