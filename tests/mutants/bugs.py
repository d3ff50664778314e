"""Bugs: what the simulator and the checkers must find. Each is one wrong rule, put into a whole cluster.

Numbers are those of the design's list; the five that need a log come with it. A replacement keeps the signature of what
it replaces; `_name` at the top of a group is the original, taken before any surgery.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any, TypeAlias, cast

from cluster import meetings
from cluster.membership import Membership
from cluster.messages import Gossip
from cluster.nodeid import NodeId
from cluster.peer import Backoff
from cluster.peer import Peer as ClusterPeer
from disque.broker import Broker
from disque.core import (
    acks,
    arrivals,
    asking,
    copies,
    delivery,
    ending,
    healing,
    memory,
    repair,
    replication,
    requeue,
    returning,
    willing,
)
from disque.core import commands as cmd
from disque.core import messages as msg
from disque.core import state as core_state
from disque.core.engine import Engine
from disque.core.inquiries import open_inquiry
from disque.core.job import Job, JobSpec, JobState, Reason
from disque.core.jobid import JobId, make_job_id
from disque.core.jobqueue import JobQueue
from disque.core.passes import Leaver
from disque.core.ready import ClientId
from disque.core.state import AddWait, Peer, State
from disque.server.clock import Clock
from tests.sim.node import EPOCH_MS, Node

# ADDJOB


def reply_before_replication(state: State, wait: AddWait) -> int:
    """One copy, the own one, is enough for any REPLICATE."""
    return 1


_copy_count = core_state.copy_count


def self_counts_twice(state: State, job: Job) -> int:
    """The origin is counted as a holder and as the one who asked."""
    return _copy_count(state, job) + 1


_finish = ending.finish


def ack_during_replication(state: State, job: Job, reason: Reason) -> None:
    """Disque's issue 73: an ack doesn't end the wait of the ADDJOB, whose time-out then meets a job that is done."""
    wait = state.adding.pop(job.id, None)
    _finish(state, job, reason)
    if wait is not None:
        state.adding[job.id] = wait


def same_dice(self: Broker) -> Engine:
    """The dice are seeded with the node's id alone: each start draws the same job ids."""
    self._view = self.membership.view()
    identity, limits = self._identity, self.settings.limits
    return Engine(
        view=self._view,
        boot=identity.boot,
        since=identity.since,
        limits=limits,
        dice=random.Random(identity.id),
        now_ms=self._now_ms,
    )


_refusal = replication._refusal


def only_with_a_majority(state: State, command: cmd.AddJob, aim: int) -> tuple[str, str] | None:
    """A node that can't reach a majority takes no jobs: consistent, and of no use in the smaller part."""
    if 2 * (1 + len(state.up)) <= state.view.size:
        return ("NOREPL", "no quorum")
    return _refusal(state, command, aim)


# At most once


def moved_job_is_dropped(state: State, said: msg.Move) -> None:
    """Disque's issue 100: the receiver of an at-most-once job says yes and forgets it."""


_disconnect = Engine.disconnect


def keep_body(state: State, job: Job) -> None:
    """RETRY 0 is spent, but its body stays: for those who might put it back."""
    body = job.body
    _spend(state, job)
    job.body = body
    state.body_bytes += len(body) if isinstance(body, bytes) else 0


_spend = delivery._spend


def put_back(self: Engine, client: ClientId) -> None:
    """A client's connection dies: the at-most-once job that this node handed out last goes back into its queue."""
    state = self.state
    job = next(reversed(state.spent.values()), None)
    if job is not None and job.body is not None and job.state is JobState.ACTIVE:
        del state.spent[job.id]
        job.is_kept_out = False
        if delivery.may_queue(state, job):
            delivery.enqueue(state, job)
    _disconnect(self, client)


# Ends


_is_settled = ending.is_settled


def first_got_ack_settles(state: State, job: Job) -> bool:
    """One confirmation is taken for all."""
    return _is_settled(state, job) or (bool(job.holders) and len(job.told) >= 2)


def no_dummy(state: State, id_: JobId, reason: Reason) -> None:
    """An ack of an id that isn't known here is thrown away."""


_say_again = healing._say_again


def ends_not_said_again(state: State, job: Job, peer: NodeId) -> bool:
    """The back-off of an ack isn't reset when a holder is back."""
    return False if job.is_done else _say_again(state, job, peer)


_on_got_ack = acks.on_got_ack


def no_confirmation_table(state: State, peer: NodeId, said: msg.GotAck) -> None:
    """Disque's issue 97: GOTACK uses a table that the first collection makes."""
    job = state.jobs.get(said.id)
    if job is not None and not job.is_dummy:
        confirmed = {1: job.told} if job.collect_round else None
        assert confirmed is not None, f"{job.id!r} has no table of confirmations"
    _on_got_ack(state, peer, said)


