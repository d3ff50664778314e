"""Nodes with a log: what is judged, what is drawn, and that the simulated disk does what it is there for."""

from __future__ import annotations

from collections import Counter

import attrs
import pytest

from tests.sim import checks
from tests.sim.checks import NONE, Copy
from tests.sim.plan import DISK_FAULTS, NEVER_WITH_A_LOG, Fault, Profile, draw, with_log
from tests.sim.run import run_profile, run_seed
from tests.sim.story import Story

EVENTS = 5000
JOB = b"D-00000000-AAAAAAAAAAAAAAAAAAAAAAAA-05a1"
LIVE = Copy("queued", holders=("a", "b"), retry_ms=1000, expires_at=100)
ONCE = Copy("queued", holders=("a",), expires_at=100)


def q7(before: Copy, after: Copy, now: int = 0) -> checks.Found:
    return checks.q7_log_is_memory(JOB, before, after, now)


def test_q7_finds_what_a_log_forgot() -> None:
    assert not q7(LIVE, attrs.evolve(LIVE, kind="active"))
    assert q7(LIVE, NONE)
    assert not q7(LIVE, NONE, now=100)
    assert not q7(NONE, LIVE)
    assert q7(LIVE, attrs.evolve(LIVE, holders=("a",)))
    assert q7(LIVE, attrs.evolve(LIVE, burials=1))
    done = attrs.evolve(LIVE, kind="done", reason=1)
    assert q7(done, LIVE)
    assert q7(done, attrs.evolve(done, reason=2))
    assert not q7(done, attrs.evolve(done, kind="tombstone"))


def test_q7_finds_an_at_most_once_job_that_may_be_offered_again() -> None:
    spent = attrs.evolve(ONCE, kind="active", dispatches={"a": 1}, is_spent=True)
    assert q7(spent, attrs.evolve(spent, is_spent=False))
    assert not q7(spent, spent)
    moving = attrs.evolve(ONCE, kind="moving")
    assert q7(moving, attrs.evolve(ONCE, kind="active"))
    assert not q7(moving, moving)


def test_q7_finds_a_whole_log_that_is_disbelieved_and_a_large_one() -> None:
    assert checks.q7_is_intact("n0", "the log was damaged", is_intact=False)
    assert not checks.q7_is_intact("n0", "", is_intact=True)
    assert checks.q7_log_is_small("n0", 2501 + 200, 1000, 100, 0)
    assert not checks.q7_log_is_small("n0", 2500 + 200, 1000, 100, 0)


def test_a_plan_with_a_log_is_the_plan_without_and_more() -> None:
    policies: Counter[str] = Counter()
    modes: Counter[str] = Counter()
    for seed in range(60):
        without = draw(seed, EVENTS)
        plan = with_log(without)
        policies[plan.log] += 1
        modes.update(fault.mode for fault in plan.faults if fault.kind == "disk")
        assert not without.log
        kept = [f for f in without.faults if f.kind not in ("clock", *NEVER_WITH_A_LOG)]
        assert all(fault in plan.faults for fault in kept)
        back = attrs.evolve(plan, log="", segment_bytes=0, faults=without.faults)
        assert back == without
        assert Profile.from_json(plan.to_json()) == plan
        assert "appendfsync" in plan.describe()
    assert set(policies) == {"always", "everysec", "no"}
    assert set(modes) == set(DISK_FAULTS)


@pytest.mark.parametrize("seed", range(8))
def test_a_seed_with_a_log_breaks_no_rule(seed: int) -> None:
    result = run_seed(seed, events_wanted=EVENTS, has_log=True)
    assert result.violation is None, result.story


def _calm(log: str, *faults: Fault) -> Profile:
    """Two nodes with a log, and nothing but these faults."""
    plan = attrs.evolve(draw(3, EVENTS), nodes=2, spares=0, length_ms=8000, faults=faults)
    return attrs.evolve(plan, log=log, segment_bytes=1500, events_wanted=0)


def test_power_loss_takes_nothing_if_every_turn_is_synced() -> None:
    power = [
        Fault(at=at, kind="crash", nodes=(node,), span=500, mode="power")
        for at, node in ((2000, 0), (3500, 1), (5000, 0))
    ]
    result, world = run_profile(_calm("always", *power))
    assert result.violation is None, result.story
    assert [node.log.kernel for node in world.nodes if node.log] == [2, 1]
    assert result.lost == 0
    assert not world.watch.crashes, "nothing is excused"
    result, world = run_profile(_calm("no", *power))
    assert result.violation is None, result.story
    assert len(world.watch.crashes) == len(power), "what no sync covered may be gone"


def test_a_full_disk_holds_everything_and_is_over_at_some_time() -> None:
    full = Fault(at=3000, kind="disk", nodes=(0,), span=1200, mode="full", n=100)
    result, world = run_profile(_calm("everysec", full))
    assert result.violation is None, result.story
    assert result.outcomes["MISCONF"]
    assert "held" in _kinds(world.story)
    assert not world.nodes[0].is_held


def test_segments_are_compacted() -> None:
    _, world = run_profile(_calm("everysec"))
    store = world.nodes[0].log.store if world.nodes[0].log else None
    assert store is not None
    assert min(store.sizes) > 1


def _kinds(story: Story) -> set[str]:
    return {line.split()[1] for line in story.text() if len(line.split()) > 1}
