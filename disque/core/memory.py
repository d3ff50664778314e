"""Accounted memory: what jobs and what is kept about them is charged, and what may go when it gets tight (M23).

Charges are averages, calibrated against the resident size of a process; they move with every job, as Disque's do.
"""

from __future__ import annotations

import enum
from itertools import islice
from typing import TypeVar

from disque.core.copies import remove
from disque.core.job import PAGE_MIN_BYTES
from disque.core.jobid import JobId
from disque.core.state import Absence, Mark, State, Tombstone, record

BASE_BYTES = 1 << 20  # a node without jobs
JOB_BYTES = 600  # a live copy without its body; its names and headers come on top, see copies
LEASE_BYTES = 350  # of a copy that this node has handed out
END_BYTES = 500  # a done entry, dummies included
TOMBSTONE_BYTES = 400
MARK_BYTES = 300
QUEUE_BYTES = 400  # besides its name
WAIT_BYTES = 500  # a blocked client, besides the names it waits for
ASKED_BYTES = 100  # an id that a WAITJOB waits for
SUBSCRIPTION_BYTES = 300  # of a topic, besides its name
FULL_PERCENT = 95  # of maxmemory, see Pressure
HIGH_PERCENT = 75
PAGE_PERCENT = 60  # of maxmemory; above it, with a log, bodies go to disk, before peers are asked
PAGE_MORE_PERCENT = 68  # above it those that came when there was room follow
UNWRITTEN_PERCENT = 25  # of maxmemory; so much may come at a time, and leave when it is written
_EVICT_STEP = 1_000  # things evicted at a time

_Memory = TypeVar("_Memory", Tombstone, Mark, Absence)


class Pressure(enum.IntEnum):
    """How tight memory is: over 75 % of maxmemory, over 95 % (reference 6.5)."""

    NONE = 0
    HIGH = 1  # new jobs are held by peers
    FULL = 2  # evict, then refuse


def used_memory(state: State) -> int:
    """Accounted bytes."""
    ends = len(state.undone) + len(state.dummies)
    graves = len(state.tombstones) + len(state.long_tombstones)
    return (
        BASE_BYTES
        + (len(state.jobs) - ends) * JOB_BYTES
        + max(state.total.delivered - len(state.spent), 0) * LEASE_BYTES
        + ends * END_BYTES
        + state.body_bytes
        + state.spec_bytes
        + state.name_bytes
        + state.topics.name_bytes
        + state.posts.used_bytes
        + graves * TOMBSTONE_BYTES
        + (len(state.marks) + len(state.absences) + len(state.expired)) * MARK_BYTES
        + len(state.queues) * QUEUE_BYTES
        + (len(state.getting) + len(state.adding) + len(state.inquiries)) * WAIT_BYTES
        + state.asked_ids * ASKED_BYTES
        + state.topics.size * SUBSCRIPTION_BYTES
        + state.shell_bytes
    )


def pressure(state: State) -> Pressure:
    """The present level; maxmemory 0 is no limit."""
    if is_above(state, FULL_PERCENT):
        return Pressure.FULL
    return Pressure.HIGH if is_above(state, HIGH_PERCENT) else Pressure.NONE


def is_above(state: State, percent: int) -> bool:
    """True if so much of maxmemory is used by what the log's next write can't take out of it."""
    most = state.limits.maxmemory_bytes
    if not most:
        return False
    used = used_memory(state)
    line = _share_of(most, percent)
    if used > line and state.unwritten_bytes and percent > PAGE_PERCENT:
        used -= min(state.unwritten_bytes, _share_of(most, UNWRITTEN_PERCENT))
    return used > line


def _share_of(most: int, percent: int) -> int:
    """The same as most * percent // 100, without a product that compiled code must make an object of."""
    return most // 100 * percent + most % 100 * percent // 100


def is_out_of_memory(state: State) -> bool:
    """Evict what may go, some at a time; True if memory is still over 95 % (the OOM error)."""
    if not is_above(state, FULL_PERCENT):
        return False
    if state.limits.is_eviction_on:
        _evict(state)
    return is_above(state, FULL_PERCENT)


def _evict(state: State) -> None:
    """What WAITJOB alone asks for, short tombstones, marks, and RETRY 0 jobs that were dispatched.

    Never an ack that others must still hear.
    """
    for id_ in list(islice(state.expired, _EVICT_STEP)):
        if pressure(state) < Pressure.FULL:
            return
        del state.expired[id_]
    _evict_from(state, state.tombstones)
    _evict_from(state, state.marks)
    _evict_from(state, state.absences)
    for job in list(islice(state.spent.values(), _EVICT_STEP)):
        if pressure(state) < Pressure.FULL:
            return
        remove(state, job)
        record(state, "gone", job.id)


def _evict_from(state: State, pool: dict[JobId, _Memory]) -> None:
    for each in list(islice(pool.values(), _EVICT_STEP)):
        if pressure(state) < Pressure.FULL:
            return
        state.agenda.cancel(each)
        del pool[each.id]


def is_worth_paging(state: State, body: bytes) -> bool:
    """True if memory is filling, and this body's handle is smaller than it."""
    return len(body) >= PAGE_MIN_BYTES and is_paging(state)


def is_paging(state: State) -> bool:
    """True above the level at which bodies leave memory."""
    return is_above(state, PAGE_PERCENT)


def queue_idle_ms(state: State) -> int:
    """How long an empty, unwatched queue is kept: shorter when memory is tight (reference 5.4)."""
    longest = state.limits.queue_idle_max_ms
    return (longest, min(longest, 10_000), min(longest, 2_000))[pressure(state)]
