"""Order of checks, accounting, and who may overtake whom."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from disque.server import dispatch
from disque.server.eventlog import EventLog
from tests.unit.server.world import World, running

if TYPE_CHECKING:
    from pathlib import Path

OOM = b"-OOM command not allowed when used memory > 'maxmemory'.\r\n"


def fill_up(world: World) -> None:
    """Let no memory be left."""
    world.config.set("maxmemory", "1")
    world.settings.apply("maxmemory")


async def test_memory_is_checked_after_name_count_and_password_and_before_options() -> None:
    async with running() as world:
        fill_up(world)
        peer = world.connect()
        await peer.ask(b"ADDJOB q b 0 NONSENSE\r\n", OOM)
        await peer.ask(b"NACK bad-id\r\n", OOM)
        await peer.ask(b"ENQUEUE\r\n", OOM)
        await peer.ask(b"ADDJOB q\r\n", b"-ERR wrong number of arguments for 'addjob' command\r\n")
        for line, reply in (
            (b"QLEN q", b":0\r\n"),
            (b"ACKJOB", b":0\r\n"),
            (b"GETJOB NOHANG FROM q", b"*-1\r\n"),
            (b"CONFIG SET maxmemory 0", b"+OK\r\n"),
        ):
            await peer.ask(line + b"\r\n", reply)
        await peer.ask(b"ADDJOB q b 0\r\n", b"+D-")


async def test_memory_is_no_matter_before_authentication() -> None:
    async with running() as world:
        fill_up(world)
        world.config.requirepass = "secret"
        await world.connect().ask(b"ADDJOB q b 0\r\n", b"-NOAUTH Authentication required.\r\n")


async def test_failed_commands_count_as_calls_unless_they_were_refused() -> None:
    async with running() as world:
        peer = world.connect()
        await peer.ask(b"GETJOB q\r\n", b"-ERR syntax error\r\n")
        await peer.ask(b"QLEN\r\n", b"-ERR wrong number of arguments for 'qlen' command\r\n")
        assert {name: usage.calls for name, usage in world.shell.figures.usages.items()} == {
            b"getjob": 1
        }


@pytest.mark.parametrize(
    ("words", "may"),
    [
        (b"ADDJOB q b 0", True),
        (b"addjob q b 0 nonsense", True),
        (b"ADDJOB q", False),
        (b"QLEN q", False),
        (b"nosuch", False),
        (b"newjob q b 0", True),
    ],
)
async def test_only_addjobs_overtake_waiting_addjobs(words: bytes, may: bool) -> None:
    async with running() as world:
        world.shell.renames = {b"newjob": b"addjob"}
        assert dispatch.overtakes(world.shell, words.split()) is may


@pytest.mark.parametrize("end", ["EXEC", "DISCARD"])
async def test_what_stands_between_multi_and_its_end_is_not_done(end: str) -> None:
    refused = b"-ERR not done, for it stands behind a MULTI: EXEC or DISCARD ends that\r\n"
    ended = {
        "EXEC": b"-EXECABORT Transaction discarded because of previous errors.\r\n",
        "DISCARD": b"-ERR unknown command 'DISCARD'\r\n",
    }
    told = f"-ERR {dispatch.MULTI_TEXT}\r\n".encode()
    async with running() as world:
        peer = world.connect()
        await peer.ask(
            f"multi\r\nADDJOB q b 0\r\nMULTI\r\nnosuch\r\n{end}\r\n{end}\r\nQLEN q\r\n".encode(),
            told
            + refused
            + told
            + refused
            + ended[end]
            + f"-ERR unknown command '{end}'\r\n".encode()
            + b":0\r\n",
        )
        await peer.ask(b"MULTI\r\nQUIT\r\n", told + b"+OK\r\n")
        await peer.expect_end()


async def test_resetstat_starts_all_counters_anew() -> None:
    async with running() as world:
        peer = world.connect()
        await peer.ask(b"QLEN q\r\nQLEN q\r\n", b":0\r\n:0\r\n")
        assert world.clients.sent_bytes() == 8
        await peer.ask(b"CONFIG RESETSTAT\r\n", b"+OK\r\n")
        assert world.clients.sent_bytes() == 5
        assert world.shell.figures.usages.keys() == {b"config"}


@pytest.mark.parametrize("word", [b"POST", b"post", b"Host:", b"HOST:"])
async def test_what_a_browser_says_ends_the_connection_at_once(word: bytes, tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with running() as world:
        world.shell.events = EventLog(path=str(log))
        for _ in range(2):
            peer = world.connect()
            # by itself: a run of commands that takes long is cut, and what it has answered is sent
            await peer.ask(b"PING\r\n", b"+PONG\r\n")
            await peer.send(word + b" / HTTP/1.1\r\nADDJOB q b 0\r\n")
            await peer.expect_end()
        assert world.shell.broker.engine.statistics().registered_jobs == 0
        world.shell.events.close()
    (line,) = log.read_text().splitlines()
    assert "warning possible-attack addr=" in line


async def test_tls_on_a_plain_port_is_closed_and_told_in_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with running() as world:
        events = world.clients._events = EventLog(path=str(log))
        peer = world.connect()
        await peer.send(b"\x16")
        await peer.ask(
            b"\x03\x01\x02\x00\x01",
            b"-ERR Protocol error: TLS came, and this port doesn't speak it\r\n",
        )
        await peer.expect_end()
        events.close()
    assert "warning tls-on-plain-port addr=" in log.read_text()
