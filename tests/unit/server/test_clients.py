"""Connections: order of replies, kept input, limits, ends."""

from __future__ import annotations

import itertools
import os
import socket
import time
from contextlib import ExitStack

import attrs
import pytest
import trio
import trio.testing

from cluster.nodeid import NodeId
from disque.core import messages as msg
from disque.server.clients import ACCEPTS_A_TURN, READ_BYTES, RUN_NS
from disque.server.connection import (
    ANSWERED_MAX_BYTES,
    KEPT_INPUT_MAX,
    OPEN_ADDS_MAX,
    OUT_PAUSE_BYTES,
)
from disque.server.dialect import Door
from tests.unit.server.world import SOON_S, World, running

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


async def test_who_has_used_up_his_time_and_said_no_more_is_not_run_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running() as world:
        world.connect()
        await trio.testing.wait_all_tasks_blocked()
        (client,) = world.clients.by_id.values()
        monkeypatch.setattr(time, "perf_counter_ns", itertools.count(step=RUN_NS).__next__)
        client.decoder.feed(b"PING\r\n" * 2)
        assert world.clients.run(client)
        assert not world.clients.run(client)


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


async def test_before_half_a_close_more_may_be_asked_for_than_is_answered_in_one_run() -> None:
    body = b"x" * ANSWERED_MAX_BYTES
    async with running() as world:
        asking, other = world.connect(), world.connect()
        words = b"*4\r\n$6\r\nADDJOB\r\n$1\r\nq\r\n$%d\r\n%b\r\n$1\r\n0\r\n"
        await other.send(words % (len(body), body))
        job = (await other.read_line())[1:-2]
        await asking.send(b"SHOW %b\r\n" % job * 10)
        await asking.stream.send_eof()
        await other.ask(b"PING\r\n", b"+PONG\r\n")
        assert (await asking.read(20 * len(body))).count(body) == 10


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
        world.limits.out_hard_bytes = OUT_PAUSE_BYTES
        peer = world.connect()
        body = b"x" * (1 << 16)
        with pytest.raises(trio.BrokenResourceError):
            await peer.send(b"*2\r\n$4\r\nPING\r\n$%d\r\n%b\r\n" % (len(body), body) * 1_000)
        await trio.testing.wait_all_tasks_blocked()
        assert world.clients.by_id == {}


async def test_who_reads_nothing_costs_little_and_gets_all_once_it_reads() -> None:
    body = b"x" * 100_000
    async with running() as world:
        asking, other = world.connect(("127.0.0.1", 1234)), world.connect()
        words = b"*4\r\n$6\r\nADDJOB\r\n$1\r\nq\r\n$%d\r\n%b\r\n$1\r\n0\r\n"
        await other.send(words % (len(body), body))
        job = (await other.read_line())[1:-2]
        await asking.send(b"SHOW %b\r\n" % job * 100 + b"QUIT\r\n")
        await trio.testing.wait_all_tasks_blocked()
        client = next(iter(world.clients.by_id.values()))
        assert OUT_PAUSE_BYTES < client.held_bytes < OUT_PAUSE_BYTES + 2 * len(body)
        # The kernel would take some 4 MiB
        assert client.sent_bytes < 1 << 20
        assert (await asking.read(200 * len(body))).count(body) == 100


async def test_newcomers_are_let_in_few_at_a_time_while_others_are_answered() -> None:
    async with running() as world:
        peer = world.connect()
        with socket.create_server(("127.0.0.1", 0), backlog=100) as listener, ExitStack() as crowd:
            listener.setblocking(False)
            for _ in range(20 * ACCEPTS_A_TURN):
                sock = crowd.enter_context(socket.create_connection(listener.getsockname()))
                sock.sendall(b"PING\r\n" * 1_000)
            world.nursery.start_soon(world.clients._accept, Door(listener))
            await peer.ask(b"PING\r\n", b"+PONG\r\n")
            assert len(world.clients.by_id) <= 10 * ACCEPTS_A_TURN
            await trio.testing.wait_all_tasks_blocked()
            assert len(world.clients.by_id) == 1 + 20 * ACCEPTS_A_TURN


async def test_many_pipelined_commands_let_others_have_their_turn() -> None:
    count = 5_000
    async with running() as world, trio.open_nursery() as nursery:
        busy, other = world.connect(), world.connect()
        nursery.start_soon(busy.send, b"PING\r\n" * count)
        await other.ask(b"PING x\r\n", b"$1\r\nx\r\n")
        await busy.expect(b"+PONG\r\n" * count)


