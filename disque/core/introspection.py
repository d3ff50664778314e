"""What a person may ask: SHOW, QLEN, QSTAT, the figures of INFO; and the invariants that tests ask for."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from cluster.nodeid import NodeId
from disque.core import commands as cmd
from disque.core.copies import others, spec_bytes
from disque.core.delivery import due_at, names_bytes
from disque.core.job import DEAD_BY_NACK, DEAD_BY_RETRY, Job, JobState, Paged, Role
from disque.core.jobid import JobId
from disque.core.jobqueue import JobQueue, place_of
from disque.core.memory import used_memory
from disque.core.ready import ClientId, NilArray, Reply
from disque.core.sleeper import UNBOOKED
from disque.core.state import ByState, State, Tally, is_counted, reply
from disque.core.value import value

_STATE_NAMES = {
    JobState.WAITING: b"wait-repl",
    JobState.ACTIVE: b"active",
    JobState.QUEUED: b"queued",
    JobState.MOVING: b"active",
    JobState.DONE: b"acked",
}
PAUSE_NAMES = (b"none", b"in", b"out", b"all")


@value
class Statistics:
    """Figures of one node at one moment."""

    registered_jobs: int
    registered_queues: int
    waiting_jobs: int
    active_jobs: int
    queued_jobs: int
    moving_jobs: int
    done_jobs: int
    dummies: int
    tombstones: int
    marks: int
    blocked_clients: int
    body_bytes: int
    added_total: int
    delivered_total: int
    acked_total: int
    norepl_total: int
    spec_conflicts: int
    moves_in_doubt: int
    bad_payloads: int
    delivered_jobs: int
    delayed_jobs: int
    under_replicated_jobs: int
    dead_lettered_total: int
    cancelled_total: int
    forward_timeouts: int
    used_memory: int
    nacked_total: int
    redelivered_total: int
    dummies_evicted: int
    tombstones_evicted: int
    marks_evicted: int
    queues_refused: int
    queue_names_refused: int
    blocked_refused: int


def statistics(state: State) -> Statistics:
    """Counters kept at each transition; never a scan."""
    by_state, counts = state.by_state, state.counts
    return Statistics(
        registered_jobs=len(state.jobs),
        registered_queues=len(state.queues),
        waiting_jobs=by_state.waiting,
        active_jobs=by_state.active,
        queued_jobs=by_state.queued,
        moving_jobs=by_state.moving,
        done_jobs=by_state.done,
        dummies=len(state.dummies),
        tombstones=len(state.tombstones) + len(state.long_tombstones),
        marks=len(state.marks),
        blocked_clients=len(state.getting) + len(state.adding_of),
        body_bytes=state.body_bytes,
        added_total=counts.added,
        delivered_total=counts.delivered,
        acked_total=counts.acked,
        norepl_total=counts.norepl,
        spec_conflicts=counts.spec_conflicts,
        moves_in_doubt=counts.moves_in_doubt,
        bad_payloads=counts.bad_payloads,
        delivered_jobs=state.total.delivered,
        delayed_jobs=state.total.delayed,
        under_replicated_jobs=len(state.under_replicated),
        dead_lettered_total=counts.dead_lettered,
        cancelled_total=counts.cancelled,
        forward_timeouts=counts.forward_timeouts,
        used_memory=used_memory(state),
        nacked_total=counts.nacked,
        redelivered_total=counts.redelivered,
        dummies_evicted=counts.dummies_evicted,
        tombstones_evicted=counts.tombstones_evicted,
        marks_evicted=counts.marks_evicted,
        queues_refused=counts.queues_refused,
        queue_names_refused=counts.queue_names_refused,
        blocked_refused=counts.blocked_refused,
    )


def show(state: State, client: ClientId, command: cmd.Show) -> None:
    """SHOW: pairs as a flat array, nil if the id isn't known here (reference 1.6)."""
    job = state.jobs.get(command.id)
    reply(state, client, None if job is None else shown(state, job))


def state_name(job: Job) -> bytes:
    """The word that Disque has for a job's state."""
    return _STATE_NAMES[job.state]


