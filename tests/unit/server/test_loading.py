"""Loading: what a log gave stays, the collector isn't to look for garbage in it, and nobody waits for the disk."""

from __future__ import annotations

import gc
import threading
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from disque.aof.files import FileDisk
from disque.aof.store import Life, Store
from disque.server.loading import Loading, load, no_collections
from tests.unit.core.builders import Node

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("is_kept", [False, True])
def test_what_was_read_is_put_aside_for_good_unless_it_was_a_trial(is_kept: bool) -> None:
    gc.unfreeze()
    try:
        with no_collections(is_kept=is_kept):
            assert not gc.isenabled()
        assert (gc.get_freeze_count() > 0) == is_kept
        assert gc.isenabled()
    finally:
        gc.unfreeze()


class SlowDisk(FileDisk):
    """Gives nothing before it is allowed to."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, is_locked=False)
        self.may_read = threading.Event()

    def read(self, segment: int, offset: int, size: int) -> bytes:
        assert self.may_read.wait(10), "whoever would allow it had to wait for the disk"
        return super().read(segment, offset, size)


def log_of(folder: Path, node: Node) -> None:
    """A log that holds what this node has."""
    disk = FileDisk(folder)
    life = Life(node.id, node.boot, node.boot, "kernel", "always")
    store = Store(disk, life, is_complete=True, node_records=list)
    store.write(node.records)
    disk.close()


async def test_nobody_waits_for_the_disk_while_a_log_is_read(tmp_path: Path) -> None:
    source, target = Node(), Node()
    id_ = source.add(body := bytes(2 << 20))
    log_of(tmp_path / "log", source)
    disk = SlowDisk(tmp_path / "log")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            lambda: load(disk, target.engine, Loading(), stored_boot=0, may_cut=True, is_dry=True)
        )
        await trio.testing.wait_all_tasks_blocked()
        disk.may_read.set()
    disk.close()
    assert target.job(id_).body == body
