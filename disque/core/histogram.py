"""Histogram: how many of something took how long, in a few fixed steps; costs the same however many they are."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

BOUNDS_MS: Sequence[int] = (
    1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 60_000, 600_000,
)  # fmt: skip


_TABLE_MS = 1_000
# Most take so long or less: where in BOUNDS_MS, looked up
_PLACES = bytes([bisect_left(BOUNDS_MS, took_ms) for took_ms in range(_TABLE_MS + 1)])


class Histogram:
    """Durations in ms, counted by BOUNDS_MS; `counts` has one more place, for what took longer."""

    __slots__ = ("counts", "sum_ms")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_MS) + 1)
        self.sum_ms = 0

    def add(self, took_ms: int) -> None:
        """Count one; a negative duration (another node's clock) as 0."""
        if took_ms < 0:
            took_ms = 0
        place = _PLACES[took_ms] if took_ms <= _TABLE_MS else bisect_left(BOUNDS_MS, took_ms)
        self.counts[place] += 1
        self.sum_ms += took_ms

    def spelled(self) -> str:
        """`le_1=5,le_2=7,...,le_inf=9,sum=12`: how many took at most so long, and the sum of all, in ms."""
        parts: list[str] = []
        count = 0
        for bound, each in zip((*BOUNDS_MS, "inf"), self.counts, strict=True):
            count += each
            parts.append(f"le_{bound}={count}")
        return ",".join([*parts, f"sum={self.sum_ms}"])
