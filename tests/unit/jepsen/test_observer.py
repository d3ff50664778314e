"""Observer: what a node's own words mean, and when views agree."""

from __future__ import annotations

from typing import Any, cast

import attrs
import pytest

from disque.server.info import info_text
from jepsen.checkers import draining
from jepsen.observer import fields_of, snapshot, view_of, views_agree
from jepsen.resp import Client
from tests.unit.server.world import World, running

A, B, C = "a" * 40, "b" * 40, "c" * 40
NODES = f"""{A} 10.0.0.1:7711 myself 0 0 connected
{C} 10.0.0.3:7711 fail? 0 0 disconnected
{B} 10.0.0.2:7711 noflags 0 0 connected
"""


def look(own: str, *members: str, failing: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"self": own, "members": sorted(members), "failing": list(failing)}


def test_a_view_has_the_node_itself_and_whom_it_reaches() -> None:
    assert view_of(NODES.encode()) == {"self": A, "members": [A, B], "failing": [C], "links": 1}


def test_fields_of_info() -> None:
    assert fields_of(b"# Jobs\r\nregistered_jobs:3\r\nname:a:b\r\n\r\n") == {
        "registered_jobs": "3",
        "name": "a:b",
    }


def test_views_agree_if_all_reach_all_and_suspect_nobody() -> None:
    assert views_agree({"n1": look("a", "a", "b"), "n2": look("b", "a", "b")}, ("n1", "n2"))


@pytest.mark.parametrize(
    "second",
    [
        look("b", "b"),
        look("b", "a", "b", "c"),
        look("b", "a", "b", failing=("a",)),
        look("b", "a", "b", failing=("c",)),
    ],
)
def test_views_disagree(second: dict[str, Any]) -> None:
    assert not views_agree({"n1": look("a", "a", "b"), "n2": second}, ("n1", "n2"))


def test_a_silent_node_agrees_with_nobody() -> None:
    assert not views_agree({"n1": look("a", "a")}, ("n1", "n2"))


def test_a_core_may_suspect_those_that_are_gone_but_not_itself() -> None:
    def agree(failing: str) -> bool:
        looks = {"n1": look("a", "a", "b"), "n2": look("b", "a", "b", failing=(failing,))}
        return views_agree(looks, ("n1", "n2"), is_core=True)

    assert agree("c")
    assert not agree("a")


@attrs.frozen
class Asked:
    """A client of a server that isn't bound to any port."""

    world: World

    async def call(self, *words: str, timeout_s: float) -> Any:
        if words == ("CLUSTER", "NODES"):
            return NODES.encode()
        return info_text(self.world.shell, b"default") if words == ("INFO",) else "PONG"


async def test_a_server_tells_all_that_is_to_drain() -> None:
    async with running() as world:
        seen = await snapshot(cast(Client, Asked(world)))
    assert {name: seen[name] for name in (*draining.COUNTERS, draining.BYTES)} == {
        "registered": 0,
        "queued": 0,
        "acked": 0,
        "bytes": 0,
    }
