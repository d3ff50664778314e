"""Backoff: doubling, bounded, with chance."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disque.client.backoff import Backoff


def test_without_chance_it_doubles_up_to_the_limit() -> None:
    backoff, dice = Backoff(first=1.0, most=10.0, jitter=0.0), random.Random(1)
    assert [backoff.delay(n, dice) for n in (1, 2, 3, 4, 5, 10_000)] == [1, 2, 4, 8, 10, 10]


@given(st.integers(1, 200), st.floats(0, 1), st.integers())
def test_chance_takes_at_most_its_share(attempt: int, jitter: float, seed: int) -> None:
    whole = Backoff(jitter=0.0).delay(attempt, random.Random(seed))
    delay = Backoff(jitter=jitter).delay(attempt, random.Random(seed))
    assert whole * (1 - jitter) <= delay <= whole


def test_jobs_that_failed_together_do_not_come_back_together() -> None:
    dice = random.Random(1)
    assert len({Backoff().delay(3, dice) for _ in range(50)}) == 50


@pytest.mark.parametrize(
    "given_",
    [
        {"first": 0.0},
        {"first": 2.0, "most": 1.0},
        {"most": float("inf")},
        {"jitter": 1.1},
        {"jitter": -0.1},
    ],
)
def test_what_cannot_be_meant_is_refused(given_: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"back-off needs|jitter is"):
        Backoff(**given_)
