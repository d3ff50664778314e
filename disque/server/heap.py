"""Heap: what Python and the C library keep of memory that was freed. A node may hold a gigabyte once, and never again.

Small objects lie in arenas of a MiB, and an arena goes back to the system when nothing is left in it: one object that
stays, or that Python only keeps for the next of its kind, holds all of it.
"""

from __future__ import annotations

import ctypes
import gc
from functools import cache
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from disque.server.loop import Turns

LARGE_BYTES = 64 << 10
_M_MMAP_THRESHOLD = -3  # malloc.h

LOOK_S = 1.0
FALL_MIN_BYTES = 8 << 20
CALM_BYTES = 64 << 20  # in use; the C library looks at each block, and with more it would take long
STILL_BYTES = 16 << 20  # in use; the collector of garbage looks at all there is within some 30 ms


def keep_large_apart() -> bool:
    """Have blocks of LARGE_BYTES and more go back to the system as soon as they are freed; True if that can be had.

    glibc raises this bound by itself to whatever was freed, up to 32 MiB: then one long-lived object on top of the
    replies of a flood keeps all of their memory. Other C libraries do as they do.
    """
    try:
        return bool(_libc().mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES))
    except (OSError, AttributeError):
        return False


@cache
def _libc() -> ctypes.CDLL:
    """One for all calls: each that is made is a class, too, which nobody frees."""
    return ctypes.CDLL(None)


class Tide:
    """Accounted memory, looked at now and then: has much of it gone, and does it stay so?"""

    def __init__(self) -> None:
        self._high = 0  # the most since much had gone
        self._last = 0

    def is_out(self, used_bytes: int) -> bool:
        """True once after a fall of a quarter, when it has come to its end."""
        fall, self._last = self._last - used_bytes, used_bytes
        self._high = max(self._high, used_bytes)
        if fall > FALL_MIN_BYTES // 8 or self._high - used_bytes < max(
            FALL_MIN_BYTES, self._high // 4
        ):
            return False
        self._high = used_bytes
        return True


async def give_back(turns: Turns) -> None:
    """For ever: when much has gone, let the system have its memory."""
    tide = Tide()
    while True:
        await trio.sleep(LOOK_S)
        used_bytes = turns.broker.engine.statistics().used_memory
        if not tide.is_out(used_bytes):
            continue
        turns.broker.engine.shrink()
        await trio.lowlevel.checkpoint()
        clear_free_lists(is_still=used_bytes <= STILL_BYTES)
        if used_bytes <= CALM_BYTES:
            await trio.lowlevel.checkpoint()
            return_free_blocks()


def clear_free_lists(*, is_still: bool) -> None:
    """Free what Python keeps of each kind of object for the next one.

    Only a full look of the collector of garbage does so; told that all there is is old, it has nothing to look at. On a
    still node it looks at all: what was told to be old may have become garbage since.
    """
    if is_still:
        gc.unfreeze()
    else:
        gc.freeze()
    gc.collect()
    gc.freeze()


def return_free_blocks() -> None:
    """Let the C library give pages back that have nothing in them, wherever they lie: some 90 ms for a GiB."""
    try:
        _libc().malloc_trim(0)
    except (OSError, AttributeError):
        return
