"""What people reported of disconnects, memory and limits (field-reports A2: U34 ... U40)."""

from __future__ import annotations

import os
import random
import socket
import time
from typing import TYPE_CHECKING

import pytest
from pydisque.client import Client as PyDisque

from tests.system.nodes import Cluster, Node, ReplyError, Resp, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.system

MB = 1 << 20


def test_u34_few_descriptors_serve_few_clients_keep_the_bus_and_never_spin(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 2, "--cluster-node-timeout", "1000")
    for node in cluster.nodes:
        words = node.command_line()
        node.command_line = lambda words=words: [
            "sh",
            "-c",
            'ulimit -n 64; exec "$@"',
            "sh",
            *words,
        ]  # type: ignore[method-assign,misc]
    with cluster:
        cluster.join()
        first = cluster.nodes[0]
        watcher = first.connect()
        used = cpu_s(watcher)
        crowd = [socket.create_connection(("127.0.0.1", first.port)) for _ in range(200)]
        assert watcher.call("PING") == "PONG"
        time.sleep(2)
        assert cpu_s(watcher) - used < 0.2 * 2 + 0.3
        assert b"cluster_reachable_nodes:1\r\n" in watcher.call("CLUSTER", "INFO")
        assert b" fail" not in watcher.call("CLUSTER", "NODES")
        for each in crowd:
            each.close()
        wait_until("it serves again", lambda: is_served(first))
        watcher.close()


def is_served(node: Node) -> bool:
    """True if a new connection gets an answer that is no refusal."""
    with node.connect() as client:
        client.send("PING")
        return bool(client.read() == "PONG")


def cpu_s(client: Resp) -> float:
    """CPU time that a node has used, asked over a connection that stands: new ones may be refused."""
    lines = client.call("INFO", "cpu").decode().split("\r\n")
    fields = dict(line.split(":") for line in lines if ":" in line)
    return float(fields["used_cpu_sys"]) + float(fields["used_cpu_user"])


def test_u35_every_setting_takes_the_value_that_it_shows_or_says_why_not(client: Resp) -> None:
    shown = client.call("CONFIG", "GET", "*")
    settings = dict(zip(shown[::2], shown[1::2], strict=True))
    assert len(settings) > 45
    for name, value in settings.items():
        client.send("CONFIG", "SET", name, value)
        said = client.read()
        refused = f"ERR Unsupported CONFIG parameter: {name.decode()} (only a start "
        assert said == "OK" or str(said).startswith(refused)
    text = client.error("CONFIG", "SET", "nosuch", 1)
    assert text == "ERR Unsupported CONFIG parameter: nosuch"
    assert client.call("CONFIG", "GET", "nosuch") == []


def dwq_like_session(host: str) -> None:
    """What dwq does: a control queue a worker, a reply queue a request, FASTACK in batches, NACK of nothing."""
    disque = PyDisque([host])
    disque.connect()
    job = disque.add_job("default", "task", timeout=5_000, retry=10)
    ((queue, got, body),) = disque.get_job(["control::worker::host", "default"])
    assert (queue, got, body) == (b"default", job, b"task")
    disque.add_job(job.decode(), "result", timeout=5_000)
    ((_, answer, body),) = disque.get_job([job.decode()])
    assert body == b"result"
    assert disque.execute_command("FASTACK", job, answer) == 2
    names = [f"q{number}" for number in range(20)]
    many = [disque.add_job(name, "x", replicate=1) for name in names for _ in range(60)]
    cursor, queues = disque.qscan(0)
    while cursor not in (0, b"0"):
        cursor, more = disque.qscan(cursor)
        queues += more
    assert {name.encode() for name in names} <= set(queues)
    stat = disque.qstat("q7", True)
    assert (stat[b"name"], stat[b"len"], stat[b"blocked"]) == (b"q7", 60, 0)
    assert disque.execute_command("FASTACK", *many[:1024]) == 1024
    assert disque.execute_command("FASTACK", *many[1024:]) == len(many) - 1024
    assert disque.execute_command("NACK") == 0


