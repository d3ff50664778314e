"""Entropy: the system's chance, asked for in large pieces, since a call of the kernel for each job's id is dear.

Ids of jobs must not be guessed: who knows one may act on it.
"""

from __future__ import annotations

import os
import secrets

POOL_BYTES = 4 << 10


class Entropy:
    """Dice of a node."""

    def __init__(self) -> None:
        self._pool = b""
        self._used = 0

    def randbytes(self, n: int, /) -> bytes:
        """n bytes that nobody had before."""
        start = self._used
        if start + n > len(self._pool):
            self._pool, start = os.urandom(max(n, POOL_BYTES)), 0
        self._used = start + n
        return self._pool[start : self._used]

    def randrange(self, stop: int, /) -> int:
        """A number from 0 to stop - 1."""
        return secrets.randbelow(stop)
