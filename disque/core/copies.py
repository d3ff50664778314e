"""A node's copies: keeping them, saying what they know, and taking in what others say.

Merging here is data only; what follows from it (queueing, leases, acks) is decided by the modules above.
"""

from __future__ import annotations

from cluster.nodeid import NodeId
from disque.core import merge
from disque.core import messages as msg
from disque.core.job import (
    ACTIVE,
    DELAYED,
    DELIVERED,
    DONE,
    NO_CLAIMS,
    NO_ROLE,
    PAGE_MIN_BYTES,
    QUEUED,
    Burials,
    Claim,
    Event,
    Job,
    JobSpec,
    Paged,
    Reason,
    Role,
)
from disque.core.jobid import JobId, is_endless, ttl_minutes
from disque.core.jobqueue import JobQueue
from disque.core.ready import Record
from disque.core.sharing import intern_nodes, join_claim
from disque.core.state import (
    Absence,
    State,
    Tally,
    gone_claim,
    members_of,
    own_claim,
    record,
    send,
    wake,
)

_FINISH = Event.FINISH
_FEW_CLAIMS = 16  # of one message; more are joined at once, and shared with no other job
HEADER_BYTES = 150  # of memory, beside its name and value


def insert(state: State, job: Job) -> None:
    """Register a job, in any state, under an id that isn't known yet."""
    known = state.jobs.setdefault(job.id, job)
    assert known is job, f"{job.id!r} is registered already"
    state.by_state.count(job.state, 1)
    _tally(state, job, 1)
    spec = job.spec
    if spec is not None:
        # Few have headers, and a call costs more than the sum
        plain = len(spec.queue) + len(spec.dead_queue)
        state.spec_bytes += spec_bytes(spec) if spec.headers else plain
    _charge_body(state, job, 1)


def remove(state: State, job: Job) -> None:
    """Forget a job that is neither queued nor waited for; says nothing to anybody."""
    assert job.state is not QUEUED, f"{job.id!r} is still queued"
    assert job.id not in state.adding, f"the ADDJOB of {job.id!r} still waits"
    id_ = job.id
    free_body(state, job)
    if job.spec is not None:
        state.spec_bytes -= spec_bytes(job.spec)
    _tally(state, job, -1)
    del state.jobs[id_]
    state.by_state.count(job.state, -1)
    if job.state is DONE:
        if state.undone.pop(id_, None) is None:
            state.dummies.pop(id_, None)
            state.dummy_answers.pop(id_, None)
    else:
        leave_pools(state, id_)
    leaver = state.leaver
    if leaver is not None:
        leaver.kept.pop(id_, None)
        leaver.asked.pop(id_, None)
        leaver.carried.pop(id_, None)
    if state.repairs and (repair := state.repairs.pop(id_, None)) is not None:
        state.agenda.cancel(repair)
    state.agenda.cancel(job)


def leave_pools(state: State, id_: JobId) -> None:
    """Take a job out of the pools in which only live ones are."""
    if state.asks:  # most are empty mostly, and to see that costs less than to take out
        state.asks.pop(id_, None)
    if state.spent:
        state.spent.pop(id_, None)
    if state.under_replicated:
        state.under_replicated.pop(id_, None)


def note_absence(state: State, job: Job) -> None:
    """A copy is about to be dropped while its job lives on (M21): remember its holders till its expiry.

    They may not know of each other, and this node is one of them: what it answers to a SETACK must include them all
    (M2, B2.3). Over the bound the oldest goes; a restart forgets them. At most once has one owner, not holders.
    """
    if not job.retry_ms:
        return
    absence = state.absences[job.id] = Absence(job.id, job.holders)
    wake(state, absence, job.expires_at)
    if len(state.absences) > state.limits.absences_max:
        absence_due(state, next(iter(state.absences.values())))


def end_absence(state: State, job: JobId, holders: tuple[NodeId, ...]) -> tuple[NodeId, ...]:
    """An entry with these holders is made where a copy was dropped: the holders together with those of that copy."""
    absence = state.absences.get(job) if state.absences else None
    if absence is None:
        return holders
    absence_due(state, absence)
    return merge.heard(holders, absence.holders)


def absence_due(state: State, absence: Absence) -> None:
    """Its job has expired, or its place is needed."""
    state.agenda.cancel(absence)
    del state.absences[absence.id]


def shift(state: State, job: Job, event: Event) -> None:
    """Change a job's state and the counters with it."""
    if event is _FINISH and job.spec is not None:
        set_role(state, job, NO_ROLE)
        state.tallies[job.queue].done += 1
    by_state = state.by_state
    by_state.count(job.state, -1)
    job.move(event)
    by_state.count(job.state, 1)


