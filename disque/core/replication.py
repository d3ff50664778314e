"""ADDJOB: a job is answered once enough nodes have stored a copy (M2, M3, M25, B7).

An explicit REPLICATE is a promise, that many copies or NOREPL. Left out, it is an aim: as many as can be had now.
"""

from __future__ import annotations

from cluster.nodeid import NodeId
from disque.core import commands as cmd
from disque.core import messages as msg
from disque.core.arrivals import store_copy
from disque.core.chores import for_each
from disque.core.copies import (
    absorb,
    add_holders,
    answer_end,
    answer_mark,
    answer_unknown,
    claim_copy,
    facts_of,
    has_news_for,
    insert,
    merge_claim,
    others,
    own_word,
    record_copy,
)
from disque.core.delivery import (
    book,
    finish_add,
    is_paused_in,
    obey_lease,
    start,
)
from disque.core.ending import fail_add
from disque.core.external import NO_OWN_COPY, add_once, hand_over, move_in_doubt, reason_of
from disque.core.job import ACTIVE, MOVING, WAITING, Job
from disque.core.jobid import JobId, framed_job_id, job_id_frame
from disque.core.memory import HIGH_PERCENT, is_above
from disque.core.moves import can_move_to
from disque.core.ready import ClientId, Status
from disque.core.sharing import intern_nodes, only_self, shared_spec
from disque.core.state import (
    AddWait,
    Mould,
    Peer,
    State,
    copy_count,
    fail,
    is_counted,
    peer_of,
    reply,
    salted,
    send,
    wake,
)
from disque.core.willing import is_willing, note_refusal, willing_peers

_NO_NODES = "Not enough reachable nodes for the requested replication level"
_TIMED_OUT = "Timeout reached before replicating to the requested number of nodes"
_STEP_MAX_MS = 2_000
_SILENT_MS = 700  # an ADDJOB without REPLICATE waits for its third copy little longer
_LATE_MS = 10  # a timer that fires later than so: this node was busy
# How long an ADDJOB puts up with that, and with a peer that confirms other copies.
_UNHEARD_MAX_MS = 500


def add_job(state: State, client: ClientId, command: cmd.AddJob) -> None:
    """ADDJOB: checks in Disque's order, then copies, then `+id`; NOREPL is an unknown outcome (B7.6)."""
    aim = command.replicate or min(state.limits.replicate_default, state.view.size)
    refusal = _refusal(state, command, aim)
    if refusal is not None:
        fail(state, client, *refusal)
        return
    job = _make_job(state, command, aim)
    if job.id in state.jobs:
        fail(state, client, "ERR", "Internal error creating the job, check server logs.")
        return
    if state.view.is_leaving or (
        state.up and is_tight(state) and _hosts(state, job) >= (command.replicate or 1)
    ):
        _add_elsewhere(state, client, command, job, aim)
        return
    targets = _pick(state, job, aim - 1) if aim > 1 else ()
    nodes = intern_nodes(state, (state.self_id, *targets)) if targets else only_self(state)
    job.holders = nodes
    claim_copy(state, job)
    is_waiting = aim > 1 and not command.is_async
    job.state = WAITING if is_waiting else ACTIVE
    insert(state, job)
    record_copy(state, job)
    # of a delayed job the others believe that it is queued here: see on_repl_job
    job.word_at = 0 if job.not_before > state.now_ms else state.now_ms
    if targets:
        send(state, targets, _first_copy(state, job))
    if is_waiting:
        book(state, job)
        _register_wait(state, _new_wait(state, client, command, job))
        return
    state.counts.added += 1
    if aim > 1:
        state.short[job.id] = None
    reply(state, client, Status(job.id))
    start(state, job)


