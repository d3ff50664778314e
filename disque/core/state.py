"""Everything one node knows, explicit and in one place, and the few words to say something about it.

The modules above are plain functions over a State. Nothing here decides anything about a job.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping
from hashlib import blake2b
from typing import Protocol, TypeAlias

import attrs

from cluster.nodeid import NodeId
from cluster.view import ClusterView
from disque.core.agenda import Agenda
from disque.core.histogram import Histogram
from disque.core.job import (
    ACTIVE,
    DONE,
    QUEUED,
    WAITING,
    Claim,
    Claims,
    Job,
    JobSpec,
    JobState,
    Reason,
)
from disque.core.jobid import JobId
from disque.core.jobqueue import JobQueue, Place
from disque.core.limits import Limits
from disque.core.messages import Facts, Message
from disque.core.passes import Chore, Leaver, Pager, Repairer, Returning, Scan, Sweep, Trash, Walk
from disque.core.posts import Posts
from disque.core.ready import ClientId, Failure, Ready, Record, Reply
from disque.core.sleeper import Sleeper
from disque.core.topics import Topics


class Dice(Protocol):
    """Where chance comes from; random.Random is one."""

    def randbytes(self, n: int, /) -> bytes:
        """n random bytes."""
        ...

    def randrange(self, stop: int, /) -> int:
        """A random number from 0 to stop - 1."""
        ...


# The fields of a JobSpec but its headers, in order.
SpecKey: TypeAlias = tuple[bytes, int, int, bool, int, int, int, int, bytes]

_COUNTED_MAX = 10_000


@attrs.define(eq=False)
class Mould:
    """What a job has in common with the next one, if that is of the same spec."""

    spec: JobSpec
    head: bytes  # of their ids
    tail: bytes


@attrs.define(eq=False)
class Join:
    """The claims of a job, one that was heard, and what they come to: mostly the next job's do, too."""

    claims: Claims
    node: NodeId
    claim: Claim
    joined: Claims


@attrs.define(eq=False)
class Stored:
    """What came of a copy that a peer sent of which nothing but the copies was told: the same comes of those alike."""

    facts: Facts
    said: JobSpec
    spec: JobSpec
    holders: tuple[NodeId, ...]
    claims: Claims
    expires_in: int  # for ids with the same TTL
    ttl_digits: bytes


@attrs.define(eq=False)
class AddWait(Sleeper):
    """An ADDJOB that waits for copies."""

    client: ClientId | None  # None: ASYNC at a node that keeps no copy, answered already
    job: Job
    wanted: int | None  # REPLICATE if it was given, None: as many as can be had (M25)
    deadline: int | None  # ms, None: no time-out
    started_at: int  # ms
    next_step: int  # ms; when one more node is asked
    step_ms: int
    extra_left: int  # nodes that may still be asked beyond the first targets
    is_external: bool = False  # this node keeps no copy: it is full, or leaving
    refused: dict[NodeId, None] = attrs.Factory(dict)  # peers that were asked to take a RETRY 0 job
    first_holders: tuple[NodeId, ...] = ()  # when it began to wait

    @property
    def is_answered(self) -> bool:
        """True if the client has its id: whatever happens now, it is no NOREPL (S8)."""
        return self.client is None


@attrs.define(eq=False, weakref_slot=False)
class GetWait(Sleeper):
    """A GETJOB that waits for a job; it is booked at its time-out."""

    client: ClientId
    queues: tuple[bytes, ...]
    with_counters: bool


@attrs.define(eq=False)
class Inquiry(Sleeper):
    """A question to the cluster that a client waits for; it is booked at its time-out."""

    number: int
    client: ClientId | None
    kind: int
    queue: bytes
    ids: tuple[JobId, ...]
    numbers: tuple[int, ...]
    deadline: int | None  # ms; None: until each member answered or failed
    pending: dict[NodeId, None]
    answers: dict[NodeId, tuple[int, ...]] = attrs.Factory(dict)
    silent: int = 0
    done_here: int = 0  # what this node did itself, counted
    word: int = 0  # the kind that is passed on to the holders found
    asked: Inquiry | None = None  # the question for holders that came before
    with_nodes: bool = False
    is_busy: bool = False  # a QPURGE goes on here
    is_resting: bool = False  # a WAITJOB between two questions
    wait_deadline: int | None = None  # WAITJOB's own time-out
    wait_ms: int = 0  # WAITJOB: till it asks again


