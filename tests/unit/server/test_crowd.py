"""Limits of connections: strangers, addresses, what all of them hold."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from disque.server import clients
from disque.server.clients import CRON_S
from disque.server.connection import Client
from disque.server.crowd import (
    CONNECTION_BYTES,
    STRANGER_ARGUMENTS_MAX,
    STRANGER_BULK_BYTES_MAX,
)
from disque.server.eventlog import EventLog
from disque.server.stomp import Stomp
from tests.unit.server.test_clients import copies_never_come
from tests.unit.server.test_stomp import Wire
from tests.unit.server.world import SOON_S, World, running

if TYPE_CHECKING:
    from pathlib import Path

NOAUTH = b"-NOAUTH Authentication required.\r\n"


def lock(world: World, **settings: int) -> None:
    world.config.requirepass = "secret"
    for name, value in settings.items():
        setattr(world.config, name, value)
    world.settings.apply("requirepass")


def bulk(*words: bytes) -> bytes:
    parts = [b"$%d\r\n%b\r\n" % (len(word), word) for word in words]
    return b"*%d\r\n%b" % (len(words), b"".join(parts))


def told(what: bytes, limit: bytes) -> bytes:
    return b"-ERR Protocol error: invalid %b length: %b\r\n" % (what, limit)


async def test_little_is_read_of_a_stranger_and_all_once_the_password_is_given() -> None:
    async with running() as world:
        lock(world)
        long, many = b"x" * (STRANGER_BULK_BYTES_MAX + 1), [b"q"] * STRANGER_ARGUMENTS_MAX
        peer = world.connect()
        await peer.ask(
            bulk(b"PING", long), told(b"bulk", b"16385 bytes, the limit before AUTH is 16384")
        )
        await peer.expect_end()
        peer = world.connect()
        await peer.ask(
            bulk(b"GETJOB", *many), told(b"multibulk", b"17 arguments, the limit before AUTH is 16")
        )
        await peer.expect_end()
        # In one piece: the limits end with the AUTH, not with what was read
        peer = world.connect()
        reply = b"+OK\r\n$%d\r\n%b\r\n*-1\r\n" % (len(long), long)
        get = bulk(b"GETJOB", b"NOHANG", b"FROM", *[b"q%d" % n for n in range(20)])
        await peer.ask(bulk(b"AUTH", b"secret") + bulk(b"PING", long) + get, reply)


async def test_the_oldest_stranger_makes_room() -> None:
    async with running() as world:
        lock(world, unauthenticated_max=2)
        known, old, newer = world.connect(), world.connect(), world.connect()
        await trio.testing.wait_all_tasks_blocked()
        # `known` was the oldest of three
        await known.expect_end()
        await newer.ask(b"AUTH secret\r\n", b"+OK\r\n")
        newest = world.connect()
        for peer in (old, newest):
            await peer.ask(b"PING\r\n", NOAUTH)
        assert world.clients._figures.strangers_dropped == 1


async def test_strangers_of_one_place_make_room_for_their_like() -> None:
    async with running() as world:
        world.config.protected_mode = False
        lock(world, unauthenticated_max=3)
        other = world.connect(("192.0.2.1", 1))
        flood = [world.connect(("192.0.2.2", port)) for port in range(1, 6)]
        for each in flood[:3]:
            await each.expect_end()
        for each in (other, *flood[3:]):
            await each.ask(b"PING\r\n", NOAUTH)


async def test_a_wrong_password_makes_a_stranger_again() -> None:
    async with running() as world:
        lock(world, unauthenticated_max=1)
        peer = world.connect()
        await peer.ask(b"AUTH secret\r\nAUTH wrong\r\n", b"+OK\r\n-ERR invalid password\r\n")
        await world.connect().ask(b"PING\r\n", NOAUTH)
        await peer.expect_end()


async def test_strangers_have_so_much_time() -> None:
    async with running() as world:
        lock(world, auth_timeout=5)
        slow, quick = world.connect(), world.connect()
        await quick.ask(b"AUTH secret\r\n", b"+OK\r\n")
        world.clients.crowd.drop_strangers(world.turns.clock.now_ms() + 5_001)
        await slow.expect_end()
        await quick.ask(b"PING\r\n", b"+PONG\r\n")


async def test_connections_of_one_address_end_at_the_limit() -> None:
    async with running() as world:
        world.config.clients_per_address_max = 2
        world.config.protected_mode = False
        world.settings.apply("clients-per-address-max")
        first, second = (world.connect(("192.0.2.1", port)) for port in (1, 2))
        refused = b"-ERR max number of clients of one address reached\r\n"
        await world.connect(("192.0.2.1", 3)).expect(refused)
        for other in (world.connect(("192.0.2.2", 1)), world.connect(), first):
            await other.ask(b"PING\r\n", b"+PONG\r\n")
        await second.ask(b"QUIT\r\n", b"+OK\r\n")
        await second.stream.aclose()
        while len(world.clients.by_id) > 3:
            await trio.sleep(0.01)
        await world.connect(("192.0.2.1", 4)).ask(b"PING\r\n", b"+PONG\r\n")
        assert world.clients._figures.clients_per_address_refused == 1


async def test_of_ipv6_a_network_of_one_owner_counts_as_an_address() -> None:
    async with running() as world:
        world.config.clients_per_address_max = 1
        world.config.protected_mode = False
        world.settings.apply("clients-per-address-max")
        first = world.connect(("2001:db8::1", 1, 0, 0))
        refused = b"-ERR max number of clients of one address reached\r\n"
        await world.connect(("2001:db8::2", 1, 0, 0)).expect(refused)
        other = world.connect(("2001:db8:0:1::1", 1, 0, 0))
        for each in (first, other):
            await each.ask(b"PING\r\n", b"+PONG\r\n")


async def test_tls_only_serves_plain_connections_of_this_machine_alone() -> None:
    async with running() as world:
        world.config.tls_only, world.config.protected_mode = True, False
        world.settings.apply("tls-only")
        await world.connect().ask(b"PING\r\n", b"+PONG\r\n")
        await world.connect(("127.0.0.1", 1)).ask(b"PING\r\n", b"+PONG\r\n")
        await world.connect(("192.0.2.1", 1)).expect(b"-DENIED tls-only is on: ")


@pytest.mark.parametrize("kind", ["resp", "stomp"])
@pytest.mark.parametrize(
    ("name", "value"), [(b"tls-only", b"yes"), (b"protected-mode", b"yes"), (b"requirepass", b"")]
)
async def test_who_would_be_let_in_no_more_goes_and_the_setter_is_answered(
    kind: str, name: bytes, value: bytes
) -> None:
    async with running() as world:
        is_locked = name == b"requirepass"
        world.config.protected_mode = is_locked
        lock(world) if is_locked else world.settings.apply("protected-mode")
        setter, other, local, near = (
            world.connect(where)
            for where in (("192.0.2.1", 1), ("192.0.2.2", 1), ("127.0.0.1", 1), "")
        )
        for each in (setter, other, local, near) if is_locked else ():
            await each.ask(b"AUTH secret\r\n", b"+OK\r\n")
        await other.send(b"GETJOB FROM q\r\n")
        wire = Wire(world, Stomp(world.shell), ("192.0.2.2", 2))
        if kind == "stomp":
            frame = await wire.ask(b"CONNECT\naccept-version:1.2\nhost:/\npasscode:secret\n\n\0")
            assert frame.startswith(b"CONNECTED")
        await trio.testing.wait_all_tasks_blocked()
        await setter.ask(bulk(b"CONFIG", b"SET", name, value), b"+OK\r\n")
        await setter.expect_end()
        await other.expect_end()
        await wire.peer.expect_end()
        for each in (local, near):
            await each.ask(b"PING\r\n", b"+PONG\r\n")


async def test_under_tls_who_is_elsewhere_stays_when_only_tls_is_let_in() -> None:
    async with running() as world:
        world.config.protected_mode = False
        world.settings.apply("protected-mode")
        peer = world.connect(("192.0.2.1", 1), is_secured=True)
        await peer.ask(b"CONFIG SET tls-only yes\r\nPING\r\n", b"+OK\r\n+PONG\r\n")


async def test_a_new_password_ends_nobody_who_was_let_in_by_the_one_before() -> None:
    async with running() as world:
        lock(world)
        known = world.connect()
        await known.ask(b"AUTH secret\r\n", b"+OK\r\n")
        await known.ask(b"CONFIG SET requirepass another\r\nPING\r\n", b"+OK\r\n+PONG\r\n")


@pytest.mark.parametrize("words", [b"", b"MONITOR\r\n", b"HELLO 3\r\nSUBSCRIBE t\r\n"])
@pytest.mark.parametrize("elsewhere", [0, 3])
async def test_who_sets_a_password_does_not_make_room_for_others(
    words: bytes, elsewhere: int
) -> None:
    async with running() as world:
        world.config.protected_mode, world.config.unauthenticated_max = False, 2
        world.settings.apply("protected-mode")
        setter = world.connect()
        await setter.send(words)
        others = [world.connect() for _ in range(4)]
        others += [world.connect(("192.0.2.1", port)) for port in range(1, 1 + elsewhere)]
        await trio.testing.wait_all_tasks_blocked()
        await setter.send(b"CONFIG SET requirepass secret\r\nAUTH secret\r\nQLEN q\r\n")
        said = b""
        while b":0\r\n" not in said:
            said += await setter.read_line()
        assert said.count(b"+OK\r\n") >= 2
        assert world.clients._figures.strangers_dropped == 4 + elsewhere - 1


async def test_each_connection_is_charged_as_long_as_it_is_there() -> None:
    async with running() as world:
        peers = [world.connect() for _ in range(3)]
        for each in peers:
            await each.ask(b"PING\r\n", b"+PONG\r\n")
        assert world.clients.used_bytes() == 3 * CONNECTION_BYTES
        assert world.clients.buffered_bytes() == 0
        for each in peers:
            each.stream.socket.close()
        with trio.fail_after(SOON_S):
            while world.clients.used_bytes():
                await trio.sleep(0.01)


async def test_who_holds_most_goes_when_all_hold_too_much() -> None:
    async with running() as world:
        world.config.clients_memory_max = 100_000
        world.settings.apply("clients-memory-max")
        large, small = world.connect(), world.connect()
        await large.send(b"*2\r\n$4\r\nPING\r\n$900000\r\n" + b"x" * 90_000)
        await small.send(b"*2\r\n$4\r\nPING\r\n$900000\r\n" + b"x" * 50_000)
        with trio.fail_after(5 * CRON_S):
            await large.expect_end()
        assert world.clients.buffered_bytes() < 100_000
        assert world.clients._figures.clients_dropped_memory == 1
        assert len(world.clients.by_id) == 1


@pytest.mark.patches
async def test_thousands_are_weighed_and_dropped_some_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clients, "INSPECTED_A_PASS", 5)
    monkeypatch.setattr(clients, "PARTINGS_A_PASS", 2)
    steps = [(0, 0)]  # who has been weighed so far, and dropped
    weigh, weighed = Client.held_bytes.fget, itertools.count(1)  # type: ignore[attr-defined]
    done = 0

    def held_bytes(client: Client) -> int:
        nonlocal done
        done = next(weighed)
        held: int = weigh(client)
        return held

    class Steps(trio.abc.Instrument):
        def after_task_step(self, task: trio.lowlevel.Task) -> None:
            steps.append((done, world.clients._figures.clients_dropped_memory))

    async with running() as world:
        world.config.clients_memory_max = 1
        peers = [world.connect() for _ in range(20)]
        for each in peers:
            await each.send(b"*2\r\n$4\r\nPING\r\n$900\r\n" + b"x" * 500)
        await trio.testing.wait_all_tasks_blocked()
        monkeypatch.setattr(Client, "held_bytes", property(held_bytes))
        trio.lowlevel.add_instrument(Steps())
        world.settings.apply("clients-memory-max")
        with trio.fail_after(5 * CRON_S):
            for each in peers:
                await each.expect_end()
    assert steps[-1][1] == 20
    grown = [(new[0] - old[0], new[1] - old[1]) for old, new in itertools.pairwise(steps)]
    assert max(weighed for weighed, _ in grown) == 5
    assert max(dropped for _, dropped in grown) == 2


async def test_limits_of_arguments_change_at_run_time() -> None:
    async with running() as world:
        peer, other = world.connect(), world.connect()
        long = b"x" * 1025
        await peer.ask(bulk(b"PING", long), b"$1025\r\n" + long + b"\r\n")
        await other.ask(
            b"CONFIG SET body-max 1024\r\nCONFIG SET arguments-max 16\r\n", b"+OK\r\n" * 2
        )
        await peer.ask(bulk(b"PING", long), told(b"bulk", b"1025 bytes, body-max is 1024"))
        words = [b"GETJOB", b"NOHANG", b"FROM", *[b"q%d" % number for number in range(13)]]
        await other.ask(bulk(*words), b"*-1\r\n")
        await other.ask(
            bulk(*words, b"q"), told(b"multibulk", b"17 arguments, arguments-max is 16")
        )


async def test_u39_what_is_over_a_limit_is_told_in_the_log_now_and_then(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with running() as world:
        events = world.clients._events = EventLog(path=str(log))
        for _ in range(2):
            peer = world.connect()
            await peer.ask(
                b"*2\r\n$4\r\nPING\r\n$536870913\r\n",
                told(b"bulk", b"536870913 bytes, body-max is 536870912"),
            )
            await peer.expect_end()
        events.close()
        assert world.shell.figures.requests_over_limit == 2
    (line,) = log.read_text().splitlines()
    assert "warning over-limit addr=" in line
    assert "536870913 bytes, body-max is 536870912" in line


async def test_commands_that_wait_for_copies_are_bounded_by_pipeline_max() -> None:
    async with running() as world:
        world.config.pipeline_max = 3
        world.settings.apply("pipeline-max")
        peer = world.connect()
        await peer.send(b"ADDJOB q x 0 REPLICATE 2\r\n" * 5)
        await trio.testing.wait_all_tasks_blocked()
        (client,) = world.clients.by_id.values()
        assert client.waits_max == 3
        assert client.waits <= 3


async def test_who_fills_its_pipeline_and_has_more_is_counted() -> None:
    async with running() as world:
        copies_never_come(world)
        world.config.pipeline_max = 3
        world.settings.apply("pipeline-max")
        figures, peer = world.shell.figures, world.connect()
        await peer.send(b"ADDJOB q x 0 REPLICATE 2\r\n" * 3)
        await trio.testing.wait_all_tasks_blocked()
        assert figures.pipelines_paused == 0
        await world.connect().send(b"ADDJOB q x 0 REPLICATE 2\r\n" * 5)
        await trio.testing.wait_all_tasks_blocked()
        assert figures.pipelines_paused == 1
        assert figures.reads_paused == 0


async def test_a_client_that_stays_over_the_soft_limit_is_dropped_and_counted() -> None:
    async with running() as world:
        world.limits.out_soft_bytes, world.limits.out_soft_s = 100, 3
        peer = world.connect()
        await peer.ask(b"PING\r\n", b"+PONG\r\n")
        (client,) = world.clients.by_id.values()
        client.backlog_bytes = 101
        for now_ms in (0, 3_000):
            world.clients._inspect(client, now_ms)
            assert not client.is_dead
        world.clients._inspect(client, 3_001)
        assert client.is_dead
        assert world.shell.figures.clients_dropped_output == 1
