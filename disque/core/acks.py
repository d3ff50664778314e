"""ACKJOB, FASTACK, DELJOB, and the bus messages about the end of a job (B2)."""

from __future__ import annotations

from itertools import islice

from cluster.nodeid import NodeId
from disque.core import commands as cmd
from disque.core import messages as msg
from disque.core import outcomes
from disque.core.arrivals import thaw
from disque.core.copies import (
    answer_unknown,
    id_expiry,
    merge_claim,
    note_absence,
    others,
    set_ack,
)
from disque.core.delivery import REMOVED_TEXT, drop, end_wait, free, is_unused
from disque.core.ending import (
    bury,
    collect,
    dummy_answered,
    fail_add,
    finish,
    is_settled,
    learn_end,
    may_be_elsewhere,
    new_end,
    raise_reason,
    settle,
    short_life,
    wait_for_initiator,
)
from disque.core.job import DONE, Job, Reason
from disque.core.jobid import JobId, is_made_by, is_retried
from disque.core.jobqueue import place_of
from disque.core.listing import listed
from disque.core.ready import ClientId
from disque.core.state import (
    Inquiry,
    Mark,
    Purge,
    State,
    Tally,
    fail,
    gone_claim,
    peer_of,
    reply,
    send,
    wake,
)


def ack_jobs(state: State, client: ClientId, command: cmd.AckJob) -> None:
    """ACKJOB: `:n` jobs that were known here and not done before."""
    reason = Reason.ACKED
    reply(state, client, sum([_end(state, job, reason) for job in command.ids]))


def fast_ack_jobs(state: State, client: ClientId, command: cmd.FastAck) -> None:
    """FASTACK: as ACKJOB, under its own reason; one round of collection serves both (M4)."""
    reply(state, client, sum([_end(state, job, Reason.FAST_ACKED) for job in command.ids]))


def _end(state: State, id_: JobId, reason: Reason) -> bool:
    job = _known(state, id_)
    if job is None:
        if is_retried(id_):
            remember_unknown(state, id_, reason)
        return False
    if job.state is DONE:
        # One more ack of a dead letter makes no success of it.
        if job.reason is not Reason.DEAD_ACKED:
            raise_reason(state, job, reason)
        collect(state, job)
        return False
    finish(state, job, Reason.DEAD_ACKED if job.is_dead else reason)
    state.counts.acked += 1
    collect(state, job)
    return True


def _known(state: State, id_: JobId) -> Job | None:
    """For what ends a job a copy in quarantine counts as any (B2.8)."""
    return state.jobs.get(id_) or thaw(state, id_)


def remember_unknown(state: State, id_: JobId, reason: Reason) -> None:
    """An id we don't know may live elsewhere: a dummy looks for its holders (M14).

    At a node that is alone only if a machine that was forgotten may come back with a copy.
    """
    is_alone = state.view.size < 2 and not may_be_elsewhere(state.view)
    if is_alone or id_ in state.jobs or _is_buried(state, id_):
        return
    dummy = new_end(state, id_, reason, holders=(), told=(), expires_at=id_expiry(state, id_))
    collect(state, dummy)


def _is_buried(state: State, id_: JobId) -> bool:
    return id_ in state.tombstones or id_ in state.long_tombstones


def cancel_here(state: State, id_: JobId) -> bool:
    """CANCELJOB at one node: True if it held the job, not done (B9.1)."""
    job = _known(state, id_)
    if job is None:
        return False
    if job.is_done:
        raise_reason(state, job, Reason.CANCELLED)
        return False
    _cancel(state, job)
    return True


def _cancel(state: State, job: Job, *, is_ordered: bool = False) -> None:
    """Cancel a live copy; `is_ordered`: the other holders have the same order, and count what they account for."""
    wait = state.adding.get(job.id)
    if wait is not None:
        end_wait(state, wait)
        fail(state, wait.client, "NOREPL", REMOVED_TEXT)
    finish(state, job, Reason.CANCELLED)
    state.counts.cancelled += 1
    state.fired += 1
    if is_ordered and not is_settled(state, job):
        wait_for_initiator(state, job)
    else:
        collect(state, job)


def purge_here(
    state: State,
    name: bytes,
    node: NodeId,
    boot: int,
    seq: int,
    *,
    is_final: bool = False,
    asked: Inquiry | None = None,
) -> int:
    """QPURGE at one node, once for each order: how many jobs it accounted for (M19, B9.4).

    In bounded steps, the first one at once; a small store needs no other. `asked` is busy until the queued jobs are
    gone. `is_final`: an empty queue that nobody watches goes, too.
    """
    if node not in state.view.members or (boot, seq) <= state.purges_seen.get(node, (0, 0)):
        return 0
    if node != state.self_id and boot > peer_of(state, node).boot:
        return 0  # of a life that hasn't begun: the true one's orders would be old
    state.purges_seen[node] = (boot, seq)
    tally, queue = state.tallies.get(name, Tally()), state.queues.get(name)
    count = tally.delivered + tally.delayed + (0 if queue is None else len(queue))
    state.last_ctime = max(state.now_ms * 1_000_000, state.last_ctime)
    aside = [*reversed(state.quarantine)]
    purge_step(state, Purge(name, state.last_ctime, is_final, asked, aside))
    return count


