"""The simulator writes the history that real runs write, and the checkers of real runs judge it."""

from __future__ import annotations

from collections import Counter

import attrs
import pytest

from jepsen.checkers.judge import CHECKERS
from jepsen.history import INFO, INVOKE, NEMESIS, OBSERVER, OK, Op
from tests.sim.plan import Chaos, Fault, draw
from tests.sim.run import run_profile
from tests.sim.world import World

EVENTS = 5000


@pytest.fixture(scope="module")
def world() -> World:
    """A run with a crash, a cut and a purge."""
    faults = (
        Fault(at=500, kind="split", nodes=(0,), span=1000, mode="vanish"),
        Fault(at=2500, kind="crash", nodes=(1,), span=800, mode="process"),
        Fault(at=4000, kind="purge", nodes=(0,), span=1),
    )
    plan = attrs.evolve(draw(2, EVENTS), nodes=3, spares=0, faults=faults, chaos=Chaos())
    result, world = run_profile(plan)
    assert result.violation is None, result.story
    return world


def of(world: World, process: int) -> list[Op]:
    """Its events."""
    return [op for op in world.history.history if op.process == process]


def test_index_and_time_rise(world: World) -> None:
    history = world.history.history
    assert [op.index for op in history] == list(range(len(history)))
    assert [op.time for op in history] == sorted(op.time for op in history)


def test_every_call_of_a_client_ends_and_an_unknown_end_retires_its_process(world: World) -> None:
    open_calls: dict[int, Op] = {}
    retired: set[int] = set()
    for op in world.history.history:
        if op.process < 0:
            continue
        assert op.process not in retired
        if op.type == INVOKE:
            assert op.process not in open_calls
            open_calls[op.process] = op
        else:
            assert open_calls.pop(op.process).f == op.f
            if op.type == INFO:
                retired.add(op.process)
    assert not open_calls


def test_deliveries_and_acks_are_those_of_the_ledger(world: World) -> None:
    delivered = Counter(
        job["v"]
        for op in world.history.history
        if op.f == "get" and op.type == OK
        for job in op.value["jobs"]
    )
    assert delivered
    for life in world.watch.ledger.lives():
        # a hand-out whose answer didn't arrive is in the ledger alone
        assert delivered[life.value] <= len(life.deliveries)
    assert any(op.f == "ack" and op.type == OK for op in world.history.history)


def test_faults_begin_end_and_are_proven(world: World) -> None:
    events = [op for op in of(world, NEMESIS) if op.f in ("start", "stop")]
    assert all(op.value["proven"] for op in events)
    started = [op.value for op in events if op.f == "start"]
    assert {each["kind"] for each in started} >= {"split", "crash"}
    assert len(started) == len(events) - len(started)
    (split,) = [each for each in started if each["kind"] == "split"]
    assert sorted(split["links"]) == [("n0", "n1"), ("n0", "n2"), ("n1", "n0"), ("n2", "n0")]
    (crash,) = [each for each in started if each["kind"] == "crash"]
    assert crash["wipes"] == ["n1"]
    assert any(op.f == "purge" for op in world.history.history)


def test_observers_see_every_node_and_the_end_is_empty(world: World) -> None:
    looks = [op for op in of(world, OBSERVER) if op.type == OK]
    assert {op.node for op in looks} == {"n0", "n1", "n2"}
    assert any(op.value["ids"] for op in looks)
    last = [op.value for op in looks if op.value["phase"] == "end"]
    assert [each["ids"] for each in last] == [[], [], []]


def test_all_checkers_that_apply_speak_and_none_complains(world: World) -> None:
    answers = {answer.checker: answer for answer in world.history.judge()}
    assert set(answers) >= {"accounting", "loss", "ack-respected", "convergence", "drain-to-zero"}
    assert set(answers) <= {checker.NAME for checker in CHECKERS}
    assert [answer for answer in answers.values() if answer.valid is False] == []
    assert answers["accounting"].numbers["acknowledged"] > 10


def test_a_black_box_run_judges_from_outside_alone() -> None:
    plan = draw(3, EVENTS)
    inside, _ = run_profile(plan)
    outside, world = run_profile(plan, is_black_box=True)
    assert inside.violation is outside.violation is None
    assert inside.events == outside.events
    assert world.history.is_drained
