"""Replies: a node's RESP2 bytes as Python values, bounded.

Sans I/O. The one idea: of a bulk string no more is kept than a page shows, so that looking at a huge body costs no
memory, and the pipeline behind it stays in step.
"""

from __future__ import annotations

from typing import TypeAlias

import attrs

ELEMENTS_MAX = 1 << 20  # of one reply, in all its arrays
LINE_BYTES_MAX = 64 << 10  # of a status or an error
DIGITS_MAX = 20  # of a number or a length: 64 bits


@attrs.frozen
class Failure:
    """An error reply."""

    text: str  # the line without its minus: the code first


class Cut(bytes):
    """The beginning of a bulk string; `size` is that of the whole."""

    size: int

    @classmethod
    def of(cls, data: bytes, size: int) -> Cut:
        """What was kept of `size` bytes."""
        cut = cls(data)
        cut.size = size
        return cut


Reply: TypeAlias = "str | bytes | int | Failure | list[Reply] | None"


class ReplyFormatError(Exception):
    """The bytes aren't RESP2, or more than a reply may have: the connection is of no use any more."""


class ReplyReader:
    """Takes bytes as they come and gives complete replies; `bulk_bytes_max` of each bulk string are kept."""

    def __init__(self, *, bulk_bytes_max: int) -> None:
        self._bulk_bytes_max = bulk_bytes_max
        self._buffer = bytearray()
        self._open: list[tuple[list[Reply], int]] = []  # arrays begun, and their lengths
        self._elements = 0
        self._bulk = bytearray()  # what is kept of the bulk string under way
        self._bulk_size = -1  # -1: none is under way
        self._bulk_left = 0  # of its bytes, the line's end included

    def feed(self, data: bytes) -> list[Reply]:
        """Replies that are complete now, in order. ReplyFormatError: drop the connection."""
        self._buffer += data
        done: list[Reply] = []
        while True:
            if self._bulk_size >= 0:
                if not self._take_bulk():
                    return done
                value: Reply = self._end_bulk()
            else:
                line = self._take_line()
                if line is None:
                    return done
                begun = self._begin(line)
                if begun is _NOTHING:
                    continue
                value = begun  # type: ignore[assignment]  # the sentinel is excluded just above
            self._place(value, done)

    def _take_line(self) -> bytes | None:
        end = self._buffer.find(b"\r\n")
        if end < 0:
            if len(self._buffer) > LINE_BYTES_MAX:
                raise ReplyFormatError(f"a line of more than {LINE_BYTES_MAX} bytes")
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return line

    def _begin(self, line: bytes) -> Reply | object:
        """The value of a line, or _NOTHING if more is to come."""
        kind, rest = line[:1], line[1:]
        if kind == b"+":
            return rest.decode("utf-8", "backslashreplace")
        if kind == b"-":
            return Failure(rest.decode("utf-8", "backslashreplace"))
        try:
            number = int(rest if len(rest) <= DIGITS_MAX else b"")
        except ValueError:
            raise ReplyFormatError(f"no RESP: {line[:64]!r}") from None
        if kind == b":":
            return number
        if number < 0 and kind in (b"$", b"*"):
            return None
        if kind == b"$":
            self._bulk_size, self._bulk_left = number, number + 2
            return _NOTHING
        if kind != b"*":
            raise ReplyFormatError(f"no RESP: {line[:64]!r}")
        self._elements += number
        if self._elements > ELEMENTS_MAX:
            raise ReplyFormatError(f"a reply of more than {ELEMENTS_MAX} elements")
        if number == 0:
            return []
        self._open.append(([], number))
        return _NOTHING

    def _take_bulk(self) -> bool:
        """Move what is there of the bulk string; True once it is complete."""
        taken = min(len(self._buffer), self._bulk_left)
        room = min(self._bulk_bytes_max, self._bulk_size) - len(self._bulk)
        self._bulk += self._buffer[: min(taken, max(room, 0))]
        del self._buffer[:taken]
        self._bulk_left -= taken
        return self._bulk_left == 0

    def _end_bulk(self) -> bytes:
        data, size = bytes(self._bulk), self._bulk_size
        self._bulk.clear()
        self._bulk_size = -1
        return data if len(data) == size else Cut.of(data, size)

    def _place(self, value: Reply, done: list[Reply]) -> None:
        while self._open:
            items, count = self._open[-1]
            items.append(value)
            if len(items) < count:
                return
            self._open.pop()
            value = items
        self._elements = 0
        done.append(value)


_NOTHING = object()


def size_of(data: bytes) -> int:
    """The size of the whole bulk string, of which perhaps only the beginning is here."""
    return data.size if isinstance(data, Cut) else len(data)
