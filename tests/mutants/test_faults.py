"""Each fault of the reference that is one rule: put back, its test is red; without it, clean (tests/mutants)."""

from __future__ import annotations

import attrs
import pytest

from disque.core import acks, ending, engine
from disque.core import messages as msg
from tests.mutants.__main__ import main
from tests.mutants.bank import FAULTS
from tests.mutants.faults import Verdict, judge, table
from tests.mutants.surgery import MissingError, core_modules, operated


def test_every_fault_that_is_one_rule_is_noticed() -> None:
    verdicts = judge(FAULTS)
    survivors = [verdict for verdict in verdicts if not verdict.is_good]
    assert not survivors, "\n" + table(survivors)


def test_the_twelve_faults_are_there() -> None:
    numbers = [int(name.removeprefix("W-")) for name in FAULTS]
    assert numbers == [1, 2, 3, 7, 10, 12, 13, 16, 18, 24, 32, 38]


@pytest.mark.parametrize("name", FAULTS)
def test_a_mutant_replaces_a_function_and_goes_without_a_trace(name: str) -> None:
    mutant = FAULTS[name]
    (home,) = [m for m in core_modules() if m.__name__ == f"disque.core.{mutant.module}"]
    original = getattr(home, mutant.function)
    with operated(mutant) as places:
        assert places
        assert getattr(home, mutant.function) is mutant.replacement
    assert getattr(home, mutant.function) is original
    assert mutant.checks


def test_names_that_other_modules_imported_and_tables_of_handlers_are_replaced() -> None:
    with operated(FAULTS["W-1"]):
        assert vars(ending)["collect"] is vars(acks)["collect"] is FAULTS["W-1"].replacement
    with operated(FAULTS["W-38"]):
        assert engine._MESSAGES[msg.DelJob] is FAULTS["W-38"].replacement
    assert engine._MESSAGES[msg.DelJob] is acks.on_del_job


def test_a_function_that_is_gone_is_said_so() -> None:
    lost = attrs.evolve(FAULTS["W-1"], function="collected")
    with pytest.raises(MissingError, match="collected"), operated(lost):
        pass


def test_a_mutant_that_changes_nothing_survives_and_that_is_failure() -> None:
    same = attrs.evolve(FAULTS["W-1"], replacement=ending.collect)
    verdict = Verdict("W-0", same, "a::b", is_red_with_it=False, is_clean_without=True)
    assert not verdict.is_good
    assert "SURVIVES/clean" in table([verdict])
    assert "red/RED WITHOUT" in table(
        [attrs.evolve(verdict, is_red_with_it=True, is_clean_without=False)]
    )


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(SystemExit):
        main(["--faults", "W-99"])
