"""CLUSTER LEAVING: a node hands over all that somebody may still need, then it is safe to stop (B5).

It starts a node timeout after the command. A copy is dropped only after enough nodes that aren't leaving have promised,
to that very question, to keep theirs. An end that others must still hear is carried on by a peer and kept here, too: a
node that stays after all must know each end in whose T it is, or a late copy would live again.
"""

from __future__ import annotations

from cluster.nodeid import NodeId
from disque.core import messages as msg
from disque.core.acks import got_ack, leave_copy
from disque.core.copies import (
    add_holders,
    answer_end,
    facts_of,
    id_expiry,
    own_word,
    remove,
    set_ack,
    tell_others,
)
from disque.core.ending import collect, finish, new_end
from disque.core.federation import give_copy
from disque.core.job import Job, JobState, Role
from disque.core.listing import listed
from disque.core.moves import can_move_to, move_out, open_move
from disque.core.passes import Leaver
from disque.core.requeue import live_copy, say_waiting
from disque.core.state import State, is_counted, record, salted, send, wake
from disque.core.willing import is_willing

_PASS_MS = 100  # between two passes
_STEP_MS = 20  # between two steps of a pass
_STEP_JOBS = 100  # jobs looked at in a step: some ms, and as many where the copies arrive
_AGAIN_MS = 2_000  # the same question about a job isn't asked sooner


def leaving_view_changed(state: State) -> None:
    """The flag was set, or cleared."""
    if not state.view.is_leaving:
        if state.leaver is not None:
            state.agenda.cancel(state.leaver)
            state.leaver = None
        return
    if state.leaver is None:
        state.leaver = Leaver(state.now_ms + state.view.node_timeout_ms)
        wake(state, state.leaver, state.leaver.begins_at)


def is_safe_to_stop(state: State) -> bool:
    """True if this node leaves and nobody needs anything from it.

    RETRY 0 jobs in doubt don't block, but a move that a reachable peer has yet to answer does (B5.5), and so do copies
    in quarantine, of which nobody has said yet whether they are needed (B2.8).
    """
    if state.leaver is None or state.now_ms < state.leaver.begins_at or state.quarantine:
        return False
    if any([peer.moves and peer.id in state.up_set for peer in state.peers.values()]):
        return False
    return len(state.jobs) == state.by_state.moving + len(state.leaver.carried)


def leaver_due(state: State, leaver: Leaver) -> None:
    """One bounded step of a pass over all jobs."""
    if not leaver.ids:
        leaver.ids = listed(state.jobs)
        if len(leaver.ids) > _STEP_JOBS:
            state.fired = state.limits.wakeups_a_turn  # to list a million takes a turn
            wake(state, leaver, state.now_ms)
            return
    for _ in range(min(_STEP_JOBS, len(leaver.ids))):
        job = state.jobs.get(leaver.ids.pop())
        if job is not None and leaver.asked.get(job.id, -_AGAIN_MS) + _AGAIN_MS <= state.now_ms:
            _hand_over(state, leaver, job)
    wake(state, leaver, state.now_ms + (_STEP_MS if leaver.ids else _PASS_MS))


def _hand_over(state: State, leaver: Leaver, job: Job) -> None:
    if job.is_done:
        _hand_over_end(state, leaver, job)
    elif job.state in (JobState.WAITING, JobState.MOVING):
        return
    elif job.retry_ms:
        _hand_over_copy(state, leaver, job)
    else:
        _hand_over_once(state, job)


def _heirs(state: State, queue: bytes) -> list[NodeId]:
    return [node for node in state.up if is_willing(state, node, queue)]


def _hand_over_copy(state: State, leaver: Leaver, job: Job) -> None:
    """At-least-once: enough copies elsewhere, then the place in the queue, then promises, then drop (B5.2-B5.4)."""
    heirs = _heirs(state, job.queue)
    holding = [n for n in heirs if n in job.claims and is_counted(state, n, job.claims[n])]
    needed = max(1, min(job.live_spec.replicate, len(heirs)))
    leaver.asked[job.id] = state.now_ms
    if len(holding) < needed:
        _copy_to_heirs(state, job, [n for n in heirs if n not in holding], needed - len(holding))
        return
    if job.state is JobState.QUEUED:
        give_copy(state, job, salted(job.id, holding)[0])
        return
    if job.role is Role.DELIVERED:
        tell_others(state, job, msg.Leased)
    send(state, holding, msg.Keep(job.id, facts_of(state, job)))


