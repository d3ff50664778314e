"""Schedules: enough faults, healthy windows, lengths around the system's timers."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from jepsen.nemesis.schedule import HOLD_S_MIN, HOLD_SHARE, draw_hold_s, plan

SEEDS = range(30)


def test_a_run_of_a_minute_has_five_faults_and_healthy_time_after_each() -> None:
    for seed in SEEDS:
        steps = plan(random.Random(seed), 1, 60.0)
        assert len(steps) >= 5
        ends = [step.at_s + step.hold_s for step in steps]
        assert ends[-1] <= 60.0
        assert all(
            after.at_s - end >= 10.0 * (1 - HOLD_SHARE) - 0.01
            for (_, after), end in zip(pairwise(steps), ends, strict=False)
        )


@pytest.mark.parametrize("seconds", [3.0, 10.0, 15.0, 20.0, 45.0])
def test_short_runs_have_faults_too(seconds: float) -> None:
    for seed in SEEDS:
        steps = plan(random.Random(seed), 2, seconds)
        assert steps
        assert all(step.hold_s >= HOLD_S_MIN for step in steps)
        assert all(step.at_s < seconds for step in steps)


def test_no_kinds_no_steps() -> None:
    assert plan(random.Random(1), 0, 60.0) == []


def test_each_kind_has_its_turn_before_any_is_drawn() -> None:
    steps = plan(random.Random(1), 4, 60.0)
    assert [step.kinds for step in steps[:4]] == [(0,), (1,), (2,), (3,)]
    steps = plan(random.Random(1), 12, 600.0)
    assert sorted(step.kinds for step in steps[:12]) == [(number,) for number in range(12)]


def test_long_runs_have_long_faults_long_quiet_and_two_faults_at_once() -> None:
    steps = plan(random.Random(2), 6, 1_800.0, timers_s=(1.0, 3.0))
    gaps = [after.at_s - before.at_s - before.hold_s for before, after in pairwise(steps)]
    assert max(step.hold_s for step in steps) > 10.0
    assert max(gaps) >= 12.0
    assert any(len(step.kinds) == 2 for step in steps)
    assert len(steps) >= 100


def test_lengths_lie_around_the_timers() -> None:
    dice = random.Random(3)
    drawn = [draw_hold_s(dice, (1.0,), 60.0) for _ in range(300)]
    for factor in (0.3, 0.9, 1.1, 3.0, 10.0):
        assert any(abs(each / factor - 1) <= 0.03 for each in drawn)
    assert all(each <= 60.0 for each in drawn)


def test_the_same_seed_makes_the_same_plan() -> None:
    assert plan(random.Random(9), 3, 300.0) == plan(random.Random(9), 3, 300.0)
