"""Plans as files, short runs, what is muted, and plans made small."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from tests.mutants.catalogue import BUGS
from tests.mutants.surgery import patched
from tests.sim import shrink
from tests.sim.__main__ import main
from tests.sim.plan import Fault, Profile, draw
from tests.sim.run import run_profile, run_seed

EVENTS = 5000
LATE_SEED = 3


@pytest.mark.parametrize("events", [0, EVENTS])
def test_a_plan_survives_its_file(events: int) -> None:
    for seed in range(20):
        plan = attrs.evolve(draw(seed, events), muted=("nack", "c1", "c2#7"))
        assert Profile.from_json(plan.to_json()) == plan


def test_what_is_no_plan_is_refused() -> None:
    for text in ("[]", '{"seed": 1}', "no json"):
        with pytest.raises((ValueError, TypeError, KeyError)):
            Profile.from_json(text)


def test_seeds_have_one_to_seven_nodes_and_short_ones_three_at_most() -> None:
    assert {draw(seed).nodes for seed in range(400)} == set(range(1, 8))
    assert {draw(seed, EVENTS).nodes for seed in range(100)} == {1, 2, 3}


def test_short_runs_have_about_the_events_that_were_wanted() -> None:
    events = [run_seed(seed, events_wanted=EVENTS).events for seed in range(12)]
    assert sum(events) / len(events) < 1.2 * EVENTS


def test_what_is_muted_isn_t_done_and_all_else_stays_drawn() -> None:
    plan = attrs.evolve(draw(LATE_SEED, EVENTS), faults=())
    everything, _ = run_profile(plan)
    no_adds, _ = run_profile(attrs.evolve(plan, muted=("add",)))
    assert everything.operations["add"]
    assert not no_adds.operations["add"]
    names = tuple(f"c{index}" for index in range(plan.clients))
    nobody, _ = run_profile(attrs.evolve(plan, muted=names))
    assert set(nobody.operations) == {"get"}, "the drain alone asks"
    first = run_profile(attrs.evolve(plan, muted=("c0#1",)))[1].clients[0]
    assert first.done_names()[0] == "c0#1"


def test_a_failing_plan_gets_small_and_fails_the_same_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shrink, "STORE", tmp_path)
    plan = draw(0, EVENTS)
    with patched(*BUGS["second-ack-crashes"].patches):
        shrinker = shrink.Shrinker(plan, "RAISED", seconds=10)
        small = shrinker.run()
        was, now = run_profile(plan)[0], run_profile(small)[0]
        path = shrink.write(small, "RAISED")
        assert main(["--plan", str(path), "--shrink", "0"]) == 1
    assert now.violation is not None
    assert now.violation.rule == "RAISED"
    assert len(small.faults) < len(plan.faults)
    assert sum(now.operations.values()) < sum(was.operations.values())
    assert main(["--plan", str(path)]) == 0


def test_a_plan_that_needs_its_fault_keeps_it() -> None:
    reset = Fault(at=2000, kind="reset", nodes=(0, 1), span=500)
    plan = attrs.evolve(draw(LATE_SEED, EVENTS), nodes=2, spares=0, faults=(reset,))
    with patched(*BUGS["links-stay-down"].patches):
        violation = run_profile(plan)[0].violation
        assert violation is not None
        shrinker = shrink.Shrinker(plan, violation.rule, seconds=3)
        small = shrinker.run()
    assert small.nodes == 2
    assert small.faults == (reset,)


def test_a_mutant_can_be_shown_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--seed", "0", "--events", str(EVENTS), "--mutant", "self-counts-twice"]
    assert main([*arguments, "--shrink", "0"]) == 1
    assert "FAIL S7" in capsys.readouterr().out
