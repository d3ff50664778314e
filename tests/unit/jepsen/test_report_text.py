"""The summary that a terminal shows."""

from __future__ import annotations

import pytest

from jepsen.checkers import CLAIMS, Finding, Result
from jepsen.report import summary
from jepsen.report.text import (
    ABSENT,
    FINDINGS_MAX,
    WIDTH,
    accounting,
    describe,
    flattened,
    measured,
)
from tests.unit.jepsen.synthetic import make_results, make_run

VALID = Result("accounting", True, "Only added jobs.")
UNKNOWN = Result("stats", None, "Not vacuous.", notes=("12 deliveries in faults, 100 asked",))
INVALID = Result(
    "loss", False, "Nothing is lost.", (Finding("loss", "lost", "gone", "D-1", 7, 2_500_000_000),)
)


def test_marks_in_the_order_of_the_checkers_with_a_dash_for_the_absent() -> None:
    text = summary([INVALID, VALID], checkers=["accounting", "at-most-once", "loss"], took_s=0.42)
    assert text.splitlines()[0] == "check   accounting ✓  at-most-once –  loss ✗   0.4 s"  # noqa: RUF001


@pytest.mark.parametrize(
    ("results", "word"),
    [
        ([VALID], "VALID"),
        ([VALID, UNKNOWN], "UNKNOWN"),
        ([UNKNOWN, INVALID, VALID], "INVALID"),
        ([], "VALID"),
    ],
)
def test_the_last_line_is_the_verdict_and_where_to_read_on(
    results: list[Result], word: str
) -> None:
    assert summary(results).splitlines()[-1] == word
    assert summary(results, report="store/latest/report.html").splitlines()[-1] == (
        f"{word}   report: store/latest/report.html"
    )


def test_what_is_broken_and_what_is_unknown_says_why() -> None:
    lines = summary([VALID, INVALID, UNKNOWN]).splitlines()
    assert "loss ✗  Nothing is lost." in lines
    assert "  2.500 s  lost  v 7  D-1  gone" in lines
    assert "stats ?  12 deliveries in faults, 100 asked" in lines


def test_many_findings_are_cut_and_counted() -> None:
    findings = tuple(Finding("loss", "lost", f"gone {i}", v=i) for i in range(FINDINGS_MAX + 3))
    lines = summary([Result("loss", False, "x", findings)]).splitlines()
    assert sum("gone" in line for line in lines) == FINDINGS_MAX
    assert "  … and 3 more" in lines


def test_accounting_groups_classes_and_spaces_thousands() -> None:
    loss = Result("loss", True, "", numbers={"lost": 0, "excused": 1200, "share": 0.5})
    assert accounting([*make_results(make_run(3))[:1], loss]) == [
        "attempted 4 913",
        "duplicated 31 (28 in faults, 3 after nack)",
        "lost 0",
        "excused 1 200",
    ]


def test_latencies_stand_below_the_accounting() -> None:
    numbers = {
        "delivery_healthy_ms": {"p50": 3.2, "p99": 41.0},
        "delivery_after_heal_ms": {"p50": 5, "p99": 800},
        "recovery_worst_ms": 1_840,
    }
    loss = Result("loss", True, "", numbers={"lost": 0})
    lines = summary([loss, Result("latency", True, "", numbers=numbers)], checkers=()).splitlines()
    assert lines[1:4] == [
        "",
        " lost 0",
        " delivery healthy p50 3.2 ms p99 41 ms  delivery after heal p50 5 ms p99 800 ms  worst recovery 1.8 s",
    ]


def test_every_checker_that_exists_has_a_mark() -> None:
    marks = " ".join(summary([]).splitlines())
    assert all(f"{name} {ABSENT}" in marks for name in CLAIMS)


def test_lines_are_wrapped_between_parts() -> None:
    many = [Result(f"checker-number-{i}", True, "") for i in range(30)]
    lines = summary(many, checkers=()).splitlines()
    assert all(len(line) <= WIDTH for line in lines)
    assert " ".join(" ".join(lines[:-1]).split()[1:]) == " ".join(
        f"checker-number-{i} ✓" for i in range(30)
    )
    assert all(line.startswith("        checker") for line in lines[1:-1])


def test_what_was_measured_keeps_quantiles_together_and_leaves_jepsens_names_out() -> None:
    numbers = {"ok_adds": 5, "lost-count": 0, "add_ms": {"p50": 1.5, "p99": 9}, "share": 0.25}
    assert measured(numbers) == ["ok adds 5", "add ms p50 1.5, p99 9", "share 0.25"]


def test_small_pieces() -> None:
    assert (
        describe(Finding("health", "traceback", "n1: ValueError"))
        == "0.000 s  traceback  n1: ValueError"
    )
    assert flattened({"a": {"b": 1, "c": {"d": [2]}}, "e": None}) == [
        ("a.b", "1"),
        ("a.c.d", "[2]"),
        ("e", "None"),
    ]
