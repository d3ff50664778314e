"""Queues in which nothing happens any more are forgotten, some at a time, till they are used again (reference 5.4)."""

from __future__ import annotations

from itertools import islice

import attrs

from disque.core import memory
from disque.core.delivery import free, is_unused
from disque.core.jobqueue import JobQueue
from disque.core.listing import listed
from disque.core.sleeper import Sleeper
from disque.core.state import State, wake


@attrs.define(eq=False)
class QueueSweep(Sleeper):
    """Frees idle queues, and what others no longer need."""

    names: list[bytes] = attrs.Factory(list)  # still to be looked at


def queue_sweep_due(state: State, sweep: QueueSweep) -> None:
    """One bounded step of a look at all queues, or the next look."""
    limits, now = state.limits, state.now_ms
    if not sweep.names:
        sweep.names = listed(state.queues)
        _forget_expired(state)
    for name in sweep.names[-limits.queue_sweep_count :]:
        queue = state.queues.get(name)
        if queue is not None and _is_idle(state, queue):
            free(state, queue)
        elif queue is not None:
            queue.shrink()
    del sweep.names[-limits.queue_sweep_count :]
    wake(state, sweep, now + (limits.queue_slice_ms if sweep.names else limits.queue_sweep_ms))


def _forget_expired(state: State) -> None:
    """One bounded step: WAITJOB needn't know for ever whose time was over."""
    until = state.now_ms - state.limits.expired_kept_ms
    for id_, expired_at in list(islice(state.expired.items(), state.limits.expired_step)):
        if expired_at > until:
            break
        del state.expired[id_]


def _is_idle(state: State, queue: JobQueue) -> bool:
    now = state.now_ms
    if not is_unused(state, queue):
        return False
    exchange = queue.exchange
    if exchange is not None and any(until > now for _, until in exchange.wanted.values()):
        return False
    return now - queue.accessed_at >= memory.queue_idle_ms(state)