def _tally(state: State, job: Job, by: int) -> None:
    """Count a job in or out of its effective queue; bare ends belong to none."""
    if job.spec is None:
        return
    name = job.queue
    tally = state.tallies.get(name)
    if tally is None:
        tally = state.tallies[name] = Tally()
    tally.copies += by
    if job.state is DONE:
        tally.done += by
    elif job.role:
        _tally_role(state, tally, job.role, by)
    if not tally.copies:
        del state.tallies[name]


def _tally_role(state: State, tally: Tally, role: Role, by: int) -> None:
    if role is DELIVERED:
        tally.delivered += by
        state.total.delivered += by
    elif role is DELAYED:
        tally.delayed += by
        state.total.delayed += by


def set_role(state: State, job: Job, role: Role) -> None:
    """Change what this node accounts for of a registered live job."""
    if job.role is role:
        return
    tally = state.tallies[job.queue]
    if job.role:
        _tally_role(state, tally, job.role, -1)
    if role:
        _tally_role(state, tally, role, 1)
    job.role = role


def set_burials(state: State, job: Job, burials: Burials | None) -> None:
    """Change whether a registered job, not queued, is a dead letter: it counts for another queue then (M13)."""
    _tally(state, job, -1)
    job.burials = burials
    _tally(state, job, 1)


def take_out(state: State, job: Job, event: Event) -> JobQueue:
    """Take a queued copy out of its queue; returns the queue."""
    queue = state.queues[job.queue]
    queue.jobs.remove(job)
    if state.orders:
        state.orders.pop(job.id, None)
    shift(state, job, event)
    return queue


def free_body(state: State, job: Job) -> None:
    """Let go of the body; a done job never needs it again (S14)."""
    if job.body is not None:
        _charge_body(state, job, -1)
        job.body = None


def page_out(state: State, job: Job, place: Paged) -> None:
    """From now on the body of a registered job lies in the log alone."""
    _charge_body(state, job, -1)
    job.body = place
    _charge_body(state, job, 1)


def body_size(job: Job) -> int:
    """Bytes that it takes to send the body; of a paged one a little more."""
    if isinstance(job.body, Paged):
        return job.body.size
    return 0 if job.body is None else len(job.body)


def _charge_body(state: State, job: Job, by: int) -> None:
    if isinstance(job.body, Paged):
        state.paged_bytes += by * job.body.size
    elif job.body is not None:
        size = len(job.body)
        state.body_bytes += size if by > 0 else -size
        if by > 0 and size >= PAGE_MIN_BYTES and state.is_logged:
            state.unwritten_bytes += size


def spec_bytes(spec: JobSpec) -> int:
    """What a job is charged for its names and headers, until it is settled; that others may share them is luck."""
    size = len(spec.queue) + len(spec.dead_queue)
    headers = spec.headers
    if headers:
        size += sum(map(len, [*headers, *headers.values()])) + len(headers) * HEADER_BYTES
    return size


def others(state: State, job: Job) -> tuple[NodeId, ...]:
    """The other holders that are not forgotten: H \\ F \\ self."""
    self_id, holders = state.self_id, job.holders
    if holders == (self_id,):
        return ()
    return tuple([node for node in members_of(state, holders) if node != self_id])


def claim_copy(state: State, job: Job) -> None:
    """Note that this node has stored a copy, at its present boot (M3)."""
    if job.claims:
        job.claims = join_claim(state, job.claims, state.self_id, own_claim(state))
        return
    if state.own_claims is None:
        state.own_claims = join_claim(state, NO_CLAIMS, state.self_id, own_claim(state))
    job.claims = state.own_claims


def add_holders(state: State, job: Job, nodes: tuple[NodeId, ...]) -> None:
    """Note that these nodes may have a copy, in the log before anything is sent to them (M2, S4)."""
    holders = merge.union(job.holders, nodes)
    if holders is not job.holders:
        job.holders = intern_nodes(state, holders)
        record(state, "holders", job.id, job.holders)


def facts_of(state: State, job: Job) -> msg.Facts:
    """All that this node knows of a live job, times as remaining ms."""
    now = state.now_ms
    return msg.Facts(
        holders=job.holders,
        expires_in=max(0, job.expires_at - now),
        due_in=max(0, job.not_before - now),
        is_queued=job.state is QUEUED,
        claims=job.claims,
        dispatches=job.dispatches,
        nacks=job.nacks,
        leases={node: (stamp, end - now) for node, (stamp, end) in job.leases.items() if end > now}
        if job.leases
        else msg.NO_REMAINING,
        covered=job.covered,
        burials=_remaining_burials(job.burials, now),
        queued_at=job.queued_at if job.state is ACTIVE and job.retry_ms else None,
    )


def _remaining_burials(burials: Burials | None, now_ms: int) -> Burials | None:
    if burials is None:
        return None
    return Burials(burials.count, burials.reason, burials.base, max(0, burials.expires_at - now_ms))


