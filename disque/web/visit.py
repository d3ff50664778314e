"""Visit: the page's end of what the node counts for each of the page's connections (disque.server.visits)."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from starlette.types import Scope

    Opener = Callable[[tuple[str, int]], trio.SocketStream]

STATE_KEY = "disque.visit"  # in the state of a connection
VERDICT_S = 5.0  # for the node to say whether there is room
VERDICT_BYTES_MAX = 4_096


class Visit:
    """One connection, as the node knows it."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._watching = trio.CancelScope()
        self._user = ""

    async def __aenter__(self) -> Visit:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await trio.aclose_forcefully(self._stream)

    async def wait_verdict(self) -> str:
        """Why this connection isn't served, "" if it is."""
        with trio.move_on_after(VERDICT_S):
            said = await self._stream.receive_some(VERDICT_BYTES_MAX)
            return "" if said.startswith(b"+") else said[1:].decode().strip() or "the node ends"
        return "the node is busy"

    async def watch(self, scope: trio.CancelScope) -> None:
        """Cancel `scope` when the node ends this connection."""
        with self._watching:
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await self._stream.receive_some(1)
            scope.cancel()

    def known(self, user: str) -> None:
        """The browser has given this user's password."""
        if user != self._user:
            self._user = user
            with suppress(OSError):  # it has ended
                os.write(self._stream.socket.fileno(), f"user {user}\n".encode())

    async def become_stomp(self) -> trio.SocketStream:
        """From now on STOMP is spoken; the stream is the caller's. OSError if the node has ended it."""
        self._watching.cancel()
        try:
            await self._stream.send_all(b"stomp\n")
            if await self._stream.receive_some(2) != b"+\n":
                raise ConnectionError("the node has ended the connection")
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise ConnectionError("the node has ended the connection") from None
        return self._stream


def visit_of(scope: Scope) -> Visit | None:
    """That of the connection by which a request came; None if the node counts none."""
    visit = scope.get("state", {}).get(STATE_KEY)
    assert visit is None or isinstance(visit, Visit)
    return visit
