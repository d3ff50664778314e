"""Real runs of mutants: five real nodes with the bug in them, judged by jepsen, which knows nothing of it.

The same run of healthy nodes must be valid, or what it finds proves nothing about the bug.
"""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from tests.mutants.catalogue import BUGS

HEALTHY = "none"  # the name of no bug
SECONDS = 25  # of the main phase
DRAIN_S = 60  # jobs with a long RETRY have to come back
CAUGHT_S_MAX = 60  # on the clock of the run, of which the drain is a part
WAIT_MAX_S = 300
VALID, INVALID = 0, 1


@attrs.frozen
class RealVerdict:
    """What a real run with a bug in its servers, or with none, came to."""

    name: str
    run: str
    status: int
    # checkers that say invalid -> seconds into the run of the first thing that is wrong
    found: Mapping[str, float]

    @property
    def caught_s(self) -> float | None:
        """When a checker that should see the bug did so for the first time; None: never."""
        expected = (*BUGS[self.name].sees, *BUGS[self.name].seen_really)
        return min((s for checker, s in self.found.items() if checker in expected), default=None)

    @property
    def words(self) -> str:
        """In a word or two."""
        if self.name == HEALTHY:
            return "healthy" if self.status == VALID else f"NOT VALID WITHOUT A BUG ({self.status})"
        if self.status != INVALID or self.caught_s is None:
            return f"SURVIVES (exit {self.status})"
        return "killed" if self.caught_s <= CAUGHT_S_MAX else "KILLED TOO LATE"

    @property
    def is_good(self) -> bool:
        """The bug was found soon by who should see it; without one nothing was."""
        return self.words in ("healthy", "killed")

    @property
    def line(self) -> str:
        """A row of the table."""
        found = ", ".join(f"{checker} {s:.0f} s" for checker, s in self.found.items()) or "-"
        return f"{self.name:26} {self.run:36} {found:60} {self.words}"


def command(name: str, run: str) -> list[str]:
    """How jepsen is started against a bug, or against none: "workload x nemesis --more options"."""
    workload, _, rest = run.partition(" x ")
    nemesis, *more = rest.split()
    server = shlex.join([sys.executable, "-m", "tests.mutants.server", name])
    words = ["test", "--workload", workload, "--nemesis", nemesis, "--server-command", server]
    words += ["--final-time-limit", str(DRAIN_S), *more]
    return [sys.executable, "-m", "jepsen", *words]


def judge(name: str, run: str, *, seconds: int = SECONDS) -> RealVerdict:
    """Run a cluster with this bug in it, or with none."""
    with tempfile.TemporaryDirectory(prefix="dqm-") as folder:
        words = [*command(name, run), "--time-limit", str(seconds), "--store", folder]
        with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as test:
            try:
                status = test.wait(WAIT_MAX_S)
            except subprocess.TimeoutExpired:
                test.send_signal(signal.SIGTERM)
                status = test.wait()
        found: dict[str, float] = {}
        for file in Path(folder).glob("*/2*/results.json"):
            found = found_in(json.loads(file.read_text())["results"], _ended_s(file.parent))
    return RealVerdict(name, run, status, found)


def found_in(results: list[dict[str, Any]], ended_s: float) -> dict[str, float]:
    """What was wrong and when; of what has no time of its own (logs, exits) it is known when the run has ended."""
    return {
        each["checker"]: min(found["at"] / 1e9 or ended_s for found in each["findings"])
        for each in results
        if each["valid"] is False
    }


def _ended_s(folder: Path) -> float:
    last = (folder / "history-full.jsonl").read_text().splitlines()[-1]
    return float(json.loads(last)["time"] / 1e9)
