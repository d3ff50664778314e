"""Compaction: what is still needed of the oldest segments is said again at the log's end, then they are deleted. Pure.

First in, first out. An id met in the oldest segment whose newest base record lies there is said again as it stands now;
when the whole segment was looked at, what was said has been synced, and the folder too, the segment is deleted. At any
time before, both are there, and replay of both gives the same. No older segment is left that could hold what a record
in the deleted one took away, which is rule M24; and a job of a day never pins the log, it moves.

With a log at twice its live bytes a byte written costs one byte copied; `step` with twice the bytes written since the
last one keeps the log below 2.5 times the live bytes, and two segments. Why not the deadest segment first, as log-
structured file systems do: a deletion could then go before the creation that it deletes.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from typing import Protocol

from disque.aof import format as fmt
from disque.aof.store import Store
from disque.core.ready import BASE_KINDS, Paged, Record

# Of a segment, read and looked at in one go: some ms where records are short.
CHUNK_BYTES = 32 << 10
# Bytes that a step may look at for each that it may write.
LOOK_RATIO = 4
# What it costs, in bytes, to look at an id of a list.
_LOOK_BYTES = 64
_RECORD_BYTES = 200
# Restarts begin segments: more than this beyond what the bytes ask for, and they are taken together.
SEGMENTS_SPARE = 16


class Source(Protocol):
    """What compaction asks of the engine."""

    def knows(self, id_: bytes) -> bool:
        """True if the log must speak of this id."""

    def segment_of(self, id_: bytes) -> int:
        """The segment with the newest base record of an id, 0 for none."""

    def restate(self, id_: bytes) -> list[Record]:
        """The present state of an id, its base record first; [] if it is unknown."""

    def placed(self, id_: bytes, segment: int, offset: int, size: int) -> None:
        """The base record of an id now lies there."""

    def logged_ids(self) -> Iterator[bytes]:
        """Every id of which a fresh log must speak."""

    def live_bytes(self) -> int:
        """About how many bytes a fresh log would take."""


class Compaction:
    """One at a time: of the oldest segment, or of everything (a rewrite). Called between the writes of two turns."""

    def __init__(self, store: Store, source: Callable[[], Source]) -> None:
        """`source` gives the engine of the moment: CLUSTER RESET HARD makes another one."""
        self._store = store
        self._source = source
        self._ids: Iterator[bytes | None] | None = None
        self._boundary = 0  # segments below it go
        self._again: list[bytes] = []  # said in a write that failed
        self._looked = 0
        # bytes that the last step might have said and hasn't, or the other way round
        self._carry = 0
        self.is_rewrite = False
        self.copied_bytes = 0

    @property
    def is_saying(self) -> bool:
        """True while `step` has something to do."""
        return self._ids is not None

    @property
    def is_running(self) -> bool:
        """True until the old segments are deleted: after the last step a sync still has to do that."""
        return self._boundary > 0 and (
            self.is_saying or any([segment < self._boundary for segment in self._store.sizes])
        )

    def wants(self, percentage: int, min_bytes: int) -> bool:
        """True if the oldest segment should go: the log is `percentage` above its live bytes, and large enough.

        `percentage` 0: never (auto-aof-rewrite-percentage).
        """
        store = self._store
        if not percentage or self.is_running or not store.is_complete:
            return False
        if min(store.sizes, default=store.active) >= store.active:
            return False
        if len(store.sizes) > 2 * store.total_bytes // store.segment_bytes + SEGMENTS_SPARE:
            return True
        limit = self._source().live_bytes() * (100 + percentage) // 100
        return store.total_bytes > max(limit, min_bytes)

    def begin(self) -> None:
        """Begin with the oldest segment; the caller has asked `wants`."""
        oldest = min(self._store.sizes)
        assert oldest < self._store.active, f"segment {oldest} is still written to"
        self._start(oldest + 1, self._ids_of(oldest), is_rewrite=False)

    def begin_rewrite(self) -> None:
        """Say everything again (BGREWRITEAOF, or a log that isn't complete); OSError: nothing has begun.

        Takes the place of a compaction under way.
        """
        self._store.seal()
        self._place(self._store.write([]))
        self._start(self._store.active, self._ids_known(), is_rewrite=True)

    def _start(self, boundary: int, ids: Iterator[bytes | None], *, is_rewrite: bool) -> None:
        self._boundary, self._ids, self.is_rewrite = boundary, ids, is_rewrite
        self._again = []

    def step(self, budget_bytes: int) -> None:
        """Say about so many bytes again; OSError as `Store.write`: nothing is lost, call again.

        Not while a spoilt log waits for its write. When `is_saying` ends, the next sync deletes what is old.
        """
        if self._ids is None or self._store.is_spoilt:
            return
        budget = budget_bytes + max(-budget_bytes, min(self._carry, budget_bytes))
        batch, records, is_last = self._gather(self._ids, budget)
        self._carry = budget - self._say(list(batch), records)
        if is_last:
            self._ids = None
            if self.is_rewrite and not self._store.is_complete:
                self._store.set_complete()
            # Only now: the turns' writes must not tell of it before everything is said.
            self._store.retire(self._boundary)
            self._place(self._store.write([]))

    def _say(self, ids: list[bytes], records: list[Record]) -> int:
        before = self._store.total_bytes
        try:
            places = self._store.write(records)
        except OSError:
            self._again = ids
            raise
        copied = self._store.total_bytes - before
        self.copied_bytes += copied
        self._place(places)
        return copied

    def _place(self, places: list[tuple[bytes, int, int, int]]) -> None:
        placed = self._source().placed
        for place in places:
            placed(*place)

    def _gather(
        self, ids: Iterator[bytes | None], budget_bytes: int
    ) -> tuple[dict[bytes, None], list[Record], bool]:
        batch: dict[bytes, None] = {}
        records: list[Record] = []
        left = budget_bytes
        look_until = self._looked + LOOK_RATIO * budget_bytes
        again, self._again = self._again, []
        for known in again:
            left -= self._take(known, batch, records)
        for id_ in ids:
            if id_ is not None:
                left -= self._take(id_, batch, records)
            if left <= 0 or self._looked >= look_until:
                return batch, records, False
        return batch, records, True

    def _take(self, id_: bytes, batch: dict[bytes, None], records: list[Record]) -> int:
        """Restate an id that would be lost with the old segments; returns about how many bytes it takes."""
        source = self._source()
        if id_ in batch or not source.knows(id_) or source.segment_of(id_) >= self._boundary:
            return 0
        said = source.restate(id_)
        batch[id_] = None
        if said:
            records.append(fmt.group(said))
        return sum([_RECORD_BYTES + _body_bytes(record) for record in said])

    # Which ids

    def _ids_known(self) -> Iterator[bytes | None]:
        for id_ in self._source().logged_ids():
            self._looked += _LOOK_BYTES
            yield id_

    def _ids_of(self, segment: int) -> Iterator[bytes | None]:
        """Ids of the base records of a segment, None after each chunk. After damage: all that the engine knows."""
        store = self._store
        seed = fmt.seed_of(segment, store.disk.salt(segment))
        offset, end = len(fmt.MAGIC), store.sizes[segment]
        while offset < end:
            offsets: array[int] = array("Q")
            try:
                data = self._read_chunk(segment, offset, end)
                done = fmt.walk(data, 0, seed, offsets)
                ids = [_base_id(data, at) for at in offsets]
            except (OSError, ValueError):
                done, ids = 0, []
            if not done:
                store.note(
                    f"compaction: damage in segment {segment} at {offset}, all that is known is said again"
                )
                yield from self._ids_known()
                return
            yield from ids
            offset += done
            self._looked += done
            yield None

    def _read_chunk(self, segment: int, offset: int, end: int) -> bytes:
        """Bytes from here on, with at least one whole record."""
        disk = self._store.disk
        data = disk.read(segment, offset, min(CHUNK_BYTES, end - offset))
        size = fmt.size_at(data, 0)
        if len(data) < size <= end - offset:
            data = disk.read(segment, offset, size)
        return data


def _base_id(data: bytes, offset: int) -> bytes | None:
    record = fmt.members(fmt.record_at(data, offset))[0]
    return record.id if record.kind in BASE_KINDS else None


def _body_bytes(record: Record) -> int:
    body = record.fields[2] if record.kind == "job" else None
    if isinstance(body, Paged):
        return body.size
    return len(body) if isinstance(body, bytes) else 0
