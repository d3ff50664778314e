"""The log as it is written: one append a turn, what is synced, what must be written again. Pure, over a Disk.

The one idea: a place counts only after its append succeeded, and what a sync was owed stays in memory until a sync
succeeded. So a failed append is cut back and forgotten, and after a failed sync (the kernel may have dropped the pages,
and a second fsync would lie) everything since the last good one is written again, into a new segment.

Every start of a node begins a new segment, whose head says all that an older one said about the node: the oldest
segments may go at any time (compaction.py). Disque has one file and a fork instead (aof.c).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeAlias

import attrs

from cluster.packing import pack
from disque.aof import format as fmt
from disque.aof.disk import Disk
from disque.core.ready import BASE_KINDS, Paged, Record

SEGMENT_BYTES = 32 << 20
# What a failed sync must write again is kept in memory: over this, a sync is wanted whatever the policy.
UNSYNCED_BYTES_MAX = 16 << 20
NOTES_MAX = 100

Placement: TypeAlias = "tuple[bytes, int, int, int]"  # id, segment, offset, bytes of the record
_Entry: TypeAlias = "tuple[bytes, bytes | None]"  # payload, id if it is a base record


@attrs.frozen
class Life:
    """One run of a node, as each segment's head tells it. `policy` is that of appendfsync."""

    node_id: str
    boot: int
    since: int
    kernel_boot_id: str
    policy: str


@attrs.frozen
class Unsynced:
    """Records that a process left behind, killed on a kernel that still runs, and that no sync covers for sure.

    They are read back from the kernel's memory. Had their sync failed, the disk would never get them, and no later
    sync would tell: so they are written again. `lengths`: of segments with such records, what surely is on the disk.
    """

    lengths: dict[int, int]
    entries: list[tuple[bytes, bytes | None]]  # payload, id of a base record


@attrs.define(eq=False)
class SyncJob:
    """What must reach the disk; made by `Store.begin_sync`. Only `run` touches the disk: any thread may call it."""

    lengths: dict[int, int]  # by segment, when the job was made
    is_folder: bool
    doomed: tuple[int, ...]  # segments to delete
    count: int  # of the store's unsynced records, those that it covers
    place: tuple[int, int]  # the log's end when it was made
    is_stored: bool = False
    deleted: list[int] = attrs.Factory(list)

    def run(self, disk: Disk) -> None:
        """Sync, then delete what is no longer needed, oldest first and each for good; OSError."""
        for segment in self.lengths:
            disk.sync(segment)
        if self.is_folder:
            disk.sync_folder()
        self.is_stored = True
        for segment in self.doomed:
            disk.delete(segment)
            self.deleted.append(segment)
            # A deletion that outlives an older one would bring back what only the newer segment took away (M24).
            disk.sync_folder()


