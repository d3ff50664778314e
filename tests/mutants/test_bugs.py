"""Every bug of the catalogue dies in its recorded run, found by whom it should be, and the run is clean without it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from disque.server.clock import Clock
from jepsen.checkers.judge import CHECKERS
from tests.mutants import bugs, real
from tests.mutants.__main__ import main, real_runs, table
from tests.mutants.catalogue import BUGS, Recorded, recorded
from tests.mutants.hunt import SEEN, Verdict, judge, judge_all, keys_of
from tests.mutants.real import RealVerdict, found_in
from tests.mutants.surgery import MissingError, Patch, patched
from tests.sim.plan import Fault, draw
from tests.sim.run import run_profile

ROOT = Path(__file__).parents[2]
NOBODYS = {"stats"}  # a run that shows nothing is unknown, never wrong
# The design's bugs that a real run must find, without those that need a log, and order's
OF_REAL_RUNS = 12


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


def test_a_real_run_counts_if_the_bug_is_seen_soon_and_a_healthy_one_is_valid() -> None:
    def said(name: str, status: int, **found: float) -> str:
        named = {checker.replace("_", "-"): at for checker, at in found.items()}
        return RealVerdict(name, "queue x none", status, named).words

    assert said("asks-nobody", 1, retry_lease=20.0, loss=1.0) == "killed"
    assert said("asks-nobody", 1, retry_lease=61.0) == "KILLED TOO LATE"
    assert said("asks-nobody", 1, loss=20.0) == "SURVIVES (exit 1)"
    assert said("asks-nobody", 2) == "SURVIVES (exit 2)"
    assert said("none", 0) == "healthy"
    assert said("none", 2) == "NOT VALID WITHOUT A BUG (2)"
    results = [
        {"checker": "health", "valid": False, "findings": [{"at": 0}]},
        {"checker": "loss", "valid": False, "findings": [{"at": 7_000_000_000}, {"at": 3e9}]},
        {"checker": "stats", "valid": None, "findings": []},
    ]
    assert found_in(results, 45.0) == {"health": 45.0, "loss": 3.0}


def test_each_real_run_has_a_healthy_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def judge(name: str, run: str) -> RealVerdict:
        return RealVerdict(name, run, 1, dict.fromkeys(("retry-lease", "drain-to-zero"), 9.0))

    monkeypatch.setattr(real, "judge", judge)
    assert main(["--real", "asks-nobody", "ack-not-said-again"]) == 1
    rows = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert rows == ["none", "asks-nobody", "none", "ack-not-said-again"]


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
    healthy = subprocess.run([*command, "none", "--version"], cwd=ROOT, capture_output=True)
    assert healthy.stdout == done.stdout
    unknown = subprocess.run([*command, "no-such-bug"], cwd=ROOT, capture_output=True)
    assert unknown.returncode == 2
    assert b"no-dummy" in unknown.stderr
