"""Node: one node of the cluster as the page reaches it, over RESP, like any client.

It knows connections and time limits, not what is asked. Few connections are kept; a question that finds its
connection dead is asked again on a new one, an order never is: it gets a new connection each, and what became of it
may be unknown.
"""

from __future__ import annotations

import os
import socket
import ssl
from typing import TYPE_CHECKING, TypeAlias

import attrs
import trio

from disque.resp.encoder import encode
from disque.web.replies import Failure, ReplyFormatError, ReplyReader

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from disque.web.replies import Reply

CONNECTIONS_MAX = 4  # to one node at a time
IDLE_MAX = 2  # of those, kept for later
BULK_BYTES_MAX = 64 << 10  # of a body or name, kept
REPLY_BYTES_MAX = 64 << 20  # read of the answers to one `ask`
READ_BYTES = 64 << 10

Word: TypeAlias = "bytes | str | int"


class UnreachableError(Exception):
    """The node doesn't answer, or refuses us; str() is why, for people."""


@attrs.define(eq=False)
class _Link:
    stream: trio.abc.Stream
    reader: ReplyReader


class Node:
    """One node's port for RESP clients."""

    def __init__(
        self,
        dial: Callable[[], Awaitable[trio.abc.Stream]],
        *,
        password: Callable[[], str],
        timeout_s: float,
    ) -> None:
        """`dial` opens a connection (OSError); an `ask` may take `timeout_s` in all."""
        self._dial = dial
        self._password = password
        self._timeout_s = timeout_s
        self._idle: list[_Link] = []
        self._room = trio.CapacityLimiter(CONNECTIONS_MAX)

    async def ask(self, *commands: tuple[Word, ...]) -> list[Reply]:
        """The replies to commands that change nothing, one each; UnreachableError."""
        return await self._within_time(self._ask, commands)

    async def order(self, *words: Word) -> Reply:
        """The reply to a command that changes something; after UnreachableError it may still have been done."""
        (reply,) = await self._within_time(self._order, (words,))
        return reply

    async def close(self) -> None:
        """End the connections that are kept."""
        while self._idle:
            await trio.aclose_forcefully(self._idle.pop().stream)

    async def _within_time(
        self,
        act: Callable[[tuple[tuple[Word, ...], ...]], Awaitable[list[Reply]]],
        commands: tuple[tuple[Word, ...], ...],
    ) -> list[Reply]:
        try:
            with trio.fail_after(self._timeout_s):
                async with self._room:
                    return await act(commands)
        except trio.TooSlowError:
            raise UnreachableError(f"no answer within {self._timeout_s:g} s") from None
        except (trio.BrokenResourceError, trio.ClosedResourceError, EOFError):
            raise UnreachableError("the connection broke") from None
        except ReplyFormatError as error:
            raise UnreachableError(f"its answer can't be shown: {error}") from None
        except OSError as error:
            raise UnreachableError(_reason_of(error)) from None

    async def _ask(self, commands: tuple[tuple[Word, ...], ...]) -> list[Reply]:
        while self._idle:
            link = self._idle.pop()
            try:
                return await self._talk(link, commands)
            except (trio.BrokenResourceError, EOFError):
                continue  # it died while nobody used it
        return await self._talk(await self._connect(), commands)

    async def _order(self, commands: tuple[tuple[Word, ...], ...]) -> list[Reply]:
        return await self._talk(await self._connect(), commands)

    async def _connect(self) -> _Link:
        link = _Link(await self._dial(), ReplyReader(bulk_bytes_max=BULK_BYTES_MAX))
        password = self._password()
        if password:
            secret = password.encode("utf-8", "surrogateescape")
            (reply,) = await self._exchange(link, ((b"AUTH", secret),))
            if isinstance(reply, Failure):
                await trio.aclose_forcefully(link.stream)
                raise UnreachableError(f"it refuses our password: {reply.text}")
        return link

    async def _talk(self, link: _Link, commands: tuple[tuple[Word, ...], ...]) -> list[Reply]:
        replies = await self._exchange(link, commands)
        if len(self._idle) < IDLE_MAX and not _wants_password(replies):
            self._idle.append(link)
        else:
            await trio.aclose_forcefully(link.stream)
        return replies

    async def _exchange(self, link: _Link, commands: tuple[tuple[Word, ...], ...]) -> list[Reply]:
        """Ask and read; whatever goes wrong, the connection is closed, since it is out of step."""
        is_in_step = False
        try:
            await link.stream.send_all(b"".join([encode(_raw(words), 2) for words in commands]))
            replies: list[Reply] = []
            bytes_left = REPLY_BYTES_MAX
            while len(replies) < len(commands):
                data = await link.stream.receive_some(READ_BYTES)
                bytes_left -= len(data)
                if not data:
                    raise _ended(replies)
                if bytes_left < 0:
                    raise ReplyFormatError(f"more than {REPLY_BYTES_MAX >> 20} MiB")
                replies += link.reader.feed(bytes(data))
            is_in_step = True
            return replies
        finally:
            if not is_in_step:
                await trio.aclose_forcefully(link.stream)


def _raw(words: tuple[Word, ...]) -> list[bytes]:
    return [word if isinstance(word, bytes) else str(word).encode() for word in words]


def _wants_password(replies: list[Reply]) -> bool:
    """True if the node has got another password since the connection was made."""
    return any([isinstance(each, Failure) and each.text.startswith("NOAUTH") for each in replies])


def _ended(replies: list[Reply]) -> Exception:
    """Why the connection has ended before all replies came; its last words may tell."""
    last = replies[-1] if replies else None
    return UnreachableError(last.text) if isinstance(last, Failure) else EOFError()


def _reason_of(error: OSError) -> str:
    """Of a failed dial; trio tells of each address that it tried."""
    cause: BaseException = error
    while isinstance(cause.__cause__, BaseExceptionGroup | OSError):
        cause = cause.__cause__
        if isinstance(cause, BaseExceptionGroup):
            cause = cause.exceptions[-1]
    assert isinstance(cause, OSError)
    text = cause.strerror or str(error)
    if cause.errno is not None and not isinstance(cause, (socket.gaierror, ssl.SSLError)):
        text = os.strerror(cause.errno)
    return text.lower()
