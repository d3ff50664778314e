"""Listing: very many ids or names as they are now, to be looked through in steps while they come and go."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from itertools import chain
from typing import TypeVar

T = TypeVar("T")

LONG = 20_000


def listed(*sources: Iterable[T]) -> list[T]:
    """All of them in a row: some 20 ms for a million.

    The collector of garbage would look at each of a new list, twice, which takes longer than to make it. Of a long one
    it is told that all there is now is old.
    """
    found = list(sources[0]) if len(sources) == 1 else list(chain(*sources))
    if len(found) > LONG:
        gc.freeze()
    return found
