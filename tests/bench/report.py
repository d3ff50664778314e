"""What was measured, as values, and the two forms in which people see it: bench.json and a table.

It neither measures nor reads files. The tables of the README (its rows alone) and of docs/performance.md (all of
them) are generated from bench.json, and tests compare them with it.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

BEGIN, END = "<!-- bench -->", "<!-- /bench -->"
NOTHING_YET = "Not measured yet."
YARDSTICK = "C Disque"  # what is asked of us is told in terms of it


@attrs.frozen
class Beside:
    """The same measured at another server: its name, what came out, and ours divided by it where both are numbers.

    `compiled`: likewise that of our compiled build.
    """

    title: str
    figure: str
    ratio: float | None = None
    compiled: float | None = None


@attrs.frozen
class Row:
    """One measurement: what was done, what came out for us, what the project asks of it, and what others make of it.

    `compiled`: what came out for our compiled build, empty where there was none.
    """

    what: str
    figure: str
    asked: str
    beside: tuple[Beside, ...] = ()
    is_in_readme: bool = True
    compiled: str = ""


@attrs.frozen
class Report:
    """All rows of one run, with what is needed to run it again."""

    machine: str
    commit: str
    command: str
    rows: tuple[Row, ...]


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that `share` (0 to 1) of all values don't exceed: nearest rank."""
    if not values:
        raise ValueError("no percentile of nothing")
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]


def latencies(values_ms: Sequence[float]) -> str:
    """Mean, median and 99th percentile of times in ms, as the table shows them."""
    mean = sum(values_ms) / len(values_ms)
    p50, p99 = percentile(values_ms, 0.5), percentile(values_ms, 0.99)
    return f"mean {mean:.2f} ms, p50 {p50:.2f}, p99 {p99:.2f}"


def rate_from_csv(text: str) -> float:
    """Requests a second from `redis-benchmark --csv`; ValueError shows what else came."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    rows = list(csv.DictReader(lines))
    if len(rows) != 1 or "rps" not in rows[0]:
        raise ValueError(f"no single rps in redis-benchmark's output: {text!r}")
    return float(rows[0]["rps"])


def to_json(report: Report) -> str:
    """The text of bench.json."""
    return json.dumps(attrs.asdict(report), indent=2) + "\n"


def from_json(text: str) -> Report:
    """What to_json wrote."""
    fields = json.loads(text)
    rows = tuple(_row(**each) for each in fields.pop("rows"))
    return Report(**fields, rows=rows)


def _row(*, beside: Sequence[Mapping[str, Any]], **fields: Any) -> Row:
    return Row(**fields, beside=tuple(Beside(**each) for each in beside))


def table(report: Report) -> str:
    """The report in Markdown, without a final newline; a column for each server that ours was measured beside.

    The compiled build's columns are there where it was measured; its ratios are shown for the yardstick alone.
    """
    rows = report.rows
    columns = {"what": [row.what for row in rows], "measured": [row.figure for row in rows]}
    is_compiled = any(row.compiled for row in rows)
    if is_compiled:
        columns["compiled"] = [row.compiled for row in rows]
    for title in dict.fromkeys(each.title for row in rows for each in row.beside):
        found = [{each.title: each for each in row.beside}.get(title) for row in rows]
        columns[f"to {title}"] = [_cell(each) if each else "" for each in found]
        if is_compiled and title == YARDSTICK:
            columns[f"compiled to {title}"] = [_compiled_ratio(each) for each in found]
    columns["asked"] = [row.asked for row in rows]
    lines = [columns, ["---"] * len(columns), *zip(*columns.values(), strict=True)]
    foot = f"`{report.command}` at commit {report.commit}, {report.machine}."
    return "\n".join([*[f"| {' | '.join(line)} |" for line in lines], "", foot])


def _cell(beside: Beside) -> str:
    return beside.figure if beside.ratio is None else f"{beside.ratio:.2f} ({beside.figure})"


def _compiled_ratio(beside: Beside | None) -> str:
    return "" if beside is None or beside.compiled is None else f"{beside.compiled:.2f}"


def headlines(report: Report) -> Report:
    """The report with the rows that the README shows."""
    return attrs.evolve(report, rows=tuple(row for row in report.rows if row.is_in_readme))


def tell(row: Row) -> None:
    """Show a row while the rest is measured."""
    compiled = row.compiled and f"; compiled {row.compiled}"
    beside = "".join(f"; {each.title} {_cell(each)}" for each in row.beside)
    print(f"{row.what}: {row.figure}{compiled}{beside}", flush=True)


def block(page: str) -> str:
    """What stands between the markers of a page; ValueError unless each is there once, in order."""
    if page.count(BEGIN) != 1 or page.count(END) != 1 or page.index(BEGIN) > page.index(END):
        raise ValueError(f"the page needs {BEGIN} and {END} once each, in this order")
    return page.split(BEGIN)[1].split(END)[0].strip("\n")


def splice(page: str, text: str) -> str:
    """The page with `text` between its markers."""
    block(page)
    before, after = page.split(BEGIN)[0], page.split(END)[1]
    return f"{before}{BEGIN}\n{text}\n{END}{after}"
