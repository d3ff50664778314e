"""The bytes of messages: many statements in one payload, read back with suspicion.

A payload is a version, the table of the node ids that occur, and runs of statements of one type. Each statement is a
list of fields in the order of `_SCHEMA`; a reader takes the fields it knows and skips the rest, and skips types it
doesn't know, so later versions may append.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from operator import attrgetter
from typing import Any

import msgpack

from cluster.errors import RemoteProtocolError
from cluster.nodeid import NodeId
from cluster.packing import bytes_head, pack, pack_list_head
from disque.core import messages as msg
from disque.core.job import EMPTY, NO_CLAIMS, Burials, Claim, JobSpec, Reason
from disque.core.jobid import JOB_ID_BYTES, JobId, is_job_id
from disque.core.merge import NODES_MAX
from disque.core.messages import NO_REMAINING, Facts, GotJob, Message, RemainingLease, ReplJob

VERSION = 1
_INT_MAX = 2**62  # ms and sums of counters
_COMPACT_MAX = 2**62 - 1  # compiled code takes longer to compare with more
_RISING_MAX = 2**61  # counters, clocks and stamps: their owner counts on from what it hears
ENTRIES_MAX = 2_000  # statements that are read of one payload; no version sent more than 500
_TABLE_MAX = 1 << 14  # node ids in a payload: members and all that may be forgotten
_SMALL_BYTES = 1 << 20  # a payload up to this can't hold elements that matter
_ELEMENTS_MAX = 1 << 24  # of lists in a larger one: a frame has room for fewer job ids
_LIST_COST = 8  # of a list or map beside its elements


_COPY_HEAD = pack_list_head(5)


class _Writer:
    """Collects the node table while fields are made; what is said of the job before isn't made again."""

    def __init__(self) -> None:
        self.nodes: dict[NodeId, int] = {}
        self._last_facts: tuple[Facts | None, dict[int, object]] = (None, {})
        self._last_spec: tuple[JobSpec | None, list[object]] = (None, [])
        self._packed_facts: tuple[Facts | None, bytes] = (None, b"")
        self._packed_spec: tuple[JobSpec | None, bytes] = (None, b"")

    def copy(self, message: ReplJob) -> bytes:
        """A copy's bytes, as the schema has them: jobs alike have the spec and the facts of the one before."""
        spec, facts = message.spec, message.facts
        if spec is not self._packed_spec[0]:
            self._packed_spec = (spec, pack(self.spec(spec)))
        if facts is not self._packed_facts[0]:
            self._packed_facts = (facts, pack(self.facts(facts)))
        _, said_spec = self._packed_spec
        _, said_facts = self._packed_facts
        id_, body = message.id, message.body
        assert isinstance(body, bytes), "the broker reads paged bodies first"
        return b"".join(
            (
                _COPY_HEAD, bytes_head(len(id_)), id_, said_spec, pack(message.ctime), bytes_head(len(body)), body,
                said_facts,
            )
        )  # fmt: skip

    def node(self, node: NodeId) -> int:
        return self.nodes.setdefault(node, len(self.nodes))

    def nodes_of(self, nodes: Iterable[NodeId]) -> list[int]:
        return [self.node(node) for node in nodes]

    def facts(self, facts: Facts) -> dict[int, object]:
        last, fields = self._last_facts
        if facts is not last:
            fields = self._fields_of(facts)
            self._last_facts = (facts, fields)
        return fields

    def _fields_of(self, facts: Facts) -> dict[int, object]:
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
        if facts.queued_at is not None:
            fields[10] = node(facts.queued_at)
        return fields

    def spec(self, spec: JobSpec) -> list[object]:
        last, fields = self._last_spec
        if spec is not last:
            fields = [
                spec.queue, spec.retry_ms, spec.replicate, spec.is_explicit, spec.delay_ms, spec.ttl_ms,
                spec.priority, spec.max_deliveries, spec.dead_queue, dict(spec.headers),
            ]  # fmt: skip
            self._last_spec = (spec, fields)
        return fields


def _sayable(number: int) -> int:
    """What grew beyond the bound of what a reader takes, by a lying peer, is said as that bound."""
    return min(number, _RISING_MAX)