@attrs.define(eq=False)
class Ask:
    """A WILLQUEUE under way: whose answer is still to come, and until when it is waited for (B1.3)."""

    pending: dict[NodeId, None]
    deadline: int
    is_last: bool  # silence till then is leave


@attrs.define(eq=False)
class Tie(Sleeper):
    """A copy that stays queued here, and a peer that was told so because it has one queued, too (M10).

    It is booked to say so again: the one answer may be lost on a link that stands.
    """

    job: Job
    peer: NodeId
    times_said: int = 1


@attrs.define
class Tally:
    """How many jobs of one queue this node has, and accounts for."""

    copies: int = 0  # registered, done ones included
    delivered: int = 0
    delayed: int = 0
    done: int = 0


@attrs.define
class ByState:
    """How many jobs are in each state."""

    waiting: int = 0
    active: int = 0
    queued: int = 0
    moving: int = 0
    done: int = 0

    def count(self, state: JobState, by: int) -> None:
        """So many more are in it."""
        if state is ACTIVE:
            self.active += by
        elif state is QUEUED:
            self.queued += by
        elif state is DONE:
            self.done += by
        elif state is WAITING:
            self.waiting += by
        else:
            self.moving += by


@attrs.define(eq=False)
class Tombstone(Sleeper):
    """A settled job (M6). `boots` are those of its holders when it settled."""

    id: JobId
    reason: Reason
    holders: tuple[NodeId, ...]
    told: tuple[NodeId, ...]
    boots: tuple[tuple[NodeId, int], ...]
    expires_at: int  # ms; the job's expiry, gone for certain then
    is_long: bool
    segment: int = 0  # of the log, where its record lies


@attrs.define(eq=False)
class Mark(Sleeper):
    """The end of a job that we never held, for a copy that may still arrive (M15)."""

    id: JobId
    reason: Reason


@attrs.define(eq=False)
class Absence(Sleeper):
    """A copy was dropped here while its job lives on: the holders that were known, for whoever ends the job (M21)."""

    id: JobId
    holders: tuple[NodeId, ...]


@attrs.define(eq=False)
class OpenMove:
    """A RETRY 0 job on its way to a peer (B6)."""

    job: Job
    source_boot: int  # ours when it was opened
    boot: int  # the receiver's
    n: int


@attrs.define(eq=False)
class MovesIn:
    """Numbers of one boot of a source, to one boot of ours (B6.3)."""

    high: int = 0  # all up to it are decided
    taken: dict[int, None] = attrs.Factory(dict)


@attrs.define(eq=False)
class Peer(Sleeper):
    """What this node remembers about its dealings with one other node; it is booked to ask about silent moves."""

    id: NodeId
    boot: int = 0  # the largest heard of it, by view or message
    since: int = 0
    greeted: int = 0  # the boot with which we last healed
    answer_ms: int = 0  # how long its answers to ADDJOBs take
    answered_at: int = 0  # ms; when it last confirmed a copy
    # Until when it is not asked for copies, of one queue or (None) of any: it said REFUSED not long ago (M25)
    refused: dict[bytes | None, int] = attrs.Factory(dict)

    # Moves out, to its present boot (B6)
    moves: dict[tuple[int, int, int], OpenMove] = attrs.Factory(dict)  # (our boot, its boot, n)
    move_next: int = 1
    move_round: int = 0

    # by (our boot, its boot) when it opened them
    moves_in: dict[tuple[int, int], MovesIn] = attrs.Factory(dict)

    # Healing (B4)
    heal_number: int = 0  # of the walks that this node asked for
    heal_seen: tuple[int, int] = (0, 0)  # (boot, n) of the last walk it asked for
    # batches sent; never repeated, so that a late answer counts for its own batch alone
    walk_seq: int = 0
    heal_next_at: int = 0  # ms; no walk begins before (B4.7)
    walk: Walk | None = None


@attrs.define(eq=False)
class Repair(Sleeper):
    """A job that gets copies again (B3)."""

    job: Job
    started_at: int
    asked: dict[NodeId, None] = attrs.Factory(dict)  # holders asked whether they have a copy
    tried: dict[NodeId, None] = attrs.Factory(dict)  # nodes that were sent one


