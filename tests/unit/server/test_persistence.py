"""The log of a server: INFO's fields, switching, BGREWRITEAOF, settings; with real files and no process."""

from __future__ import annotations

import errno
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import trio

from disque.aof.files import FileDisk
from disque.errors import ConfigError
from tests.unit.server.world import World, running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

SOON_S = 5.0
FIRST = [
    "loading", "aof_enabled", "aof_state", "aof_rewrite_in_progress", "aof_rewrite_scheduled",
    "aof_last_rewrite_time_sec", "aof_current_rewrite_time_sec", "aof_last_bgrewrite_status",
    "aof_last_write_status",
]  # fmt: skip
SIZES = [
    "aof_current_size", "aof_base_size", "aof_pending_rewrite", "aof_buffer_length",
    "aof_rewrite_buffer_length", "aof_pending_bio_fsync", "aof_delayed_fsync",
]  # fmt: skip


@asynccontextmanager
async def logging(folder: Path) -> AsyncIterator[World]:
    """A node whose log, once switched on, lies there."""
    async with running() as world:
        world.config.dir = str(folder)
        world.nursery.start_soon(world.shell.persistence.run)
        try:
            yield world
        finally:
            log = world.shell.persistence.log
            if log is not None:
                log.disk.close()  # type: ignore[attr-defined]


def fields(world: World) -> dict[str, object]:
    """INFO persistence."""
    return dict(world.shell.persistence.info())


def is_storing(world: World) -> bool:
    """True if records are written."""
    return world.turns.log.stores


async def wait_state(world: World, state: str) -> None:
    """Poll aof_state."""
    with trio.fail_after(SOON_S):
        while fields(world)["aof_state"] != state:
            await trio.sleep(0.01)


async def test_info_shows_disques_fields_in_order_and_sizes_only_with_a_log(tmp_path: Path) -> None:
    async with logging(tmp_path) as world:
        assert list(fields(world)) == FIRST
        peer = world.connect()
        await peer.ask(b"CONFIG SET appendonly yes\r\n", b"+OK\r\n")
        await wait_state(world, "on")
        shown = fields(world)
        assert list(shown)[: len(FIRST + SIZES)] == FIRST + SIZES
        assert (shown["aof_enabled"], shown["aof_last_write_status"]) == (1, "ok")
        assert int(str(shown["aof_current_size"])) > 0


async def test_log_switched_on_says_wait_rewrite_until_everything_was_said(tmp_path: Path) -> None:
    async with logging(tmp_path) as world:
        peer = world.connect()
        await peer.send(b"ADDJOB q body 0\r\n")
        await peer.read_line()
        await peer.ask(b"CONFIG SET appendonly yes\r\n", b"+OK\r\n")
        assert fields(world)["aof_state"] == "wait-rewrite"
        await wait_state(world, "on")
        assert world.turns.log.stores
        await peer.ask(b"CONFIG SET appendonly no\r\n", b"+OK\r\n")
        assert fields(world)["aof_state"] == "off"
        assert not world.turns.log.stores


async def test_log_that_cant_be_ended_stays_on(tmp_path: Path) -> None:
    async with logging(tmp_path) as world:
        peer = world.connect()
        await peer.ask(b"CONFIG SET appendonly yes\r\n", b"+OK\r\n")
        await wait_state(world, "on")
        log = world.shell.persistence.log
        assert log is not None

        def fail(segment: int, data: bytes) -> int:
            raise OSError(28, f"no room in {segment} for {len(data)}")

        log.disk.append = fail  # type: ignore[method-assign]
        text = b"-ERR Unable to turn off AOF. Check server logs.\r\n"
        await peer.ask(b"CONFIG SET appendonly no\r\n", text)
        assert world.config.appendonly
        assert world.turns.log is log


async def test_rewrite_asked_for_twice_is_refused_once(tmp_path: Path) -> None:
    async with logging(tmp_path) as world:
        peer = world.connect()
        await peer.ask(b"CONFIG SET appendonly yes\r\n", b"+OK\r\n")
        with trio.fail_after(SOON_S):
            while fields(world)["aof_last_rewrite_time_sec"] == -1:
                await trio.sleep(0.01)
        await peer.ask(
            b"BGREWRITEAOF\r\nBGREWRITEAOF\r\n",
            b"+Background append only file rewriting started\r\n"
            b"-ERR Background append only file rewriting already in progress\r\n",
        )


async def test_rewrite_without_a_log_is_one_snapshot_and_leaves_it_off(tmp_path: Path) -> None:
    async with logging(tmp_path) as world:
        peer = world.connect()
        text = b"+Background append only file rewriting started\r\n"
        await peer.ask(b"BGREWRITEAOF\r\n", text)
        assert is_storing(world)
        with trio.fail_after(SOON_S):
            while is_storing(world):
                await trio.sleep(0.01)
        assert fields(world)["aof_enabled"] == 0
        assert list((tmp_path / "disque.aof").glob("*.log"))


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (b"CONFIG SET appendfsync always", ("always", 100, 64 << 20)),
        (b"CONFIG SET auto-aof-rewrite-percentage 50", ("everysec", 50, 64 << 20)),
        (b"CONFIG SET auto-aof-rewrite-min-size 1000", ("everysec", 100, 1000)),
    ],
)
async def test_settings_reach_the_log(
    line: bytes, shown: tuple[str, int, int], tmp_path: Path
) -> None:
    async with logging(tmp_path) as world:
        peer = world.connect()
        await peer.ask(b"CONFIG SET appendonly yes\r\n", b"+OK\r\n")
        await peer.ask(line + b"\r\n", b"+OK\r\n")
        log = world.shell.persistence.log
        assert log is not None
        assert (log.policy, log.percentage, log.min_bytes) == shown


async def test_start_on_a_full_disk_ends_with_the_folder_and_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can't write down its boot number, and a member that stores nothing is asked for copies in vain."""

    def fail(_disk: FileDisk, _segment: int, _data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(FileDisk, "append", fail)
    async with logging(tmp_path) as world:
        world.config.appendonly = True
        with pytest.raises(ConfigError, match=r"disque\.aof: No space left on device$"):
            await world.shell.persistence.load(lambda: False)
