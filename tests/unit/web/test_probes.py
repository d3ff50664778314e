"""Probes: a node is healthy while it answers anything, ready while it serves clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from disque.web.probes import Probes
from tests.unit.web.asgi import ask
from tests.unit.web.fakes import FakeNode

if TYPE_CHECKING:
    import trio

LOADING = b"-LOADING Disque is loading the dataset in memory\r\n"


@pytest.mark.parametrize(
    ("pong", "leaving", "health", "ready"),
    [
        (b"+PONG\r\n", b"+no\r\n", 200, (200, b"ok\n")),
        (b"+PONG\r\n", b"+yes\r\n", 200, (503, b"leaving the cluster\n")),
        (LOADING, LOADING, 200, (503, b"LOADING Disque is loading the dataset in memory\n")),
        (b"-MISCONF disk full\r\n", b"+no\r\n", 200, (503, b"MISCONF disk full\n")),
        (b"-NOAUTH please\r\n", b"-NOAUTH please\r\n", 200, (503, b"NOAUTH please\n")),
        (None, None, 503, (503, b"no answer within 1 s\n")),
    ],
    ids=["well", "leaving", "loading", "no disk", "no password", "silent"],
)
async def test_what_a_node_says_decides(
    nursery: trio.Nursery,
    autojump_clock: object,
    pong: bytes | None,
    leaving: bytes | None,
    health: int,
    ready: tuple[int, bytes],
) -> None:
    fake = FakeNode(nursery, lambda words: pong if words == (b"PING",) else leaving)
    probes = Probes(fake.node())
    app = Starlette(
        routes=[
            Route("/health", probes.health),
            Route("/ready", probes.ready),
            Route("/metrics", probes.metrics),
        ]
    )
    assert (await ask(app, "/health")).status == health
    answer = await ask(app, "/ready")
    assert (answer.status, answer.body) == ready


async def test_metrics_of_a_node_that_refuses_are_unavailable(nursery: trio.Nursery) -> None:
    fake = FakeNode(nursery, lambda _: b"-NOPERM not you\r\n")
    app = Starlette(routes=[Route("/metrics", Probes(fake.node()).metrics)])
    answer = await ask(app, "/metrics")
    assert (answer.status, answer.body) == (503, b"NOPERM not you\n")
