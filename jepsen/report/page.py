"""Page: report.html, one self-contained page: the verdict, how to run it again, what each checker says, the pictures.

Everything a reader needs to doubt or believe the verdict is in it; nothing is fetched. It shows at most JOBS_MAX
offending jobs with their biographies and FINDINGS_MAX findings of a checker; results.json has all.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

from jepsen.checkers import CLAIMS, Finding, Result, Run, verdict
from jepsen.report import biography, style, text
from jepsen.report.lanes import Window, windows
from jepsen.report.markup import element, text_element
from jepsen.report.timeline import document

JOBS_MAX: Final = 20
FINDINGS_MAX: Final = 20
FAULTS_MAX: Final = 200
# Options that change nothing about what happens in a test.
NOT_REPEATED: Final = frozenset({"store", "json", "test_count", "leave_running"})
# Flags that aren't called like their option.
FLAGS: Final = {"node_timeout_ms": "node-timeout"}
CLASSES: Final = {True: "valid", False: "invalid", None: "unknown"}
FILES: Final = (
    "timeline.html",
    "history.txt",
    "history-full.jsonl",
    "history.edn",
    "snapshots.jsonl",
    "faults.jsonl",
    "results.json",
    "results.edn",
    "test.json",
    "jepsen.log",
)


def render(
    run: Run, results: Sequence[Result], pictures: Mapping[str, str], test: Mapping[str, Any]
) -> str:
    """The whole page; `pictures` are SVG by file name, `test` the fields of test.json."""
    found = [each for result in results for each in result.findings]
    parts = [
        banner(run, results, test),
        *section("What each promise is worth", checkers_table(results)),
        *section("What is broken", *findings_lists(results)),
        *section("Offending jobs", *lives(run, found)),
        *section("Excuses used and reasons for doubt", *notes(results)),
        *section("Pictures", *(element("figure", svg) for svg in pictures.values())),
        *section("Faults", *faults_table(windows(run))),
        *section("Options and environment", fields_table(test)),
        *section("Files", element("p", *(link(name) for name in FILES))),
    ]
    return document(f"{title(run)}: {text.WORDS[verdict(results)]}", style.PAGE, parts)


def title(run: Run) -> str:
    """What was run, in a few words."""
    return f"{run.meta.workload} × {run.meta.nemesis}"  # noqa: RUF001


def banner(run: Run, results: Sequence[Result], test: Mapping[str, Any]) -> str:
    """The verdict, what was run, the counts, and the command that runs it again."""
    meta = run.meta
    valid = verdict(results)
    seconds = run.ops[-1].time / 1e9 if run.ops else 0.0
    what = f"{len(meta.nodes)} nodes, {meta.concurrency} clients, {seconds:.1f} s, {len(run.ops)} events"
    where = f"log {meta.fsync or 'on'}" if meta.log else "no log"
    return element(
        "div",
        text_element("h1", title(run)),
        text_element("div", text.WORDS[valid], class_="verdict"),
        text_element("p", f"{what}, {where}, seed {meta.seed}, started {test.get('started', '?')}"),
        text_element("p", " · ".join(text.accounting(results)), class_="counts"),
        text_element("p", " · ".join(text.latencies(results)), class_="counts"),
        text_element("pre", repro(run, test)),
        class_=f"banner {CLASSES[valid]}",
    )


def repro(run: Run, test: Mapping[str, Any]) -> str:
    """The command line that runs this test again, with its seed; every option that isn't left to the harness."""
    meta = run.meta
    known = {"workload": meta.workload, "nemesis": meta.nemesis, "seed": meta.seed}
    words = ["python", "-m", "jepsen", "test"]
    for name, value in (test.get("options") or known).items():
        is_drawn = value in (0, -1, "", False, None, []) and name != "seed"
        if not is_drawn and name not in NOT_REPEATED:
            words += [f"--{FLAGS.get(name, name.replace('_', '-'))}", option_word(value)]
    return shlex.join(words)


