"""Turns: stored before sent, one reply path at a time, timers kept, bugs never hidden."""

from __future__ import annotations

import errno
import itertools
import os
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from cluster.bus import BusFigures
from cluster.ready import ConnId
from disque.core.ready import ClientId
from disque.server.loop import FIRE_MS, NullLog
from disque.server.table import COMMANDS
from tests.unit.server.world import running

if TYPE_CHECKING:
    from collections.abc import Sequence

    from disque.core.commands import Command
    from disque.core.ready import Record

ADD = b"ADDJOB q body 0\r\n"


class SlowLog:
    """A log whose disk the test holds."""

    stores = True
    is_unsafe = False

    def __init__(self) -> None:
        self.written: list[Record] = []
        self.stored: list[Record] = []
        self.held = trio.Semaphore(0)

    def write(self, records: Sequence[Record]) -> bool:
        """Take them."""
        self.written += records
        return True

    async def wait_safe(self) -> None:
        """Store once the test says so."""
        await self.held.acquire()
        self.stored += self.written
        self.written = []


class FullLog:
    """A log whose disk is full, or whose fsync fails, while the test says so."""

    stores = True
    is_unsafe = False

    def __init__(self) -> None:
        self.stored: list[str] = []  # kinds of records
        self.write_errno = 0
        self.sync_errno = 0
        self.gate = trio.Event()
        self.gate.set()

    def write(self, records: Sequence[Record]) -> bool:
        """Take them, or nothing of them."""
        if self.write_errno:
            raise OSError(self.write_errno, os.strerror(self.write_errno))
        self.stored += [record.kind for record in records]
        return True

    async def wait_safe(self) -> None:
        """Fail, or not."""
        await self.gate.wait()
        if self.sync_errno:
            raise OSError(self.sync_errno, os.strerror(self.sync_errno))


async def test_no_reply_leaves_before_its_records_are_stored() -> None:
    log = SlowLog()
    async with running(log) as world:
        peer = world.connect()
        await peer.send(ADD)
        with trio.move_on_after(0.05):
            await peer.read(1)
            pytest.fail("the reply came before the record was stored")
        assert log.stored == []
        log.held.release()
        assert (await peer.read_line()).startswith(b"+D-")
        assert log.stored


async def test_replies_of_later_inputs_wait_for_the_turn_under_way_and_share_the_next() -> None:
    log = SlowLog()
    async with running(log) as world:
        first, second, third = world.connect(), world.connect(), world.connect()
        await first.send(ADD)
        await trio.testing.wait_all_tasks_blocked()
        await first.send(b"PING\r\n")
        await second.send(ADD)
        await third.send(ADD)
        await trio.testing.wait_all_tasks_blocked()
        turns = world.turns.turns_taken
        log.held.release()
        assert (await first.read_line()).startswith(b"+D-")
        log.held.release()
        await first.expect(b"+PONG\r\n")
        assert (await second.read_line()).startswith(b"+D-")
        assert (await third.read_line()).startswith(b"+D-")
        assert world.turns.turns_taken == turns + 1


async def test_input_with_nothing_but_replies_takes_no_turn() -> None:
    async with running() as world:
        peer = world.connect()
        await peer.ask(b"QLEN q\r\n", b":0\r\n")  # the first effects: the node table is saved
        await trio.testing.wait_all_tasks_blocked()
        before = world.turns.turns_taken
        await peer.ask(b"QLEN q\r\n", b":0\r\n")
        await peer.send(ADD)
        assert (await peer.read_line()).startswith(b"+D-")
        await trio.testing.wait_all_tasks_blocked()
        assert world.turns.turns_taken == before


class SentFrames:
    """A bus that remembers what it was to send."""

    figures = BusFigures()
    held_bytes = 0

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def apply(
        self, _dials: object, frames: Sequence[tuple[ConnId, bytes]], _closes: object
    ) -> None:
        """Send them."""
        self.sent += [body for _, body in frames]


async def test_frames_of_a_row_of_reads_leave_at_its_end_without_a_turn() -> None:
    log = NullLog()
    async with running(log) as world:
        peer, bus = world.connect(), SentFrames()
        await peer.ask(b"QLEN q\r\n", b":0\r\n")
        await trio.testing.wait_all_tasks_blocked()
        world.turns.bus, before = bus, world.turns.turns_taken
        to_send = world.broker.membership._state.ready.frames
        to_send += [(ConnId(1), b"one"), (ConnId(1), b"two")]
        world.turns.open()
        world.turns.finish()
        assert bus.sent == [b"one", b"two"]
        assert world.turns.turns_taken == before


