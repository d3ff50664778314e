"""Shell: what administrative commands may reach: the broker, the connections, the configuration, the clock.

It holds parts and wires nothing (app.py does); commands take it as their first argument. Answers
that need time (a host name to be resolved) are `Later`s, which `finish_later` brings to an end.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, NoReturn

import attrs
import trio

from disque.core.value import value
from disque.errors import CommandError
from disque.resp import encoder
from disque.server.latency import Latency
from disque.server.render import Answer, Whole, render
from disque.server.slowlog import SlowLog

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from disque.broker import Broker
    from disque.core.commands import Command
    from disque.core.ready import ClientId
    from disque.server.access import Access
    from disque.server.clients import Clients
    from disque.server.clock import Clock
    from disque.server.config import Config
    from disque.server.connection import Client, Slot, Spelled
    from disque.server.eventlog import EventLog
    from disque.server.info import Figures
    from disque.server.loop import Turns
    from disque.server.persistence import Persistence

LONG_SCANS_MAX = 2  # at a time: each keeps the names of all jobs


@value
class Later:
    """An answer that is still to be found; the client's further commands wait for it."""

    find: Callable[[], Awaitable[Answer | Whole]]
    ends_with_client: bool = False  # nobody looks for it any more


@value
class Forward:
    """A command of the core that stands behind an administrative one."""

    command: Command


def _cannot_start_again() -> NoReturn:
    raise CommandError("failed to restart the server. Check server logs.")


@attrs.define(eq=False)
class Shell:
    """The parts of a running server."""

    config: Config
    access: Access
    turns: Turns
    clients: Clients
    clock: Clock
    figures: Figures
    events: EventLog
    nursery: trio.Nursery
    persistence: Persistence
    run_id: str  # 40 hexadecimal characters, new at each start
    renames: Mapping[bytes, bytes] = attrs.Factory(dict)  # see table.find_command
    memory_peak_bytes: int = 0
    stopping: trio.Event = attrs.Factory(trio.Event)
    # CONFIG SET of that client changed it; CommandError: can't be
    apply_setting: Callable[[str, Client | None], None] = lambda *_: None
    start_again: Callable[[], NoReturn] = _cannot_start_again  # at once, as after a crash
    rewrites_at_end: bool = False  # SHUTDOWN REWRITE-AOF
    restart_after_s: float | None = None  # not None: start again once `stopping` has ended all
    monitors: dict[ClientId, Client] = attrs.Factory(dict)
    slowlog: SlowLog = attrs.Factory(lambda: SlowLog(threshold_us=10_000, entries_max=128))
    latency: Latency = attrs.Factory(lambda: Latency(0))
    long_scans: trio.CapacityLimiter = attrs.Factory(lambda: trio.CapacityLimiter(LONG_SCANS_MAX))
    save_nodes_now: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint  # OSError if it fails
    rewriting: trio.Lock = attrs.Factory(trio.Lock)  # of the configuration file

    @property
    def broker(self) -> Broker:
        """The broker, told the time: ready for an input."""
        turns = self.turns
        if not turns.is_open:
            turns.open()
        return turns.broker

    def finish_later(self, client: Client, later: Later, *, is_read: bool = False) -> None:
        """Keep the client waiting and answer it when `later` has found the answer."""
        slot = self.clients.open_slot(client, self.clients.new_id())
        slot.is_shells = True
        slot.is_read = is_read
        if later.ends_with_client:
            slot.scope = trio.CancelScope()
        client.wait_for(slot, is_alone=True)
        self.nursery.start_soon(self._find, slot, later)

    async def _find(self, slot: Slot, later: Later) -> None:
        data: Spelled
        with slot.scope or nullcontext():
            try:
                found = await later.find()
                data = found if isinstance(found, Whole) else render(found, slot.proto)
            except CommandError as error:
                data = encoder.error(error.code, str(error))
            self.clients.fill(slot, data)
