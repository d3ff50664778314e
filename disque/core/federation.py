"""Jobs travel to where somebody waits for them (Disque: queue.c needJobsForQueue; reference 5.5-5.7).

A node whose queue runs dry with clients waiting asks: sources that sent jobs lately often, everybody rarely. Who has
nothing remembers where clients wait and gives the next job at once, so that no consumer waits beside a job.
"""

from __future__ import annotations

from collections.abc import Sequence

from cluster.nodeid import NodeId
from disque.core import messages as msg
from disque.core.arrivals import store_copy
from disque.core.chores import for_each
from disque.core.copies import (
    absorb,
    add_holders,
    answer_end,
    answer_mark,
    answer_unknown,
    facts_of,
    own_word,
    take_out,
)
from disque.core.delivery import (
    book,
    count_import,
    finish_add,
    is_paused_in,
    is_worked_on,
    next_job,
    obey_lease,
    queue_of,
    start,
)
from disque.core.job import Event, Job, JobState
from disque.core.jobqueue import Exchange, JobQueue
from disque.core.moves import can_move_to, move_out
from disque.core.ready import ClientId
from disque.core.sleeper import UNBOOKED
from disque.core.state import State, is_name, send, wake


def feed(state: State) -> None:
    """Ask for jobs of the queues that ran dry while the last input was handled."""
    while state.hungry:
        name, has_waiting = state.hungry.popitem()
        queue = state.queues.get(name)
        if queue is not None and not queue.jobs:
            _need_jobs(state, queue, has_waiting=has_waiting)


def queue_due(state: State, queue: JobQueue) -> None:
    """The time to ask again, or to give what was asked for."""
    if queue.blocked and not queue.jobs:
        _need_jobs(state, queue, has_waiting=True)
    if queue.is_wanted and queue.jobs:
        state.offered[queue.name] = None


def _rate(state: State, queue: JobQueue) -> int:
    limits = state.limits
    return queue.import_rate(
        state.now_ms, window_ms=limits.import_window_ms, divisor_min_ms=limits.import_divisor_min_ms
    )


def _need_jobs(state: State, queue: JobQueue, *, has_waiting: bool) -> None:
    now, limits = state.now_ms, state.limits
    if not state.up:
        return  # who comes is told what is waited for
    rate = _rate(state, queue)
    if state.view.is_leaving or queue.is_paused_out or (not has_waiting and not rate):
        return
    exchange = queue.open_exchange()
    for node in [n for n, at in exchange.responders.items() if now - at > limits.responder_ms]:
        del exchange.responders[node]
    sources = list(exchange.responders)
    wanted = rate // len(sources) if sources else limits.needjobs_count_min
    wanted = min(max(wanted, limits.needjobs_count_min), limits.needjobs_count_max)
    has_blocked = bool(queue.blocked)
    is_unknown = has_blocked and now >= max(exchange.want_until, _next_want(state, exchange))
    is_time = now >= _next_broadcast(state, queue, exchange)
    if is_time or is_unknown:
        if not is_time:
            # Polled until now, or waited for less long: peers don't remember that.
            exchange.broadcast_round = 0
        wait_ms = _longest_wait(state, queue)
        if has_blocked:
            exchange.want_at, exchange.want_until = now, now + (wait_ms or limits.wanted_ms)
        exchange.broadcast_at = now
        exchange.broadcast_round += 1
        send(state, state.up, msg.NeedJobs(queue.name, 1, has_blocked, wait_ms))
    if sources and (not has_waiting or now >= _next_adhoc(state, exchange)):
        exchange.adhoc_at = now
        exchange.adhoc_round += 1
        wait_ms = _longest_wait(state, queue)
        send(state, sources, msg.NeedJobs(queue.name, wanted, has_blocked, wait_ms))
    if has_blocked:
        again = _next_broadcast(state, queue, exchange)
        again = min(again, max(exchange.want_until, _next_want(state, exchange)))
        wake(state, queue, min(again, _next_adhoc(state, exchange)) if sources else again)


_WAITS_LOOKED_AT = 100


def _longest_wait(state: State, queue: JobQueue) -> int:
    """ms for which clients will still wait for this queue, 0: for ever; of a crowd it isn't looked up."""
    if len(queue.blocked) > _WAITS_LOOKED_AT:
        return 0
    ends = [state.getting[ClientId(client)].wake_at for client in queue.blocked]
    return 0 if UNBOOKED in ends else max(1, max(ends, default=0) - state.now_ms)


def _next_want(state: State, exchange: Exchange) -> int:
    """Clients that come and go within ms don't make a broadcast each."""
    return exchange.want_at + state.limits.needjobs_adhoc_first_ms


def _next_broadcast(state: State, queue: JobQueue, exchange: Exchange) -> int:
    limits = state.limits
    if exchange.broadcast_at is None:
        return 0
    exponent = min(max(exchange.broadcast_round - 1, 0), 10)
    if queue.blocked:
        delay = limits.needjobs_broadcast_first_ms << exponent
        return exchange.broadcast_at + min(delay, limits.needjobs_broadcast_max_ms)
    # A poller gets what it asks for only while it asks, so it may ask more often.
    return exchange.broadcast_at + min(
        limits.needjobs_poll_first_ms << exponent, limits.needjobs_poll_max_ms
    )


def _next_adhoc(state: State, exchange: Exchange) -> int:
    limits = state.limits
    if exchange.adhoc_at is None:
        return 0
    delay = limits.needjobs_adhoc_first_ms << min(max(exchange.adhoc_round - 1, 0), 10)
    return exchange.adhoc_at + min(delay, limits.needjobs_adhoc_max_ms)


