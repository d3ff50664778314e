"""Flushing: all jobs and queues are forgotten at once, however many there were; what that leaves to do comes in steps.

The pools are put aside whole, so nothing is counted any more; who waits is told, timers are cancelled and memory is
given back a few thousand things at a time. Until then a timer of what was put aside may still fire: `is_trash` tells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from disque.core.delivery import REMOVED_TEXT
from disque.core.job import Job
from disque.core.jobqueue import JobQueue
from disque.core.passes import Trash
from disque.core.ready import NilArray
from disque.core.sleeper import Sleeper
from disque.core.state import (
    Absence,
    AddWait,
    ByState,
    GetWait,
    Mark,
    Repair,
    State,
    Tally,
    Tie,
    Tombstone,
    fail,
    record,
    reply,
    wake,
)


def flush_all(state: State) -> None:
    """Forget everything about jobs; who waits is told."""
    record(state, "flush")
    for peer in state.peers.values():
        state.agenda.cancel(peer)
        peer.moves.clear()  # not what was taken in: a source that asks now mustn't hear no (B6.5)
    if state.leaver is not None:
        leaver = state.leaver
        leaver.ids, leaver.kept, leaver.asked, leaver.carried = [], {}, {}, {}
    for name in POOLS:
        pool = getattr(state, name)
        state.trash.pools.append(pool)
        setattr(state, name, type(pool)())
    state.by_state = ByState()
    state.body_bytes = state.paged_bytes = state.spec_bytes = state.name_bytes = 0
    state.total = Tally()
    trash_due(state, state.trash)


# Pools of the state; who waits comes first, and what refers to jobs before the jobs
POOLS = (
    "getting", "adding", "adding_of", "tallies", "expired", "offered", "hungry", "quarantine", "asks", "orders",
    "dummy_answers", "under_replicated", "repairs", "ties", "absences", "tombstones", "long_tombstones", "marks",
    "queues", "undone", "dummies", "spent", "jobs",
)  # fmt: skip
_TRASH_STEP = 2_000


def trash_due(state: State, trash: Trash) -> None:
    """One bounded step of what flush_all left to do."""
    left = _TRASH_STEP
    while trash.pools and left:
        pool = trash.pools[0]
        while pool and left:
            left -= 1
            _, item = pool.popitem()
            if isinstance(item, Sleeper):
                state.agenda.cancel(item)
            if isinstance(item, GetWait):
                reply(state, item.client, NilArray())
            elif isinstance(item, AddWait):
                fail(state, item.client, "NOREPL", REMOVED_TEXT)
        if not pool:
            del trash.pools[0]
    if trash.pools:
        wake(state, trash, state.now_ms + 1)


def take_apart(state: State) -> Iterator[None]:
    """The same for a state that nobody needs any more, to its end; yields between steps."""
    flush_all(state)
    while state.trash.pools:
        yield
        trash_due(state, state.trash)


def inherit(state: State, trash: Trash) -> None:
    """Go on with what another engine of this node left to do."""
    state.trash.pools += trash.pools
    trash_due(state, state.trash)


def is_trash(state: State, item: Any) -> bool:
    """True for what was forgotten all at once, and is still booked."""
    find = _PLACES.get(type(item))
    return find is not None and item not in find(state, item)


# Where what can be forgotten all at once is found as long as it counts
_PLACES: Mapping[type, Callable[[State, Any], tuple[Any, ...]]] = {
    Job: lambda state, job: (state.jobs.get(job.id),),
    GetWait: lambda state, wait: (state.getting.get(wait.client),),
    AddWait: lambda state, wait: (state.adding.get(wait.job.id),),
    JobQueue: lambda state, queue: (state.queues.get(queue.name),),
    Absence: lambda state, absence: (state.absences.get(absence.id),),
    Mark: lambda state, mark: (state.marks.get(mark.id),),
    Repair: lambda state, repair: (state.repairs.get(repair.job.id),),
    Tie: lambda state, tie: (state.ties.get((tie.job.id, tie.peer)),),
    Tombstone: lambda state, stone: (
        state.tombstones.get(stone.id),
        state.long_tombstones.get(stone.id),
    ),
}
