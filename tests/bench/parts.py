"""Parts: one way to take the processor time of a part of the house by itself, with pytest-benchmark, in `bench_*.py`.

`make test` doesn't collect those files; `make bench` does, and so does
`python -m pytest tests/bench -o "python_files=bench_*.py" --benchmark-only`. Nothing is asserted.
"""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_benchmark.fixture import BenchmarkFixture

COUNT = 1_000  # of the same thing in one round: the clock is coarse
ROUNDS = 20
CPU = pytest.mark.benchmark(timer=time.process_time)


def timed(
    benchmark: BenchmarkFixture,
    what: str,
    act: Callable[..., object],
    make: Callable[[], tuple[Any, ...]] = tuple,
) -> None:
    """Time `act(*make())`, which does COUNT things of the kind named `what`; making isn't timed."""
    benchmark.extra_info["what"] = what
    benchmark.pedantic(act, setup=lambda: (make(), {}), rounds=ROUNDS, warmup_rounds=2)


def repeated(act: Callable[[], object]) -> Callable[[], None]:
    """The same COUNT times."""

    @functools.wraps(act)
    def repeat() -> None:
        for _ in range(COUNT):
            act()

    return repeat