class _Reader:
    """Checks what a peer sent: every wrong type, range or index is a RemoteProtocolError.

    Jobs that come together are often alike: the value of one serves for all that follow and say the same.
    """

    def __init__(self, nodes: list[NodeId]) -> None:
        self.nodes = nodes
        self._last_facts: tuple[object, Facts | None] = (None, None)
        self._last_spec: tuple[object, JobSpec | None] = (None, None)

    def integer(self, raw: Any) -> int:
        if type(raw) is int and 0 <= raw <= _COMPACT_MAX:
            return raw
        if type(raw) is not int or raw != _INT_MAX:
            raise RemoteProtocolError(f"expected an integer from 0 to 2^62, got {_shown(raw)}")
        return raw

    def flag(self, raw: Any) -> bool:
        if type(raw) is not bool:
            raise RemoteProtocolError(f"expected a boolean, got {_shown(raw)}")
        return raw

    def data(self, raw: Any) -> bytes:
        if type(raw) is not bytes:
            raise RemoteProtocolError(f"expected bytes, got {_shown(raw)}")
        return raw

    def job_id(self, raw: Any) -> JobId:
        if type(raw) is not bytes or not is_job_id(raw):
            raise RemoteProtocolError(f"expected a job id, got {_shown(raw)}")
        return JobId(raw)

    def node(self, raw: Any) -> NodeId:
        if type(raw) is not int or not 0 <= raw < len(self.nodes):
            raise RemoteProtocolError(
                f"node index {_shown(raw)} outside a table of {len(self.nodes)}"
            )
        return self.nodes[raw]

    def rows(self, raw: Any) -> list[Any]:
        if type(raw) is not list:
            raise RemoteProtocolError(f"expected a list, got {_shown(raw)}")
        return raw

    def about_nodes(self, raw: Any) -> list[Any]:
        rows = self.rows(raw)
        if len(rows) > NODES_MAX:
            raise RemoteProtocolError(f"{len(rows)} nodes of one fact, the limit is {NODES_MAX}")
        return rows

    def nodes_of(self, raw: Any) -> tuple[NodeId, ...]:
        return tuple(sorted({self.node(each) for each in self.about_nodes(raw)}))

    def job_ids(self, raw: Any) -> tuple[JobId, ...]:
        return tuple([self.job_id(each) for each in self.rows(raw)])

    def integers(self, raw: Any) -> tuple[int, ...]:
        return tuple([self.integer(each) for each in self.rows(raw)])

    def reason(self, raw: Any) -> Reason:
        try:
            return Reason(self.integer(raw))
        except ValueError:
            raise RemoteProtocolError(f"unknown reason {_shown(raw)}") from None

    def rising(self, raw: Any) -> int:
        """A counter, clock or stamp: its owner goes on counting from it, and must never reach the bound."""
        number = self.integer(raw)
        if number > _RISING_MAX:
            raise RemoteProtocolError(f"a counter or stamp of {number}, the limit is 2^61")
        return number

    def counts(self, raw: Any) -> Mapping[NodeId, int]:
        return {self.node(n): self.rising(count) for n, count in self.about_nodes(raw)}

    def claims(self, raw: Any) -> Mapping[NodeId, Claim]:
        return {
            self.node(n): (self.integer(boot), self.rising(clock), self.flag(has))
            for n, boot, clock, has in self.about_nodes(raw)
        }

    def leases(self, raw: Any) -> Mapping[NodeId, RemainingLease]:
        return {
            self.node(n): (self.rising(stamp), self.integer(remaining))
            for n, stamp, remaining in self.about_nodes(raw)
        }

    def burials(self, raw: Any) -> Burials:
        count, reason, base, expires_in = self.rows(raw)[:4]
        number = self.integer
        return Burials(self.rising(count), number(reason), number(base), number(expires_in))

    def facts(self, raw: Any) -> Facts:
        last, facts = self._last_facts
        if facts is None or raw != last:
            facts = self._facts_of(raw)
            self._last_facts = (raw, facts)
        return facts

    def _facts_of(self, raw: Any) -> Facts:
        if type(raw) is not dict:
            raise RemoteProtocolError(f"expected facts, got {_shown(raw)}")
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
            queued_at=self.node(raw[10]) if 10 in raw else None,
            burials=None if burials is None else self.burials(burials),
        )

    def spec(self, raw: Any) -> JobSpec:
        last, spec = self._last_spec
        if spec is None or raw != last:
            spec = self._spec_of(raw)
            self._last_spec = (raw, spec)
        return spec

    def _spec_of(self, raw: Any) -> JobSpec:
        fields = self.rows(raw)
        number, data = self.integer, self.data
        return JobSpec(
            queue=data(fields[0]),
            retry_ms=number(fields[1]),
            replicate=number(fields[2]),
            is_explicit=self.flag(fields[3]),
            delay_ms=number(fields[4]),
            ttl_ms=number(fields[5]),
            priority=number(fields[6]),
            max_deliveries=number(fields[7]),
            dead_queue=data(fields[8]),
            headers=self.headers(fields[9]),
        )

    def copy(self, row: Any) -> ReplJob:
        """As the schema has it; of copies, and of the answers to them, there are more than of all the rest."""
        fields = self.rows(row)
        return ReplJob(
            self.job_id(fields[0]),
            self.spec(fields[1]),
            self.integer(fields[2]),
            self.data(fields[3]),
            self.facts(fields[4]),
        )

    def got_job(self, row: Any) -> GotJob:
        """The same."""
        fields = self.rows(row)
        return GotJob(self.job_id(fields[0]), self.integer(fields[1]), self.rising(fields[2]))

    def headers(self, raw: Any) -> Mapping[bytes, bytes]:
        if type(raw) is not dict:
            raise RemoteProtocolError(f"expected headers, got {_shown(raw)}")
        data = self.data
        return {data(k): data(v) for k, v in raw.items()}