def copies_never_come(world: World) -> None:
    """Let every ADDJOB wait: the view has a second node that can be reached, and nobody is there."""
    engine = world.broker.engine
    peer = NodeId("b" * 40)
    (own,) = engine.state.view.members.values()
    other = attrs.evolve(own, id=peer, boot=1, is_reachable=True)
    engine.view_changed(attrs.evolve(engine.state.view, members={own.id: own, peer: other}))


def copy_stored(world: World, number: int, *, wakes: bool = True) -> None:
    """The peer says that it has stored the copy of the waiting ADDJOB of this number."""
    engine = world.broker.engine
    world.turns.open()
    job = list(engine.state.adding)[number]
    engine.receive(NodeId("b" * 40), 1, msg.GotJob(job, boot=1, clock=1))
    if wakes:
        world.turns.wake()


async def test_a_command_of_very_many_words_is_read_in_pieces_and_answered() -> None:
    async with running() as world:
        peer = world.connect()
        words = b"*20001\r\n$6\r\nACKJOB\r\n" + 20_000 * b"$0\r\n\r\n"
        await peer.ask(words + b"PING\r\n", b"-BADID Invalid Job ID format.\r\n+PONG\r\n")
        await peer.send(words)
        await peer.stream.send_eof()
        await peer.expect(b"-BADID Invalid Job ID format.\r\n")
        await peer.expect_end()


async def test_addjobs_of_one_pipeline_wait_together_and_are_answered_in_order() -> None:
    async with running() as world:
        copies_never_come(world)
        peer = world.connect()
        await peer.send(
            b"ADDJOB q a 0\r\nADDJOB q b 0\r\naddjob q c 0\r\nQLEN q\r\nADDJOB q d 0\r\n"
        )
        await trio.testing.wait_all_tasks_blocked()
        ids = list(world.broker.engine.state.adding)
        assert len(ids) == 3  # QLEN waits for them, and so does what is behind it
        copy_stored(world, 2)
        copy_stored(world, 1)
        await trio.testing.wait_all_tasks_blocked()
        copy_stored(world, 0)
        assert [await peer.read_line() for _ in ids] == [b"+%b\r\n" % each for each in ids]
        await peer.expect(b":3\r\n")
        await trio.testing.wait_all_tasks_blocked()
        assert len(world.broker.engine.state.adding) == 1


async def test_waiting_addjobs_of_one_connection_are_bounded() -> None:
    async with running() as world, trio.open_nursery() as nursery:
        copies_never_come(world)
        peer = world.connect()
        nursery.start_soon(peer.send, b"ADDJOB q a 0\r\n" * (OPEN_ADDS_MAX + 5))
        await trio.testing.wait_all_tasks_blocked()
        assert len(world.broker.engine.state.adding) == OPEN_ADDS_MAX
        copy_stored(world, 0)
        await peer.read_line()
        await trio.testing.wait_all_tasks_blocked()
        assert len(world.broker.engine.state.adding) == OPEN_ADDS_MAX


async def test_client_that_ends_its_side_still_gets_its_addjobs_answered() -> None:
    async with running() as world:
        copies_never_come(world)
        peer = world.connect()
        await peer.send(b"ADDJOB q a 0\r\nQLEN q\r\n")
        await peer.stream.send_eof()
        await trio.testing.wait_all_tasks_blocked()
        assert len(world.broker.engine.state.adding) == 1
        copy_stored(world, 0)
        assert (await peer.read_line()).startswith(b"+D-")
        await peer.expect(b":1\r\n")
        await peer.expect_end()


async def test_reply_that_comes_in_the_very_moment_of_the_end_is_acted_on() -> None:
    async with running() as world:
        copies_never_come(world)
        peer = world.connect()
        await peer.send(b"ADDJOB q a 0\r\nQLEN q\r\n")
        await trio.testing.wait_all_tasks_blocked()
        copy_stored(world, 0, wakes=False)  # taken note of when the end of the stream is handled
        await peer.stream.send_eof()
        assert (await peer.read_line()).startswith(b"+D-")
        await peer.expect(b":1\r\n")
        await peer.expect_end()


