"""Text: the summary of a run for a terminal: a mark for each checker, the accounting, what is broken, the verdict."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from jepsen.checkers import CLAIMS, Finding, Result, verdict

MARKS: Final = {True: "✓", False: "✗", None: "?"}
WORDS: Final = {True: "VALID", False: "INVALID", None: "UNKNOWN"}
# A checker that doesn't apply to the run.
ABSENT: Final = "–"  # noqa: RUF001  # a dash beside ticks and crosses
WIDTH: Final = 116
# Whose numbers make the accounting.
COUNTED: Final = ("accounting", "loss")
# Of names that repeat a number as Jepsen's total-queue prints it.
JEPSEN_ENDING: Final = "-count"
# Lines of findings for one checker; the page shows more.
FINDINGS_MAX: Final = 5


def summary(
    results: Sequence[Result],
    *,
    checkers: Iterable[str] = tuple(CLAIMS),
    report: object = "",
    took_s: float | None = None,
) -> str:
    """The summary of a run, several lines without a last newline.

    `checkers` are all that exist, in order of their marks; those without a result get a dash. `report` is the path of
    the page, `took_s` how many seconds the checkers took.
    """
    lines = wrapped("check   ", marks(results, checkers))
    if took_s is not None:
        lines[-1] += f"   {took_s:.1f} s"
    numbers = [wrapped(" ", parts) for parts in (accounting(results), latencies(results)) if parts]
    if numbers:
        lines += ["", *itertools.chain(*numbers)]
    lines += broken(results)
    lines += unknown(results)
    word = WORDS[verdict(results)]
    lines.append(f"{word}   report: {report}" if str(report) else word)
    return "\n".join(lines)


def marks(results: Sequence[Result], checkers: Iterable[str] = ()) -> list[str]:
    """The name and the mark of each checker, those without a result too."""
    given = {result.checker: MARKS[result.valid] for result in results}
    names = dict.fromkeys([*checkers, *given])
    return [f"{name} {given.get(name, ABSENT)}" for name in names]


def accounting(results: Sequence[Result]) -> list[str]:
    """The counts of the checkers in COUNTED; counts of classes ("lost_middle") stand in brackets behind their sum."""
    numbers: dict[str, int] = {}
    for result in results:
        if result.checker in COUNTED:
            numbers |= {name: n for name, n in result.numbers.items() if is_count(name, n)}
    classes: dict[str, list[str]] = {}
    for name, count in numbers.items():
        whole, _, class_ = name.partition("_")
        if class_ and whole in numbers:
            classes.setdefault(whole, []).append(f"{spaced(count)} {class_.replace('_', ' ')}")
    parts = []
    for name, count in numbers.items():
        if name.partition("_")[0] not in classes or name in classes:
            among = [each for each in classes.get(name, ()) if not each.startswith("0 ")]
            brackets = f" ({', '.join(among)})" if among else ""
            parts.append(f"{name.replace('_', ' ')} {spaced(count)}{brackets}")
    return parts


def latencies(results: Sequence[Result]) -> list[str]:
    """Of the latency checker: how long deliveries took in each phase, and the slowest recovery from a fault."""
    numbers = next((each.numbers for each in results if each.checker == "latency"), {})
    parts = []
    for phase in ("healthy", "faulty", "after_heal"):
        if of := numbers.get(f"delivery_{phase}_ms"):
            name = phase.replace("_", " ")
            parts.append(f"delivery {name} p50 {of['p50']:g} ms p99 {of['p99']:g} ms")
    if "recovery_worst_ms" in numbers:
        parts.append(f"worst recovery {numbers['recovery_worst_ms'] / 1000:.1f} s")
    return parts


def is_count(name: str, value: object) -> bool:
    """Whether this is a number of jobs, under our own name."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return is_number and not name.endswith(JEPSEN_ENDING)


def spaced(count: int) -> str:
    """A count with its thousands apart."""
    return f"{count:,}".replace(",", " ")


def broken(results: Sequence[Result]) -> list[str]:
    """What is broken, the first FINDINGS_MAX of each checker."""
    lines = []
    for result in results:
        if result.valid is False:
            lines += ["", f"{result.checker} ✗  {result.claim}"]
            lines += [f"  {describe(each)}" for each in result.findings[:FINDINGS_MAX]]
            left = len(result.findings) - FINDINGS_MAX
            lines += [f"  … and {left} more"] * (left > 0)
    return [*lines, ""] if lines else lines


def unknown(results: Sequence[Result]) -> list[str]:
    """Why what is unknown is unknown."""
    lines = []
    for result in results:
        if result.valid is None:
            why = "; ".join(result.notes) or "it gave no reason"
            lines.append(f"{result.checker} ?  {why}")
    return lines


def describe(finding: Finding) -> str:
    """A finding in one line: when, what kind, which job, why."""
    value = f"v {finding.v}" if finding.v >= 0 else ""
    parts = [f"{finding.at / 1e9:.3f} s", finding.kind, value, finding.job, finding.text]
    return "  ".join(part for part in parts if part)


def measured(numbers: Mapping[str, Any]) -> list[str]:
    """What a checker measured, a part a name; a map of classes or quantiles stays one part."""
    parts = []
    for name, value in numbers.items():
        if name.endswith(JEPSEN_ENDING):
            continue
        if isinstance(value, Mapping):
            value = ", ".join(f"{key} {each}" for key, each in value.items())
        parts.append(f"{name.replace('_', ' ')} {value}")
    return parts


def flattened(fields: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested fields as dotted names with their values as text, in order."""
    found: list[tuple[str, str]] = []
    for name, value in fields.items():
        if isinstance(value, Mapping):
            found += flattened(value, f"{prefix}{name}.")
        else:
            found.append((prefix + str(name), str(value)))
    return found


def wrapped(lead: str, parts: Sequence[str]) -> list[str]:
    """The parts in lines of at most WIDTH; no part is broken, later lines are indented as far as `lead`."""
    glued = "  ".join(part.replace(" ", "\0") for part in parts)
    indent = " " * len(lead)
    lines = textwrap.wrap(
        glued, WIDTH, initial_indent=lead, subsequent_indent=indent, break_on_hyphens=False
    )
    return [line.replace("\0", " ") for line in lines or [lead.rstrip()]]
