"""Shelf: parts of topics' messages that connections keep until their sockets take them, each counted once.

The same body waits for a thousand slow subscribers and takes memory once. Who keeps a part is nobody's business here,
only how many do.
"""

from __future__ import annotations

# A smaller part isn't worth it: to keep one costs each who keeps it half as much
SHELVED_MIN_BYTES = 256


class Shelf:
    """What all connections of a node keep of messages."""

    def __init__(self) -> None:
        self.bytes = 0  # of all parts
        self._keepers: dict[int, int] = {}  # how many, by the part's identity: they keep it alive

    def put(self, part: bytes) -> None:
        """One more keeps this part."""
        count = self._keepers.get(id(part), 0)
        self._keepers[id(part)] = count + 1
        if not count:
            self.bytes += len(part)

    def take(self, part: bytes) -> None:
        """One who kept it does so no more."""
        count = self._keepers.pop(id(part)) - 1
        if count:
            self._keepers[id(part)] = count
        else:
            self.bytes -= len(part)


def is_shelved(part: bytes) -> bool:
    """True if this part is counted on the shelf."""
    return len(part) >= SHELVED_MIN_BYTES
