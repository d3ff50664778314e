"""Proxy: a process that carries every link of a cluster on loopback, and can silence, slow or break each direction.

Node i dials node j through the listener of the pair (i, j). A connection is two pumps, and the pump of what x says to y
goes through the gate (x, y), whoever dialed. A shut gate is a cut cable: both ends keep their sockets, bytes and news
of the other's end wait, and no new connection comes about. It runs as `python -m jepsen.hosts.proxy`, a process of its
own, so that a busy harness delays no link; orders come as JSON lines on standard input, each is answered by one line
with the same `id`, and the end of the input ends it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import socket
import struct
from collections.abc import AsyncIterator
from typing import Any, Final

import attrs
import trio

Link = tuple[str, str]

CHUNK_BYTES: Final = 65_536
# A slow link holds so many chunks; then the sender waits.
CHUNKS_MAX: Final = 64
PROBE_S: Final = 0.15
# Each token's work takes time from the others.
TIMED_AT_ONCE: Final = 4
DIAL_S: Final = 5.0
_ESTABLISHED: Final = 1
_TOKEN: Final = b"jepsen probe"


@attrs.define(eq=False)
class Gate:
    """What one directed link does with bytes: lets them pass, after a delay or at once, or holds them."""

    is_open: bool = True
    delay_s: float = 0.0
    jitter_s: float = 0.0
    _opened: trio.Event = attrs.field(factory=trio.Event)
    _dice: random.Random = attrs.field(factory=random.Random)

    def set_open(self, is_open: bool) -> None:
        """Shut it, or open it and let what waits go on."""
        if is_open and not self.is_open:
            self._opened.set()
        elif not is_open and self.is_open:
            self._opened = trio.Event()
        self.is_open = is_open

    async def wait_open(self) -> None:
        """Return at once if open, else when it is."""
        while not self.is_open:
            await self._opened.wait()

    def due_at(self) -> float:
        """When a chunk that comes now may go on, in trio's time."""
        return trio.current_time() + self.delay_s + self._dice.uniform(0.0, self.jitter_s)


@attrs.define(eq=False)
class Meter:
    """Bytes that a link has carried so far."""

    bytes: int = 0


def abort(stream: trio.SocketStream) -> None:
    """Close with RST; never waits, may be called twice."""
    with contextlib.suppress(OSError):
        stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.socket.close()


async def pump(
    source: trio.SocketStream, sink: trio.SocketStream, gate: Gate, meter: Meter
) -> None:
    """Carry what `source` says to `sink` through the gate until one of them ends, and then that news."""
    put, get = trio.open_memory_channel[tuple[float, bytes | None]](CHUNKS_MAX)

    async def read() -> None:
        last = 0.0
        chunk: bytes | None = b"-"
        async with put:
            while chunk:
                await gate.wait_open()
                try:
                    chunk = bytes(await source.receive_some(CHUNK_BYTES))
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    chunk = None
                last = max(last, gate.due_at())
                await put.send((last, chunk))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        async for due_at, chunk in get:
            await trio.sleep_until(due_at)
            await gate.wait_open()
            if not await _pass_on(sink, chunk):
                break
            meter.bytes += len(chunk or b"")
        nursery.cancel_scope.cancel()


async def _pass_on(sink: trio.SocketStream, chunk: bytes | None) -> bool:
    """Give a chunk, an end (empty) or a break (None) to a socket; False if it is gone."""
    try:
        if chunk:
            await sink.send_all(chunk)
        elif chunk is None:
            abort(sink)
        else:
            await sink.send_eof()
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        return False
    return True


@attrs.define(eq=False)
class Connection:
    """One bus connection that goes through us."""

    dialer: str
    target: str
    streams: list[trio.SocketStream]

    def abort(self) -> None:
        """RST to both ends."""
        for stream in self.streams:
            abort(stream)


