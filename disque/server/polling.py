"""Poller and Pusher: one task that reads for all clients, and one that writes what they didn't take at once.

A task a client that waits for its socket costs two passes of the scheduler and a registration a command. Here all
sockets lie in one epoll of our own, whose file descriptor is the one thing that trio waits for; what has come is
read and run in a row, and the turn loop sees it as one input: one look at the broker, one write a client.
"""

from __future__ import annotations

import select
import selectors
import time
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Callable

    from disque.server.connection import Client
    from disque.server.loop import Turns

READS_A_ROW = 256  # sockets read before their replies leave and others have their turn
ROW_S = 0.01  # the same in time
PUSHES_A_PASS = 16  # sockets that have room again and are written to, likewise


class OtherPoll:
    """As much of epoll as is needed here, for systems without it."""

    def __init__(self, selector: selectors.DefaultSelector) -> None:
        self._selector = selector

    def fileno(self) -> int:
        """Of the selector itself."""
        return self._selector.fileno()

    def register(self, file: int, events: int) -> None:
        """Look at a file from now on."""
        is_read = events == select.POLLIN
        self._selector.register(file, selectors.EVENT_READ if is_read else selectors.EVENT_WRITE)

    def unregister(self, file: int) -> None:
        """Look at it no more."""
        self._selector.unregister(file)

    def poll(self, timeout_s: float, _count_max: int) -> list[tuple[int, int]]:
        """Files that are ready, and for what."""
        return [(key.fd, events) for key, events in self._selector.select(timeout_s)]

    def close(self) -> None:
        """Give the selector back."""
        self._selector.close()


def new_poll() -> select.epoll | OtherPoll:
    """What this system has."""
    return select.epoll() if hasattr(select, "epoll") else OtherPoll(selectors.DefaultSelector())


class _Sockets:
    """Sockets of clients in one epoll, whose file descriptor is what trio waits for."""

    def __init__(self, events: int) -> None:
        self._events = events  # of select.poll
        self._poll = new_poll()
        self._watched: dict[Client, int] = {}
        self._by_file: dict[int, Client] = {}
        self._has_ended = False

    def watch(self, client: Client) -> None:
        """Wait for its socket from now on; nothing if that is so already, or if the server ends."""
        if client not in self._watched and not self._has_ended:
            file = client.sock.fileno()
            self._poll.register(file, self._events)
            self._watched[client] = file
            self._by_file[file] = client

    def unwatch(self, client: Client) -> None:
        """Wait for it no more, for instance before its socket closes; nothing if that is so already."""
        file = self._watched.pop(client, None)
        if file is not None:
            del self._by_file[file]
            self._poll.unregister(file)

    def _ready(self) -> list[Client]:
        """Whose socket is ready now."""
        found = self._poll.poll(0, len(self._watched) or 1)
        return [self._by_file[file] for file, _ in found]

    async def _wait(self) -> None:
        """Return when a socket is ready."""
        await trio.lowlevel.wait_readable(self._poll)

    def _close(self) -> None:
        self._has_ended = True
        self._watched.clear()
        self._by_file.clear()
        self._poll.close()


class Poller(_Sockets):
    """Calls `take_in(client)` whenever there is something to be read; that runs some, and never waits.

    A flood of requests that take long must not hold up a short one: whoever has just come is served before those that
    wait already, who have a part of each row.
    """

    def __init__(self, turns: Turns, take_in: Callable[[Client], None]) -> None:
        super().__init__(select.POLLIN)
        self._turns = turns
        self._take_in = take_in

    async def run(self) -> None:
        """Read until cancelled."""
        try:
            late: dict[Client, None] = {}
            while True:
                await self._wait()  # at once if somebody is late, but others have their turn
                if fresh := self._fresh(late):
                    self._serve(fresh, late)
        finally:
            self._close()

    def _fresh(self, late: dict[Client, None]) -> dict[Client, None]:
        """Who has something to be read and didn't a moment ago; if it is nobody, who is late."""
        ready = dict.fromkeys(self._ready())
        if not late:
            return ready
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


class Pusher(_Sockets):
    """Calls `push(client)` when there is room again for what is unsent, until nothing is; `watch` when something is.

    A thousand who read nothing may break off in one moment, which makes room, too: each costs its part of a pass only.
    """

    def __init__(self, push: Callable[[Client], None]) -> None:
        super().__init__(select.POLLOUT)
        self._push = push

    async def run(self) -> None:
        """Write until cancelled."""
        try:
            while True:
                await self._wait()
                for number, client in enumerate(self._ready(), 1):
                    # it may have ended while others had their turn
                    if client in self._watched:
                        self._push(client)
                        if not client.backlog:
                            self.unwatch(client)
                    if number % PUSHES_A_PASS == 0:
                        await trio.lowlevel.checkpoint()
        finally:
            self._close()
