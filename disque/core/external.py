"""ADDJOB at a node that keeps no copy itself, because it leaves or its memory is tight: peers hold the job.

At least once: as many peers as asked for store it, one of them gets it into its queue. At most once: one numbered move,
and the client is answered after *yes* (B6.9). Reference 6.4; other than there a lost hand-over costs a RETRY, no more.
"""

from __future__ import annotations

from disque.core import messages as msg
from disque.core.copies import facts_of, insert, note_absence, others, record_copy, remove
from disque.core.delivery import end_wait, start
from disque.core.moves import can_move_to, open_move
from disque.core.ready import Status
from disque.core.sharing import intern_nodes
from disque.core.state import (
    AddWait,
    State,
    fail,
    record,
    reply,
    salted,
    send,
)

NO_OWN_COPY = (
    "Not enough reachable nodes for the requested replication level, since I'm unable to hold a copy of the message "
    "for the following reason: "
)
LEAVING_REASON = "I'm leaving the cluster"
MEMORY_REASON = "I'm out of memory"


def hand_over(state: State, wait: AddWait) -> None:
    """Enough peers have copies: one queues the job, the client gets its id, nothing stays here."""
    job = wait.job
    end_wait(state, wait)
    reply(state, wait.client, Status(job.id))
    state.counts.added += 1
    state.counts.replication.add(state.now_ms - wait.started_at)
    holding = [
        n for n in others(state, job) if n in state.up_set and job.claims.get(n, (0, 0, False))[2]
    ]
    body = job.body
    assert body is not None, f"{job.id!r} has no body to give"
    if holding:
        node = salted(job.id, holding)[0]
        send(
            state,
            (node,),
            msg.YourJobs(job.id, job.live_spec, job.ctime, body, facts_of(state, job)),
        )
    if job.holders != wait.first_holders:
        note_absence(state, job)  # those who were asked first never heard of the later ones
    remove(state, job)
    record(state, "gone", job.id)


def move_away(state: State, wait: AddWait) -> bool:
    """RETRY 0: open a move to a peer that may take it; False if there is none left to ask."""
    job = wait.job
    for node in salted(job.id, [n for n in state.up if n not in wait.refused]):
        if can_move_to(state, node, job.queue):
            wait.refused[node] = None  # asked once, whatever it answers
            open_move(state, job, node)
            return True
    return False


def add_once(state: State, wait: AddWait) -> bool:
    """RETRY 0 at a node that keeps nothing: register, and move it away; False if nobody can take it."""
    job = wait.job
    job.holders = intern_nodes(state, (state.self_id,))
    insert(state, job)
    record_copy(state, job)
    if move_away(state, wait):
        return True
    remove(state, job)
    record(state, "gone", job.id)
    return False


def moved(state: State, wait: AddWait) -> None:
    """The peer has taken a RETRY 0 job whose client still waits."""
    end_wait(state, wait)
    state.counts.added += 1
    reply(state, wait.client, Status(wait.job.id))


def move_refused(state: State, wait: AddWait) -> None:
    """The peer said no, so the job is ours and undelivered: try another, or give up for certain."""
    if move_away(state, wait):
        return
    job = wait.job
    end_wait(state, wait)
    if not state.view.is_leaving:  # memory is only tight: the job may stay
        state.counts.added += 1
        reply(state, wait.client, Status(job.id))
        start(state, job)
        return
    fail(state, wait.client, "NOREPL", NO_OWN_COPY + reason_of(state))
    remove(state, job)
    record(state, "gone", job.id)


def move_in_doubt(state: State, wait: AddWait, text: str) -> None:
    """Time is up and the peer is silent: the outcome is unknown; the job is delivered there or nowhere (B6.9)."""
    end_wait(state, wait)
    fail(state, wait.client, "NOREPL", text)


def reason_of(state: State) -> str:
    """Why this node keeps no copy."""
    return LEAVING_REASON if state.view.is_leaving else MEMORY_REASON
