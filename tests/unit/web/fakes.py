"""Fakes: a node that answers from a table, over streams in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio
import trio.testing

from disque.resp.decoder import Decoder
from disque.resp.encoder import encode
from disque.web.node import Node

if TYPE_CHECKING:
    from collections.abc import Callable

Words = tuple[bytes, ...]


class FakeNode:
    """Answers commands with what `answer` gives: bytes as they are, None for silence, EOFError to hang up."""

    def __init__(self, nursery: trio.Nursery, answer: Callable[[Words], bytes | None]) -> None:
        self.answer = answer
        self.heard: list[Words] = []
        self.connections: list[trio.StapledStream[trio.abc.SendStream, trio.abc.ReceiveStream]] = []
        self.is_down = False
        self._nursery = nursery

    def node(self, *, password: str = "", timeout_s: float = 1.0) -> Node:
        """The page's side of it."""
        return Node(self.dial, password=lambda: password, timeout_s=timeout_s)

    async def hang_up(self) -> None:
        """End all connections."""
        for each in self.connections:
            await each.aclose()
        self.connections.clear()

    async def dial(self) -> trio.abc.Stream:
        """A new connection; ConnectionRefusedError while it is down."""
        if self.is_down:
            raise ConnectionRefusedError(111, "Connection refused")
        ours, theirs = trio.testing.memory_stream_pair()
        self.connections.append(ours)
        self._nursery.start_soon(self._serve, ours)
        return theirs

    async def _serve(self, stream: trio.abc.Stream) -> None:
        decoder = Decoder()
        try:
            while data := await stream.receive_some():
                decoder.feed(data)
                for words in decoder.take(1_000):
                    self.heard.append(tuple(words))
                    said = self.answer(tuple(words))
                    if said is not None:
                        await stream.send_all(said)
        except EOFError:
            await stream.aclose()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass


def bulk(value: object) -> bytes:
    """A value as RESP."""
    return encode(value, 2)  # type: ignore[arg-type]
