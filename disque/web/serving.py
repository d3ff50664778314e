"""Serving: the page's connections on listeners that are there already, under TLS if the node says so.

Hypercorn speaks HTTP and WebSocket on each of them. Its own server ends with the first connection that it stumbles
over, so whoever connects could end the page; here only that connection ends.
"""

from __future__ import annotations

import socket
import ssl
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.events import Closed, RawData
from hypercorn.protocol import h11
from hypercorn.protocol.events import Request
from hypercorn.protocol.ws_stream import WSStream
from hypercorn.trio.lifespan import Lifespan
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from wsproto.events import Message as WebSocketMessage

from disque.web.app import make_app
from disque.web.dialing import open_own
from disque.web.guard import CERTIFIED, REFUSAL
from disque.web.leash import VISIT
from disque.web.visit import STATE_KEY, Visit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hypercorn.events import Event
    from hypercorn.protocol.events import Event as StreamEvent
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from disque.web.leash import Leash, Settings
    from disque.web.visit import Opener

IDLE_MAX_S = 600.0  # without any request, before the process ends
HANDSHAKE_S = 10  # of TLS
STALL_S = 30.0  # in which some of what is sent must be taken
SENT_BYTES = 64 << 10  # of which STALL_S holds
COMPLAIN_EVERY_S = 60.0
REFUSED_MAX = 10  # connections that are told why there is no room, at a time
REFUSAL_S = 5.0


async def run(tether: Leash, listeners: Sequence[int]) -> None:
    """Serve on these file descriptors until nobody has come for IDLE_MAX_S."""
    app = make_app(tether)
    plain = [_listener(each) for each in listeners]
    secured = [TlsDoor(each, tether.settings) for each in plain] if tether.settings.is_tls else []

    def renew(settings: Settings) -> None:
        for door in secured:
            door.renew(settings)

    tether.on_change = renew
    doors: list[trio.abc.Listener[Any]] = [*secured] or [*plain]
    async with trio.open_nursery() as nursery:
        connections = await nursery.start(Connections(app, opener(tether)).run)
        nursery.start_soon(trio.serve_listeners, connections.serve, doors)
        while (left_s := IDLE_MAX_S - app.idle_s()) > 0:
            await trio.sleep(left_s)
        nursery.cancel_scope.cancel()


def opener(tether: Leash) -> Opener | None:
    """How a visit is opened; None if the node is older than that."""
    if not tether.settings.counts_visits:
        return None
    return lambda client: open_own(tether, VISIT, client)


def _listener(file: int) -> trio.SocketListener:
    sock = socket.socket(fileno=file)
    sock.setblocking(False)
    return trio.SocketListener(trio.socket.from_stdlib_socket(sock))


class Http1Server(TCPServer):
    """A connection that stays with HTTP/1.1.

    Hypercorn changes to HTTP/2 for whoever asks (`Upgrade: h2c`, or its preface). A proxy that passes this on sees
    nothing of what is asked for after it, and what it forbids gets through.
    """

    async def _read_data(self) -> None:
        self.protocol.protocol._check_protocol = _stay  # type: ignore[union-attr, method-assign]
        if isinstance(self.stream, trio.SSLStream):
            self.state[CERTIFIED] = bool(self.stream.getpeercert())
        await super()._read_data()

    async def protocol_send(self, event: Event) -> None:
        """Bytes, or the end; who takes none for STALL_S is left."""
        if not isinstance(event, RawData):
            await super().protocol_send(event)
            return
        try:
            async with self.send_lock:
                for at in range(0, len(event.data), SENT_BYTES):
                    with trio.fail_after(STALL_S, shield=True):
                        await self.stream.send_all(event.data[at : at + SENT_BYTES])
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
            await trio.aclose_forcefully(self.stream)
            await self.protocol.handle(Closed())


async def _stay(_request: object) -> None:
    """In place of the look whether a request wants another protocol."""


class Stream(WSStream):
    """A WebSocket whose messages are passed on piece by piece as they come, and never compressed.

    Else whoever connects could have 16 MiB of an unfinished message kept here, before any password, or a few bytes
    unpacked to a thousand times as many. The node has limits of its own.
    """

    async def handle(self, event: StreamEvent) -> None:
        """What came."""
        if isinstance(event, Request):
            headers = [each for each in event.headers if each[0].lower() != _EXTENSIONS]
            event = replace(event, headers=headers)
        await super().handle(event)

    async def _accept(self, message: Any) -> None:
        await super()._accept(message)
        events = self.connection.events
        self.connection.events = lambda: map(_as_whole, events())  # type: ignore[method-assign, return-value, assignment]


def _as_whole(event: Any) -> Any:
    is_piece = isinstance(event, WebSocketMessage)
    return replace(event, message_finished=True) if is_piece else event


_EXTENSIONS = b"sec-websocket-extensions"
h11.WSStream = Stream  # type: ignore[attr-defined]


class BrokenConnectionError(Exception):
    """Nothing more can be said on a connection."""