@attrs.define(eq=False)
class Purge(Sleeper):
    """A purge under way: bounded steps through what is in quarantine, the queue, then all that is here (B9.4)."""

    queue: bytes
    ctime: int  # ms x 1,000,000; what is added here later is spared
    is_final: bool  # the queue goes, too
    asked: Inquiry | None  # of this node's client, who is answered once the queue is empty
    aside: list[JobId]  # in quarantine, the next one last
    place: Place = (0, 0, JobId(b""))  # in the queue, where to go on
    ids: list[JobId] | None = None  # that were here at the end of the queue; None: not there yet
    position: int = 0


@attrs.define
class Counts:
    """Running totals for INFO."""

    added: int = 0
    delivered: int = 0
    acked: int = 0
    spec_conflicts: int = 0
    dummies_evicted: int = 0
    norepl: int = 0
    dead_lettered: int = 0
    cancelled: int = 0
    forward_timeouts: int = 0
    moves_in_doubt: int = 0
    bad_payloads: int = 0
    tombstones_evicted: int = 0
    marks_evicted: int = 0
    nacked: int = 0
    redelivered: int = 0
    # From ADDJOB to its reply, where copies were waited for; from when a job may be fetched to its first hand-out
    replication: Histogram = attrs.Factory(Histogram)
    delivery: Histogram = attrs.Factory(Histogram)
    queues_refused: int = 0
    queue_names_refused: int = 0
    blocked_refused: int = 0