def _shown(raw: object) -> str:
    """Some of what a peer sent, for a complaint: of what may be long nothing is made that is longer."""
    if isinstance(raw, bytes | str):
        return f"{raw[:60]!r:.60}"
    return repr(raw) if isinstance(raw, int | float | None) else type(raw).__name__


_Writes = Callable[[_Writer, Any], object]
_Reads = Callable[[_Reader, Any], object]


def _plain(_writer: _Writer, raw: object) -> object:
    return raw


def _capped(_writer: _Writer, raw: int) -> object:
    return _sayable(raw)


def _pairs(_writer: _Writer, raw: Mapping[bytes, bytes]) -> object:
    return dict(raw)


_ID: tuple[_Writes, _Reads] = (_plain, _Reader.job_id)
_INT: tuple[_Writes, _Reads] = (_plain, _Reader.integer)
_CLOCK: tuple[_Writes, _Reads] = (_plain, _Reader.rising)
_STAMP: tuple[_Writes, _Reads] = (_capped, _Reader.rising)
_FLAG: tuple[_Writes, _Reads] = (_plain, _Reader.flag)
_BYTES: tuple[_Writes, _Reads] = (_plain, _Reader.data)
_FACTS: tuple[_Writes, _Reads] = (_Writer.facts, _Reader.facts)
_SPEC: tuple[_Writes, _Reads] = (_Writer.spec, _Reader.spec)
_NODE: tuple[_Writes, _Reads] = (_Writer.node, _Reader.node)
_NODES: tuple[_Writes, _Reads] = (_Writer.nodes_of, _Reader.nodes_of)
_REASON: tuple[_Writes, _Reads] = (_plain, _Reader.reason)
_IDS: tuple[_Writes, _Reads] = (_plain, _Reader.job_ids)
_INTS: tuple[_Writes, _Reads] = (_plain, _Reader.integers)
_HEADERS: tuple[_Writes, _Reads] = (_pairs, _Reader.headers)

