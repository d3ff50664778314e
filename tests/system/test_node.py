"""One real node: its start, its end, and what it refuses."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from disque.server.connection import KEPT_INPUT_MAX
from tests.system.nodes import ROOT, WAIT_S, Node, Resp, free_port, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.system


def run_server(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run `disque-server` to its end."""
    return subprocess.run(
        [sys.executable, "-m", "disque.server.main", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


def test_start_says_so_in_one_line_and_answers(
    node: Node, record_property: Callable[[str, object], None]
) -> None:
    record_property("start_to_first_pong_s", round(node.started_in_s, 3))
    assert node.call("PING") == "PONG"
    wait_until("the log says ready", lambda: " notice ready " in node.log())
    assert f" notice ready version=0.1.0 port={node.port} " in node.log()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--prot", "7711"), "--prot: unknown directive 'prot'"),
        (("--port", "http"), "--port: port must be a number between 1 and 65535, got 'http'"),
        (("nosuch.conf",), "nosuch.conf: can't read this config file: No such file or directory"),
        (("--dir", "nosuch"), "No such file or directory"),
        (("--port", "60000"), "port 60000 puts the bus at port + 10000 = 70000, beyond 65535"),
    ],
)
def test_wrong_directive_is_one_line_on_stderr_and_exit_1(
    tmp_path: Path, words: tuple[str, ...], complaint: str
) -> None:
    done = run_server(*words, folder=tmp_path)
    assert done.returncode == 1
    assert done.stdout == ""
    assert complaint in done.stderr
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


def test_version_and_help_answer_without_a_server(tmp_path: Path) -> None:
    assert run_server("--version", folder=tmp_path).stdout == "disque-broker 0.1.0\n"
    text = run_server("--help", folder=tmp_path).stdout
    assert "disque-server [CONFIG-FILE] [--DIRECTIVE VALUE ...]" in text
    assert "cluster-secret" in text


@pytest.mark.parametrize("which", ["client", "bus"])
def test_taken_port_is_one_line_on_stderr_and_exit_1(tmp_path: Path, which: str) -> None:
    port = free_port()
    taken = port if which == "client" else port + 10_000
    with socket.socket() as holder:
        holder.bind(("0.0.0.0", taken))
        holder.listen()
        done = run_server("--port", str(port), folder=tmp_path)
    assert done.returncode == 1
    assert f":{taken}: " in done.stderr
    assert "in use" in done.stderr
    assert done.stderr.count("\n") == 1


def test_second_process_on_one_folder_is_refused(node: Node, tmp_path: Path) -> None:
    done = run_server("--port", str(free_port()), "--dir", str(node.folder), folder=tmp_path)
    assert done.returncode == 1
    assert "nodes.conf is used by another process" in done.stderr


def test_damaged_node_table_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "nodes.conf").write_bytes(b"\0" * 100)
    done = run_server("--port", str(free_port()), folder=tmp_path)
    assert done.returncode == 1
    assert "nodes.conf holds 100 NUL bytes" in done.stderr
    assert (tmp_path / "nodes.conf").read_bytes() == b"\0" * 100


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_it_with_status_0_and_waiting_clients_see_the_end(
    node: Node, number: signal.Signals
) -> None:
    assert node.process is not None
    with node.connect() as waiting:
        waiting.send("GETJOB", "FROM", "q")
        wait_until("it waits", lambda: node.info("clients")["blocked_clients"] == "1")
        node.process.send_signal(number)
        assert node.process.wait(WAIT_S) == 0
        with pytest.raises((EOFError, ConnectionError)):
            waiting.read()
    assert "Traceback" not in node.log() + node.complaints()


def test_sighup_is_ignored(node: Node) -> None:
    assert node.process is not None
    node.process.send_signal(signal.SIGHUP)
    assert node.call("PING") == "PONG"


def test_shutdown_ends_it_without_a_reply(node: Node) -> None:
    assert node.process is not None
    with node.connect() as client:
        assert client.error("SHUTDOWN", "NOW") == "ERR syntax error"
        client.send("SHUTDOWN")
        with pytest.raises((EOFError, ConnectionError)):
            client.read()
    assert node.process.wait(WAIT_S) == 0


