"""What was measured, as values, and the two forms in which people see it: bench.json and a table.

Pure: it neither measures nor reads files. The README's table is generated from bench.json, and
tests/test_readme.py compares the two.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Sequence

import attrs

BEGIN, END = "<!-- bench -->", "<!-- /bench -->"
NOTHING_YET = "Not measured yet."


@attrs.frozen
class Row:
    """One measurement: what was done, what came out, and what the project asks of it."""

    what: str
    figure: str
    asked: str


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
    rows = tuple(Row(**each) for each in fields.pop("rows"))
    return Report(**fields, rows=rows)


def table(report: Report) -> str:
    """The report in Markdown, without a final newline."""
    head = ["| what | measured | asked |", "| --- | --- | --- |"]
    body = [f"| {row.what} | {row.figure} | {row.asked} |" for row in report.rows]
    foot = f"`{report.command}` at commit {report.commit}, {report.machine}."
    return "\n".join([*head, *body, "", foot])


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
