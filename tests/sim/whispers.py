"""Whispers: statements that a peer might make at the strangest moment, so that every message meets every state.

They are true, or do no harm if they aren't: facts are those that the receiver itself has, an end is one that an
operator might have ordered (a cancel, told to nobody yet). Nothing here claims storage that isn't there.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from disque.core import messages as msg
from disque.core import wire
from disque.core.copies import facts_of
from disque.core.job import Job, Reason
from disque.core.jobid import JobId
from tests.sim import adapter

if TYPE_CHECKING:
    from disque.core.state import State
    from tests.sim.node import Node
    from tests.sim.world import World

_NO_FACTS_MS = 1000
_NOT_WHILE_WAITING = ("YourJobs", "Queued", "Leased")  # they say that enough copies lived (B7.3)


def whisper(world: World, target: Node, dice: random.Random) -> None:
    """Let a peer of `target` say one strange thing about one job that `target` knows, or has never met."""
    state = adapter.state_of(target)
    peers = [node for node in world.nodes if node is not target and node.id in state.view.members]
    speakers = [node for node in peers if node.is_alive]
    known = list(adapter.known_ids(state))
    if not speakers or not known:
        return
    speaker = dice.choice(speakers)
    job = JobId(dice.choice(known))
    kind = dice.choice(list(_MAKERS))
    message = _MAKERS[kind](state, speaker, job)
    if message is None or (job in state.adding and kind in _NOT_WHILE_WAITING):
        return
    (message,) = wire.decode(wire.encode([message]))
    target.turn_with(
        lambda: target.broker.engine.receive(speaker.id, speaker.identity.boot, message)
    )
    world.watch.trace("whisper", f"{speaker.name}>{target.name}", (job,), (message,))


def _facts(state: State, speaker: Node, job: JobId) -> msg.Facts:
    """What the receiver knows itself; for a job that is over or unknown there, next to nothing."""
    entry = state.jobs.get(job)
    if entry is not None and not entry.is_done:
        return facts_of(state, entry)
    return msg.Facts(holders=(speaker.id,), expires_in=_NO_FACTS_MS)


def _about(kind: type[Any]) -> Callable[[State, Node, JobId], msg.Message]:
    return lambda state, speaker, job: kind(job, _facts(state, speaker, job))


def _end(kind: type[Any]) -> Callable[[State, Node, JobId], msg.Message | None]:
    def make(state: State, speaker: Node, job: JobId) -> msg.Message | None:
        entry = state.jobs.get(job)
        if entry is None:
            return None
        fields = (job, Reason.CANCELLED, entry.holders, ())
        if kind is msg.DelJob:
            return msg.DelJob(*fields)
        ended: msg.Message = kind(*fields, max(1, entry.expires_at - state.now_ms))
        return ended

    return make


def _keep_dummy(state: State, speaker: Node, job: JobId) -> msg.Message:
    return msg.KeepDummy(job, Reason.CANCELLED)


def _copy(kind: type[Any]) -> Callable[[State, Node, JobId], msg.Message | None]:
    def make(state: State, speaker: Node, job: JobId) -> msg.Message | None:
        entry = state.jobs.get(job)
        if entry is None or entry.spec is None or entry.is_done:
            return None  # it would make a copy out of nothing
        return _copy_of(kind, state, entry)

    return make


def _copy_of(kind: type[Any], state: State, entry: Job) -> msg.Message:
    copy: msg.Message = kind(entry.id, entry.live_spec, entry.body or b"", facts_of(state, entry))
    return copy


def _got_job(state: State, speaker: Node, job: JobId) -> msg.Message | None:
    there = adapter.state_of(speaker).jobs.get(job)
    if there is None or there.is_done:
        return None  # a claim of storage must be true
    boot, clock, _ = there.claims.get(speaker.id, (speaker.identity.boot, 0, True))
    return msg.GotJob(job, boot, clock)


def _unknown(state: State, speaker: Node, job: JobId) -> msg.Message | None:
    here = state.jobs.get(job)
    if job in adapter.state_of(speaker).jobs or (here is not None and here.is_dummy):
        return None  # a dummy counts such answers: they must be true now and come by the front door
    return msg.Unknown(job, speaker.identity.boot, 0)


_Maker: TypeAlias = "Callable[[State, Node, JobId], msg.Message | None]"
_MAKERS: Mapping[str, _Maker] = {
    "ReplJob": _copy(msg.ReplJob),
    "YourJobs": _copy(msg.YourJobs),
    "GotJob": _got_job,
    "Refused": lambda state, speaker, job: msg.Refused(job, is_queue_only=True),
    "WillQueue": _about(msg.WillQueue),
    "Have": _about(msg.Have),
    "Unknown": _unknown,
    "Waiting": lambda state, speaker, job: msg.Waiting(job, 300),
    "Queued": _about(msg.Queued),
    "Leased": _about(msg.Leased),
    "Told": _about(msg.Told),
    "Keep": _about(msg.Keep),
    "SetAck": _end(msg.SetAck),
    "GotAck": _end(msg.GotAck),
    "DelJob": _end(msg.DelJob),
    "KeepDummy": _keep_dummy,
}