async def test_frames_wait_for_a_turn_while_the_log_is_unsafe() -> None:
    log = NullLog()
    async with running(log) as world:
        await trio.testing.wait_all_tasks_blocked()
        bus = world.turns.bus = SentFrames()
        log.is_unsafe = True
        world.broker.membership._state.ready.frames.append((ConnId(1), b"one"))
        world.turns.open()
        world.turns.finish()
        assert bus.sent == []
        await trio.testing.wait_all_tasks_blocked()
        assert bus.sent == [b"one"]


async def test_timer_set_without_a_turn_is_kept() -> None:
    async with running() as world:
        peer = world.connect()
        await peer.ask(b"GETJOB TIMEOUT 30 FROM q\r\n", b"*-1\r\n")


async def test_timers_fire_in_turns_and_seldom_for_inputs_that_take_none() -> None:
    async with running() as world:
        fired: list[int] = []
        turns, advance = world.turns, world.broker.advance

        def count(now_ms: int) -> None:
            fired.append(now_ms)
            advance(now_ms)

        world.broker.advance = count  # type: ignore[method-assign]
        began_ms = turns.clock.now_ms()
        for _ in range(500):
            turns.open()
            turns.finish()
        assert len(fired) <= 1 + (turns.clock.now_ms() - began_ms) // FIRE_MS
        before = len(fired)
        turns.wake()
        await trio.testing.wait_all_tasks_blocked()
        assert len(fired) > before, "a turn fires them all the same"


async def test_administrative_reply_waits_until_the_node_table_is_stored() -> None:
    async with running() as world:
        peer = world.connect()
        saved = len(world.saved)
        await peer.ask(b"CLUSTER LEAVING yes\r\n", b"+OK\r\n")
        assert len(world.saved) == saved + 1
        assert "leaving" in world.saved[-1]


@pytest.mark.patches
async def test_exception_of_the_broker_ends_the_server() -> None:
    def explode(client: ClientId, command: Command) -> bool:
        raise ZeroDivisionError(client, command)

    with pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True):
        async with running() as world:
            world.broker.command = explode  # type: ignore[method-assign]
            peer = world.connect()
            await peer.send(b"QLEN q\r\n")
            await trio.sleep(5)


MISCONF = b"-MISCONF Errors writing to the AOF file: No space left on device\r\n"


async def test_while_the_log_cant_be_written_writes_are_refused_and_reads_answered() -> None:
    log = FullLog()
    async with running(log) as world:
        writer, reader, blocked = world.connect(), world.connect(), world.connect()
        await writer.send(ADD)
        await writer.read_line()
        await blocked.send(b"GETJOB FROM empty\r\n")
        await trio.testing.wait_all_tasks_blocked()
        log.write_errno = errno.ENOSPC
        await writer.send(ADD)
        await blocked.expect(MISCONF)
        await reader.ask(b"ADDJOB q body 0\r\n", MISCONF)
        await reader.ask(b"PING\r\n", MISCONF)
        await reader.ask(b"GLOBALQLEN q\r\n", MISCONF)
        await reader.ask(b"PAUSE q all\r\n", MISCONF)
        await reader.ask(b"QLEN q\r\n", b":2\r\n")
        await reader.ask(b"PAUSE q state\r\n", b"+none\r\n")
        log.write_errno = 0
        assert (await writer.read_line()).startswith(b"+D-")
        await reader.ask(b"PING\r\n", b"+PONG\r\n")
        await blocked.ask(b"PING\r\n", b"+PONG\r\n")
        assert log.stored.count("job") == 2


@pytest.mark.parametrize("which", ["write_errno", "sync_errno"])
async def test_what_was_held_leaves_in_order_once_and_nothing_overtakes_it(which: str) -> None:
    log = FullLog()
    async with running(log) as world:
        peer = world.connect()
        await peer.ask(b"QLEN q\r\n", b":0\r\n")
        await trio.testing.wait_all_tasks_blocked()
        setattr(log, which, errno.ENOSPC)
        await peer.send(ADD)
        await peer.send(b"QLEN q\r\n")
        with trio.move_on_after(0.3):
            await peer.read(1)
            pytest.fail("a reply came though nothing was stored")
        setattr(log, which, 0)
        assert (await peer.read_line()).startswith(b"+D-")
        await peer.expect(b":1\r\n")
        assert log.stored.count("job") == 1


