"""Timeline: processes as columns, time downwards, one box a call from its invocation to its completion.

A row is an event, not a span of time: so short calls stay legible, overlap is exact, and seconds stand at the side. A
worker keeps its column when an unknown outcome retires its process number. At most CALLS_MAX calls are shown: those
that touch the jobs complained about first, then the earliest.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Final

from jepsen.checkers.base import Run
from jepsen.history import NEMESIS, Op
from jepsen.report import style
from jepsen.report.markup import element, text_element
from jepsen.report.measures import Call, Calls, jobs_of

CALLS_MAX: Final = 10_000
ROW_PX: Final = 16
COLUMN_PX: Final = 150
LEFT_PX: Final = 80
# A clock time stands beside every so many rows.
CLOCK_ROWS: Final = 5
TIP_MAX: Final = 600

# Dims what doesn't hold the words asked for; no character that XML would mind.
SCRIPT: Final = """
const field = document.getElementById("filter");
function apply() {
  const wanted = " " + field.value.trim() + " ";
  for (const box of document.querySelectorAll(".op.call")) {
    box.classList.toggle("dim", wanted.trim() === "" ? false : !(" " + box.dataset.about + " ").includes(wanted));
  }
}
field.addEventListener("input", apply);
if (location.hash) {
  field.value = decodeURIComponent(location.hash.slice(1));
  apply();
  const first = document.querySelector(".op.call:not(.dim)");
  if (first) { first.scrollIntoView({ block: "center", inline: "center" }); }
}
"""


def page(run: Run, jobs: Sequence[tuple[str, int]] = ()) -> str:
    """The whole timeline.html; `jobs` (job id, v) are shown whatever the cap."""
    calls = Calls.of(run)
    chosen = choose(calls.clients, jobs)
    faults = [op for op in run.ops if op.process == NEMESIS]
    rows = row_of(chosen, faults)
    columns = sorted({column_of(call.invoke, run.meta.concurrency) for call in chosen})
    place = {column: i + 1 for i, column in enumerate(columns)}
    boxes = [
        box(call, rows, place[column_of(call.invoke, run.meta.concurrency)]) for call in chosen
    ]
    boxes += [fault_box(op, rows) for op in faults]
    height = (len(rows) + 1) * ROW_PX
    heads = [head(0, "nemesis"), *(head(i, f"process {c}") for c, i in place.items())]
    shown = f"{len(chosen)} of {len(calls.clients)} operations shown, most {CALLS_MAX}."
    body = [
        text_element("h1", f"Timeline: {run.meta.name or run.meta.workload}"),
        element(
            "p",
            text_element("span", f"{shown} Around a job id or value: "),
            element("input", id="filter", type="search", placeholder="value or job id"),
        ),
        element("div", *heads, class_="heads"),
        element("div", *clocks(rows), *boxes, class_="field", style=f"height: {height}px"),
        element("script", SCRIPT),
    ]
    return document(f"Timeline {run.meta.name}", style.PAGE + style.TIMELINE, body)


def document(title: str, css: str, body: Sequence[str]) -> str:
    """A whole HTML page, well-formed as XML too."""
    head_parts = [
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        text_element("title", title),
        element("style", css),
    ]
    page_parts = [element("head", *head_parts), element("body", *body)]
    return "<!DOCTYPE html>\n" + element("html", *page_parts, lang="en") + "\n"


def choose(calls: Sequence[Call], jobs: Sequence[tuple[str, int]]) -> list[Call]:
    """At most CALLS_MAX calls in order of invocation: those about `jobs`, then the earliest."""
    if len(calls) <= CALLS_MAX:
        return list(calls)
    words = {str(each) for job in jobs for each in job if each not in {"", -1}}
    wanted = [call for call in calls if not words.isdisjoint(about(call))][:CALLS_MAX]
    indexes = {call.invoke.index for call in wanted}
    others = (call for call in calls if call.invoke.index not in indexes)
    wanted += [call for call, _ in zip(others, range(CALLS_MAX - len(wanted)), strict=False)]
    return sorted(wanted, key=lambda call: call.invoke.index)


def about(call: Call) -> Collection[str]:
    """The values and job ids that a call names or got."""
    value = call.invoke.value
    words = [str(each) for name in ("ids", "vs") for each in value.get(name) or ()]
    words += [str(value["v"])] if "v" in value else []
    for job in jobs_of(call.completion):
        words += [str(job["v"]), str(job["id"])]
    if call.completion and "id" in call.completion.value:
        words.append(str(call.completion.value["id"]))
    return dict.fromkeys(words)


def row_of(calls: Sequence[Call], faults: Sequence[Op]) -> dict[int, tuple[int, int]]:
    """(row, time ns) of each event by its index, in order of time."""
    events = [call.invoke for call in calls] + list(faults)
    events += [call.completion for call in calls if call.completion]
    return {
        op.index: (row, op.time) for row, op in enumerate(sorted(events, key=lambda e: e.index))
    }


def column_of(op: Op, concurrency: int) -> int:
    """The worker behind a process number: unknown outcomes retire numbers, not workers."""
    return op.process % concurrency if concurrency else op.process


def box(call: Call, rows: dict[int, tuple[int, int]], place: int) -> str:
    """The box of one call."""
    first = rows[call.invoke.index][0]
    last = rows[call.completion.index][0] if call.completion else len(rows)
    words = about(call)
    label = f"{call.invoke.f} {' '.join(list(words)[:4])}"
    return text_element(
        "div",
        label,
        class_=f"op call {call.type}",
        style=position(place, first, max(1, last - first)),
        title=tip(call),
        data_about=" ".join(words),
    )


def fault_box(op: Op, rows: dict[int, tuple[int, int]]) -> str:
    """The box of one event of the nemesis, one row high."""
    label = f"{op.f} {op.value.get('kind', op.value.get('name', ''))}"
    text = f"{op.time / 1e9:.6f} s {json.dumps(dict(op.value))}"[:TIP_MAX]
    where = position(0, rows[op.index][0], 1)
    return text_element("div", label, class_="op nemesis", style=where, title=text)


def tip(call: Call) -> str:
    """A call in full, cut at TIP_MAX."""
    invoke, completion = call.invoke, call.completion
    lines = [f"{invoke.f} {call.type} on {invoke.node}, process {invoke.process}"]
    lines.append(f"{invoke.time / 1e9:.6f} s invoke {json.dumps(dict(invoke.value))}")
    if completion:
        value = json.dumps(dict(completion.value))
        lines.append(f"{completion.time / 1e9:.6f} s {completion.type} {value} {completion.error}")
    else:
        lines.append("never completed")
    return "\n".join(lines)[:TIP_MAX]


def head(place: int, name: str) -> str:
    """The head of a column."""
    return text_element("span", name, style=f"left: {LEFT_PX + place * COLUMN_PX}px")


def clocks(rows: dict[int, tuple[int, int]]) -> list[str]:
    """Seconds beside every CLOCK_ROWS-th row."""
    return [
        text_element("div", f"{at / 1e9:.4f}", class_="clock", style=f"top: {row * ROW_PX}px")
        for row, at in rows.values()
        if row % CLOCK_ROWS == 0
    ]


def position(place: int, row: int, height: int) -> str:
    """CSS that puts a box in its column and rows."""
    left = LEFT_PX + place * COLUMN_PX
    top, tall = row * ROW_PX, height * ROW_PX - 2
    return f"left: {left}px; top: {top}px; height: {tall}px; width: {COLUMN_PX - 6}px"
