"""What load makes of figures and failures; workloads here give numbers that the test has chosen."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path

import pytest

from tests.bench import load
from tests.bench.load import TRIALS, Line, OverdueError, Trial, at_most, by_turns, rows_of
from tests.bench.report import Beside, Row
from tests.bench.servers import OURS, Endpoint, Kind, Server, endpoint, kinds
from tests.system.nodes import Node

FOREVER = float("inf")
LINE = Line("adding", "0.5 of other")
PLAIN, OF_DISQUE, OF_THREE, WITH_FLAGS = (
    Trial((LINE,), lambda _: [1.0], nodes=nodes, flags=flags, is_for_all=is_for_all)
    for nodes, flags, is_for_all in (
        (1, (), True),
        (1, (), False),
        (3, (), False),
        (1, ("--x", "1"), False),
    )
)


class Still(Server):
    """A server that isn't there: nothing is started, and all that is asked of it is its name."""

    def start(self, **environment: str) -> Node:
        """As Node."""
        return self


def told(**numbers: Sequence[float | Exception]) -> tuple[list[Kind], load.work.Workload]:
    """Servers by name, and a workload that gives their numbers in order, or raises what is among them."""

    def make(name: str) -> Callable[..., Server]:
        def still(folder: Path, *_flags: str) -> Server:
            server = Still(folder, port=1)
            server.name = name  # type: ignore[attr-defined]
            return server

        return still

    coming = {name: cycle(each) for name, each in numbers.items()}

    def workload(nodes: list[Server]) -> Sequence[float]:
        number = next(coming[nodes[0].name])  # type: ignore[attr-defined]
        if isinstance(number, Exception):
            raise number
        return [number]

    return [Kind(name, make(name)) for name in numbers], workload


def measured(end: float = FOREVER, **numbers: Sequence[float | Exception]) -> Row:
    servers, workload = told(**numbers)
    trial = Trial((LINE,), workload)
    (row,) = rows_of(trial, by_turns(trial, servers, end))
    return row


def test_figures_are_medians_and_a_ratio_is_that_of_the_ratios_within_a_round() -> None:
    # The machine was twice as slow in the second round: no ratio changes.
    row = measured(ours=[100.0, 50.0, 120.0], other=[200.0, 100.0, 160.0])
    assert row == Row(
        "adding", "100/s", "0.5 of other", (Beside("other", "160/s", 0.5),), is_in_readme=False
    )


def test_who_fails_says_why_and_the_others_go_on() -> None:
    row = measured(
        ours=[100.0], other=[200.0, OSError("it ended:\nout of | memory\n")], third=[50.0]
    )
    assert row.figure == "100/s"
    assert row.beside == (
        Beside("other", "failed: out of / memory"),
        Beside("third", "50/s", 2.0),
    )


def test_where_ours_fails_the_others_have_figures_without_ratio() -> None:
    row = measured(ours=[RuntimeError()], other=[200.0])
    assert (row.figure, row.beside) == ("failed: RuntimeError", (Beside("other", "200/s"),))


def test_a_server_that_gives_nothing_has_no_ratio() -> None:
    assert measured(ours=[100.0], other=[0.0, 1.0]).beside == (Beside("other", "0/s"),)


def test_the_compiled_build_has_a_figure_and_ratios_of_its_own() -> None:
    row = measured(
        ours=[100.0, 50.0, 120.0], compiled=[150.0, 60.0, 200.0], other=[200.0, 100.0, 160.0]
    )
    assert (row.figure, row.compiled) == ("100/s", "150/s")
    assert row.beside == (Beside("other", "160/s", 0.5, 0.75),)


def test_where_the_compiled_build_fails_ours_has_its_ratios() -> None:
    row = measured(ours=[100.0], compiled=[RuntimeError("gone")], other=[200.0])
    assert (row.compiled, row.beside) == ("failed: gone", (Beside("other", "200/s", 0.5),))


def test_nothing_is_measured_once_the_time_is_over() -> None:
    assert measured(time.monotonic(), ours=[100.0]).figure == "failed: no time is left"


def test_what_takes_too_long_is_ended() -> None:
    with pytest.raises(OverdueError, match="not done within 0 s"), at_most(0.01):
        time.sleep(60)


@pytest.mark.parametrize(
    ("kind", "fitting"),
    [
        (Kind(OURS, Server), [PLAIN, OF_DISQUE, OF_THREE, WITH_FLAGS]),
        (Kind("a list", Server, is_disque=False), [PLAIN]),
        (endpoint("localhost:7711"), [PLAIN, OF_DISQUE]),
    ],
)
def test_a_trial_is_for_those_who_can_do_it(kind: Kind, fitting: list[Trial]) -> None:
    trials = [PLAIN, OF_DISQUE, OF_THREE, WITH_FLAGS]
    assert [trial for trial in trials if trial.fits(kind)] == fitting


def test_ours_comes_first() -> None:
    titles = [kind.title for kind in kinds("/binary", ("other=h:1", "h:2"))]
    assert titles[:4] == [OURS, "C Disque", "other", "h:2"]


@pytest.mark.parametrize("text", ["", "7711", "host", "host:", ":7711", "host:x"])
def test_what_is_no_address_is_refused_and_shown(text: str) -> None:
    with pytest.raises(ValueError, match=f"got {text!r}"):
        endpoint(text)


def test_rows_have_names_of_their_own_and_the_readme_has_room_for_its_ones() -> None:
    lines = [line for trial in TRIALS for line in trial.lines]
    assert len({line.what for line in lines}) == len(lines)
    assert 0 < sum(line.is_in_readme for line in lines) <= 5


@pytest.mark.system
def test_of_a_server_by_address_only_the_queue_of_the_bench_is_emptied(tmp_path: Path) -> None:
    node = Node(tmp_path / "node").start()
    try:
        there = Endpoint("127.0.0.1", node.port, tmp_path / "there")
        for queue in ("bench", "bench", "mine"):
            node.call("ADDJOB", queue, "x", 0)
        there.start()
        there.kill()
        assert [node.call("QLEN", queue) for queue in ("bench", "mine")] == [0, 1]
    finally:
        node.kill()