def _add_elsewhere(state: State, client: ClientId, command: cmd.AddJob, job: Job, aim: int) -> None:
    """This node keeps no copy: peers do, and one of them queues the job."""
    wait = _new_wait(state, client, command, job)
    wait.is_external = True
    if not job.retry_ms:
        if add_once(state, wait):
            _register_wait(state, wait)
        else:
            fail(state, client, "NOREPL", NO_OWN_COPY + reason_of(state))
        return
    targets = _pick(state, job, aim)
    # While it waits this node has the body: whoever ends the job must tell it (S4). It makes no claim to a copy.
    job.holders = intern_nodes(state, (state.self_id, *targets))
    job.state = WAITING
    insert(state, job)
    record_copy(state, job)
    send(state, targets, _copy_for(state, job))
    book(state, job)
    if command.is_async:
        # Answered at once; the copy here stays until a peer has stored one, so that an answered job isn't lost (S6).
        reply(state, client, Status(job.id))
        wait.client, wait.wanted, wait.deadline = None, 1, None
    _register_wait(state, wait)


def _refusal(state: State, command: cmd.AddJob, aim: int) -> tuple[str, str] | None:
    if command.retry_ms == 0:
        if aim > 1:
            text = (
                "With RETRY set to 0 please explicitly set  REPLICATE to 1 (at-most-once delivery)"
            )
            return ("ERR", text)
        if command.max_deliveries:
            return ("ERR", "MAXDELIVERIES needs a RETRY above 0")
    if command.dead_queue == command.queue:
        return ("ERR", "DEADLETTER must name another queue")
    if command.delay_ms >= command.ttl_ms:
        text = "The specified DELAY is greater than TTL. Job refused since would never be delivered"
        return ("ERR", text)
    missing = _needed_peers(state, command) - state.hopeful
    if missing > 0:
        is_ours = missing == 1 and state.view.is_leaving
        return ("NOREPL", NO_OWN_COPY + reason_of(state) if is_ours else _NO_NODES)
    if command.maxlen is not None:
        queue = state.queues.get(command.queue)
        if queue is not None and len(queue) >= command.maxlen:
            return ("MAXLEN", "Queue is already longer than the specified MAXLEN count")
    if is_paused_in(state, command.queue):
        return ("PAUSED", "Queue paused in input, try later")
    return None


def _needed_peers(state: State, command: cmd.AddJob) -> int:
    """Peers without which the ADDJOB can't succeed; a default REPLICATE takes what there is (M25)."""
    return (command.replicate or 1) - (not state.view.is_leaving)


def is_tight(state: State) -> bool:
    """True if new jobs should be held by peers alone, as far as they can (reference 6.4)."""
    return is_above(state, HIGH_PERCENT)


def _hosts(state: State, job: Job) -> int:
    """Peers that would keep a copy now, or take a RETRY 0 job over."""
    takes = is_willing if job.retry_ms else can_move_to
    return sum([takes(state, node, job.queue) for node in state.up])


def _make_job(state: State, command: cmd.AddJob, aim: int) -> Job:
    limits, now = state.limits, state.now_ms
    retry_ms = command.retry_ms
    if retry_ms is None:
        retry_ms = limits.retry_default_ms(command.ttl_ms)
    max_deliveries, dead_queue = _delivery_limit(state, command)
    if now == state.last_ctime_ms:
        state.last_ctime += 1
    else:
        state.last_ctime_ms, state.last_ctime = now, max(now * 1_000_000, state.last_ctime + 1)
    mould = state.mould
    if mould is None or not (
        mould.spec.queue == command.queue
        and mould.spec.retry_ms == retry_ms
        and mould.spec.replicate == aim
        and mould.spec.is_explicit == (command.replicate is not None)
        and mould.spec.delay_ms == command.delay_ms
        and mould.spec.ttl_ms == command.ttl_ms
        and mould.spec.priority == command.priority
        and mould.spec.max_deliveries == max_deliveries
        and mould.spec.dead_queue == dead_queue
        and not mould.spec.headers
        and not command.headers
    ):
        mould = state.mould = _mould(state, command, aim, retry_ms, max_deliveries, dead_queue)
    id_ = framed_job_id(mould.head, state.dice.randbytes(18), mould.tail)
    expires_at = now + command.ttl_ms
    job = Job(id_, mould.spec, state.last_ctime, command.body, ACTIVE, expires_at)
    if command.delay_ms:
        job.not_before = now + command.delay_ms
    return job


