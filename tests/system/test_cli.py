"""The tool sends commands as redis-cli does: replies, errors, pipes, passwords, streams, Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import trustme

from tests.system.nodes import WAIT_S, Node, free_port, wait_until
from tests.system.tool import TOOL, Terminal, clean_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.system.tool import Tool

pytestmark = pytest.mark.system


def test_a_job_goes_through_in_a_pipe_as_bare_bytes(lone: Node, tool: Tool) -> None:
    id_ = tool.ok(lone, "ADDJOB", "pipe", "hällo", "0").text.strip()
    assert tool.ok(lone, "getjob", "from", "pipe").out == f"pipe\n{id_}\nhällo\n".encode()
    assert tool.ok(lone, "ACKJOB", id_).out == b"1\n"
    assert tool.ok(lone, "GETJOB", "NOHANG", "FROM", "pipe").out == b"\n"


def test_words_that_look_like_options_are_the_commands_own(lone: Node, tool: Tool) -> None:
    tool.ok(lone, "ADDJOB", "--raw", "-x", "0")
    assert tool.ok(lone, "QPEEK", "--raw", "-1").out.splitlines()[2] == b"-x"


def test_types_are_shown_if_asked_for(lone: Node, tool: Tool) -> None:
    assert tool.ok(lone, "--no-raw", "QLEN", "types").out == b"(integer) 0\n"
    assert tool.ok(lone, "--no-raw", "PING", "a b").out == b'"a b"\n'
    assert tool.ok(lone, "--no-raw", "-3", "CONFIG", "GET", "port").text == (
        f'1# "port" => "{lone.port}"\n'
    )
    assert b"\ntcp_port:" in tool.ok(lone, "--no-raw", "INFO", "server").out


def test_error_goes_to_standard_error_and_is_status_1(lone: Node, tool: Tool) -> None:
    done = tool(lone, "QLEN")
    assert (done.status, done.out) == (1, b"")
    assert done.err == (
        "(error) ERR wrong number of arguments for 'qlen' command\nUsage: QLEN queue\n"
    )


@pytest.mark.parametrize(
    ("words", "usage"),
    [
        (["addjob", "q", "body", "PRIORITY", "9"], "Usage: ADDJOB queue body ms-timeout ["),
        (["PAUSE", "q", "stop"], "Usage: PAUSE queue in|out|all|none|state"),
        (["CLUSTER", "FORGETT", "x"], "Usage: CLUSTER INFO | NODES"),
    ],
)
def test_a_command_that_is_called_wrongly_brings_its_usage(
    lone: Node, tool: Tool, words: list[str], usage: str
) -> None:
    assert usage in tool(lone, *words).err


@pytest.mark.parametrize(
    ("typed", "meant"), [("quues", "queues"), ("ADJOB", "ADDJOB"), ("LPUSH", "ADDJOB")]
)
def test_unknown_command_brings_what_may_have_been_meant(
    lone: Node, tool: Tool, typed: str, meant: str
) -> None:
    done = tool(lone, typed)
    assert done.status == 1
    assert f"Did you mean {meant}?" in done.err


def test_json_has_one_line_a_command_errors_too(lone: Node, tool: Tool) -> None:
    done = tool(lone, "--json", stdin=b'PING "\\xff"\nQLEN json\nQLEN\nHELLO\n')
    assert done.status == 1
    ping, length, error, hello = done.json_lines()
    assert (ping, length) == ({"base64": "/w=="}, 0)
    assert error["error"].startswith("ERR wrong number")
    assert hello[0] == 1


def test_argument_from_standard_input(lone: Node, tool: Tool) -> None:
    body = bytes(range(256)) + b"\n"
    tool.ok(lone, "-X", "BODY", "ADDJOB", "stdin", "BODY", "0", stdin=body)
    assert lone.call("QPEEK", "stdin", 1)[0][2] == body
    assert tool.ok(lone, "-x", "PING", stdin=body).out == body + b"\n"


def test_commands_from_standard_input(lone: Node, tool: Tool) -> None:
    script = b'# a comment\n\nADDJOB script "two words" 0\r\nQLEN script\n'
    assert tool.ok(lone, stdin=script).out.splitlines()[1] == b"1"
    failed = tool(lone, stdin=b"QLEN\nPING\n")
    assert (failed.status, failed.out) == (1, b"PONG\n")
    torn = tool(lone, stdin=b'PING\nPING "x\nPING\n')
    assert (torn.status, torn.out) == (2, b"PONG\n")
    assert "line 2" in torn.err


def test_command_is_repeated(lone: Node, tool: Tool) -> None:
    assert tool.ok(lone, "-r", "3", "-i", "0", "PING").out == b"PONG\n" * 3


def test_password_comes_from_option_url_or_environment(
    make_node: Callable[..., Node], tool: Tool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "socket"
    node = make_node("--requirepass", "se@same", "--unixsocket", str(path)).start()
    refused = tool(node, "PING")
    assert refused.status == 1
    assert refused.err.startswith("(error) NOAUTH Authentication required.\n")
    assert "$DISQUE_PASSWORD" in refused.err
    told = tool(node, "nodes").err
    assert "NOAUTH Authentication required; the password is taken from $DISQUE_PASSWORD" in told
    wrong = tool(node, "-a", "x", "PING")
    assert (wrong.status, wrong.out) == (1, b"")
    assert tool.ok(node, "-a", "se@same", "PING").out == b"PONG\n"
    assert (
        tool.ok(node, "-u", f"disque://:se%40same@127.0.0.1:{node.port}", "PING").out == b"PONG\n"
    )
    monkeypatch.setenv("DISQUE_AUTH", "se@same")
    assert tool.ok(node, "nodes", "--json").json()[0]["is_reached"]
    assert tool.ok(node, "-s", str(path), "PING").out == b"PONG\n"


def test_password_typed_at_the_prompt_holds_for_our_commands_too(
    make_node: Callable[..., Node],
) -> None:
    terminal = Terminal(make_node("--requirepass", "sesame").start())
    try:
        terminal.wait_for(r"\d+>")
        terminal.type("AUTH sesame\r")
        terminal.wait_for(r"OK")
        terminal.type("nodes --json\r")
        terminal.wait_for(r'"is_reached": true')
        terminal.type("exit\r")
        assert terminal.end() == 0
    finally:
        terminal.close()


def test_locale_that_lacks_letters_and_closed_streams_are_no_errors(lone: Node) -> None:
    lone.call("ADDJOB", "grün", "x", 0)

    def run(*words: str, **more: Any) -> subprocess.CompletedProcess[bytes]:
        environment = clean_environment(PYTHONIOENCODING="ascii")
        command = [*TOOL, "-p", str(lone.port), *words]
        return subprocess.run(command, env=environment, timeout=WAIT_S, check=False, **more)

    table = run("queues", "gr*", capture_output=True)
    assert (table.returncode, b"gr\\xfcn" in table.stdout) == (0, True)
    told = run("queues", "gr*", "--json", capture_output=True)
    assert json.loads(told.stdout)[0]["name"] == "grün"
    closed = run("PING", preexec_fn=lambda: os.closerange(0, 3))
    assert closed.returncode == 0


def test_tls_proves_both_sides(make_node: Callable[..., Node], tool: Tool, tmp_path: Path) -> None:
    authority, port = trustme.CA(), str(free_port())
    ca, cert = str(tmp_path / "ca.pem"), str(tmp_path / "node.pem")
    authority.cert_pem.write_to_path(ca)
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(cert)
    served = ("--tls-cert-file", cert, "--tls-key-file", cert, "--tls-ca-cert-file", ca)
    node = make_node("--tls-port", port, *served).start()
    ours = ("--tls", "--cacert", ca, "--cert", cert)
    assert tool.ok(node, "-p", port, *ours, "PING").out == b"PONG\n"
    url = f"disques://127.0.0.1:{port}?tls_ca={ca}&tls_cert={cert}"
    assert tool.ok(node, "-u", url, "-p", port, "nodes", "--json").json()[0]["is_reached"]
    insecure = ("--tls", "--insecure", "--cert", cert)
    assert tool.ok(node, "-p", port, *insecure, "PING").out == b"PONG\n"
    stranger = tool(node, "-p", port, "--tls", "--cert", cert, "PING")
    assert stranger.status == 3
    assert "; --cacert (in a URL tls_ca) says whose certificates are believed" in stranger.err
    nobody = tool(node, "-p", port, "--tls", "--cacert", ca, "PING")
    assert (nobody.status, nobody.out) == (3, b"")
    missing = tool(node, "-p", port, "--tls", "--cacert", "/nosuch", "PING")
    assert (missing.status, "/nosuch" in missing.err) == (2, True)
    assert tool(node, "--tls", "--insecure", "PING").status == 3


def test_next_address_of_the_url_is_tried(lone: Node) -> None:
    url = f"disque://127.0.0.1:1;disque://127.0.0.1:{lone.port}"
    done = subprocess.run(
        [*TOOL, "PING"], capture_output=True, env=clean_environment(DISQUE_URL=url), timeout=WAIT_S, check=True
    )  # fmt: skip
    assert done.stdout == b"PONG\n"


def test_shutdown_is_no_error(make_node: Callable[..., Node], tool: Tool) -> None:
    node = make_node().start()
    assert tool.ok(node, "SHUTDOWN").out == b""
    assert node.process is not None
    assert node.process.wait(WAIT_S) == 0


def test_lost_connection_is_status_3(lone: Node, tool: Tool) -> None:
    done = tool(lone, stdin=b"QUIT\nPING\n")
    assert (done.status, done.out) == (3, b"OK\n")
    assert "closed" in done.err


def test_ctrl_c_ends_a_wait_without_a_traceback(
    lone: Node, spawn_tool: Callable[..., subprocess.Popen[bytes]]
) -> None:
    process = spawn_tool("-p", str(lone.port), "GETJOB", "FROM", "wait-for-it")
    wait_until(
        "the tool waits",
        lambda: lone.info("clients")["blocked_clients"] == "1",
    )
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, out) == (130, b"")
    assert b"Traceback" not in err


def test_messages_of_a_topic_come_as_they_are_published(
    lone: Node, spawn_tool: Callable[..., subprocess.Popen[bytes]]
) -> None:
    process = spawn_tool("-p", str(lone.port), "SUBSCRIBE", "news")
    wait_until("it has subscribed", lambda: lone.call("PUBSUB", "NUMSUB", "news")[1] == 1)
    lone.call("PUBLISH", "news", "first")
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(6)]
    assert lines == [b"subscribe\n", b"news\n", b"1\n", b"message\n", b"news\n", b"first\n"]
    process.send_signal(signal.SIGINT)
    assert process.wait(WAIT_S) == 130


@pytest.mark.parametrize("words", [("-r", "-1", "PING", "x" * 4096), ("top", "-i", "0.1")])
def test_reader_that_goes_away_is_no_complaint(
    lone: Node, spawn_tool: Callable[..., subprocess.Popen[bytes]], words: tuple[str, ...]
) -> None:
    process = spawn_tool("-p", str(lone.port), *words)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(WAIT_S) == 141
    assert process.stderr.read() == b""


@pytest.fixture
def terminal(lone: Node, tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    """Starts the tool on a terminal of its own; it is killed at the end if it still runs."""
    made: list[Terminal] = []

    def make(*words: str) -> Terminal:
        made.append(Terminal(lone, *words, DISQUE_HISTORY=str(tmp_path / "history")))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_prompt_runs_commands_ours_and_the_servers_and_keeps_going(
    lone: Node, terminal: Callable[..., Terminal], tmp_path: Path
) -> None:
    tool = terminal()
    prompt = rf"127\.0\.0\.1:{lone.port}>"
    tool.wait_for(prompt)
    tool.type("ADDJOB prompt hello 0\r")
    tool.wait_for(r"D-[0-9a-f]{8}-")
    tool.type("GETJOB FROM prompt\r")
    assert '"hello"' in tool.wait_for(r"When done: ACKJOB D-")
    tool.type("QLEN\r")
    tool.wait_for(r"\(error\) ERR wrong number")
    tool.type("queues --json\r")
    tool.wait_for(r'"name": "prompt"')
    tool.type("jobs show nonsense\r")
    tool.wait_for(r"no job id")
    # Ctrl-C ends a wait, and the prompt is there again.
    tool.type("GETJOB FROM prompt-empty\r")
    tool.wait_for(r"Ctrl-C ends the wait")
    tool.type("\x03")
    tool.wait_for(r"not connected>")
    tool.type("PING\r")
    tool.wait_for(r"PONG")
    tool.type("exit\r")
    assert tool.end() == 0
    assert "ADDJOB prompt hello 0" in (tmp_path / "history").read_text()


def test_top_on_a_terminal_ends_with_q(terminal: Callable[..., Terminal]) -> None:
    tool = terminal("top", "-i", "0.2")
    tool.wait_for(r"1 of 1 node ok")
    tool.type("q")
    assert tool.end() == 0