def shown(state: State, job: Job) -> list[Reply]:
    """What SHOW says of a job: pairs as a flat array, Disque's 15 first, ours after them."""
    spec, now = job.spec, state.now_ms
    confirmed: list[Reply] = [node.encode() for node in _confirmed(state, job)]
    due_in: int | None = None
    if job.state is JobState.ACTIVE and not job.is_kept_out:
        due_in = max(0, due_at(job) - now)
    pairs: list[tuple[bytes, Reply]] = [
        (b"id", job.id),
        (b"queue", job.queue if spec is not None else None),
        (b"state", _STATE_NAMES[job.state]),
        (b"repl", spec.replicate if spec is not None else 0),
        (b"ttl", max(0, job.expires_at - now) // 1000),
        (b"ctime", job.ctime),
        (b"delay", spec.delay_ms // 1000 if spec is not None else 0),
        (b"retry", spec.retry_ms // 1000 if spec is not None else 0),
        (b"nacks", job.nack_count),
        (b"additional-deliveries", job.additional_deliveries),
        (b"nodes-delivered", [node.encode() for node in job.holders]),
        (b"nodes-confirmed", confirmed),
        (b"next-requeue-within", due_in),
        (b"next-awake-within", None if job.wake_at == UNBOOKED else max(0, job.wake_at - now)),
        (b"body", job.body),
        (b"priority", spec.priority if spec is not None else 0),
        (b"max-deliveries", spec.max_deliveries if spec is not None else 0),
        (b"deliveries", job.delivery_count),
        (b"dead-letter", spec.dead_queue if spec is not None else None),
        (b"reason", _death_reason(job)),
        (
            b"headers",
            [] if spec is None else [each for pair in spec.headers.items() for each in pair],
        ),
        (b"own-queue", spec.queue if spec is not None else None),
    ]
    return [item for pair in pairs for item in pair]


def _death_reason(job: Job) -> bytes | None:
    """Why the job is a dead letter, None if it isn't."""
    if not job.is_dead or job.burials is None:
        return None
    return {DEAD_BY_NACK: b"nack", DEAD_BY_RETRY: b"retry"}.get(job.burials.reason)


def _confirmed(state: State, job: Job) -> list[NodeId]:
    """While live: nodes known to have a copy; when done: nodes known to have stored that."""
    if job.is_done:
        return list(job.told)
    return sorted([n for n, claim in job.claims.items() if is_counted(state, n, claim)])


def queue_length(state: State, client: ClientId, command: cmd.QLen) -> None:
    """QLEN: jobs queued here."""
    reply(state, client, length_of(state, command.queue))


def length_of(state: State, name: bytes) -> int:
    """Jobs of a queue queued here."""
    queue = state.queues.get(name)
    return 0 if queue is None else len(queue)


def status_of(state: State, name: bytes) -> tuple[int, ...]:
    """What QSTAT GLOBAL sums over nodes; all from counters.

    (known here, len, oldest age in s + 1 or 0, delivered, delayed, done, copies, blocked, jobs-in, jobs-out, pause).
    """
    queue, tally = state.queues.get(name), state.tallies.get(name)
    if tally is None:
        tally = Tally()
    counted = (tally.delivered, tally.delayed, tally.done, tally.copies)
    if queue is None:
        pause = state.pauses[name][2] if name in state.pauses else 0
        return (int(tally.copies > 0 or pause > 0), 0, 0, *counted, 0, 0, 0, pause)
    oldest = waiting_since(queue)
    age = 0 if oldest is None else max(0, state.now_ms - oldest) // 1000 + 1
    moved = (len(queue.blocked), queue.jobs_in, queue.jobs_out, queue.pause_flags)
    return (1, len(queue), age, *counted, *moved)


_SUMMED = (b"delivered", b"delayed", b"acked", b"copies", b"blocked", b"jobs-in", b"jobs-out")


def queue_fields(name: bytes, rows: Sequence[tuple[int, ...]]) -> list[Reply]:
    """What `status_of` said at one node or at several, summed, as pairs in a flat array (QSTAT GLOBAL)."""
    oldest = max([row[2] for row in rows])
    pause = 0
    for row in rows:
        pause |= row[10] & 3
    pairs: list[tuple[bytes, Reply]] = [
        (b"name", name),
        (b"len", sum([row[1] for row in rows])),
        (b"oldest-age", oldest - 1 if oldest else None),
        *[(field, sum([row[at] for row in rows])) for at, field in enumerate(_SUMMED, start=3)],
        (b"pause", PAUSE_NAMES[pause]),
    ]
    return [item for pair in pairs for item in pair]


def waiting_since(queue: JobQueue) -> int | None:
    """ms; when the queued job that has waited longest, whatever its priority, could first be delivered; None if empty.

    Jobs lie by age: behind the first without a DELAY none has waited longer. Of those before it so few are looked at
    that this is no scan; where more lie there, the answer may be too late.
    """
    since: list[int] = []
    rank = 0
    while ahead := list(islice(queue.jobs.starting_at((rank, 0, JobId(b""))), _LOOKED_AT)):
        for job in ahead:
            since.append(_deliverable_at(job))
            if not job.live_spec.delay_ms:
                break
        rank = place_of(ahead[0])[0] + 1
    return min(since, default=None)


_LOOKED_AT = 16


def _deliverable_at(job: Job) -> int:
    """ms; its creation, or the end of its DELAY, which an ENQUEUE may have brought forward."""
    created_at, delay_ms = job.ctime // 1_000_000, job.live_spec.delay_ms
    return min(created_at + delay_ms, job.not_before) if delay_ms else created_at


def queue_status(state: State, client: ClientId, command: cmd.QStat) -> None:
    """QSTAT: ten pairs as a flat array, a nil array if the queue isn't known here (reference 1.10)."""
    queue = state.queues.get(command.queue)
    reply(state, client, NilArray() if queue is None else _queue_shown(state, queue))


def _queue_shown(state: State, queue: JobQueue) -> list[Reply]:
    now, limits = state.now_ms, state.limits
    exchange = queue.exchange
    responders = {} if exchange is None else exchange.responders
    sources: list[Reply] = [
        n.encode() for n, at in responders.items() if now - at <= limits.responder_ms
    ]
    rate = queue.import_rate(
        now, window_ms=limits.import_window_ms, divisor_min_ms=limits.import_divisor_min_ms
    )
    pairs: list[tuple[bytes, Reply]] = [
        (b"name", queue.name),
        (b"len", len(queue)),
        (b"age", (now - queue.created_at) // 1000),
        (b"idle", (now - queue.accessed_at) // 1000),
        (b"blocked", len(queue.blocked)),
        (b"import-from", sources),
        (b"import-rate", rate),
        (b"jobs-in", queue.jobs_in),
        (b"jobs-out", queue.jobs_out),
        (b"pause", PAUSE_NAMES[queue.pause_flags]),
    ]
    return [item for pair in pairs for item in pair]


def check(state: State) -> None:
    """Assert the invariants that one node can see (merge-rules C: S1, S9-S11, S14); costs a scan, for tests."""
    by_state = ByState()
    body_bytes = paged_bytes = 0
    queued: dict[bytes, list[Job]] = {}
    for id_, job in state.jobs.items():
        assert id_ == job.id
        by_state.count(job.state, 1)
        if isinstance(job.body, Paged):
            paged_bytes += job.body.size
        elif job.body is not None:
            body_bytes += len(job.body)
        assert id_ not in state.tombstones, f"{id_!r} is known and buried"
        assert id_ not in state.long_tombstones, f"{id_!r} is known and buried"
        if job.state is JobState.QUEUED:
            queued.setdefault(job.queue, []).append(job)
        _check_job(state, job)
        if not job.is_done:
            _check_claim(state, job)
    assert by_state == state.by_state, f"counted {by_state}, kept {state.by_state}"
    assert body_bytes == state.body_bytes, f"counted {body_bytes}, kept {state.body_bytes}"
    assert paged_bytes == state.paged_bytes, f"counted {paged_bytes}, kept {state.paged_bytes}"
    _check_names(state)
    for name, queue in state.queues.items():
        assert list(queue.jobs) == sorted(queued.pop(name, []), key=place_of), f"order of {name!r}"
        assert not (queue.jobs and queue.blocked) or queue.is_paused_out, (
            f"{name!r}: jobs beside waiters"
        )
    assert not queued, f"in no queue: {queued}"
    _check_tallies(state)
    _check_waits(state)


def _check_names(state: State) -> None:
    kept = sum([spec_bytes(job.spec) for job in state.jobs.values() if job.spec is not None])
    assert kept == state.spec_bytes, f"counted {kept}, kept {state.spec_bytes}"
    names = sum(map(len, state.queues)) + sum(map(names_bytes, state.getting.values()))
    assert names == state.name_bytes, f"counted {names}, kept {state.name_bytes}"
    asked = sum([len(inquiry.ids) for inquiry in state.inquiries.values()])
    assert asked == state.asked_ids, f"counted {asked}, kept {state.asked_ids}"
    topics = [*state.topics.chosen.values()]
    heard = sum([len(name) for channels, _ in topics for name in channels])
    heard += sum([len(name) for _, patterns in topics for _, name in patterns])
    assert heard == state.topics.name_bytes, f"counted {heard}, kept {state.topics.name_bytes}"
    posts = state.posts
    cost = sum([post.cost for post in posts.waiting])
    assert cost == posts.bytes, f"counted {cost}, kept {posts.bytes}"
    assert all(post in posts.waiting for post in posts.asking.values())
    assert posts.waiting or not posts.since


def _check_claim(state: State, job: Job) -> None:
    """A copy that lives has its node's claim: whoever asks is told so, and it counts (M3)."""
    if job.retry_ms and job.state in (JobState.ACTIVE, JobState.QUEUED):
        assert state.self_id in job.claims, (
            f"{job.id!r} is {job.state.name} and no copy of this node"
        )


def _check_tallies(state: State) -> None:
    tallies: dict[bytes, Tally] = {}
    total = Tally()
    for job in state.jobs.values():
        if job.spec is None:
            continue
        tally = tallies.setdefault(job.queue, Tally())
        tally.copies += 1
        tally.done += job.is_done
        for each in (tally, total):
            each.delivered += job.role is Role.DELIVERED
            each.delayed += job.role is Role.DELAYED
    assert tallies == state.tallies, f"counted {tallies}, kept {state.tallies}"
    assert total == state.total, f"counted {total}, kept {state.total}"


def _check_job(state: State, job: Job) -> None:
    now = state.now_ms
    assert job.wake_at != UNBOOKED, f"nothing wakes {job}"
    if job.is_done:
        assert job.body is None, f"{job.id!r} is done and has a body"
        assert job.reason is not None
        assert state.self_id in job.told, f"{job.id!r} is done here, told {job.told}"
        assert (job.id in state.dummies) == (not job.holders), f"{job}"
        assert (job.id in state.undone) == bool(job.holders), f"{job}"
        return
    wait = state.adding.get(job.id)
    is_external = wait is not None and wait.is_external
    assert state.self_id in job.holders, f"held here, holders say {job.holders}"
    assert job.reason is None, f"{job}"
    is_waiting = job.state is JobState.WAITING or (is_external and job.state is JobState.MOVING)
    assert (wait is not None) == is_waiting, f"{job}"
    if job.state is JobState.QUEUED:
        assert not job.is_kept_out, f"{job}"
        assert job.not_before <= now, f"queued before its time: {job}"
        assert job.lease_end() <= now, f"queued though leased: {job}"
    if job.retry_ms:
        if not job.nacks:  # a NACK with DELAY leases for longer
            for _, end in job.leases.values():
                assert end <= now + job.retry_ms, f"a lease beyond RETRY: {job}"
    else:
        assert not others(state, job), f"RETRY 0 with other holders: {job}"
        assert job.delivery_count <= 1, f"RETRY 0 dispatched {job.delivery_count} times"


def _check_waits(state: State) -> None:
    for client, wait in state.getting.items():
        for name in wait.queues:
            assert client in state.queues[name].blocked
    for name, queue in state.queues.items():
        for blocked in queue.blocked:
            assert name in state.getting[ClientId(blocked)].queues
    waits = {wait.client: id_ for id_, wait in state.adding.items() if wait.client is not None}
    assert waits == state.adding_of
    limits = state.limits
    assert len(state.tombstones) <= limits.tombstones_max
    assert len(state.marks) <= limits.marks_max
    assert len(state.absences) <= limits.absences_max
    assert state.absences.keys() & state.jobs.keys() <= state.dummies.keys()
    assert len(state.dummies) <= limits.dummies_max
    assert len(state.spent) <= limits.spent_max
