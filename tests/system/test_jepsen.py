"""The harness against real nodes: a short run with cuts is valid and has something to show."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jepsen import store
from jepsen.history import FAIL, NEMESIS, OBSERVER, OK, History
from tests.system.nodes import ROOT, wait_until

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

RUN_S = 200.0
COMMON = ("--net", "proxy", "--nodes", "3", "--rate", "30", "--seed", "7")


def command(tmp_path: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "jepsen", "test", *COMMON, "--store", str(tmp_path), *words]


def run(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command(tmp_path, *words),
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
        cwd=tmp_path,
        env=environment,
    )


def faults_of(history: History, f: str) -> list[dict[str, Any]]:
    """Completions of this f."""
    return [
        dict(op.value)
        for op in history
        if op.process == NEMESIS and op.f == f and "proven" in op.value
    ]


def test_a_short_run_with_cuts_and_kills_is_valid_and_shows_something(tmp_path: Path) -> None:
    done = run(tmp_path, "--nemesis", "partition-halves,kill", "--time-limit", "14", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    outcome = json.loads(done.stdout)
    assert outcome["valid"] is True
    assert outcome["checkers"]["loss"] is True
    history = store.load(Path(tmp_path / outcome["folder"])).ops
    starts = faults_of(History(history), "start")
    assert {each["kind"] for each in starts} == {"partition-halves", "kill"}
    assert all(each["proven"] for each in (*starts, *faults_of(History(history), "stop")))
    counts = {
        f: sum(op.f == f and op.type == OK for op in history)
        for f in ("add", "get", "ack", "observe")
    }
    assert counts["add"] > 50
    assert counts["ack"] > 50
    assert counts["observe"] > 10
    assert any(
        op.type == FAIL and op.error == "refused" for op in history if op.process != OBSERVER
    )
    assert "VALID" in done.stderr
    assert (tmp_path / outcome["folder"] / "report.html").is_file()
    assert (tmp_path / outcome["folder"] / store.LOG).read_text() in done.stderr


def test_ctrl_c_heals_drains_checks_and_ends_with_unknown(tmp_path: Path) -> None:
    with subprocess.Popen(
        command(tmp_path, "--nemesis", "partition-halves", "--time-limit", "100"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as harness:
        try:
            current = tmp_path / "current" / store.HISTORY
            wait_until("a fault is on", lambda: '"proven"' in current.read_text(), within_s=40)
            # what a harness that is killed now would leave to judge by
            assert store.load(current.parent).meta.nodes
            harness.send_signal(signal.SIGINT)
            out, _ = harness.communicate(timeout=RUN_S)
        finally:
            harness.kill()
    assert harness.returncode == 2, out
    assert "stopping" in out
    assert "views agree" in out
    assert store.read_results(tmp_path / "latest")["valid"] is None
    history = History.read(tmp_path / "latest" / store.HISTORY)
    assert {op.value["name"] for op in history if op.f == "phase"} >= {"final", "drain", "end"}


def test_a_server_that_does_not_start_is_a_broken_harness(tmp_path: Path) -> None:
    done = run(tmp_path, "--time-limit", "2", "--server-command", f"{sys.executable} -c 1/0")
    assert done.returncode == 255
    assert "ZeroDivisionError" in done.stderr
