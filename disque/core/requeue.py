"""Queueing again: who wants to asks first, and the answers of those who know better (B1, M8-M10, M22)."""

from __future__ import annotations

from collections.abc import Callable

from cluster.nodeid import NodeId
from disque.core import merge
from disque.core import messages as msg
from disque.core.copies import (
    absorb,
    answer_end,
    answer_mark,
    answer_unknown,
    facts_of,
    has_news_for,
    has_older_burials,
    others,
    own_word,
    record_facts,
    set_role,
    tell_others,
)
from disque.core.delivery import (
    book,
    due_at,
    enqueue,
    finish_add,
    is_paused_in,
    is_worked_on,
    may_queue,
    obey_lease,
    unqueue,
)
from disque.core.job import Job, JobState, Role
from disque.core.jobid import JobId
from disque.core.state import (
    Ask,
    State,
    Tie,
    rank,
    reach_deadline,
    reachable,
    salted,
    send,
    wake,
)

TIE_MS = 1_000  # a peer with a queued copy of its own hears again that it must go: after 1, 4, 16 s
TIE_TIMES_MAX = 4
PAUSED_RETRY_0_MS = 1_000  # an owner whose queue takes nothing looks again after this


def active_due(state: State, job: Job) -> None:
    """The time of an active copy has come (its expiry is the engine's business)."""
    now = state.now_ms
    if job.is_kept_out or now < due_at(job):
        book(state, job)
        return
    if job.is_held:
        job.is_held = False  # the DELAY of a NACK is over: our lease has served
        job.covered = merge.maxima(job.covered, {state.self_id: job.leases[state.self_id][0]})
        job.ask_at = 0
        if now < due_at(job):
            book(state, job)
            return
    if job.id in state.asks:
        _wait_on(state, job, state.asks[job.id])
    elif is_paused_in(state, job.queue):
        job.ask_at = now + (job.retry_ms or PAUSED_RETRY_0_MS)
        book(state, job)
    elif not job.retry_ms:
        enqueue(state, job)
    else:
        _ask(state, job)


