"""Loading: what a log gave stays; the collector of garbage isn't to look for any in it."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest

from disque.aof.files import FileDisk
from disque.server.loading import Loading, load
from tests.unit.core.builders import Node

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("is_dry", [False, True])
async def test_what_was_read_is_put_aside_for_good_unless_it_was_a_trial(
    tmp_path: Path, is_dry: bool
) -> None:
    gc.unfreeze()
    try:
        disk = FileDisk(tmp_path / "log")
        await load(disk, Node().engine, Loading(), stored_boot=0, may_cut=True, is_dry=is_dry)
        disk.close()
        assert (gc.get_freeze_count() == 0) == is_dry
        assert gc.isenabled()
    finally:
        gc.unfreeze()
