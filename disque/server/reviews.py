"""Reviews: when limits have changed those who are connected get them too, and are judged by them, some at a time.

Who hasn't had his turn is treated as before; who asked for the change is answered when all have had theirs.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import trio

from disque.server.sockets import keep_alive

if TYPE_CHECKING:
    from disque.core.ready import ClientId
    from disque.server.clock import Clock
    from disque.server.connection import Client
    from disque.server.crowd import Crowd
    from disque.server.eventlog import EventLog

STEP = 250  # connections that are judged in a row: some ms


class Reviews:
    """The one under way, which begins anew when limits change again."""

    def __init__(
        self, crowd: Crowd, by_id: dict[ClientId, Client], clock: Clock, events: EventLog
    ) -> None:
        self._crowd = crowd
        self._by_id = by_id
        self._clock = clock
        self._events = events
        self._left: list[ClientId] = []  # the next one last
        self._ended = 0
        self._has_left = trio.Event()
        self._is_over = trio.Event()

    def begin(self, setter: Client | None) -> None:
        """Judge all but `setter`, the first ones at once."""
        self._left = [id_ for id_ in reversed(self._by_id) if setter is None or id_ != setter.id]
        self._step()
        if self._left:
            self._has_left.set()
            if self._is_over.is_set():
                self._is_over = trio.Event()
        elif setter is not None:
            self.judge(setter, is_setter=True)

    @property
    def is_under_way(self) -> bool:
        """True if some haven't had their turn yet."""
        return bool(self._left)

    async def wait_over(self) -> None:
        """Return when all have had their turn."""
        if self._left:
            await self._is_over.wait()

    async def run(self) -> None:
        """Go on with what `begin` left, for ever."""
        while True:
            await self._has_left.wait()
            self._has_left = trio.Event()
            while self._left:
                await trio.lowlevel.checkpoint()
                self._step()
            self._is_over.set()

    def _step(self) -> None:
        for _ in range(min(STEP, len(self._left))):
            client = self._by_id.get(self._left.pop())
            if client is not None:
                self._ended += self.judge(client)
        if self._ended and not self._left:
            count, self._ended = self._ended, 0
            self._events.event("notice", "clients-ended", count=count, reason="no longer let in")

    def judge(self, client: Client, *, is_setter: bool = False) -> bool:
        """Bind it to the limits as they are now; True if it ends."""
        if client.is_closing:
            return False
        is_ended = self._crowd.review(client, self._clock.now_ms(), is_setter=is_setter)
        self._crowd.limit(client)
        if not client.address.startswith("unix:"):
            with contextlib.suppress(OSError):
                keep_alive(client.sock, self._crowd.limits.keepalive_s)
        return is_ended
