"""Queueing here and handing out here: what may be queued, who gets it, and when a copy looks at itself again.

When a queue runs dry with clients waiting, its name goes into `state.hungry`; when one gains a job that a peer asked
for, into `state.offered`. The engine passes both on to federation once the input has been handled.
"""

from __future__ import annotations

from cluster.nodeid import NodeId
from disque.core import commands as cmd
from disque.core import messages as msg
from disque.core.copies import (
    body_size,
    claim_copy,
    free_body,
    record_facts,
    remove,
    set_burials,
    set_role,
    shift,
    take_out,
    tell_others,
)
from disque.core.job import (
    ACTIVE,
    DEAD_BY_NACK,
    DEAD_BY_RETRY,
    DELAYED,
    DELIVERED,
    NO_ROLE,
    QUEUED,
    WAITING,
    Burials,
    Event,
    Job,
    JobSpec,
)
from disque.core.jobqueue import PAUSE_IN, JobQueue
from disque.core.ready import ClientId, Delivery, NilArray, Record, Reply, Status
from disque.core.state import (
    AddWait,
    GetWait,
    State,
    fail,
    next_stamp,
    record,
    reply,
    wake,
)

REMOVED_TEXT = "job removed (expired?) before the requested replication level was achieved"
WATCH_BYTES = 100  # a queue that a GETJOB waits for, beside its name
_QUEUE = Event.QUEUE
_DISPATCH = Event.DISPATCH
LEAVING_TEXT = "This node is leaving the cluster, please connect to a different one"


def queue_of(state: State, name: bytes) -> JobQueue:
    """The queue of this name, made at first use."""
    queue = state.queues.get(name)
    if queue is None:
        now = state.now_ms
        queue = state.queues[name] = JobQueue(name, created_at=now, accessed_at=now)
        state.name_bytes += len(name)
        if name in state.pauses:
            queue.cluster_pause = state.pauses[name][2]
    return queue


def is_unused(state: State, queue: JobQueue) -> bool:
    """True if the queue is empty, nobody waits for it or has subscribed to it, and no flag of this node is on it."""
    return not (queue.jobs or queue.blocked or queue.pause or queue.name in state.topics.attending)


def free(state: State, queue: JobQueue) -> None:
    """Forget a queue until it is used again."""
    state.agenda.cancel(queue)
    del state.queues[queue.name]
    state.name_bytes -= len(queue.name)


def count_import(state: State, peer: NodeId, name: bytes) -> None:
    """A job of this queue came from another node: the pace of imports decides how much is asked for (reference 5.5)."""
    exchange = queue_of(state, name).open_exchange()
    if peer not in exchange.responders:
        exchange.broadcast_round = 0
    exchange.responders[peer] = state.now_ms
    exchange.want_until = 0
    exchange.count_import(state.now_ms, bucket_ms=state.limits.import_bucket_ms)
    exchange.adhoc_round = 0


def is_paused_in(state: State, name: bytes) -> bool:
    """True if the queue takes no new jobs at this node."""
    queue = state.queues.get(name)
    if queue is not None:
        return queue.is_paused_in
    return name in state.pauses and bool(state.pauses[name][2] & PAUSE_IN)


def may_queue(state: State, job: Job) -> bool:
    """True if M10 allows this copy to lie in its queue (apart from pauses, which the callers judge)."""
    if job.state is not ACTIVE or job.is_kept_out or job.expires_at <= state.now_ms:
        return False
    if job.not_before > state.now_ms:
        return False
    return not job.leases or job.lease_end() <= state.now_ms


