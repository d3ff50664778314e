"""SimLog: a node's log on a simulated disk: what disque/aof/log.py does with threads, here in virtual time.

The store, the replay and the compaction are the real ones. A sync takes some ms, one at a time; a crash may fall into
it. The bytes reach the platter at its beginning or at its end: nobody may count on either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from disque.aof.compaction import Compaction
from disque.aof.replay import Findings, Replay
from disque.aof.store import Life, Store, SyncJob
from tests.disk import Crash, MemoryDisk

if TYPE_CHECKING:
    from disque.broker import Broker
    from disque.core.ready import Record
    from tests.sim.node import Node
    from tests.sim.world import World

SYNC_EVERY_MS = 1000  # appendfsync everysec
TICK_MS = 100
STEP_BYTES = 4000  # of compaction, at least


class SimLog:
    """The log of one machine; `boot` begins a life with it."""

    def __init__(self, world: World, node: Node) -> None:
        self.world = world
        self.node = node
        self.policy = world.profile.log
        self.dice = world.streams[f"sync {node.index}"]
        self.disk = MemoryDisk(world.streams[f"disk {node.index}"])
        self.kernel = 0  # counts power losses
        self.is_unsafe = False
        self.wants_rewrite = False
        self.store: Store
        self.compaction: Compaction
        self._life = 0
        self._writes = 0
        self._writes_synced = 0
        self._synced_at = 0
        self._owed_bytes = 0
        self._is_syncing = False
        self._has_tick = False
        self._waiter: tuple[int, Callable[[bool], None]] | None = None
        self._dirty: dict[bytes, int] = {}  # ids -> their newest write that no sync has covered

    # Start and end

    def boot(self, broker: Broker, stored_boot: int) -> Findings:
        """Replay into a fresh broker and begin this life in the log, as disque.server.persistence does."""
        self._life = self.node.life
        self.is_unsafe = self.wants_rewrite = self._is_syncing = self._has_tick = False
        self._waiter = None
        self._dirty.clear()
        found, is_intact = replay_into(broker, self.disk, f"kernel {self.kernel}", stored_boot)
        own = broker.membership.identity
        boot = max(own.boot, found.boot + 1)
        broker.restored(since=found.since if is_intact else boot, boot=boot)
        own = broker.membership.identity
        life = Life(own.id, own.boot, own.since, f"kernel {self.kernel}", self.policy)
        self.store = Store(
            self.disk,
            life,
            is_complete=True,
            node_records=broker.engine.node_records,
            unsynced=found.unsynced,
            segment_bytes=self.world.profile.segment_bytes,
        )
        self.compaction = Compaction(self.store, lambda: broker.engine)
        broker.bodies = self.store.read
        self._append(())
        self._sync_here()
        self._writes_synced, self._synced_at = self._writes, self.world.now
        return found

    def _sync_here(self) -> None:
        job = self.store.begin_sync()
        if job is not None:
            job.run(self.disk)
            self.store.synced(job)

    def crash(self, *, is_power: bool) -> None:
        """The process ends, or the whole machine goes down; what the disk was made to refuse is over then."""
        if is_power:
            self.kernel += 1
            self.disk.power_loss()
        self.disk.mend()

    def exposed(self, *, is_power: bool) -> dict[bytes, None]:
        """Ids of written records that a crash now may take."""
        return dict.fromkeys(self._dirty) if is_power else {}

    # What a turn does

    def write(self, records: Sequence[Record]) -> bool:
        """Append a turn's records; True if it must wait till they are safe. OSError: nothing counts as written."""
        before = self.store.total_bytes
        self._append(records)
        self._owed_bytes += 2 * (self.store.total_bytes - before)
        for record in records:
            if record.id is not None:
                self._dirty[record.id] = self._writes
        self.book_tick()
        if self.policy == "always":
            return any([not record.is_lazy for record in records])
        return any([record.is_urgent for record in records])

    def _append(self, records: Sequence[Record]) -> None:
        own = self.node.broker.membership.identity
        if own.id != self.store.life.node_id:
            self.store.set_node_id(own.id)
        for place in self.store.write(records):
            self.node.broker.engine.placed(*place)
        self._writes += 1

    def when_safe(self, done: Callable[[bool], None]) -> None:
        """Call back once: True when all that is written by now is on the disk, False if a sync failed."""
        self._waiter = self._writes, done
        self._see_waiter()

    def _see_waiter(self) -> None:
        if self._waiter is None or self._is_syncing:
            return
        if not self.is_unsafe and self._writes_synced >= self._waiter[0]:
            self._tell_waiter(is_safe=True)
        else:
            self._begin_sync()

    def _tell_waiter(self, *, is_safe: bool) -> None:
        if self._waiter is not None:
            (_, done), self._waiter = self._waiter, None
            done(is_safe)

    # Syncing

    def _begin_sync(self) -> None:
        try:
            if self.store.is_spoilt:
                self._append(())
        except OSError:
            self._fail()
            return
        covered = self._writes
        job = self.store.begin_sync()
        if job is None:
            self._succeed(covered)
            return
        self._is_syncing = True
        life = self._life
        is_early = self.dice.random() < 0.5
        is_good = self._run(job) if is_early else None
        wait = self.dice.choice((1, 3, 10, 40))

        def end() -> None:
            if self.node.is_alive and self._life == life:
                self._end_sync(job, covered, self._run(job) if is_good is None else is_good)

        self.world.at(self.world.now + wait, lambda: self.node.in_disk(end))

    def _run(self, job: SyncJob) -> bool:
        try:
            job.run(self.disk)
        except OSError:
            return False
        return True

    def _end_sync(self, job: SyncJob, covered: int, is_good: bool) -> None:
        self._is_syncing = False
        if not is_good:
            self.store.sync_failed(job)
        else:
            self.store.synced(job)
        if is_good or job.is_stored:
            self._succeed(covered)
        else:
            self._fail()

    def _succeed(self, covered: int) -> None:
        self._writes_synced, self._synced_at = covered, self.world.now
        self.is_unsafe = False
        self._dirty = {id_: at for id_, at in self._dirty.items() if at > covered}
        self._see_waiter()

    def _fail(self) -> None:
        """Nothing may leave any more till a sync has succeeded."""
        self.is_unsafe = True
        if self._waiter is None:
            self.node.turn_with(lambda: None)
        self._tell_waiter(is_safe=False)

    # In the background

    def book_tick(self) -> None:
        """See soon to what is to be done in the background."""
        if not self._has_tick:
            self._has_tick = True
            life = self._life
            self.world.at(self.world.now + TICK_MS, lambda: self._tick(life))

    def _tick(self, life: int) -> None:
        if self.node.is_alive and self._life == life:
            self._has_tick = False
            self.node.in_disk(self._work)

    def _work(self) -> None:
        if not self.is_unsafe and not self.node.is_held:
            try:
                self._compact()
            except OSError:
                self.book_tick()
        is_late = self.world.now - self._synced_at >= SYNC_EVERY_MS
        is_behind = self.policy == "everysec" and self._writes_synced < self._writes
        is_due = (is_behind and is_late) or self.store.needs_sync
        if is_due and not self._is_syncing and not self.is_unsafe:
            self._begin_sync()
        is_busy = self.compaction.is_running or self._wants_compaction()
        if is_behind or is_busy or self.store.needs_sync or self.is_unsafe:
            self.book_tick()

    def _wants_compaction(self) -> bool:
        return self.compaction.wants(100, self.store.segment_bytes)

    def _compact(self) -> None:
        compaction = self.compaction
        if self.wants_rewrite:
            self.wants_rewrite = False
            compaction.begin_rewrite()
            self._writes += 1
        elif self._wants_compaction():
            compaction.begin()
        if compaction.is_saying:
            compaction.step(max(STEP_BYTES, self._owed_bytes))
            self._writes += 1
        self._owed_bytes = 0


def replay_into(
    broker: Broker, disk: MemoryDisk, kernel: str, stored_boot: int
) -> tuple[Findings, bool]:
    """Read a log into a fresh broker; what was found, and whether this node may believe that it is whole."""
    engine = broker.engine
    engine.set_logged(True)
    replay = Replay(disk, kernel_boot_id=kernel, stored_boot=stored_boot)
    for batch in replay.run():
        for record, segment, offset, size in batch:
            engine.restore(record, segment, offset, size)
    found = replay.findings
    return found, found.is_intact and found.node_id == broker.membership.identity.id


__all__ = ["Crash", "SimLog", "replay_into"]
