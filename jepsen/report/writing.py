"""Writing: puts what a person reads of a run into its folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from jepsen import store
from jepsen.checkers.base import Result, Run
from jepsen.report import page, pictures, timeline
from jepsen.report.biography import offending


def write(run: Run, results: Sequence[Result], folder: os.PathLike[str]) -> Path:
    """Write report.html, timeline.html and the pictures; gives the path of report.html.

    `folder` is the run's, with its test.json; files of an earlier report are replaced.
    """
    into = Path(folder)
    found = [each for result in results for each in result.findings]
    drawn = pictures.draw(run, found)
    for name, svg in drawn.items():
        (into / name).write_text(svg, encoding="utf-8")
    jobs = offending(found, page.JOBS_MAX)
    (into / "timeline.html").write_text(timeline.page(run, jobs), encoding="utf-8")
    report = into / "report.html"
    html = page.render(run, results, drawn, store.read_test(into))
    report.write_text(html, encoding="utf-8")
    return report
