"""Looking through queues and jobs: QPEEK, QSCAN, JSCAN; and PAUSE, which an operator finds beside them.

A scan walks over a snapshot of the names that were there at its start, so whatever stays throughout is returned. The
snapshots of unfinished scans are few and bounded; one that was dropped starts again under a new cursor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice

from cluster.nodeid import NodeId
from disque.core import commands as cmd
from disque.core import merge
from disque.core import messages as msg
from disque.core.copies import body_size
from disque.core.delivery import queue_of, serve
from disque.core.introspection import PAUSE_NAMES, queue_fields, shown, state_name, status_of
from disque.core.job import Job, Role
from disque.core.jobid import JobId
from disque.core.jobqueue import PAUSE_IN, PAUSE_OUT, JobQueue
from disque.core.listing import listed
from disque.core.passes import SEEN_SETS, Scan
from disque.core.ready import ClientId, Reply, Status
from disque.core.state import State, is_name, record, reply, send

_SCANS_MAX = 64
_SCANNED_NAMES_MAX = 4_000_000  # over all snapshots
CURSOR_BITS = 32  # of a cursor, for the position; above them the scan's number


def queue_peek(state: State, client: ClientId, command: cmd.QPeek) -> None:
    """QPEEK: the next jobs of a queue here as `[queue, id, body]`, until the answer is full; a negative count: from the
    other end."""
    queue = state.queues.get(command.queue)
    found: list[Reply] = []
    size = 0
    if queue is not None:
        jobs = queue.jobs.behind(command.skip, is_reversed=command.count < 0)
        for job in islice(jobs, abs(command.count)):
            found.append([queue.name, job.id, job.body])
            size += body_size(job)
            if size >= state.limits.answer_bytes_max:
                break
    reply(state, client, found)


def queue_scan(state: State, client: ClientId, command: cmd.QScan) -> None:
    """QSCAN: `[cursor, queues]`, each its name, or (REPLY ALL) what QSTAT GLOBAL would say if this node were alone."""

    def shown_queue(name: bytes) -> Reply:
        queue = state.queues.get(name)
        if queue is None:
            is_wanted = command.is_full and name in state.tallies
        else:
            is_wanted = _is_wanted(state, queue, command)
        if not is_wanted:
            return None
        return queue_fields(name, [status_of(state, name)]) if command.is_full else name

    def snapshot() -> Scan:
        sources: list[Iterable[bytes]] = [state.queues]
        if command.is_full and not (command.length_min or command.import_rate_min):
            # And those whose jobs are all delivered or delayed, or copies of what another node queues
            sources.append(state.tallies)
        return Scan(kind, listed(*sources), len(state.queues))

    kind = "queues in full" if command.is_full else "queues"
    _scan(state, client, kind, command.cursor, command.count, snapshot, shown_queue, lambda _: 0)


def _is_wanted(state: State, queue: JobQueue, command: cmd.QScan) -> bool:
    if command.length_min is not None and len(queue) < command.length_min:
        return False
    if command.length_max is not None and len(queue) > command.length_max:
        return False
    if command.import_rate_min is None:
        return True
    limits = state.limits
    rate = queue.import_rate(
        state.now_ms, window_ms=limits.import_window_ms, divisor_min_ms=limits.import_divisor_min_ms
    )
    return rate >= command.import_rate_min


def job_scan(state: State, client: ClientId, command: cmd.JScan) -> None:
    """JSCAN: `[cursor, jobs]`, each a status with its id, or what SHOW says; ends without a job are left out."""

    def shown_job(name: bytes) -> Reply:
        job = state.jobs.get(JobId(name))
        if job is None or job.spec is None:
            return None
        if command.queue is not None and job.queue != command.queue:
            return None
        if command.states and not _is_in_state(job, command.states):
            return None
        return shown(state, job) if command.is_full else Status(job.id)

    def size_of(name: bytes) -> int:
        return body_size(state.jobs[JobId(name)]) if command.is_full else 0

    def snapshot() -> Scan:
        return Scan("jobs", listed(state.jobs), len(state.jobs))

    _scan(state, client, "jobs", command.cursor, command.count, snapshot, shown_job, size_of)


def _is_in_state(job: Job, states: tuple[bytes, ...]) -> bool:
    """Disque's four states are those of this node's copy; delivered and delayed are what it accounts for (QSTAT)."""
    return state_name(job) in states or _ROLE_NAMES.get(job.role) in states


_ROLE_NAMES = {Role.DELIVERED: b"delivered", Role.DELAYED: b"delayed"}


def _scan(
    state: State,
    client: ClientId,
    kind: str,
    cursor: int,
    count: int | None,
    snapshot: Callable[[], Scan],
    show: Callable[[bytes], Reply],
    size_of: Callable[[bytes], int],
) -> None:
    number, position = cursor >> CURSOR_BITS, cursor & ((1 << CURSOR_BITS) - 1)
    scan = state.scans.pop(number, None)
    if scan is None or scan.kind != kind:
        state.scans_made += 1
        number, position, scan = state.scans_made, 0, snapshot()
    end = len(scan.names) if count is None else min(len(scan.names), position + 10 * count)
    found: list[Reply] = []
    left = state.limits.answer_bytes_max
    while position < end and (count is None or (len(found) < count and left > 0)):
        name = scan.names[position]
        each = None if _is_double(scan, position) else show(name)
        position += 1
        if each is not None:
            found.append(each)
            left -= size_of(name)
    if position >= len(scan.names):
        number = position = 0
    else:
        _keep_scan(state, number, scan)
    reply(state, client, [b"%d" % ((number << CURSOR_BITS) | position), found])


def _is_double(scan: Scan, position: int) -> bool:
    """True if the name stood at an earlier position; to look for all of them at the start would take long."""
    if scan.doubles_from == len(scan.names):
        return False
    name = scan.names[position]
    seen = scan.seen[hash(name) % SEEN_SETS]
    if position >= scan.doubles_from:
        return name in seen
    seen.add(name)
    return False


def _keep_scan(state: State, number: int, scan: Scan) -> None:
    scans = state.scans
    scans[number] = scan
    total = sum([len(each.names) for each in scans.values()])
    while len(scans) > 1 and (len(scans) > _SCANS_MAX or total > _SCANNED_NAMES_MAX):
        total -= len(scans.pop(next(iter(scans))).names)


def pause_queue(state: State, client: ClientId, command: cmd.Pause) -> None:
    """PAUSE: this node's flags, or with BCAST the cluster's; the reply is what is in force here (reference 1.12)."""
    if command.flags is not None:
        if command.is_cluster:
            _pause_cluster(state, command.queue, command.flags)
        else:
            _pause_here(state, command.queue, command.flags)
    queue = state.queues.get(command.queue)
    if queue is not None:
        flags = queue.pause_flags
    else:
        flags = state.pauses.get(command.queue, (0, state.self_id, 0))[2]
    reply(state, client, Status(PAUSE_NAMES[flags]))


def _pause_here(state: State, name: bytes, flags: int) -> None:
    queue = queue_of(state, name) if flags else state.queues.get(name)
    if queue is None:
        return
    queue.pause = flags
    _resume(state, queue)


def _resume(state: State, queue: JobQueue) -> None:
    """After a change of flags: if nothing holds deliveries back, serve who waits here and elsewhere (U18)."""
    if queue.is_paused_out:
        return
    serve(state, queue)
    if queue.jobs and queue.is_wanted:
        state.offered[queue.name] = None


def _pause_cluster(state: State, name: bytes, flags: int) -> None:
    known = state.pauses.get(name)
    stamp = max(state.now_ms, 0 if known is None else known[0] + 1)
    learn_pause(state, name, stamp, state.self_id, flags)
    send(state, state.up, msg.Pause(name, stamp, state.self_id, flags))


def on_pause(state: State, _peer: NodeId, said: msg.Pause) -> None:
    """A peer tells of a queue's flags in the cluster."""
    if is_name(state, said.queue):
        learn_pause(state, said.queue, said.stamp, said.node, said.flags & (PAUSE_IN | PAUSE_OUT))


def _least_needed(pauses: Mapping[bytes, tuple[int, NodeId, int]]) -> bytes:
    """The queue whose flags may be forgotten: the oldest one that has none, else the oldest."""
    for queue, (_, _, flags) in pauses.items():
        if not flags:
            return queue
    return next(iter(pauses))


def learn_pause(state: State, name: bytes, stamp: int, node: NodeId, flags: int) -> None:
    """Flags of a queue for the whole cluster: the later writer wins; cleared clears the node's own, too (M18)."""
    ours, theirs = state.pauses.get(name), (stamp, node, flags)
    if ours is not None and merge.pause(ours, theirs) == ours:
        return
    state.pauses.pop(name, None)
    state.pauses[name] = theirs
    record(state, "pause", name, *theirs)
    if len(state.pauses) > state.limits.pauses_max:
        del state.pauses[_least_needed(state.pauses)]
    queue = state.queues.get(name)
    if queue is not None:
        queue.cluster_pause = flags
        if not flags:
            queue.pause = 0
        _resume(state, queue)
