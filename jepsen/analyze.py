"""Analyze: judge the history of a folder again, of a run that crashed too, and write its results and report anew."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jepsen import report, store
from jepsen.checkers import Result, Run, check


def recheck(folder: Path) -> tuple[Run, Sequence[Result]]:
    """Check a run's folder with today's checkers; whatever followed from the history before is replaced.

    Raises FileNotFoundError where there is no history, ValueError for a line that is no event.
    """
    run = store.load(folder)
    results = check(run)
    with store.RunFolder.at(folder) as run_folder:
        run_folder.write_results(run, results)
    report.write(run, results, folder)
    return run, results


def latest(root: Path) -> Path:
    """The folder of the run that began last, judged or not. Raises FileNotFoundError for an empty store."""
    current = root / "current"
    if current.exists():
        return current.resolve()
    folders = store.run_folders(root)
    if not folders:
        raise FileNotFoundError(f"no run below {root}")
    return folders[0]
