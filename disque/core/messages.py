"""What nodes say to each other about jobs, and its codec.

A message is one statement about one job (or queue). On the wire many travel in one payload: a version, the table of the
node ids that occur, and runs of statements of one type. Each statement is a list of fields in the order of `_SCHEMA`;
a reader takes the fields it knows and skips the rest, and skips types it doesn't know, so later versions may append.
All times are *remaining* ms: clocks of two nodes are never compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import msgpack

from cluster.errors import RemoteProtocolError
from cluster.nodeid import NodeId
from disque.core.job import EMPTY, NO_CLAIMS, Burials, Claim, JobSpec, Reason
from disque.core.jobid import JobId, is_job_id
from disque.core.value import value

VERSION = 1
_INT_MAX = 2**62  # ms and sums of counters
_RISING_MAX = 2**61  # counters, clocks and stamps: their owner counts on from what it hears

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


@value
class ReplJob:
    """Keep a copy; answered by GotJob, Refused, or the end of the job."""

    id: JobId
    spec: JobSpec
    body: bytes
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
    """Jobs of this queue are wanted here; `has_waiting`: clients wait for them."""

    queue: bytes
    count: int
    has_waiting: bool


@value
class YourJobs:
    """Take this job into your queue; I stay a holder."""

    id: JobId
    spec: JobSpec
    body: bytes
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
    body: bytes
    expires_in: int
    due_in: int = 0  # rest of DELAY


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
)


class _Writer:
    """Collects the node table while fields are made."""

    def __init__(self) -> None:
        self.nodes: dict[NodeId, int] = {}

    def node(self, node: NodeId) -> int:
        return self.nodes.setdefault(node, len(self.nodes))

    def nodes_of(self, nodes: Iterable[NodeId]) -> list[int]:
        return [self.node(node) for node in nodes]

    def facts(self, facts: Facts) -> dict[int, object]:
        node = self.node
        fields: dict[int, object] = {0: self.nodes_of(facts.holders), 1: facts.expires_in}
        if facts.due_in:
            fields[2] = facts.due_in
        if facts.is_queued:
            fields[3] = True
        if facts.claims:
            fields[4] = [(node(n), *claim) for n, claim in facts.claims.items()]
        if facts.dispatches:
            fields[5] = [(node(n), _sayable(count)) for n, count in facts.dispatches.items()]
        if facts.nacks:
            fields[6] = [(node(n), _sayable(count)) for n, count in facts.nacks.items()]
        if facts.leases:
            fields[7] = [(node(n), _sayable(stamp), ms) for n, (stamp, ms) in facts.leases.items()]
        if facts.covered:
            fields[8] = [(node(n), _sayable(stamp)) for n, stamp in facts.covered.items()]
        if facts.burials is not None:
            buried = facts.burials
            fields[9] = (
                _sayable(buried.count),
                buried.reason,
                min(buried.base, _INT_MAX),
                buried.expires_at,
            )
        return fields

    def spec(self, spec: JobSpec) -> list[object]:
        return [
            spec.queue, spec.ctime, spec.retry_ms, spec.replicate, spec.is_explicit, spec.delay_ms, spec.ttl_ms,
            spec.priority, spec.max_deliveries, spec.dead_queue, dict(spec.headers),
        ]  # fmt: skip


def _sayable(number: int) -> int:
    """What grew beyond the bound of what a reader takes, by a lying peer, is said as that bound."""
    return min(number, _RISING_MAX)


class _Reader:
    """Checks what a peer sent: every wrong type, range or index is a RemoteProtocolError."""

    def __init__(self, nodes: list[NodeId]) -> None:
        self.nodes = nodes

    def integer(self, raw: Any) -> int:
        if type(raw) is not int or not 0 <= raw <= _INT_MAX:
            raise RemoteProtocolError(f"expected an integer from 0 to 2^62, got {raw!r:.60}")
        return raw

    def flag(self, raw: Any) -> bool:
        if type(raw) is not bool:
            raise RemoteProtocolError(f"expected a boolean, got {raw!r:.60}")
        return raw

    def data(self, raw: Any) -> bytes:
        if type(raw) is not bytes:
            raise RemoteProtocolError(f"expected bytes, got {raw!r:.60}")
        return raw

    def job_id(self, raw: Any) -> JobId:
        if type(raw) is not bytes or not is_job_id(raw):
            raise RemoteProtocolError(f"expected a job id, got {raw!r:.60}")
        return JobId(raw)

    def node(self, raw: Any) -> NodeId:
        if type(raw) is not int or not 0 <= raw < len(self.nodes):
            raise RemoteProtocolError(
                f"node index {raw!r:.60} outside a table of {len(self.nodes)}"
            )
        return self.nodes[raw]

    def rows(self, raw: Any) -> list[Any]:
        if type(raw) is not list:
            raise RemoteProtocolError(f"expected a list, got {raw!r:.60}")
        return raw

    def nodes_of(self, raw: Any) -> tuple[NodeId, ...]:
        return tuple(sorted({self.node(each) for each in self.rows(raw)}))

    def job_ids(self, raw: Any) -> tuple[JobId, ...]:
        return tuple([self.job_id(each) for each in self.rows(raw)])

    def integers(self, raw: Any) -> tuple[int, ...]:
        return tuple([self.integer(each) for each in self.rows(raw)])

    def reason(self, raw: Any) -> Reason:
        try:
            return Reason(self.integer(raw))
        except ValueError:
            raise RemoteProtocolError(f"unknown reason {raw!r:.60}") from None

    def rising(self, raw: Any) -> int:
        """A counter, clock or stamp: its owner goes on counting from it, and must never reach the bound."""
        number = self.integer(raw)
        if number > _RISING_MAX:
            raise RemoteProtocolError(f"a counter or stamp of {number}, the limit is 2^61")
        return number

    def counts(self, raw: Any) -> Mapping[NodeId, int]:
        return {self.node(n): self.rising(count) for n, count in self.rows(raw)}

    def claims(self, raw: Any) -> Mapping[NodeId, Claim]:
        return {
            self.node(n): (self.integer(boot), self.rising(clock), self.flag(has))
            for n, boot, clock, has in self.rows(raw)
        }

    def leases(self, raw: Any) -> Mapping[NodeId, RemainingLease]:
        return {
            self.node(n): (self.rising(stamp), self.integer(remaining))
            for n, stamp, remaining in self.rows(raw)
        }

    def facts(self, raw: Any) -> Facts:
        if type(raw) is not dict:
            raise RemoteProtocolError(f"expected facts, got {raw!r:.60}")
        get = raw.get
        burials = get(9)
        return Facts(
            holders=self.nodes_of(get(0)),
            expires_in=self.integer(get(1)),
            due_in=self.integer(get(2, 0)),
            is_queued=self.flag(get(3, False)),
            claims=self.claims(raw[4]) if 4 in raw else NO_CLAIMS,
            dispatches=self.counts(raw[5]) if 5 in raw else EMPTY,
            nacks=self.counts(raw[6]) if 6 in raw else EMPTY,
            leases=self.leases(raw[7]) if 7 in raw else NO_REMAINING,
            covered=self.counts(raw[8]) if 8 in raw else EMPTY,
            burials=None
            if burials is None
            else Burials(*map(self.integer, self.rows(burials)[:4])),
        )

    def spec(self, raw: Any) -> JobSpec:
        fields = self.rows(raw)
        number, data = self.integer, self.data
        if type(fields[10]) is not dict:
            raise RemoteProtocolError(f"expected headers, got {fields[10]!r:.60}")
        return JobSpec(
            queue=data(fields[0]),
            ctime=number(fields[1]),
            retry_ms=number(fields[2]),
            replicate=number(fields[3]),
            is_explicit=self.flag(fields[4]),
            delay_ms=number(fields[5]),
            ttl_ms=number(fields[6]),
            priority=number(fields[7]),
            max_deliveries=number(fields[8]),
            dead_queue=data(fields[9]),
            headers={data(k): data(v) for k, v in fields[10].items()},
        )


_Writes = Callable[[_Writer, Any], object]
_Reads = Callable[[_Reader, Any], object]


def _plain(_writer: _Writer, raw: object) -> object:
    return raw


_ID: tuple[_Writes, _Reads] = (_plain, _Reader.job_id)
_INT: tuple[_Writes, _Reads] = (_plain, _Reader.integer)
_FLAG: tuple[_Writes, _Reads] = (_plain, _Reader.flag)
_BYTES: tuple[_Writes, _Reads] = (_plain, _Reader.data)
_FACTS: tuple[_Writes, _Reads] = (_Writer.facts, _Reader.facts)
_SPEC: tuple[_Writes, _Reads] = (_Writer.spec, _Reader.spec)
_NODE: tuple[_Writes, _Reads] = (_Writer.node, _Reader.node)
_NODES: tuple[_Writes, _Reads] = (_Writer.nodes_of, _Reader.nodes_of)
_REASON: tuple[_Writes, _Reads] = (_plain, _Reader.reason)
_IDS: tuple[_Writes, _Reads] = (_plain, _Reader.job_ids)
_INTS: tuple[_Writes, _Reads] = (_plain, _Reader.integers)

# Number on the wire, class, fields in order. Checklist for a new message: append here, to Message, and to the engine's
# table of handlers; never reuse a number, only append fields.
_SCHEMA: tuple[tuple[int, type[Any], tuple[tuple[str, tuple[_Writes, _Reads]], ...]], ...] = (
    (1, ReplJob, (("id", _ID), ("spec", _SPEC), ("body", _BYTES), ("facts", _FACTS))),
    (2, GotJob, (("id", _ID), ("boot", _INT), ("clock", _INT))),
    (3, Refused, (("id", _ID), ("is_queue_only", _FLAG))),
    (4, WillQueue, (("id", _ID), ("facts", _FACTS))),
    (5, Have, (("id", _ID), ("facts", _FACTS))),
    (6, Unknown, (("id", _ID), ("boot", _INT), ("clock", _INT))),
    (7, Waiting, (("id", _ID), ("wait_ms", _INT))),
    (8, Queued, (("id", _ID), ("facts", _FACTS))),
    (9, Leased, (("id", _ID), ("facts", _FACTS))),
    (10, Told, (("id", _ID), ("facts", _FACTS))),
    (11, SetAck, (("id", _ID), ("reason", _REASON), ("holders", _NODES), ("told", _NODES), ("expires_in", _INT))),
    (12, GotAck, (("id", _ID), ("reason", _REASON), ("holders", _NODES), ("told", _NODES), ("expires_in", _INT))),
    (13, DelJob, (("id", _ID), ("reason", _REASON), ("holders", _NODES), ("told", _NODES))),
    (14, NeedJobs, (("queue", _BYTES), ("count", _INT), ("has_waiting", _FLAG))),
    (15, YourJobs, (("id", _ID), ("spec", _SPEC), ("body", _BYTES), ("facts", _FACTS))),
    (16, Move, (("source_boot", _INT), ("boot", _INT), ("n", _INT), ("settled", _INT), ("id", _ID), ("spec", _SPEC),
                ("body", _BYTES), ("expires_in", _INT), ("due_in", _INT))),
    (17, GotMove, (("source_boot", _INT), ("boot", _INT), ("n", _INT), ("is_taken", _FLAG))),
    (18, AskMove, (("source_boot", _INT), ("boot", _INT), ("n", _INT))),
    (19, Heal, (("boot", _INT), ("n", _INT))),
    (20, Walk, (("seq", _INT),)),
    (21, Walked, (("seq", _INT),)),
    (22, Pause, (("queue", _BYTES), ("stamp", _INT), ("node", _NODE), ("flags", _INT))),
    (23, Purge, (("node", _NODE), ("boot", _INT), ("seq", _INT), ("queue", _BYTES))),
    (24, Keep, (("id", _ID), ("facts", _FACTS))),
    (25, KeepDummy, (("id", _ID), ("reason", _REASON))),
    (26, Kept, (("id", _ID), ("boot", _INT), ("clock", _INT))),
    (27, Question, (("number", _INT), ("kind", _INT), ("queue", _BYTES), ("ids", _IDS), ("numbers", _INTS))),
    (28, Answer, (("number", _INT), ("numbers", _INTS))),
)  # fmt: skip
MESSAGE_TYPES: tuple[type[Any], ...] = tuple(row[1] for row in _SCHEMA)
_ENCODERS = {
    kind: (number, tuple((name, write) for name, (write, _) in fields))
    for number, kind, fields in _SCHEMA
}
_DECODERS = {
    number: (kind, tuple(read for _, (_, read) in fields)) for number, kind, fields in _SCHEMA
}


def encode(messages: list[Message]) -> bytes:
    """One payload for all of them, in order; the caller keeps it below its limits (see `split`)."""
    writer = _Writer()
    runs: list[list[object]] = []
    last = 0
    for message in messages:
        number, fields = _ENCODERS[type(message)]
        if number != last:
            runs.append([number])
            last = number
        runs[-1].append([write(writer, getattr(message, name)) for name, write in fields])
    nodes = [bytes.fromhex(node) for node in writer.nodes]
    packed: bytes = msgpack.packb([VERSION, nodes, runs])
    return packed


def split(messages: list[Message], *, entries_max: int, bytes_max: int) -> Iterable[list[Message]]:
    """Cut into payloads of at most entries_max statements; bodies count against bytes_max (one may exceed it)."""
    batch: list[Message] = []
    size = 0
    for message in messages:
        body = len(message.body) if isinstance(message, ReplJob | YourJobs | Move) else 0
        if batch and (len(batch) >= entries_max or size + body > bytes_max):
            yield batch
            batch, size = [], 0
        batch.append(message)
        size += body
    if batch:
        yield batch


def decode(payload: bytes) -> list[Message]:
    """The statements of one payload; RemoteProtocolError for anything that no node of ours would send."""
    try:
        raw = msgpack.unpackb(payload, strict_map_key=False)
        version, raw_nodes, runs = raw[0], raw[1], raw[2]
        if version != VERSION:
            raise RemoteProtocolError(
                f"payload version {version!r:.20}, this node speaks {VERSION}"
            )
        reader = _Reader([_node_id(node) for node in raw_nodes])
        messages: list[Message] = []
        for run in runs:
            known = _DECODERS.get(run[0])
            if known is None:
                continue  # a later version's
            kind, reads = known
            for row in run[1:]:
                if len(row) < len(reads):
                    raise RemoteProtocolError(
                        f"{kind.__name__} takes {len(reads)} fields, got {len(row)}"
                    )
                messages.append(
                    kind(*[read(reader, field) for read, field in zip(reads, row, strict=False)])
                )
    except RemoteProtocolError:
        raise
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        raise RemoteProtocolError(f"payload of {len(payload)} bytes: {error!r:.120}") from None
    except msgpack.exceptions.UnpackException as error:
        raise RemoteProtocolError(f"payload of {len(payload)} bytes: {error!r:.120}") from None
    return messages


def _node_id(raw: Any) -> NodeId:
    if type(raw) is not bytes or len(raw) != 20:
        raise RemoteProtocolError(f"expected a node id of 20 bytes, got {raw!r:.60}")
    return NodeId(raw.hex())
