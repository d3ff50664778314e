"""Listings: what was there, in order, and no burden to the collector of garbage."""

from __future__ import annotations

import gc
import weakref
from collections import OrderedDict
from typing import TYPE_CHECKING

import pytest

from disque.core.listing import LONG, drained, listed

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_what_is_listed_may_go_meanwhile() -> None:
    first, second = {b"a": 1, b"b": 2}, [b"c"]
    found = listed(first, second)
    first.clear()
    assert found == [b"a", b"b", b"c"]


class Slow(OrderedDict[int, int]):
    def __iter__(self) -> Iterator[int]:
        raise AssertionError("looks each key up")


def test_of_a_pool_the_keys_are_taken_from_its_dict() -> None:
    pool = Slow.fromkeys([3, 1, 2], 0)
    assert listed(pool, [4]) == [3, 1, 2, 4]


@pytest.mark.parametrize("count", [10, LONG + 1])
def test_the_collector_doesnt_look_at_a_long_listing(count: int) -> None:
    found = listed(dict.fromkeys(range(count)))
    try:
        is_watched = any(each is found for each in gc.get_objects())
        assert is_watched == (count <= LONG)
    finally:
        gc.unfreeze()


class Thing:
    pass


def test_what_was_given_of_a_drained_list_is_kept_by_nobody() -> None:
    things = {n: Thing() for n in range(3)}
    given = drained(things.values())
    first, second = next(given), next(given)
    assert [*things.values()][:2] == [first, second]
    seen = [weakref.ref(each) for each in things.values()]
    things.clear()
    del first, second
    assert [each() is None for each in seen] == [True, True, False]
    assert len([*given]) == 1
