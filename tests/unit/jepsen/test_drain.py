"""Drain: what counts as not yet drained."""

from __future__ import annotations

from typing import Any, cast

import attrs
import pytest

from jepsen.drain import Drain
from jepsen.hosts.base import Hosts
from jepsen.observer import Observer
from jepsen.recorder import Recorder


@attrs.define(eq=False)
class Seen:
    """An observer that always sees the same."""

    looks: dict[str, dict[str, Any]]
    rounds: int = 0

    async def round(self, phase: str, nodes: tuple[str, ...]) -> dict[str, dict[str, Any]]:
        self.rounds += 1
        return self.looks


@pytest.mark.parametrize("nodes", [(), ("n1",)])
async def test_silent_nodes_arent_seen_to_be_empty(nodes: tuple[str, ...]) -> None:
    draining = drain(leaves_delivered=True)
    draining.observer = cast(Observer, Seen({node: look() for node in nodes}))
    assert await draining._wait_settled() is None
    draining.observer = cast(Observer, Seen({node: look() for node in draining.nodes}))
    assert await draining._wait_settled() is not None


def look(**counts: int) -> dict[str, Any]:
    return {"registered": 0, "queued": 0, "delayed": 0, "acked": 0, "delivered": 0, **counts}


def drain(*, leaves_delivered: bool) -> Drain:
    hosts, recorder = cast(Hosts, None), Recorder()
    return Drain(
        hosts,
        recorder,
        Observer(hosts, recorder),
        ("n1", "n2"),
        ("jx",),
        run="r",
        process=0,
        retry_max_s=1,
        leaves_delivered=leaves_delivered,
    )


@pytest.mark.parametrize(
    ("counts", "retried", "at_most_once"),
    [
        ({}, 0, 0),
        ({"registered": 2, "acked": 2}, 0, 0),
        ({"registered": 3, "acked": 1, "queued": 1, "delivered": 1}, 2, 1),
        ({"registered": 2, "delivered": 1}, 2, 0),
        ({"registered": 1, "delayed": 1}, 1, 1),
    ],
)
def test_copies_that_may_still_be_offered(
    counts: dict[str, int], retried: int, at_most_once: int
) -> None:
    looks = {"n1": look(**counts), "n2": look()}
    assert drain(leaves_delivered=False).unfinished(looks) == retried
    assert drain(leaves_delivered=True).unfinished(looks) == at_most_once
