"""disque-check-aof: what it says of a whole log and of each damage, and what --fix leaves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from disque.aof.check import CLEAN, DAMAGED, UNUSABLE, main
from tests.unit.aof.test_files import replayed, written


def segment_file(folder: Path, number: int = 1) -> Path:
    return next(folder.glob(f"{number:08}-*.log"))


def damage(folder: Path, job: bytes = b"D-3") -> None:
    """Flip one bit in the body of a job."""
    path = segment_file(folder)
    data = bytearray(path.read_bytes())
    data[data.index(b"\xa3job\xc4" + bytes((len(job),)) + job) + 60] ^= 1
    path.write_bytes(data)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    disk, _, engine = written(tmp_path / "disque.aof", 10, 1 << 20)
    disk.close()
    assert len(engine.entries) == 10
    return tmp_path / "disque.aof"


def run(*arguments: str | Path) -> int:
    return main([str(each) for each in arguments])


def test_a_whole_log_is_clean(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = segment_file(folder).read_bytes()
    assert run(folder) == CLEAN
    out = capsys.readouterr().out
    assert "records: 10 in " in out
    assert "jobs: 10 live" in out
    assert "boot 1, not ended" in out
    assert segment_file(folder).read_bytes() == before


def test_one_segment_can_be_looked_at(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(segment_file(folder)) == CLEAN
    assert "jobs: 10 live" in capsys.readouterr().out


def test_damage_is_told_with_its_place_and_price_and_stays(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(folder)
    before = segment_file(folder).read_bytes()
    assert run(folder) == DAMAGED
    out = capsys.readouterr().out
    assert "damage: segment 1 at " in out
    assert "a fix would drop 1 jobs whose ids can still be read\n  D-3\n" in out
    assert segment_file(folder).read_bytes() == before


def test_fix_keeps_the_damage_aside_and_leaves_a_clean_log(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(folder)
    assert run("--fix", folder) == CLEAN
    out = capsys.readouterr().out
    assert "kept in 00000001-" in out
    assert "a fix dropped 1 jobs" in out
    assert len(list(folder.glob("*.damaged-*"))) == 1
    assert run(folder) == CLEAN
    after, replay = replayed(folder)
    assert len(after.entries) == 9
    assert replay.findings.why_not_intact == "damage was cut out of the log"


def test_a_torn_end_is_told_and_cut(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = segment_file(folder)
    data = path.read_bytes()
    path.write_bytes(data[:-10])
    assert run(folder) == DAMAGED
    assert "torn end: segment 1 at " in capsys.readouterr().out
    assert path.read_bytes() == data[:-10]
    assert run("--fix", folder) == CLEAN
    assert ", cut" in capsys.readouterr().out
    assert run(folder) == CLEAN
    assert len(replayed(folder)[0].entries) == 9


def test_a_missing_segment_is_told_and_no_fix_brings_it_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path, 40)[0].close()
    segment_file(tmp_path, 2).unlink()
    assert run(tmp_path) == DAMAGED
    assert "missing: segment 2" in capsys.readouterr().out
    assert run("--fix", tmp_path) == DAMAGED


def test_dump_shows_each_record_as_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--dump", folder) == CLEAN
    lines = capsys.readouterr().out.splitlines()
    rows = [json.loads(line) for line in lines if line.startswith("{")]
    assert [row["fields"][0] for row in rows] == [f"D-{n}" for n in range(10)]
    assert {row["kind"] for row in rows} == {"job"}
    assert rows[0]["segment"] == 1
    assert rows[1]["offset"] == rows[0]["offset"] + rows[0]["bytes"]


@pytest.mark.parametrize("content", [None, b"*3\r\n$7\r\nLOADJOB\r\n", b""])
def test_what_is_no_log_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None
) -> None:
    path = tmp_path / "disque.aof"
    if content is not None:
        path.write_bytes(content)
    assert run(path) == UNUSABLE
    assert str(path) in capsys.readouterr().err
    assert run(tmp_path) == UNUSABLE


def test_a_node_s_folder_is_told_the_log_in_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(folder.parent) == UNUSABLE
    assert capsys.readouterr().err.endswith(f"; did you mean {folder}?\n")


def test_a_log_in_use_can_be_looked_at_but_not_fixed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    disk, _, _ = written(tmp_path, 10)
    assert run(tmp_path) == CLEAN
    assert run("--fix", tmp_path) == UNUSABLE
    assert "in use by another process" in capsys.readouterr().err
    disk.close()


def test_it_says_what_lives_by_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    disk, store, engine = written(tmp_path, 6)
    engine.end(b"D-0", "done")
    engine.end(b"D-1", "settled")
    engine.forget(b"D-2")
    store.write(engine.take_records())
    store.write_end("end")
    disk.close()
    assert run(tmp_path) == CLEAN
    out = capsys.readouterr().out
    assert "jobs: 1 done, 3 live, 1 settled" in out
    assert "ended cleanly" in out