class Store:
    """Writes records and knows where they lie. One owner; no call but `SyncJob.run` may come from another thread."""

    def __init__(
        self,
        disk: Disk,
        life: Life,
        *,
        is_complete: bool,
        node_records: Callable[[], list[Record]],
        unsynced: Unsynced | None = None,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        """After the replay, which has mended what is there; nothing is written before the first `write`.

        `is_complete` False: the log lacks jobs until a rewrite has said all (appendonly switched on at run time).
        `unsynced` comes from the replay's findings.
        """
        self.disk = disk
        self.life = life
        self.is_complete = is_complete
        self.segment_bytes = segment_bytes
        self.sizes = {segment: disk.size(segment) for segment in disk.segments()}
        self.total_bytes = sum(self.sizes.values())
        self.active = 0  # the segment that is written to, 0 before the first
        self.is_spoilt = False  # a sync failed: the next write says again what it was to cover
        self.unsynced_bytes = 0
        self.unreadable = 0  # paged bodies that couldn't be read
        self._node_records = node_records
        self._newest = max(self.sizes, default=0)
        self._first = self._first_said = min(self.sizes, default=1)
        self._is_sealed = False
        self._meta: list[Record] = []
        # Closed segments whose good length no later one tells yet, and lengths that are less than what was written. A
        # life begins with all of them: what was missing before, its start has judged.
        self._unclaimed: dict[int, None] = dict.fromkeys(self.sizes)
        self._cut: dict[int, int] = {}
        self._cut_before: dict[int, int] = {}  # said by an earlier segment
        # Payload, id and segment of all that no sync has covered yet; segments with such; their synced lengths.
        self._unsynced: deque[tuple[bytes, bytes | None]] = deque()
        self._dirty: dict[int, int] = {}
        self._is_folder_dirty = False
        self._mark: tuple[int, int] | None = None
        self._job: SyncJob | None = None
        self._notes: list[str] = []
        if unsynced is not None:
            self._take_over(unsynced)

    def _take_over(self, unsynced: Unsynced) -> None:
        """What an earlier life left unsynced is as after a failed sync."""
        self._unsynced.extend(unsynced.entries)
        self.unsynced_bytes = sum([len(payload) for payload, _ in unsynced.entries])
        self._cut = dict(unsynced.lengths)
        self.is_spoilt = True

    # Writing

    def write(self, records: Iterable[Record]) -> list[Placement]:
        """Append records with one call of the disk; returns the place of each base record among them, in order.

        Records of before may be among the places: what a failed sync has spoilt is said again. OSError: nothing was
        written as far as anybody will believe; call again with the same records. Even without any, it begins the first
        segment and mends a spoilt log.
        """
        entries = [each for each in map(self._entry, [*self._meta, *records]) if each is not None]
        if not self.active or self.is_spoilt or self._is_sealed or self._is_full():
            places = self._write_segment(entries)
        elif entries:
            places = self._write_more(entries)
        else:
            return []
        self._meta.clear()
        self._first_said = self._first
        self._mark = None
        return places

    def _is_full(self) -> bool:
        return self.sizes[self.active] >= self.segment_bytes

    def _write_more(self, entries: list[_Entry]) -> list[Placement]:
        segment, offset = self.active, self.sizes[self.active]
        data, places = self._lay(segment, offset, [*self._marks(), *self._as_turn(entries)])
        self._append(segment, offset, data)
        self._remember(segment, offset, entries)
        return places

    def _write_segment(self, entries: list[_Entry]) -> list[Placement]:
        segment = self._newest + 1
        self.disk.create(segment)
        self._is_folder_dirty = True
        again = list(self._unsynced) if self.is_spoilt else []
        # These stand behind what is said again: a torn write of this segment must not take back what others hold.
        cuts = [self._said("prior", *each) for each in self._cut.items()]
        said = [*self._beginning(segment), *again, *cuts, *self._as_turn(entries)]
        data, places = self._lay(segment, len(fmt.MAGIC), said)
        self._append(segment, 0, fmt.MAGIC + data)
        if self.is_spoilt:
            self._forget_unsynced(len(self._unsynced))
            self._dirty.clear()
        self.active = self._newest = segment
        self._unclaimed = {segment: None}
        self._cut_before.update(self._cut)
        self._cut.clear()
        self.is_spoilt = self._is_sealed = False
        self._remember(segment, 0, [*again, *entries])
        return places

    def _beginning(self, segment: int) -> list[_Entry]:
        """What every segment says first, so that no older one is needed for it."""
        life = self.life
        lengths = [(n, self._cut_before.get(n, self.sizes[n])) for n in self._unclaimed]
        head = (segment, life.node_id, fmt.VERSION, self._first, self.is_complete, lengths)
        return [
            self._said("segment", *head),
            self._said("start", life.boot, life.since, life.kernel_boot_id, life.policy),
            *self._marks(),
            *[self._said(each.kind, *each.fields) for each in self._node_records()],
        ]

    def _marks(self) -> list[_Entry]:
        return [] if self._mark is None else [self._said("synced", *self._mark)]

    def _as_turn(self, entries: list[_Entry]) -> list[_Entry]:
        """What one write says holds together: a crash in the middle of it leaves none of it."""
        if len(entries) < 2:
            return entries
        size = sum([len(payload) for payload, _ in entries]) + fmt.HEAD_BYTES * len(entries)
        return [self._said("turn", size), *entries]

    def _said(self, kind: str, *fields: object) -> _Entry:
        return pack((kind, *fields)), None

    def _entry(self, record: Record) -> _Entry | None:
        """None for a job whose body can't be read any more: nothing better than the older record could be said."""
        if record.kind == "group":
            return self._group_entry(fmt.members(record))
        kind, fields = record.kind, record.fields
        if kind != "job":
            return pack((kind, *fields)), record.id if kind in BASE_KINDS else None
        body = fields[2]
        if isinstance(body, Paged):
            body = self.read(body)
            if body is None:
                return None
            fields = (*fields[:2], body, *fields[3:])
        return pack((kind, *fields)), record.id

    def _group_entry(self, records: list[Record]) -> _Entry | None:
        """The same for a group, whose first record is a base."""
        base, *more = records
        body = base.fields[2] if base.kind == "job" else None
        if isinstance(body, Paged):
            body = self.read(body)
            if body is None:
                return None
            base = Record(base.kind, (*base.fields[:2], body, *base.fields[3:]))
        return fmt.encode(fmt.group([base, *more])), base.id

    def _lay(
        self, segment: int, offset: int, entries: list[_Entry]
    ) -> tuple[bytes, list[Placement]]:
        parts: list[bytes] = []
        places: list[Placement] = []
        seed = self._seed(segment)
        for payload, id_ in entries:
            size = fmt.HEAD_BYTES + len(payload)
            parts += (fmt.head(payload, seed), payload)
            if id_ is not None:
                places.append((id_, segment, offset, size))
            offset += size
        return b"".join(parts), places

    def _seed(self, segment: int) -> int:
        return fmt.seed_of(segment, self.disk.salt(segment))

    def _append(self, segment: int, good: int, data: bytes) -> None:
        """Write it whole, or cut the segment back to its good length and raise OSError."""
        try:
            written = self.disk.append(segment, data)
            if written == len(data):
                self.sizes[segment] = good + written
                self.total_bytes += written
                return
            error = OSError(f"short write: {written} of {len(data)} bytes")
        except OSError as failed:
            error = failed
        try:
            self.disk.truncate(segment, good)
        except OSError as failed:
            # Nothing more goes into this segment; the next one says how far it is good.
            self.note(
                f"segment {segment} can't be cut back to {good} bytes, it is closed: {failed}"
            )
            self.sizes[segment] = good
            self._newest = segment
            self._unclaimed[segment] = None
            self._is_sealed = True
        raise error

    def _remember(self, segment: int, offset: int, entries: list[_Entry]) -> None:
        self._unsynced.extend(entries)
        self.unsynced_bytes += sum([len(payload) for payload, _ in entries])
        self._dirty.setdefault(segment, offset)

    def _forget_unsynced(self, count: int) -> None:
        for _ in range(count):
            self.unsynced_bytes -= len(self._unsynced.popleft()[0])

    # What a life says of itself

    def set_policy(self, policy: str) -> None:
        """appendfsync was changed; said with the next write. A life counts as `always` only if it was so all along."""
        self._meta.append(Record("policy", (policy,)))
        if self.life.policy == "always":
            self.life = attrs.evolve(self.life, policy=policy)

    def set_complete(self) -> None:
        """Everything has been said; the next write tells."""
        self._meta.append(Record("complete", ()))
        self.is_complete = True

    def set_node_id(self, node_id: str) -> None:
        """This node came back under another id: a new segment begins with it."""
        self.life = attrs.evolve(self.life, node_id=node_id)
        self._is_sealed = True

    def seal(self) -> None:
        """The next write begins a segment."""
        self._is_sealed = True

    def write_end(self, kind: str, queued: list[bytes] | None = None) -> None:
        """Say that this life ends ("end") or that the log does ("off"), and sync it here and now; OSError.

        `queued`: the ids in the queues, in order, for a start that puts them back there. Not while a sync is under way.
        """
        assert self._job is None, "a sync is under way"
        said = [] if queued is None else [Record("queued", (queued,))]
        if kind == "off":
            self.is_complete = False
        self.write([*said, Record(kind, ())])
        job = self.begin_sync()
        if job is not None:
            try:
                job.run(self.disk)
            except OSError:
                self.sync_failed(job)
                raise
            self.synced(job)

    # Syncing

    @property
    def needs_sync(self) -> bool:
        """True if a sync is due whatever the policy: to bound memory, for a closed segment, to delete old ones."""
        return (
            self.unsynced_bytes > UNSYNCED_BYTES_MAX
            or any([segment != self.active for segment in self._dirty])
            or bool(self._doomed())
        )

    @property
    def is_dirty(self) -> bool:
        """True if something written hasn't reached the disk for sure."""
        return bool(self._dirty or self._is_folder_dirty or self.is_spoilt)

    def _doomed(self) -> tuple[int, ...]:
        # Segments are counted upwards: the first key is the oldest.
        if next(iter(self.sizes), self._first_said) >= self._first_said:
            return ()
        return tuple([segment for segment in self.sizes if segment < self._first_said])

    def retire(self, first: int) -> None:
        """Older segments than this aren't needed any more: said with the next write, deleted by a sync after it."""
        self._first = max(self._first, first)
        self._meta.append(Record("first", (self._first,)))

    def begin_sync(self) -> SyncJob | None:
        """Everything written so far, as a job to `run`; then call `synced` or `sync_failed`. None: nothing to do.

        One at a time, also None while a job is under way and while a spoilt log waits for its next write.
        """
        doomed = self._doomed()
        is_idle = not self._dirty and not self._is_folder_dirty and not doomed
        if self._job is not None or self.is_spoilt or not self.active or is_idle:
            return None
        self._job = SyncJob(
            {segment: self.sizes[segment] for segment in self._dirty if segment not in doomed},
            self._is_folder_dirty,
            doomed,
            len(self._unsynced),
            (self.active, self.sizes[self.active]),
        )
        self._is_folder_dirty = False
        return self._job

    def synced(self, job: SyncJob) -> None:
        """The job's `run` has returned."""
        self._job = None
        self._mark = job.place
        self._forget_unsynced(job.count)
        for segment, length in job.lengths.items():
            if length == self.sizes[segment]:
                self._dirty.pop(segment, None)
            elif segment in self._dirty:
                self._dirty[segment] = length
        for segment in job.deleted:
            self.total_bytes -= self.sizes.pop(segment)
            for known in (self._dirty, self._unclaimed, self._cut_before):
                known.pop(segment, None)

    def sync_failed(self, job: SyncJob) -> None:
        """The job's `run` raised OSError. Only what it synced before that is believed.

        Then `is_spoilt`: call `write` (records or none) until it succeeds, place what it returns, and sync again. If
        just a deletion failed, all is stored, and the next sync tries to delete again.
        """
        if job.is_stored:
            self.synced(job)
            return
        self._job = None
        self._is_folder_dirty = self._is_folder_dirty or job.is_folder
        self.is_spoilt = True
        self._cut.update(self._dirty)
        # A head that told of them may be lost with the rest.
        self._unclaimed = dict.fromkeys(self.sizes)
        self.note("a sync failed: what it was to cover is written again into a new segment")

    # Reading

    def read(self, place: Paged) -> bytes | None:
        """The body of a stored job; None, with a note, if it is damaged or out of reach."""
        try:
            data = self.disk.read(place.segment, place.offset, place.size)
            if len(data) == place.size and fmt.is_record_at(data, 0, self._seed(place.segment)):
                record = fmt.members(fmt.record_at(data, 0))[0]
                if record.kind == "job" and isinstance(record.fields[2], bytes):
                    return record.fields[2]
            problem = "the record is damaged"
        except (OSError, ValueError) as error:
            problem = str(error)
        self.unreadable += 1
        self.note(f"the body in segment {place.segment} at {place.offset} can't be read: {problem}")
        return None

    # Notes

    def note(self, text: str) -> None:
        """Remember what went wrong, for the log of events."""
        if len(self._notes) < NOTES_MAX:
            self._notes.append(text)

    def take_notes(self) -> list[str]:
        """What went wrong since the last call, at most NOTES_MAX lines."""
        notes, self._notes = self._notes, []
        return notes