# Number on the wire, class, fields in order. Checklist for a new message: append here, to Message, and to the engine's
# table of handlers; never reuse a number, only append fields.
_SCHEMA: tuple[tuple[int, type[Any], tuple[tuple[str, tuple[_Writes, _Reads]], ...]], ...] = (
    (1, msg.ReplJob, (("id", _ID), ("spec", _SPEC), ("ctime", _INT), ("body", _BYTES), ("facts", _FACTS))),
    (2, msg.GotJob, (("id", _ID), ("boot", _INT), ("clock", _CLOCK))),
    (3, msg.Refused, (("id", _ID), ("is_queue_only", _FLAG))),
    (4, msg.WillQueue, (("id", _ID), ("facts", _FACTS))),
    (5, msg.Have, (("id", _ID), ("facts", _FACTS))),
    (6, msg.Unknown, (("id", _ID), ("boot", _INT), ("clock", _CLOCK))),
    (7, msg.Waiting, (("id", _ID), ("wait_ms", _INT))),
    (8, msg.Queued, (("id", _ID), ("facts", _FACTS))),
    (9, msg.Leased, (("id", _ID), ("facts", _FACTS))),
    (10, msg.Told, (("id", _ID), ("facts", _FACTS))),
    (11, msg.SetAck, (("id", _ID), ("reason", _REASON), ("holders", _NODES), ("told", _NODES), ("expires_in", _INT))),
    (12, msg.GotAck, (("id", _ID), ("reason", _REASON), ("holders", _NODES), ("told", _NODES), ("expires_in", _INT))),
    (13, msg.DelJob, (("id", _ID), ("reason", _REASON), ("holders", _NODES), ("told", _NODES))),
    (14, msg.NeedJobs, (("queue", _BYTES), ("count", _INT), ("has_waiting", _FLAG), ("wait_ms", _INT))),
    (15, msg.YourJobs, (("id", _ID), ("spec", _SPEC), ("ctime", _INT), ("body", _BYTES), ("facts", _FACTS))),
    (16, msg.Move, (("source_boot", _INT), ("boot", _INT), ("n", _INT), ("settled", _INT), ("id", _ID), ("spec", _SPEC),
                ("ctime", _INT), ("body", _BYTES), ("expires_in", _INT), ("due_in", _INT))),
    (17, msg.GotMove, (("source_boot", _INT), ("boot", _INT), ("n", _INT), ("is_taken", _FLAG))),
    (18, msg.AskMove, (("source_boot", _INT), ("boot", _INT), ("n", _INT))),
    (19, msg.Heal, (("boot", _INT), ("n", _INT))),
    (20, msg.Walk, (("seq", _INT),)),
    (21, msg.Walked, (("seq", _INT),)),
    (22, msg.Pause, (("queue", _BYTES), ("stamp", _STAMP), ("node", _NODE), ("flags", _INT))),
    (23, msg.Purge, (("node", _NODE), ("boot", _INT), ("seq", _INT), ("queue", _BYTES))),
    (24, msg.Keep, (("id", _ID), ("facts", _FACTS))),
    (25, msg.KeepDummy, (("id", _ID), ("reason", _REASON))),
    (26, msg.Kept, (("id", _ID), ("boot", _INT), ("clock", _CLOCK))),
    (27, msg.Question, (("number", _INT), ("kind", _INT), ("queue", _BYTES), ("ids", _IDS), ("numbers", _INTS))),
    (28, msg.Answer, (("number", _INT), ("numbers", _INTS))),
    (29, msg.Publish, (("channel", _BYTES), ("headers", _HEADERS), ("body", _BYTES))),
    (30, msg.Subscribed, (("kind", _INT), ("name", _BYTES), ("count", _INT), ("is_anew", _FLAG))),
)  # fmt: skip
MESSAGE_TYPES: tuple[type[Any], ...] = tuple(row[1] for row in _SCHEMA)


def _encoder(fields: tuple[tuple[str, tuple[_Writes, _Reads]], ...]) -> _Writes:
    """What makes the list of fields of one kind of message."""
    if len(fields) == 1:
        get_one = attrgetter(fields[0][0])
        return lambda _writer, message: [get_one(message)]
    get = attrgetter(*[name for name, _ in fields])
    writes = [(at, write) for at, (_, (write, _)) in enumerate(fields) if write is not _plain]
    if not writes:
        return lambda _writer, message: get(message)

    def make(writer: _Writer, message: Message) -> object:
        made = list(get(message))
        for at, write in writes:
            made[at] = write(writer, made[at])
        return made

    return make


_ENCODERS = {kind: (number, _encoder(fields)) for number, kind, fields in _SCHEMA}
_DECODERS = {
    number: (kind, tuple(read for _, (_, read) in fields)) for number, kind, fields in _SCHEMA
}


def encode(messages: list[Message]) -> bytes:
    """One payload for all of them, in order; the caller keeps it below its limits (see `split`)."""
    writer = _Writer()
    runs: list[bytes] = []
    count = 0
    for kind, alike in groupby(messages, key=type):
        number, fields_of = _ENCODERS[kind]
        count += 1
        if kind is ReplJob:
            copies = [writer.copy(each) for each in alike if isinstance(each, ReplJob)]
            runs += [pack_list_head(1 + len(copies)), pack(number), *copies]
        else:
            runs.append(pack([number, *[fields_of(writer, each) for each in alike]]))
    nodes = [bytes.fromhex(node) for node in writer.nodes]
    parts = [pack_list_head(3), pack(VERSION), pack(nodes), pack_list_head(count), *runs]
    return b"".join(parts)


