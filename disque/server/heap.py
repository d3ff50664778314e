"""Heap: what the C library does with large blocks. A node may hold a gigabyte of replies once, and never again."""

from __future__ import annotations

import ctypes

LARGE_BYTES = 64 << 10
_M_MMAP_THRESHOLD = -3  # malloc.h


def keep_large_apart() -> bool:
    """Have blocks of LARGE_BYTES and more go back to the system as soon as they are freed; True if that can be had.

    glibc raises this bound by itself to whatever was freed, up to 32 MiB: then one long-lived object on top of the
    replies of a flood keeps all of their memory. Other C libraries do as they do.
    """
    try:
        return bool(ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES))
    except (OSError, AttributeError):
        return False
