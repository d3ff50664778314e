"""Calls of the system that fail or take long, put into a real node by strace; skipped where strace can't attach.

The same faults are shown without strace on a disk in memory (unit/aof, sim): what is added here is the kernel's word.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.system.nodes import WAIT_S, Node, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.system


@contextmanager
def injected(node: Node, fault: str) -> Iterator[None]:
    """While the context lasts, system calls of this node suffer so (strace -e inject=...)."""
    assert node.process is not None
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("there is no strace")
    calls = fault.split(":")[0]
    tracer = subprocess.Popen(
        [
            strace,
            "-f",
            "-e",
            f"trace={calls}",
            "-e",
            f"inject={fault}",
            "-p",
            str(node.process.pid),
        ],
        stderr=subprocess.PIPE,
    )
    try:
        assert tracer.stderr is not None
        said = tracer.stderr.readline()
        if b"attached" not in said:
            pytest.skip(f"strace can't attach: {said!r}")
        yield
    finally:
        tracer.send_signal(signal.SIGINT)
        tracer.communicate(timeout=WAIT_S)


def write_status(node: Node) -> str:
    """INFO's aof_last_write_status."""
    return node.info("persistence")["aof_last_write_status"]


def start_again(node: Node) -> None:
    """After a kill: until the log is loaded."""
    node.start()
    wait_until("it has loaded", lambda: node.info("persistence")["loading"] == "0")


@pytest.mark.parametrize("policy", ["always", "everysec"])
def test_failed_sync_holds_replies_and_what_it_was_to_cover_is_written_again(
    make_node: Callable[..., Node], policy: str
) -> None:
    node = make_node("--appendonly", "yes", "--appendfsync", policy).start()
    for number in range(10):
        node.call("ADDJOB", "q", number, 0)
    with node.connect() as client:
        with injected(node, "fdatasync:error=EIO"):
            client.send("ADDJOB", "q", "held", 0)
            wait_until("trouble", lambda: write_status(node) == "err")
            text = "MISCONF Errors writing to the AOF file: Input/output error"
            assert node.call_error("PING") == text
            assert node.call("QLEN", "q") == 11
        assert client.read().startswith("D-")
    wait_until("it writes", lambda: write_status(node) == "ok")
    assert "written again into a new segment" in node.log()
    node.kill()
    start_again(node)
    assert node.info("jobs")["registered_jobs"] == "11"
    assert node.info("persistence")["aof_intact"] == "1"


def test_slow_disk_delays_only_who_asked_for_safety_and_is_seen(
    make_node: Callable[..., Node],
) -> None:
    node = make_node("--appendonly", "yes", "--latency-monitor-threshold", "100").start()
    with injected(node, "fdatasync:delay_enter=400000"), node.connect() as client:
        client.call("ADDJOB", "q", "first", 0)
        started = time.monotonic()
        while time.monotonic() - started < 2:
            before = time.monotonic()
            client.call("ADDJOB", "q", "body", 0)
            assert time.monotonic() - before < 0.35, "everysec: the sync runs beside the turns"
        client.call("CONFIG", "SET", "appendfsync", "always")
        before = time.monotonic()
        client.call("ADDJOB", "q", "body", 0)
        assert time.monotonic() - before >= 0.4
    seen = {name for name, *_ in node.call("LATENCY", "LATEST")}
    assert {b"aof-fsync", b"aof-fsync-always"} <= seen


def test_nodes_file_is_synced_before_and_its_folder_after_it_takes_the_old_ones_place(
    node: Node,
) -> None:
    assert node.process is not None
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("there is no strace")
    out = node.folder / "calls"
    words = [strace, "-f", "-y", "-e", "trace=fsync,rename", "-o", str(out)]
    tracer = subprocess.Popen([*words, "-p", str(node.process.pid)], stderr=subprocess.PIPE)
    try:
        assert tracer.stderr is not None
        if b"attached" not in tracer.stderr.readline():
            pytest.skip("strace can't attach")
        assert node.call("CLUSTER", "LEAVING", "yes") == "OK"
    finally:
        tracer.send_signal(signal.SIGINT)
        tracer.communicate(timeout=WAIT_S)
    lines = [line for line in out.read_text().splitlines() if "= 0" in line]
    names = [line.split(maxsplit=1)[1].split("(")[0] for line in lines]
    assert names[-3:] == ["fsync", "rename", "fsync"]
    assert "nodes.conf.tmp>" in lines[-3]
    assert f"<{node.folder}>" in lines[-1]