def absorb(state: State, job: Job, facts: msg.Facts) -> bool:
    """Merge what a peer says about a stored copy; True if it was news to us (M22), which the log then has."""
    if job.state is QUEUED and _is_other_burial(state, job, facts):
        take_out(state, job, Event.UNQUEUE)  # its effective queue may be another now (B8.4)
    is_news = merge_facts(state, job, facts)
    if is_news:
        record_facts(state, job)
    return is_news


def merge_facts(state: State, job: Job, facts: msg.Facts) -> bool:
    """The joins of M2, M3, M7-M9, M11-M13; True if a set, counter, stamp or flag changed."""
    is_news = False
    holders = merge.heard(job.holders, facts.holders)
    if holders is not job.holders:
        job.holders = intern_nodes(state, holders)
        is_news = True
    claims = merge.fitting(job.claims, facts.claims)
    if len(claims) > _FEW_CLAIMS:
        job.claims = merge.claims(job.claims, claims)
    else:
        for node, claim in claims.items():
            job.claims = join_claim(state, job.claims, node, claim)
    dispatches = merge.maxima(job.dispatches, merge.fitting(job.dispatches, facts.dispatches))
    if dispatches is not job.dispatches:
        job.dispatches = dispatches
        is_news = True
    if facts.leases or facts.covered or facts.nacks:
        is_news |= _absorb_leases(state, job, facts)
    job.not_before = merge.earlier(job.not_before, state.now_ms + facts.due_in)
    job.expires_at = merge.earlier(job.expires_at, state.now_ms + facts.expires_in)
    if facts.burials is not None:
        burials = merge.burials(job.burials, _burials_at(facts.burials, state.now_ms))
        is_news |= not _is_same_burial(burials, job.burials)
        if burials is not job.burials:
            set_burials(state, job, burials)
    return is_news


def _is_same_burial(one: Burials | None, two: Burials | None) -> bool:
    return (
        one is not None
        and two is not None
        and (one.count, one.reason, one.base) == (two.count, two.reason, two.base)
    )


def _absorb_leases(state: State, job: Job, facts: msg.Facts) -> bool:
    is_news = False
    covered = merge.maxima(job.covered, merge.fitting(job.covered, facts.covered))
    nacks = merge.maxima(job.nacks, merge.fitting(job.nacks, facts.nacks))
    if nacks is not job.nacks:
        # News of a NACK makes void every lease known until now, not those that came with it (M9).
        job.nacks = nacks
        covered = merge.maxima(covered, stamps(job))
        is_news = True
    if covered is not job.covered:
        job.covered = covered
        is_news = True
    if facts.leases:
        now = state.now_ms
        # No lease beyond RETRY, but for one that a NACK with DELAY made, never beyond the job's life (M8).
        longest = max(0, job.expires_at - now) if nacks else job.retry_ms
        theirs = {
            node: (stamp, now + min(remaining, longest))
            for node, (stamp, remaining) in merge.fitting(job.leases, facts.leases).items()
        }
        is_news |= merge.is_lease_news(job.leases, theirs)
        job.leases = merge.leases(job.leases, theirs)
    return is_news


def stamps(job: Job) -> dict[NodeId, int]:
    """The stamp of each node's last known lease: what a NACK or ENQUEUE covers (M9)."""
    return {node: stamp for node, (stamp, _) in job.leases.items()}


def has_news_for(state: State, peer: NodeId, job: Job, facts: msg.Facts) -> bool:
    """True if, after the merge, we know something of a live job that these facts of a peer don't (M22).

    Of its own lease it knows best: told late, it would go on here after its end there, and be news for ever.
    """
    if len(job.holders) > len(facts.holders) or job.dispatches != facts.dispatches:
        return True
    if job.nacks != facts.nacks or job.covered != facts.covered:
        return True
    if not _is_same_burial(job.burials, facts.burials) and job.burials is not None:
        return True
    return any(
        node != peer and end > state.now_ms and stamp > facts.leases.get(node, (-1, 0))[0]
        for node, (stamp, end) in job.leases.items()
    )


def has_older_burials(job: Job, facts: msg.Facts) -> bool:
    """True if these facts, already merged, know less of the job's burials than we do (M13)."""
    return job.burials is not None and not _is_same_burial(job.burials, facts.burials)


def stored_facts(job: Job) -> tuple[object, ...]:
    """The fields of a "facts" record: instants, as the store keeps them."""
    burials = job.burials
    return (
        job.id,
        job.holders,
        dict(job.claims),
        dict(job.dispatches),
        dict(job.nacks),
        dict(job.leases),
        dict(job.covered),
        None
        if burials is None
        else (burials.count, burials.reason, burials.base, burials.expires_at),
        job.expires_at,
        job.not_before,
    )


