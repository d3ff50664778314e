"""Real runs of mutants: five real nodes with the bug in them, judged by jepsen, which knows nothing of it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import attrs

from tests.mutants.catalogue import BUGS

SECONDS = 60  # of the main phase; five minutes are allowed in all
DRAIN_S = 60
WAIT_MAX_S = 300
INVALID = 1


@attrs.frozen
class RealVerdict:
    """What a real run with a bug in its servers came to; `found` are the checkers that say invalid."""

    name: str
    run: str
    status: int
    found: tuple[str, ...]

    @property
    def is_good(self) -> bool:
        """True if a checker that should see the bug did."""
        bug = BUGS[self.name]
        return self.status == INVALID and any(
            each in (*bug.sees, *bug.seen_really) for each in self.found
        )

    @property
    def line(self) -> str:
        """A row of the table."""
        words = "killed" if self.is_good else f"SURVIVES (exit {self.status})"
        found = ", ".join(self.found) or "-"
        return f"{self.name:26} {self.run:36} {found:60} {words}"


def command(name: str) -> list[str]:
    """How jepsen is started against a bug."""
    workload, _, rest = BUGS[name].real.partition(" x ")
    nemesis, *more = rest.split()
    server = f"{sys.executable} -m tests.mutants.server {name}"
    words = ["test", "--workload", workload, "--nemesis", nemesis, "--server-command", server]
    words += ["--final-time-limit", str(DRAIN_S), *more]
    return [sys.executable, "-m", "jepsen", *words]


def judge(name: str, *, seconds: int = SECONDS) -> RealVerdict:
    """Run a cluster with this bug in it."""
    with tempfile.TemporaryDirectory(prefix="dqm-") as folder:
        words = [*command(name), "--time-limit", str(seconds), "--store", folder]
        with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
            try:
                status = run.wait(WAIT_MAX_S)
            except subprocess.TimeoutExpired:
                run.send_signal(signal.SIGTERM)
                status = run.wait()
        found: list[str] = []
        for file in Path(folder).glob("*/2*/results.json"):
            results = json.loads(file.read_text())["results"]
            found = [each["checker"] for each in results if each["valid"] is False]
    return RealVerdict(name, BUGS[name].real, status, tuple(found))