def test_u37_a_session_like_dwqs_on_one_node(node: Node) -> None:
    dwq_like_session(f"127.0.0.1:{node.port}")


def test_u37_a_session_like_dwqs_on_three_nodes(three: Cluster) -> None:
    dwq_like_session(f"127.0.0.1:{three.nodes[1].port}")


@pytest.mark.parametrize("how", ["SHUTDOWN", "kill -9"])
def test_u38_blocked_clients_see_the_end_at_once_and_find_the_job_elsewhere(
    three: Cluster, how: str
) -> None:
    gone, other, _ = three.nodes
    with gone.connect() as waiting:
        waiting.sock.settimeout(3)
        waiting.send("GETJOB", "FROM", "q")
        wait_until("it waits", lambda: gone.info("clients")["blocked_clients"] == "1")
        if how == "SHUTDOWN":
            with gone.connect() as admin:
                admin.send("SHUTDOWN")
        else:
            gone.kill()
        with pytest.raises((EOFError, ConnectionError)):
            waiting.read()
    moving = PyDisque([f"127.0.0.1:{gone.port}", f"127.0.0.1:{other.port}"])
    moving.connect()
    job = other.call("ADDJOB", "q", "body", 5_000)
    started = time.monotonic()
    assert moving.get_job(["q"]) == [(b"q", job.encode(), b"body")]
    assert time.monotonic() - started < 5


def test_u39_bodies_of_any_size_travel_and_the_limit_is_told(three: Cluster) -> None:
    with three.connections() as (a, b, _):
        a.sock.settimeout(60)
        for size in (0, 1, MB, 16 * MB):
            body = random.Random(size).randbytes(size)
            job = a.call("ADDJOB", "q", body, 30_000, "REPLICATE", 3)
            assert b.call("GETJOB", "TIMEOUT", 20_000, "FROM", "q") == [[b"q", job.encode(), body]]
            assert b.call("ACKJOB", job) == 1
        for node in three.nodes:
            assert b" fail" not in node.call("CLUSTER", "NODES")
    three.wait_drained()
    with three.nodes[0].connect() as client:
        client.sock.sendall(b"*4\r\n$6\r\nADDJOB\r\n$1\r\nq\r\n$%d\r\n" % (512 * MB + 1))
        said = f"invalid bulk length: {512 * MB + 1} bytes, body-max is {512 * MB}"
        assert str(client.read()) == f"ERR Protocol error: {said}"
        with pytest.raises(EOFError):
            client.read()
    assert three.nodes[0].call("PING") == "PONG"


MALFORMED = [
    (
        b"*1048577\r\n",
        "ERR Protocol error: invalid multibulk length: 1048577 arguments, arguments-max is 1048576",
    ),
    (b"*x\r\n", "ERR Protocol error: invalid multibulk length"),
    (b"*1\r\n$-5\r\n", "ERR Protocol error: invalid bulk length"),
    (
        b"*1\r\n$9999999999\r\n",
        "ERR Protocol error: invalid bulk length: 9999999999 bytes, body-max is 536870912",
    ),
    (b"*1\r\n!4\r\n", "ERR Protocol error: expected '$', got '!'"),
    (b"x" * 70_000, "ERR Protocol error: too big inline request"),
    (b"*" + b"1" * 70_000, "ERR Protocol error: too big mbulk count string"),
    (b"*1\r\n$" + b"1" * 70_000, "ERR Protocol error: too big bulk count string"),
    (b'PING "x\r\n', "ERR Protocol error: unbalanced quotes in request"),
]


@pytest.mark.parametrize(("data", "said"), MALFORMED)
def test_u40_malformed_input_is_told_and_closed_and_touches_nobody_else(
    lone: Node, client: Resp, data: bytes, said: str
) -> None:
    with lone.connect() as odd:
        odd.sock.sendall(b"PING\r\n" + data)
        assert odd.read() == "PONG"
        assert str(odd.read()) == said
        with pytest.raises((EOFError, ConnectionError)):
            odd.read()
    assert client.call("PING") == "PONG"


