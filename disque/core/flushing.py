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
from disque.core.setaside import put_all_aside
from disque.core.sleeper import Sleeper
from disque.core.state import (
    Absence,
    AddWait,
    GetWait,
    Mark,
    Repair,
    State,
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
    put_all_aside(state)
    trash_due(state, state.trash)


_TRASH_STEP = 2_000


def trash_due(state: State, trash: Trash) -> None:
    """One bounded step of what flush_all left to do."""
    left = _TRASH_STEP
    while trash.pools and left > 0:
        pool = trash.pools[0]
        while pool and left > 0:
            left -= 1
            _, item = pool.popitem()
            if isinstance(item, Sleeper):
                state.agenda.cancel(item)
            if isinstance(item, GetWait):
                reply(state, item.client, NilArray())
            elif isinstance(item, AddWait):
                fail(state, item.client, "NOREPL", REMOVED_TEXT)
            elif isinstance(item, list):  # a page of a queue
                left -= len(item)
            elif isinstance(item, JobQueue):
                if pages := item.jobs.take_pages():
                    trash.pools.append(pages)
                left -= len(item)
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
