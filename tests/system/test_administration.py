"""A real node's configuration file, restarts on purpose, and logs."""

from __future__ import annotations

import signal
import socket
import time
from typing import TYPE_CHECKING

import pytest

from tests.system.nodes import WAIT_S, Node, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.system


@pytest.fixture
def filed(make_node: Callable[..., Node], tmp_path: Path) -> Node:
    """A node that is started as Disque's own suite does: a relative file, a relative `dir` in it."""
    folder = tmp_path / "suite"
    node = make_node(folder="suite")
    (folder / "data").mkdir()
    (folder / "node.conf").write_text(
        f"port {node.port}\ndir ./data\nlogfile log.txt\nloglevel notice\nloglevel notice\n"
    )
    words = node.command_line()[:3]
    node.command_line = lambda: [*words, "node.conf"]  # type: ignore[method-assign]
    return node.start()


def test_rewritten_file_starts_the_same_node_from_the_same_folder(filed: Node) -> None:
    identity = filed.call("CLUSTER", "MYID")
    with filed.connect() as client:
        assert client.call("CONFIG", "SET", "cluster-node-timeout", 3000) == "OK"
        assert client.call("CONFIG", "SET", "maxmemory", 3 << 20) == "OK"
        assert client.call("CONFIG", "SET", "requirepass", 'a "b" \u20ac') == "OK"
        assert client.call("AUTH", 'a "b" \u20ac') == "OK"
        assert client.call("CONFIG", "REWRITE") == "OK"
        assert client.call("CONFIG", "REWRITE") == "OK"
    text = (filed.folder / "node.conf").read_text()
    assert text.count("loglevel") == 1
    assert f'dir "{filed.folder}/data"\n' in text
    assert "maxmemory 3mb\n" in text
    filed.kill()
    filed.start()
    with filed.connect() as client:
        assert client.call("AUTH", 'a "b" \u20ac') == "OK"
        assert client.call("CLUSTER", "MYID") == identity
        shown = client.call("CONFIG", "GET", "cluster-node-timeout")
        assert shown == [b"cluster-node-timeout", b"3000"]
    assert (filed.folder / "data" / "log.txt").exists()


@pytest.mark.parametrize("how", ["RESTART", "CRASH-AND-RECOVER"])
def test_restart_on_purpose_keeps_process_id_and_identity(filed: Node, how: str) -> None:
    assert filed.process is not None
    before = filed.info("server")
    identity = filed.call("CLUSTER", "MYID")
    with filed.connect() as client:
        assert client.call("CONFIG", "SET", "hz", 50) == "OK"
        client.send("DEBUG", how)
        with pytest.raises((EOFError, ConnectionError)):
            client.read()
    wait_until("it is back", lambda: filed.info("server")["run_id"] != before["run_id"])
    assert filed.info("server")["process_id"] == before["process_id"] == str(filed.process.pid)
    assert filed.call("CLUSTER", "MYID") == identity
    kept = {"RESTART": b"50", "CRASH-AND-RECOVER": b"10"}[how]
    assert filed.call("CONFIG", "GET", "hz") == [b"hz", kept]


@pytest.mark.parametrize(
    ("word", "status"), [("SEGFAULT", -signal.SIGSEGV), ("OOM", 70), ("ASSERT", 70)]
)
def test_trouble_on_purpose_ends_the_process(node: Node, word: str, status: int) -> None:
    assert node.process is not None
    with node.connect() as client:
        client.send("DEBUG", word)
        with pytest.raises((EOFError, ConnectionError)):
            client.read()
    assert node.process.wait(WAIT_S) == status
    node.process = None


def test_there_is_no_log_to_load_and_a_rewrite_is_accepted(node: Node) -> None:
    assert node.call_error("DEBUG", "LOADAOF").startswith("ERR ")
    text = "Background append only file rewriting started"
    assert node.call("BGREWRITEAOF") == text
    wanted = "ERR LOADJOB is a special command only processed from AOF"
    assert node.call_error("LOADJOB", "x") == wanted


def test_renamed_commands_are_known_by_their_new_names(
    make_node: Callable[..., Node], tmp_path: Path
) -> None:
    path = tmp_path / "node.conf"
    path.write_text('rename-command SHUTDOWN ""\nrename-command ADDJOB newjob\n')
    node = make_node()
    words = node.command_line()
    node.command_line = lambda: [*words[:3], str(path), *words[3:]]  # type: ignore[method-assign]
    node.start()
    assert node.call("NEWJOB", "q", "b", 0).startswith("D-")
    assert node.call_error("ADDJOB", "q", "b", 0) == "ERR unknown command 'ADDJOB'"
    assert node.call_error("SHUTDOWN") == "ERR unknown command 'SHUTDOWN'"


def test_client_that_reads_too_slowly_is_dropped_after_the_soft_limits_time(
    make_node: Callable[..., Node],
) -> None:
    node = make_node().start()
    with node.connect() as slow, node.connect() as admin:
        limit = "normal 0 128kb 1"
        assert admin.call("CONFIG", "SET", "client-output-buffer-limit", limit) == "OK"
        slow.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        name = slow.sock.getsockname()[1]
        body = b"x" * (1 << 20)
        slow.send("PING", body)
        listed = f"addr=127.0.0.1:{name} ".encode()
        wait_until("its reply waits", lambda: listed in admin.call("CLIENT", "LIST"))
        time.sleep(0.5)
        assert listed in admin.call("CLIENT", "LIST")
        wait_until("it is dropped", lambda: listed not in admin.call("CLIENT", "LIST"))
    assert "client-dropped" in node.log()


def test_more_clients_than_the_system_allows_are_refused_at_run_time(
    make_node: Callable[..., Node],
) -> None:
    node = make_node()
    words = node.command_line()
    node.command_line = lambda: ["sh", "-c", 'ulimit -n 100; exec "$@"', "sh", *words]  # type: ignore[method-assign]
    node.start()
    text = node.call_error("CONFIG", "SET", "maxclients", 500)
    assert text == (
        "ERR The operating system is not able to handle the specified number of clients, "
        "try with 68"
    )
    assert node.call("CONFIG", "SET", "maxclients", 60) == "OK"


def test_maxmemory_refuses_with_oom_and_0_is_no_limit(node: Node) -> None:
    with node.connect() as client:
        job = client.call("ADDJOB", "q", "b", 0)
        assert client.call("CONFIG", "SET", "maxmemory", 1) == "OK"
        text = "OOM command not allowed when used memory > 'maxmemory'."
        assert client.error("ADDJOB", "q", "b", 0) == text
        assert client.error("ADDJOB", "q", "b", "x", "NONSENSE") == text  # before the options
        assert client.error("NACK", job) == client.error("ENQUEUE", job) == text
        assert client.error("ADDJOB", "q") == "ERR wrong number of arguments for 'addjob' command"
        assert client.call("GETJOB", "FROM", "q") == [[b"q", job.encode(), b"b"]]
        assert client.call("ACKJOB", job) == 1
        assert client.call("CONFIG", "SET", "maxmemory", 0) == "OK"
        assert client.call("ADDJOB", "q", "b", 0).startswith("D-")


def test_syslog_gets_the_lines(make_node: Callable[..., Node]) -> None:
    """There is no syslog daemon here to ask: it must at least start, log and end as ever."""
    node = make_node(
        "--syslog-enabled", "yes", "--syslog-ident", "x", "--syslog-facility", "local3"
    )
    node.start()
    assert node.terminate() == 0
    assert " notice stopped" in node.log()