_PURGE_STEP = 5_000  # jobs looked at at a time
_PURGE_CANCELS = 250  # of those, cancelled


def purge_step(state: State, purge: Purge) -> None:
    """One bounded step of a purge; who asked for it may be answered after any."""
    left = _purge_aside(state, purge, _PURGE_CANCELS)
    if left and purge.ids is None:
        left -= _purge_queued(state, purge, left)
        if left:
            purge.ids = listed(state.jobs) if _has_live(state, purge.queue) else []
    if left and purge.ids:
        _purge_others(state, purge, left)
        if not _has_live(state, purge.queue):
            purge.ids = []
    if purge.asked is not None:
        purge.asked.is_busy = purge.ids is None
    queue = state.queues.get(purge.queue) if purge.is_final else None
    if queue is not None and is_unused(state, queue):
        free(state, queue)
    if purge.ids is None or purge.position < len(purge.ids):
        wake(state, purge, state.now_ms + 1)


def _has_live(state: State, queue: bytes) -> bool:
    """True if there are copies of a queue's jobs here, ends left out."""
    tally = state.tallies.get(queue)
    return tally is not None and tally.copies > tally.done


def _purge_aside(state: State, purge: Purge, left: int) -> int:
    """Go on through what was in quarantine; how many may still be cancelled in this step, 0 until that is done."""
    for _ in range(min(_PURGE_STEP, len(purge.aside))):
        job = state.quarantine.get(purge.aside.pop())
        if job is not None and job.queue == purge.queue and thaw(state, job.id) is not None:
            _cancel(state, job, is_ordered=True)
            left -= 1
            if not left:
                break
    return 0 if purge.aside else left


def _purge_queued(state: State, purge: Purge, left: int) -> int:
    """Go on through the queue; fewer than `left` if that was its end."""
    queue = state.queues.get(purge.queue)
    jobs = [] if queue is None else list(islice(queue.jobs.starting_at(purge.place), left))
    if jobs:
        priority, ctime, id_ = place_of(jobs[-1])
        purge.place = (priority, ctime, JobId(id_ + b"\0"))  # right behind it
    for job in jobs:
        _purge_job(state, purge, job)
    return len(jobs)


def _purge_others(state: State, purge: Purge, left: int) -> None:
    """Go on through the ids that were here when the queue was empty, until so many more are cancelled."""
    assert purge.ids is not None, "the queue comes first"
    for id_ in purge.ids[purge.position : purge.position + _PURGE_STEP]:
        purge.position += 1
        job = state.jobs.get(id_)
        if job is not None and not job.is_done and job.queue == purge.queue:
            left -= _purge_job(state, purge, job)
            if not left:
                break


def _purge_job(state: State, purge: Purge, job: Job) -> bool:
    """Cancel a job, unless it was added at this node after the order came, in this life."""
    if purge.ctime < job.ctime <= state.last_ctime and is_made_by(job.id, state.self_id):
        return False
    _cancel(state, job, is_ordered=True)
    return True


def outcome_of(state: State, id_: JobId) -> int:
    """How a job ended, or that it hasn't, as this node can tell."""
    job = state.jobs.get(id_)
    if job is not None and not job.is_done:
        return outcomes.DEAD if job.is_dead else outcomes.PENDING
    grave = job or state.tombstones.get(id_) or state.long_tombstones.get(id_)
    if grave is None or grave.reason is None:
        return outcomes.EXPIRED if id_ in state.expired else outcomes.UNKNOWN
    return _OUTCOMES[grave.reason]


_OUTCOMES = {
    Reason.NOREPL: outcomes.CANCELLED,
    Reason.CANCELLED: outcomes.CANCELLED,
    Reason.FAST_ACKED: outcomes.ACKED,
    Reason.DEAD_ACKED: outcomes.DEAD,
    Reason.ACKED: outcomes.ACKED,
}