def _mould(
    state: State,
    command: cmd.AddJob,
    aim: int,
    retry_ms: int,
    max_deliveries: int,
    dead_queue: bytes,
) -> Mould:
    key = (
        command.queue, retry_ms, aim, command.replicate is not None, command.delay_ms, command.ttl_ms, command.priority,
        max_deliveries, dead_queue,
    )  # fmt: skip
    spec = shared_spec(state, key, command.headers)
    head, tail = job_id_frame(state.self_id, ttl_ms=command.ttl_ms, is_retried=retry_ms > 0)
    return Mould(spec, head, tail)


def _delivery_limit(state: State, command: cmd.AddJob) -> tuple[int, bytes]:
    """(most deliveries or 0, dead letter queue): without a limit where the letter would fall into its own queue."""
    limits = state.limits
    dead_queue = limits.default_dead_queue if command.dead_queue is None else command.dead_queue
    limit = (
        limits.default_max_deliveries if command.max_deliveries is None else command.max_deliveries
    )
    if command.retry_ms == 0 or dead_queue == command.queue:
        limit = 0
    return limit, dead_queue


def _pick(state: State, job: Job, count: int) -> tuple[NodeId, ...]:
    """Willing peers that aren't holders yet, in salted order."""
    if count <= 0:
        return ()
    willing = willing_peers(state, job.queue)
    if job.holders:
        willing = tuple([node for node in willing if node not in job.holders])
    # where all are taken their order tells nothing, and one order makes one batch of a turn's jobs
    return willing if count >= len(willing) else tuple(salted(job.id, willing)[:count])


def _copy_for(state: State, job: Job) -> msg.ReplJob:
    body = job.body
    assert body is not None, f"{job.id!r} has no body to copy"
    return msg.ReplJob(job.id, job.live_spec, job.ctime, body, facts_of(state, job))


def _first_copy(state: State, job: Job) -> msg.ReplJob:
    """The same for a job of which nothing has happened yet: those that are alike share their facts, and their bytes."""
    spec, facts = job.live_spec, state.first_facts
    if (
        facts is None
        or facts.claims is not job.claims
        or facts.holders is not job.holders
        or facts.expires_in != spec.ttl_ms
        or facts.due_in != spec.delay_ms
    ):
        facts = state.first_facts = facts_of(state, job)
    assert job.body is not None, f"{job.id!r} has no body to copy"
    return msg.ReplJob(job.id, spec, job.ctime, job.body, facts)


def _new_wait(state: State, client: ClientId, command: cmd.AddJob, job: Job) -> AddWait:
    # A peer whose answers take long is no silent one (U55).
    step_ms = state.limits.extra_nodes_first_ms
    for node in others(state, job):
        step_ms = max(step_ms, 2 * peer_of(state, node).answer_ms)
    return AddWait(
        client=client,
        job=job,
        wanted=command.replicate,
        deadline=state.now_ms + command.timeout_ms if command.timeout_ms else None,
        started_at=state.now_ms,
        next_step=state.now_ms + min(step_ms, _STEP_MAX_MS),
        step_ms=min(step_ms, _STEP_MAX_MS),
        extra_left=job.live_spec.replicate,
    )


def _register_wait(state: State, wait: AddWait) -> None:
    """The client waits from here on, unless there are copies enough already."""
    job = wait.job
    wait.first_holders = job.holders
    state.adding[job.id] = wait
    if wait.client is not None:
        state.adding_of[wait.client] = job.id
    check_add(state, wait)
    if job.id in state.adding:
        _book_wait(state, wait)


def _book_wait(state: State, wait: AddWait) -> None:
    if wait.job.state is MOVING:  # one peer decides; there is nobody else to ask meanwhile
        if wait.deadline is not None:
            wake(state, wait, wait.deadline)
        return
    at = wait.next_step if wait.deadline is None else min(wait.next_step, wait.deadline)
    wake(state, wait, at)


