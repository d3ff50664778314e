"""MONITOR's lines: quoted, with what is secret covered, to all who want them."""

from __future__ import annotations

import pytest
import trio.testing

from disque.server.monitor import monitor_line, without_secrets
from tests.unit.server.world import Peer, running


async def lines_of(peer: Peer, count: int) -> list[bytes]:
    """The words of so many lines, without time and address."""
    return [(await peer.read_line()).split(b"] ", 1)[1] for _ in range(count)]


def test_line_has_seconds_microseconds_peer_and_quoted_words() -> None:
    line = monitor_line(1_234_567_890_000_042_999, "127.0.0.1:9", [b"PING", b'a"\\\n\x00\xff b'])
    assert line == b'+1234567890.000042 [127.0.0.1:9] "PING" "a\\"\\\\\\n\\x00\\xff b"\r\n'


def test_line_is_short_however_large_the_command_is() -> None:
    line = monitor_line(0, "h", [b"ADDJOB", b"q", b"b" * 1_027, *[b"x"] * 1_000])
    words = line.split(b"] ")[1]
    assert words.startswith(b'"ADDJOB" "q" "%b... (3 more bytes)" "x" "x"' % (b"b" * 1_024))
    assert words.endswith(b'"x" "... (940 more arguments)"\r\n')
    assert words.count(b'"') == 2 * 64


@pytest.mark.parametrize(
    ("name", "words", "shown"),
    [
        (b"auth", b"AUTH secret", b"AUTH (redacted)"),
        (b"hello", b"HELLO 3 AUTH default secret", b"HELLO 3 (redacted) (redacted) (redacted)"),
        (b"hello", b"HELLO 3", b"HELLO 3"),
        (b"config", b"config set RequirePass secret", b"config set RequirePass (redacted)"),
        (b"config", b"CONFIG SET hz 10", b"CONFIG SET hz 10"),
        (
            b"config",
            b"CONFIG SET hz 10 requirepass secret",
            b"CONFIG SET hz (redacted) (redacted) (redacted)",
        ),
        (b"addjob", b"ADDJOB q secret 0", b"ADDJOB q secret 0"),
    ],
)
def test_passwords_are_covered(name: bytes, words: bytes, shown: bytes) -> None:
    assert list(without_secrets(name, words.split())) == shown.split()


async def test_monitor_shows_what_is_carried_out_and_is_answered_once() -> None:
    async with running() as world:
        watcher, client = world.connect(), world.connect()
        await watcher.ask(b"MONITOR\r\n", b"+OK\r\n")
        await client.ask(b"nosuch\r\nQLEN\r\nQLEN q\r\n", b"-ERR unknown command 'nosuch'\r\n")
        await watcher.send(b"monitor\r\nPING\r\n")
        assert await lines_of(watcher, 3) == [b'"QLEN" "q"\r\n', b'"monitor"\r\n', b'"PING"\r\n']
        await watcher.expect(b"+PONG\r\n")


async def test_monitor_that_waits_for_a_job_still_sees_commands() -> None:
    async with running() as world:
        watcher, client = world.connect(), world.connect()
        await watcher.send(b"MONITOR\r\nGETJOB FROM q\r\n")
        await watcher.expect(b"+OK\r\n")
        assert await lines_of(watcher, 1) == [b'"GETJOB" "FROM" "q"\r\n']
        await client.ask(b"QLEN q\r\n", b":0\r\n")
        assert await lines_of(watcher, 1) == [b'"QLEN" "q"\r\n']


async def test_monitor_that_has_gone_is_forgotten() -> None:
    async with running() as world:
        watcher, client = world.connect(), world.connect()
        await watcher.ask(b"MONITOR\r\n", b"+OK\r\n")
        await watcher.stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
        await client.ask(b"PING\r\n", b"+PONG\r\n")
        assert world.shell.monitors == {}
