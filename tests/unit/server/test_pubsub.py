"""Topics over RESP, to the byte, and what a slow subscriber costs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import attrs
import pytest
import trio
import trio.testing

from disque.server import loop
from disque.server.crowd import weight_of
from tests.unit.server.world import Peer, World, running

if TYPE_CHECKING:
    from disque.server.connection import Client

SUBSCRIBED = b"*3\r\n$9\r\nsubscribe\r\n$1\r\nx\r\n:1\r\n"
MESSAGE = b"*3\r\n$7\r\nmessage\r\n$1\r\nx\r\n$2\r\nhi\r\n"


async def test_a_subscriber_hears_what_is_published() -> None:
    async with running() as world:
        listener, publisher = world.connect(), world.connect()
        await publisher.ask(b"PUBLISH x none\r\n", b":0\r\n")
        await listener.ask(b"SUBSCRIBE x\r\n", SUBSCRIBED)
        await listener.ask(b"PSUBSCRIBE n* x\r\n", b"*3\r\n$10\r\npsubscribe\r\n$2\r\nn*\r\n:2\r\n"
                           b"*3\r\n$10\r\npsubscribe\r\n$1\r\nx\r\n:3\r\n")  # fmt: skip
        await publisher.ask(b"PUBLISH x hi\r\n", b":2\r\n")
        pmessage = b"*4\r\n$8\r\npmessage\r\n$1\r\nx\r\n$1\r\nx\r\n$2\r\nhi\r\n"
        await listener.expect(MESSAGE + pmessage)
        await publisher.ask(b"PUBLISH new hi\r\n", b":1\r\n")
        await listener.expect(b"*4\r\n$8\r\npmessage\r\n$2\r\nn*\r\n$3\r\nnew\r\n$2\r\nhi\r\n")
        await publisher.ask(
            b"PUBSUB NUMSUB x new\r\n", b"*4\r\n$1\r\nx\r\n:1\r\n$3\r\nnew\r\n:0\r\n"
        )
        await publisher.ask(b"PUBSUB NUMSUB\r\n", b"*0\r\n")


async def test_unsubscribing() -> None:
    async with running() as world:
        listener = world.connect()
        await listener.ask(b"UNSUBSCRIBE\r\n", b"*3\r\n$11\r\nunsubscribe\r\n$-1\r\n:0\r\n")
        await listener.ask(b"SUBSCRIBE x\r\n", SUBSCRIBED)
        await listener.ask(b"PUNSUBSCRIBE\r\n", b"*3\r\n$12\r\npunsubscribe\r\n$-1\r\n:1\r\n")
        await listener.ask(
            b"PUNSUBSCRIBE a?b\r\n", b"*3\r\n$12\r\npunsubscribe\r\n$3\r\na?b\r\n:1\r\n"
        )
        await listener.ask(b"UNSUBSCRIBE y\r\n", b"*3\r\n$11\r\nunsubscribe\r\n$1\r\ny\r\n:1\r\n")
        await listener.ask(b"UNSUBSCRIBE\r\n", b"*3\r\n$11\r\nunsubscribe\r\n$1\r\nx\r\n:0\r\n")
        await listener.ask(b"QLEN q\r\n", b":0\r\n")


async def test_in_resp2_a_subscriber_can_do_little_else() -> None:
    async with running() as world:
        listener = world.connect()
        await listener.ask(b"PING\r\n", b"+PONG\r\n")
        await listener.ask(b"SUBSCRIBE x\r\n", SUBSCRIBED)
        await listener.ask(
            b"qlen q\r\n", b"-ERR Can't execute 'qlen': this connection has subscriptions\r\n"
        )
        await listener.ask(b"PING\r\n", b"*2\r\n$4\r\npong\r\n$0\r\n\r\n")
        await listener.ask(b"PING hi\r\n", b"*2\r\n$4\r\npong\r\n$2\r\nhi\r\n")
        await listener.ask(b"QUIT\r\n", b"+OK\r\n")
        await listener.expect_end()


async def test_in_resp3_messages_are_pushes_and_anything_may_be_said() -> None:
    async with running() as world:
        listener, publisher = world.connect(), world.connect()
        await listener.send(b"HELLO 3\r\n")
        while await listener.read_line() != b"*0\r\n":  # its last: no modules
            pass
        await listener.ask(b"SUBSCRIBE x\r\n", b">" + SUBSCRIBED[1:])
        await listener.ask(b"QLEN q\r\n", b":0\r\n")
        await listener.ask(b"PING\r\n", b"+PONG\r\n")
        await listener.send(b"GETJOB FROM q\r\n")
        await publisher.ask(b"PUBLISH x hi\r\n", b":1\r\n")
        await listener.expect(b">" + MESSAGE[1:])
        await listener.ask(b"UNSUBSCRIBE y\r\n", b"")  # it waits for the GETJOB before it
        await publisher.ask(b"ADDJOB q b 0\r\n", b"+D-")
        await listener.expect(b"*1\r\n*3\r\n$1\r\nq\r\n$40\r\n")


@pytest.mark.parametrize("pattern", [b"a?", b"*a", b"a**", b"[a]", b"a\\*", b"]"])
async def test_a_pattern_is_a_prefix(pattern: bytes) -> None:
    async with running() as world:
        text = b"-ERR Patterns are a prefix followed by *: '%b'\r\n" % pattern
        listener = world.connect()
        command = b"*3\r\n$10\r\nPSUBSCRIBE\r\n$2\r\nok\r\n$%d\r\n%b\r\n" % (len(pattern), pattern)
        await listener.ask(command, text)
        await listener.ask(b"PUBLISH ok x\r\n", b":0\r\n")


async def test_who_has_gone_is_no_subscriber() -> None:
    async with running() as world:
        listener, publisher = world.connect(), world.connect()
        await listener.ask(b"SUBSCRIBE x\r\n", SUBSCRIBED)
        listener.stream.socket.close()
        with trio.fail_after(5):
            while world.broker.engine.state.topics.size:
                await trio.sleep(0.01)
        await publisher.ask(b"PUBLISH x hi\r\n", b":0\r\n")
        assert world.clients._hearers == {}


async def flood(world: World, publisher: Peer, count: int) -> None:
    for number in range(count):
        body = b"%06d" % number + b"x" * 994
        await publisher.ask(b"PUBLISH x " + body + b"\r\n", b":1\r\n")


async def test_a_slow_subscriber_loses_the_oldest_messages() -> None:
    async with running() as world:
        world.config.topic_buffer = 10_000
        listener, publisher = world.connect(), world.connect()
        await listener.ask(b"SUBSCRIBE x\r\n", SUBSCRIBED)
        with trio.fail_after(30):
            while not world.shell.figures.topic_messages_dropped:
                await flood(world, publisher, 100)
        (client,) = [c for c in world.clients.by_id.values() if c.subscriber is not None]
        assert client.heard_bytes <= 10_000
        assert client.heard[-1][1].startswith(b"000099xxx")
        assert world.shell.figures.topic_subscribers_dropped == 0
        await publisher.ask(b"PUBLISH x last\r\n", b":1\r\n")
        data = b""
        with trio.fail_after(30):
            while not data.endswith(b"$4\r\nlast\r\n"):
                data += await listener.stream.receive_some(1 << 16)
        # Whole messages, in order, with a gap
        assert data.count(b"$7\r\nmessage\r\n") == data.count(b"*3\r\n")


async def test_or_is_dropped_itself() -> None:
    async with running() as world:
        world.config.topic_buffer = 10_000
        world.config.topic_overflow = "disconnect"
        listener, publisher = world.connect(), world.connect()
        await listener.ask(b"SUBSCRIBE x\r\n", SUBSCRIBED)
        with trio.fail_after(30):
            while not world.shell.figures.topic_subscribers_dropped:
                await publisher.send(b"PUBLISH x " + b"x" * 1_000 + b"\r\n")
                await publisher.read_line()
            while world.broker.engine.state.topics.size:
                await trio.sleep(0.01)


async def test_a_burst_larger_than_the_buffer_reaches_who_reads() -> None:
    async with running() as world:
        world.config.topic_buffer = 2_000
        listener, publisher = world.connect(), world.connect()
        await listener.ask(b"SUBSCRIBE x\r\n", SUBSCRIBED)
        await publisher.send((b"PUBLISH x " + b"y" * 1_000 + b"\r\n") * 50)
        await publisher.expect(b":1\r\n" * 50)
        message = b"*3\r\n$7\r\nmessage\r\n$1\r\nx\r\n$1000\r\n" + b"y" * 1_000 + b"\r\n"
        await listener.expect(message * 50)
        assert world.shell.figures.topic_messages_dropped == 0


async def test_subscribers_share_a_large_message_and_keep_no_second_one() -> None:
    async with running() as world:
        world.config.topic_buffer = 10_000
        first, second, modern = (world.connect() for _ in range(3))
        await first.ask(b"SUBSCRIBE x\r\n", SUBSCRIBED)
        await second.ask(b"PSUBSCRIBE x*\r\n", b"*3\r\n$10\r\npsubscribe\r\n$2\r\nx*\r\n:1\r\n")
        await modern.send(b"HELLO 3\r\n")
        while await modern.read_line() != b"*0\r\n":
            pass
        await modern.ask(b"SUBSCRIBE x\r\n", b">" + SUBSCRIBED[1:])
        publisher = world.connect()
        size = 8 << 20
        for letter in (b"a", b"b"):
            await publisher.send(b"*3\r\n$7\r\nPUBLISH\r\n$1\r\nx\r\n$%d\r\n" % size)
            await publisher.send(letter * size + b"\r\n")
            assert await publisher.read_line() == b":3\r\n"
        slow = [c for c in world.clients.by_id.values() if c.subscriber is not None]
        assert [(c.heard_bytes, len(c.heard)) for c in slow] == [(0, 0)] * 3
        assert all(size // 2 < c.backlog_bytes < size + 100 for c in slow)
        assert len({id(view.obj) for c in slow for view in c.backlog if len(view) > 100}) == 1
        assert world.shell.figures.topic_messages_dropped == 3
        assert size < world.clients.buffered_bytes() < size + 1_000, "it is counted once, too"
        for peer, head in (
            (first, b"*3\r\n$7\r\nmessage\r\n"),
            (second, b"*4\r\n$8\r\npmessage\r\n$2\r\nx*\r\n"),
            (modern, b">3\r\n$7\r\nmessage\r\n"),
        ):
            await peer.expect(head + b"$1\r\nx\r\n$%d\r\n" % size + b"a" * size + b"\r\n")
        assert world.clients.buffered_bytes() == 0


async def slow_subscribers(world: World, channel: bytes, count: int) -> list[Peer]:
    """Connections that read nothing of what is said to them."""
    peers = [world.connect() for _ in range(count)]
    for peer in peers:
        await peer.send(b"SUBSCRIBE %b\r\n" % channel)
        await peer.read_line()
    return peers


async def publish(publisher: Peer, channel: bytes, body: bytes) -> None:
    """A message of any size."""
    head = b"*3\r\n$7\r\nPUBLISH\r\n$%d\r\n%b\r\n$%d\r\n" % (len(channel), channel, len(body))
    await publisher.send(head + body + b"\r\n")
    await publisher.read_line()


async def test_who_shares_messages_stays_when_all_hold_too_much() -> None:
    async with running() as world:
        await slow_subscribers(world, b"shared", 20)
        await slow_subscribers(world, b"own", 1)
        publisher, size = world.connect(), 1 << 19
        for channel in (b"shared", b"shared", b"own", b"own"):
            await publish(publisher, channel, b"x" * size)
        crowd = world.clients.crowd
        everybody = list(world.clients.by_id.values())

        def drop() -> int:
            weights = list(map(weight_of, everybody))
            return len(list(crowd.drop_largest(weights, world.clients.by_id)))

        def held() -> int:
            return crowd.held_bytes(map(weight_of, everybody))

        assert 3 * size < held() < 5 * size
        world.limits.memory_max = 5 * size
        assert drop() == 0
        assert not any(each.is_dead for each in everybody)
        world.limits.memory_max = 2 * size
        drop()
        assert held() <= 2 * size
        world.limits.memory_max = 1
        drop()
        assert held() == crowd.shelf.bytes == 0


@pytest.mark.parametrize("size", [10, 255, 256, 1_000, 70_000])
async def test_what_waits_for_subscribers_is_counted_until_it_is_sent_or_dropped(size: int) -> None:
    async with running() as world:
        world.config.topic_buffer = 100_000
        listeners = await slow_subscribers(world, b"x", 3)
        publisher, shelf = world.connect(), world.clients.crowd.shelf
        subscribers = [each for each in world.clients.by_id.values() if each.subscriber]
        for _ in range(600_000 // (size + 1_000)):
            await publish(publisher, b"x", b"y" * size)
        for each in subscribers:
            assert each.heard_shelved_bytes <= each.shelved_bytes <= each.held_bytes
        assert shelf.bytes <= max(each.shelved_bytes for each in subscribers) + 2 * size
        listeners[0].stream.socket.close()
        for each in listeners[1:]:
            with trio.move_on_after(0.1):
                while await each.stream.receive_some():
                    pass
        await trio.testing.wait_all_tasks_blocked()
        assert shelf.bytes == 0
        assert world.clients.buffered_bytes() == 0


@pytest.mark.patches
async def test_a_message_reaches_many_subscribers_in_several_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop, "LISTENERS_A_ROW", 5)
    async with running() as world:
        listeners = [world.connect() for _ in range(20)]
        for each in listeners:
            await each.ask(b"SUBSCRIBE x\r\n", SUBSCRIBED)
        publisher, other = world.connect(), world.connect()
        run = world.clients.run

        def slowly(client: Client) -> bool:
            if client.subscriber is not None:
                time.sleep(loop.RESUME_S)  # no second one in this turn
            return run(client)

        world.clients.run = slowly  # type: ignore[method-assign]
        before = world.turns.turns_taken
        await publisher.ask(b"PUBLISH x hi\r\n", b":20\r\n")
        await other.ask(b"PING\r\n", b"+PONG\r\n")
        assert sum(bool(client.heard) for client in world.clients.by_id.values()) > 5
        for each in listeners:
            await each.expect(MESSAGE)
        assert world.turns.turns_taken >= before + 20


async def test_very_many_are_told_in_several_turns_and_the_pipeline_of_a_publisher_waits() -> None:
    async with running() as world:
        limits = world.broker.settings.limits
        world.broker.set_limits(attrs.evolve(limits, told_a_turn=5))
        listeners = [world.connect() for _ in range(22)]
        for each in listeners:
            await each.ask(b"SUBSCRIBE x\r\n", SUBSCRIBED)
        publisher, other = world.connect(), world.connect()
        before = world.turns.turns_taken
        await publisher.send(b"PUBLISH x hi\r\nPUBLISH x hi\r\nPING\r\n")
        await other.ask(b"PUBLISH none hi\r\n", b":0\r\n")
        await publisher.expect(b":22\r\n:22\r\n+PONG\r\n")
        assert world.turns.turns_taken >= before + 10
        for each in listeners:
            await each.expect(MESSAGE * 2)
        await publisher.send(b"PUBLISH x hi\r\n")
        await publisher.stream.send_eof()
        await publisher.expect(b":22\r\n")
        await publisher.expect_end()
        for each in listeners:
            await each.expect(MESSAGE)


async def test_subscriptions_outlive_a_new_identity() -> None:
    async with running() as world:
        listener, publisher = world.connect(), world.connect()
        await listener.ask(b"SUBSCRIBE x\r\n", SUBSCRIBED)
        await publisher.ask(b"CLUSTER RESET HARD\r\n", b"+OK\r\n")
        await publisher.ask(b"PUBLISH x hi\r\n", b":1\r\n")
        await listener.expect(MESSAGE)


async def test_unknown_words_of_pubsub() -> None:
    async with running() as world:
        for line in (b"PUBSUB CHANNELS", b"PUBSUB NUMPAT"):
            await world.connect().ask(
                line + b"\r\n", b"-ERR Unknown PUBSUB subcommand or wrong number of arguments\r\n"
            )
