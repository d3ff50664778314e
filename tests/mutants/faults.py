"""Faults: C Disque's behaviour for the faults of the reference that are one rule, put back and judged by their tests.

Each mutant replaces one function, in a child process; then the tests that name its fault must be red, and without
it clean.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping

import attrs
import pytest

from tests.mutants.bank import FAULTS, Mutant
from tests.mutants.surgery import operated

RUN_MAX_S = 110  # the child process
TEST_MAX_S = 20  # one test of a mutant: one that hangs is noticed, too
MARK = "= mutant "  # begins a child's line about one test
WIDTHS = (6, 30, 78)  # of the table's columns


@attrs.frozen
class Verdict:
    """What the tests of one mutant said with it and without it."""

    name: str
    mutant: Mutant
    test: str
    is_red_with_it: bool
    is_clean_without: bool

    @property
    def is_good(self) -> bool:
        """True if the mutant, and only the mutant, was noticed."""
        return self.is_red_with_it and self.is_clean_without

    @property
    def words(self) -> str:
        """red/clean, or what is wrong."""
        red = "red" if self.is_red_with_it else "SURVIVES"
        return f"{red}/{'clean' if self.is_clean_without else 'RED WITHOUT'}"


def run_child(names: list[str]) -> dict[str, dict[str, bool]]:
    """mutant ("" is none) -> test id -> passed; one child process for all, so that nothing of them stays here."""
    command = [sys.executable, "-m", "tests.mutants.faults", *names]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_MAX_S, check=False)
    runs: dict[str, dict[str, bool]] = {name: {} for name in ["", *names]}
    for line in done.stdout.splitlines():
        if line.startswith(MARK):
            name, word, test = line.removeprefix(MARK).split(" ", 2)
            runs[name.removeprefix("none")][test] = word == "passed"
    silent = [name for name, run in runs.items() if not run]
    if silent:
        raise SystemExit(f"no test ran for {silent}: {done.stdout}{done.stderr}")
    return runs


def _is_passed(test: str, run: Mapping[str, bool]) -> bool:
    """A test id without its parameters stands for all of them."""
    outcomes = [ok for each, ok in run.items() if each == test or each.startswith(f"{test}[")]
    return bool(outcomes) and all(outcomes)


def judge(bank: Mapping[str, Mutant]) -> list[Verdict]:
    """A verdict for each test of each mutant."""
    runs = run_child(list(bank))
    verdicts = []
    for name, mutant in bank.items():
        for test in mutant.checks:
            is_red = not _is_passed(test, runs[name])
            verdicts.append(Verdict(name, mutant, test, is_red, _is_passed(test, runs[""])))
    return verdicts


def table(verdicts: list[Verdict]) -> str:
    """fault, function replaced, test, red/clean."""
    rows = [("fault", "function replaced", "test", "with/without it")]
    rows += [
        (v.name, f"{v.mutant.module}.{v.mutant.function}", v.test.split("::")[1], v.words)
        for v in verdicts
    ]
    return "\n".join(
        " ".join([*[cell.ljust(width) for cell, width in zip(row, WIDTHS, strict=False)], row[3]])
        for row in rows
    )


class _Reporter:
    """A pytest plugin that keeps the outcome of each test; pytest itself stays silent."""

    def __init__(self) -> None:
        self.outcomes: dict[str, bool] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called by pytest for set-up, call and tear-down of each test."""
        node = report.nodeid
        self.outcomes[node] = self.outcomes.get(node, True) and not report.failed


def _run(tests: tuple[str, ...]) -> dict[str, bool]:
    reporter = _Reporter()
    options = [
        "-q",
        "-p",
        "no:cacheprovider",
        "--no-header",
        "--tb=no",
        "-rN",
        f"--timeout={TEST_MAX_S}",
    ]
    pytest.main([*options, *tests], plugins=[reporter])
    return reporter.outcomes


def child(names: list[str]) -> None:
    """Run the tests without a mutant, then each mutant's own with it; prints a line each."""
    bank = {name: FAULTS[name] for name in names}
    everything = tuple(dict.fromkeys(test for mutant in bank.values() for test in mutant.checks))
    runs = {"none": _run(everything)}
    for name, mutant in bank.items():
        with operated(mutant) as places:
            assert places, f"{name}: nothing was replaced"
            runs[name] = _run(mutant.checks)
    for name, run in runs.items():
        for test, is_passed in run.items():
            print(f"{MARK}{name} {'passed' if is_passed else 'failed'} {test}")


if __name__ == "__main__":
    child(sys.argv[1:])
