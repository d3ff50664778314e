"""SlowLog: the commands that took longest lately, and the SLOWLOG command that shows them.

It counts the time of the command itself, not of waiting. Bounded three ways: entries, arguments of
an entry, bytes of an argument. Source: reference 1.18.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

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
        self.entries: deque[Entry] = deque(maxlen=entries_max)
        self._next_id = 0

    def set_entries_max(self, count: int) -> None:
        """Keep at most so many; the oldest go."""
        self.entries = deque(self.entries, maxlen=count)

    def note(self, at_s: int, usec: int, words: Sequence[bytes]) -> None:
        """Keep a command if it was slow enough."""
        if self.threshold_us < 0 or usec < self.threshold_us:
            return
        shown = cut(words, count_max=ARGUMENTS_MAX, bytes_max=ARGUMENT_BYTES_MAX)
        self.entries.append(Entry(self._next_id, at_s, usec, shown))
        self._next_id += 1


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
            newest = list(reversed(log.entries))
            shown = newest if count < 0 else newest[:count]
            return [[each.id, each.at_s, each.usec, list(each.words)] for each in shown]
        case b"len", 1:
            return len(log.entries)
        case b"reset", 1:
            log.entries.clear()
            return Status(b"OK")
    raise CommandError("Unknown SLOWLOG subcommand or wrong # of args. Try GET, RESET, LEN.")
