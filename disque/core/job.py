"""One job at one node: what it is, what is known of its copies, and where it stands here.

Two kinds of fields. *Facts* travel and merge by the joins of `merge` (rules M1-M13); the rest is this node's own
business: its state, timers and who was asked. The mappings and tuples of facts are never changed in place, only
replaced, so that jobs can share equal ones.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TypeAlias

import attrs

from cluster.nodeid import NodeId
from disque.core.jobid import JobId
from disque.core.sleeper import Sleeper
from disque.core.value import value

# Per node: (its boot, its clock, True = it has a copy / False = gone). Only the node itself makes one (M3).
Claim: TypeAlias = tuple[int, int, bool]
Claims: TypeAlias = Mapping[NodeId, Claim]
# Per delivering node: (stamp, end in ms). 0 as end: over, only the stamp is kept (M8).
Lease: TypeAlias = tuple[int, int]

EMPTY: Mapping[NodeId, int] = {}
NO_CLAIMS: Claims = {}
NO_LEASES: Mapping[NodeId, Lease] = {}


class JobState(enum.IntEnum):
    """Where the copy of this node stands."""

    WAITING = 0  # an ADDJOB waits for copies
    ACTIVE = 1  # known, neither queued nor done: leased, delayed, or queued elsewhere
    QUEUED = 2  # in its queue here
    MOVING = 3  # RETRY 0, handed to a peer that hasn't confirmed: in doubt, never dispatched (M20)
    DONE = 4  # acked, cancelled ...: kept until every holder knows (M4-M6)


class Event(enum.IntEnum):
    """What can happen to a copy."""

    REPLICATED = 0  # enough copies, or work has begun elsewhere (B7.3)
    QUEUE = 1
    DISPATCH = 2  # handed to a client
    UNQUEUE = 3  # DEQUEUE, a lost tie, a lease elsewhere, given to a peer
    MOVE = 4  # RETRY 0 leaves for a peer
    RETURN = 5  # that peer said no
    FINISH = 6  # any reason of done


TRANSITIONS: Mapping[tuple[JobState, Event], JobState] = {
    (JobState.WAITING, Event.REPLICATED): JobState.ACTIVE,
    (JobState.WAITING, Event.FINISH): JobState.DONE,
    (JobState.ACTIVE, Event.QUEUE): JobState.QUEUED,
    (JobState.ACTIVE, Event.MOVE): JobState.MOVING,
    (JobState.ACTIVE, Event.FINISH): JobState.DONE,
    (JobState.QUEUED, Event.DISPATCH): JobState.ACTIVE,
    (JobState.QUEUED, Event.UNQUEUE): JobState.ACTIVE,
    (JobState.QUEUED, Event.FINISH): JobState.DONE,
    (JobState.MOVING, Event.RETURN): JobState.ACTIVE,
    (JobState.MOVING, Event.FINISH): JobState.DONE,
}


_AFTER: Mapping[Event, Mapping[JobState, JobState]] = {
    event: {before: after for (before, its), after in TRANSITIONS.items() if its is event}
    for event in Event
}


class Role(enum.IntEnum):
    """What this node accounts for beside its queues: one node does for each job of a healthy cluster (QSTAT GLOBAL)."""

    NONE = 0
    DELIVERED = 1  # it was the last to hand the job out
    DELAYED = 2  # it waits for the end of a DELAY


# The members as names: CPython 3.11 takes ten times as long to find one in its class.
WAITING = JobState.WAITING
ACTIVE = JobState.ACTIVE
QUEUED = JobState.QUEUED
MOVING = JobState.MOVING
DONE = JobState.DONE
NO_ROLE = Role.NONE
DELIVERED = Role.DELIVERED
DELAYED = Role.DELAYED


class Reason(enum.IntEnum):
    """Why a job is done; of two reasons the larger wins everywhere (M4)."""

    NOREPL = 1
    CANCELLED = 2
    FAST_ACKED = 3
    DEAD_ACKED = 4
    ACKED = 5


@value
class JobSpec:
    """What the producer fixed, but for the time; immutable, shared by jobs, compared as a whole (M1). Times in ms."""

    queue: bytes
    retry_ms: int
    replicate: int
    is_explicit: bool  # REPLICATE was given: a promise, not an aim
    delay_ms: int
    ttl_ms: int
    priority: int
    max_deliveries: int  # 0: no limit
    dead_queue: bytes
    headers: Mapping[bytes, bytes]


PAGE_MIN_BYTES = 256  # smaller bodies stay in memory: a handle is no smaller


@value
class Paged:
    """A body that lies in the log alone: in the record of `size` bytes at `offset` of a segment."""

    segment: int
    offset: int
    size: int


DEAD_BY_NACK = 1
DEAD_BY_RETRY = 2


@value
class Burials:
    """How often the job was buried and revived; odd count: it is a dead letter (M13)."""

    count: int
    reason: int  # 0 none, 1 nack, 2 retry
    base: int  # sum of dispatches when the count changed
    expires_at: int  # ms


@attrs.define(eq=False)
class Job(Sleeper):
    """A copy (spec is set), or a bare done entry for an id whose job we may never have seen (spec is None)."""

    id: JobId
    spec: JobSpec | None
    # ms x 1,000,000, unique and rising at the node that created it (M1); 0 without a spec
    ctime: int
    body: bytes | Paged | None  # None once done
    state: JobState
    expires_at: int  # ms (M12)

    # Facts
    holders: tuple[NodeId, ...] = ()  # sorted; who may have a copy (M2)
    claims: Claims = NO_CLAIMS  # who said it has, or no longer has, one (M3)
    dispatches: Mapping[NodeId, int] = EMPTY  # M7
    nacks: Mapping[NodeId, int] = EMPTY  # M7
    leases: Mapping[NodeId, Lease] = NO_LEASES  # M8
    covered: Mapping[NodeId, int] = EMPTY  # M9: stamps that a NACK or ENQUEUE made void
    burials: Burials | None = None  # M13
    not_before: int = 0  # ms; end of DELAY (M11)
    reason: Reason | None = None  # M4
    told: tuple[NodeId, ...] = ()  # sorted; who stored the end (M5)

    # Local policy
    ask_at: int = 0  # ms; don't ask for a requeue before
    ask_round: int = 0  # how often the same node answered that it has it queued
    queued_at: NodeId | None = None  # who last said it has it queued
    # ms; when all reachable holders last heard of us (B1.1); 0: they must hear of the next hand-out
    word_at: int = 0
    collect_round: int = 0  # how often SETACK was said again
    was_queued: bool = False  # the first queueing isn't announced (M10)
    is_kept_out: bool = False  # RETRY 0 and dispatched: never queue again
    role: Role = NO_ROLE
    # back from a worker with a DELAY: its own lease keeps the others off until ask_at
    is_held: bool = False
    is_unsure: bool = False  # back from a restart: ask before queueing, wait for the answers (B1.9)
    segment: int = 0  # of the log, where its newest base record lies; 0: not stored yet

    def move(self, event: Event) -> None:
        """Change state by the table; AssertionError for a move that it doesn't have: our bug."""
        after = _AFTER[event].get(self.state)
        assert after is not None, f"{self.id!r}: {event.name} in {self.state.name}"
        self.state = after

    @property
    def is_done(self) -> bool:
        """True for any reason of done."""
        return self.state is DONE

    @property
    def is_dummy(self) -> bool:
        """True for the end of a job whose holders nobody has told us (M14)."""
        return self.state is DONE and not self.holders

    @property
    def live_spec(self) -> JobSpec:
        """The spec of a live copy, which always has one."""
        assert self.spec is not None, f"{self.id!r} is a bare done entry"
        return self.spec

    @property
    def retry_ms(self) -> int:
        """RETRY, 0 for at most once."""
        spec = self.spec
        assert spec is not None, f"{self.id!r} is a bare done entry"
        return spec.retry_ms

    @property
    def delivery_count(self) -> int:
        """Hand-outs known of, all nodes."""
        return sum(self.dispatches.values())

    @property
    def nack_count(self) -> int:
        """NACKs known of, all nodes."""
        return sum(self.nacks.values())

    @property
    def additional_deliveries(self) -> int:
        """Hand-outs beyond the first that no NACK explains (M7)."""
        return max(0, self.delivery_count - 1 - self.nack_count)

    @property
    def is_dead(self) -> bool:
        """True while it lies in its dead letter queue (M13)."""
        return self.burials is not None and self.burials.count % 2 == 1

    @property
    def queue(self) -> bytes:
        """The effective queue: its own, or the dead letter queue while buried."""
        spec, burials = self.spec, self.burials
        assert spec is not None, f"{self.id!r} is a bare done entry"
        return spec.queue if burials is None or burials.count % 2 == 0 else spec.dead_queue

    def lease_end(self) -> int:
        """ms; the end of the last lease that no NACK or ENQUEUE made void, 0 if none (M8, M9)."""
        end, covered = 0, self.covered
        for node, (stamp, lease_end) in self.leases.items():
            if lease_end > end and (not covered or stamp > covered.get(node, -1)):
                end = lease_end
        return end
