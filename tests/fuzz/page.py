"""Page: whatever comes in on the page's port; it still serves, its node notices nothing, and secrets stay inside.

HTTP's parser, the application and the node are the real ones; in place of the leash a socket pair for each connection,
also for those by which the node counts the page's.
"""

from __future__ import annotations

import base64
import logging
import socket
from typing import TYPE_CHECKING, Any, Final

import trio

from disque.server.stomp import Stomp
from disque.server.visits import Visits
from disque.web import leash
from disque.web.app import make_app
from disque.web.serving import BrokenConnectionError, Connections, opener
from tests.fuzz.nodes import SOON_S, check_nothing_stays
from tests.unit.server.world import World, running, tcp_pair

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

PASSWORD: Final = "kh4Zr0-never-shown"
_QUIET_S = 0.02  # without a word: no more comes
_BASIC = base64.b64encode(b"default:" + PASSWORD.encode())
_HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def request(path: bytes, *headers: bytes, method: bytes = b"GET", body: bytes = b"") -> bytes:
    """A request of somebody who knows the password."""
    lines = [
        b"%b %b HTTP/1.1" % (method, path),
        b"Host: localhost",
        b"Authorization: Basic " + _BASIC,
        *headers,
    ]
    if body:
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def frame(payload: bytes, opcode: int = 1, *, is_last: bool = True) -> bytes:
    """A WebSocket frame of a client, under the mask that changes nothing."""
    return bytes([(is_last << 7) | opcode, 0x80 | len(payload)]) + bytes(4) + payload


_UPGRADE: Final = request(
    b"/stomp",
    b"Upgrade: websocket",
    b"Connection: Upgrade",
    b"Sec-WebSocket-Version: 13",
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
    b"Sec-WebSocket-Protocol: v12.stomp",
)
_FORM: Final = b"Content-Type: application/x-www-form-urlencoded"
WORDS: Final = (
    *b"GET POST HEAD PUT OPTIONS CONNECT / /metrics /stomp /queue /static/ .. %2e%00 ? # HTTP/1.1 HTTP/1.0".split(),
    b"Host: ", b"Transfer-Encoding: chunked\r\n", b"Content-Length: 5\r\n", b"Cookie: disque-page=", b"Origin: http://x\r\n",
    b"Expect: 100-continue\r\n", b"Upgrade: h2c\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\r\n\r\n", b"0\r\n\r\n",
    b"Range: bytes=0-\r\n", b"Accept: text/event-stream\r\n", frame(b"", 9), frame(b"", 8),
)  # fmt: skip
SEEDS: Final = (
    _HEALTH, b"GET /ready HTTP/1.0\r\n\r\n", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", request(b"/"),
    request(b"/metrics"), request(b"/metrics", b"Authorization: Basic AAAA"),
    request(b"/", b"Accept: text/event-stream"),
    request(b"/queue?name=q"), request(b"/job?id=x&as=hex"), request(b"/nodes"), request(b"/dead"),
    request(b"/work?name=q"),
    request(b"/find?what=%ff"), request(b"/?sort=length&find=q"), request(b"/nowhere"),
    request(b"/static/page.css", b"Range: bytes=0-3,9-"), request(b"/static/..%2f..%2fdisque.conf"),
    request(b"/queue/purge", _FORM, method=b"POST", body=b"token=x&name=q"),
    request(b"/job/cancel", b"Transfer-Encoding: chunked", method=b"POST") + b"5\r\ntoken\r\n0\r\n\r\n",
    _UPGRADE, _UPGRADE + frame(b"CONNECT\n\n\0"),
    _UPGRADE + frame(b"CONNECT\naccept-version:1.2\nlogin:default\npasscode:%b\n\n\0" % PASSWORD.encode())
    + frame(b"SEND\ndestination:/queue/q\nreceipt:1\n\nbody\0")
    + frame(b"SUBSCRIBE\nid:0\ndestination:/queue/q\n\n\0", 2)
    + frame(b"DISC", is_last=False) + frame(b"ONNECT\n\n\0", 0) + frame(b"\x03\xe8", 8),
)  # fmt: skip


