"""SLOWLOG keeps the newest slow commands, cut to size."""

from __future__ import annotations

import sys

import pytest

from disque.server.slowlog import ARGUMENT_BYTES_MAX, Entry, SlowLog
from tests.unit.server.world import running


def test_only_what_reaches_the_threshold_is_kept() -> None:
    log = SlowLog(threshold_us=100, entries_max=10)
    for usec in (99, 100, 5_000):
        log.note(7, usec, [b"PING"])
    assert log.newest(-1) == [Entry(1, 7, 5_000, (b"PING",)), Entry(0, 7, 100, (b"PING",))]
    log.threshold_us = -1
    log.note(7, 10**9, [b"PING"])
    assert len(log) == 2


def test_the_oldest_go_and_ids_go_on() -> None:
    log = SlowLog(threshold_us=0, entries_max=3)
    for _ in range(5):
        log.note(0, 1, [b"PING"])
    assert [each.id for each in log.newest(-1)] == [4, 3, 2]
    assert [each.id for each in log.newest(2)] == [4, 3]
    log.set_entries_max(1)
    assert [each.id for each in log.newest(5)] == [4]
    log.set_entries_max(0)
    log.note(0, 1, [b"PING"])
    assert log.newest(-1) == []


def test_entries_are_no_objects_that_lie_among_what_was_made_meanwhile() -> None:
    log = SlowLog(threshold_us=0, entries_max=100)
    log.note(0, 0, [b"name-0"])
    before = sys.getallocatedblocks()
    for number in range(1, 100):
        log.note(number, number, [b"name-%d" % number])
    assert sys.getallocatedblocks() - before < 20
    assert len(log) == 100


def test_long_commands_are_cut_as_disque_cuts_them() -> None:
    log = SlowLog(threshold_us=0, entries_max=3)
    log.note(0, 1, [b"x" * 200, *[b"a"] * 40])
    (words,) = [each.words for each in log.newest(-1)]
    assert len(words) == 32
    assert words[0] == b"x" * ARGUMENT_BYTES_MAX + b"... (72 more bytes)"
    assert words[-1] == b"... (10 more arguments)"
    log.note(0, 1, [b"a"] * 32)
    assert log.newest(1)[0].words == (b"a",) * 32


async def test_the_command_shows_the_newest_first() -> None:
    async with running() as world:
        peer = world.connect()
        world.shell.slowlog = SlowLog(threshold_us=-1, entries_max=100)
        for number in range(12):
            world.shell.slowlog.threshold_us = 0
            world.shell.slowlog.note(number, number, [b"SHOW"])
            world.shell.slowlog.threshold_us = -1
        await peer.ask(b"SLOWLOG LEN\r\n", b":12\r\n")
        await peer.ask(
            b"SLOWLOG GET 1\r\n", b"*1\r\n*4\r\n:11\r\n:11\r\n:11\r\n*1\r\n$4\r\nSHOW\r\n"
        )
        await peer.ask(b"SLOWLOG GET 0\r\n", b"*0\r\n")
        await peer.send(b"SLOWLOG GET\r\n")
        assert await peer.read_line() == b"*10\r\n"
    async with running() as world:
        peer = world.connect()
        await peer.ask(b"SLOWLOG GET -1\r\n", b"*0\r\n")
        world.shell.slowlog.threshold_us = 0
        await peer.ask(b"PING\r\nSLOWLOG RESET\r\nSLOWLOG LEN\r\n", b"+PONG\r\n+OK\r\n:1\r\n")


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("SLOWLOG x", "ERR Unknown SLOWLOG subcommand or wrong # of args. Try GET, RESET, LEN."),
        (
            "SLOWLOG LEN x",
            "ERR Unknown SLOWLOG subcommand or wrong # of args. Try GET, RESET, LEN.",
        ),
        ("SLOWLOG GET x", "ERR value is not an integer or out of range"),
    ],
)
async def test_error(line: str, text: str) -> None:
    async with running() as world:
        await world.connect().ask(line.encode() + b"\r\n", f"-{text}\r\n".encode())


async def test_passwords_stay_out_of_it() -> None:
    async with running() as world:
        world.shell.slowlog.threshold_us = 0
        await world.connect().ask(b"CONFIG SET requirepass secret\r\n", b"+OK\r\n")
        (entry,) = world.shell.slowlog.newest(-1)
        assert entry.words == (b"CONFIG", b"SET", b"requirepass", b"(redacted)")
