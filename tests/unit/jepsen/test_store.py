"""The files of a run: what is there while it runs, after a crash, at the end; and the symbolic links."""

from __future__ import annotations

import json
from pathlib import Path

import attrs
import pytest

from jepsen import edn, store
from jepsen.checkers.base import Meta
from jepsen.history import NEMESIS, OBSERVER, History
from tests.unit.jepsen.synthetic import make_results, make_run


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_each_event_is_on_disk_when_append_returns(tmp_path: Path) -> None:
    run = make_run(jobs=20)
    folder = store.open_run(tmp_path, "queue", {})
    for i, op in enumerate(run.ops, 1):
        folder.append(op)
        if i % 50 == 1:
            assert len(lines(folder.path(store.HISTORY))) == i
    assert History.read(folder.path(store.HISTORY)) == run.ops
    faults = [op for op in run.ops if op.process == NEMESIS]
    seen = [op for op in run.ops if op.process == OBSERVER]
    assert faults
    assert seen
    assert History.read(folder.path(store.FAULTS)) == faults
    assert History.read(folder.path(store.SNAPSHOTS)) == seen
    folder.close()


def test_a_crashed_run_is_loaded_with_its_meta(tmp_path: Path) -> None:
    run = make_run(jobs=10)
    folder = store.open_run(tmp_path, "queue", {"meta": attrs.asdict(run.meta)})
    for op in run.ops:
        folder.append(op)
    with folder.path(store.HISTORY).open("a") as file:
        file.write('{"index": 99, "ti')
    loaded = store.load(tmp_path / "current")
    assert loaded.ops == run.ops
    assert loaded.meta == run.meta
    folder.close()


def test_a_folder_without_test_file_still_has_its_history(tmp_path: Path) -> None:
    run = make_run(jobs=3)
    History(run.ops).write(tmp_path / store.HISTORY)
    loaded = store.load(tmp_path)
    assert (loaded.meta, loaded.ops) == (Meta(), run.ops)
    with pytest.raises(FileNotFoundError):
        store.load(tmp_path / "nowhere")


def test_results_come_in_all_forms_and_latest_points_to_them(tmp_path: Path) -> None:
    run = make_run(jobs=20)
    results = make_results(run)
    folder = store.open_run(tmp_path, "queue", {"seed": 5})
    for op in run.ops:
        folder.append(op)
    assert not (tmp_path / "latest").exists()
    folder.write_results(run, results)
    folder.close()
    inside = tmp_path / "latest"
    assert inside.resolve() == folder.folder.resolve()
    told = json.loads((inside / "results.json").read_text())
    assert told["valid"] is False
    assert [each["checker"] for each in told["results"]] == ["accounting", "loss", "stats"]
    assert [each["v"] for each in told["results"][1]["findings"]] == [5, 15]
    test = store.read_test(inside)
    assert test["seed"] == 5
    assert Meta.from_json(test["meta"]) == run.meta
    assert {"commit", "kernel", "python", "processors", "started", "name"} <= test.keys()
    assert len(lines(inside / "history.txt")) == len(run.ops)
    assert lines(inside / "history.edn") == list(edn.lines(run.ops))
    assert ":checker" in (inside / "results.edn").read_text()


def test_runs_of_one_second_have_folders_of_their_own(tmp_path: Path) -> None:
    folders = [store.open_run(tmp_path, "a/../b c", {}) for _ in range(3)]
    assert len({each.folder for each in folders}) == 3
    assert {each.folder.parent for each in folders} == {tmp_path / "a-..-b-c"}
    assert (tmp_path / "current").resolve() == folders[-1].folder.resolve()
    assert set(store.run_folders(tmp_path)) == {each.folder for each in folders}
    for each in folders:
        each.close()


@pytest.mark.parametrize("name", ["..", "/", ""])
def test_no_name_leads_out_of_the_store(tmp_path: Path, name: str) -> None:
    folder = store.open_run(tmp_path, name, {})
    folder.close()
    assert folder.folder.parent == tmp_path / "test"


def test_the_log_and_the_folders_of_nodes(tmp_path: Path) -> None:
    folder = store.open_run(tmp_path, "queue", {})
    folder.log("setup done\n")
    folder.log("drain done")
    folder.path("n1/server.log").write_text("up")
    folder.close()
    assert lines(tmp_path / "current" / store.LOG) == ["setup done", "drain done"]
    assert lines(tmp_path / "current" / "n1" / "server.log") == ["up"]


def test_a_line_of_text_shows_who_and_why() -> None:
    ops = make_run(jobs=20).ops
    unknown = next(op for op in ops if op.error == "timeout")
    text = store.text_line(unknown)
    assert text.split()[1:4] == ["2", "info", "add"]
    assert text.endswith("timeout")
    assert "nemesis" in store.text_line(next(op for op in ops if op.process == NEMESIS))
    long = attrs.evolve(unknown, value={"ids": ["x" * 1000]})
    assert len(store.text_line(long)) < 300
