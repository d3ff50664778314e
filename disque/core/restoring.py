"""Replay of the log: what each kind of record does to an empty node (M24).

Replayed copies are active and unsure: they ask before they queue, and wait until each other holder was reached (B1.9).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from disque.core.copies import claim_copy, free_body, insert, remove, set_burials, shift
from disque.core.delivery import book, enqueue, may_queue
from disque.core.ending import boot_of, forget_tombstone, keep_dummy, keep_tombstone
from disque.core.job import Burials, Event, Job, JobSpec, JobState, Reason
from disque.core.jobid import JobId
from disque.core.listing import drained
from disque.core.moves import restore_taken
from disque.core.ready import Record
from disque.core.setaside import put_all_aside
from disque.core.sharing import intern_claims, intern_nodes, intern_spec
from disque.core.state import (
    OpenMove,
    State,
    Tombstone,
    is_counted,
    members_of,
    peer_of,
    record,
    wake,
)

_STEP_JOBS = 1_000


def restore(state: State, entry: Record) -> None:
    """Apply one record; a kind that a later version wrote is skipped."""
    kind = _KINDS.get(entry.kind)
    if kind is not None:
        kind(state, *entry.fields)


def _job(state: State, id_: Any, spec: Any, body: Any, *facts: Any) -> None:
    if id_ in state.jobs:  # said again by a compaction, and the older record still stands
        _facts(state, id_, *facts)
        return
    forget_tombstone(state, id_)
    ctime, *terms = spec
    job = Job(
        id=id_,
        spec=intern_spec(state, JobSpec(*terms)),
        ctime=ctime,
        body=body,
        state=JobState.ACTIVE,
        expires_at=facts[-2],
        was_queued=True,
        is_unsure=True,
    )
    insert(state, job)
    _facts(state, id_, *facts)


def _facts(state: State, id_: Any, *facts: Any) -> None:
    job = state.jobs.get(id_)
    if job is None or job.is_done:
        return
    holders, claims, dispatches, nacks, leases, covered, burials, expires_at, not_before = facts
    job.holders = intern_nodes(state, holders)
    job.claims = intern_claims(state, {node: tuple(claim) for node, claim in claims.items()})
    job.dispatches, job.nacks, job.covered = dispatches, nacks, covered
    job.leases = {node: tuple(lease) for node, lease in leases.items()}
    set_burials(state, job, None if burials is None else Burials(*burials))
    job.expires_at, job.not_before = expires_at, not_before
    book(state, job)


def _holders(state: State, id_: Any, holders: Any) -> None:
    job = state.jobs.get(id_)
    if job is not None:
        job.holders = intern_nodes(state, holders)


def _dispatch(state: State, id_: Any, count: Any) -> None:
    job = state.jobs.get(id_)
    if job is None or job.is_done:
        return
    job.dispatches = {**job.dispatches, state.self_id: count}
    if not job.retry_ms:
        job.is_kept_out = True
        free_body(state, job)
        state.spent[job.id] = job
    book(state, job)


def _lease(state: State, id_: Any, count: Any, stamp: Any, end: Any) -> None:
    job = state.jobs.get(id_)
    if job is None or job.is_done:
        return
    own = state.self_id
    if count:
        job.dispatches = {**job.dispatches, own: count}
    job.leases = {**job.leases, own: (stamp, end)}
    book(state, job)


def _move(state: State, id_: Any, node: Any, source_boot: Any, boot: Any, n: Any) -> None:
    job = state.jobs.get(id_)
    if job is not None and job.state is JobState.ACTIVE:
        shift(state, job, Event.MOVE)
        job.queued_at = node
        peer_of(state, node).moves[source_boot, boot, n] = OpenMove(job, source_boot, boot, n)
        book(state, job)


def _doubt(state: State, id_: Any) -> None:
    """A move that nobody can answer any more (B6.6): never delivered here."""
    job = state.jobs.get(id_)
    if job is not None and job.state is JobState.ACTIVE:
        shift(state, job, Event.MOVE)
        state.spent[job.id] = job
        book(state, job)


def _returned(state: State, id_: Any) -> None:
    job = state.jobs.get(id_)
    if job is not None and job.state is JobState.MOVING:
        _close_move(state, job)
        shift(state, job, Event.RETURN)
        book(state, job)


def _close_move(state: State, job: Job) -> None:
    """The move of a job was answered, or is over with it: to ask about it again would be to ask for an older answer."""
    if job.state is JobState.MOVING and job.queued_at is not None:
        moves = peer_of(state, job.queued_at).moves
        for key in [key for key, move in moves.items() if move.job is job]:
            del moves[key]


def _done(state: State, id_: Any, reason: Any, holders: Any, told: Any, expires_at: Any) -> None:
    forget_tombstone(state, id_)
    job = state.jobs.get(id_)
    if job is None:
        job = Job(id=id_, spec=None, ctime=0, body=None, state=JobState.DONE, expires_at=expires_at)
        insert(state, job)
    elif not job.is_done:
        free_body(state, job)
        shift(state, job, Event.FINISH)
    job.reason = Reason(reason)
    job.holders, job.told = intern_nodes(state, holders), intern_nodes(state, told)
    state.spent.pop(id_, None)
    state.dummies.pop(id_, None)
    wake(state, job, state.now_ms)
    if job.holders:
        state.undone[id_] = job
    else:
        keep_dummy(state, job)


def _settled(state: State, id_: Any, reason: Any, holders: Any, told: Any, expires_at: Any) -> None:
    _gone(state, id_)
    forget_tombstone(state, id_)  # a compacted log says it again
    left = members_of(state, tuple(holders))
    boots = tuple([(node, boot_of(state, node)) for node in left if node != state.self_id])
    is_long = len(left) < len(holders)
    stone = Tombstone(id_, Reason(reason), tuple(holders), tuple(told), boots, expires_at, is_long)
    keep_tombstone(state, stone)


def _gone(state: State, id_: Any) -> None:
    job = state.jobs.get(id_)
    if job is not None:
        _close_move(state, job)
        remove(state, job)


def finish_restoring(state: State) -> Iterator[None]:
    """All records are in: times are held against the clock of this start. Yields between steps.

    A store that isn't intact drops undelivered RETRY 0 jobs, whose end may be what it lost.
    """
    is_intact = state.since != state.boot
    for at, job in enumerate(drained(state.jobs.values())):
        if at % _STEP_JOBS == 0:
            yield
        if job.is_done:
            continue
        if not is_intact and not job.retry_ms and not job.is_kept_out:
            remove(state, job)
            record(state, "gone", job.id)
        else:
            own = job.claims.get(state.self_id)
            if job.retry_ms and (own is None or not is_counted(state, state.self_id, own)):
                # Of an ADDJOB for peers alone; or what is left of a store that isn't intact: it is here for certain
                claim_copy(state, job)
            _clamp(state, job)


def _clamp(state: State, job: Job) -> None:
    """The wall clock may have been set back while this node was down: nothing lasts longer than it was meant to."""
    now, spec = state.now_ms, job.live_spec
    job.expires_at = min(job.expires_at, now + spec.ttl_ms)
    job.not_before = min(job.not_before, now + spec.delay_ms)
    if not job.nacks and any([end > now + spec.retry_ms for _, end in job.leases.values()]):
        job.leases = {
            node: (stamp, min(end, now + spec.retry_ms))
            for node, (stamp, end) in job.leases.items()
        }
    book(state, job)


def queue_again(state: State, ids: Iterable[bytes]) -> Iterator[None]:
    """After a clean stop: these go back into their queues as they were, without any asking. Yields between steps."""
    for at, id_ in enumerate(ids):
        if at % _STEP_JOBS == 0:
            yield
        job = state.jobs.get(JobId(id_))
        if job is not None and job.state is JobState.ACTIVE and may_queue(state, job):
            job.is_unsure = False
            enqueue(state, job)


def _pause(state: State, queue: Any, stamp: Any, node: Any, flags: Any) -> None:
    state.pauses[queue] = (stamp, node, flags)


def _taken(state: State, peer: Any, source_boot: Any, boot: Any, high: Any, taken: Any) -> None:
    restore_taken(state, peer, source_boot, boot, high, taken)


def _flush(state: State) -> None:
    put_all_aside(state)
    wake(state, state.trash, state.now_ms)


_KINDS: Mapping[str, Callable[..., None]] = {
    "flush": _flush,
    "job": _job,
    "facts": _facts,
    "holders": _holders,
    "lease": _lease,
    "pause": _pause,
    "taken": _taken,
    "dispatch": _dispatch,
    "move": _move,
    "doubt": _doubt,
    "returned": _returned,
    "done": _done,
    "settled": _settled,
    "gone": _gone,
}
