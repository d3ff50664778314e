"""Steps of the wall clock: a day forth or back requeues nothing, expires nothing, delays nothing.

Time enters the broker in one place, the server's Clock, which reads the wall clock once. That nodes whose clocks differ
by a day agree is told in scenarios/clocks_a_day_apart.txt.
"""

from __future__ import annotations

import random
import time

import pytest

from disque.core import commands as cmd
from disque.core.engine import Engine
from disque.core.job import JobState
from disque.core.limits import Limits
from disque.core.ready import ClientId
from disque.server.clock import Clock
from tests.world import World

DAY_MS = 86_400_000
STEPS_MS = (DAY_MS, -DAY_MS)


class Wall:
    """A wall clock that somebody sets."""

    def __init__(self) -> None:
        self.off_ms = 0
        self._true_ns = time.time_ns

    def time_ns(self) -> int:
        """The time that it shows."""
        return self._true_ns() + self.off_ms * 1_000_000


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Wall:
    wall = Wall()
    monkeypatch.setattr(time, "time_ns", wall.time_ns)
    return wall


def engine_with_a_leased_job(now_ms: int) -> Engine:
    """One node; a job with RETRY 10 and TTL 60 has just been handed out."""
    world = World("a")
    view = world.view_of(world.nodes["a"])
    engine = Engine(
        view=view, boot=1, since=1, limits=Limits(), dice=random.Random(1), now_ms=now_ms
    )
    engine.command(ClientId(1), cmd.AddJob(b"q", b"body", 0, retry_ms=10_000, ttl_ms=60_000))
    engine.command(ClientId(1), cmd.GetJob((b"q",), is_nohang=True))
    return engine


def standing(engine: Engine) -> list[JobState]:
    return [job.state for job in engine.state.jobs.values()]


@pytest.mark.parametrize("step_ms", STEPS_MS)
def test_clock_leaves_out_steps_of_the_wall_clock(wall: Wall, step_ms: int) -> None:
    clock = Clock()
    before = clock.now_ms()
    wall.off_ms = step_ms
    assert 0 <= clock.now_ms() - before < 60_000
    assert 0 <= clock.uptime_s < 60


@pytest.mark.parametrize("step_ms", STEPS_MS)
def test_w42_step_of_the_wall_clock_requeues_and_expires_nothing(wall: Wall, step_ms: int) -> None:
    clock = Clock()
    start = clock.now_ms()
    engine = engine_with_a_leased_job(start)
    wall.off_ms = step_ms
    engine.advance(clock.now_ms())
    assert standing(engine) == [JobState.ACTIVE]
    passed = clock.now_ms() - start  # what the test itself took
    engine.advance(start + passed + 10_000)
    assert standing(engine) == [JobState.QUEUED], (
        "the lease ends 10 s after the hand-out, not later"
    )


def test_time_that_goes_back_changes_nothing() -> None:
    engine = engine_with_a_leased_job(DAY_MS)
    engine.advance(0)
    assert engine.state.now_ms == DAY_MS
    assert standing(engine) == [JobState.ACTIVE]