def _copy_to_heirs(state: State, job: Job, candidates: list[NodeId], count: int) -> None:
    targets = tuple(salted(job.id, candidates)[:count])
    if not targets:
        return
    body = job.body
    assert body is not None, f"{job.id!r} is live without a body"
    add_holders(state, job, targets)
    send(state, targets, msg.ReplJob(job.id, job.live_spec, job.ctime, body, facts_of(state, job)))


def on_kept(state: State, peer: NodeId, said: msg.Kept) -> None:
    """A node that isn't leaving promises to keep its copy; with enough promises ours may go (B5.4)."""
    leaver, job = state.leaver, state.jobs.get(said.id)
    if leaver is None or job is None or job.is_done or job.state is not JobState.ACTIVE:
        return
    member = state.view.members[peer]
    # the boot is that of its claim: a copy that came through a restart is promised as well
    is_present = said.boot <= member.boot and is_counted(state, peer, (said.boot, said.clock, True))
    if member.is_leaving or not is_present or state.now_ms < leaver.begins_at:
        return
    promised = leaver.kept.setdefault(job.id, {})
    promised[peer] = None
    heirs = _heirs(state, job.queue)
    needed = max(1, min(job.live_spec.replicate, len(heirs)))
    if sum([node in promised for node in heirs]) >= needed:
        del leaver.kept[job.id]
        leave_copy(state, job)


def _hand_over_once(state: State, job: Job) -> None:
    """At-most-once: what wasn't delivered moves; what was is of no use to anybody (B5.5)."""
    if job.is_kept_out:
        remove(state, job)
        record(state, "gone", job.id)
        return
    for node in salted(job.id, _heirs(state, job.queue)):
        if can_move_to(state, node, job.queue):
            if job.state is JobState.QUEUED:
                move_out(state, job, node)
            else:
                open_move(state, job, node)
            return


def _hand_over_end(state: State, leaver: Leaver, job: Job) -> None:
    """An end that others must still hear goes on at another node, which becomes one of its holders (B5.6)."""
    heirs = _heirs(state, b"")
    if leaver.carried.get(job.id) in heirs:
        return
    leaver.carried.pop(job.id, None)
    told = [] if job.is_dummy else [node for node in heirs if node in job.told]
    if told:
        leaver.carried[job.id] = told[0]
        return
    if not heirs:
        return
    leaver.asked[job.id] = state.now_ms
    heir = salted(job.id, heirs)[0]
    if job.is_dummy:
        assert job.reason is not None
        send(state, (heir,), msg.KeepDummy(job.id, job.reason))
    else:
        add_holders(state, job, (heir,))
        send(state, (heir,), set_ack(state, job))


def end_was_taken(state: State, peer: NodeId, job: Job) -> None:
    """A peer has stored the end of a dummy that this leaving node handed over (B5.6)."""
    leaver = state.leaver
    if leaver is None or job.id not in state.dummies or state.view.members[peer].is_leaving:
        return
    if leaver.asked.get(job.id) is not None and state.now_ms >= leaver.begins_at:
        leaver.carried[job.id] = peer


# At the other nodes


def on_keep(state: State, peer: NodeId, said: msg.Keep) -> None:
    """A leaving peer wants a promise that our copy stays (B5.4)."""
    job = live_copy(state, peer, said)
    if job is None:
        return
    if state.view.is_leaving:
        send(state, (peer,), msg.Refused(said.id, is_queue_only=False))
    elif job.state is JobState.WAITING:
        say_waiting(state, peer, job)
    else:
        said_own = own_word(state, job)
        send(state, (peer,), msg.Kept(said.id, said_own.boot, said_own.clock))


def on_keep_dummy(state: State, peer: NodeId, said: msg.KeepDummy) -> None:
    """A leaving peer hands over an ack whose holders nobody knows (B5.6)."""
    if answer_end(state, peer, said.id):
        return
    job = state.jobs.get(said.id)
    if job is None:
        expires_at = id_expiry(state, said.id)
        job = new_end(state, said.id, said.reason, holders=(), told=(peer,), expires_at=expires_at)
    else:
        finish(state, job, said.reason)
    send(state, (peer,), got_ack(state, job))
    collect(state, job)