def check_add(state: State, wait: AddWait) -> None:
    """Answer a waiting ADDJOB if there are copies enough (M25, S7)."""
    job = wait.job
    if job.state is not WAITING:
        return
    if copy_count(state, job) < wanted_copies(state, wait):
        return
    if wait.is_external:
        hand_over(state, wait)
    else:
        finish_add(state, job)
        start(state, job)


def wanted_copies(state: State, wait: AddWait) -> int:
    """W: REPLICATE as given, else what can be had now of the aim (M25), without peers that are silent."""
    if wait.wanted is not None:
        return wait.wanted
    peers = willing_peers(state, wait.job.queue)
    willing = len([node for node in peers if node not in state.silent] if state.silent else peers)
    if wait.is_external:
        return max(1, min(wait.job.live_spec.replicate, willing))
    return min(wait.job.live_spec.replicate, 1 + willing)


def add_due(state: State, wait: AddWait) -> None:
    """The time-out of a waiting ADDJOB, or the next step: one more node, and the silent ones again."""
    now = state.now_ms
    if wait.deadline is not None and now >= wait.deadline:
        if wait.job.state is MOVING:
            move_in_doubt(state, wait, _TIMED_OUT)
        else:
            end_add(state, wait, _TIMED_OUT)
        return
    if now >= wait.next_step:
        wait.next_step = _silent_at(state, wait)
    if now >= wait.next_step:
        if wait.wanted is None and now - wait.started_at >= _SILENT_MS:
            _note_silent(state, wait)
        more_copies(state, wait, extra=1)
        wait.step_ms = min(wait.step_ms * 2, _STEP_MAX_MS)
        wait.next_step = now + wait.step_ms
    if wait.job.id in state.adding:
        _book_wait(state, wait)


def _note_silent(state: State, wait: AddWait) -> None:
    """A peer that hangs, or whose machine has lost power, is reachable for a while yet: a default doesn't wait for it.

    Till it confirms a copy. Only once another one has stored the job: else it may be this node that is cut off.
    """
    if copy_count(state, wait.job) < 2:
        return
    for node in others(state, wait.job):
        if node not in wait.job.claims and peer_of(state, node).answered_at < wait.started_at:
            state.silent[node] = None


def _silent_at(state: State, wait: AddWait) -> int:
    """ms; when a peer that was asked for a copy counts as silent: now, or later (U55).

    Not while it confirms other copies, since those come in order; nor because this node was too busy to listen. That
    holds for a while only, lest at a node that is always busy nobody else is asked.
    """
    now = state.now_ms
    if now - wait.started_at >= _UNHEARD_MAX_MS:
        return now
    if now - wait.next_step > _LATE_MS:
        return now + wait.step_ms
    job = wait.job
    heard_at = [
        peer_of(state, node).answered_at
        for node in others(state, job)
        if not job.claims.get(node, (0, 0, False))[2]
    ]
    return max(now, min(heard_at, default=0) + wait.step_ms)


def more_copies(state: State, wait: AddWait, *, extra: int = 0) -> None:
    """Ask nodes that weren't asked yet, as far as copies are missing, and the silent ones once more."""
    job = wait.job
    if job.state is not WAITING:
        return
    if wait.is_external and not state.view.is_leaving:
        _keep_after_all(state, wait)
    silent = [
        node
        for node in others(state, job)
        if is_willing(state, node, job.queue) and not job.claims.get(node, (0, 0, False))[2]
    ]
    missing = wanted_copies(state, wait) - copy_count(state, job) - len(silent)
    surplus = min(extra, wait.extra_left)
    targets = _pick(state, job, max(missing, surplus))
    wait.extra_left -= max(0, len(targets) - max(missing, 0))
    add_holders(state, job, targets)
    send(state, (*silent, *targets), _copy_for(state, job))
    check_add(state, wait)


def _keep_after_all(state: State, wait: AddWait) -> None:
    """Memory is tight, but too few peers take the job: this node holds a copy as any other (it isn't full yet)."""
    job = wait.job
    has_copy = [n for n, claim in job.claims.items() if is_counted(state, n, claim)]
    may_copy = [n for n in willing_peers(state, job.queue) if n not in has_copy]
    if len(has_copy) + len(may_copy) < (wait.wanted or 1):
        wait.is_external = False
        claim_copy(state, job)