@attrs.define(eq=False)
class Proxy:
    """All gates and connections; `nursery` runs them."""

    nursery: trio.Nursery
    gates: dict[Link, Gate] = attrs.Factory(dict)
    _meters: dict[Link, Meter] = attrs.Factory(dict)
    _buses: dict[str, tuple[str, int]] = attrs.Factory(dict)
    _live: dict[Connection, None] = attrs.Factory(dict)

    async def answer(self, order: dict[str, Any]) -> dict[str, Any]:
        """Do one order. ValueError for one that doesn't exist."""
        match order["do"]:
            case "listen":
                return {"ports": await self._listen(order["buses"])}
            case "cut":
                self._cut(_links(order))
            case "shape":
                self._shape(_links(order), order["delay_ms"] / 1000, order["jitter_ms"] / 1000)
            case "reset":
                return {"count": self._reset(_links(order))}
            case "probe":
                return {"links": await self._probe()}
            case "time":
                times = await self._time(TIMED_AT_ONCE)
                return {"ms": [[*link, seconds * 1_000] for link, seconds in times.items()]}
            case "carried":
                meters = self._meters.items()
                return {"bytes": [[*link, meter.bytes] for link, meter in meters]}
            case unknown:
                raise ValueError(f"no such order: {unknown!r}")
        return {}

    async def _listen(self, buses: dict[str, list[Any]]) -> list[list[Any]]:
        """`buses`: name -> [host, port]; answers [dialer, target, port] of each listener."""
        self._buses = {name: (host, port) for name, (host, port) in buses.items()}
        ports = []
        for link in itertools.permutations(self._buses, 2):
            self.gates[link], self._meters[link] = Gate(), Meter()
            (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
            ports.append([*link, listener.socket.getsockname()[1]])
            self.nursery.start_soon(self._serve, listener, link)
        return ports

    def _cut(self, silent: frozenset[Link]) -> None:
        for link, gate in self.gates.items():
            gate.set_open(link not in silent)

    def _shape(self, slow: frozenset[Link], delay_s: float, jitter_s: float) -> None:
        for link, gate in self.gates.items():
            gate.delay_s, gate.jitter_s = (delay_s, jitter_s) if link in slow else (0.0, 0.0)

    def _reset(self, links: frozenset[Link]) -> int:
        """Abort what is between these pairs; gives how many connections."""
        pairs = {frozenset(link) for link in links}
        hit = [each for each in self._live if frozenset((each.dialer, each.target)) in pairs]
        for each in hit:
            each.abort()
        return len(hit)

    async def _probe(self) -> list[Link]:
        """Links that carry bytes now: a token of ours through a pump, or what nodes said meanwhile."""
        before = {link: meter.bytes for link, meter in self._meters.items()}
        arrived = await self._time(len(self.gates))
        moved = {link for link, meter in self._meters.items() if meter.bytes != before[link]}
        return sorted(moved | set(arrived))

    async def _time(self, at_once: int) -> dict[Link, float]:
        """How many seconds a token of ours took through each link that carries it, so many links at once."""
        arrived: dict[Link, float] = {}
        limiter = trio.CapacityLimiter(at_once)

        async def try_link(link: Link, gate: Gate) -> None:
            async with limiter:
                await self._try_link(link, gate, arrived)

        async with trio.open_nursery() as nursery:
            for link, gate in self.gates.items():
                nursery.start_soon(try_link, link, gate)
        return arrived

    async def _try_link(self, link: Link, gate: Gate, arrived: dict[Link, float]) -> None:
        mouth, source = _socket_pair()
        sink, ear = _socket_pair()
        with trio.move_on_after(PROBE_S + gate.delay_s + gate.jitter_s):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(pump, source, sink, gate, Meter())
                began = trio.current_time()
                await mouth.send_all(_TOKEN)
                if await ear.receive_some(len(_TOKEN)) == _TOKEN:
                    arrived[link] = trio.current_time() - began
                nursery.cancel_scope.cancel()
        for stream in (mouth, source, sink, ear):
            stream.socket.close()

    # Connections

    async def _serve(self, listener: trio.SocketListener, link: Link) -> None:
        async def carry(stream: trio.SocketStream) -> None:
            await self._carry(stream, link)

        await trio.serve_listeners(carry, [listener])

    async def _carry(self, stream: trio.SocketStream, link: Link) -> None:
        connection = Connection(*link, [stream])
        self._live[connection] = None
        try:
            if await self._connect(connection):
                await self._pump_both(connection)
            else:
                abort(stream)
        finally:
            del self._live[connection]
            for each in connection.streams:
                each.socket.close()

    async def _connect(self, connection: Connection) -> bool:
        """Dial the target once both directions are open; False if the dialer left, or nobody is there."""
        there, back = self._gates_of(connection)
        while not (there.is_open and back.is_open):
            await there.wait_open()
            await back.wait_open()
        await trio.sleep(there.delay_s)
        if not _is_established(connection.streams[0]):
            return False
        host, port = self._buses[connection.target]
        try:
            with trio.fail_after(DIAL_S):
                connection.streams.append(await trio.open_tcp_stream(host, port))
        except (OSError, trio.TooSlowError):
            return False
        return True

    async def _pump_both(self, connection: Connection) -> None:
        there, back = self._gates_of(connection)
        dialer, target = connection.streams
        link = (connection.dialer, connection.target)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pump, dialer, target, there, self._meters[link])
            nursery.start_soon(pump, target, dialer, back, self._meters[link[::-1]])

    def _gates_of(self, connection: Connection) -> tuple[Gate, Gate]:
        link = (connection.dialer, connection.target)
        return self.gates[link], self.gates[link[::-1]]


def _links(order: dict[str, Any]) -> frozenset[Link]:
    return frozenset((source, target) for source, target in order["links"])


def _is_established(stream: trio.SocketStream) -> bool:
    """The other end hasn't closed: what a node gave up while its link was cut must not reach anybody."""
    try:
        return stream.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _ESTABLISHED
    except OSError:
        return False


def _socket_pair() -> tuple[trio.SocketStream, trio.SocketStream]:
    """Two ends of a loopback connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        two, _ = server.accept()
    one.setblocking(False)
    two.setblocking(False)
    return (
        trio.SocketStream(trio.socket.from_stdlib_socket(one)),
        trio.SocketStream(trio.socket.from_stdlib_socket(two)),
    )


async def orders(source: trio.abc.ReceiveStream) -> AsyncIterator[dict[str, Any]]:
    """Each line of a stream as what its JSON says, until the end."""
    buffer = bytearray()
    async for chunk in source:
        buffer += chunk
        while b"\n" in buffer:
            line, _, buffer = buffer.partition(b"\n")
            yield json.loads(line)


async def main() -> None:
    """Take orders until the input ends."""
    source = trio.lowlevel.FdStream(os.dup(0))
    sink = trio.lowlevel.FdStream(os.dup(1))
    async with trio.open_nursery() as nursery:
        proxy = Proxy(nursery)
        async for order in orders(source):
            answer = {"id": order["id"], **await proxy.answer(order)}
            await sink.send_all(json.dumps(answer).encode() + b"\n")
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main)
