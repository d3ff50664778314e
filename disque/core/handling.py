"""What a worker or an operator does to one job at a node that has a copy: give back, queue, dequeue, renew, revive.

Each function says whether it did it; `asking` makes the commands of them and passes on what isn't known here.
"""

from __future__ import annotations

from disque.core import merge
from disque.core import messages as msg
from disque.core.copies import record_facts, set_role, stamps, take_out, tell_others
from disque.core.delivery import (
    book,
    enqueue,
    is_paused_in,
    is_spent_out,
    may_queue,
    obey_lease,
    record_lease,
    revive,
    unqueue,
)
from disque.core.job import Event, Job, JobState, Role
from disque.core.jobid import JobId
from disque.core.requeue import PAUSED_RETRY_0_MS
from disque.core.state import State, next_stamp

# What WORKING comes to; a success is WORKING_DONE + RETRY in seconds.
WORKING_UNKNOWN, WORKING_ACKED, WORKING_TOO_LATE, WORKING_DONE = range(4)


def nack_here(state: State, id_: JobId, delay_ms: int) -> bool:
    """NACK: counted, its leases void, queued at once or after a delay (B1.8)."""
    job = state.jobs.get(id_)
    if job is None or job.state is not JobState.ACTIVE or not job.retry_ms:
        return False
    if job.not_before > state.now_ms:
        return False  # never handed out: there is nothing to give back (S10)
    job.nacks = {**job.nacks, state.self_id: job.nacks.get(state.self_id, 0) + 1}
    state.counts.nacked += 1
    if delay_ms and not is_spent_out(job):
        _hold(state, job, delay_ms)
    else:
        _queue_at_once(state, job, was_nacked=True)
    return True


def _hold(state: State, job: Job, delay_ms: int) -> None:
    """Keep a job back; a lease of our own keeps the others off, a RETRY longer, should this node die (B1.8)."""
    job.covered = merge.maxima(job.covered, stamps(job))
    end = min(state.now_ms + delay_ms + job.retry_ms, job.expires_at)
    job.leases = {**job.leases, state.self_id: (next_stamp(state, job), end)}
    job.is_held = True
    job.ask_at = state.now_ms + delay_ms
    state.asks.pop(job.id, None)
    set_role(state, job, Role.DELAYED)
    record_facts(state, job)
    _note_order(state, job)
    tell_others(state, job, msg.Leased)
    book(state, job)


def enqueue_here(state: State, id_: JobId) -> bool:
    """ENQUEUE: an active job queued at once, leases and DELAY void; no NACK, no delivery (M9, M11)."""
    job = state.jobs.get(id_)
    if job is None or job.state is not JobState.ACTIVE or job.is_kept_out:
        return False
    job.not_before = min(job.not_before, state.now_ms)
    _queue_at_once(state, job)
    return True


def revive_here(state: State, id_: JobId) -> bool:
    """REVIVE: a dead letter back in its own queue at once (B8.7)."""
    job = state.jobs.get(id_)
    if job is None or job.is_done or not job.is_dead:
        return False
    if job.state is JobState.QUEUED:
        take_out(state, job, Event.UNQUEUE)
    if job.state is not JobState.ACTIVE:
        return False
    revive(state, job)
    _queue_at_once(state, job)
    return True


def _queue_at_once(state: State, job: Job, *, was_nacked: bool = False) -> None:
    job.is_held = False
    job.covered = merge.maxima(job.covered, stamps(job))
    job.ask_at = 0
    state.asks.pop(job.id, None)
    record_facts(state, job)
    _note_order(state, job)
    if is_paused_in(state, job.queue):
        tell_others(state, job, msg.Told)
        job.ask_at = state.now_ms + (job.retry_ms or PAUSED_RETRY_0_MS)
        book(state, job)
    elif may_queue(state, job):
        enqueue(state, job, was_nacked=was_nacked)
    else:
        book(state, job)


def _note_order(state: State, job: Job) -> None:
    """The hand-out that this is about may not be known here yet; `requeue` makes its lease void once it is."""
    orders, now = state.orders, state.now_ms
    while orders and next(iter(orders.values())) <= now:
        del orders[next(iter(orders))]
    orders.pop(job.id, None)
    orders[job.id] = now + state.limits.ask_wait_ms


def dequeue_here(state: State, id_: JobId) -> bool:
    """DEQUEUE: a job taken out of its queue; it comes back after RETRY (RETRY 0: only by ENQUEUE)."""
    job = state.jobs.get(id_)
    if job is None or job.state is not JobState.QUEUED:
        return False
    job.ask_at = state.now_ms + job.retry_ms if job.retry_ms else job.expires_at
    unqueue(state, job)
    return True


def working_here(state: State, id_: JobId) -> int:
    """WORKING: put the next delivery off by RETRY, in the first half of the job's life (B1.8)."""
    job = state.jobs.get(id_)
    if job is None:
        is_buried = id_ in state.tombstones or id_ in state.long_tombstones
        return WORKING_ACKED if is_buried else WORKING_UNKNOWN
    if job.is_done:
        return WORKING_ACKED
    if job.expires_at - state.now_ms < job.live_spec.ttl_ms // 2:
        return WORKING_TOO_LATE
    if job.retry_ms and job.state in (JobState.ACTIVE, JobState.QUEUED):
        _lease_again(state, job)
    return WORKING_DONE + job.retry_ms // 1000


def _lease_again(state: State, job: Job) -> None:
    end = state.now_ms + job.retry_ms
    job.leases = {**job.leases, state.self_id: (next_stamp(state, job), end)}
    job.is_held = False
    record_lease(state, job)
    state.asks.pop(job.id, None)
    if job.role is Role.DELAYED:
        set_role(state, job, Role.NONE)
    obey_lease(state, job)
    tell_others(state, job, msg.Leased)


def renew_here(state: State, id_: JobId) -> bool:
    """Renew the lease of a job that this node was the last to hand out; False if it isn't its to renew any more.

    Only a default RETRY is renewed, for the whole life of the job: who fixed a RETRY wants the job back after it.
    """
    job = state.jobs.get(id_)
    if job is None or job.state is not JobState.ACTIVE or job.role is not Role.DELIVERED:
        return False
    spec = job.live_spec
    if spec.retry_ms == state.limits.retry_default_ms(spec.ttl_ms):
        _lease_again(state, job)
    return True
