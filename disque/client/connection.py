"""Connection: commands out, replies in, over one stream, in the order of a pipeline.

Replies are parsed by hiredis. It knows nothing of other nodes, and raises nothing that happens to the stream on its own
account: `Exchange` says how far it got, and that decides what may be repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import attrs
import hiredis

from disque.client.errors import reply_error
from disque.client.transport import Stream
from disque.resp.encoder import bulk_array

# No more of a pipeline is sent before its replies are read: what fits into any socket's buffers can't block both ends.
BATCH_BYTES: Final = 32 << 10
# Of one reply; as much as the largest record of a node's log, and a body is less.
REPLY_BYTES_MAX: Final = 1 << 30
NOTHING: Final = object()


class BadReplyError(OSError):
    """The other end doesn't speak RESP, or answers in a shape that can't be meant: the connection is of no use."""


@attrs.define
class Exchange:
    """How far a batch got: `replies` that came, `sent` commands that may have arrived whole, and what went wrong."""

    replies: list[Any] = attrs.Factory(list)
    sent: int = 0
    trouble: OSError | None = None


class Connection:
    """One stream and its parser. One caller at a time."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._reader = hiredis.Reader(
            protocolError=BadReplyError, replyError=reply_error, notEnoughData=NOTHING
        )
        self._unfinished_bytes = 0  # of the reply under way

    def close(self) -> None:
        """End it."""
        self.stream.close()

    def take(self) -> Any:
        """A reply that has come already, else NOTHING; errors are values. BadReplyError for what is no RESP."""
        try:
            reply = self._reader.gets()
        except MemoryError:
            raise BadReplyError("the node announces more than there is memory for") from None
        if reply is not NOTHING:
            self._unfinished_bytes = 0
        return reply

    async def send(self, data: bytes, deadline: float | None) -> None:
        """Send all."""
        left = memoryview(data)
        while left:
            left = left[await self.stream.send_some(left, deadline) :]

    async def receive(self, deadline: float | None) -> Any:
        """The next reply; errors are values. OSError if the stream ends."""
        while (reply := self.take()) is NOTHING:
            data = await self.stream.receive_some(deadline)
            if not data:
                raise ConnectionResetError("the node closed the connection")
            self._unfinished_bytes += len(data)
            if self._unfinished_bytes > REPLY_BYTES_MAX:
                raise BadReplyError(f"a reply of more than {REPLY_BYTES_MAX} bytes")
            self._reader.feed(data)
        return reply

    async def exchange(self, batch: Sequence[bytes], deadline: float | None) -> Exchange:
        """Send commands and read a reply to each, as far as the stream lasts; TimeoutError is a trouble, too."""
        done = Exchange()
        try:
            await self._send_batch(batch, done, deadline)
        except OSError as error:
            done.trouble = error
        try:
            # also after a trouble: what was answered before it may have come
            while len(done.replies) < done.sent:
                done.replies.append(await self.receive(deadline))
        except OSError as error:
            done.trouble = done.trouble or error
        return done

    async def _send_batch(
        self, batch: Sequence[bytes], done: Exchange, deadline: float | None
    ) -> None:
        """Count on the way which commands have left whole: one that has not can't be carried out."""
        data = b"".join(batch)
        ends, end = [], 0
        for each in batch:
            end += len(each)
            ends.append(end)
        at, left = 0, memoryview(data)
        while at < end:
            at += await self.stream.send_some(left[at:], deadline)
            while done.sent < len(ends) and ends[done.sent] <= at:
                done.sent += 1


def encode(words: Sequence[bytes]) -> bytes:
    """A command as it is sent."""
    return bulk_array(words)


def in_batches(encoded: Sequence[bytes]) -> list[int]:
    """How many of these commands, in their order, each batch takes: BATCH_BYTES of them, or one that is larger."""
    sizes: list[int] = []
    room = 0
    for each in encoded:
        if sizes and len(each) <= room:
            sizes[-1] += 1
            room -= len(each)
        else:
            sizes.append(1)
            room = BATCH_BYTES - len(each)
    return sizes
