"""AppendLog: shared syncs, what each policy waits for, failures in the background, compaction beside the turns."""

from __future__ import annotations

import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from disque.aof import log
from disque.aof.log import PIECE_BYTES, STEP_BYTES, AppendLog
from disque.aof.replay import Replay
from disque.aof.store import Life, Store
from disque.core.ready import Record
from tests.disk import MemoryDisk
from tests.unit.aof.world import KERNEL, NODE, FakeEngine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SOON_S = 5.0


class SlowDisk(MemoryDisk):
    """Each sync waits until the test lets it go, if it says so."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()

    def sync(self, segment: int) -> None:
        assert self.gate.wait(SOON_S)
        super().sync(segment)


class World:
    """A log over a fake engine."""

    def __init__(self, policy: str, segment_bytes: int = 1 << 20) -> None:
        self.disk = SlowDisk()
        self.engine = FakeEngine()
        self.woken = 0
        self.seen: list[str] = []
        life = Life(NODE, 1, 1, KERNEL, policy)
        store = Store(
            self.disk,
            life,
            is_complete=True,
            node_records=self.engine.node_records,
            segment_bytes=segment_bytes,
        )
        self.log = AppendLog(
            store,
            lambda: self.engine,
            policy=policy,
            observe=lambda name, _ms: self.seen.append(name),
            wake=self._wake,
        )
        self.log.begin()

    def _wake(self) -> None:
        self.woken += 1

    def write(self) -> bool:
        """One turn's records."""
        return self.log.write(self.engine.take_records())

    async def turn(self) -> None:
        """A turn as the loop takes it."""
        if self.write() or self.log.is_unsafe:
            await self.log.wait_safe()

    def replayed(self) -> dict[bytes, tuple[object, ...]]:
        """What a start would find now."""
        found = FakeEngine()
        for batch in Replay(self.disk, kernel_boot_id=KERNEL, stored_boot=1, is_dry=True).run():
            for record, *place in batch:
                found.restore(record, *place)
        return {id_: entry.facts for id_, entry in found.entries.items()}


async def wait_for(what: object) -> None:
    """Poll until it holds."""
    with trio.fail_after(SOON_S):
        while not what():  # type: ignore[operator]
            await trio.sleep(0.01)


