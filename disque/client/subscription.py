"""Listener: one connection that is subscribed to channels, over any transport; it moves when its node is lost.

Topics are at most once: what is published while it looks for another node is missed.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, TypeAlias

from disque.client import results
from disque.client.commands import Name, words
from disque.client.connection import Connection, encode
from disque.client.errors import ReplyError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from disque.client.results import Message
    from disque.client.session import Session
    from disque.client.url import Address

# What is wanted: "" and a channel, or "P" and a pattern; the letter is the one of PSUBSCRIBE.
_Topic: TypeAlias = tuple[str, Name]


class Listener:
    """The channels and patterns that are wanted, and the connection that hears them. One caller at a time."""

    def __init__(
        self, session: Session, channels: Iterable[Name], patterns: Iterable[Name]
    ) -> None:
        self._session = session
        self._wanted = dict.fromkeys(_topics(channels, patterns))
        self._heard: deque[Message] = deque()
        self._connection: Connection | None = None
        self._address: Address | None = None

    async def connect(self) -> Connection:
        """Be subscribed when this returns. Raises UnreachableError, or the ReplyError of a bad pattern."""
        while self._connection is None:
            self._connection, self._address = await self._session.open("produce")
            try:
                await self._change("SUBSCRIBE", list(self._wanted))
            except ReplyError:
                self.close()
                raise
        return self._connection

    async def receive(self, timeout: float | None) -> Message | None:
        """The next message; None after so many seconds. Raises UnreachableError if no node can be found again."""
        deadline = None if timeout is None else self._session.now() + timeout
        while not self._heard:
            connection = await self.connect()
            try:
                self._take(await connection.receive(deadline))
            except TimeoutError:
                return None
            except OSError:
                self._lose()
        return self._heard.popleft()

    async def subscribe(self, channels: Iterable[Name], patterns: Iterable[Name]) -> None:
        """Hear these, too; if one can't be, none of them is wanted."""
        new = [topic for topic in _topics(channels, patterns) if topic not in self._wanted]
        self._wanted.update(dict.fromkeys(new))
        try:
            if self._connection is not None:
                await self._change("SUBSCRIBE", new)
            await self.connect()
        except ReplyError:
            self._forget(new)
            raise

    async def unsubscribe(self, channels: Iterable[Name], patterns: Iterable[Name]) -> None:
        """Don't hear these any more."""
        old = [topic for topic in _topics(channels, patterns) if topic in self._wanted]
        self._forget(old)
        if self._connection is not None:
            await self._change("UNSUBSCRIBE", old)

    def fileno(self) -> int:
        """The socket's, -1 while there is none."""
        return -1 if self._connection is None else self._connection.stream.fileno()

    def close(self) -> None:
        """End the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def _change(self, verb: str, topics: list[_Topic]) -> None:
        """One command a topic, and the answer to each; a lost node is left. Raises the first error reply."""
        assert self._connection is not None
        deadline = self._session.now() + self._session.options.reply_timeout
        data = b"".join([encode(words(kind + verb, name)) for kind, name in topics])
        error: ReplyError | None = None
        left = len(topics)
        try:
            await self._connection.send(data, deadline)
            while left:
                try:
                    left -= self._take(await self._connection.receive(deadline))
                except ReplyError as refusal:
                    error, left = error or refusal, left - 1
        except OSError:
            self._lose()
        except BaseException:
            self.close()
            raise
        if error is not None:
            raise error

    def _take(self, reply: object) -> bool:
        """Keep a message; True for the answer to a command. Raises the error reply that it is."""
        if isinstance(reply, ReplyError):
            raise reply
        message = results.message(reply)
        if message is not None:
            self._heard.append(message)
        return message is None

    def _forget(self, topics: Iterable[_Topic]) -> None:
        for topic in topics:
            self._wanted.pop(topic, None)

    def _lose(self) -> None:
        self.close()
        if self._address is not None:
            self._session.lost(self._address)


def _topics(channels: Iterable[Name], patterns: Iterable[Name]) -> list[_Topic]:
    if isinstance(patterns, str | bytes):
        raise TypeError(f"patterns are several, in a tuple, got {patterns!r}")
    return [*[("", name) for name in channels], *[("P", name) for name in patterns]]