def _is_other_burial(state: State, job: Job, facts: msg.Facts) -> bool:
    if facts.burials is None:
        return False
    joined = merge.burials(job.burials, _burials_at(facts.burials, state.now_ms))
    return not _is_same_burial(joined, job.burials)


def _burials_at(remaining: Burials, now_ms: int) -> Burials:
    return Burials(remaining.count, remaining.reason, remaining.base, now_ms + remaining.expires_at)


def record_facts(state: State, job: Job) -> None:
    """Put the facts of a stored copy into the log."""
    if state.is_recording:
        record(state, "facts", *stored_facts(job))


def record_copy(state: State, job: Job) -> None:
    """Put a new copy into the log: spec, body and facts."""
    if state.is_recording:
        state.ready.records.append(copy_record(job))


def copy_record(job: Job) -> Record:
    """All that is stored of a live copy."""
    spec = job.live_spec
    stored_spec = (
        job.ctime, spec.queue, spec.retry_ms, spec.replicate, spec.is_explicit, spec.delay_ms, spec.ttl_ms,
        spec.priority, spec.max_deliveries, spec.dead_queue, dict(spec.headers),
    )  # fmt: skip
    return Record("job", (job.id, stored_spec, job.body, *stored_facts(job)[1:]))


def end_record(job: Job) -> Record:
    """All that is stored of a done entry."""
    assert job.reason is not None
    return Record("done", (job.id, int(job.reason), job.holders, job.told, job.expires_at))


def tell_others(
    state: State, job: Job, kind: type[msg.Queued | msg.Leased | msg.Told | msg.WillQueue]
) -> None:
    """Say our facts to every reachable holder."""
    to = others(state, job)
    if to:
        # who takes it for queued here asks as soon as this node fails: a hand-out from now on must be told
        job.word_at = 0 if kind is msg.Queued else state.now_ms
        send(state, to, kind(job.id, facts_of(state, job)))


def id_expiry(state: State, job: JobId) -> int:
    """ms; when an id of which only the id is known surely no longer matters (M14)."""
    return state.now_ms + (ttl_minutes(job) + 1) * 60_000 + state.limits.dummy_slack_ms


def told_expiry(state: State, job: JobId, expires_in: int) -> int:
    """ms; the end of a job's life as a peer tells it, and no later than its id says (M12)."""
    expires_at = state.now_ms + expires_in
    return expires_at if is_endless(job) else min(expires_at, id_expiry(state, job))


def answer_end(state: State, peer: NodeId, job: JobId) -> bool:
    """If the job is over here, say so to a peer that speaks of it as alive; True if it was (M6, M15)."""
    entry = state.jobs.get(job)
    if entry is not None:
        if not entry.is_done:
            return False
        send(state, (peer,), set_ack(state, entry))
        return True
    if not (state.tombstones or state.long_tombstones):
        return False
    grave = state.tombstones.get(job) or state.long_tombstones.get(job)
    if grave is not None:
        send(state, (peer,), msg.DelJob(job, grave.reason, grave.holders, grave.told))
        return True
    return False


def set_ack(state: State, job: Job) -> msg.SetAck:
    """The end of a job as this node knows it."""
    assert job.reason is not None, f"{job.id!r} isn't done"
    expires_in = max(0, job.expires_at - state.now_ms)
    return msg.SetAck(job.id, job.reason, job.holders, job.told, expires_in)


def answer_mark(state: State, peer: NodeId, job: JobId) -> bool:
    """A copy arrives for an id whose end we heard of without having it: say the end (M15)."""
    mark = state.marks.get(job) if state.marks else None
    if mark is None:
        return False
    send(state, (peer,), msg.SetAck(job, mark.reason, (), (), id_expiry(state, job) - state.now_ms))
    return True


def answer_unknown(state: State, peer: NodeId, job: JobId) -> None:
    """Say that there is no copy here (M15, M21)."""
    boot, clock, _ = gone_claim(state)
    send(state, (peer,), msg.Unknown(job, boot, clock))


def reason_or(ours: Reason | None, theirs: Reason) -> Reason:
    """The reason that stands when one more is heard (M4)."""
    joined = merge.reason(ours, theirs)
    assert joined is not None
    return joined


def merge_claim(state: State, job: Job, node: NodeId, claim: Claim) -> None:
    """Note what a node says about its own copy: has, or gone; it stays a holder (M3)."""
    job.claims = join_claim(state, job.claims, node, claim)


def own_word(state: State, job: Job) -> msg.GotJob:
    """That this node has stored a copy, for whoever counts copies."""
    boot, clock, _ = job.claims[state.self_id]
    return msg.GotJob(job.id, boot, clock)
