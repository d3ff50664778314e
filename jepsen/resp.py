"""Resp: a raw client of the Redis protocol over a trio stream, with a time limit a command.

Black box: it imports nothing of the broker, so that a bug in our own codec can't hide one in our own server. A stream
that gave no whole reply in time is closed, since a late reply would be taken for the next command's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import attrs
import trio

Word = str | bytes | int
Opener = Callable[[], Awaitable[trio.SocketStream]]

REFUSED: Final = "refused"
TIMEOUT: Final = "timeout"
RESET: Final = "reset"
EOF: Final = "eof"

RECEIVE_BYTES: Final = 65_536
REPLY_BYTES_MAX: Final = 64 << 20
OPEN_TIMEOUT_S: Final = 1.5


class ReplyError(Exception):
    """An error reply; str() is the whole line without the minus."""


class Trouble(Exception):  # noqa: N818 - no mistake of anybody
    """No reply: `kind` is REFUSED, TIMEOUT, RESET or EOF, `was_sent` whether any byte of the command may be out."""

    def __init__(self, kind: str, *, was_sent: bool) -> None:
        super().__init__(kind)
        self.kind = kind
        self.was_sent = was_sent


def encode(words: tuple[Word, ...]) -> bytes:
    """A command as an array of bulk strings."""
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        raw = word if isinstance(word, bytes) else str(word).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(raw), raw))
    return b"".join(parts)


class _MoreNeededError(Exception):
    """The buffer ends within a reply."""


def decode(data: bytes | bytearray, at: int = 0) -> tuple[Any, int] | None:
    """One RESP2 reply and where it ends, None if there isn't a whole one; a ReplyError is returned, not raised.

    Bulks are bytes, status replies str. Raises ValueError for what is no RESP.
    """
    try:
        return _decode(data, at)
    except _MoreNeededError:
        return None


def _decode(data: bytes | bytearray, at: int) -> tuple[Any, int]:
    end = data.find(b"\r\n", at)
    if end < 0:
        raise _MoreNeededError
    kind, rest = data[at : at + 1], bytes(data[at + 1 : end])
    end += 2
    if kind == b"+":
        return rest.decode(), end
    if kind == b"-":
        return ReplyError(rest.decode(errors="replace")), end
    if kind == b":":
        return int(rest), end
    if kind == b"$":
        size = int(rest)
        if size < 0:
            return None, end
        if len(data) < end + size + 2:
            raise _MoreNeededError
        return bytes(data[end : end + size]), end + size + 2
    if kind == b"*":
        count = int(rest)
        if count < 0:
            return None, end
        found = []
        for _ in range(count):
            each, end = _decode(data, end)
            found.append(each)
        return found, end
    raise ValueError(f"no RESP: {bytes(data[at : at + 60])!r}")


@attrs.define(eq=False)
class Client:
    """One connection to one node, made when it is first needed and again after trouble.

    `opener` connects; `password` "" means no AUTH. One task at a time may use it.
    """

    opener: Opener
    password: str = ""
    _stream: trio.SocketStream | None = attrs.field(default=None, init=False)
    _buffer: bytearray = attrs.field(factory=bytearray, init=False)

    async def call(self, *words: Word, timeout_s: float) -> Any:
        """The reply to a command. Raises ReplyError for an error reply, Trouble for none.

        `timeout_s` holds from the moment the connection stands; the opening has its own limit.
        """
        stream = self._stream or await self._open()
        return await self._exchange(stream, words, timeout_s)

    def close(self) -> None:
        """Drop the connection, if there is one; never waits."""
        if self._stream is not None:
            self._stream.socket.close()
            self._stream = None
        self._buffer.clear()

    async def _open(self) -> trio.SocketStream:
        try:
            with trio.fail_after(OPEN_TIMEOUT_S):
                stream = await self.opener()
        except (OSError, trio.TooSlowError) as error:
            raise Trouble(REFUSED, was_sent=False) from error
        self._stream = stream
        if self.password:
            try:
                await self._exchange(stream, ("AUTH", self.password), OPEN_TIMEOUT_S)
            except Trouble as trouble:
                raise Trouble(trouble.kind, was_sent=False) from trouble
        return stream

    async def _exchange(
        self, stream: trio.SocketStream, words: tuple[Word, ...], timeout_s: float
    ) -> Any:
        done = False
        try:
            with trio.fail_after(timeout_s):
                await stream.send_all(encode(words))
                reply = await self._receive(stream)
            done = True
        except trio.TooSlowError as error:
            raise Trouble(TIMEOUT, was_sent=True) from error
        except (trio.BrokenResourceError, trio.ClosedResourceError, OSError) as error:
            raise Trouble(RESET, was_sent=True) from error
        finally:
            if not done:
                self.close()
        if isinstance(reply, ReplyError):
            raise reply
        return reply

    async def _receive(self, stream: trio.SocketStream) -> Any:
        while (found := decode(self._buffer)) is None:
            data = await stream.receive_some(RECEIVE_BYTES)
            if not data:
                raise Trouble(EOF, was_sent=True)
            self._buffer += data
            if len(self._buffer) > REPLY_BYTES_MAX:
                raise ValueError(f"a reply above {REPLY_BYTES_MAX} bytes")
        reply, end = found
        del self._buffer[:end]
        return reply
