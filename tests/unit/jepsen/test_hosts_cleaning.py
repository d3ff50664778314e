"""Cleaning: what a dead run left is found by name and removed; what a live one has stays."""

from __future__ import annotations

import inspect
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from jepsen.hosts import cleaning, probing, tracing
from jepsen.hosts.base import HostOptions, HostsError, make_prefix, pid_space
from jepsen.hosts.compose import ComposeHosts


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


def test_what_a_probe_mounts_bears_its_prefix(monkeypatch: pytest.MonkeyPatch):
    said: list[tuple[str, ...]] = []
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(probing, "_run", lambda *words: said.append(words))
    work = inspect.unwrap(probing.can_mount)
    with pytest.raises(probing.MissingError, match="1 MiB fits"):
        work()
    assert cleaning._PREFIX.fullmatch(said[0][-2])
    assert Path(said[0][-1]).name.startswith(said[0][-2])


@pytest.mark.skipif(not probing.can_trace().is_there, reason=probing.can_trace().detail)
async def test_what_holds_a_server_bears_the_prefix_of_the_run():
    prefix = make_prefix()
    tracers = tracing.Tracers(prefix)
    with subprocess.Popen(["sleep", "60"]) as held:
        try:
            await tracers.hold("n1", held.pid, tracing.failing())
            assert [len(each.processes) for each in of(prefix)] == [1]
            await tracers.release("n1")
            assert of(prefix) == []
        finally:
            held.kill()


async def test_containers_come_up_only_where_dead_runs_were_cleaned(
    monkeypatch: pytest.MonkeyPatch,
):
    def clean() -> None:
        raise HostsError("cleaned first")

    monkeypatch.setattr(cleaning, "clean", clean)
    with pytest.raises(HostsError, match="cleaned first"):
        await ComposeHosts(HostOptions(count=3)).setup()


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
if sys.argv[2] == "probing":
    from jepsen.hosts import probing
    with probing._owned() as other:
        cleaning.scratch_folder(other).mkdir()
        os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.parametrize(
    ("how", "is_kept"),
    [
        ("ended", False),
        ("broken", False),
        ("terminated", False),
        ("released", True),
        ("probing", False),
    ],
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