class Connections:
    """An ASGI application, and the connections over which it is talked to."""

    def __init__(self, app: ASGIApp, open_visit: Opener | None = None) -> None:
        """`open_visit`: the node's part of each connection; it says whether there is one."""
        self._app = app
        self._open_visit = open_visit
        self._refused: dict[trio.CancelScope, None] = {}
        self._asgi = ASGIWrapper(self._answer)  # type: ignore[arg-type]  # two spellings of ASGI's types
        self._context = WorkerContext(None)
        self._config = Config()
        self._config.loglevel = "WARNING"
        self._config.include_server_header = False
        self._config.ssl_handshake_timeout = HANDSHAKE_S
        self._complained_at = -COMPLAIN_EVERY_S

    async def run(self, task_status: trio.TaskStatus[Connections]) -> None:
        """The application's life; `serve` may be called once it has begun."""
        lifespan = Lifespan(self._asgi, self._config, {})
        async with trio.open_nursery() as nursery:
            await nursery.start(lifespan.handle_lifespan)
            await lifespan.wait_for_startup()
            task_status.started(self)

    async def serve(self, stream: trio.abc.Stream) -> None:
        """One connection to its end; what goes wrong with it concerns nobody else."""
        try:
            if self._open_visit is None:
                await self._talk(stream, {})
            elif (client := _client_of(stream)) is not None:
                async with Visit(self._open_visit(client)) as visit:
                    await self._receive(stream, visit)
        except Exception as error:  # noqa: BLE001 - whatever somebody's bytes did to a library
            self._complain(error)
        finally:
            await trio.aclose_forcefully(stream)

    async def _receive(self, stream: trio.abc.Stream, visit: Visit) -> None:
        """Serve if and as long as the node has room for it."""
        reason = await visit.wait_verdict()
        if reason:
            await self._refuse(stream, reason)
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(visit.watch, nursery.cancel_scope)
            await self._talk(stream, {STATE_KEY: visit})
            nursery.cancel_scope.cancel()

    async def _talk(self, stream: trio.abc.Stream, state: dict[str, Any]) -> None:
        await Http1Server(self._asgi, self._config, self._context, state, stream)  # type: ignore[arg-type]

    async def _refuse(self, stream: trio.abc.Stream, reason: str) -> None:
        """Say why there is no room, and answer probes all the same: it is no illness. The oldest makes room."""
        with trio.move_on_after(REFUSAL_S) as patience:
            if len(self._refused) >= REFUSED_MAX:
                oldest = next(iter(self._refused))
                del self._refused[oldest]
                oldest.cancel()
            self._refused[patience] = None
            try:
                await self._talk(stream, {REFUSAL: reason})
            finally:
                self._refused.pop(patience, None)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The application; that nobody can hear it is no error of its."""

        async def say(message: Message) -> None:
            try:
                await send(message)
            except Exception as error:
                raise BrokenConnectionError from error

        try:
            await self._app(scope, receive, say)
        except* BrokenConnectionError:
            pass

    def _complain(self, error: BaseException) -> None:
        if trio.current_time() - self._complained_at < COMPLAIN_EVERY_S:
            return
        self._complained_at = trio.current_time()
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        sys.stderr.write(f"a connection to the page failed: {type(error).__name__}: {error}\n")


def _client_of(stream: trio.abc.Stream) -> tuple[str, int] | None:
    """Who is at the other end; None if he has gone already."""
    plain = stream.transport_stream if isinstance(stream, trio.SSLStream) else stream
    assert isinstance(plain, trio.SocketStream)
    try:
        host, port, *_ = plain.socket.getpeername()
    except OSError:
        return None
    return host, port


def make_context(settings: Settings) -> ssl.SSLContext:
    """What browsers are shown, and may show; OSError if the files can't be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    # A password for the key would be asked for at a terminal
    context.load_cert_chain(settings.cert_file, settings.key_file or None, password=lambda: "")
    if settings.asks_certificate:
        # The page itself asks for a password; see Guard
        context.load_verify_locations(settings.ca_file)
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


class TlsDoor(trio.abc.Listener["trio.SSLStream[trio.SocketStream]"]):
    """A listener whose connections speak TLS as the settings are when they come."""

    def __init__(self, door: trio.SocketListener, settings: Settings) -> None:
        self._door = door
        self._context = make_context(settings)

    def renew(self, settings: Settings) -> None:
        """Show the certificate that is in the files now; the old one stays if that can't be used."""
        try:
            self._context = make_context(settings)
        except OSError as error:
            sys.stderr.write(f"{settings.cert_file}: {error}\n")

    async def accept(self) -> trio.SSLStream[trio.SocketStream]:
        """The next connection; the handshake is its own affair."""
        stream = await self._door.accept()
        return trio.SSLStream(stream, self._context, server_side=True, https_compatible=True)

    async def aclose(self) -> None:
        """Nobody comes any more."""
        await self._door.aclose()
