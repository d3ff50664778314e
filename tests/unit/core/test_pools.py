"""Pools whose oldest entry goes when they are full: what that costs doesn't grow with those that went before."""

from __future__ import annotations

from collections import OrderedDict

import pytest

from disque.core import commands as cmd
from tests.unit.core.builders import Node

POOLS = (
    "dummies",
    "spent",
    "tombstones",
    "long_tombstones",
    "marks",
    "absences",
    "orders",
    "expired",
)


@pytest.mark.parametrize("name", POOLS)
def test_the_oldest_is_found_at_once(name: str) -> None:
    # a dict steps over all that was deleted before its first entry
    node = Node()
    assert isinstance(getattr(node.state, name), OrderedDict)
    node.do(cmd.FlushAll())
    assert isinstance(getattr(node.state, name), OrderedDict), "after FLUSHALL"
