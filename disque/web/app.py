"""App: the ASGI application of the page, put together."""

from __future__ import annotations

from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import trio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles

from disque.web import leash, stomp
from disque.web.dialing import open_own, peer_dialer
from disque.web.guard import Guard, Tokens
from disque.web.node import Node
from disque.web.pages import Pages
from disque.web.probes import Probes
from disque.web.visit import visit_of
from disque.web.watch import Watch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import ASGIApp, Receive, Scope, Send
    from starlette.websockets import WebSocket

    from disque.web.leash import Leash

OWN_TIMEOUT_S = 5.0  # for an answer of the own node, which may be busy
PEER_TIMEOUT_S = 1.0  # for another node's: a dead one must not keep a page waiting
STATIC = Path(__file__).parent / "static"


class Activity:
    """ASGI around everything: how long nobody has asked for anything."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._open = 0
        self._last = trio.current_time()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        self._open += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._open -= 1
            self._last = trio.current_time()

    def idle_s(self) -> float:
        """Seconds since the last request ended; 0 while there is one."""
        return 0.0 if self._open else trio.current_time() - self._last


def make_app(tether: Leash) -> Activity:
    """The whole application, for the node at the other end of the leash; to be called within trio."""

    async def dial_own() -> trio.SocketStream:
        return open_own(tether, leash.RESP)

    def make_peer(host: str, port: int) -> Node:
        dial = peer_dialer(lambda: tether.settings, host, port)
        return Node(dial, password=password, timeout_s=PEER_TIMEOUT_S)

    def password() -> str:
        return tether.settings.password

    def own_password() -> str:
        return "" if tether.settings.knows_page else password()

    async def talk_stomp(socket: WebSocket) -> None:
        async def connect() -> trio.SocketStream:
            visit = visit_of(socket.scope)
            if visit is not None:
                return await visit.become_stomp()
            client = None if socket.client is None else (socket.client.host, socket.client.port)
            return open_own(tether, leash.STOMP, client)

        await stomp.bridge(socket, connect)

    own = Node(dial_own, password=own_password, timeout_s=OWN_TIMEOUT_S)
    watch = Watch(own, make_peer)
    pages, probes = Pages(watch, Tokens()), Probes(own)

    @asynccontextmanager
    async def life(_: Starlette) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch.run)
            yield
            nursery.cancel_scope.cancel()

    app = Starlette(
        routes=[
            *pages.routes(),
            Route("/metrics", probes.metrics),
            Route("/health", probes.health),
            Route("/ready", probes.ready),
            WebSocketRoute("/stomp", talk_stomp),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        exception_handlers={HTTPException: pages.trouble},
        lifespan=life,
    )
    return Activity(Guard(app, lambda: tether.settings))