def end_add(state: State, wait: AddWait, text: str) -> None:
    """A waiting ADDJOB fails: NOREPL, and no copy may live on (B7.4)."""
    client = wait.client
    fail_add(state, wait)
    fail(state, client, "NOREPL", text)


def add_lost_client(state: State, client: ClientId) -> None:
    """The client of a waiting ADDJOB has gone: it fails, nobody is answered (B7.2)."""
    job = state.adding_of.get(client)
    if job is not None:
        fail_add(state, state.adding[job])


def adds_review(state: State) -> None:
    """The view changed: count, and ask, anew (M25)."""
    for_each(state, state.adding, _review_add, key=adds_review)


def _review_add(state: State, id_: JobId) -> None:
    wait = state.adding.get(id_)
    if wait is not None:
        more_copies(state, wait)


def on_repl_job(state: State, peer: NodeId, said: msg.ReplJob) -> None:
    """Keep a copy, or say why not; a job that is over here is over (M1, M6, M15, M25)."""
    if answer_end(state, peer, said.id) or answer_mark(state, peer, said.id):
        return
    job = state.jobs.get(said.id)
    if job is not None and job.retry_ms:
        _another_copy(state, peer, job, said)
    elif job is not None or not said.spec.retry_ms or not said.facts.expires_in:
        # at most once has no copies (B6.1); expired is refused (M12)
        answer_unknown(state, peer, said.id)
    elif state.view.is_leaving or is_tight(state):
        send(state, (peer,), msg.Refused(said.id, is_queue_only=False))
    elif is_paused_in(state, said.spec.queue):
        send(state, (peer,), msg.Refused(said.id, is_queue_only=True))
    else:
        ask_at = state.now_ms + said.facts.due_in + said.spec.retry_ms
        job = store_copy(state, said, ask_at=ask_at)
        if said.facts.due_in:
            # If the node that waits for the end of its DELAY fails, another one sees to it, and not a RETRY later
            job.queued_at = peer
        send(state, (peer,), own_word(state, job))


def _another_copy(state: State, peer: NodeId, job: Job, said: msg.ReplJob) -> None:
    if said.spec != job.spec or said.ctime != job.ctime:
        state.counts.spec_conflicts += 1
        return
    absorb(state, job, said.facts)
    obey_lease(state, job)
    if state.self_id in job.claims:
        send(state, (peer,), own_word(state, job))
    if has_news_for(state, peer, job, said.facts):
        send(state, (peer,), msg.Told(job.id, facts_of(state, job)))


def on_got_job(state: State, peer: NodeId, said: msg.GotJob) -> None:
    """A peer has stored a copy; that may be enough (M3, M25)."""
    if peer in state.silent:
        del state.silent[peer]
    job = state.jobs.get(said.id)
    if job is None or job.is_done:
        answer_end(state, peer, said.id)
        return
    if not job.retry_ms:
        return
    known = peer_of(state, peer)
    known.answered_at = state.now_ms
    is_first = peer not in job.claims
    if peer not in job.holders:
        add_holders(state, job, (peer,))
    merge_claim(state, job, peer, (said.boot, said.clock, True))
    wait = state.adding.get(said.id)
    if wait is not None:
        if is_first:
            _note_answer_time(known, state.now_ms - wait.started_at)
        check_add(state, wait)


def _note_answer_time(peer: Peer, took_ms: int) -> None:
    """Follow a peer's answer time: up at once, down by and by."""
    peer.answer_ms = max(took_ms, (7 * peer.answer_ms + took_ms) // 8)


def on_refused(state: State, peer: NodeId, said: msg.Refused) -> None:
    """A peer won't keep a copy now: leave it alone for a while, ask another (M25, B3.7)."""
    job = state.jobs.get(said.id)
    if job is None or job.is_done:
        return
    note_refusal(state, peer, job.queue if said.is_queue_only else None)
    wait = state.adding.get(said.id)
    if wait is not None:
        more_copies(state, wait)
