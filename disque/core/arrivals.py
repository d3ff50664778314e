"""Arrivals: a copy comes to this node, sent by another one or out of quarantine, and is one of its own from then on."""

from __future__ import annotations

from disque.core import merge
from disque.core import messages as msg
from disque.core.copies import (
    claim_copy,
    end_absence,
    insert,
    merge_facts,
    record_copy,
    told_expiry,
)
from disque.core.delivery import book
from disque.core.job import ACTIVE, Job
from disque.core.jobid import JobId, ttl_digits
from disque.core.sharing import intern_nodes, intern_spec
from disque.core.state import State, Stored


def store_copy(state: State, message: msg.ReplJob | msg.YourJobs, *, ask_at: int) -> Job:
    """Keep a copy that came from another node, this node among its holders and claims (M2, M3)."""
    facts, like = message.facts, state.stored
    if (
        like is not None
        and like.facts is facts
        and like.said is message.spec
        and message.id.endswith(like.ttl_digits)
        and not state.absences
    ):
        job = _copy_like(state, message, like, ask_at)
    else:
        job = _first_copy(state, message, ask_at)
    record_copy(state, job)
    book(state, job)
    return job


def _copy_like(state: State, message: msg.ReplJob | msg.YourJobs, like: Stored, ask_at: int) -> Job:
    job = Job(
        id=message.id,
        spec=like.spec,
        ctime=message.ctime,
        body=message.body,
        state=ACTIVE,
        expires_at=state.now_ms + like.expires_in,
        holders=like.holders,
        claims=like.claims,
        not_before=state.now_ms + like.facts.due_in,
        ask_at=ask_at,
        word_at=state.now_ms,
        was_queued=True,
    )
    insert(state, job)
    return job


def _first_copy(state: State, message: msg.ReplJob | msg.YourJobs, ask_at: int) -> Job:
    facts = message.facts
    is_usual = not state.absences
    holders = facts.holders
    if state.self_id not in holders:
        holders = merge.union(holders, (state.self_id,))
    job = Job(
        id=message.id,
        spec=intern_spec(state, message.spec),
        ctime=message.ctime,
        body=message.body,
        state=ACTIVE,
        expires_at=told_expiry(state, message.id, facts.expires_in),
        not_before=state.now_ms + facts.due_in,
        holders=intern_nodes(state, end_absence(state, message.id, holders)),
        ask_at=ask_at,
        was_queued=True,
        word_at=state.now_ms,
    )
    insert(state, job)
    merge_facts(state, job, facts)
    claim_copy(state, job)
    has_history = facts.dispatches or facts.nacks or facts.leases or facts.covered or facts.burials
    if is_usual and not has_history and job.spec is not None:
        state.stored = Stored(
            facts,
            message.spec,
            job.spec,
            job.holders,
            job.claims,
            job.expires_at - state.now_ms,
            ttl_digits(job.id),
        )
    return job


def thaw(state: State, id_: JobId) -> Job | None:
    """A quarantined copy counts again as a live one of this node; None if there is none (B2.8)."""
    job = state.quarantine.pop(id_, None)
    if job is None or id_ in state.jobs:
        return None
    job.holders = intern_nodes(state, merge.union(job.holders, (state.self_id,)))
    insert(state, job)
    claim_copy(state, job)
    record_copy(state, job)
    if job.live_spec.replicate > 1:
        state.short[job.id] = None
    book(state, job)
    return job