def ask_newcomers(state: State, nodes: Sequence[NodeId]) -> None:
    """Nodes that just became reachable haven't heard what is waited for here."""
    if not state.getting:
        return

    def ask(state: State, name: bytes) -> None:
        queue = state.queues.get(name)
        if queue is not None and queue.blocked and not queue.jobs and not queue.is_paused_out:
            send(state, nodes, msg.NeedJobs(name, 1, True, _longest_wait(state, queue)))
            if queue.wake_at == UNBOOKED:
                wake(state, queue, state.now_ms + state.limits.needjobs_broadcast_first_ms)

    for_each(state, state.queues, ask, key=(ask_newcomers, *nodes))


def on_need_jobs(state: State, peer: NodeId, said: msg.NeedJobs) -> None:
    """Give what we have, at most half of a short queue; remember the rest if clients wait there (reference 5.7)."""
    count = min(max(said.count, 1), state.limits.needjobs_count_max)
    # A want is no fact: beyond the limits of queues it isn't remembered
    may_make = said.has_waiting and len(state.queues) < state.limits.queues_max
    may_make = may_make and is_name(state, said.queue)
    queue = queue_of(state, said.queue) if may_make else state.queues.get(said.queue)
    if queue is None:
        return
    exchange = queue.open_exchange()
    exchange.wanted.pop(peer, None)
    given = 0
    if queue.jobs and not queue.is_paused_out:
        share = count if len(queue) >= 2 * count else max(len(queue) // 2, 1)
        if _rate(state, queue):
            # We import them ourselves: a job for who waits, nothing for a stock.
            share = 1 if said.has_waiting else 0
        given = _give(state, queue, peer, share)
    if given < count and said.has_waiting:
        remembered_ms = min(said.wait_ms or state.limits.wanted_ms, state.limits.wanted_ms)
        exchange.wanted[peer] = (count - given, state.now_ms + remembered_ms)
        if queue.jobs:
            _offer_later(state, queue)


def _offer_later(state: State, queue: JobQueue) -> None:
    """We import jobs of this queue ourselves: look again once that has stopped."""
    at = queue.open_exchange().import_start + state.limits.import_window_ms + 1
    if queue.wake_at == UNBOOKED or queue.wake_at > at:
        wake(state, queue, at)


def offer(state: State) -> None:
    """Give to peers that asked in vain what has been queued since."""
    while state.offered:
        name, _ = state.offered.popitem()
        queue = state.queues.get(name)
        if queue is None or queue.blocked or queue.is_paused_out:
            continue
        is_importing = _rate(state, queue) > 0
        for peer in list(queue.open_exchange().wanted):
            _offer_to(state, queue, peer, most=1 if is_importing else len(queue))
        if is_importing and queue.is_wanted and queue.jobs:
            _offer_later(state, queue)


def _offer_to(state: State, queue: JobQueue, peer: NodeId, *, most: int) -> None:
    wanted = queue.open_exchange().wanted
    count, until = wanted.pop(peer)
    if until <= state.now_ms or peer not in state.up_set:
        return
    left = count - _give(state, queue, peer, min(count, most))
    if left:
        wanted[peer] = (left, until)


def _give(state: State, queue: JobQueue, peer: NodeId, count: int) -> int:
    """Hand over up to `count` jobs from the head; RETRY 0 jobs move, of others we stay a holder."""
    if peer not in state.up_set or state.view.members[peer].is_leaving:
        return 0
    given = 0
    while given < count and queue.jobs:
        job = next_job(state, queue)
        if job is None:
            break
        if job.retry_ms:
            give_copy(state, job, peer)
        elif can_move_to(state, peer, queue.name):
            move_out(state, job, peer)
        else:
            break
        queue.jobs_out += 1
        given += 1
    if given:
        queue.accessed_at = state.now_ms
    return given


def give_copy(state: State, job: Job, peer: NodeId) -> None:
    """Hand a queued job's place over to a peer; this node stays a holder."""
    take_out(state, job, Event.UNQUEUE)
    add_holders(state, job, (peer,))
    job.queued_at = peer
    job.ask_round = 0
    job.ask_at = state.now_ms + job.retry_ms
    body = job.body
    assert body is not None, f"{job.id!r} has no body to give"
    send(state, (peer,), msg.YourJobs(job.id, job.live_spec, job.ctime, body, facts_of(state, job)))
    book(state, job)


def on_your_jobs(state: State, peer: NodeId, said: msg.YourJobs) -> None:
    """Queue a job that another node hands over; a job that is over here is over (W-3)."""
    if answer_end(state, peer, said.id) or answer_mark(state, peer, said.id):
        return
    if not said.spec.retry_ms or not said.facts.expires_in:
        answer_unknown(state, peer, said.id)
        return
    if state.view.is_leaving or is_paused_in(state, said.spec.queue):
        send(state, (peer,), msg.Refused(said.id, not state.view.is_leaving))
        return
    count_import(state, peer, said.spec.queue)
    job = state.jobs.get(said.id)
    if job is None:
        job = store_copy(state, said, ask_at=0)
    elif said.spec != job.spec or said.ctime != job.ctime:
        state.counts.spec_conflicts += 1
        return
    else:
        absorb(state, job, said.facts)
        if job.state is JobState.WAITING:
            if not is_worked_on(state, job):
                # A place in a queue is no delivery (B7.3): the peer's copy waits, as after a WILLQUEUE.
                send(state, (peer,), msg.Waiting(job.id, job.retry_ms))
                return
            finish_add(state, job)
        job.ask_at = 0
        obey_lease(state, job)
    send(state, (peer,), own_word(state, job))
    job.word_at = 0  # the giver takes it for queued here
    if job.state is JobState.ACTIVE:
        start(state, job)