async def test_who_ended_its_side_while_the_log_failed_is_answered_later_and_holds_nobody_up() -> (
    None
):
    log = FullLog()
    async with running(log) as world:
        peer, other = world.connect(), world.connect()
        await peer.ask(b"QLEN q\r\n", b":0\r\n")
        log.write_errno = errno.ENOSPC
        await peer.send(ADD)
        await trio.testing.wait_all_tasks_blocked()
        await peer.send(b"QLEN q\r\n")
        await peer.stream.send_eof()
        await other.ask(b"QLEN p\r\n", b":0\r\n")
        log.write_errno = 0
        assert (await peer.read_line()).startswith(b"+D-")
        await peer.expect(b":1\r\n")
        await peer.expect_end()


async def test_addjob_that_waits_when_the_log_fails_says_that_its_outcome_is_unknown() -> None:
    log = FullLog()
    async with running(log) as world:
        adder, writer = world.connect(), world.connect()
        await adder.send(b"ADDJOB q body 0 REPLICATE 1 MAXLEN 5\r\n")
        await adder.read_line()
        waiting = next(iter(world.clients.by_id.values()))
        wait = world.clients.open_slot(waiting, world.clients.new_id())
        wait.client.wait_for(wait, is_alone=False)  # as an ADDJOB that waits for its copies
        log.write_errno = errno.ENOSPC
        await writer.send(ADD)
        text = b"; whether the job was added isn't known\r\n"
        await adder.expect(MISCONF.removesuffix(b"\r\n") + text)


async def test_addjob_behind_one_that_waits_is_answered_no_earlier_than_it_is_stored() -> None:
    log = FullLog()
    async with running(log) as world:
        adder = world.connect()
        await adder.ask(b"QLEN q\r\n", b":0\r\n")
        (waiting,) = world.clients.by_id.values()
        wait = world.clients.open_slot(waiting, world.clients.new_id())
        wait.client.wait_for(wait, is_alone=False)  # as an ADDJOB that waits for its copies
        log.write_errno = errno.ENOSPC
        await adder.send(ADD)
        with trio.move_on_after(0.3):
            await adder.read(1)
            pytest.fail("a reply came though nothing was stored")
        log.write_errno = 0
        assert (await adder.read_line()).startswith(MISCONF.removesuffix(b"\r\n"))
        assert (await adder.read_line()).startswith(b"+D-")
        assert log.stored.count("job") == 1


async def test_unsafe_log_holds_turns_that_store_nothing() -> None:
    log = FullLog()
    async with running(log) as world:
        peer = world.connect()
        await peer.ask(b"QLEN q\r\n", b":0\r\n")
        log.is_unsafe, log.sync_errno = True, errno.EIO
        world.turns.wake()
        await trio.testing.wait_all_tasks_blocked()
        await peer.ask(
            b"PING\r\n", MISCONF.replace(b"No space left on device", b"Input/output error")
        )
        log.is_unsafe, log.sync_errno = False, 0
        with trio.fail_after(5):
            while world.turns.trouble:
                await trio.sleep(0.01)
        await peer.ask(b"PING\r\n", b"+PONG\r\n")


async def test_while_the_log_is_loaded_only_few_commands_run() -> None:
    async with running() as world:
        peer = world.connect()
        world.turns.is_loading = True
        loading = b"-LOADING Disque is loading the dataset in memory\r\n"
        await peer.ask(b"PING\r\n", loading)
        await peer.ask(ADD, loading)
        await peer.ask(b"COMMAND COUNT\r\n", b":%d\r\n" % len(COMMANDS))
        world.turns.is_loading = False
        await peer.ask(b"PING\r\n", b"+PONG\r\n")


async def test_while_a_forgotten_node_puts_its_jobs_aside_only_few_commands_run() -> None:
    async with running() as world:
        peer = world.connect()
        world.broker._returning = itertools.repeat(None)
        await peer.ask(ADD, b"-LOADING Disque is loading the dataset in memory\r\n")
        await peer.ask(b"COMMAND COUNT\r\n", b":%d\r\n" % len(COMMANDS))
        world.broker._returning = None
        await peer.ask(b"PING\r\n", b"+PONG\r\n")


async def test_read_that_ran_while_the_failing_turn_was_stored_is_answered() -> None:
    log = FullLog()
    async with running(log) as world:
        writer, reader = world.connect(), world.connect()
        await writer.ask(b"QLEN q\r\n", b":0\r\n")
        await trio.testing.wait_all_tasks_blocked()
        log.gate = trio.Event()
        log.sync_errno = errno.EIO
        await writer.send(ADD)
        await trio.testing.wait_all_tasks_blocked()
        await reader.send(b"QLEN q\r\n")
        await trio.testing.wait_all_tasks_blocked()
        log.gate.set()
        await reader.expect(b":1\r\n")
        log.sync_errno = 0
        assert (await writer.read_line()).startswith(b"+D-")