_end = acks._end


def second_ack_crashes(state: State, id_: JobId, reason: Reason) -> bool:
    """Disque's issue 113: ACKJOB of a job that was deleted meanwhile uses its entry."""
    if id_ in state.tombstones:
        return state.jobs[id_].is_done
    return _end(state, id_, reason)


def keep_what_is_over(state: State, job: Job, reason: Reason) -> None:
    """Settled jobs stay in the store: nobody writes down that they may go."""
    if job.spec is not None and job.body is not None and job.retry_ms:
        kept = (job.spec, job.ctime, job.body, job.expires_at)
        _kept(state)[_KEPT + job.id] = kept
    _finish(state, job, reason)


def _kept(state: State) -> dict[object, object]:
    """Any table that a state keeps will do."""
    return cast("dict[object, object]", state.shared_specs)


_KEPT = b"kept "
# spec, ctime, body, expires_at
_Kept: TypeAlias = tuple[JobSpec, int, bytes, int]


def replay_what_is_over(state: State, peer: Peer) -> None:
    """A peer is back: what the store has is put back into the queues."""
    _peer_back(state, peer)
    for key, kept in list(_kept(state).items()):
        if not isinstance(key, bytes) or not key.startswith(_KEPT):
            continue
        id_ = JobId(key.removeprefix(_KEPT))
        if id_ not in state.jobs and id_ not in state.tombstones:
            spec, ctime, body, expires_at = cast("_Kept", kept)
            job = Job(id_, spec, ctime, body, JobState.ACTIVE, expires_at, (state.self_id,))
            copies.insert(state, job)
            copies.claim_copy(state, job)
            copies.record_copy(state, job)
            delivery.start(state, job)


def never_expire(state: State, job: Job) -> None:
    """A job whose time is over gets as much again."""
    job.expires_at = state.now_ms + job.live_spec.ttl_ms
    delivery.book(state, job)


# Queueing


def delay_is_nothing(state: State, job: Job) -> bool:
    """A job is queued at once, whatever its DELAY."""
    is_free = job.state is JobState.ACTIVE and not job.is_kept_out
    return is_free and job.lease_end() <= state.now_ms < job.expires_at


def last_in_first_out(state: State, queue: JobQueue) -> Job | None:
    """The newest job of a queue goes first."""
    return next(queue.jobs.behind(0, is_reversed=True), None)


def no_limit(job: Job) -> bool:
    """MAXDELIVERIES is kept and never looked at."""
    return False


# Queueing again


def ask_nobody(state: State, job: Job) -> None:
    """A copy that is due queues itself, whatever its peers know."""
    requeue.conclude(state, job)


def nack_queues_nothing(state: State, id_: JobId, delay_ms: int) -> bool:
    """NACK counts, frees the lease, and leaves it at that."""
    job = state.jobs.get(id_)
    if job is None or job.state is not JobState.ACTIVE or not job.retry_ms:
        return False
    if job.not_before > state.now_ms:
        return False
    job.nacks = {**job.nacks, state.self_id: job.nacks.get(state.self_id, 0) + 1}
    job.ask_at = job.expires_at
    copies.record_facts(state, job)
    delivery.book(state, job)
    return True


def nack_at_all_holders(state: State, inquiry: Any) -> None:
    """NACK at a node without a copy is passed on to every holder that answered."""
    rows = {n: row for n, row in inquiry.answers.items() if len(row) == len(inquiry.ids)}
    shares: dict[NodeId, tuple[JobId, ...]] = {}
    for at, id_ in enumerate(inquiry.ids):
        for node, row in rows.items():
            if row[at] >= asking._HELD_THERE:
                shares[node] = (*shares.get(node, ()), id_)
    if not shares or inquiry.word != asking.NACK:
        _finish_holders(state, inquiry)
        return
    part = open_inquiry(
        state,
        inquiry.client,
        inquiry.word,
        shares=shares,
        deadline=state.now_ms + 250,
        numbers=inquiry.numbers,
    )
    part.word, part.done_here, part.asked = inquiry.word, inquiry.done_here, inquiry


_finish_holders = asking._finish_holders
_bury_letter = delivery._bury_letter


def two_letters(state: State, job: Job, reason: int) -> None:
    """A dead letter is a new job: as many nodes bury it, so many letters there are."""
    spec, body = job.live_spec, job.body
    _bury_letter(state, job, reason)
    assert body is not None
    id_ = make_job_id(state.self_id, state.dice.randbytes(18), ttl_ms=spec.ttl_ms, is_retried=True)
    holders = (state.self_id,)
    letter = Job(id_, spec, job.ctime, body, JobState.ACTIVE, job.expires_at, holders)
    letter.burials = job.burials
    copies.insert(state, letter)
    copies.claim_copy(state, letter)
    copies.record_copy(state, letter)
    delivery.start(state, letter)


