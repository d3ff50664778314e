"""Serving: what the server library alone wouldn't bound, over real sockets."""

from __future__ import annotations

import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

from disque.web import serving
from disque.web.serving import Connections

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import pytest
    from starlette.types import ASGIApp, Receive, Scope, Send

SOON_S = 10.0
UPGRADE = (
    b"GET /stomp HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    b"Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n"
)


@asynccontextmanager
async def served(app: ASGIApp) -> AsyncIterator[tuple[trio.SocketStream, trio.Event]]:
    """A connection to the application, and what is set when the server has done with it."""
    ended = trio.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        theirs = socket.create_connection(listener.getsockname())
        ours, _ = listener.accept()
    streams = []
    for each in (ours, theirs):
        each.setblocking(False)
        streams.append(trio.SocketStream(trio.socket.from_stdlib_socket(each)))

    async def serve() -> None:
        await connections.serve(streams[0])
        ended.set()

    async with streams[0], streams[1], trio.open_nursery() as nursery:
        connections = await nursery.start(Connections(app).run)
        nursery.start_soon(serve)
        with trio.fail_after(SOON_S):
            yield streams[1], ended
        nursery.cancel_scope.cancel()


async def idle(receive: Receive, send: Send) -> None:
    """An application's life."""
    for kind in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{kind}.complete"})


async def test_who_takes_nothing_of_an_answer_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "STALL_S", 0.05)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await idle(receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(32 << 20)})

    async with served(app) as (peer, ended):
        await peer.send_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await ended.wait()


async def test_a_message_is_passed_on_before_it_ends_and_never_unpacked() -> None:
    heard = []
    has_heard = trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await idle(receive, send)
            return
        assert (await receive())["type"] == "websocket.connect"
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            heard.append(message.get("text") or message.get("bytes"))
            if heard[-1] == "ü":
                has_heard.set()

    async with served(app) as (peer, _):
        await peer.send_all(UPGRADE)
        said = b""
        while not said.endswith(b"\r\n\r\n"):
            said += await peer.receive_some()
        assert b"101" in said
        assert b"permessage-deflate" not in said
        # Text of 6 bytes, masked by zeros, as three frames of which none is the last
        for first, piece in ((1, b"ab"), (0, b"cd"), (0, "ü".encode())):
            await peer.send_all(bytes([first, 0x80 | len(piece), 0, 0, 0, 0]) + piece)
        await has_heard.wait()
    assert heard == ["ab", "cd", "ü"]
