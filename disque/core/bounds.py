"""Bounds: what a client may not add to the state, however politely it asks.

Only clients are refused: what peers tell are facts, which a node can't decline without harm to the cluster. Each
refusal is counted for INFO.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from disque.core import commands as cmd
from disque.core.state import State


def _add(state: State, command: cmd.AddJob) -> str | None:
    if command.dead_queue is not None and (text := _name(state, command.dead_queue)) is not None:
        return text
    return None if command.queue in state.queues else _queue(state, command.queue)


def _get(state: State, command: cmd.GetJob) -> str | None:
    if command.is_admitted:
        return None
    queues, names = state.queues, command.queues
    if len(names) > state.limits.get_queues_max:
        return f"GETJOB takes at most {state.limits.get_queues_max} queues"
    new = 0
    for name in names:
        if name not in queues:
            new += 1
            if (text := _name(state, name)) is not None:
                return text
    if new and (text := _room(state, new)) is not None:
        return text
    if command.is_nohang or len(state.getting) + len(state.inquiry_of) < state.limits.blocked_max:
        return None
    if any([queue.jobs for name in names if (queue := queues.get(name)) is not None]):
        return None
    return _blocked(state)


def _wait(state: State, _command: cmd.WaitJob) -> str | None:
    is_full = len(state.getting) + len(state.inquiry_of) >= state.limits.blocked_max
    return _blocked(state) if is_full else None


def _of_queue(state: State, command: cmd.Pause) -> str | None:
    return _queue(state, command.queue)


def _attend(state: State, command: cmd.Attend) -> str | None:
    """Subscriptions count as clients that wait, whether or not they wait at the moment."""
    if command.change < 0:
        return None
    most = state.limits.blocked_max
    if max(state.topics.attended, len(state.getting) + len(state.inquiry_of)) >= most:
        state.counts.blocked_refused += 1
        return f"too many subscriptions of queues, the limit is {most} (blocked-clients-max)"
    return _queue(state, command.queue)


def _queue(state: State, name: bytes) -> str | None:
    if name in state.queues:
        return None
    return _name(state, name) or _room(state, 1)


def _name(state: State, name: bytes) -> str | None:
    most = state.limits.queue_name_bytes_max
    if len(name) <= most:
        return None
    state.counts.queue_names_refused += 1
    return f"queue name of {len(name)} bytes, the limit is {most}"


def _room(state: State, count: int) -> str | None:
    most = state.limits.queues_max
    if len(state.queues) + count <= most:
        return None
    state.counts.queues_refused += 1
    return f"too many queues, the limit is {most}"


def _blocked(state: State) -> str:
    state.counts.blocked_refused += 1
    return f"too many blocked clients, the limit is {state.limits.blocked_max}"


# By the kind of a command: why it must not be carried out now, None if it may be.
CHECKS: Mapping[type, Callable[[State, Any], str | None]] = {
    cmd.AddJob: _add,
    cmd.GetJob: _get,
    cmd.WaitJob: _wait,
    cmd.Pause: _of_queue,
    cmd.Attend: _attend,
}
