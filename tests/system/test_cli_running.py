"""The tool starts things: a benchmark, nodes on this machine, a worker."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

import pytest

from tests.system.nodes import WAIT_S, Node, Resp, free_port, wait_until

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    from tests.system.tool import Tool

pytestmark = pytest.mark.system


def test_bench_does_every_job_and_leaves_nothing(lone: Node, tool: Tool) -> None:
    found = tool.ok(lone, "bench", "-n", "205", "-c", "3", "-P", "7", "--json").json()
    assert [(each["command"], each["jobs"]) for each in found] == [
        ("ADDJOB", 205),
        ("GETJOB", 205),
        ("ACKJOB", 205),
    ]
    for each in found:
        assert 0 < each["p50_ms"] <= each["p99_ms"] <= each["max_ms"]
    wait_until("no job is left", lambda: lone.info("jobs")["registered_jobs"] == "0")
    table = tool.ok(lone, "bench", "-n", "5", "-c", "10").text.splitlines()
    assert [line.split()[:2] for line in table[1:]] == [
        ["ADDJOB", "5"],
        ["GETJOB", "5"],
        ["ACKJOB", "5"],
    ]


def test_bench_that_is_interrupted_leaves_nothing(
    lone: Node, spawn_tool: Callable[..., subprocess.Popen[bytes]]
) -> None:
    process = spawn_tool("-p", str(lone.port), "bench", "-n", "1000000", "-c", "3")
    wait_until("it adds jobs", lambda: int(lone.info("jobs")["registered_jobs"]) > 100)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 130, err
    assert b"Traceback" not in err
    wait_until("no job is left", lambda: lone.info("jobs")["registered_jobs"] == "0")


def test_bench_tells_what_the_server_refuses(lone: Node, tool: Tool) -> None:
    done = tool(lone, "bench", "-n", "5", "--replicate", "3")
    assert done.status == 1
    assert "NOREPL" in done.err


def test_local_runs_nodes_until_ctrl_c(
    tmp_path: Path, spawn_tool: Callable[..., subprocess.Popen[bytes]]
) -> None:
    port = free_port()
    process = spawn_tool("local", "--nodes", "1", "--port", str(port), "--dir", str(tmp_path))
    assert process.stdout is not None
    assert process.stdout.readline().startswith(b"1 node runs")
    with Resp(port) as client:
        assert client.call("PING") == "PONG"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0
    assert b"Traceback" not in err


def test_worker_runs_a_function_for_each_job_until_it_is_told_to_stop(
    lone: Node, tmp_path: Path, spawn_tool: Callable[..., subprocess.Popen[bytes]]
) -> None:
    (tmp_path / "tasks.py").write_text(
        "def greet(job):\n    print(job.queue, job.body.decode(), flush=True)\n"
    )
    for body in ("1", "2"):
        lone.call("ADDJOB", "tasks", body, 0)
    words = ("worker", "tasks:greet", "--queue", "tasks", "--concurrency", "1", "--json")
    process = spawn_tool("-p", str(lone.port), *words, cwd=tmp_path)
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == [b"tasks 1\n", b"tasks 2\n"]
    wait_until("both are acknowledged", lambda: lone.info("jobs")["registered_jobs"] == "0")
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, err
    lines = [json.loads(line) for line in err.splitlines()]
    acked = [line for line in lines if line.get("outcome") == "acked"]
    assert [line["queue"] for line in acked] == ["tasks", "tasks"]


def test_worker_with_a_url_of_its_own_says_that_another_one_does_not_count(
    lone: Node, tmp_path: Path, spawn_tool: Callable[..., subprocess.Popen[bytes]]
) -> None:
    url = f"disque://127.0.0.1:{lone.port}"
    (tmp_path / "own.py").write_text(
        "from disque.client.worker import Worker\n"
        f"worker = Worker({url!r})\n"
        "@worker.job('own')\n"
        "def fail(job):\n    raise RuntimeError('no paper')\n"
    )
    process = spawn_tool("worker", "own:worker", "--url", "disque://elsewhere:1", cwd=tmp_path)
    assert process.stderr is not None
    first = process.stderr.readline().decode()
    assert f"own:worker has a URL of its own, which counts: nodes=127.0.0.1:{lone.port}" in first
    lone.call("ADDJOB", "own", "x", 0)
    line = ""
    while "outcome=failed" not in line:
        line = process.stderr.readline().decode()
        assert line, "it ended"
    assert f"at={tmp_path / 'own.py'}:5" in line
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=WAIT_S)
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("nosuch_module:f", "-q", "x"), "no module 'nosuch_module'"),
        (("json:nosuch", "-q", "x"), "nosuch"),
        (("json", "-q", "x"), "module:name"),
        (("json:dumps",), "--queue"),
    ],
)
def test_worker_that_cannot_be_made_is_wrong_usage(
    lone: Node, tool: Tool, words: tuple[str, ...], complaint: str
) -> None:
    done = tool(lone, "worker", *words)
    assert done.status == 2
    assert complaint in done.err
