"""A small engine with the log's contract, and a node around it that starts, works, crashes and starts again.

The engine knows ids with a body and a count, done ids and settled ones; a record says all of an id ("job", "done",
"settled"), one more thing ("dispatch" with the absolute count, "out" for good), or that it is gone. An id always has
the same body, as in Disque.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs

from disque.aof.compaction import Compaction
from disque.aof.replay import Findings, Replay
from disque.aof.store import Life, Store
from disque.core.ready import BASE_KINDS, Paged, Record
from tests.disk import Crash, MemoryDisk

KERNEL = "kernel-1"
NODE = "a" * 40
RECORD_BYTES = 60  # about, of a record without its body


@attrs.define(eq=False)
class Entry:
    """What is known of an id."""

    kind: str
    body: bytes | None = None
    count: int = 0
    is_out: bool = False
    segment: int = 0
    place: Paged | None = None
    is_paged: bool = False  # the log is told only the place, as if the body had left memory

    @property
    def facts(self) -> tuple[object, ...]:
        facts = (self.kind, self.body, self.count)
        return (*facts, "out") if self.is_out else facts


class FakeEngine:
    """Ids and one fact of the node, as records."""

    def __init__(self) -> None:
        self.entries: dict[bytes, Entry] = {}
        self.pause = 0
        self.pending: list[Record] = []

    # What clients do

    def add(self, id_: bytes, body: bytes) -> None:
        self.entries[id_] = Entry("job", body)
        self.pending.append(Record("job", (id_, (b"queue",), body, 0)))

    def dispatch(self, id_: bytes) -> None:
        entry = self.entries[id_]
        entry.count += 1
        self.pending.append(Record("dispatch", (id_, entry.count)))

    def take_out(self, id_: bytes) -> None:
        self.entries[id_].is_out = True
        self.pending.append(Record("out", (id_,)))

    def end(self, id_: bytes, kind: str) -> None:
        """`done` or `settled`."""
        self.entries[id_] = Entry(kind)
        self.pending.append(Record(kind, (id_,)))

    def forget(self, id_: bytes) -> None:
        del self.entries[id_]
        self.pending.append(Record("gone", (id_,)))

    def set_pause(self, stamp: int) -> None:
        self.pause = stamp
        self.pending.append(Record("pause", (b"queue", stamp)))

    # What the log asks

    def take_records(self) -> list[Record]:
        pending, self.pending = self.pending, []
        return pending

    def placed(self, id_: bytes, segment: int, offset: int, size: int) -> None:
        entry = self.entries.get(id_)
        if entry is not None:
            entry.segment = segment
            entry.place = Paged(segment, offset, size)

    def knows(self, id_: bytes) -> bool:
        return id_ in self.entries

    def segment_of(self, id_: bytes) -> int:
        entry = self.entries.get(id_)
        return 0 if entry is None else entry.segment

    def restate(self, id_: bytes) -> list[Record]:
        entry = self.entries.get(id_)
        if entry is None:
            return []
        if entry.kind != "job":
            return [Record(entry.kind, (id_,))]
        body = entry.place if entry.is_paged else entry.body
        said = [Record("job", (id_, (b"queue",), body, entry.count))]
        return [*said, Record("out", (id_,))] if entry.is_out else said

    def node_records(self) -> list[Record]:
        return [Record("pause", (b"queue", self.pause))] if self.pause else []

    def logged_ids(self) -> Iterator[bytes]:
        return iter(list(self.entries))

    def live_bytes(self) -> int:
        return sum([RECORD_BYTES + len(entry.body or b"") for entry in self.entries.values()])

    # Replay

    def restore(self, record: Record, segment: int, offset: int, size: int) -> None:
        fields: Any = record.fields
        id_ = fields[0]
        match record.kind:
            case "job":
                if id_ not in self.entries:
                    self.entries[id_] = Entry("job", fields[2])
                if self.entries[id_].kind == "job":
                    self.entries[id_].count = fields[3]
            case "out":
                if id_ in self.entries:
                    self.entries[id_].is_out = True
            case "dispatch":
                if id_ in self.entries:
                    self.entries[id_].count = fields[1]
            case "done" | "settled":
                self.entries[id_] = Entry(record.kind)
            case "gone":
                self.entries.pop(id_, None)
            case "pause":
                self.pause = fields[1]
            case _:
                raise AssertionError(f"no engine wrote {record}")
        if record.kind in BASE_KINDS:
            self.placed(id_, segment, offset, size)

    def facts(self) -> dict[bytes, tuple[object, ...]]:
        """All that must survive."""
        return {id_: entry.facts for id_, entry in sorted(self.entries.items())}


class Node:
    """Engine, store and compaction over one disk; `start` replays."""

    def __init__(
        self,
        disk: MemoryDisk | None = None,
        *,
        policy: str = "always",
        segment_bytes: int = 400,
        kernel: str = KERNEL,
    ) -> None:
        self.disk = MemoryDisk() if disk is None else disk
        self.policy, self.segment_bytes, self.kernel = policy, segment_bytes, kernel
        self.boot = self.since = 0
        self.start()

    def start(self, kernel: str | None = None) -> Findings:
        """Replay, judge, and begin a life."""
        self.kernel = kernel or self.kernel
        self.engine = FakeEngine()
        replay = Replay(self.disk, kernel_boot_id=self.kernel, stored_boot=self.boot)
        for batch in replay.run():
            for placed in batch:
                self.engine.restore(*placed)
        self.findings = replay.findings
        boot = max(self.boot, self.findings.boot) + 1
        self.since = self.findings.since if self.findings.is_intact else boot
        self.store = Store(
            self.disk,
            Life(NODE, boot, self.since, self.kernel, self.policy),
            is_complete=True,
            node_records=self.engine.node_records,
            unsynced=self.findings.unsynced,
            segment_bytes=self.segment_bytes,
        )
        self.compaction = Compaction(self.store, lambda: self.engine)
        if not self.findings.boot:
            self.store.set_complete()
        self.turn()
        self.sync()
        self.boot = boot
        return self.findings

    def turn(self) -> None:
        """Write what the engine has said; on OSError it stays pending."""
        records = self.engine.take_records()
        try:
            places = self.store.write(records)
        except OSError:
            self.engine.pending = records + self.engine.pending
            raise
        for place in places:
            self.engine.placed(*place)

    def sync(self) -> None:
        """As an owner does it, once; OSError if it failed."""
        if self.store.is_spoilt:
            self.turn()
        job = self.store.begin_sync()
        if job is not None:
            try:
                job.run(self.disk)
            except OSError:
                self.store.sync_failed(job)
                raise
            self.store.synced(job)

    def add(self, id_: bytes, body: bytes = b"body") -> None:
        """One job, written and synced."""
        self.engine.add(id_, body)
        self.turn()
        self.sync()

    def compact(self, budget_bytes: int = 100) -> None:
        """One step, and what it asks for."""
        if not self.compaction.is_running and self.compaction.wants(100, 0):
            self.compaction.begin()
        self.compaction.step(budget_bytes)
        if self.store.needs_sync:
            self.sync()

    def compact_all(self) -> None:
        """Until the old segments are gone."""
        while self.compaction.is_running:
            self.compaction.step(200)
            self.sync()

    def stop(self, queued: list[bytes] | None = None) -> None:
        """A clean end."""
        self.turn()
        self.store.write_end("end", queued)

    def kill(self) -> Findings:
        """kill -9, and a start on the same kernel."""
        self.disk.mend()
        return self.start()

    def lose_power(self) -> Findings:
        """The machine goes down; another kernel comes up."""
        self.disk.power_loss()
        return self.start(self.kernel + "+")


__all__ = ["KERNEL", "NODE", "Crash", "Entry", "FakeEngine", "MemoryDisk", "Node", "Record"]
