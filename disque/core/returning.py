"""A node that was forgotten comes back under a new id; its copies wait until the cluster has spoken (B2.8).

Forgotten is final for an id, and what was acked meanwhile no longer waits for it. So each quarantined copy is asked
for: done elsewhere, it goes; held elsewhere, this node becomes a holder again; unknown to all members in a round begun
two node timeouts after the return, it lives again.
"""

from __future__ import annotations

from collections.abc import Iterator

from cluster.nodeid import NodeId
from cluster.view import ClusterView
from disque.core import messages as msg
from disque.core.arrivals import thaw
from disque.core.copies import add_holders, facts_of, remove, take_out
from disque.core.delivery import REMOVED_TEXT, end_wait
from disque.core.ending import record_end
from disque.core.inquiries import members, open_inquiry
from disque.core.job import Event, Job, JobState, Role
from disque.core.jobid import JobId
from disque.core.listing import drained
from disque.core.passes import Returning
from disque.core.sharing import intern_nodes
from disque.core.state import Inquiry, State, fail, record, send, wake

RETURNED = 12  # its kind among the questions of `asking`
_BATCH_IDS = 500
_AGAIN_MS = 1_000
_STEP_JOBS = 1_000
UNKNOWN_THERE, DONE_THERE, HELD_THERE = range(3)  # what a member says of an id


def come_back(state: State, view: ClusterView) -> Iterator[None]:
    """Take the new id of `view` on; at-most-once copies go, the others wait in quarantine.

    Yields between steps; then clients may go, or something be evicted, and nothing else happens.
    """
    old, new = state.self_id, view.self_id
    for at, job in enumerate(drained(state.jobs.values())):
        if at and at % _STEP_JOBS == 0:
            yield
        if state.jobs.get(job.id) is not job:
            continue
        wait = state.adding.get(job.id)
        if wait is not None:
            end_wait(state, wait)
            fail(state, wait.client, "NOREPL", REMOVED_TEXT)
        if job.is_done:
            _rename_end(state, job, old, new)
        else:
            _put_aside(state, job, old)
    for peer in state.peers.values():
        state.agenda.cancel(peer)
        if peer.walk is not None:
            state.agenda.cancel(peer.walk)
    state.peers.clear()
    state.self_id = new
    state.own_nodes = ()
    state.mould = state.stored = state.own_claims = state.own_dispatch = None
    state.returning = Returning(state.now_ms)
    wake(state, state.returning, state.now_ms + _AGAIN_MS)


def _rename_end(state: State, job: Job, old: NodeId, new: NodeId) -> None:
    if job.holders:
        job.holders = intern_nodes(state, {*job.holders, new} - {old})
    job.told = intern_nodes(state, {*job.told, new})
    record_end(state, job)


def restore_quarantine(state: State) -> Iterator[None]:
    """Copies from the log that were made under another id of this node wait, too, until the cluster has spoken.

    Yields between steps.
    """
    own = state.self_id
    for at, job in enumerate(drained(state.jobs.values())):
        if at % _STEP_JOBS == 0:
            yield
        if job.is_done:
            if own not in job.told:
                job.told = intern_nodes(state, {*job.told, own})
                if job.holders:
                    job.holders = intern_nodes(state, {*job.holders, own})
        elif own not in job.holders:
            _put_aside(state, job, own)
    if state.quarantine:
        state.returning = Returning(state.now_ms)
        wake(state, state.returning, state.now_ms + _AGAIN_MS)


def _put_aside(state: State, job: Job, old: NodeId) -> None:
    body = job.body
    if job.state is JobState.QUEUED:
        take_out(state, job, Event.UNQUEUE)
    remove(state, job)
    if not job.retry_ms or job.expires_at <= state.now_ms:
        record(state, "gone", job.id)
        return
    job.body, job.state, job.role = body, JobState.ACTIVE, Role.NONE
    job.holders = tuple([node for node in job.holders if node != old])
    job.claims = {}
    job.is_held = False
    job.was_queued = True
    job.ask_at = 0
    state.quarantine[job.id] = job


def _discard(state: State, id_: JobId) -> None:
    if state.quarantine.pop(id_, None) is not None:
        record(state, "gone", id_)


def is_silent_about(state: State, message: msg.Message) -> bool:
    """Before a message is handled: what it says may thaw a copy or end it; True if it must not be answered (B2.8)."""
    if isinstance(message, msg.SetAck | msg.GotAck | msg.ReplJob | msg.YourJobs):
        thaw(state, message.id)
        return False
    if isinstance(message, msg.DelJob):
        _discard(state, message.id)
        return False
    return isinstance(message, msg.WillQueue | msg.Queued | msg.Leased | msg.Told | msg.Keep) and (
        message.id in state.quarantine
    )


def returning_due(state: State, returning: Returning) -> None:
    """Ask all members about the next batch; a round over, wait for the next."""
    if not state.quarantine:
        state.returning = None
        return
    now = state.now_ms
    if not members(state):
        wake(state, returning, now + _AGAIN_MS)
        return
    if not returning.ids:
        returning.ids = list(state.quarantine)
        returning.round_at = now
    batch = tuple(returning.ids[-_BATCH_IDS:])
    del returning.ids[-_BATCH_IDS:]
    deadline = now + state.limits.ask_cluster_ms
    shares = dict.fromkeys(members(state), batch)
    open_inquiry(state, None, RETURNED, shares=shares, deadline=deadline, ids=batch)


def finish_returned(state: State, inquiry: Inquiry) -> None:
    """All members have spoken about a batch, or time is up."""
    returning = state.returning
    rows = [row for row in inquiry.answers.values() if len(row) == len(inquiry.ids)]
    for at, id_ in enumerate(inquiry.ids):
        said = [row[at] for row in rows]
        if DONE_THERE in said or _is_over(state, id_):
            _discard(state, id_)
        elif HELD_THERE in said or (not inquiry.silent and _is_late_round(state)):
            job = thaw(state, id_)
            if job is not None:
                to = [node for node in job.holders if node != state.self_id]
                send(state, to, msg.Told(job.id, facts_of(state, job)))
    if returning is not None:
        wait = 1 if returning.ids else _AGAIN_MS
        wake(state, returning, state.now_ms + wait)


def _is_over(state: State, id_: JobId) -> bool:
    job = state.quarantine.get(id_)
    return job is not None and job.expires_at <= state.now_ms


def _is_late_round(state: State) -> bool:
    """True in a round begun two node timeouts after the return: what was on its way has arrived."""
    returning = state.returning
    if returning is None:
        return False
    return returning.round_at >= returning.since + 2 * state.view.node_timeout_ms


def answer_returned(state: State, peer: NodeId, said: msg.Question) -> tuple[int, ...]:
    """A node that came back asks about its copies; it becomes a holder, in the log, of those that live here."""
    codes: list[int] = []
    for id_ in said.ids:
        job = state.jobs.get(id_)
        if job is None:
            is_buried = (
                id_ in state.tombstones or id_ in state.long_tombstones or id_ in state.marks
            )
            codes.append(DONE_THERE if is_buried else UNKNOWN_THERE)
        elif job.is_done:
            codes.append(DONE_THERE)
        elif job.retry_ms:
            add_holders(state, job, (peer,))
            codes.append(HELD_THERE)
        else:
            codes.append(UNKNOWN_THERE)
    return tuple(codes)
