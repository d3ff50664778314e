"""Checkers: pure functions from a run to what was promised, what was kept and what was broken."""

from jepsen.checkers.base import Finding, Meta, Result, Run, verdict
from jepsen.checkers.judge import CLAIMS, check

__all__ = ["CLAIMS", "Finding", "Meta", "Result", "Run", "check", "verdict"]