def split(messages: list[Message], *, entries_max: int, bytes_max: int) -> Iterable[list[Message]]:
    """Cut into payloads of at most entries_max statements.

    Bodies and what clients list count against bytes_max; one may exceed it.
    """
    batch: list[Message] = []
    size = 0
    for message in messages:
        body = 0
        if isinstance(message, msg.WITH_BODY):
            assert isinstance(message.body, bytes), "the broker reads paged bodies first"
            body = len(message.body)
        elif isinstance(message, msg.Publish):
            body = len(message.body)
        elif isinstance(message, msg.Question):
            body = len(message.ids) * JOB_ID_BYTES + len(message.numbers)
        elif isinstance(message, msg.Answer):
            body = len(message.numbers)
        if batch and (len(batch) >= entries_max or size + body > bytes_max):
            yield batch
            batch, size = [], 0
        batch.append(message)
        size += body
    if batch:
        yield batch


# What comes of reading bytes that no node of ours wrote
_BAD_PAYLOAD = (
    *(ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError),
    msgpack.exceptions.UnpackException,
)


def decode(payload: bytes, refused: list[str] | None = None) -> list[Message]:
    """The statements of one payload; RemoteProtocolError for anything that no node of ours would send.

    With `refused` only for what isn't one statement's fault: those are left out, and there it says why.
    """
    try:
        raw = _unpacked(payload)
        version, raw_nodes, runs = raw[0], raw[1], raw[2]
        if version != VERSION:
            raise RemoteProtocolError(
                f"payload version {_shown(version)}, this node speaks {VERSION}"
            )
        if len(raw_nodes) > _TABLE_MAX:
            raise RemoteProtocolError(f"a table of {len(raw_nodes)} nodes, at most {_TABLE_MAX}")
        reader = _Reader([_node_id(node) for node in raw_nodes])
        messages: list[Message] = []
        # others are a later version's
        known = [(_DECODERS[run[0]], run) for run in runs if run[0] in _DECODERS]
        count = sum([len(run) - 1 for _, run in known])
        if count > ENTRIES_MAX:
            raise RemoteProtocolError(f"a payload of {count} statements, at most {ENTRIES_MAX}")
        for (kind, reads), run in known:
            for row in run[1:]:
                try:
                    messages.append(_statement(reader, kind, reads, row))
                except RemoteProtocolError as error:
                    if refused is None:
                        raise
                    refused.append(str(error))
    except _BAD_PAYLOAD as bad:
        raise RemoteProtocolError(f"payload of {len(payload)} bytes: {_named(bad)}") from None
    return messages


def _statement(reader: _Reader, kind: type[Any], reads: tuple[_Reads, ...], row: Any) -> Message:
    try:
        if len(row) < len(reads):
            raise RemoteProtocolError(f"{kind.__name__} takes {len(reads)} fields, got {len(row)}")
        message: Message
        if kind is ReplJob:
            message = reader.copy(row)
        elif kind is GotJob:
            message = reader.got_job(row)
        else:
            message = kind(*[read(reader, field) for read, field in zip(reads, row, strict=False)])
    except _BAD_PAYLOAD as bad:
        raise RemoteProtocolError(f"no {kind.__name__}: {_named(bad)}") from None
    return message


def _named(error: Exception) -> str:
    """Its kind alone: some errors have the payload among their words."""
    return type(error).__name__


class _Elements:
    """Counts what becomes of a large payload while it is read: an empty list of one byte takes a hundred."""

    def __init__(self) -> None:
        self.left = _ELEMENTS_MAX

    def count(self, what: Any) -> Any:
        self.left -= _LIST_COST + len(what)
        if self.left < 0:
            raise RemoteProtocolError(f"a payload of more than {_ELEMENTS_MAX} elements")
        return what


def _unpacked(payload: bytes) -> Any:
    if len(payload) <= _SMALL_BYTES:
        return msgpack.unpackb(payload, strict_map_key=False)
    count = _Elements().count
    return msgpack.unpackb(
        payload,
        strict_map_key=False,
        list_hook=count,
        object_hook=count,
        max_array_len=_ELEMENTS_MAX,
        max_map_len=_ELEMENTS_MAX // 16,
    )


def _node_id(raw: Any) -> NodeId:
    if type(raw) is not bytes or len(raw) != 20:
        raise RemoteProtocolError(f"expected a node id of 20 bytes, got {_shown(raw)}")
    return NodeId(raw.hex())
