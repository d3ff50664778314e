"""A frame: four bytes of length, big-endian, then that many bytes of body.

The decoder is incremental and bounded: a length over the limit is refused when it is read, before
anything of the body is kept. It knows nothing of what a body says.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from cluster.errors import RemoteProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterable

HANDSHAKE_FRAME_BYTES_MAX = 4096  # before authentication
FRAME_BYTES_MAX = 513 << 20  # after it: one job of 512 MiB, and room around it

_LENGTH = struct.Struct(">I")
_TLS_HELLO = b"\x16\x03"


def encode_frame(body: bytes) -> bytes:
    """Put the length before the body; raises ValueError over 4 GiB - 1."""
    if len(body) > 0xFFFF_FFFF:
        raise ValueError(f"a frame takes at most {0xFFFF_FFFF} bytes, got {len(body)}")
    return _LENGTH.pack(len(body)) + body


def join_frames(bodies: Iterable[bytes]) -> bytes:
    """Encode several frames as one piece of bytes, for one write."""
    parts: list[bytes] = []
    for body in bodies:
        parts.append(_LENGTH.pack(len(body)))
        parts.append(body)
    return b"".join(parts)


class FrameDecoder:
    """Cut a stream of bytes into frame bodies.

    Take frames one at a time with `next_frame`, so that `bytes_max` can be raised after the
    handshake although more frames may have come with the same read.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._buffer = bytearray()
        self._start = 0

    @property
    def unread_bytes(self) -> int:
        """Bytes that were fed and haven't come out as bodies."""
        return len(self._buffer) - self._start

    def feed(self, data: bytes | bytearray) -> None:
        """Add bytes as they were read."""
        if self._start:
            del self._buffer[: self._start]
            self._start = 0
        self._buffer += data

    def next_frame(self) -> bytes | None:
        """The next body, or None if more bytes are needed; RemoteProtocolError for one over the limit."""
        begin = self._start + _LENGTH.size
        if len(self._buffer) < begin:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer, self._start)
        if length > self.bytes_max:
            if self._buffer.startswith(_TLS_HELLO, self._start):
                raise RemoteProtocolError("the other side speaks TLS, this one doesn't")
            raise RemoteProtocolError(
                f"frame of {length} bytes announced, at most {self.bytes_max} are allowed"
            )
        end = begin + length
        if len(self._buffer) < end:
            return None
        self._start = end
        return bytes(memoryview(self._buffer)[begin:end])
