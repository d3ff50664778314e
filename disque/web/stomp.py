"""STOMP over WebSocket: a browser's messages to one of the node's STOMP connections, and its frames back.

What frames mean, the password included, is the node's business; here is only where a frame ends, so that each one is
a message of its own: text if it is UTF-8, else binary.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import trio
from starlette.websockets import WebSocketDisconnect

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.websockets import WebSocket

SUBPROTOCOLS = ("v12.stomp", "v11.stomp", "v10.stomp")  # the best first
READ_BYTES = 64 << 10
_CONTENT_LENGTH = re.compile(rb"\ncontent-length:(\d{1,18})\r?(?:\n|$)")


class Splitter:
    """The node's bytes as messages: whole frames, and the line ends that are heart-beats."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Messages that are complete now."""
        self._data += data
        messages: list[bytes] = []
        while (end := self._end()) > 0:
            messages.append(bytes(self._data[:end]))
            del self._data[:end]
        return messages

    def _end(self) -> int:
        """Bytes of the next message, 0 if it isn't complete."""
        data = self._data
        if data[:1] == b"\n":
            return 1
        head_end = data.find(b"\n\n")
        if head_end < 0:
            return 0
        body_at = head_end + 2
        length = _CONTENT_LENGTH.search(data, 0, head_end)
        if length is not None:
            end = body_at + int(length[1]) + 1
            return end if end <= len(data) else 0
        return data.find(b"\0", body_at) + 1


async def bridge(socket: WebSocket, connect: Callable[[], Awaitable[trio.SocketStream]]) -> None:
    """Serve one WebSocket until either side ends; `connect` gives a STOMP connection of the node (OSError)."""
    try:
        stream = await connect()
    except OSError:
        await socket.close(1011, "the node can't be reached")
        return
    offered = socket.scope.get("subprotocols", ())
    await socket.accept(next((each for each in SUBPROTOCOLS if each in offered), None))
    async with stream, trio.open_nursery() as nursery:
        nursery.start_soon(_to_node, socket, stream, nursery.cancel_scope)
        nursery.start_soon(_to_browser, socket, stream, nursery.cancel_scope)


async def _to_node(socket: WebSocket, stream: trio.SocketStream, scope: trio.CancelScope) -> None:
    try:
        while True:
            message = await socket.receive()
            if message["type"] == "websocket.disconnect":
                break
            text = message.get("text")
            await stream.send_all(message.get("bytes") or b"" if text is None else text.encode())
    except (WebSocketDisconnect, trio.BrokenResourceError, trio.ClosedResourceError):
        pass
    scope.cancel()


async def _to_browser(
    socket: WebSocket, stream: trio.SocketStream, scope: trio.CancelScope
) -> None:
    splitter = Splitter()
    try:
        while data := await stream.receive_some(READ_BYTES):
            for message in splitter.feed(bytes(data)):
                await _send(socket, message)
        await socket.close()
    except (WebSocketDisconnect, RuntimeError, trio.BrokenResourceError):
        pass  # the browser has gone
    scope.cancel()


async def _send(socket: WebSocket, message: bytes) -> None:
    try:
        await socket.send_text(message.decode())
    except UnicodeDecodeError:
        await socket.send_bytes(message)