def enqueue(state: State, job: Job, *, was_nacked: bool = False) -> None:
    """Put an active copy into its queue and serve who waits; every queueing but the first is announced.

    A job that was handed out as often as it may be lands in its dead letter queue instead (B8).
    """
    assert may_queue(state, job), f"{job.id!r} may not be queued: {job}"
    if is_spent_out(job):
        _bury_letter(state, job, DEAD_BY_NACK if was_nacked else DEAD_BY_RETRY)
    queue = queue_of(state, job.queue)
    shift(state, job, _QUEUE)
    job.ask_round = 0
    job.queued_at = None
    job.is_unsure = False
    job.is_held = False
    set_role(state, job, NO_ROLE)
    if state.asks:
        state.asks.pop(job.id, None)
    queue.add(job)
    queue.jobs_in += 1
    queue.accessed_at = state.now_ms
    if job.was_queued:
        tell_others(state, job, msg.Queued)
    job.was_queued = True
    book(state, job)
    if queue.blocked:
        serve(state, queue)
    elif queue.is_wanted:
        state.offered[queue.name] = None


def is_spent_out(job: Job) -> bool:
    """True if the job has a delivery limit and has reached it since it was last revived (B8.1)."""
    spec = job.spec
    assert spec is not None, f"{job.id!r} is a bare done entry"
    limit = spec.max_deliveries
    if not limit or job.is_dead:
        return False
    base = job.burials.base if job.burials is not None else 0
    return job.delivery_count - base >= limit


def _bury_letter(state: State, job: Job, reason: int) -> None:
    """Make an active job a dead letter: the same job, from now on in its dead letter queue (M13, B8.3)."""
    count = job.burials.count + 1 if job.burials is not None else 1
    set_burials(state, job, Burials(count, reason, job.delivery_count, job.expires_at))
    job.was_queued = True
    state.counts.dead_lettered += 1
    record_facts(state, job)


def revive(state: State, job: Job) -> None:
    """Take a dead letter back into its own queue; its limit counts from here (B8.7)."""
    assert job.burials is not None, f"{job.id!r} was never buried"
    if job.state is QUEUED:
        take_out(state, job, Event.UNQUEUE)
    count = job.burials.count + 1
    set_burials(state, job, Burials(count, 0, job.delivery_count, job.expires_at))
    record_facts(state, job)


def next_job(state: State, queue: JobQueue) -> Job | None:
    """The job at the head that may be handed out; one that has reached its limit meanwhile is buried (B8.1)."""
    while (job := queue.jobs.first()) is not None and is_spent_out(job):
        take_out(state, job, Event.UNQUEUE)
        enqueue(state, job)
    return job


def unqueue(state: State, job: Job) -> None:
    """Take a queued copy out of its queue; it stays active and asks again in its time."""
    take_out(state, job, Event.UNQUEUE)
    book(state, job)


def dispatch(state: State, job: Job, *, with_counters: bool) -> Delivery:
    """Hand a queued job out: count it, lease it, tell the other holders if they must know (B1.1)."""
    body = job.body
    assert body is not None, f"{job.id!r} is queued without a body"
    spec, own = job.spec, state.self_id
    assert spec is not None, f"{job.id!r} is a bare done entry"
    queue = take_out(state, job, _DISPATCH)
    queue.jobs_out += 1
    queue.accessed_at = state.now_ms
    _count_delivery(state, job)
    if job.dispatches:
        job.dispatches = {**job.dispatches, own: job.dispatches.get(own, 0) + 1}
    else:
        if state.own_dispatch is None:
            state.own_dispatch = {own: 1}
        job.dispatches = state.own_dispatch
    if spec.retry_ms:
        _lease(state, job, spec)
    else:
        _spend(state, job)
    book(state, job)
    return Delivery(
        job.id,
        queue.name,
        body,
        spec.headers,
        job.nack_count if with_counters else None,
        job.additional_deliveries if with_counters else None,
        spec.retry_ms,
    )


