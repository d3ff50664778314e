"""Changed limits reach very many connections in steps, and whoever asked for that is answered after all of them."""

from __future__ import annotations

import trio

from disque.server.reviews import STEP
from tests.unit.server.test_crowd import bulk, lock
from tests.unit.server.world import World, running

MANY = 2 * STEP + 10


def strangers(world: World) -> int:
    return sum(each.is_stranger for each in world.clients.by_id.values())


async def test_a_first_password_makes_strangers_of_few_at_a_time() -> None:
    async with running() as world:
        for _ in range(MANY):
            world.connect()
        lock(world, unauthenticated_max=MANY)
        assert strangers(world) == STEP
        await trio.testing.wait_all_tasks_blocked()
        assert strangers(world) == MANY


async def test_limits_that_change_again_meanwhile_hold_for_all_in_the_end() -> None:
    async with running() as world:
        for _ in range(MANY):
            world.connect()
        lock(world, unauthenticated_max=MANY)
        world.config.requirepass = ""
        world.settings.apply("requirepass")
        first, *_, last = world.clients.by_id.values()
        assert not first.is_stranger
        world.config.pipeline_max = 3
        world.settings.apply("pipeline-max")
        await trio.testing.wait_all_tasks_blocked()
        assert strangers(world) == 0
        assert {each.waits_max for each in (first, last)} == {3}


async def test_who_sets_it_is_answered_when_it_holds_for_all_even_if_he_may_stay_no_longer() -> (
    None
):
    async with running() as world:
        world.config.protected_mode = False
        world.settings.apply("protected-mode")
        setter = world.connect(("192.0.2.1", 1))
        for _ in range(MANY):
            world.connect()
        far = world.connect(("192.0.2.2", 1))
        await setter.send(bulk(b"CONFIG", b"SET", b"protected-mode", b"yes"))
        await setter.ask(b"PING\r\n", b"+OK\r\n")
        await setter.expect_end()
        await far.expect_end()


async def test_two_who_set_something_at_once_are_both_answered() -> None:
    async with running() as world:
        for _ in range(MANY):
            world.connect()
        one, other = world.connect(), world.connect()
        await one.send(bulk(b"CONFIG", b"SET", b"timeout", b"100"))
        await other.ask(bulk(b"CONFIG", b"SET", b"pipeline-max", b"3"), b"+OK\r\n")
        await one.expect(b"+OK\r\n")
        assert {each.waits_max for each in world.clients.by_id.values()} == {3}
