"""The simulated network: a dial always comes to an end."""

from __future__ import annotations

import attrs
import pytest

from tests.sim.network import DIAL_TIMEOUT_MS
from tests.sim.plan import Chaos, draw
from tests.sim.world import World


@pytest.mark.parametrize("is_silent", [False, True])
def test_a_node_that_dies_before_it_takes_a_connection_in_is_dialed_again(is_silent: bool) -> None:
    plan = attrs.evolve(draw(2, 5000), nodes=2, spares=0, faults=(), chaos=Chaos())
    world = World(plan)
    dialer, target = world.nodes
    for node in (dialer, target):
        node.start()
    world.run_until(100)
    target.slow_ms = 1000
    dialer.turn_with(lambda: dialer.broker.meet(target.host, target.bus_port))
    world.run_until(200)
    target.crash(is_silent=is_silent)
    target.slow_ms = 0
    target.start()
    world.run_until(200 + DIAL_TIMEOUT_MS + 3000)
    assert list(dialer.broker.membership.view().members) == [dialer.id, target.id]