@attrs.define(eq=False)
class State:
    """One node's jobs, queues, waits, timers and outgoing words."""

    self_id: NodeId
    boot: int
    since: int
    limits: Limits
    dice: Dice
    now_ms: int
    view: ClusterView

    jobs: dict[JobId, Job] = attrs.Factory(dict)  # live copies, done entries, dummies
    undone: dict[JobId, Job] = attrs.Factory(dict)  # of those, done with holders but not settled
    # Pools whose oldest entry goes when they are full are OrderedDicts: a dict finds its first one ever later
    dummies: OrderedDict[JobId, Job] = attrs.Factory(OrderedDict)  # of those, done without holders
    # of those, RETRY 0 and dispatched: may be evicted
    spent: OrderedDict[JobId, Job] = attrs.Factory(OrderedDict)
    # queues that gained a job another node asked for
    offered: dict[bytes, None] = attrs.Factory(dict)
    by_state: ByState = attrs.Factory(ByState)
    body_bytes: int = 0  # of live copies, in memory
    spec_bytes: int = 0  # names and headers of all copies, ends that know them included
    name_bytes: int = 0  # of queues, and of those that waiting GETJOBs name
    # of bodies that came in since `take_ready`: what is written to the log next may leave memory
    unwritten_bytes: int = 0
    paged_bytes: int = 0  # of records of live copies whose bodies lie in the log alone
    is_logged: bool = False  # there is a log
    is_recording: bool = True  # somebody takes the records: without a log nobody may
    pager: Pager = attrs.Factory(Pager)
    trash: Trash = attrs.Factory(Trash)
    chores: dict[Hashable, Chore] = attrs.Factory(dict)
    fired: int = 0  # timers in this `advance`; each thing that a pass has seen to counts as one
    tallies: dict[bytes, Tally] = attrs.Factory(dict)  # by effective queue
    total: Tally = attrs.Factory(Tally)  # of all queues, roles alone
    tombstones: OrderedDict[JobId, Tombstone] = attrs.Factory(OrderedDict)
    long_tombstones: OrderedDict[JobId, Tombstone] = attrs.Factory(OrderedDict)
    marks: OrderedDict[JobId, Mark] = attrs.Factory(OrderedDict)
    absences: OrderedDict[JobId, Absence] = attrs.Factory(OrderedDict)
    # who doesn't know a dummy's job
    dummy_answers: dict[JobId, dict[NodeId, None]] = attrs.Factory(dict)
    queues: dict[bytes, JobQueue] = attrs.Factory(dict)
    agenda: Agenda = attrs.Factory(Agenda)
    adding: dict[JobId, AddWait] = attrs.Factory(dict)
    adding_of: dict[ClientId, JobId] = attrs.Factory(dict)  # a client's waiting ADDJOB
    getting: dict[ClientId, GetWait] = attrs.Factory(dict)
    asks: dict[JobId, Ask] = attrs.Factory(dict)
    met_at: int = 0  # ms; when a member came that this node hadn't known
    # NACKs, ENQUEUEs: ms till which a lease is void
    orders: OrderedDict[JobId, int] = attrs.Factory(OrderedDict)
    ties: dict[tuple[JobId, NodeId], Tie] = attrs.Factory(dict)
    inquiries: dict[int, Inquiry] = attrs.Factory(dict)
    inquiry_of: dict[ClientId, int] = attrs.Factory(dict)
    inquiries_made: int = 0
    asked_ids: int = 0  # in all of them
    scans: dict[int, Scan] = attrs.Factory(dict)
    scans_made: int = 0
    purges_made: int = 0
    # ids that ran out of time here, for WAITJOB, and when, ms
    expired: OrderedDict[JobId, int] = attrs.Factory(OrderedDict)
    # jobs that began with fewer copies than their aim
    short: dict[JobId, None] = attrs.Factory(dict)
    # queue -> clients wait (False: it only ran dry)
    hungry: dict[bytes, bool] = attrs.Factory(dict)
    sweep: Sweep | None = None
    repairer: Repairer = attrs.Factory(Repairer)
    repairs: dict[JobId, Repair] = attrs.Factory(dict)
    # jobs found with fewer copies than they should have
    under_replicated: dict[JobId, None] = attrs.Factory(dict)
    down_since: dict[NodeId, int] = attrs.Factory(dict)  # ms; peers that can't be reached
    leaver: Leaver | None = None
    quarantine: dict[JobId, Job] = attrs.Factory(dict)  # copies of a forgotten node that came back
    returning: Returning | None = None
    shell_bytes: int = 0  # buffers of the shell, as it last said
    peers: dict[NodeId, Peer] = attrs.Factory(dict)
    pauses: dict[bytes, tuple[int, NodeId, int]] = attrs.Factory(dict)  # M18
    purges_seen: dict[NodeId, tuple[int, int]] = attrs.Factory(dict)  # M19 high-water
    topics: Topics = attrs.Factory(Topics)
    posts: Posts = attrs.Factory(Posts)

    up: tuple[NodeId, ...] = ()  # reachable peers, sorted
    up_set: frozenset[NodeId] = frozenset()
    staying: tuple[NodeId, ...] = ()  # of those, the ones that don't leave
    # peers that may yet store a copy: one whose link just broke may be back in time
    hopeful: int = 0
    # peers that said REFUSED -> ms till when it counts
    refusing: dict[NodeId, int] = attrs.Factory(dict)
    # reachable peers that were asked for a copy and didn't answer, while others did
    silent: dict[NodeId, None] = attrs.Factory(dict)
    claim_clock: int = 0
    last_stamp: int = 0
    last_ctime: int = 0
    last_ctime_ms: int = 0  # of which it was made
    started_at: int = 0  # ms; the log has been read
    reached: dict[NodeId, None] = attrs.Factory(dict)  # peers reached in this boot (B1.9)
    counts: Counts = attrs.Factory(Counts)
    ready: Ready = attrs.Factory(Ready)
    # of its messages: the last batch to each set of peers, and the last that speaks of a job
    batch_of: dict[tuple[NodeId, ...], int] = attrs.Factory(dict)
    said_in: dict[JobId | None, int] = attrs.Factory(dict)
    # What jobs have in common, kept once: see `sharing`
    shared_nodes: dict[tuple[NodeId, ...], tuple[NodeId, ...]] = attrs.Factory(dict)
    shared_specs: dict[SpecKey, JobSpec] = attrs.Factory(dict)
    shared_claims: dict[tuple[tuple[NodeId, Claim], ...], Claims] = attrs.Factory(dict)
    # of a mapping of claims, by its identity, and one claim more: the mapping, and what they come to
    joined: dict[tuple[int, NodeId, Claim], tuple[Claims, Claims]] = attrs.Factory(dict)
    last_join: Join | None = None
    stored: Stored | None = None
    mould: Mould | None = None  # of the newest job that was added here
    own_claims: Claims | None = None  # those of a job of which nobody but this node has a copy
    own_nodes: tuple[NodeId, ...] = ()
    own_dispatch: Mapping[NodeId, int] | None = None  # that of a job handed out once, here
    first_facts: Facts | None = None  # what was said of the newest job that was added here
    # of a mapping of claims, by its identity: the mapping, and how many of them count in this view
    counted: dict[int, tuple[Claims, int]] = attrs.Factory(dict)


def send(state: State, to: Iterable[NodeId], message: Message) -> None:
    """Say something to reachable peers; others hear nothing, healing will tell them."""
    up = state.up_set
    peers = tuple([node for node in to if node in up])
    if peers:
        batches = state.ready.messages
        job = getattr(message, "id", None)
        at = state.batch_of.get(peers)
        # never before what was said of it earlier
        if at is None or state.said_in.get(job, -1) > at:
            at = state.batch_of[peers] = len(batches)
            batches.append((peers, []))
        batches[at][1].append(message)
        if job is not None:
            state.said_in[job] = at


