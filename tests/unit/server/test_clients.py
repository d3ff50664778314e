"""Connections: order of replies, kept input, limits, ends."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from disque.server.clients import READ_BYTES
from disque.server.connection import KEPT_INPUT_MAX
from tests.unit.server.world import running

IDS = b"D-aaaaaaaa-aaaaaaaaaaaaaaaaaaaaaaaa-05a1"


async def test_pipelined_replies_keep_the_order_of_commands() -> None:
    async with running() as world:
        peer = world.connect()
        await peer.ask(
            b"QLEN q\r\nPING\r\nACKJOB %b\r\nnosuch\r\nPING x\r\nQLEN q\r\n" % IDS,
            b":0\r\n+PONG\r\n:0\r\n-ERR unknown command 'nosuch'\r\n$1\r\nx\r\n:0\r\n",
        )


async def test_commands_behind_a_waiting_one_run_after_its_reply() -> None:
    async with running() as world:
        waiting, other = world.connect(), world.connect()
        await waiting.ask(b"PING\r\nGETJOB FROM q\r\nQLEN q\r\nPING\r\n", b"+PONG\r\n")
        await trio.testing.wait_all_tasks_blocked()
        await other.send(b"ADDJOB q body 0\r\n")
        job = (await other.read_line())[1:-2]
        await waiting.expect(
            b"*1\r\n*3\r\n$1\r\nq\r\n$40\r\n%b\r\n$4\r\nbody\r\n:0\r\n+PONG\r\n" % job
        )


async def test_input_that_comes_while_a_command_waits_runs_after_its_reply() -> None:
    async with running() as world:
        waiting, other = world.connect(), world.connect()
        await waiting.send(b"GETJOB FROM q\r\n")
        await trio.testing.wait_all_tasks_blocked()
        await waiting.send(b"PING\r\n")
        await trio.testing.wait_all_tasks_blocked()
        await other.send(b"ADDJOB q body 0\r\n")
        lines = [await waiting.read_line() for _ in range(9)]
        assert lines[-2:] == [b"body\r\n", b"+PONG\r\n"]


async def test_input_behind_a_waiting_command_is_bounded_and_nothing_is_lost() -> None:
    word = b"x" * 1_000
    count = 3 * KEPT_INPUT_MAX // len(word)
    async with running() as world, trio.open_nursery() as nursery:
        waiting, other = world.connect(), world.connect()
        await waiting.send(b"GETJOB FROM q\r\n")
        nursery.start_soon(waiting.send, b"PING %b\r\n" % word * count)
        await trio.testing.wait_all_tasks_blocked()
        client = next(iter(world.clients.by_id.values()))
        assert KEPT_INPUT_MAX < client.decoder.pending_bytes <= KEPT_INPUT_MAX + READ_BYTES
        await other.send(b"ADDJOB q body 0\r\n")
        await waiting.read_line()
        for _ in range(7):
            await waiting.read_line()
        await waiting.expect(b"$1000\r\n%b\r\n" % word * count)


async def test_protocol_error_is_told_after_the_replies_before_it_then_the_end_comes() -> None:
    async with running() as world:
        peer = world.connect()
        await peer.ask(
            b"PING\r\n*1\r\n!4\r\n",
            b"+PONG\r\n-ERR Protocol error: expected '$', got '!'\r\n",
        )
        await peer.expect_end()


async def test_quit_is_answered_and_what_follows_is_dropped() -> None:
    async with running() as world:
        peer = world.connect()
        await peer.ask(b"QLEN q\r\nQUIT now\r\nPING\r\n", b":0\r\n+OK\r\n")
        await peer.expect_end()


async def test_commands_before_half_a_close_are_answered() -> None:
    async with running() as world:
        peer = world.connect()
        await peer.send(b"PING\r\nQLEN q\r\n")
        await peer.stream.send_eof()
        await peer.expect(b"+PONG\r\n:0\r\n")
        await peer.expect_end()


async def test_client_that_goes_while_it_waits_leaves_nothing() -> None:
    async with running() as world:
        peer = world.connect()
        await peer.send(b"GETJOB FROM q r\r\n")
        await trio.testing.wait_all_tasks_blocked()
        assert world.broker.engine.statistics().blocked_clients == 1
        await peer.stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert world.broker.engine.statistics().blocked_clients == 0
        assert world.clients.by_id == {}


async def test_client_limit_is_told() -> None:
    async with running() as world:
        world.limits.clients_max = 1
        first, second = world.connect(), world.connect()
        await second.expect(b"-ERR max number of clients reached\r\n")
        await second.expect_end()
        await first.ask(b"PING\r\n", b"+PONG\r\n")


async def test_protected_mode_judges_the_address_of_the_socket() -> None:
    async with running() as world:
        stranger = world.connect(("192.0.2.1", 1234))
        assert (await stranger.read_line()).startswith(b"-DENIED ")
        await stranger.expect_end()
        mapped = world.connect(("::ffff:192.0.2.1", 1234, 0, 0))
        assert (await mapped.read_line()).startswith(b"-DENIED ")


async def test_large_reply_reaches_a_slow_reader_whole() -> None:
    body = bytes(range(256)) * 20_000
    async with running() as world:
        peer = world.connect()
        head = b"*4\r\n$6\r\nADDJOB\r\n$1\r\nq\r\n$%d\r\n" % len(body)
        await peer.send(head + body + b"\r\n$1\r\n0\r\n")
        await peer.read_line()
        await peer.send(b"GETJOB FROM q\r\nPING\r\n")
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(6):
            await peer.read_line()
        await peer.expect(b"$%d\r\n" % len(body))
        assert await peer.read(len(body)) == body
        await peer.expect(b"\r\n+PONG\r\n")


async def test_client_over_its_output_limit_is_dropped() -> None:
    async with running() as world:
        world.limits.out_hard_bytes = 1 << 20
        peer = world.connect()
        body = b"x" * (1 << 16)
        with pytest.raises(trio.BrokenResourceError):
            await peer.send(b"*2\r\n$4\r\nPING\r\n$%d\r\n%b\r\n" % (len(body), body) * 1_000)
        await trio.testing.wait_all_tasks_blocked()
        assert world.clients.by_id == {}


async def test_many_pipelined_commands_let_others_have_their_turn() -> None:
    count = 5_000
    async with running() as world, trio.open_nursery() as nursery:
        busy, other = world.connect(), world.connect()
        nursery.start_soon(busy.send, b"PING\r\n" * count)
        await other.ask(b"PING x\r\n", b"$1\r\nx\r\n")
        await busy.expect(b"+PONG\r\n" * count)
