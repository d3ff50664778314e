"""Turns: stored before sent, one reply path at a time, timers kept, bugs never hidden."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from disque.core.ready import ClientId
from tests.unit.server.world import running

if TYPE_CHECKING:
    from collections.abc import Sequence

    from disque.core.commands import Command
    from disque.core.ready import Record

ADD = b"ADDJOB q body 0\r\n"


class SlowLog:
    """A log whose disk the test holds."""

    stores = True

    def __init__(self) -> None:
        self.stored: list[Record] = []
        self.held = trio.Semaphore(0)

    async def append(self, records: Sequence[Record]) -> None:
        """Store once the test says so."""
        await self.held.acquire()
        self.stored += records


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


async def test_timer_set_without_a_turn_is_kept() -> None:
    async with running() as world:
        peer = world.connect()
        await peer.ask(b"GETJOB TIMEOUT 30 FROM q\r\n", b"*-1\r\n")


async def test_administrative_reply_waits_until_the_node_table_is_stored() -> None:
    async with running() as world:
        peer = world.connect()
        saved = len(world.saved)
        await peer.ask(b"CLUSTER LEAVING yes\r\n", b"+OK\r\n")
        assert len(world.saved) == saved + 1
        assert "leaving" in world.saved[-1]


async def test_exception_of_the_broker_ends_the_server() -> None:
    def explode(client: ClientId, command: Command) -> bool:
        raise ZeroDivisionError(client, command)

    with pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True):
        async with running() as world:
            world.broker.command = explode  # type: ignore[method-assign]
            peer = world.connect()
            await peer.send(b"QLEN q\r\n")
            await trio.sleep(5)
