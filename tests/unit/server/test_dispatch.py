"""Order of checks, accounting, and who may overtake whom."""

from __future__ import annotations

import pytest

from disque.server import dispatch
from tests.unit.server.world import World, running

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


async def test_resetstat_starts_all_counters_anew() -> None:
    async with running() as world:
        peer = world.connect()
        await peer.ask(b"QLEN q\r\nQLEN q\r\n", b":0\r\n:0\r\n")
        assert world.clients.sent_bytes() == 8
        await peer.ask(b"CONFIG RESETSTAT\r\n", b"+OK\r\n")
        assert world.clients.sent_bytes() == 5
        assert world.shell.figures.usages.keys() == {b"config"}