def _ask(state: State, job: Job) -> None:
    """Ask the other holders before queueing, in salted order, a step apart (B1.2, B1.3, B1.9)."""
    knowing = _who_may_know(state, job)
    targets = reachable(state, knowing)
    if job.is_unsure and (at := _sure_at(state, knowing)) > state.now_ms:
        job.ask_at = min(at, job.expires_at)
        book(state, job)
        return
    if not targets:
        conclude(state, job)
        return
    limits = state.limits
    step = min(max(job.retry_ms // 20, limits.rank_step_min_ms), limits.rank_step_max_ms)
    turn = due_at(job)
    if turn != job.not_before:  # else DELAY ends at its origin: the others are due a RETRY later
        turn += rank(state, job.id, others(state, job)) * step
    if state.now_ms < turn:
        wake(state, job, min(turn, job.expires_at))
        return
    job.word_at = state.now_ms
    _put_question(state, job, targets, is_last=not job.is_unsure)


def _put_question(state: State, job: Job, targets: list[NodeId], *, is_last: bool) -> None:
    until = state.now_ms + state.limits.ask_wait_ms
    state.asks[job.id] = Ask(dict.fromkeys(targets), until, is_last)
    send(state, targets, msg.WillQueue(job.id, facts_of(state, job)))
    book(state, job)


def _wait_on(state: State, job: Job, ask: Ask) -> None:
    """Some haven't answered yet. After a restart they are asked twice: an answer may have gone to the life before."""
    silent = reachable(state, tuple(ask.pending))
    if state.now_ms < ask.deadline:
        book(state, job)
    elif silent and not ask.is_last:
        _put_question(state, job, silent, is_last=True)
    else:
        conclude(state, job)


def _who_may_know(state: State, job: Job) -> tuple[NodeId, ...]:
    """The other holders; after a restart without all of the log any member: who acked it may be no holder (B1.9)."""
    if job.is_unsure and state.since == state.boot:
        return tuple([node for node in state.view.members if node != state.self_id])
    return others(state, job)


def _sure_at(state: State, knowing: tuple[NodeId, ...]) -> int:
    """ms; when a copy from the log may be queued if nobody objects; looked at again then (B1.9).

    A node that was forgotten meanwhile hears of no end any more: what it had waits till it is met again (B2.8), or till
    somebody who may know can be asked.
    """
    if all([node in state.reached for node in knowing]):
        return state.now_ms
    if state.view.is_forgotten and not reachable(state, knowing):
        return state.now_ms + state.limits.ask_backoff_max_ms
    return max(state.now_ms, reach_deadline(state))


def conclude(state: State, job: Job) -> None:
    """Nobody who was asked knows better, or nobody answered in time: queue (B1.6)."""
    state.asks.pop(job.id, None)
    if may_queue(state, job) and not is_paused_in(state, job.queue):
        enqueue(state, job)
    else:
        book(state, job)


def _answered(state: State, job: Job, peer: NodeId) -> None:
    """One of those asked has nothing against it."""
    ask = state.asks.get(job.id)
    if ask is None or job.state is not JobState.ACTIVE:
        return
    ask.pending.pop(peer, None)
    if not ask.pending:
        conclude(state, job)


def live_copy(
    state: State,
    peer: NodeId,
    said: msg.WillQueue | msg.Queued | msg.Leased | msg.Told | msg.Have | msg.Keep,
) -> Job | None:
    """The copy that a peer's statement is about, facts merged; None if there is none, which the peer then hears."""
    job = state.jobs.get(said.id)
    if job is None or job.is_done:
        if not answer_end(state, peer, said.id) and not answer_mark(state, peer, said.id):
            answer_unknown(state, peer, said.id)
        return None
    if not job.retry_ms:
        return None  # at most once: its owner speaks by moves alone (M20)
    before = job.holders
    absorb(state, job, said.facts)
    if job.state is JobState.WAITING and is_worked_on(state, job):
        finish_add(state, job)
    if len(job.holders) > len(before):
        known = {*before, peer}
        newcomers = [node for node in job.holders if node not in known]
        send(state, newcomers, msg.Told(job.id, facts_of(state, job)))
    if job.id in state.orders:
        _void_unheard(state, job)
    obey_lease(state, job)
    return job


def _void_unheard(state: State, job: Job) -> None:
    """A NACK or ENQUEUE here was about a hand-out elsewhere that nobody told us of (B1.1): its lease is void, too."""
    now = state.now_ms
    unheard = {
        node: stamp
        for node, (stamp, end) in job.leases.items()
        if node != state.self_id and end > now and stamp > job.covered.get(node, -1)
    }
    is_here = job.state is JobState.QUEUED or job.is_held
    if now >= state.orders[job.id] or not is_here:
        # the order is over, or has served: who has the job now was given it after that
        del state.orders[job.id]
    elif unheard:
        del state.orders[job.id]
        job.covered = merge.maxima(job.covered, unheard)
        record_facts(state, job)
        tell_others(state, job, msg.Queued if job.state is JobState.QUEUED else msg.Told)


def on_will_queue(state: State, peer: NodeId, said: msg.WillQueue) -> None:
    """A peer wants to queue a job: answer the first that holds (B1.4)."""
    job = live_copy(state, peer, said)
    if job is None:
        return
    if job.lease_end() > state.now_ms:
        _say(state, peer, job, msg.Leased)
    elif job.state is JobState.WAITING:
        say_waiting(state, peer, job)
    elif job.state is JobState.QUEUED:
        _say(state, peer, job, msg.Queued)
        rival = said.facts.queued_at
        if rival is not None and rival not in (state.self_id, peer) and rival in job.holders:
            # two have it queued and haven't heard of each other (M10)
            _say(state, rival, job, msg.Queued)
    elif job.id in state.asks and salted(job.id, (state.self_id, peer))[0] == state.self_id:
        # Both ask at once: of two HAVEs that cross both would queue. The first in salted order goes on alone.
        send(state, (peer,), msg.Waiting(job.id, state.limits.ask_wait_ms))
    else:
        # The asker queues, or is told better, within its wait: asking as well would only cross it.
        job.ask_at = max(job.ask_at, state.now_ms + state.limits.ask_wait_ms)
        book(state, job)
        _say(state, peer, job, msg.Have)


def _say(
    state: State,
    peer: NodeId,
    job: Job,
    kind: Callable[..., msg.Leased | msg.Queued | msg.Have | msg.Told],
) -> None:
    send(state, (peer,), kind(job.id, facts_of(state, job)))


def say_waiting(state: State, peer: NodeId, job: Job) -> None:
    """Its ADDJOB isn't answered yet: nobody may queue it, or rely on it, before (B1.4, B5.4)."""
    deadline = state.adding[job.id].deadline
    rest = job.retry_ms if deadline is None else min(max(0, deadline - state.now_ms), job.retry_ms)
    send(state, (peer,), msg.Waiting(job.id, rest))


def on_queued(state: State, peer: NodeId, said: msg.Queued | msg.Told) -> None:
    """A peer has a job in its queue: a lease here beats it, of two queued copies one stays (B1.7, M10)."""
    job = live_copy(state, peer, said)
    if job is None:
        return
    if job.lease_end() > state.now_ms:
        if has_news_for(state, peer, job, said.facts):
            _say(state, peer, job, msg.Leased)
        return
    if job.state is JobState.WAITING:
        say_waiting(state, peer, job)
        return
    if has_older_burials(job, said.facts):
        _say(state, peer, job, msg.Told)  # it lies in a queue that it has left: no tie (B8.4)
        return
    if job.state is JobState.QUEUED:
        if salted(job.id, (state.self_id, peer))[0] == state.self_id:
            _stay_queued(state, peer, job)
            return
        unqueue(state, job)
        _say(state, peer, job, msg.Told)
    elif has_news_for(state, peer, job, said.facts):
        _say(state, peer, job, msg.Told)
    _leave_to(state, job, peer)


def _stay_queued(state: State, peer: NodeId, job: Job) -> None:
    """Of two queued copies the peer's must go: tell it till it says that it is gone, a few times at most."""
    _say(state, peer, job, msg.Queued)
    if (job.id, peer) not in state.ties:
        tie = state.ties[job.id, peer] = Tie(job, peer)
        wake(state, tie, state.now_ms + TIE_MS)


def tie_due(state: State, tie: Tie) -> None:
    """The peer hasn't said that its queued copy is gone."""
    job = tie.job
    is_open = state.jobs.get(job.id) is job and job.state is JobState.QUEUED
    if not is_open or tie.times_said >= TIE_TIMES_MAX or tie.peer not in state.up:
        # a peer that can't be reached hears of it by the walk that follows
        del state.ties[job.id, tie.peer]
        return
    _say(state, tie.peer, job, msg.Queued)
    wake(state, tie, state.now_ms + (TIE_MS << 2 * tie.times_said))
    tie.times_said += 1


def _end_tie(state: State, job_id: JobId, peer: NodeId) -> None:
    tie = state.ties.pop((job_id, peer), None)
    if tie is not None:
        state.agenda.cancel(tie)


def _leave_to(state: State, job: Job, peer: NodeId) -> None:
    """The job is queued at a peer, which accounts for it: ask again after RETRY, ever more rarely (B1.5)."""
    set_role(state, job, Role.NONE)
    was_asked = state.asks.pop(job.id, None) is not None
    if job.queued_at != peer:
        job.ask_round = 0
    wait = min(
        job.retry_ms << min(job.ask_round, 30), max(job.retry_ms, state.limits.ask_backoff_max_ms)
    )
    job.queued_at = peer
    job.ask_at = state.now_ms + wait
    job.is_unsure = False
    if was_asked:
        job.ask_round += 1
    book(state, job)


def on_leased(state: State, peer: NodeId, said: msg.Leased) -> None:
    """A peer handed the job out, or knows who did; it is due again at the lease's end (B1.5)."""
    job = live_copy(state, peer, said)
    if job is None:
        return
    if job.lease_end() > state.now_ms:
        state.asks.pop(job.id, None)
        job.is_unsure = False
        job.ask_round = 0
        book(state, job)
    else:
        _answered(state, job, peer)
    _answer_news(state, peer, job, said.facts)


def on_have(state: State, peer: NodeId, said: msg.Have) -> None:
    """A peer has a copy and nothing against our queueing it."""
    job = live_copy(state, peer, said)
    if job is not None:
        _answered(state, job, peer)


def on_waiting(state: State, peer: NodeId, said: msg.Waiting) -> None:
    """The ADDJOB of this job still waits at the peer: not in the queue before it is answered (B1.5, B7.1)."""
    job = state.jobs.get(said.id)
    if job is None or job.is_done or not job.retry_ms:
        return
    state.asks.pop(job.id, None)
    wait = min(max(said.wait_ms, state.limits.rank_step_min_ms), job.retry_ms)
    job.ask_at = state.now_ms + wait
    if job.state is JobState.QUEUED:
        unqueue(state, job)
    elif job.state is JobState.ACTIVE:
        book(state, job)


def on_told(state: State, peer: NodeId, said: msg.Told) -> None:
    """Facts said again: a queued copy is treated as if it had just been queued (B4.3, B4.5)."""
    if said.facts.is_queued:
        on_queued(state, peer, said)
    else:
        _end_tie(state, said.id, peer)
        told = live_copy(state, peer, said)
        if told is not None:
            if not said.facts.due_in:  # else it waits there for the end of its DELAY
                not_queued_at(state, told, peer)
            _answer_news(state, peer, told, said.facts)
    job = state.jobs.get(said.id)
    is_live = job is not None and not job.is_done and job.retry_ms > 0
    has_claim = job is not None and state.self_id in job.claims
    if job is not None and is_live and has_claim and state.self_id not in said.facts.claims:
        # the sender hasn't heard that we have a copy (M3)
        send(state, (peer,), own_word(state, job))


def _answer_news(state: State, peer: NodeId, job: Job, facts: msg.Facts) -> None:
    """Answer facts with facts only if they are news for the sender (M22)."""
    if has_news_for(state, peer, job, facts):
        _say(state, peer, job, msg.Told)


def no_copy_at(state: State, job: Job, peer: NodeId) -> None:
    """A peer has no copy, so none in its queue: nothing against queueing (B1.4)."""
    not_queued_at(state, job, peer)
    _answered(state, job, peer)


def not_queued_at(state: State, job: Job, peer: NodeId) -> None:
    """A peer refuses, never got, or no longer has in its queue what we took for queued there: ask at once (B1.5)."""
    if job.state is JobState.ACTIVE and job.retry_ms and job.queued_at == peer:
        job.queued_at = None
        job.ask_at = state.now_ms
        book(state, job)
