"""What the log asks of the core: where records came to lie, what must be said again, and which bodies may leave memory.

Bodies of jobs that were stored leave memory while it is tight; they lie in the log alone and are read when a reply or a
message needs them. Whatever the log is about to throw away and is still needed is said again as it
stands now, so that no record of any age is ever needed twice (M24).
"""

from __future__ import annotations

from collections.abc import Iterator

from disque.core.copies import copy_record, end_record, page_out
from disque.core.job import Job, JobState, Paged
from disque.core.jobid import JobId
from disque.core.listing import listed
from disque.core.memory import PAGE_MORE_PERCENT, is_above, is_paging, is_worth_paging
from disque.core.passes import Pager
from disque.core.ready import Record
from disque.core.state import State, Tombstone, wake

_FACT_BYTES = 250  # of a job's record, apart from its body, names and headers
_END_BYTES = 150
_PAGER_BYTES = 1 << 20  # stored again a step
_PAGER_LOOK_BYTES = 250  # as which a look at a job counts
_PAGER_MS = 10
_PAGE_WORTH = 50  # a fiftieth of maxmemory is worth a pass


def placed(state: State, id_: JobId, segment: int, offset: int, size: int) -> None:
    """The base record of an id now lies there; its body may leave memory, or has moved."""
    job = _job(state, id_)
    if job is None:
        stone = _stone(state, id_)
        if stone is not None:
            stone.segment = segment
        return
    job.segment = segment
    body, place = job.body, Paged(segment, offset, size)
    if id_ not in state.jobs:  # quarantined: charged to nobody, and soon over
        job.body = place if isinstance(body, Paged) else body
    elif isinstance(body, Paged) or (body is not None and is_worth_paging(state, body)):
        page_out(state, job, place)
        page_more(state)


def page_all(state: State) -> None:
    """Memory has become tight by a new limit: bodies that were stored long ago are stored again, and leave."""
    if state.is_logged and not state.pager.ids:
        state.pager.ids = listed(state.jobs)
        wake(state, state.pager, state.now_ms)


def page_more(state: State) -> None:
    """The same if handles now need the room that bodies took while there was some; called often."""
    if not is_paging(state):
        state.pager.left_bytes = 0
    elif is_above(state, PAGE_MORE_PERCENT):
        # What the last pass had to leave isn't looked through again for as long as little was added
        gain = state.body_bytes - state.pager.left_bytes
        if gain * _PAGE_WORTH > state.limits.maxmemory_bytes:
            page_all(state)


def pager_due(state: State, pager: Pager) -> None:
    """Store the next bodies again; `placed` lets go of them while memory is tight."""
    budget = _PAGER_BYTES
    while pager.ids and budget > 0:
        budget -= _PAGER_LOOK_BYTES
        job = state.jobs.get(pager.ids.pop())
        if job is None or not isinstance(job.body, bytes) or not job.segment:
            continue
        if is_worth_paging(state, job.body):
            budget -= len(job.body)
            state.ready.records += restate(state, job.id)
    if pager.ids and is_paging(state):
        wake(state, pager, state.now_ms + _PAGER_MS)
        return
    pager.left_bytes = 0 if pager.ids else state.body_bytes
    pager.ids.clear()


def stands_for(state: State, record: Record) -> bool:
    """True if a base record is of the kind that its id's state would be said with: not one that replay passed over."""
    return record.kind == _base_kind(state, record.fields[0])


def _base_kind(state: State, id_: object) -> str | None:
    job = _job(state, id_)  # type: ignore[arg-type]
    if job is not None:
        return "done" if job.is_done else "job"
    return "settled" if _stone(state, id_) is not None else None  # type: ignore[arg-type]


def segment_of(state: State, id_: JobId) -> int:
    """The segment with the newest base record of an id; 0: unknown, or not stored yet."""
    known = _job(state, id_) or _stone(state, id_)
    return 0 if known is None else known.segment


def knows(state: State, id_: JobId) -> bool:
    """True if the log still has to say something about this id."""
    return _job(state, id_) is not None or _stone(state, id_) is not None


def restate(state: State, id_: JobId) -> list[Record]:
    """A base record and what follows it: the present state of an id, [] if it is unknown."""
    job = _job(state, id_)
    if job is not None:
        return _restate_job(state, job)
    stone = _stone(state, id_)
    return [] if stone is None else [_stone_record(stone)]


def _restate_job(state: State, job: Job) -> list[Record]:
    if job.is_done:
        return [end_record(job)]
    records = [copy_record(job)]
    if job.is_kept_out and not job.retry_ms:
        records.append(Record("dispatch", (job.id, 1)))
    elif job.state is JobState.MOVING:
        moves = [
            Record("move", (job.id, peer.id, move.source_boot, move.boot, move.n))
            for peer in state.peers.values()
            for move in peer.moves.values()
            if move.job is job
        ]
        records += moves or [Record("doubt", (job.id,))]
    return records


def _stone_record(stone: Tombstone) -> Record:
    fields = (stone.id, int(stone.reason), stone.holders, stone.told, stone.expires_at)
    return Record("settled", fields)


def node_records(state: State) -> list[Record]:
    """Facts of the node that belong to no job: pause flags (M18), numbers of moves taken in (B6.3)."""
    records = [Record("pause", (queue, *fact)) for queue, fact in state.pauses.items()]
    records += [
        Record("taken", (peer.id, source_boot, boot, numbers.high, list(numbers.taken)))
        for peer in state.peers.values()
        for (boot, source_boot), numbers in peer.moves_in.items()
    ]
    return records


def logged_ids(state: State) -> Iterator[JobId]:
    """Every id of which a fresh log must speak; a snapshot, safe while the state changes."""
    return iter(listed(state.jobs, state.quarantine, state.tombstones, state.long_tombstones))


def live_bytes(state: State) -> int:
    """About how many bytes a fresh log would take."""
    graves = len(state.tombstones) + len(state.long_tombstones)
    ends = state.by_state.done
    live = len(state.jobs) - ends + len(state.quarantine)
    said = state.body_bytes + state.paged_bytes + state.spec_bytes
    return said + live * _FACT_BYTES + (ends + graves) * _END_BYTES


def _job(state: State, id_: JobId) -> Job | None:
    job = state.jobs.get(id_)
    if job is None and state.quarantine:
        return state.quarantine.get(id_)
    return job


def _stone(state: State, id_: JobId) -> Tombstone | None:
    return state.tombstones.get(id_) or state.long_tombstones.get(id_)