@pytest.mark.parametrize("is_asked_long_before", [True, False])
async def test_client_that_ends_its_side_gets_an_answer_that_needs_others(
    *, is_asked_long_before: bool
) -> None:
    async with running() as world:
        copies_never_come(world)
        peer = world.connect()
        await peer.send(b"GLOBALQLEN q TIMEOUT 0\r\nPING\r\n")
        if is_asked_long_before:
            await trio.testing.wait_all_tasks_blocked()
        await peer.stream.send_eof()
        await trio.testing.wait_all_tasks_blocked()
        (inquiry,) = world.broker.engine.state.inquiries
        world.turns.open()
        world.broker.engine.receive(NodeId("b" * 40), 1, msg.Answer(inquiry, (2,)))
        world.turns.wake()
        await peer.expect(b":2\r\n+PONG\r\n")
        await peer.expect_end()


async def test_answer_of_others_that_comes_in_the_very_moment_of_the_end_is_acted_on() -> None:
    async with running() as world:
        copies_never_come(world)
        peer = world.connect()
        await peer.send(b"GLOBALQLEN q TIMEOUT 0\r\nPING\r\n")
        await trio.testing.wait_all_tasks_blocked()
        (inquiry,) = world.broker.engine.state.inquiries
        world.turns.open()  # taken note of when the end of the stream is handled
        world.broker.engine.receive(NodeId("b" * 40), 1, msg.Answer(inquiry, (2,)))
        await peer.stream.send_eof()
        await peer.expect(b":2\r\n+PONG\r\n")
        await peer.expect_end()


async def test_end_of_the_stream_ends_a_getjob_even_behind_an_addjob() -> None:
    async with running() as world:
        copies_never_come(world)
        peer = world.connect()
        await peer.send(b"ADDJOB q a 0\r\nGETJOB FROM other\r\n")
        await peer.stream.send_eof()
        await trio.testing.wait_all_tasks_blocked()
        copy_stored(world, 0)
        await peer.read_line()
        await peer.expect_end()
        assert world.broker.engine.statistics().blocked_clients == 0


async def test_client_that_dies_takes_all_its_waiting_addjobs_back() -> None:
    async with running() as world:
        copies_never_come(world)
        peer, other = world.connect(), world.connect()
        await peer.send(b"ADDJOB q a 0\r\nADDJOB q b 0\r\n")
        await trio.testing.wait_all_tasks_blocked()
        await other.ask(b"CLIENT KILL ID 1\r\n", b":1\r\n")
        await trio.testing.wait_all_tasks_blocked()
        assert world.broker.engine.statistics().blocked_clients == 0
        assert world.broker.engine.statistics().waiting_jobs == 0


async def test_farewell_answers_what_was_sent_before() -> None:
    async with running() as world:
        copies_never_come(world)
        waiting, late, worker = world.connect(), world.connect(), world.connect()
        await worker.send(b"GETJOB FROM other\r\n")
        await waiting.send(b"ADDJOB q a 0\r\n")
        await trio.testing.wait_all_tasks_blocked()
        os.write(late.stream.socket.fileno(), b"ADDJOB q b 0 REPLICATE 1\r\n")  # not read yet
        world.nursery.start_soon(world.clients.farewell, SOON_S)
        await trio.testing.wait_all_tasks_blocked()
        copy_stored(world, 0)
        for peer in (waiting, late):
            assert (await peer.read_line()).startswith(b"+D-")
            await peer.expect_end()
        await worker.expect_end()


async def test_farewell_ends_though_an_addjob_waits_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("disque.server.clients.FAREWELL_ANSWERS_S", 0.01)
    async with running() as world:
        copies_never_come(world)
        peer = world.connect()
        await peer.send(b"ADDJOB q a 0\r\n")
        await trio.testing.wait_all_tasks_blocked()
        await world.clients.farewell(SOON_S)
        await peer.expect_end()


async def test_after_the_farewell_nobody_more_is_served_however_they_come() -> None:
    async with running() as world:
        early = world.connect()
        await early.ask(b"QLEN q\r\n", b":0\r\n")
        await world.clients.farewell(SOON_S)
        late = world.connect()  # as one whose handshake was under way, or of the page
        await late.expect_end()
        await early.expect_end()
        assert not world.clients.by_id


@pytest.mark.patches
async def test_who_comes_and_goes_leaves_no_time_limit_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # trio keeps one till its time has come, however soon it was needed no more
    limits_s: list[float] = []
    move_on_after = trio.move_on_after

    def note(seconds: float) -> trio.CancelScope:
        limits_s.append(seconds)
        return move_on_after(seconds)

    monkeypatch.setattr(trio, "move_on_after", note)
    async with running() as world:
        peer = world.connect()
        await peer.stream.send_all(b"PING\r\n")
        assert await peer.stream.receive_some() == b"+PONG\r\n"
        await peer.stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert (len(world.clients.by_id), limits_s) == (0, [])
