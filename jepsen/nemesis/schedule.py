"""Schedule: when faults begin and how long they stay; drawn around the system's own timers, pure.

A fault that lasts a little less and a little more than a time-out tests what a fixed 10 s never meets. Between two
faults lies a healthy window, 4 s at least in a run of a minute: enough for what holds within seconds of a heal. What
takes longer to judge (ends known after `facts_ms`, leases) is judged in the long quiets of runs of LONG_RUN_S, and
after the last heal; faults longer than HOLD_SHARE of an interval are in such runs only, too.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

import attrs

FACTORS: Final = (0.3, 0.9, 1.1, 3.0, 10.0)
FIRST_S: Final = 3.0
INTERVAL_S_MIN: Final = 2.5
HOLD_S_MIN: Final = 0.25
# A run that is long enough has at least so many starts.
STARTS_MIN: Final = 5
# The share of an interval that a fault may take; the rest is healthy.
HOLD_SHARE: Final = 0.6
# In long runs: one long fault, one long quiet in so many.
LONG_EVERY: Final = 6
LONG_RUN_S: Final = 120.0
FEW_KINDS: Final = 4


@attrs.frozen
class Step:
    """At `at_s` these kinds begin together, by their places in the list of kinds, and stay for `hold_s`."""

    at_s: float
    kinds: tuple[int, ...]
    hold_s: float


def draw_hold_s(dice: random.Random, timers_s: Sequence[float], longest_s: float) -> float:
    """A factor times a timer, between the least and the longest."""
    drawn = dice.choice(FACTORS) * dice.choice(tuple(timers_s)) * dice.uniform(0.97, 1.03)
    return min(max(drawn, HOLD_S_MIN), longest_s)


def interval_s(time_limit_s: float, wanted_s: float) -> float:
    """The time from start to start: as wanted, but short enough for STARTS_MIN of them, and not too short."""
    fitting = (time_limit_s - FIRST_S) / STARTS_MIN
    return max(INTERVAL_S_MIN, min(wanted_s, fitting))


def plan(
    dice: random.Random,
    kinds: int,
    time_limit_s: float,
    *,
    wanted_interval_s: float = 10.0,
    stable_s: float = 12.0,
    timers_s: Sequence[float] = (1.0, 2.0),
) -> list[Step]:
    """The steps of a run, in order; each fault ends before the time limit, but for a start too late to fit."""
    if kinds == 0:
        return []
    every_s = interval_s(time_limit_s, wanted_interval_s)
    first_s = min(FIRST_S, time_limit_s / 5)
    steps: list[Step] = []
    # A few kinds come in the order that was asked for; of many, a short run should see all sorts.
    first_round = list(range(kinds)) if kinds <= FEW_KINDS else dice.sample(range(kinds), kinds)
    at_s, turn = first_s, 0
    while at_s < time_limit_s - HOLD_S_MIN * 2:
        turn += 1
        is_long = time_limit_s >= LONG_RUN_S and turn % LONG_EVERY == 0
        longest_s = every_s * (2.0 if is_long else HOLD_SHARE)
        left_s = time_limit_s - at_s
        hold_s = min(draw_hold_s(dice, timers_s, longest_s), max(HOLD_S_MIN, left_s - 1.0))
        steps.append(Step(round(at_s, 3), _draw_kinds(dice, first_round, turn), round(hold_s, 3)))
        at_s += max(every_s, hold_s + every_s * (1 - HOLD_SHARE))
        if time_limit_s >= LONG_RUN_S and turn % LONG_EVERY == LONG_EVERY // 2:
            at_s += stable_s
    return steps


def _draw_kinds(dice: random.Random, first_round: list[int], turn: int) -> tuple[int, ...]:
    """The first turns go through all kinds; later ones draw, a third of them two at once."""
    if turn <= len(first_round):
        return (first_round[turn - 1],)
    count = 2 if len(first_round) > 1 and dice.random() < 1 / 3 else 1
    return tuple(sorted(dice.sample(first_round, count)))