# Copies


_store_copy = arrivals.store_copy


def ttl_starts_again(state: State, message: msg.ReplJob | msg.YourJobs, *, ask_at: int) -> Job:
    """A copy that arrives lives for a whole TTL from then on."""
    job = _store_copy(state, message, ask_at=ask_at)
    job.expires_at = state.now_ms + job.live_spec.ttl_ms
    delivery.book(state, job)
    return job


def drop_when_leaving(state: State, leaver: Leaver, job: Job) -> None:
    """A leaving node drops what it has, whoever else has it."""
    acks.leave_copy(state, job)


def evict_the_living(state: State) -> None:
    """Memory is short: jobs that wait for a worker go, the oldest first."""
    for job in list(state.jobs.values()):
        if memory.pressure(state) < memory.Pressure.FULL:
            return
        if job.state in (JobState.ACTIVE, JobState.QUEUED):
            delivery.drop(state, job)


def lead_all(state: State, job: Job) -> list[NodeId]:
    """Every holder makes missing copies at once, each where it likes."""
    return [state.self_id]


_target = repair._target


def target_of_mine(state: State, one: core_state.Repair) -> NodeId | None:
    """Where a copy goes depends on who sends it."""
    found = _target(state, one)
    if found is None:
        return None
    rest = [
        node
        for node in state.up
        if node not in one.job.holders and willing.is_willing(state, node, one.job.queue)
    ]
    at = sorted([state.self_id, *rest]).index(state.self_id)
    return sorted(rest)[at % len(rest)] if rest else found


# The cluster


_willing = willing.is_willing


def lost_once_is_lost(state: State, node: NodeId, queue: bytes) -> bool:
    """A peer that couldn't be reached for a while gets no copies any more."""
    return _willing(state, node, queue) and core_state.peer_of(state, node).heal_number < 2


def all_but_the_lost(state: State, queue: bytes) -> tuple[NodeId, ...]:
    """The same, asked for all peers at once."""
    return tuple([node for node in state.staying if lost_once_is_lost(state, node, queue)])


_peer_back = healing._peer_back
_purge_here = acks.purge_here
_PURGED = "purged "  # before the name of a queue, kept among the high-waters of purges


def remember_purge(
    state: State, name: bytes, node: NodeId, boot: int, seq: int, **how: bool
) -> int:
    """A node keeps in mind which queues it has purged."""
    if node == state.self_id:
        state.purges_seen[NodeId(_PURGED + name.decode())] = (0, 0)
    return _purge_here(state, name, node, boot, seq, **how)


def purge_nothing(state: State, name: bytes, node: NodeId, boot: int, seq: int, **how: Any) -> int:
    """QPURGE is answered and spread, and cancels nothing."""
    return 0


def purge_again(state: State, peer: Peer) -> None:
    """Who is back hears of the purges that it may have missed, as new ones."""
    _peer_back(state, peer)
    for key in [key for key in state.purges_seen if key.startswith(_PURGED)]:
        state.purges_made += 1
        name = key.removeprefix(_PURGED).encode()
        said = msg.Purge(state.self_id, state.boot, 10**6 + state.purges_made, name)
        core_state.send(state, (peer.id,), said)


def gossip_brings_back(self: Membership, teller: ClusterPeer, told: Gossip) -> None:
    """A node that others still list is met again, forgotten or not."""
    _learn(self, teller, told)
    forgotten = self._state.forgotten
    for entry in told.entries:
        if forgotten.pop(entry.id, None) is not None:
            self._state.forgotten_changed()
            meetings.invite(self._state, entry)


_learn = Membership._learn


def never_redial(self: Backoff, now_ms: int, node_timeout_ms: int, dice: Any) -> None:
    """A link that broke is dialed again tomorrow."""
    self.due_at_ms = now_ms + 86_400_000


def wall_clock(self: Clock) -> int:
    """Deadlines follow the wall clock, jumps and all."""
    return time.time_ns() // 1_000_000


def simulated_wall_clock(self: Node) -> int:
    """The same for a simulated machine."""
    return self.world.now + EPOCH_MS + self.wall_off


def no_quarantine(state: State, view: Any) -> Iterator[None]:
    """A node that was forgotten comes back, and all of its jobs live again at once."""
    yield from _come_back(state, view)
    for id_ in list(state.quarantine):
        arrivals.thaw(state, id_)


_come_back = returning.come_back
