"""Rechecking a folder: the same verdict as the run's own, also after a crash."""

from __future__ import annotations

import json
from pathlib import Path

import attrs
import pytest

from jepsen import analyze, store
from jepsen.checkers import check, verdict
from tests.unit.jepsen.synthetic import make_run


def record(root: Path, jobs: int) -> Path:
    run = make_run(jobs=jobs)
    with store.open_run(root, "queue", {"meta": attrs.asdict(run.meta)}) as opened:
        for op in run.ops:
            opened.append(op)
    return opened.folder


def test_a_crashed_run_is_judged_with_all_its_files(tmp_path: Path) -> None:
    folder = record(tmp_path, jobs=30)
    run, results = analyze.recheck(folder)
    assert run == make_run(jobs=30)
    assert list(results) == list(check(make_run(jobs=30)))
    names = {path.name for path in folder.iterdir()}
    assert {
        "report.html",
        "timeline.html",
        "results.edn",
        "results.json",
        "history.edn",
        "history.txt",
    } <= names
    told = json.loads((folder / "results.json").read_text())
    assert [each["checker"] for each in told["results"]] == [each.checker for each in results]


def test_rechecking_twice_changes_nothing(tmp_path: Path) -> None:
    folder = record(tmp_path, jobs=20)
    analyze.recheck(folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    analyze.recheck(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_run_that_was_stopped_stays_unknown(tmp_path: Path) -> None:
    folder = record(tmp_path, jobs=20)
    opened = store.RunFolder.at(folder)
    meta = attrs.asdict(attrs.evolve(make_run(jobs=20).meta, is_stopped=True))
    opened.update_test({"meta": meta})
    opened.close()
    _, results = analyze.recheck(folder)
    (stats,) = [each for each in results if each.checker == "stats"]
    assert stats.valid is None
    assert "stopped by hand before its time" in stats.notes
    assert store.read_results(folder)["valid"] is verdict(results)


def test_the_latest_run_is_the_one_that_began_last(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no run below"):
        analyze.latest(tmp_path)
    first, second = record(tmp_path, 2), record(tmp_path, 2)
    assert analyze.latest(tmp_path) == second.resolve()
    (tmp_path / "current").unlink()
    assert analyze.latest(tmp_path) == second
    assert first != second


def test_a_folder_without_history_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        analyze.recheck(tmp_path)