def run(data: bytes) -> None:
    """Whatever a browser, or what isn't one, says."""
    logging.disable()
    try:
        trio.run(_browse, data)
    finally:
        logging.disable(logging.NOTSET)


class _Tether:
    """A leash without a process at its end."""

    def __init__(self, world: World) -> None:
        self.settings = leash.Settings(password=PASSWORD, counts_visits=True)
        self._world = world
        self._ends: list[socket.socket] = []
        stomp = Stomp(world.shell)
        self._dialects = {leash.RESP: None, leash.VISIT: Visits(world.shell, stomp)}

    def connect(self, protocol: bytes, client: tuple[str, int] | None = None) -> socket.socket:
        ours, theirs = socket.socketpair()
        self._world.clients.admit(theirs, client or "", self._dialects[protocol])
        self._ends.append(ours)
        return ours

    def close(self) -> None:
        """The page's connections end with its process."""
        for each in self._ends:
            each.close()


class _Browser:
    """The page, to be talked to."""

    def __init__(self, tether: _Tether, nursery: trio.Nursery) -> None:
        self.broken: list[Exception] = []
        self._app = make_app(tether)  # type: ignore[arg-type]  # all that is asked of a leash
        self._connections = Connections(self._watched, opener(tether))  # type: ignore[arg-type]
        self._nursery = nursery

    async def _watched(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        except Exception as error:
            if not _is_over(error):
                self.broken.append(error)
            raise

    async def start(self) -> None:
        await self._nursery.start(self._connections.run)

    async def say(self, *parts: bytes) -> bytes:
        """On a connection of its own; what is answered while somebody says something."""
        theirs, ours = tcp_pair()
        theirs.setblocking(False)
        self._nursery.start_soon(self._connections.serve, _stream(theirs))
        heard = b""
        async with _stream(ours) as browser:
            try:
                for part in parts:
                    await browser.send_all(part)
                    heard += await _hear(browser)
            except trio.BrokenResourceError:
                pass
        return heard


def _cut(data: bytes) -> list[bytes]:
    """In two pieces: somewhere, or where the first request's head ends, as whoever waits for an answer has it."""
    head_end = data.find(b"\r\n\r\n") + 4
    middle = head_end if len(data) % 2 and head_end > 3 else len(data) // 2
    return [data[:middle], data[middle:]]


def _is_over(error: BaseException) -> bool:
    """True if an application failed for want of its connection."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_over, error.exceptions))
    return isinstance(error, BrokenConnectionError)


def _stream(sock: socket.socket) -> trio.SocketStream:
    return trio.SocketStream(trio.socket.from_stdlib_socket(sock))


async def _hear(stream: trio.SocketStream) -> bytes:
    heard = bytearray()
    data: Any = b"x"
    while data:
        data = b""
        with trio.move_on_after(_QUIET_S):
            data = await stream.receive_some()
            heard += data
    return bytes(heard)


async def _browse(data: bytes) -> None:
    async with running() as world:
        world.config.requirepass = PASSWORD
        world.settings.apply("requirepass")
        tether = _Tether(world)
        with trio.fail_after(SOON_S):
            async with trio.open_nursery() as nursery:
                browser = _Browser(tether, nursery)
                await browser.start()
                heard = await browser.say(*_cut(data))
                assert PASSWORD.encode() not in heard
                assert b"HTTP/1.1 500" not in heard
                assert not browser.broken, [repr(each) for each in browser.broken]
                healthy = b""
                while not healthy:
                    healthy = await browser.say(_HEALTH)
                assert healthy.startswith(b"HTTP/1.1 200"), healthy
                nursery.cancel_scope.cancel()
            tether.close()
            while world.clients.by_id:
                await trio.sleep(0)
        check_nothing_stays(world, requirepass=PASSWORD)
