"""Whispers: statements that a peer might make at the strangest moment, so that every message meets every state.

They are true, or do no harm if they aren't: facts are those that the receiver itself has, an end is one that an
operator might have ordered (a cancel, told to nobody yet). Nothing here claims storage that isn't there.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from disque.core import messages as msg
from disque.core import wire
from disque.core.copies import facts_of
from disque.core.job import Job, JobSpec, JobState, Paged, Reason
from disque.core.jobid import JobId
from tests.sim import adapter

if TYPE_CHECKING:
    from disque.core.state import State
    from tests.sim.node import Node
    from tests.sim.world import World

_NO_FACTS_MS = 1000
_SPEC = JobSpec(
    queue=b"q0",
    retry_ms=0,
    replicate=1,
    is_explicit=True,
    delay_ms=0,
    ttl_ms=60_000,
    priority=4,
    max_deliveries=0,
    dead_queue=b"dead",
    headers={},
)
_NOT_WHILE_WAITING = ("YourJobs", "Queued", "Leased")  # they say that enough copies lived (B7.3)


def whisper(world: World, target: Node, dice: random.Random, job: JobId | None = None) -> None:
    """Let a peer of `target` say one strange thing, about this job or any; states of copies are met equally often."""
    state = adapter.state_of(target)
    speakers = [
        node
        for node in world.nodes
        if node is not target and node.is_alive and node.id in state.view.members
    ]
    job = job or _some_job(world, state, dice)
    if not speakers or job is None:
        return
    speaker = dice.choice(speakers)
    kind = dice.choice(list(_MAKERS))
    # A slow node hears it later, when it may know other things of the job
    target.turn_with(lambda: _say(world, speaker, target, kind, job))


def _say(world: World, speaker: Node, target: Node, kind: str, job: JobId) -> None:
    state = adapter.state_of(target)
    message = _MAKERS[kind](state, speaker, job)
    if isinstance(message, msg.WITH_BODY):
        message = _with_body(target, message)
    if message is None or (job in state.adding and kind in _NOT_WHILE_WAITING):
        return
    (message,) = wire.decode(wire.encode([message]))
    if isinstance(message, msg.SetAck | msg.GotAck | msg.DelJob | msg.KeepDummy):
        world.watch.whispered_end(target, job)
        world.history.whispered_end(target, job.decode())
    world.watch.trace("whisper", f"{speaker.name}>{target.name}", (job,), (message,))
    target.broker.hear(speaker.id, speaker.identity.boot, message)


def _some_job(world: World, state: State, dice: random.Random) -> JobId | None:
    by_kind: dict[str, list[bytes]] = {}
    for job in adapter.known_ids(state):
        by_kind.setdefault(adapter.snapshot(state, job).kind, []).append(job)
    strangers = [
        job for job in world.watch.ledger.by_id if adapter.snapshot(state, job).kind == "none"
    ]
    if strangers:
        by_kind["none"] = strangers
    if not by_kind:
        return None
    return JobId(dice.choice(by_kind[dice.choice(list(by_kind))]))


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
        if entry is None or (entry.is_dummy and not _knows_the_end(speaker, job)):
            return None  # a dummy counts who has one, too: that must be true
        fields = (job, Reason.CANCELLED, entry.holders, ())
        if kind is msg.DelJob:
            return msg.DelJob(*fields)
        ended: msg.Message = kind(*fields, max(1, entry.expires_at - state.now_ms))
        return ended

    return make


def _keep_dummy(state: State, speaker: Node, job: JobId) -> msg.Message | None:
    if not _knows_the_end(speaker, job):
        return None  # it says that the speaker has stored the end
    return msg.KeepDummy(job, Reason.CANCELLED)


def _knows_the_end(node: Node, job: JobId) -> bool:
    return adapter.snapshot(adapter.state_of(node), job).is_ended


def _copy(kind: type[Any]) -> Callable[[State, Node, JobId], msg.Message | None]:
    def make(state: State, speaker: Node, job: JobId) -> msg.Message | None:
        entry = state.jobs.get(job)
        if entry is None or entry.spec is None or entry.is_done:
            return None  # it would make a copy out of nothing
        return _copy_of(kind, state, entry)

    return make


def _copy_of(kind: type[Any], state: State, entry: Job) -> msg.Message:
    body, facts = entry.body or b"", facts_of(state, entry)
    copy: msg.Message = kind(entry.id, entry.live_spec, entry.ctime, body, facts)
    return copy


def _with_body(target: Node, message: msg.ReplJob | msg.YourJobs | msg.Move) -> msg.Message | None:
    """The same with a body that the receiver's log alone has; None if the log can't give it."""
    if not isinstance(message.body, Paged):
        return message
    body = adapter.body_of(target, message.id)
    return None if body is None else attrs.evolve(message, body=body)


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


def _kept(state: State, speaker: Node, job: JobId) -> msg.Message | None:
    if state.view.is_leaving:
        return None  # a promise must be true where somebody counts on it
    return msg.Kept(job, speaker.identity.boot, 0)


def _move(state: State, speaker: Node, job: JobId) -> msg.Message | None:
    """A number of a boot long gone, for a job that is here already: it must not live twice."""
    entry = state.jobs.get(job)
    if entry is None or entry.state is JobState.MOVING:
        return None  # it would make a job out of nothing
    numbers = adapter.state_of(speaker)
    spec = entry.spec or _SPEC
    return msg.Move(1, state.boot, numbers.now_ms, 1, job, spec, 1, b"", 1000)


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
    "Kept": _kept,
    "Move": _move,
}
