"""Streams: one seed, many independent random streams, each named for the one thing that it decides.

A stream's draws depend on the seed and its name alone, so taking a fault or a client out of a plan leaves the draws
of all others as they were: that is what makes a failing run shrink.
"""

from __future__ import annotations

import hashlib
import random


class Streams:
    """Hands out the stream of a name; the same object each time."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._streams: dict[str, random.Random] = {}

    def __getitem__(self, name: str) -> random.Random:
        stream = self._streams.get(name)
        if stream is None:
            stream = self._streams[name] = fresh_stream(self.seed, name)
        return stream


def fresh_stream(seed: int, name: str) -> random.Random:
    """A generator seeded by a hash of both, whatever PYTHONHASHSEED says."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return random.Random(int.from_bytes(digest[:16], "big"))