def test_u40_what_is_odd_but_legal(lone: Node, client: Resp) -> None:
    with lone.connect() as odd:
        odd.sock.sendall(b"*-1\r\n*0\r\n\n\r\n  \r\nPING\nping 'a b'\r\n*1\r\n$4\r\nPING\r\n")
        assert [odd.read() for _ in range(3)] == ["PONG", b"a b", "PONG"]
        odd.sock.sendall(b"*1\r\n$4\r\nPI")
    for queue in ("", "ü\u20ac", "a b", "\r\n", "\0"):
        job = client.call("ADDJOB", queue, b"\r\n$4\r\n", 0)
        assert client.call("GETJOB", "FROM", queue) == [
            [queue.encode(), job.encode(), b"\r\n$4\r\n"]
        ]
    count = 100_000
    client.sock.settimeout(60)
    client.sock.sendall(b"PING\r\n" * count)
    received = 0
    while received < 7 * count:
        received += len(client.sock.recv(1 << 20))
    assert received == 7 * count


def test_u40_random_bytes_never_harm_the_node(lone: Node, client: Resp) -> None:
    seed = random.randrange(1 << 32)
    dice = random.Random(seed)
    pieces = [
        b"*",
        b"$",
        b"\r\n",
        b"\n",
        b"3",
        b"-1",
        b"ADDJOB",
        b"GETJOB",
        b" ",
        b'"',
        b"\0",
        b"q",
    ]
    pieces += [
        b"*3\r\n$6\r\nGETJOB\r\n$4\r\nFROM\r\n$1\r\nq\r\n",
        b"ADDJOB q b 0\r\n",
        b"QPEEK q -1\r\n",
    ]
    for _ in range(300):
        data = b"".join(
            dice.choice(pieces) if dice.random() < 0.9 else dice.randbytes(dice.randrange(50))
            for _ in range(dice.randrange(1, 40))
        )
        with socket.create_connection(("127.0.0.1", lone.port)) as sock:
            sock.settimeout(5)
            sock.sendall(data)
            if dice.random() < 0.5:
                sock.shutdown(socket.SHUT_WR)
    assert client.call("PING") == "PONG", f"seed {seed}"
    wait_until(
        "all have gone",
        lambda: int(lone.info("clients")["connected_clients"]) <= 3,
    )


def test_half_close_answers_what_was_sent(three: Cluster) -> None:
    with three.nodes[0].connect() as client:
        client.send("ADDJOB", "q", "a", 5_000, "REPLICATE", 3)
        client.send("ADDJOB", "q", "b", 5_000, "REPLICATE", 3)
        client.send("QLEN", "q")
        client.sock.shutdown(socket.SHUT_WR)
        assert [str(client.read())[:2] for _ in range(2)] == ["D-", "D-"]
        assert client.read() == 2
        with pytest.raises(EOFError):
            client.read()


def test_pipelined_addjobs_are_answered_in_their_order(three: Cluster) -> None:
    with three.connections() as (a, b, _):
        for number in range(200):
            a.send("ADDJOB", "q", str(number), 5_000, "REPLICATE", 3)
        a.send("PING")
        ids = [a.read() for _ in range(200)]
        assert a.read() == "PONG"
        assert all(isinstance(job, str) for job in ids), next(
            e for e in ids if isinstance(e, ReplyError)
        )
        bodies = {job[1].decode(): job[2] for job in a.call("QPEEK", "q", 1_000)}
        assert [bodies[job] for job in ids] == [b"%d" % number for number in range(200)]
        assert b.call("ACKJOB", *ids) == 200
    three.wait_drained()


def test_pid_and_unix_socket_files_go_with_the_node(
    make_node: Callable[..., Node], tmp_path: Path
) -> None:
    path, pidfile = tmp_path / "s", tmp_path / "pid"
    node = make_node(
        "--unixsocket", str(path), "--unixsocketperm", "700", "--pidfile", str(pidfile)
    )
    node.start()
    assert node.process is not None
    assert pidfile.read_text() == f"{node.process.pid}\n"
    assert os.stat(path).st_mode & 0o777 == 0o700  # noqa: PTH116
    assert node.terminate() == 0
    assert not path.exists()
    assert not pidfile.exists()
