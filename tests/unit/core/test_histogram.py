"""Histogram: each duration is counted once, in the first step that it doesn't exceed."""

from __future__ import annotations

import pytest

from disque.core.histogram import BOUNDS_MS, Histogram


@pytest.mark.parametrize(
    ("took_ms", "place"),
    [
        (-1, 0),
        (0, 0),
        (1, 0),
        (2, 1),
        (3, 2),
        (1_000, 9),
        (1_001, 10),
        (600_000, 14),
        (600_001, 15),
    ],
)
def test_a_bound_belongs_to_its_step(took_ms: int, place: int) -> None:
    histogram = Histogram()
    histogram.add(took_ms)
    assert [at for at, count in enumerate(histogram.counts) if count] == [place]
    assert histogram.sum_ms == max(took_ms, 0)


def test_counts_are_spelled_cumulatively() -> None:
    histogram = Histogram()
    for took_ms in (1, 2, 2, 10**9):
        histogram.add(took_ms)
    steps = dict(each.split("=") for each in histogram.spelled().split(","))
    assert list(steps) == [*[f"le_{bound}" for bound in BOUNDS_MS], "le_inf", "sum"]
    assert (steps["le_1"], steps["le_2"], steps["le_600000"], steps["le_inf"]) == (
        "1",
        "3",
        "3",
        "4",
    )
    assert steps["sum"] == str(10**9 + 5)