@asynccontextmanager
async def running(world: World) -> AsyncIterator[World]:
    """The log's tasks run while the context lasts."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.log.run)
        yield world
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("policy", "is_urgent", "is_lazy", "waits"),
    [
        ("always", False, False, True),
        ("always", False, True, False),
        ("everysec", False, False, False),
        ("everysec", True, False, True),
        ("no", True, False, True),
        ("no", False, False, False),
    ],
)
def test_which_turns_wait_for_the_disk(
    policy: str, is_urgent: bool, is_lazy: bool, waits: bool
) -> None:
    world = World(policy)
    record = Record("pause", (b"q", 1), is_urgent=is_urgent, is_lazy=is_lazy)
    assert world.log.write([record]) is waits


async def test_turns_that_come_during_a_sync_share_the_next_one() -> None:
    world = World("always")
    world.disk.gate.clear()
    before, done = world.log.syncs, 0

    async def turn(number: int) -> None:
        nonlocal done
        world.engine.add(b"id-%d" % number, b"body")
        await world.turn()
        done += 1

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(turn, number)
            await trio.testing.wait_all_tasks_blocked()
        assert done == 0
        world.disk.gate.set()
    assert done == 20
    assert world.log.syncs - before == 2


async def test_everysec_syncs_within_about_a_second_and_then_rests() -> None:
    async with running(World("everysec")) as world:
        world.engine.add(b"id", b"body")
        await world.turn()
        assert world.log.store.is_dirty
        await wait_for(lambda: not world.log.store.is_dirty)
        syncs = world.log.syncs
        await trio.sleep(1.5)
        assert world.log.syncs == syncs
    assert "aof-fsync" in world.seen


async def test_no_doesnt_sync_by_itself() -> None:
    async with running(World("no")) as world:
        syncs = world.log.syncs
        world.engine.add(b"id", b"body")
        await world.turn()
        await trio.sleep(1.5)
        assert world.log.syncs == syncs


async def test_failed_sync_is_told_until_all_was_written_again_and_synced() -> None:
    world = World("always")
    world.engine.add(b"id", b"body")
    world.disk.sync_errors = 2
    for _ in range(2):
        with pytest.raises(OSError, match="no such luck"):
            await world.turn()
        assert world.log.is_unsafe
    await world.log.wait_safe()
    assert not world.log.is_unsafe
    world.disk.power_loss()
    assert world.replayed() == {b"id": ("job", b"body", 0)}


async def test_sync_that_fails_in_the_background_wakes_the_loop_and_isnt_tried_behind_its_back() -> (
    None
):
    async with running(World("everysec")) as world:
        world.disk.sync_errors = 1
        world.engine.add(b"id", b"body")
        await world.turn()
        await wait_for(lambda: world.log.is_unsafe)
        assert world.woken == 1
        await world.turn()
        assert not world.log.is_unsafe
        world.disk.power_loss()
        assert world.replayed() == {b"id": ("job", b"body", 0)}


async def test_compaction_keeps_the_log_small_while_jobs_come_and_go() -> None:
    async with running(World("no", segment_bytes=20_000)) as world:
        world.log.min_bytes = 0
        for number in range(4_000):
            world.engine.add(b"id-%d" % number, b"x" * 100)
            if number >= 50:
                world.engine.forget(b"id-%d" % (number - 50))
            await world.turn()
            if number % 20 == 0:
                await trio.sleep(0.005)
        await wait_for(lambda: world.log.store.total_bytes < 80_000)
        wanted = {id_: entry.facts for id_, entry in world.engine.entries.items()}
        assert world.replayed() == wanted
        assert len(wanted) == 50


async def test_rewrite_is_told_once_when_the_old_segments_are_gone() -> None:
    async with running(World("everysec")) as world:
        for number in range(100):
            world.engine.add(b"id-%d" % number, b"x" * 100)
        await world.turn()
        for number in range(90):
            world.engine.forget(b"id-%d" % number)
        await world.turn()
        assert not world.log.take_rewritten()
        world.log.wants_rewrite = True
        assert world.log.is_rewriting
        await wait_for(lambda: not world.log.is_rewriting)
        assert world.log.take_rewritten()
        assert not world.log.take_rewritten()
        assert world.disk.segments() == [2]
        assert world.log.last_rewrite_s >= 0
        assert len(world.replayed()) == 10


@pytest.mark.parametrize("is_slow", [False, True])
async def test_however_much_a_turn_wrote_compaction_catches_up_in_small_steps(
    monkeypatch: pytest.MonkeyPatch, is_slow: bool
) -> None:
    monkeypatch.setattr(log, "STEP_S", 0 if is_slow else SOON_S)
    async with running(World("no")) as world:
        for number in range(3_000):
            world.engine.add(b"old-%d" % number, b"x" * 1_000)
        await world.turn()
        world.log.wants_rewrite = True
        steps: list[int] = []
        before = 0
        with trio.fail_after(SOON_S):
            while world.log.is_rewriting:
                await trio.lowlevel.checkpoint()
                copied = world.log.compaction.copied_bytes
                steps.append(copied - before)
                before = copied
        assert sum(steps) > 3_000_000
        # What a step left of its budget is added to the next one's, and the last record may go beyond it.
        assert max(steps) < 3 * (PIECE_BYTES if is_slow else STEP_BYTES)


async def test_compaction_rests_while_the_turns_have_trouble_and_bears_its_own() -> None:
    async with running(World("no")) as world:
        world.engine.add(b"id", b"body")
        await world.turn()
        world.log.is_paused = world.log.wants_rewrite = True
        await trio.sleep(0.3)
        assert world.log.wants_rewrite
        world.disk.room = 0
        world.log.is_paused = False
        await wait_for(lambda: world.log.compaction_trouble)
        world.disk.room = None
        await wait_for(lambda: not world.log.is_rewriting)
        assert world.log.compaction_trouble == ""
        assert world.replayed() == {b"id": ("job", b"body", 0)}


async def test_end_waits_for_the_sync_under_way_and_is_the_last_word() -> None:
    world = World("always")
    world.disk.gate.clear()
    world.engine.add(b"id", b"body")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.turn)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(world.log.end, "end", [b"id"])
        await trio.testing.wait_all_tasks_blocked()
        world.disk.gate.set()
    world.disk.power_loss()
    replay = Replay(world.disk, kernel_boot_id="another", stored_boot=1)
    assert sum(map(len, replay.run())) == 1
    assert replay.findings.is_ended
    assert replay.findings.queued == [b"id"]
    assert replay.findings.why_not_intact == ""
