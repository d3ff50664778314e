"""A link: one connection's bytes, framed; reads are bounded, writes never wait.

`send` tries the socket at once: one write for all frames of a turn. Only what the socket didn't
take is kept, and a writer task brings it out. A link that holds more than its bound, or holds
something for too long, is closed: late words are worth less than a fresh link. It knows nothing of
what frames say.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections import deque
from typing import TYPE_CHECKING

import attrs
import trio

from cluster.errors import RemoteProtocolError
from cluster.frame import FRAME_BYTES_MAX, HANDSHAKE_FRAME_BYTES_MAX, FrameDecoder, join_frames
from cluster.tls import TlsSession, explain

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable

READ_BYTES = 1 << 15  # a C library takes larger blocks from the system, each time
_LINGER_NOT = struct.pack("ii", 1, 0)


@attrs.frozen
class LinkLimits:
    """Bounds of one link."""

    frame_bytes_max: int = FRAME_BYTES_MAX  # after authentication
    out_bytes_max: int = 64 << 20  # waiting to be written, beside the largest piece
    out_wait_max_ms: int = 15_000  # the oldest byte waiting (rule M12: the node timeout)


class Link:
    """One connection. `reason` says why it was closed from this side, "" if it wasn't."""

    def __init__(self, stream: trio.SocketStream, limits: LinkLimits) -> None:
        self.limits = limits  # may be replaced at any time
        self._stream = stream
        self._socket = stream.socket
        self._decoder = FrameDecoder(HANDSHAKE_FRAME_BYTES_MAX)
        self._read_bytes = HANDSHAKE_FRAME_BYTES_MAX  # a stranger may say much to TLS in few bytes
        self._waiting: deque[tuple[float, memoryview]] = deque()  # (since when, bytes)
        self._waiting_bytes = 0
        self._wakeup = trio.Event()
        self._tls: TlsSession | None = None
        self._has_ended = False  # in TLS
        self.reason = ""
        self.is_closed = False

    @property
    def waiting_bytes(self) -> int:
        """Bytes that the socket didn't take yet."""
        return self._waiting_bytes

    @property
    def unread_bytes(self) -> int:
        """Bytes that came and are no whole frame yet."""
        return self._decoder.unread_bytes

    def hosts(self) -> tuple[str, str]:
        """(own, remote) host of the socket; IPv4 mapped into IPv6 is shown as IPv4. OSError if it's gone."""
        return _host(self._socket.getsockname()), _host(self._socket.getpeername())

    async def secure(self, context: ssl.SSLContext, *, is_server: bool) -> None:
        """Speak TLS from here on, before anything else was said; RemoteProtocolError if that can't be."""
        tls = TlsSession(context, is_server=is_server)
        try:
            while not tls.is_done:
                self._put(tls.shake())
                if not tls.is_done:
                    tls.feed(await self._stream.receive_some(self._read_bytes))
            # The first frame may have come with the last word of the handshake
            meant, self._has_ended = tls.decrypt()
            self._put(tls.own_words())
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise RemoteProtocolError("the connection broke during the TLS handshake") from None
        except OSError as error:  # ssl's
            self._put(tls.own_words())
            raise RemoteProtocolError(f"TLS: {explain(error)}") from None
        self._decoder.feed(meant)
        self._tls = tls

    def authenticated(self) -> None:
        """Frames may be long from now on."""
        self._decoder.bytes_max = self.limits.frame_bytes_max
        self._read_bytes = READ_BYTES

    async def wait_frame(self) -> bytes | None:
        """Wait for one frame's body, for the handshake; None at the end of the stream."""
        while (frame := self._decoder.next_frame()) is None:
            if not await self.wait_read():
                return None
        return frame

    def frames_read(self) -> Iterable[bytes]:
        """Bodies that came with earlier reads; RemoteProtocolError for a frame over the limit."""
        while not self.is_closed and (frame := self._decoder.next_frame()) is not None:
            yield frame

    def send(self, bodies: Iterable[bytes]) -> None:
        """Write frames in one write, or keep what the socket doesn't take; closes the link over its bound."""
        if self.is_closed:
            return
        data = join_frames(bodies)
        if self._tls is not None:
            try:
                data = self._tls.encrypt(data)
            except OSError as error:
                # ssl's: nothing can be said after the other side's end, or its nonsense
                self.close("" if self._has_ended else f"TLS: {explain(error)}")
                return
        self._put(data)

    def _put(self, said: bytes) -> None:
        data = memoryview(said)
        if not self._waiting:
            data = data[self._try_write(data) :]
        if not data or self.is_closed:
            return
        waiting_bytes, most = self._waiting_bytes + len(data), self.limits.out_bytes_max
        if waiting_bytes > most:
            # One job may be larger than the bound, and words come after it
            largest = max([len(data), *[len(each) for _, each in self._waiting]])
            if waiting_bytes - largest > most:
                self.abort(f"{waiting_bytes} bytes wait to be sent, at most {most} are allowed")
                return
        self._waiting.append((trio.current_time(), data))
        self._waiting_bytes += len(data)
        self._wakeup.set()

    async def write_waiting(self) -> None:
        """The writer task: bring out what waits, until the link closes."""
        while not self.is_closed:
            if not self._waiting:
                self._wakeup = trio.Event()
                await self._wakeup.wait()
                continue
            wait_max_ms = self.limits.out_wait_max_ms
            with trio.move_on_at(self._waiting[0][0] + wait_max_ms / 1000) as scope:
                try:
                    await trio.lowlevel.wait_writable(self._socket)
                except trio.ClosedResourceError:
                    return
            if scope.cancelled_caught:
                self.abort(f"bytes waited longer than {wait_max_ms} ms to be sent")
                return
            self._write_some()

    async def linger(self, bytes_max: int, timeout_s: float) -> None:
        """Say that no more comes, and let the other side read the last word before the socket goes."""
        with trio.move_on_after(timeout_s):
            try:
                await self._stream.send_eof()
                while bytes_max > 0 and (data := await self._stream.receive_some(READ_BYTES)):
                    bytes_max -= len(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError, trio.BusyResourceError):
                pass

    def abort(self, reason: str = "") -> None:
        """Close, and take back what the kernel hasn't brought out yet: after a cut it would arrive late, as if new."""
        if not self.is_closed:
            with contextlib.suppress(OSError):  # the connection is broken already
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
        self.close(reason)

    def close(self, reason: str = "") -> None:
        """Close now; waiting readers and writers end. Safe to call again."""
        if self.is_closed:
            return
        self.is_closed = True
        self.reason = reason
        self._waiting.clear()
        self._waiting_bytes = 0
        self._socket.close()
        self._wakeup.set()

    async def wait_read(self) -> bool:
        """Wait for bytes; False at the end of the stream."""
        if self._has_ended or self.is_closed:
            return False
        try:
            # trio's own way reads first, in vain, and waits then: between two turns there is nothing
            await trio.lowlevel.wait_readable(self._socket)
            data = os.read(self._socket.fileno(), self._read_bytes)
        except BlockingIOError:
            return True
        except (OSError, trio.ClosedResourceError):
            return False
        if self._tls is None:
            self._decoder.feed(data)
            return bool(data)
        return self._read_tls(self._tls, data)

    def _read_tls(self, tls: TlsSession, data: bytes | bytearray) -> bool:
        try:
            tls.feed(data)
            meant, self._has_ended = tls.decrypt()
        except OSError as error:  # ssl's: these bytes are none of its
            self.close(f"TLS: {explain(error)}")
            return False
        if words := tls.own_words():
            self._put(words)
        self._decoder.feed(meant)
        return bool(meant) or not self._has_ended

    def _write_some(self) -> None:
        while self._waiting and not self.is_closed:
            since, data = self._waiting[0]
            count = self._try_write(data)
            self._waiting_bytes -= count
            if count < len(data):
                if self._waiting:
                    self._waiting[0] = (since, data[count:])
                return
            self._waiting.popleft()

    def _try_write(self, data: memoryview) -> int:
        """How many bytes the socket took now; a broken one is closed and takes none."""
        try:
            # trio's sockets have no send that doesn't wait; the descriptor is non-blocking.
            return os.write(self._socket.fileno(), data)
        except BlockingIOError:
            return 0
        except OSError:
            self.close()
            return 0


def _host(name: object) -> str:
    host = str(name[0]) if isinstance(name, tuple) and name else ""
    return host.removeprefix("::ffff:") if "." in host else host
