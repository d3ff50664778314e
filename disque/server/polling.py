"""Poller: one task that reads for all clients.

A task a client that waits for its socket costs two passes of the scheduler and a registration a command. Here all
sockets lie in one selector of our own, whose file descriptor is the one thing that trio waits for; what has come is
read and run in a row, and the turn loop sees it as one input: one look at the broker, one write a client.
"""

from __future__ import annotations

import selectors
import time
from typing import TYPE_CHECKING, cast

import trio

if TYPE_CHECKING:
    from collections.abc import Callable

    from disque.server.connection import Client
    from disque.server.loop import Turns

READS_A_ROW = 64  # sockets read before their replies leave and others have their turn
ROW_S = 0.01  # the same in time


class Poller:
    """Calls `take_in(client)` whenever there is something to be read; that runs some, and never waits.

    A flood of requests that take long must not hold up a short one: whoever has just come is served before those that
    wait already, who have a part of each row.
    """

    def __init__(self, turns: Turns, take_in: Callable[[Client], None]) -> None:
        self._turns = turns
        self._take_in = take_in
        self._selector = selectors.DefaultSelector()
        self._watched: dict[Client, None] = {}

    def watch(self, client: Client) -> None:
        """Read for a client from now on."""
        self._selector.register(client.sock, selectors.EVENT_READ, client)
        self._watched[client] = None

    def unwatch(self, client: Client) -> None:
        """Read for it no more, for instance before its socket closes; nothing if that is so already."""
        if client in self._watched:
            del self._watched[client]
            self._selector.unregister(client.sock)

    async def run(self) -> None:
        """Read until cancelled."""
        try:
            while True:
                await trio.lowlevel.wait_readable(cast("selectors.EpollSelector", self._selector))
                late: dict[Client, None] = {}
                while fresh := self._fresh(late):
                    self._serve(fresh, late)
                    await trio.lowlevel.checkpoint()
        finally:
            self._watched.clear()
            self._selector.close()

    def _fresh(self, late: dict[Client, None]) -> dict[Client, None]:
        """Who has something to be read and didn't a moment ago; if it is nobody, who is late."""
        ready = {key.data: None for key, _ in self._selector.select(0)}
        for client in list(late):
            # its turn has come by another way, or its end
            if client not in ready:
                del late[client]
        fresh = {client: None for client in ready if client not in late}
        return fresh or late

    def _serve(self, fresh: dict[Client, None], late: dict[Client, None]) -> None:
        """One row: who has come just now, but a part of the time is for those who are late. The rest is late."""
        turns, started = self._turns, time.perf_counter()
        turns.begin()
        for clients, until in ((fresh, started + ROW_S * 3 / 4), (late, started + ROW_S)):
            for client in list(clients)[:READS_A_ROW]:
                del clients[client]
                # one before it may have ended it
                if client in self._watched:
                    self._take_in(client)
                if time.perf_counter() > until:
                    break
        late.update(fresh)
        turns.finish()
