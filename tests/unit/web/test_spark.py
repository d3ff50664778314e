"""Spark: the newest number is at the right, the greatest at the top."""

from __future__ import annotations

from disque.web.spark import HEIGHT, WIDTH, spark


def points(line: str) -> list[tuple[float, float]]:
    """A polyline's points."""
    return [(float(x), float(y)) for x, y in (each.split(",") for each in line.split())]


def test_a_short_row_begins_further_right() -> None:
    assert points(spark([0, 1, 2], 4).line) == [(50, 26), (100, 14), (150, 2)]
    assert points(spark([4, 2, 1, 1, 1, 0], 4).line)[:2] == [(0, 2), (30, 14)]


def test_nothing_but_zeros_lies_at_the_bottom() -> None:
    line = spark([0, 0], 2)
    assert points(line.line) == [(0, HEIGHT - 2), (WIDTH, HEIGHT - 2)]
    assert line.top == 0


def test_one_number_is_no_line() -> None:
    assert spark([5], 10).line == ""
    assert spark([], 10).top == 0
