"""What a join costs, where the other side knows nothing new, and where it does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from disque.core import merge
from tests.bench.parts import CPU, repeated, timed
from tests.unit.core.builders import A, B, C

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

pytestmark = CPU

HOLDERS = (A, B, C)
COUNTS = {A: 2, B: 1}
CLAIMS = {A: (7, 3, True), B: (7, 2, True), C: (7, 1, True)}
LEASES = {A: (5, 60_000)}


def test_nothing_new(benchmark: BenchmarkFixture) -> None:
    def join() -> None:
        merge.union(HOLDERS, HOLDERS)
        merge.maxima(COUNTS, COUNTS)
        merge.claims(CLAIMS, CLAIMS)
        merge.leases(LEASES, LEASES)

    what = "merge: holders, counters, claims and leases of three nodes, nothing new"
    timed(benchmark, what, repeated(join))


def test_news(benchmark: BenchmarkFixture) -> None:
    def join() -> None:
        merge.union((A, B), HOLDERS)
        merge.maxima(COUNTS, {A: 3, C: 1})
        merge.claims({A: (7, 2, True)}, CLAIMS)
        merge.leases(LEASES, {B: (6, 60_000)})

    timed(benchmark, "merge: the same, each with news", repeated(join))