def test_identity_survives_a_crash(make_node: Callable[..., Node]) -> None:
    node = make_node().start()
    identity = node.call("CLUSTER", "MYID")
    node.kill()
    node.start()
    assert node.call("CLUSTER", "MYID") == identity


@pytest.mark.parametrize(
    "command",
    [
        ("GETJOB", "FROM", "q"),
        ("GETJOB", "FROM", "q", "other"),
    ],
)
def test_client_that_goes_while_getjob_waits_leaves_nothing(
    node: Node, command: tuple[str, ...]
) -> None:
    client = node.connect()
    client.send(*command)
    wait_until("it waits", lambda: node.info("clients")["blocked_clients"] == "1")
    client.close()
    wait_until("it's gone", lambda: node.info("clients")["blocked_clients"] == "0")
    job = node.call("ADDJOB", "q", "body", 0)
    assert node.call("QLEN", "q") == 1
    assert node.call("GETJOB", "FROM", "q") == [[b"q", job.encode(), b"body"]]


def test_client_that_goes_while_its_kept_input_hides_that_is_noticed(node: Node) -> None:
    client = node.connect()
    client.send("GETJOB", "FROM", "q")
    # Little more than the node reads ahead, so that the end of the stream fits into the socket's
    # buffer behind it: what isn't received yet hides the end from any program.
    ping = b"PING %b\r\n" % (b"x" * 1_000)
    client.sock.sendall(ping * (KEPT_INPUT_MAX // len(ping) + 20))
    wait_until("it waits", lambda: node.info("clients")["blocked_clients"] == "1")
    client.close()
    wait_until("it's gone", lambda: node.info("clients")["blocked_clients"] == "0")
    node.call("ADDJOB", "q", "body", 0)
    assert node.call("QLEN", "q") == 1


def test_bug_of_ours_ends_it_with_a_traceback_and_status_70(make_node: Callable[..., Node]) -> None:
    node = make_node()
    script = (
        "import sys, disque.broker\n"
        "def explode(self, client, command): raise ZeroDivisionError('planted')\n"
        "disque.broker.Broker.command = explode\n"
        "from disque.server.main import main\n"
        "sys.exit(main())"
    )
    words = node.command_line()
    node.command_line = lambda: [words[0], "-c", script, *words[3:]]  # type: ignore[method-assign]
    node.start()
    assert node.process is not None
    with node.connect() as client, node.connect() as bystander:
        bystander.call("PING")
        client.send("QLEN", "q")
        for each in (client, bystander):
            with pytest.raises((EOFError, ConnectionError)):
                each.read()
    assert node.process.wait(WAIT_S) == 70
    assert node.log().count("ZeroDivisionError: planted") == 1
    with pytest.raises(OSError, match="refused"):
        node.connect()


def test_commands_after_a_waiting_one_run_in_order_when_it_is_answered(node: Node) -> None:
    with node.connect() as client, node.connect() as other:
        client.send("GETJOB", "FROM", "q")
        client.send("PING", "after")
        client.send("QLEN", "q")
        wait_until("it waits", lambda: node.info("clients")["blocked_clients"] == "1")
        job = other.call("ADDJOB", "q", "body", 0)
        replies = [client.read() for _ in range(3)]
    assert replies == [[[b"q", job.encode(), b"body"]], b"after", 0]


def test_client_limit_is_told_and_the_connection_closed(make_node: Callable[..., Node]) -> None:
    node = make_node("--maxclients", "2").start()
    with node.connect() as first:
        wait_until(
            "the connection that awaited the start is gone",
            lambda: b"connected_clients:1\r\n" in first.call("INFO", "clients"),
        )
        second = node.connect()
        assert second.call("PING") == "PONG"
        with node.connect() as third:
            assert str(third.read()) == "ERR max number of clients reached"
            with pytest.raises(EOFError):
                third.read()
        second.close()
        assert "rejected_connections:1\r\n" in first.call("INFO", "stats").decode()


def test_idle_client_is_dropped_after_timeout(make_node: Callable[..., Node]) -> None:
    node = make_node("--timeout", "1").start()
    with node.connect() as client, pytest.raises((EOFError, ConnectionError)):
        client.read()


def own_address() -> str:
    """An address of this machine that isn't loopback; skips the test if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address but loopback")
        address: str = probe.getsockname()[0]
    if address.startswith("127."):
        pytest.skip("this machine has no address but loopback")
    return address


def test_protected_mode_serves_only_this_machine_until_there_is_a_password(node: Node) -> None:
    address = own_address()
    with Resp(node.port, address) as client:
        text = str(client.read())
        assert text.startswith("DENIED ")
        assert "requirepass" in text
        assert "protected-mode no" in text
        with pytest.raises((EOFError, ConnectionError)):
            client.read()
    with node.connect() as local:
        assert local.call("CONFIG", "SET", "requirepass", "secret") == "OK"
    with Resp(node.port, address) as client:
        assert client.error("PING") == "NOAUTH Authentication required."
        assert client.error("AUTH", "wrong") == "ERR invalid password"
        assert client.call("AUTH", "secret") == "OK"
        assert client.call("PING") == "PONG"


def test_protected_mode_off_serves_everybody(make_node: Callable[..., Node]) -> None:
    address = own_address()
    node = make_node("--protected-mode", "no").start()
    with Resp(node.port, address) as client:
        assert client.call("PING") == "PONG"


def test_meet_beyond_this_machine_needs_a_secret(make_node: Callable[..., Node]) -> None:
    open_node = make_node("--cluster-secret", "s").start()
    with open_node.connect() as client:
        assert client.call("CLUSTER", "MEET", "192.0.2.1", 7711) == "OK"
    closed = make_node().start()
    with closed.connect() as client:
        text = client.error("CLUSTER", "MEET", "192.0.2.1", 7711)
        assert text.startswith("DENIED MEET with 192.0.2.1 refused: ")
        assert "cluster-secret" in text


def test_settings_rise_from_file_to_environment_to_flag(
    make_node: Callable[..., Node], tmp_path: Path
) -> None:
    path = tmp_path / "node.conf"
    path.write_text("maxclients 11\ntimeout 12\nhz 13\n")
    node = make_node("--hz", "33")
    words = node.command_line
    node.command_line = lambda: [*words()[:3], str(path), *words()[3:]]  # type: ignore[method-assign]
    node.start(DISQUE_TIMEOUT="22", DISQUE_HZ="23", DISQUE_PORT="tcp://10.0.0.1:7711")
    with node.connect() as client:
        assert client.call("CONFIG", "GET", "maxclients") == [b"maxclients", b"11"]
        assert client.call("CONFIG", "GET", "timeout") == [b"timeout", b"22"]
        assert client.call("CONFIG", "GET", "hz") == [b"hz", b"33"]
    assert "Kubernetes" in node.log()


def test_unix_socket_is_served(make_node: Callable[..., Node], tmp_path: Path) -> None:
    path = tmp_path / "s"
    make_node("--unixsocket", str(path)).start()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(WAIT_S)
        sock.connect(str(path))
        sock.sendall(b"PING\r\n")
        assert sock.recv(100) == b"+PONG\r\n"


def test_scarce_descriptors_lower_maxclients_and_the_node_serves_on(
    make_node: Callable[..., Node],
) -> None:
    node = make_node()
    words = node.command_line()
    node.command_line = lambda: ["sh", "-c", 'ulimit -n 64; exec "$@"', "sh", *words]  # type: ignore[method-assign]
    node.start()
    assert "maxclients-lowered maxclients=10000 served=32 open_files=64" in node.log()
    clients = [node.connect() for _ in range(100)]
    for client in clients:
        client.send("PING")
    assert clients[0].read() == "PONG"
    for client in clients:
        client.close()

    def is_served() -> bool:
        with node.connect() as client:
            client.send("PING")
            return bool(client.read() == "PONG")

    wait_until("it serves again", is_served)
