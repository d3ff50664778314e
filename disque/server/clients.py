"""Clients: accepts connections, reads them, runs their commands, and sees that none costs more
than it may.

It knows connections, not commands: `execute` (dispatch.py) does those. Reading, running and
answering happen in one synchronous stretch; a task is only woken for what must wait. The next
command of a client whose command waits isn't run, and beyond a limit not even read.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
from typing import TYPE_CHECKING, Any

import attrs
import trio

from disque.core.ready import ClientId
from disque.errors import ProtocolError
from disque.resp import encoder
from disque.resp.decoder import BufferLimitError, Decoder
from disque.server.addresses import is_loopback, socket_host, socket_name
from disque.server.connection import Client
from disque.server.render import render

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from disque.core.ready import Reply
    from disque.server.eventlog import EventLog
    from disque.server.info import Figures
    from disque.server.loop import Turns

COMMANDS_A_RUN = 500  # commands of one client in a row, before others have their turn
READ_BYTES = 64 << 10
READ_BYTES_LARGE = 1 << 20  # while a large body arrives
ACCEPTS_A_TURN = 100
FAREWELLS_MAX = 10  # refused connections that are closed politely, and hold a file, at a time
LINGER_S = 1.0  # how long a closed connection's input is drained, lest a reset loses the reply
FAREWELL_LINGER_S = 0.1  # the same when the server ends
STALL_S = 10.0  # a closing connection that takes no byte for so long is dropped
CRON_S = 1.0
_TCP_CLOSED = (7, 8)  # TCP_INFO: CLOSE, CLOSE_WAIT
_OUT_OF_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

DENIED = (
    "disque-broker runs in protected mode because no requirepass is set: only clients on the same "
    "machine are served. Set a password with requirepass (in the configuration file, as "
    "--requirepass, as DISQUE_REQUIREPASS in the environment, or with CONFIG SET from the machine "
    "itself), or switch this off with protected-mode no."
)


@attrs.define
class ClientLimits:
    """What configuration says about connections; CONFIG SET changes the fields."""

    clients_max: int = 10_000
    idle_max_s: int = 0  # 0: for ever
    out_hard_bytes: int = 0  # 0: connection.OUT_CAP_BYTES
    out_soft_bytes: int = 0  # 0: none
    out_soft_s: int = 0
    keepalive_s: int = 0
    is_open_to_all: bool = False  # False: loopback and unix sockets only (protected mode)


class Clients:
    """All connections of clients. `by_id` is in the order of their coming."""

    def __init__(
        self,
        turns: Turns,
        *,
        execute: Callable[[Client, list[bytes]], None],
        limits: ClientLimits,
        figures: Figures,
        events: EventLog,
    ) -> None:
        self.turns = turns
        self.limits = limits
        self.by_id: dict[ClientId, Client] = {}
        self._execute = execute
        self._figures = figures
        self._events = events
        self._nursery: trio.Nursery | None = None
        self._last_id = 0
        self._farewells = 0
        self._linger_s = LINGER_S
        self._is_complaining = False  # about a lack of file descriptors
        self._accepting = trio.CancelScope()

    # disque.server.loop.Replies

    def place(self, replies: Iterable[tuple[ClientId, Reply]]) -> list[Client]:
        """Encode replies into their clients' slots; a client that has gone is passed over."""
        touched: dict[ClientId, Client] = {}
        for client_id, reply in replies:
            client = self.by_id.get(client_id)
            if client is not None and client.holes:
                client.fill(render(reply, client.next_proto))
                touched[client_id] = client
        return list(touched.values())

    def run(self, client: Client) -> bool:
        """Run what a client has sent until a command must wait; True if there may be more."""
        left = COMMANDS_A_RUN
        pending = client.pending
        while left and client.is_runnable:
            if not pending and not self._decode(client, left):
                break
            left -= 1
            self._execute(client, pending.popleft())
        self.turns.end(client)
        return not left

    def _decode(self, client: Client, count_max: int) -> bool:
        """Make commands of the bytes at hand; False if there are none or they are none."""
        try:
            client.pending.extend(client.decoder.take(count_max))
        except BufferLimitError as error:
            self._events.event("warning", "client-dropped", addr=client.address, reason=error)
            client.die()
        except ProtocolError as error:
            client.answer(encoder.error(error.code, str(error)))
            client.close_soon()
        return bool(client.pending)

    # Tasks

    async def serve(self, listeners: Sequence[socket.socket]) -> None:
        """Accept and serve until cancelled; the listeners (non-blocking) are closed at the end."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._cron)
            try:
                async with trio.open_nursery() as accepting:
                    self._accepting = accepting.cancel_scope
                    for listener in listeners:
                        accepting.start_soon(self._accept, listener)
            finally:
                for listener in listeners:
                    listener.close()
            await trio.sleep_forever()

    async def farewell(self, patience_s: float) -> None:
        """Accept nobody more, run nothing more, send what is owed, then close all."""
        self._accepting.cancel()
        self._linger_s = FAREWELL_LINGER_S
        for client in list(self.by_id.values()):
            client.close_soon()
        with trio.move_on_after(patience_s):
            while self.by_id:
                await trio.sleep(0.01)

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            await trio.lowlevel.wait_readable(listener)
            for _ in range(ACCEPTS_A_TURN):
                try:
                    sock, address = listener.accept()
                except BlockingIOError:
                    break
                except OSError as error:
                    if error.errno in _OUT_OF_FILES:
                        await self._bear_lack_of_files(error)
                    break
                self._is_complaining = False
                self.admit(sock, address)

    async def _bear_lack_of_files(self, error: OSError) -> None:
        """Say it once and breathe: the waiting connection keeps the listener readable."""
        if not self._is_complaining:
            self._is_complaining = True
            self._events.event("warning", "accept-failed", reason=error.strerror)
        await trio.sleep(0.1)

    def admit(self, sock: socket.socket, address: Any) -> None:
        """Serve a new connection, or say why not; `address` is accept's, judged by protected mode."""
        assert self._nursery is not None
        sock.setblocking(False)
        self._figures.connections_received += 1
        is_unix = not isinstance(address, tuple)
        is_local = is_unix or is_loopback(socket_host(address))
        if not (is_local or self.limits.is_open_to_all):
            self._refuse(sock, "DENIED", DENIED)
            return
        if len(self.by_id) >= self.limits.clients_max:
            self._refuse(sock, "ERR", "max number of clients reached")
            return
        try:
            own = sock.getsockname()
            if not is_unix:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._keep_alive(sock)
        except OSError:
            sock.close()  # it has gone already
            return
        self._last_id += 1
        client = Client(
            ClientId(self._last_id),
            sock,
            Decoder(),
            now_ms=self.turns.clock.now_ms(),
            wants_writer=self._start_writer,
        )
        client.is_local = is_local
        client.local_host = socket_host(own)
        client.address = socket_name(address, own if isinstance(own, str) else "")
        client.out_limit_bytes = self.limits.out_hard_bytes or client.out_limit_bytes
        self.by_id[client.id] = client
        self._nursery.start_soon(self._serve_client, client)

    def _keep_alive(self, sock: socket.socket) -> None:
        if self.limits.keepalive_s:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if hasattr(socket, "TCP_KEEPIDLE"):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, self.limits.keepalive_s)

    def _refuse(self, sock: socket.socket, code: str, text: str) -> None:
        self._figures.connections_rejected += 1
        with contextlib.suppress(OSError):  # it has gone already
            sock.send(encoder.error(code, text))
        if self._farewells >= FAREWELLS_MAX or self._nursery is None:
            sock.close()
            return
        self._farewells += 1
        self._nursery.start_soon(self._say_goodbye, sock)

    async def _say_goodbye(self, sock: socket.socket) -> None:
        try:
            await self._drain(sock)
        except OSError:
            pass
        finally:
            self._farewells -= 1
            sock.close()

    async def _serve_client(self, client: Client) -> None:
        sock = client.sock
        try:
            with client.scope:
                await self._read(client)
            self._part(client)
            await self._flush(client)
            if not client.is_dead:
                await self._drain(sock)
        except OSError:
            pass  # the other side has gone; nothing is left to be done for it
        finally:
            self._figures.net_output_bytes += client.sent_bytes
            self.by_id.pop(client.id, None)
            client.die()
            trio.lowlevel.notify_closing(sock)
            sock.close()

    async def _read(self, client: Client) -> None:
        """Read and run until the end of the stream, or until the connection is to be closed."""
        sock, decoder, figures = client.sock, client.decoder, self._figures
        while not client.is_closing:
            await trio.lowlevel.wait_readable(sock)
            is_large = decoder.pending_bytes > READ_BYTES and not client.is_waiting
            try:
                data = sock.recv(READ_BYTES_LARGE if is_large else READ_BYTES)
            except (BlockingIOError, InterruptedError):
                continue
            except OSError:
                return
            if not data:
                return
            figures.net_input_bytes += len(data)
            client.idle_since_ms = self.turns.clock.now_ms()
            if not self._feed(client, data):
                return
            while self.run(client):
                await trio.lowlevel.checkpoint()
            while client.is_full and not client.is_closing:
                client.room = trio.Event()
                await client.room.wait()
                client.room = None
                while self.run(client):
                    await trio.lowlevel.checkpoint()

    def _feed(self, client: Client, data: bytes) -> bool:
        try:
            client.decoder.feed(data)
        except BufferLimitError as error:
            self._events.event("warning", "client-dropped", addr=client.address, reason=error)
            client.die()
            return False
        return True

    def _part(self, client: Client) -> None:
        """The client reads or writes no more: what it waited for is taken back."""
        client.is_closing = True
        client.pending.clear()
        client.give_up_waiting()
        self.turns.open()
        self.turns.broker.disconnect(client.id)
        self.turns.end(client)

    async def _flush(self, client: Client) -> None:
        """Wait until what is owed is sent, as long as the other side takes some."""
        while not (client.is_flushed or client.is_dead):
            sent_bytes = client.sent_bytes
            with trio.move_on_after(STALL_S):
                await client.flushed.wait()
            if client.sent_bytes == sent_bytes and not client.is_flushed:
                client.die()

    async def _drain(self, sock: socket.socket) -> None:
        """End our side and read for a moment: closing over unread input destroys what we said."""
        sock.shutdown(socket.SHUT_WR)
        with trio.move_on_after(self._linger_s):
            while True:
                await trio.lowlevel.wait_readable(sock)
                if not sock.recv(READ_BYTES):
                    return

    def _start_writer(self, client: Client) -> None:
        assert self._nursery is not None
        self._nursery.start_soon(self._write, client)

    async def _write(self, client: Client) -> None:
        """Send what didn't fit at once."""
        try:
            while client.backlog:
                await trio.lowlevel.wait_writable(client.sock)
                client.push()
                if client.room is None and client.is_runnable:
                    self.turns.resume(client)
        except (trio.ClosedResourceError, OSError):
            pass  # closed meanwhile
        finally:
            client.is_writing = False

    # Once a second

    async def _cron(self) -> None:
        while True:
            await trio.sleep(CRON_S)
            now_ms = self.turns.clock.now_ms()
            for client in list(self.by_id.values()):
                self._inspect(client, now_ms)
            self._figures.sample(now_ms, self.sent_bytes())

    def sent_bytes(self) -> int:
        """Bytes sent to clients since start, those of present connections included."""
        return self._figures.net_output_bytes + sum(each.sent_bytes for each in self.by_id.values())

    def _inspect(self, client: Client, now_ms: int) -> None:
        """Drop a connection that is idle, slow, or gone without our having looked."""
        limits = self.limits
        idle_s = (now_ms - client.idle_since_ms) / 1000
        if limits.idle_max_s and idle_s > limits.idle_max_s and not client.is_waiting:
            client.close_soon()
        if limits.out_soft_bytes and client.backlog_bytes > limits.out_soft_bytes:
            if client.over_soft_since_ms is None:
                client.over_soft_since_ms = now_ms
            elif now_ms - client.over_soft_since_ms > limits.out_soft_s * 1000:
                self._events.event("warning", "client-dropped", addr=client.address, reason="slow")
                client.die()
        else:
            client.over_soft_since_ms = None
        if client.room is not None and client.is_waiting and _has_hung_up(client.sock):
            client.die()


def _has_hung_up(sock: socket.socket) -> bool:
    """True if the other side has closed, though unread input hides it (Linux; elsewhere never)."""
    if sock.family == socket.AF_UNIX or not hasattr(socket, "TCP_INFO"):
        return False
    try:
        return (
            struct.unpack("B", sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1))[0]
            in _TCP_CLOSED
        )
    except OSError:
        return True