def option_word(value: object) -> str:
    """An option's value as one word of a command line."""
    if isinstance(value, list | tuple):
        return shlex.join(str(each) for each in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def section(name: str, *parts: str) -> list[str]:
    """A headed part of the page; nothing where there is nothing to show."""
    return [text_element("h2", name), *parts] if any(parts) else []


def checkers_table(results: Sequence[Result]) -> str:
    """A row for each checker: its mark, the promise that it backs, what it measured; those that don't apply, too."""
    heads = ("", "checker", "promise", "measured")
    given = {result.checker: result for result in results}
    rows = [element("tr", *(text_element("th", each) for each in heads))]
    rows += [checker_row(name, given.get(name)) for name in dict.fromkeys([*given, *CLAIMS])]
    return element("table", *rows)


def checker_row(name: str, result: Result | None) -> str:
    """One checker, None if it doesn't apply to this run."""
    if result is None:
        mark, claim, numbers = text.ABSENT, CLAIMS[name], "does not apply to this run"
        class_ = "mark faint"
    else:
        mark, claim = text.MARKS[result.valid], result.claim
        numbers = "; ".join(text.measured(result.numbers))
        class_ = f"mark {CLASSES[result.valid]}"
    cells = [text_element("td", name, class_="name"), text_element("td", claim, class_="promise")]
    cells.append(text_element("td", numbers, class_="faint"))
    return element("tr", text_element("td", mark, class_=class_), *cells, class_="checker")


def findings_lists(results: Sequence[Result]) -> list[str]:
    """The first findings of each checker that found something."""
    parts = []
    for result in results:
        if result.findings:
            shown = result.findings[:FINDINGS_MAX]
            items = [text_element("li", text.describe(each)) for each in shown]
            left = len(result.findings) - len(shown)
            items += [text_element("li", f"… and {left} more, in results.json")] * (left > 0)
            name = f"{result.checker}: {len(result.findings)} findings"
            parts.append(
                element(
                    "details", text_element("summary", name), element("ul", *items), open="open"
                )
            )
    return parts


def lives(run: Run, found: Sequence[Finding]) -> list[str]:
    """The biographies of the first offending jobs."""
    wanted = biography.offending(found, JOBS_MAX)
    return [biography.as_html(each) for each in biography.biographies(run, wanted, found)]


def notes(results: Sequence[Result]) -> list[str]:
    """What was excused, and why what is unknown is unknown."""
    items = [
        text_element("li", f"{result.checker}: {note}")
        for result in results
        for note in result.notes
    ]
    return [element("ul", *items)] if items else []


def faults_table(faults: Sequence[Window]) -> list[str]:
    """A row for each fault; what was not proven stands out."""
    if not faults:
        return []
    heads = ("starts s", "lasts s", "fault", "what", "proven")
    rows = [element("tr", *(text_element("th", each) for each in heads))]
    rows += [fault_row(fault) for fault in faults[:FAULTS_MAX]]
    left = len(faults) - FAULTS_MAX
    more = [text_element("p", f"… and {left} more, in faults.jsonl")] * (left > 0)
    return [element("table", *rows), *more]


def fault_row(fault: Window) -> str:
    """One fault."""
    proven, class_ = ("yes", "valid") if fault.is_proven else ("NO", "unknown")
    return element(
        "tr",
        text_element("td", f"{fault.start / 1e9:.3f}", class_="number"),
        text_element("td", f"{(fault.end - fault.start) / 1e9:.3f}", class_="number"),
        text_element("td", fault.kind, class_="name"),
        text_element("td", fault.details),
        text_element("td", proven, class_=class_),
        class_="fault",
    )


def fields_table(test: Mapping[str, Any]) -> str:
    """All fields of test.json, nested ones with dotted names."""
    rows = [
        element("tr", text_element("th", name), text_element("td", value))
        for name, value in text.flattened(test)
    ]
    return element("table", *rows) if rows else ""


def link(name: str) -> str:
    """A link to a file of the same folder, with a space behind."""
    return text_element("a", name, href=name) + " "