def reply(state: State, client: ClientId | None, answer: Reply) -> None:
    """Answer a client, unless it has gone."""
    if client is not None:
        state.ready.replies.append((client, answer))


def fail(state: State, client: ClientId | None, code: str, text: str) -> None:
    """Answer a client with an error."""
    reply(state, client, Failure(code, text))


def record(state: State, kind: str, *fields: object, is_urgent: bool = False) -> None:
    """Put an entry into the log, before anything of this Ready leaves."""
    if state.is_recording:
        state.ready.records.append(Record(kind, fields, is_urgent))


def members_of(state: State, nodes: tuple[NodeId, ...]) -> tuple[NodeId, ...]:
    """These ids without the forgotten ones: H \\ F."""
    forgotten = state.view.forgotten
    if not forgotten:
        return nodes
    return tuple([node for node in nodes if node not in forgotten])


def reach_deadline(state: State) -> int:
    """ms; until then a copy from the log waits for those who weren't reached since the start (B1.9)."""
    return state.started_at + state.view.node_timeout_ms


def reachable(state: State, nodes: Iterable[NodeId]) -> list[NodeId]:
    """Those of these ids that can be reached now, without this node."""
    up = state.up_set
    return [node for node in nodes if node in up]


def peer_of(state: State, node: NodeId) -> Peer:
    """Our dealings with this node, made at first use; bounded by the members that ever were."""
    peer = state.peers.get(node)
    if peer is None:
        peer = state.peers[node] = Peer(node)
        member = state.view.members.get(node)
        if member is not None:
            peer.boot, peer.since = member.boot, member.since
    return peer


def salted(job: JobId, nodes: Iterable[NodeId]) -> list[NodeId]:
    """The nodes in an order that depends on the job alone: the same everywhere, another for each job."""
    return sorted(nodes, key=lambda node: blake2b(job + node.encode(), digest_size=8).digest())


def rank(state: State, job: JobId, nodes: Iterable[NodeId]) -> int:
    """This node's place among those of `nodes` that can be reached, in salted order."""
    return salted(job, [state.self_id, *reachable(state, nodes)]).index(state.self_id)


def next_stamp(state: State, job: Job) -> int:
    """A lease stamp, larger than any before at this node, and than what peers know as this node's (M8, M9)."""
    stamp = max(state.now_ms, state.last_stamp + 1)
    if job.leases or job.covered:
        known, _ = job.leases.get(state.self_id, (0, 0))
        stamp = max(stamp, known + 1, job.covered.get(state.self_id, 0) + 1)
    state.last_stamp = stamp
    return stamp


def own_claim(state: State) -> Claim:
    """The claim that this node has a copy (M3)."""
    return (state.boot, state.claim_clock, True)


def gone_claim(state: State) -> Claim:
    """A claim that this node has no copy; any later copy makes a larger one."""
    state.claim_clock += 2
    state.own_claims = state.stored = None
    return (state.boot, state.claim_clock - 1, False)


def is_counted(state: State, node: NodeId, claim: Claim) -> bool:
    """True if a claim still holds: it has a copy, stored in a boot whose store is unbroken (M3)."""
    boot, _, has_copy = claim
    if not has_copy:
        return False
    if node == state.self_id:
        return boot == state.boot or boot >= state.since
    member = state.view.members.get(node)
    if member is None:
        return False
    return boot == member.boot or boot >= member.since


def copy_count(state: State, job: Job) -> int:
    """Nodes known to have stored a copy, self included (C of M25)."""
    claims, counted = job.claims, state.counted
    known = counted.get(id(claims))
    if known is not None:
        return known[1]
    count = sum([is_counted(state, node, claim) for node, claim in claims.items()])
    if len(counted) > _COUNTED_MAX:
        counted.clear()
    counted[id(claims)] = (claims, count)
    return count


def wake(state: State, item: Sleeper, at: int) -> None:
    """Book an item; a time that has passed means the next turn."""
    state.agenda.book(item, max(at, state.now_ms))


def is_name(state: State, name: bytes) -> bool:
    """True for a queue that a peer may speak of: of a name that a client could give it here, or that is here."""
    is_short = len(name) <= state.limits.queue_name_bytes_max
    return is_short or name in state.queues or name in state.tallies
