"""AppendLog: the log of a running node: writes a turn's records, syncs in a thread, compacts in the background.

It adds time to the pure store: *group commit*: one sync at a time runs in a thread, and all turns that come meanwhile
share the next one; `everysec` syncs once a second, `no` only what must be. A sync that failed in the background leaves
the log *unsafe*: the server's loop then lets nothing out until `wait_safe` succeeded. It knows no clients and no files:
the server opens the disk, decides when to switch, and says what goes wrong.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import trio

from disque.aof.compaction import Compaction

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from disque.aof.compaction import Source
    from disque.aof.disk import Disk
    from disque.aof.store import Store
    from disque.core.ready import Record

SYNC_EVERY_S = 1.0  # appendfsync everysec
TICK_S = 0.1
# A step of compaction keeps the loop for some ms; then a breath, or, while it owes more than that, just a turn. What
# is dead costs time and no bytes, so the pieces of a step end at either.
STEP_BYTES = 64 << 10
STEP_S = 0.004
PIECE_BYTES = 16 << 10
STEP_BREATH_S = 0.01
OWED_RATIO = 2  # bytes that compaction owes for each that a turn writes
HURRIED_STEP_BYTES = 1 << 20


class AppendLog:
    """What disque.server.loop.Log asks for; `run` must run beside it."""

    stores = True

    def __init__(
        self,
        store: Store,
        source: Callable[[], Source],
        *,
        policy: str,
        observe: Callable[[str, int], None] = lambda _name, _ms: None,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        """`source` is Compaction's.

        `observe` hears of an event and the ms that it took, `wake` when the log became unsafe between turns.
        """
        self.store = store
        self.compaction = Compaction(store, source)
        self.policy = policy  # appendfsync
        self.is_unsafe = False
        self.is_off = False  # switched off at run time: only bodies are read
        self.is_paused = False  # the loop has trouble to write: compaction would have it, too
        self.percentage, self.min_bytes = 100, 64 << 20  # auto-aof-rewrite-*
        self.wants_rewrite = False
        self.rewrite_started_at: float | None = None  # in trio's time
        self.last_rewrite_s = -1.0
        self.syncs = 0
        self.compaction_trouble = ""
        self.is_syncing = False
        self._source = source
        self._observe = observe
        self._wake = wake
        self._lock = trio.Lock()
        self._writes = 0
        self._writes_synced = 0
        self._is_rewritten = False
        self._owed_bytes = 0  # by compaction, for what turns wrote

    @property
    def disk(self) -> Disk:
        """Where the segments lie."""
        return self.store.disk

    # disque.server.loop.Log

    def write(self, records: Sequence[Record]) -> bool:
        """Append with one write; True if the turn must `wait_safe` before it speaks. OSError: say them again."""
        before = self.store.total_bytes
        started_ns = time.perf_counter_ns()
        self._write(records)
        self._observe("aof-write", (time.perf_counter_ns() - started_ns) // 1_000_000)
        self._owed_bytes += OWED_RATIO * (self.store.total_bytes - before)
        if self.policy == "always":
            return any([not record.is_lazy for record in records])
        return any([record.is_urgent for record in records])

    def _write(self, records: Sequence[Record]) -> None:
        places = self.store.write(records)
        placed = self._source().placed
        for place in places:
            placed(*place)
        self._writes += 1

    async def wait_safe(self) -> None:
        """Return when all that was written before has reached the disk; OSError: it hasn't, ask again."""
        target = self._writes
        while self.is_unsafe or self._writes_synced < target:
            async with self._lock:
                if self.is_unsafe or self._writes_synced < target:
                    await self._sync()

    async def _sync(self) -> None:
        """One sync of all that is written by now."""
        if self.store.is_spoilt:
            self._write(())
        covered = self._writes
        job = self.store.begin_sync()
        if job is not None:
            started = trio.current_time()
            self.is_syncing = True
            try:
                # Shielded: a job that was begun is brought to its end.
                with trio.CancelScope(shield=True):
                    await trio.to_thread.run_sync(job.run, self.disk)
            except OSError:
                self.store.sync_failed(job)
                if not job.is_stored:
                    self.is_unsafe = True
                    raise
            else:
                self.store.synced(job)
            finally:
                self.is_syncing = False
            self.syncs += 1
            name = "aof-fsync-always" if self.policy == "always" else "aof-fsync"
            self._observe(name, int((trio.current_time() - started) * 1000))
        self._writes_synced = covered
        self.is_unsafe = False

    # In the background

    async def run(self) -> None:
        """Sync as the policy says, and compact, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._sync_regularly)
            nursery.start_soon(self._compact)

    async def _sync_regularly(self) -> None:
        synced_at = trio.current_time()
        while True:
            await trio.sleep(TICK_S)
            if self.is_unsafe or self.is_off:
                continue
            is_late = trio.current_time() - synced_at >= SYNC_EVERY_S
            is_due = is_late and self.policy == "everysec" and self._writes_synced < self._writes
            if is_due or self.store.needs_sync:
                synced_at = trio.current_time()
                await self._sync_or_tell()

    async def _sync_or_tell(self) -> None:
        async with self._lock:
            try:
                await self._sync()
            except OSError:
                self.is_unsafe = True
                self._wake()

    async def _compact(self) -> None:
        """Copy what lives out of the oldest segments, at a pace that keeps up and that nobody feels."""
        while True:
            if self.is_off or self.is_unsafe or self.is_paused or not self.compaction.is_saying:
                await trio.sleep(TICK_S)
            else:
                await trio.sleep(0 if self._owed_bytes > 0 else STEP_BREATH_S)
            if self.is_off or self.is_unsafe or self.is_paused:
                continue
            try:
                self._begin_what_is_wanted()
                self._step_briefly()
                self.compaction_trouble = ""
            except OSError as error:
                self.compaction_trouble = error.strerror or str(error)
                await trio.sleep(SYNC_EVERY_S)
            if self.store.needs_sync and not self.is_unsafe:
                await self._sync_or_tell()
            self._mind_end_of_rewrite()

    def _begin_what_is_wanted(self) -> None:
        if self.wants_rewrite:
            self.compaction.begin_rewrite()
            self._writes += 1
            self.wants_rewrite = False
            self.rewrite_started_at = trio.current_time()
        elif self.compaction.wants(self.percentage, self.min_bytes):
            self.compaction.begin()
        elif not self.compaction.is_running:
            self._owed_bytes = 0

    def _step_briefly(self) -> None:
        until = time.perf_counter() + STEP_S
        for _ in range(0, STEP_BYTES, PIECE_BYTES):
            self._step(PIECE_BYTES)
            if time.perf_counter() >= until:
                break

    def _step(self, budget_bytes: int) -> None:
        if self.compaction.is_saying:
            before = self.compaction.copied_bytes
            self.compaction.step(budget_bytes)
            self._writes += 1
            paid = max(budget_bytes, self.compaction.copied_bytes - before)
            self._owed_bytes = max(self._owed_bytes - paid, 0)

    def _mind_end_of_rewrite(self) -> None:
        if self.rewrite_started_at is not None and not self.compaction.is_running:
            self.last_rewrite_s = trio.current_time() - self.rewrite_started_at
            self.rewrite_started_at = None
            self._is_rewritten = True

    @property
    def is_rewriting(self) -> bool:
        """True if a rewrite is under way or about to be."""
        return self.wants_rewrite or self.rewrite_started_at is not None

    def give_up_rewrite(self, reason: str) -> None:
        """There won't be one: the log is switched off."""
        self.wants_rewrite = False
        self.rewrite_started_at = None
        self.compaction_trouble = reason

    def take_rewritten(self) -> bool:
        """True, once, after a rewrite has come to its end."""
        is_rewritten, self._is_rewritten = self._is_rewritten, False
        return is_rewritten

    # Begin and end

    def begin(self) -> None:
        """The first words of a life, or of a log that is switched on again, synced; blocks. OSError."""
        self._write(())
        self._sync_here()

    def rewrite_now(self, *, anew: bool = True) -> None:
        """Say everything again here and now, and delete the rest; blocks. OSError.

        Not `anew`: a rewrite under way is brought to its end.
        """
        if anew or not (self.compaction.is_saying and self.compaction.is_rewrite):
            self.compaction.begin_rewrite()
        while self.compaction.is_saying:
            self._step(HURRIED_STEP_BYTES)
            if self.store.needs_sync:
                self._sync_here()
        self._sync_here()

    async def end(self, kind: str, queued: list[bytes] | None = None) -> None:
        """The last word of this life ("end"), or of the log ("off"), synced; nothing is written meanwhile. OSError."""
        async with self._lock:
            if self.store.is_spoilt:
                self._write(())
            self.store.write_end(kind, queued)
            self._writes_synced = self._writes
            self.is_unsafe = False

    def _sync_here(self) -> None:
        job = self.store.begin_sync()
        if job is not None:
            job.run(self.disk)
            self.store.synced(job)
