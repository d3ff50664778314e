"""Every bug of the catalogue dies in its recorded run, found by whom it should be, and the run is clean without it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from disque.server.clock import Clock
from jepsen.checkers.judge import CHECKERS
from tests.mutants import bugs
from tests.mutants.__main__ import main, real_runs, table
from tests.mutants.catalogue import BUGS, Recorded, recorded
from tests.mutants.hunt import SEEN, Verdict, judge, judge_all, keys_of
from tests.mutants.surgery import MissingError, Patch, patched
from tests.sim.plan import Fault, draw
from tests.sim.run import run_profile

ROOT = Path(__file__).parents[2]
NOBODYS = {"stats"}  # a run that shows nothing is unknown, never wrong
OF_REAL_RUNS = 11  # the design's bugs that a real run must find, without those that need a log


@pytest.mark.timeout(400)  # some 20 s of two processors, if nobody else has them
def test_every_bug_is_found_by_whom_it_should_be() -> None:
    verdicts = list(judge_all(recorded(), keys_of(BUGS), jobs=2))
    bad = [verdict for verdict in verdicts if not verdict.is_good]
    assert not bad, "\n" + table(bad)


@pytest.mark.parametrize("fault", [("slow", 9000, 20), ("leave", 4500, 1)])
def test_availability_is_judged_beside_nodes_that_are_slow_or_leave(
    fault: tuple[str, int, int],
) -> None:
    kind, at, n = fault
    bug, run = BUGS["needs-majority"], recorded()["needs-majority"]
    plan = draw(run.seed, run.events)
    other = Fault(at=at, kind=kind, nodes=(0,), span=300, n=n)
    with patched(*bug.patches):
        result, _ = run_profile(attrs.evolve(plan, faults=(*plan.faults, other)))
    assert result.violation is not None
    assert result.violation.rule == "availability"


def test_every_checker_of_real_runs_has_found_a_bug() -> None:
    killers = {bug.sees[0] for bug in BUGS.values() if len(bug.sees) == 1}
    assert killers == {checker.NAME for checker in CHECKERS} - NOBODYS


def test_the_designs_bugs_without_a_log_are_there() -> None:
    assert len(BUGS) >= 19 + 5
    assert sum(bool(bug.real) for bug in BUGS.values()) == OF_REAL_RUNS
    assert "tests.mutants.server no-dummy" in real_runs()


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_replaces_something_and_goes_without_a_trace(name: str) -> None:
    before = _places(BUGS[name].patches)
    with patched(*BUGS[name].patches) as places:
        assert places >= len(BUGS[name].patches)
        assert _places(BUGS[name].patches) == [p.replacement for p in BUGS[name].patches]
    assert _places(BUGS[name].patches) == before


def _places(patches: tuple[Patch, ...]) -> list[object]:
    found = []
    for patch in patches:
        home, _, name = patch.place.rpartition(".")
        module = sys.modules.get(home)
        if module is None:
            path, _, owner = home.rpartition(".")
            found.append(vars(getattr(sys.modules[path], owner))[name])
        else:
            found.append(getattr(module, name))
    return found


def test_a_run_that_kills_nothing_survives_and_that_is_failure() -> None:
    verdict = judge("no-dummy", None)
    assert not verdict.is_good
    assert "SURVIVES" in table([verdict])
    other = attrs.evolve(verdict, run=Recorded(1, 0), found="S1")
    assert "not by ack-respected" in other.words
    unclean = attrs.evolve(other, found="ack-respected", is_clean_without=False)
    assert not unclean.is_good
    assert attrs.evolve(unclean, is_clean_without=True).is_good
    seen = Verdict("no-dummy" + SEEN, True, None, "", "", 0.0, is_clean_without=True)
    assert seen.words == "SURVIVES"


def test_a_class_attribute_is_replaced_too_and_one_that_is_gone_is_said_so() -> None:
    original = Clock.now_ms
    with patched(*BUGS["retry-by-wall-clock"].in_server):
        assert Clock.now_ms is bugs.wall_clock
    assert Clock.now_ms is original
    for place in ("disque.server.clock.Clock.later_ms", "disque.server.clock.Watch.now_ms"):
        with pytest.raises(MissingError), patched(Patch(place, None)):
            pass


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(SystemExit):
        main(["no-such-bug"])


@pytest.mark.system
def test_a_server_with_a_bug_is_a_server() -> None:
    command = [sys.executable, "-m", "tests.mutants.server"]
    done = subprocess.run([*command, "no-dummy", "--version"], cwd=ROOT, capture_output=True)
    assert done.returncode == 0
    assert b"disque-broker" in done.stdout
    unknown = subprocess.run([*command, "no-such-bug"], cwd=ROOT, capture_output=True)
    assert unknown.returncode == 2
    assert b"no-dummy" in unknown.stderr
