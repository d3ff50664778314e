"""FileDisk: segments as files; the same Store and Replay over real ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from disque.aof.disk import LogError
from disque.aof.files import FileDisk, kernel_boot_id
from disque.aof.replay import Replay
from disque.aof.store import Life, Store
from tests.unit.aof.world import NODE, FakeEngine

BODY = b"body" * 100


def written(
    folder: Path, jobs: int = 50, segment_bytes: int = 4_000
) -> tuple[FileDisk, Store, FakeEngine]:
    disk, engine = FileDisk(folder), FakeEngine()
    life = Life(NODE, 1, 1, kernel_boot_id(), "always")
    store = Store(
        disk, life, is_complete=True, node_records=engine.node_records, segment_bytes=segment_bytes
    )
    for number in range(jobs):
        engine.add(b"D-%d" % number, BODY)
        for place in store.write(engine.take_records()):
            engine.placed(*place)
    job = store.begin_sync()
    assert job is not None
    job.run(disk)
    store.synced(job)
    return disk, store, engine


def replayed(folder: Path) -> tuple[FakeEngine, Replay]:
    disk, engine = FileDisk(folder), FakeEngine()
    replay = Replay(disk, kernel_boot_id=kernel_boot_id(), stored_boot=1)
    for batch in replay.run():
        for placed in batch:
            engine.restore(*placed)
    disk.close()
    return engine, replay


def test_what_was_written_is_read_by_another_process(tmp_path: Path) -> None:
    disk, store, engine = written(tmp_path / "log")
    assert len(disk.segments()) > 4
    for entry in engine.entries.values():
        assert entry.place is not None
        assert store.read(entry.place) == BODY
    disk.close()
    after, replay = replayed(tmp_path / "log")
    assert after.facts() == engine.facts()
    assert replay.findings.is_intact


def test_names_tell_number_and_salt_and_salts_differ(tmp_path: Path) -> None:
    disk, _, _ = written(tmp_path)
    names = [f"{segment:08}-{disk.salt(segment):08x}.log" for segment in disk.segments()]
    assert sorted(path.name for path in tmp_path.glob("*.log")) == names
    assert len({disk.salt(segment) for segment in disk.segments()}) == len(names)
    disk.close()
    again = FileDisk(tmp_path)
    assert [again.salt(n) for n in again.segments()] == [disk.salt(n) for n in again.segments()]
    again.close()


def test_a_folder_has_one_owner(tmp_path: Path) -> None:
    disk = FileDisk(tmp_path)
    with pytest.raises(LogError, match="in use by another process"):
        FileDisk(tmp_path)
    FileDisk(tmp_path, is_locked=False).close()
    disk.close()
    FileDisk(tmp_path).close()


def test_a_file_of_c_disque_is_named_for_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "disque.aof"
    path.write_bytes(b"*3\r\n$7\r\nLOADJOB\r\n")
    with pytest.raises(LogError, match="is a file, as C Disque writes it"):
        FileDisk(path)


def test_two_files_of_one_segment_are_refused(tmp_path: Path) -> None:
    (tmp_path / "00000001-00000000.log").touch()
    (tmp_path / "00000001-00000001.log").touch()
    with pytest.raises(LogError, match="two files for one segment"):
        FileDisk(tmp_path)
    (tmp_path / "00000001-00000001.log").unlink()
    FileDisk(tmp_path).close()


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    disk, _, _ = written(tmp_path, 1)
    assert disk.segments() == [1]
    disk.close()
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_created_segment_is_emptied_when_created_again(tmp_path: Path) -> None:
    disk = FileDisk(tmp_path)
    disk.create(1)
    disk.append(1, b"garbage")
    salt = disk.salt(1)
    disk.create(1)
    assert (disk.size(1), disk.salt(1)) == (0, salt)
    disk.close()


def test_an_unknown_segment_is_an_oserror(tmp_path: Path) -> None:
    disk = FileDisk(tmp_path)
    for act in (disk.salt, disk.size, disk.sync, disk.delete):
        with pytest.raises(OSError, match="no segment 7"):
            act(7)
    with pytest.raises(OSError, match="no segment 7"):
        disk.read(7, 0, 1)
    disk.close()


def test_replace_and_set_aside_leave_no_half_files(tmp_path: Path) -> None:
    disk, _, _ = written(tmp_path, 1)
    name = disk.set_aside(1, 99, b"damaged")
    assert (tmp_path / name).read_bytes() == b"damaged"
    disk.replace(1, b"other content")
    assert disk.size(1) == 13
    assert disk.read(1, 0, 100) == b"other content"
    disk.append(1, b"!")
    assert disk.read(1, 0, 100) == b"other content!"
    assert list(tmp_path.glob("*.new")) == []
    disk.close()


def test_reading_in_order_reads_every_byte(tmp_path: Path) -> None:
    """Read-ahead is a hint: what comes out is the file, in order or not."""
    disk = FileDisk(tmp_path)
    disk.create(1)
    data = os.urandom(3 << 20)
    disk.append(1, data)
    size = 100_003
    parts = [disk.read(1, at, size) for at in range(0, len(data), size)]
    assert b"".join(parts) == data
    assert disk.read(1, 5, 10) == data[5:15]
    disk.close()


def test_damage_on_real_files_is_kept_aside_and_a_torn_tail_cut(tmp_path: Path) -> None:
    disk, _, engine = written(tmp_path, 20)
    place, last = engine.entries[b"D-3"].place, engine.entries[b"D-19"].place
    assert place is not None
    assert last is not None
    names = {n: next(tmp_path.glob(f"{n:08}-*.log")) for n in disk.segments()}
    disk.close()
    path = names[place.segment]
    data = bytearray(path.read_bytes())
    data[place.offset + 50] ^= 1
    path.write_bytes(data)
    with names[last.segment].open("r+b") as file:
        file.truncate(last.offset + last.size - 1)
    after, replay = replayed(tmp_path)
    assert sorted(after.entries) == sorted([b"D-%d" % n for n in range(19) if n != 3])
    (lost,) = replay.findings.lost
    assert (tmp_path / lost.file).read_bytes() == data[place.offset : place.offset + place.size]
    assert list(replay.findings.lost_ids) == [b"D-3", b"D-19"]
    assert replayed(tmp_path)[1].findings.lost == []


FILL = """
import resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
from tests.unit.aof.test_files import written
try:
    written(Path(sys.argv[1]), 100, 1 << 20)
except OSError as error:
    print(error.strerror)
"""


def test_a_real_short_write_tells_its_reason_and_leaves_whole_records(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FILL, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == "File too large\n"
    after, replay = replayed(tmp_path)
    assert 15 < len(after.entries) < 30
    assert replay.findings.torn_bytes == 0
