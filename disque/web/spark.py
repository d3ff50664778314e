"""Spark: a row of numbers as the points of a small SVG line.

Pure. The newest number is at the right edge; a short row begins further right, so that a new line grows to the left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Sequence

WIDTH = 150
HEIGHT = 28
STEPS_MIN = 60  # a minute of them
_EDGE = 2.0  # room for the line's own width


@attrs.frozen
class Spark:
    """`line` and `area` are the points of a polyline and of the polygon below it; "" without two numbers."""

    line: str
    area: str
    top: float  # the greatest number


def spark(numbers: Sequence[float], steps_min: int = STEPS_MIN) -> Spark:
    """All numbers, over the width of at least `steps_min`, from 0 at the bottom to the greatest at the top."""
    top = max(numbers, default=0.0)
    if len(numbers) < 2:
        return Spark("", "", top)
    step = WIDTH / (max(steps_min, len(numbers)) - 1)
    first = WIDTH - step * (len(numbers) - 1)
    scale = (HEIGHT - 2 * _EDGE) / top if top > 0 else 0.0
    points = [
        f"{first + step * at:.1f},{HEIGHT - _EDGE - scale * each:.1f}"
        for at, each in enumerate(numbers)
    ]
    line = " ".join(points)
    return Spark(line, f"{first:.1f},{HEIGHT} {line} {WIDTH},{HEIGHT}", top)