def _count_delivery(state: State, job: Job) -> None:
    counts = state.counts
    counts.delivered += 1
    if job.dispatches:
        counts.redelivered += 1
    else:
        counts.delivery.add(state.now_ms - (job.not_before or job.ctime // 1_000_000))


def _lease(state: State, job: Job, spec: JobSpec) -> None:
    set_role(state, job, DELIVERED)
    stamp = next_stamp(state, job)
    lease = (stamp, state.now_ms + spec.retry_ms)
    job.leases = {**job.leases, state.self_id: lease} if job.leases else {state.self_id: lease}
    is_limited = bool(spec.max_deliveries)
    if is_limited:
        record(state, "dispatch", job.id, job.dispatches[state.self_id])
    record_lease(state, job)
    if is_limited or state.now_ms - job.word_at >= spec.retry_ms // 10:
        tell_others(state, job, msg.Leased)


def record_lease(state: State, job: Job) -> None:
    """Note for a restart, if there is a log, who has been handed the job, or keeps it, and until when.

    It spares work after a restart; nothing waits for it.
    """
    if state.is_logged:
        own = state.self_id
        fields = (job.id, job.dispatches.get(own, 0), *job.leases[own])
        state.ready.records.append(Record("lease", fields, is_lazy=True))


def _spend(state: State, job: Job) -> None:
    """RETRY 0: handed out once, never again."""
    record(state, "dispatch", job.id, 1, is_urgent=True)
    job.is_kept_out = True
    set_role(state, job, DELIVERED)
    free_body(state, job)
    keep_spent(state, job)


def keep_spent(state: State, job: Job) -> None:
    """RETRY 0 that nobody gets any more: it serves SHOW and ACKJOB and may be evicted."""
    state.spent[job.id] = job
    if len(state.spent) > state.limits.spent_max:
        drop(state, next(iter(state.spent.values())))


def drop(state: State, job: Job) -> None:
    """Forget a live copy without a tombstone (expiry, DELJOB, eviction, hand-over); says nothing."""
    if job.state is QUEUED:
        take_out(state, job, Event.UNQUEUE)
    remove(state, job)
    record(state, "gone", job.id)


def serve(state: State, queue: JobQueue) -> None:
    """Give each waiting client one job, first come first served, while there are both."""
    while queue.blocked and queue.jobs and not queue.is_paused_out:
        wait = state.getting[ClientId(next(iter(queue.blocked)))]
        job = next_job(state, queue)
        if job is None:
            break
        delivery = dispatch(state, job, with_counters=wait.with_counters)
        end_get(state, wait)
        reply(state, wait.client, [delivery])
    if not queue.jobs:
        state.hungry[queue.name] = state.hungry.get(queue.name, False) or bool(queue.blocked)


def end_get(state: State, wait: GetWait) -> None:
    """A waiting GETJOB is over, for whatever reason; the caller answers it."""
    del state.getting[wait.client]
    state.name_bytes -= names_bytes(wait)
    state.agenda.cancel(wait)
    for name in wait.queues:
        queue = state.queues.get(name)
        if queue is not None:
            queue.unblock(wait.client)


def get_jobs(state: State, client: ClientId, command: cmd.GetJob) -> None:
    """GETJOB: one job a queue a round, until `count`, a full answer, or a round without any; else wait (reference 1.2).

    A queue that had none isn't asked in later rounds: of five thousand one may be full.
    """
    count, bytes_max = command.count, state.limits.answer_bytes_max
    deliveries: list[Reply] = []
    size = 0
    queues = [queue_of(state, name) for name in command.queues]
    giving = queues
    while giving and len(deliveries) < count and size < bytes_max:
        asked, giving = giving, []
        for queue in asked:
            job = None if queue.is_paused_out else next_job(state, queue)
            if job is None:
                continue
            size += body_size(job)
            deliveries.append(dispatch(state, job, with_counters=command.with_counters))
            giving.append(queue)
            if queue.jobs.first() is None:
                state.hungry.setdefault(queue.name, False)
            if len(deliveries) == count or size >= bytes_max:
                break
    if deliveries:
        reply(state, client, deliveries)
        return
    for queue in queues:
        state.hungry[queue.name] = True
    if command.is_nohang:
        reply(state, client, NilArray())
    elif state.view.is_leaving:
        fail(state, client, "LEAVING", LEAVING_TEXT)
    else:
        _wait_for_job(state, client, command, queues)


def _wait_for_job(
    state: State, client: ClientId, command: cmd.GetJob, queues: list[JobQueue]
) -> None:
    wait = GetWait(client, command.queues, command.with_counters)
    state.getting[client] = wait
    state.name_bytes += names_bytes(wait)
    for queue in queues:
        queue.block(client)
    if command.timeout_ms:
        wake(state, wait, state.now_ms + command.timeout_ms)
    for queue in queues:
        if queue.jobs:  # a dead letter that was found in a queue behind this one
            serve(state, queue)


def names_bytes(wait: GetWait) -> int:
    """What a waiting GETJOB is charged for its names."""
    return sum(map(len, wait.queues)) + len(wait.queues) * WATCH_BYTES


def get_timed_out(state: State, wait: GetWait) -> None:
    """The time-out of a waiting GETJOB."""
    end_get(state, wait)
    reply(state, wait.client, NilArray())


def due_at(job: Job) -> int:
    """ms; when an active copy may look whether it should queue itself (B1.2)."""
    at = max(job.not_before, job.ask_at)
    return at if job.is_held or not job.leases else max(at, job.lease_end())


def book(state: State, job: Job) -> None:
    """Book the next time at which a live copy must be looked at."""
    at = job.expires_at
    if job.state is ACTIVE and not job.is_kept_out:
        due = due_at(job)
        if state.asks and (ask := state.asks.get(job.id)) is not None:
            due = max(due, ask.deadline)  # it may have yielded to another asker since
        at = min(at, due)
    state.agenda.book(job, max(at, state.now_ms))


def finish_add(state: State, job: Job) -> None:
    """The waiting ADDJOB of this job has succeeded: answer its id and let the job live (B7.3)."""
    wait = state.adding[job.id]
    end_wait(state, wait)
    if job.state is WAITING:
        shift(state, job, Event.REPLICATED)
    if state.self_id not in job.claims:
        claim_copy(state, job)  # was to be held by peers alone, but has begun to live
    if len(job.claims) < job.live_spec.replicate:
        state.short[job.id] = None
    state.counts.added += 1
    state.counts.replication.add(state.now_ms - wait.started_at)
    reply(state, wait.client, Status(job.id))


def is_worked_on(state: State, job: Job) -> bool:
    """True if somebody was handed the job: then a waiting ADDJOB has succeeded (B7.3)."""
    return bool(job.dispatches) or job.lease_end() > state.now_ms


def end_wait(state: State, wait: AddWait) -> None:
    """An ADDJOB no longer waits, for whatever reason; the caller answers it and sees to the job."""
    del state.adding[wait.job.id]
    state.agenda.cancel(wait)
    if wait.client is not None:
        del state.adding_of[wait.client]


def start(state: State, job: Job) -> None:
    """Queue a new job of this node, or wait for the end of its DELAY."""
    if may_queue(state, job):
        enqueue(state, job)
    else:
        if job.not_before > state.now_ms:
            set_role(state, job, DELAYED)
        book(state, job)


def obey_lease(state: State, job: Job) -> None:
    """After a merge: a live lease beats a place in the queue; then book anew (M10)."""
    if job.state is QUEUED and job.lease_end() > state.now_ms:
        take_out(state, job, Event.UNQUEUE)
    if job.role is DELIVERED and not _was_last_to_deliver(state, job):
        set_role(state, job, NO_ROLE)
    book(state, job)


def _was_last_to_deliver(state: State, job: Job) -> bool:
    """True if no node handed the job out after this one, and nobody gave it back."""
    stamp, _ = job.leases[state.self_id]
    if stamp <= job.covered.get(state.self_id, -1):
        return False
    return all([stamp >= theirs for theirs, _ in job.leases.values()])
