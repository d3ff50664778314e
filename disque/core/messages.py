"""What nodes say to each other about jobs, as values; `wire` has their bytes.

A message is one statement about one job (or queue). All times are *remaining* ms: clocks of two nodes are never
compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from cluster.nodeid import NodeId
from disque.core.job import EMPTY, NO_CLAIMS, Burials, Claim, JobSpec, Paged, Reason
from disque.core.jobid import JobId
from disque.core.value import value

RemainingLease: TypeAlias = tuple[int, int]  # (stamp, remaining ms)
NO_REMAINING: Mapping[NodeId, RemainingLease] = {}


@value
class Facts:
    """All that merges about a live job, except its spec and body (M2, M3, M7-M13)."""

    holders: tuple[NodeId, ...]
    expires_in: int
    due_in: int = 0  # rest of DELAY
    is_queued: bool = False  # the sender has it in its queue
    claims: Mapping[NodeId, Claim] = NO_CLAIMS
    dispatches: Mapping[NodeId, int] = EMPTY
    nacks: Mapping[NodeId, int] = EMPTY
    leases: Mapping[NodeId, RemainingLease] = NO_REMAINING
    covered: Mapping[NodeId, int] = EMPTY
    burials: Burials | None = None  # expires_at is a remaining duration here
    # who last told the sender that it has it queued (no fact: a hint, M10)
    queued_at: NodeId | None = None


@value
class ReplJob:
    """Keep a copy; answered by GotJob, Refused, or the end of the job."""

    id: JobId
    spec: JobSpec
    ctime: int
    body: bytes | Paged
    facts: Facts


@value
class GotJob:
    """I stored a copy: my boot and clock make the claim (M3)."""

    id: JobId
    boot: int
    clock: int


@value
class Refused:
    """I won't keep a copy now: of this queue (it is paused), or of any (M25)."""

    id: JobId
    is_queue_only: bool


@value
class WillQueue:
    """I want to queue this; who knows better? (B1.3)"""

    id: JobId
    facts: Facts


@value
class Have:
    """I have a copy and nothing against your queueing it."""

    id: JobId
    facts: Facts


@value
class Unknown:
    """I have no copy; boot and clock make the claim *gone* (M15, M21)."""

    id: JobId
    boot: int
    clock: int


@value
class Waiting:
    """Its ADDJOB still waits here: ask again in `wait_ms`."""

    id: JobId
    wait_ms: int


@value
class Queued:
    """I have it in my queue."""

    id: JobId
    facts: Facts


@value
class Leased:
    """It was handed to a worker; facts tell till when."""

    id: JobId
    facts: Facts


@value
class Told:
    """Facts said again: healing, or news after a merge (B4, M22)."""

    id: JobId
    facts: Facts


@value
class SetAck:
    """This job is done; store that and answer (B2)."""

    id: JobId
    reason: Reason
    holders: tuple[NodeId, ...]
    told: tuple[NodeId, ...]
    expires_in: int


@value
class GotAck:
    """I stored that it is done; these are the holders I know."""

    id: JobId
    reason: Reason
    holders: tuple[NodeId, ...]
    told: tuple[NodeId, ...]
    expires_in: int


@value
class DelJob:
    """Every holder has stored that it is done: forget it (M6)."""

    id: JobId
    reason: Reason
    holders: tuple[NodeId, ...]
    told: tuple[NodeId, ...]


@value
class NeedJobs:
    """Jobs of this queue are wanted here; `has_waiting`: clients wait for them, for `wait_ms` more (0: for ever)."""

    queue: bytes
    count: int
    has_waiting: bool
    wait_ms: int = 0


@value
class YourJobs:
    """Take this job into your queue; I stay a holder."""

    id: JobId
    spec: JobSpec
    ctime: int
    body: bytes | Paged
    facts: Facts


@value
class Move:
    """A RETRY 0 job changes its owner under a number of the source's boot, for one boot of the receiver (B6).

    Numbers below `settled` are closed at the source.
    """

    source_boot: int
    boot: int
    n: int
    settled: int
    id: JobId
    spec: JobSpec
    ctime: int
    body: bytes | Paged
    expires_in: int
    due_in: int = 0  # rest of DELAY


WITH_BODY = (ReplJob, YourJobs, Move)


@value
class GotMove:
    """Answer to Move and AskMove: that number is mine, or stays yours."""

    source_boot: int
    boot: int
    n: int
    is_taken: bool


@value
class AskMove:
    """Did you take number n? Closes it if it never arrived (B6.5)."""

    source_boot: int
    boot: int
    n: int


@value
class Heal:
    """I walk through what we share; walk, too, once for each n of this boot (B4.1)."""

    boot: int
    n: int


@value
class Walk:
    """End of one batch of the walk; answer before I go on."""

    seq: int


@value
class Walked:
    """Batch `seq` has been handled."""

    seq: int


@value
class Pause:
    """Cluster-wide pause flags of a queue: 1 in, 2 out (M18)."""

    queue: bytes
    stamp: int
    node: NodeId
    flags: int


@value
class Purge:
    """Cancel what you hold of this queue now; once for each (node, boot, seq) (M19)."""

    node: NodeId
    boot: int
    seq: int
    queue: bytes


@value
class Keep:
    """I leave: promise to keep your copy, by a GotJob (B5.4)."""

    id: JobId
    facts: Facts


@value
class KeepDummy:
    """I leave: carry on this ack of a job whose holders are unknown (B5.6)."""

    id: JobId
    reason: Reason


@value
class Kept:
    """Answer to Keep alone: my copy stays, I am not leaving (B5.4)."""

    id: JobId
    boot: int
    clock: int


@value
class Question:
    """A client asks the cluster: number of the question at the asker, its kind, and what it is about."""

    number: int
    kind: int
    queue: bytes
    ids: tuple[JobId, ...]
    numbers: tuple[int, ...]


@value
class Answer:
    """The answer to a question, as numbers whose meaning its kind defines."""

    number: int
    numbers: tuple[int, ...]


@value
class Publish:
    """Give this to your subscribers; said once, to all who can be reached."""

    channel: bytes
    headers: Mapping[bytes, bytes]
    body: bytes


@value
class Subscribed:
    """So many subscriptions of a topic are here; `is_anew`: forget what I said of others before."""

    kind: int
    name: bytes
    count: int
    is_anew: bool


Message: TypeAlias = (
    ReplJob
    | GotJob
    | Refused
    | WillQueue
    | Have
    | Unknown
    | Waiting
    | Queued
    | Leased
    | Told
    | SetAck
    | GotAck
    | DelJob
    | NeedJobs
    | YourJobs
    | Move
    | GotMove
    | AskMove
    | Heal
    | Walk
    | Walked
    | Pause
    | Purge
    | Keep
    | KeepDummy
    | Kept
    | Question
    | Answer
    | Publish
    | Subscribed
)
