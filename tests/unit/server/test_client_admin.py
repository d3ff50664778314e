"""CLIENT: forms, what they do to connections, and what they answer."""

from __future__ import annotations

import re

import pytest
import trio
import trio.testing

from disque.server import client_admin
from tests.unit.server.world import World, running

USAGE = "Syntax error, try CLIENT (LIST | KILL ip:port | GETNAME | SETNAME connection-name)"


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("CLIENT KILL nosuch:1", "ERR No such client"),
        ("CLIENT KILL ID", "ERR No such client"),
        ("CLIENT KILL ID x", "ERR syntax error"),
        ("CLIENT KILL ID 1 TYPE", "ERR syntax error"),
        ("CLIENT KILL TYPE slave", "ERR Unknown client type 'slave'"),
        ("CLIENT KILL SKIPME perhaps", "ERR syntax error"),
        ("CLIENT KILL COLOUR red", "ERR syntax error"),
        ("CLIENT REPLY perhaps", "ERR syntax error"),
        ("CLIENT PAUSE x", "ERR timeout is not an integer or out of range"),
        ("CLIENT PAUSE -1", "ERR timeout is negative"),
        ("CLIENT PAUSE", f"ERR {USAGE}"),
        ("CLIENT REPLY", f"ERR {USAGE}"),
        ("CLIENT KILL", f"ERR {USAGE}"),
    ],
)
async def test_error(line: str, text: str) -> None:
    async with running() as world:
        await world.connect().ask(line.encode() + b"\r\n", f"-{text}\r\n".encode())


def named(world: World, addresses: list[str]) -> None:
    for client, address in zip(world.clients.by_id.values(), addresses, strict=True):
        client.address = address


async def test_kill_by_address_ends_the_connection() -> None:
    async with running() as world:
        first, second = world.connect(), world.connect()
        named(world, ["[::1]:1", "127.0.0.1:2"])
        await first.ask(b"CLIENT KILL 127.0.0.1:2\r\n", b"+OK\r\n")
        await second.expect_end()
        await first.ask(b"CLIENT KILL [::1]:1\r\nPING\r\n", b"+OK\r\n")  # itself: answered first
        await first.expect_end()


async def test_kill_by_filters_counts_and_spares_the_one_who_asks() -> None:
    async with running() as world:
        peers = [world.connect() for _ in range(4)]
        named(world, ["a:1", "b:1", "b:2", "c:1"])
        await peers[0].ask(b"CLIENT KILL ID 2 ADDR b:2\r\n", b":0\r\n")
        await peers[0].ask(b"client kill id 2 addr b:1 type normal\r\n", b":1\r\n")
        await peers[1].expect_end()
        await trio.testing.wait_all_tasks_blocked()
        await peers[0].ask(b"CLIENT KILL TYPE normal\r\n", b":2\r\n")
        await peers[2].expect_end()
        await trio.testing.wait_all_tasks_blocked()
        await peers[0].ask(b"CLIENT KILL ID 1 SKIPME no\r\n", b":1\r\n")
        await peers[0].expect_end()


async def test_killed_client_that_waited_leaves_nothing() -> None:
    async with running() as world:
        waiting, other = world.connect(), world.connect()
        await waiting.send(b"GETJOB FROM q\r\n")
        await trio.testing.wait_all_tasks_blocked()
        await other.ask(b"CLIENT KILL ID 1 SKIPME yes\r\n", b":1\r\n")
        await waiting.expect_end()
        await trio.testing.wait_all_tasks_blocked()
        assert world.broker.engine.statistics().blocked_clients == 0


async def test_reply_off_skip_and_on() -> None:
    async with running() as world:
        peer = world.connect()
        await peer.ask(b"CLIENT REPLY SKIP\r\nPING 1\r\nPING 2\r\n", b"$1\r\n2\r\n")
        await peer.ask(
            b"CLIENT REPLY OFF\r\nPING\r\nnosuch\r\nQLEN q\r\nCLIENT REPLY ON\r\n", b"+OK\r\n"
        )
        await peer.ask(b"PING\r\n", b"+PONG\r\n")
        await peer.ask(b"CLIENT REPLY OFF\r\nCLIENT REPLY SKIP\r\nCLIENT REPLY ON\r\n", b"+OK\r\n")


async def test_pause_holds_everybodys_commands_till_it_ends() -> None:
    async with running() as world:
        first, second = world.connect(), world.connect()
        await first.ask(b"CLIENT PAUSE 60\r\nCLIENT PAUSE 1\r\n", b"+OK\r\n")
        started = trio.current_time()
        await second.ask(b"PING\r\n", b"+PONG\r\n")
        assert trio.current_time() - started >= 0.04
        await first.expect(b"+OK\r\n")  # of the second PAUSE, which shortened nothing
        await first.ask(b"PING\r\n", b"+PONG\r\n")


async def test_flags_of_the_list() -> None:
    async with running() as world:
        waiting, watching, asking = world.connect(), world.connect(), world.connect()
        named(world, ["a:1", "unix:/s", "c:1"])
        await waiting.send(b"GETJOB FROM q\r\n")
        await watching.ask(b"MONITOR\r\n", b"+OK\r\n")
        await trio.testing.wait_all_tasks_blocked()
        await asking.send(b"CLIENT LIST\r\n")
        text = await asking.read(int((await asking.read_line())[1:]))
        assert re.findall(rb"addr=(\S+) .*flags=(\w+) ", text) == [
            (b"a:1", b"b"),
            (b"unix:/s", b"OU"),
            (b"c:1", b"N"),
        ]
        assert re.findall(rb"cmd=(\w+)\n", text) == [b"getjob", b"monitor", b"client"]


async def test_many_are_listed_and_ended_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_admin, "PIECE", 2)
    async with running() as world:
        asking, *others = [world.connect() for _ in range(6)]
        await asking.send(b"CLIENT LIST\r\n")
        text = await asking.read(int((await asking.read_line())[1:]) + 2)
        assert re.findall(rb"id=(\d+) ", text) == [b"%d" % number for number in range(1, 7)]
        await asking.send(b"CLIENT KILL TYPE normal SKIPME no\r\nPING\r\n")
        open_counts = set()
        while world.clients.by_id:
            await trio.lowlevel.checkpoint()
            open_counts.add(sum(not each.is_closing for each in world.clients.by_id.values()))
        assert open_counts & {4, 2}
        await asking.expect(b":6\r\n")
        await asking.expect_end()
        for other in others:
            await other.expect_end()