def delete_jobs(state: State, client: ClientId, command: cmd.DelJob) -> None:
    """DELJOB: drop the copies of this node alone; an end that others must still hear of stays (M21, S14)."""
    count = 0
    for id_ in command.ids:
        job = state.jobs.get(id_)
        if job is None or job.is_done:
            continue
        count += 1
        wait = state.adding.get(id_)
        if wait is not None and not wait.is_answered:
            fail_add(state, wait)
            fail(state, wait.client, "NOREPL", REMOVED_TEXT)
            continue
        if wait is not None:
            end_wait(state, wait)
        leave_copy(state, job)
    reply(state, client, count)


def leave_copy(state: State, job: Job) -> None:
    """Drop a live copy; the other holders hear once that it is gone here, and nobody dies of it (M21)."""
    to = others(state, job)
    note_absence(state, job)
    drop(state, job)
    if to:
        boot, clock, _ = gone_claim(state)
        send(state, to, msg.Unknown(job.id, boot, clock))


def on_set_ack(state: State, peer: NodeId, said: msg.SetAck) -> None:
    """A peer says that a job is done (B2.3, M6, M15)."""
    job = state.jobs.get(said.id)
    if job is None:
        _hear_of_unknown(state, peer, said)
        return
    was_done = job.is_done
    newcomers = learn_end(state, job, said)
    if job.is_dummy:
        dummy_answered(state, job, peer)  # it is a dummy, too
        if said.id not in state.jobs:
            return
    send(state, (peer,), got_ack(state, job))
    if is_settled(state, job):
        settle(state, job, but=peer)
        return
    _tell_newcomers(state, job, newcomers, peer)
    if not was_done:
        wait_for_initiator(state, job)


def _hear_of_unknown(state: State, peer: NodeId, said: msg.SetAck) -> None:
    grave = state.tombstones.get(said.id) or state.long_tombstones.get(said.id)
    if grave is not None:
        send(state, (peer,), msg.DelJob(said.id, grave.reason, grave.holders, grave.told))
    elif state.self_id in said.holders:
        expires_at = state.now_ms + said.expires_in
        entry = new_end(
            state, said.id, said.reason, holders=said.holders, told=said.told, expires_at=expires_at
        )
        send(state, (peer,), got_ack(state, entry))
        if is_settled(state, entry):
            settle(state, entry, but=peer)
        else:
            wait_for_initiator(state, entry)
    else:
        _keep_mark(state, said.id, said.reason)
        answer_unknown(state, peer, said.id)


def _keep_mark(state: State, id_: JobId, reason: Reason) -> None:
    mark = state.marks.get(id_)
    if mark is None:
        mark = state.marks[id_] = Mark(id_, reason)
        if len(state.marks) > state.limits.marks_max:
            mark_due(state, next(iter(state.marks.values())))
            state.counts.marks_evicted += 1
    mark.reason = max(mark.reason, reason)
    wake(state, mark, state.now_ms + short_life(state))


def mark_due(state: State, mark: Mark) -> None:
    """A mark has served its time."""
    state.agenda.cancel(mark)
    del state.marks[mark.id]


def got_ack(state: State, job: Job) -> msg.GotAck:
    """That this node has stored the end of a job, with its own holders (B2.3)."""
    said = set_ack(state, job)
    return msg.GotAck(said.id, said.reason, said.holders, said.told, said.expires_in)


def _tell_newcomers(state: State, job: Job, newcomers: tuple[NodeId, ...], peer: NodeId) -> None:
    """Holders that we only now heard of must hear of the end at once (B2.4)."""
    known = {*job.told, peer, state.self_id}
    to = [node for node in newcomers if node not in known]
    if to:
        send(state, to, set_ack(state, job))


def on_got_ack(state: State, peer: NodeId, said: msg.GotAck) -> None:
    """A peer has stored the end, and says which holders it knows."""
    job = state.jobs.get(said.id)
    if job is None:
        return
    was_done = job.is_done
    newcomers = learn_end(state, job, said)
    if job.is_dummy:
        dummy_answered(state, job, peer)
        return
    if is_settled(state, job):
        settle(state, job)
    else:
        _tell_newcomers(state, job, newcomers, peer)
        if not was_done:
            wait_for_initiator(state, job)


def on_del_job(state: State, peer: NodeId, said: msg.DelJob) -> None:
    """A peer has settled a job; we bury ours, unless we know holders that it didn't (B2.6)."""
    job = state.jobs.get(said.id)
    if job is None:
        return
    learn_end(state, job, said)
    if is_settled(state, job):
        bury(state, job)
    else:
        collect(state, job)


def on_unknown(state: State, peer: NodeId, said: msg.Unknown) -> None:
    """A peer has no copy: strike its claim; a dummy counts the answer (M14, M21)."""
    job = state.jobs.get(said.id)
    if job is None:
        return
    if job.is_done:
        if job.is_dummy:
            dummy_answered(state, job, peer)
        return
    merge_claim(state, job, peer, (said.boot, said.clock, False))
