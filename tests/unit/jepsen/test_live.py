"""Live: the lines of a run say what happened since the last one."""

from __future__ import annotations

from typing import Any

import attrs

from jepsen.history import INFO, INVOKE, OK, Op
from jepsen.live import Live, describe, groups_of, percentile, spark
from jepsen.nemesis.field import Fault, Proof
from jepsen.nemesis.grudges import between


@attrs.define
class Screen:
    """A live line that writes into a list, and a clock that is set by hand."""

    lines: list[str] = attrs.Factory(list)
    now_s: float = 0.0
    index: int = 0

    def live(self) -> Live:
        return Live(self.lines.append, lambda: self.now_s)

    def op(self, type: str, f: str, value: dict[str, Any], at_ms: int = 0) -> Op:  # noqa: A002
        self.index += 1
        return Op(self.index, at_ms * 1_000_000, 1, type, f, value, "n1")


def test_a_tick_counts_what_came_since_the_last() -> None:
    screen = Screen()
    live = screen.live()
    for v in range(4):
        live.hear(screen.op(INVOKE, "add", {"v": v}, 0))
        live.hear(screen.op(OK if v else INFO, "add", {"v": v}, 10 * v))
    screen.now_s = 2.0
    live.tick()
    assert "ok 3  info 1  fail 0 | add 2/s" in screen.lines[0]
    assert "p99 30 ms" in screen.lines[0]
    assert "unseen 3" in screen.lines[0]
    screen.now_s = 4.0
    live.tick()
    assert "ok 0  info 0  fail 0" in screen.lines[1]


def test_a_job_delivered_before_its_add_was_answered_is_seen() -> None:
    screen = Screen()
    live = screen.live()
    live.hear(screen.op(OK, "get", {"jobs": [{"v": 1}]}, 5))
    live.hear(screen.op(OK, "add", {"v": 1}, 6))
    live.tick()
    assert "unseen 0" in screen.lines[0]


def test_a_fault_tells_its_groups_and_its_proof() -> None:
    screen = Screen()
    fault = Fault("partition-halves", between(["n1", "n2"], ["n3"]))
    screen.live().fault("start", fault, Proof(4, 4, "links probed"))
    screen.live().fault("start", fault, Proof(4, 3, "links probed"))
    assert "PARTITION-HALVES {n1 n2} | {n3}  proved 4/4" in screen.lines[0]
    assert "NOT PROVEN" not in screen.lines[0]
    assert "NOT PROVEN: proved 3/4" in screen.lines[1]


def test_a_grudge_that_separates_no_groups_tells_its_links() -> None:
    fault = Fault("one-way", (("n1", "n2"),))
    assert groups_of(fault) == [["n1", "n2"]]
    assert describe(fault) == "n1⇥n2"


def test_a_fault_of_nodes_tells_nodes_and_numbers() -> None:
    assert describe(Fault("clock", nodes=("n1",), params={"seconds": 3})) == "n1 seconds=3"


def test_percentiles_and_sparks() -> None:
    assert percentile([], 0.99) == 0.0
    assert percentile([float(n) for n in range(100)], 0.99) == 99.0
    assert spark([]) == ""
    assert spark([0.0, 0.0]) == "▁▁"
    assert spark([1.0, 8.0]) == "▁█"
