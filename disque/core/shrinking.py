"""Shrinking: a dict keeps the room of as many things as it ever had; here it gets that of those it has."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from disque.core.setaside import POOLS
from disque.core.state import State

_LARGE_BYTES = 256 << 10
# A full table takes 40 to 150 a thing; one with so much takes less than 2 ms to be made anew, if it takes 40 MiB
_SPARSE_BYTES = 1_000
_OTHERS = ("short", "inquiries", "inquiry_of", "scans")


def shrink(state: State) -> None:
    """Make tables anew that are large for what is in them; nobody may be on his way through one."""
    for table in _tables(state):
        size = sys.getsizeof(table)
        if size > max(_LARGE_BYTES, len(table) * _SPARSE_BYTES):
            things = list(table.items())
            table.clear()
            table.update(things)


def _tables(state: State) -> Iterator[dict[Any, Any]]:
    for name in (*POOLS, *_OTHERS):
        yield getattr(state, name)
    topics = state.topics
    yield topics.chosen
    yield topics.attending
    yield from topics.table.tables
    for told in topics.told.values():
        yield from told.tables
