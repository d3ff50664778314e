"""SlowLog: the commands that took longest lately, and the SLOWLOG command that shows them.

It counts the time of the command itself, not of waiting. Bounded three ways: entries, arguments of
an entry, bytes of an argument. Source: reference 1.18.

Entries lie packed in one block. As objects they would lie scattered among what was made at the time,
a million queues perhaps, and each would keep a MiB of that from the system when it has gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgpack

from disque.core.integers import parse_int
from disque.core.ready import Status
from disque.core.value import value
from disque.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from disque.server.connection import Client
    from disque.server.render import Answer
    from disque.server.shell import Shell

ARGUMENTS_MAX = 32
ARGUMENT_BYTES_MAX = 128
_GET_DEFAULT = 10
_SIZE_BYTES = 4  # of the size of a packed entry, ahead of it and behind it


@value
class Entry:
    """One slow command."""

    id: int
    at_s: int  # wall clock
    usec: int
    words: tuple[bytes, ...]


class SlowLog:
    """Keeps the newest `entries_max` of those that took at least `threshold_us`."""

    def __init__(self, *, threshold_us: int, entries_max: int) -> None:
        self.threshold_us = threshold_us  # negative: nothing is kept
        self._entries_max = entries_max
        self._packed = bytearray()  # the oldest first
        self._count = 0
        self._next_id = 0

    def __len__(self) -> int:
        return self._count

    def newest(self, count: int) -> list[Entry]:
        """So many at most, the newest first; negative: all."""
        found: list[Entry] = []
        packed, end = memoryview(self._packed), len(self._packed)
        while end and len(found) != count:
            row_end = end - _SIZE_BYTES
            size = int.from_bytes(packed[row_end:end], "big")
            id_, at_s, usec, *words = msgpack.unpackb(packed[row_end - size : row_end])
            found.append(Entry(id_, at_s, usec, tuple(words)))
            end = row_end - size - _SIZE_BYTES
        return found

    @property
    def entries_max(self) -> int:
        """How many are kept."""
        return self._entries_max

    def set_entries_max(self, count: int) -> None:
        """Keep at most so many; the oldest go."""
        self._entries_max = count
        self._drop_oldest()

    def note(self, at_s: int, usec: int, words: Sequence[bytes]) -> None:
        """Keep a command if it was slow enough."""
        if self.threshold_us < 0 or usec < self.threshold_us:
            return
        shown = cut(words, count_max=ARGUMENTS_MAX, bytes_max=ARGUMENT_BYTES_MAX)
        row = msgpack.packb((self._next_id, at_s, usec, *shown))
        size = len(row).to_bytes(_SIZE_BYTES, "big")
        self._packed += size + row + size
        self._count += 1
        self._next_id += 1
        self._drop_oldest()

    def clear(self) -> None:
        """Forget all."""
        self._packed.clear()
        self._count = 0

    def _drop_oldest(self) -> None:
        while self._count > self._entries_max:
            size = int.from_bytes(self._packed[:_SIZE_BYTES], "big")
            del self._packed[: size + 2 * _SIZE_BYTES]
            self._count -= 1


def cut(words: Sequence[bytes], *, count_max: int, bytes_max: int) -> tuple[bytes, ...]:
    """The first words of a command, and of each its beginning; what is left out is counted in its place."""
    kept = [_cut_word(word, bytes_max) for word in words[:count_max]]
    if len(words) > count_max:
        kept[-1] = b"... (%d more arguments)" % (len(words) - count_max + 1)
    return tuple(kept)


def _cut_word(word: bytes, bytes_max: int) -> bytes:
    more = len(word) - bytes_max
    return word if more <= 0 else word[:bytes_max] + b"... (%d more bytes)" % more


def slowlog(shell: Shell, _: Client, args: list[bytes]) -> Answer:
    """`SLOWLOG GET [count] | LEN | RESET`; the newest come first."""
    log = shell.slowlog
    match args[0].lower(), len(args):
        case b"get", 1 | 2:
            count = parse_int(args[1]) if len(args) == 2 else _GET_DEFAULT
            if count is None:
                raise CommandError("value is not an integer or out of range")
            return [[each.id, each.at_s, each.usec, list(each.words)] for each in log.newest(count)]
        case b"len", 1:
            return len(log)
        case b"reset", 1:
            log.clear()
            return Status(b"OK")
    raise CommandError("Unknown SLOWLOG subcommand or wrong # of args. Try GET, RESET, LEN.")
