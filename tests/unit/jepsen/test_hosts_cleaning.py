"""Cleaning: what a dead run left is found by name and removed; what a live one has stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from jepsen.hosts import cleaning
from jepsen.hosts.base import make_prefix, pid_space


@pytest.fixture
def dead_pid() -> int:
    """The pid of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
        return process.pid


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files where no other run leaves anything."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def leave(prefix: str) -> tuple[subprocess.Popen[bytes], Path]:
    """A process that bears the prefix, and a folder."""
    folder = cleaning.scratch_folder(prefix)
    (folder / "n1" / "data").mkdir(parents=True)
    process = subprocess.Popen(["sleep", "60"], env={**os.environ, cleaning.MARK: prefix})
    deadline = time.monotonic() + 10
    while not any(each.processes for each in of(prefix)):
        assert time.monotonic() < deadline, "the process never showed"
        time.sleep(0.01)
    return process, folder


def of(prefix: str) -> list[cleaning.Leftovers]:
    return [each for each in cleaning.find(with_docker=False) if each.prefix == prefix]


def test_dead_runs_are_swept_and_live_ones_left_alone(dead_pid: int):
    dead, live = f"dqj-{dead_pid}-{pid_space()}abcd", make_prefix()
    processes = {prefix: leave(prefix) for prefix in (dead, live)}
    try:
        (found,) = of(dead)
        assert found.processes == (processes[dead][0].pid,)
        assert found.folders == (processes[dead][1],)
        assert found.describe() == f"{dead}: 1 processes, 1 folders"
        assert dead in [each.prefix for each in cleaning.sweep()]
        assert processes[dead][0].wait(10) == -signal.SIGKILL
        assert not processes[dead][1].exists()
        assert processes[live][0].poll() is None
        assert processes[live][1].exists()
        cleaning.remove_run(live)
        assert processes[live][0].wait(10) == -signal.SIGKILL
        assert not processes[live][1].exists()
        assert of(dead) == of(live) == []
    finally:
        for process, _ in processes.values():
            process.kill()
            process.wait()


@pytest.mark.parametrize(
    ("text", "thing"),
    [
        ("dqj-12-abcdef01", "dqj-12-abcdef01"),
        ("dqj-12-abcdef01-n1", "dqj-12-abcdef01"),
        ("dqj-12-abcdef01_disque-1_1", "dqj-12-abcdef01"),
        ("dqj-12-abcdef01g", None),
        ("xdqj-12-abcdef01", None),
        ("backup-dqj-12-abcdef01", None),
        ("/mnt/dqj-12-abcdef01", None),
        ("dqj-x-abcdef01", None),
    ],
)
def test_only_whole_prefixes_count(text: str, thing: str | None):
    assert list(cleaning._by_prefix([(text, "t")])) == ([] if thing is None else [thing])


def test_a_run_is_active_while_its_process_lives(dead_pid: int):
    assert cleaning.is_active(make_prefix())
    assert not cleaning.is_active(f"dqj-{dead_pid}-{pid_space()}abcd")
    assert not cleaning.is_active("anything")


def test_a_run_whose_pids_are_not_ours_is_nobodys_to_remove(dead_pid: int):
    other = f"{int(pid_space(), 16) ^ 1:04x}"
    assert cleaning.is_active(f"dqj-{dead_pid}-{other}abcd")


def test_a_pid_that_became_somebody_elses_is_left_alone(dead_pid: int):
    dead = f"dqj-{dead_pid}-{pid_space()}abcd"
    process, _ = leave(dead)
    with process, subprocess.Popen(["sleep", "60"]) as stranger:
        try:
            cleaning.remove(cleaning.Leftovers(dead, processes=(stranger.pid, process.pid)))
            assert process.wait(10) == -signal.SIGKILL
            assert stranger.poll() is None
        finally:
            process.kill()
            stranger.kill()


GUARDED = """\
import os, signal, sys, tempfile
tempfile.tempdir = sys.argv[1]
from jepsen.hosts import cleaning
from jepsen.hosts.base import make_prefix
prefix = make_prefix()
cleaning.scratch_folder(prefix).mkdir()
cleaning.guard(prefix)
if sys.argv[2] == "terminated": os.kill(os.getpid(), signal.SIGTERM)
if sys.argv[2] == "broken": raise RuntimeError
if sys.argv[2] == "released": cleaning.release(prefix)
"""


@pytest.mark.parametrize(
    ("how", "is_kept"),
    [("ended", False), ("broken", False), ("terminated", False), ("released", True)],
)
def test_guarded_things_go_with_the_interpreter(tmp_path: Path, how: str, is_kept: bool):
    subprocess.run(
        [sys.executable, "-c", GUARDED, str(tmp_path), how],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert [each.name.startswith("dqj-") for each in tmp_path.iterdir()] == [True] * is_kept
