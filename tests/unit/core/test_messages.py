"""The wire of jobs: every type survives the round trip, what is newer is skipped, and junk is only a protocol error."""

from __future__ import annotations

import random
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.errors import RemoteProtocolError
from disque.core import messages as msg
from disque.core import wire
from disque.core.engine import _MESSAGES
from disque.core.job import Burials, JobSpec, Reason
from tests.unit.core.builders import DAY_MS, A, B, C, D, E, facts, job_id, spec

ints = st.integers(0, 2**62)
# counters, clocks and stamps: their owner counts on, and stays below the bound
rising = st.integers(0, 2**61)
blobs = st.binary(max_size=20)
ids = st.integers(0, 99).map(job_id)
reasons = st.sampled_from(list(Reason))
nodes = st.sampled_from([A, B, C, D, E])
node_sets = st.sets(nodes).map(lambda found: tuple(sorted(found)))


def by_node(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.dictionaries(nodes, values, max_size=4)


all_facts = st.builds(
    msg.Facts,
    holders=node_sets,
    expires_in=ints,
    due_in=ints,
    is_queued=st.booleans(),
    claims=by_node(st.tuples(ints, rising, st.booleans())),
    dispatches=by_node(rising),
    nacks=by_node(rising),
    leases=by_node(st.tuples(rising, ints)),
    covered=by_node(rising),
    burials=st.none() | st.builds(Burials, rising, ints, ints, ints),
)
specs = st.builds(
    JobSpec,
    queue=blobs,
    retry_ms=ints,
    replicate=ints,
    is_explicit=st.booleans(),
    delay_ms=ints,
    ttl_ms=ints,
    priority=ints,
    max_deliveries=ints,
    dead_queue=blobs,
    headers=st.dictionaries(blobs, blobs, max_size=3),
)
_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "id": ids, "spec": specs, "body": blobs, "facts": all_facts, "reason": reasons, "holders": node_sets,
    "told": node_sets, "queue": blobs, "node": nodes, "is_taken": st.booleans(), "is_queue_only": st.booleans(),
    "has_waiting": st.booleans(), "ids": st.lists(ids, max_size=3).map(tuple),
    "numbers": st.lists(ints, max_size=3).map(tuple), "channel": blobs, "name": blobs, "is_anew": st.booleans(),
    "stamp": rising, "clock": rising,
    "headers": st.dictionaries(blobs, blobs, max_size=3),
}  # fmt: skip
STATEMENTS = {
    kind: st.builds(
        kind, **{field.name: _FIELDS.get(field.name, ints) for field in kind.__attrs_attrs__}
    )
    for kind in wire.MESSAGE_TYPES
}
statements = st.one_of(list(STATEMENTS.values()))
each_type = pytest.mark.parametrize("kind", wire.MESSAGE_TYPES, ids=lambda kind: kind.__name__)


@each_type
def test_a_statement_survives_the_round_trip(kind: type[Any]) -> None:
    @settings(max_examples=25, deadline=None)
    @given(STATEMENTS[kind])
    def holds(statement: msg.Message) -> None:
        assert wire.decode(wire.encode([statement])) == [statement]

    holds()


@settings(max_examples=60, deadline=None)
@given(st.lists(statements, max_size=8))
def test_a_payload_keeps_all_statements_in_order(said: list[msg.Message]) -> None:
    assert wire.decode(wire.encode(said)) == said


def test_every_type_has_a_number_of_its_own_and_a_handler() -> None:
    numbers = [row[0] for row in wire._SCHEMA]
    assert numbers == list(range(1, len(numbers) + 1))
    assert set(wire.MESSAGE_TYPES) == set(_MESSAGES)


# The wire, recorded: a change here breaks clusters of mixed versions. Append types and fields, never change a line.

_GOLDEN_SPEC = JobSpec(b"q", 10_000, 3, True, 500, DAY_MS, 4, 2, b"dead", {b"k": b"v"})
_GOLDEN_FACTS = msg.Facts(
    holders=(A, B),
    expires_in=DAY_MS,
    due_in=400,
    is_queued=True,
    claims={A: (7, 3, True)},
    dispatches={B: 2},
    nacks={A: 1},
    leases={B: (1_699, 9_000)},
    covered={A: 5},
    burials=Burials(1, 2, 3, 4_000),
)
_GOLDEN_ID = job_id(1)
_ID = "c428442d62626262626262622d4d4441774d4441774d4441774d4441774d4441774d4441782d30356131"
GOLDEN: dict[type[Any], tuple[msg.Message, str]] = {
    msg.ReplJob: (
        msg.ReplJob(_GOLDEN_ID, _GOLDEN_SPEC, 1_700, b"body", _GOLDEN_FACTS),
        (
"930192c414aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaac414bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
        "bbbbbbbb91920195ID9ac40171cd271003c3cd01f4ce05265c000402c4046465616481c4016bc40176cd06"
        "a4c404626f64798a0092000101ce05265c0002cd019003c3049194000703c3059192010206919200010791"
        "9301cd06a3cd232808919200050994010203cd0fa0"
        ),
    ),
    msg.GotJob: (
        msg.GotJob(_GOLDEN_ID, 7, 300),
        "93019091920293ID07cd012c",
    ),
    msg.Refused: (
        msg.Refused(_GOLDEN_ID, True),
        "93019091920392IDc3",
    ),
    msg.WillQueue: (
        msg.WillQueue(_GOLDEN_ID, _GOLDEN_FACTS),
        (
"930192c414aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaac414bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
        "bbbb91920492ID8a0092000101ce05265c0002cd019003c3049194000703c30591920102069192000107919301"
        "cd06a3cd232808919200050994010203cd0fa0"
        ),
    ),
    msg.Have: (
        msg.Have(_GOLDEN_ID, msg.Facts((B,), 5)),
        "930191c414bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb91920592ID820091000105",
    ),
    msg.Unknown: (
        msg.Unknown(_GOLDEN_ID, 7, 3),
        "93019091920693ID0703",
    ),
    msg.Waiting: (
        msg.Waiting(_GOLDEN_ID, 500),
        "93019091920792IDcd01f4",
    ),
    msg.Queued: (
        msg.Queued(_GOLDEN_ID, _GOLDEN_FACTS),
        (
"930192c414aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaac414bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
        "bbbb91920892ID8a0092000101ce05265c0002cd019003c3049194000703c30591920102069192000107919301"
        "cd06a3cd232808919200050994010203cd0fa0"
        ),
    ),
    msg.Leased: (
        msg.Leased(_GOLDEN_ID, _GOLDEN_FACTS),
        (
"930192c414aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaac414bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
        "bbbb91920992ID8a0092000101ce05265c0002cd019003c3049194000703c30591920102069192000107919301"
        "cd06a3cd232808919200050994010203cd0fa0"
        ),
    ),
    msg.Told: (
        msg.Told(_GOLDEN_ID, _GOLDEN_FACTS),
        (
"930192c414aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaac414bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
        "bbbb91920a92ID8a0092000101ce05265c0002cd019003c3049194000703c30591920102069192000107919301"
        "cd06a3cd232808919200050994010203cd0fa0"
        ),
    ),
    msg.SetAck: (
        msg.SetAck(_GOLDEN_ID, Reason.ACKED, (A, B), (B,), DAY_MS),
        (
"930192c414aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaac414bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
        "bbbb91920b95ID059200019101ce05265c00"
        ),
    ),
    msg.GotAck: (
        msg.GotAck(_GOLDEN_ID, Reason.NOREPL, (A, B), (B,), 0),
        (
"930192c414aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaac414bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
        "bbbb91920c95ID01920001910100"
        ),
    ),
    msg.DelJob: (
        msg.DelJob(_GOLDEN_ID, Reason.CANCELLED, (A, B), (A, B)),
        (
"930192c414aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaac414bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
        "bbbb91920d94ID02920001920001"
        ),
    ),
    msg.NeedJobs: (
        msg.NeedJobs(b"q", 5, True),
        "93019091920e94c4017105c300",
    ),
    msg.YourJobs: (
        msg.YourJobs(_GOLDEN_ID, _GOLDEN_SPEC, 1_700, b"", msg.Facts((A,), 1)),
        (
"930191c414aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa91920f95ID9ac40171cd271003c3cd01f4ce"
        "05265c000402c4046465616481c4016bc40176cd06a4c400820091000101"
        ),
    ),
    msg.Move: (
        msg.Move(8, 7, 3, 2, _GOLDEN_ID, _GOLDEN_SPEC, 1_700, b"body", DAY_MS, 400),
        (
"9301909192109a08070302ID9ac40171cd271003c3cd01f4ce05265c000402c4046465616481c4016bc401"
        "76cd06a4c404626f6479ce05265c00cd0190"
        ),
    ),
    msg.GotMove: (
        msg.GotMove(8, 7, 3, True),
        "93019091921194080703c3",
    ),
    msg.AskMove: (
        msg.AskMove(8, 7, 3),
        "93019091921293080703",
    ),
    msg.Heal: (
        msg.Heal(7, 1),
        "930190919213920701",
    ),
    msg.Walk: (
        msg.Walk(9),
        "9301909192149109",
    ),
    msg.Walked: (
        msg.Walked(9),
        "9301909192159109",
    ),
    msg.Pause: (
        msg.Pause(b"q", 1_700, B, 3),
        "930191c414bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb91921694c40171cd06a40003",
    ),
    msg.Purge: (
        msg.Purge(A, 7, 1, b"q"),
        "930191c414aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa91921794000701c40171",
    ),
    msg.Keep: (
        msg.Keep(_GOLDEN_ID, msg.Facts((A,), 1)),
        "930191c414aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa91921892ID820091000101",
    ),
    msg.KeepDummy: (
        msg.KeepDummy(_GOLDEN_ID, Reason.ACKED),
        "93019091921992ID05",
    ),
    msg.Kept: (
        msg.Kept(_GOLDEN_ID, 7, 300),
        "93019091921a93ID07cd012c",
    ),
    msg.Question: (
        msg.Question(9, 4, b"q", (_GOLDEN_ID,), (5, 300)),
        "93019091921b950904c4017191ID9205cd012c",
    ),
    msg.Answer: (
        msg.Answer(9, (1, 300)),
        "93019091921c92099201cd012c",
    ),
    msg.Publish: (
        msg.Publish(b"news", {b"k": b"v"}, b"body"),
        "93019091921d93c4046e65777381c4016bc40176c404626f6479",
    ),
    msg.Subscribed: (
        msg.Subscribed(2, b"news.", 300, True),
        "93019091921e9402c4056e6577732ecd012cc3",
    ),
}  # fmt: skip


@each_type
def test_the_bytes_of_a_statement_stay_what_they_are(kind: type[Any]) -> None:
    statement, recorded = GOLDEN[kind]
    assert wire.encode([statement]).hex() == recorded.replace("ID", _ID)
    assert wire.decode(bytes.fromhex(recorded.replace("ID", _ID))) == [statement]


def test_a_payload_is_version_node_table_and_runs_of_one_type() -> None:
    said: list[msg.Message] = [
        msg.GotJob(_GOLDEN_ID, 7, 1),
        msg.GotJob(job_id(2), 7, 1),
        msg.Pause(b"q", 5, B, 1),
        msg.GotJob(job_id(3), 7, 1),
    ]
    assert msgpack.unpackb(wire.encode(said)) == [
        1,
        [bytes.fromhex(B)],
        [
            [2, [_GOLDEN_ID, 7, 1], [job_id(2), 7, 1]],
            [22, [b"q", 5, 0, 1]],
            [2, [job_id(3), 7, 1]],
        ],
    ]


def test_jobs_of_a_payload_that_are_alike_share_what_is_alike() -> None:
    one, other = facts(A, B), facts(A, B, is_queued=True)
    said: list[msg.Message] = [
        msg.ReplJob(job_id(1), spec(), 1, b"a", one),
        msg.ReplJob(job_id(2), spec(), 2, b"b", one),
        msg.ReplJob(job_id(3), spec(priority=1), 3, b"c", other),
        msg.ReplJob(job_id(4), spec(), 4, b"d", one),
    ]
    read = wire.decode(wire.encode(said))
    assert read == said
    first, second = read[:2]
    assert isinstance(first, msg.ReplJob)
    assert isinstance(second, msg.ReplJob)
    assert second.spec is first.spec
    assert second.facts is first.facts


# What a later version may say


@settings(max_examples=40, deadline=None)
@given(
    st.lists(statements, min_size=1, max_size=4),
    st.integers(len(wire.MESSAGE_TYPES) + 1, 200),
    st.lists(blobs, max_size=2),
)
def test_types_that_this_version_doesnt_know_are_skipped(
    said: list[msg.Message], number: int, row: list[bytes]
) -> None:
    version, table, runs = msgpack.unpackb(wire.encode(said), strict_map_key=False)
    runs = [[number, row, 17, None], *runs, [number]]
    assert wire.decode(msgpack.packb([version, table, runs])) == said


@settings(max_examples=80, deadline=None)
@given(statements, st.one_of(ints, blobs, st.none(), st.lists(ints, max_size=2)))
def test_fields_that_this_version_doesnt_know_are_skipped(
    statement: msg.Message, more: Any
) -> None:
    version, table, runs = msgpack.unpackb(wire.encode([statement]), strict_map_key=False)
    for row in runs[0][1:]:
        for field in row:
            if isinstance(field, dict) and field and all(isinstance(key, int) for key in field):
                field[99] = more  # facts
        row.append(more)
        if isinstance(row[1], list) and len(row[1]) == 11:
            row[1].append(more)  # a spec
    assert wire.decode(msgpack.packb([version, table, runs, more])) == [statement]


def test_a_later_version_of_the_payload_is_refused_by_name() -> None:
    with pytest.raises(RemoteProtocolError, match="payload version 2, this node speaks 1"):
        wire.decode(msgpack.packb([2, [], []]))


# Junk


def decode_or_refuse(payload: bytes) -> list[msg.Message]:
    """Only a RemoteProtocolError may come out of it, with a message of bounded length."""
    refusal = ""
    read: list[msg.Message] = []
    try:
        read = wire.decode(payload)
    except RemoteProtocolError as error:
        refusal = str(error)
    assert len(refusal) < 300
    return read


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60))
def test_random_bytes_are_a_protocol_error(payload: bytes) -> None:
    decode_or_refuse(payload)


json_like = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | blobs | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.integers(0, 12) | st.text(max_size=2), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=120, deadline=None)
@given(st.lists(st.lists(st.integers(1, 25) | json_like, max_size=4), max_size=3))
def test_well_formed_msgpack_of_the_wrong_shape_is_a_protocol_error(runs: list[Any]) -> None:
    decode_or_refuse(msgpack.packb([1, [bytes.fromhex(A)], runs]))


@settings(max_examples=200, deadline=None)
@given(json_like)
def test_any_msgpack_is_a_protocol_error(raw: Any) -> None:
    decode_or_refuse(msgpack.packb(raw))


@settings(max_examples=200, deadline=None)
@given(statements, st.data())
def test_one_wrong_field_is_a_protocol_error_or_a_statement_that_can_be_said(
    statement: msg.Message, data: st.DataObject
) -> None:
    raw = msgpack.unpackb(wire.encode([statement]), strict_map_key=False)
    row = raw[2][0][1]
    row[data.draw(st.integers(0, len(row) - 1))] = data.draw(json_like)
    for read in decode_or_refuse(msgpack.packb(raw)):
        assert wire.decode(wire.encode([read])) == [read]


def test_flipped_bits_and_cut_payloads_are_a_protocol_error_or_statements_that_can_be_said() -> (
    None
):
    dice = random.Random(5)
    payload = wire.encode([statement for statement, _ in GOLDEN.values()])
    for _ in range(2_000):
        bent = bytearray(payload)
        for _ in range(dice.randrange(1, 4)):
            bent[dice.randrange(len(bent))] ^= 1 << dice.randrange(8)
        cut = bytes(bent[: dice.randrange(len(bent) // 2, len(bent) + 1)])
        for read in (*decode_or_refuse(bytes(bent)), *decode_or_refuse(cut)):
            assert wire.decode(wire.encode([read])) == [read]


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        msgpack.packb(None),
        msgpack.packb([]),
        msgpack.packb([1]),
        msgpack.packb([1, [], None]),
        msgpack.packb([1, [b"short"], []]),
        msgpack.packb([1, ["a" * 20], []]),
        msgpack.packb([1, [], [[]]]),
        msgpack.packb([1, [], [[2, [b"no id", 1, 1]]]]),
        msgpack.packb([1, [], [[2, [job_id(), 1]]]]),  # a field short
        msgpack.packb([1, [], [[2, [job_id(), -1, 1]]]]),
        msgpack.packb([1, [], [[2, [job_id(), 2**62 + 1, 1]]]]),
        msgpack.packb([1, [], [[2, [job_id(), True, 1]]]]),
        msgpack.packb([1, [], [[2, [job_id(), 1.0, 1]]]]),
        msgpack.packb([1, [], [[11, [job_id(), 9, [], [], 1]]]]),  # no such reason
        msgpack.packb([1, [], [[11, [job_id(), 5, [0], [], 1]]]]),  # no such node
        msgpack.packb([1, [], [[11, [job_id(), 5, [-1], [], 1]]]]),
        msgpack.packb([1, [], [[8, [job_id(), {}]]]]),  # no facts in the facts
        msgpack.packb([1, [], [[8, [job_id(), {0: [], 1: 5, 9: [1, 2]}]]]]),  # half a burial
        msgpack.packb(
            [1, [bytes.fromhex(A)], [[8, [job_id(), {0: [], 1: 5, 5: [[0, 2**61 + 1]]}]]]]
        ),
        msgpack.packb([1, [], [[17, [1, 2, 3, 1]]]]),  # a number for a flag
        b"\xdd\xff\xff\xff\xff",  # a list of 2^32 - 1
        b"\xc6\xff\xff\xff\xff",  # bytes of 2^32 - 1
        b"\x91" * 5_000,  # nested beyond any depth
        msgpack.packb([1, [], []]) + b"\x00",  # something behind the end
    ],
)
def test_what_no_node_of_ours_would_send_is_a_protocol_error(payload: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        wire.decode(payload)


def test_holders_are_sorted_and_distinct_whatever_a_peer_sends() -> None:
    table = [bytes.fromhex(node) for node in (C, A)]
    raw = [1, table, [[11, [job_id(), 5, [0, 1, 0], [0], 1]]]]
    (read,) = wire.decode(msgpack.packb(raw))
    assert read == msg.SetAck(job_id(), Reason.ACKED, (A, C), (C,), 1)


# Splitting


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(0, 40) | st.none(), max_size=30), st.integers(1, 6), st.integers(1, 60))
def test_split_keeps_all_in_order_within_both_bounds(
    sizes: list[int | None], entries_max: int, bytes_max: int
) -> None:
    said: list[msg.Message] = [
        msg.GotJob(job_id(n), 1, 1)
        if size is None
        else msg.ReplJob(job_id(n), _GOLDEN_SPEC, 1_700, b"x" * size, facts(A))
        for n, size in enumerate(sizes)
    ]
    parts = list(wire.split(said, entries_max=entries_max, bytes_max=bytes_max))
    assert [each for part in parts for each in part] == said
    assert all(parts)
    for part in parts:
        assert len(part) <= entries_max
        bodies = [len(each.body) for each in part if isinstance(each, msg.ReplJob)]
        if sum(bodies) > bytes_max:
            assert len(part) == 1, "only a body that is too big alone may exceed the bound"


@pytest.mark.parametrize("kind", [msg.ReplJob, msg.YourJobs])
def test_split_counts_the_bodies_of_every_type_that_has_one(kind: type[Any]) -> None:
    said = [kind(job_id(n), _GOLDEN_SPEC, 1_700, b"x" * 60, facts(A)) for n in range(3)]
    moves: list[msg.Message] = [
        msg.Move(7, 7, n, 1, job_id(n), _GOLDEN_SPEC, 1_700, b"x" * 60, 5, 0) for n in range(3)
    ]
    for statements_ in (said, moves):
        assert [len(part) for part in wire.split(statements_, entries_max=9, bytes_max=100)] == [
            1,
            1,
            1,
        ]


@given(st.lists(STATEMENTS[msg.ReplJob] | STATEMENTS[msg.GotJob], min_size=1, max_size=4))
def test_what_is_written_and_read_by_hand_is_as_the_schema_has_it(said: list[Any]) -> None:
    writer, reader = wire._Writer(), wire._Reader([A, B, C, D, E])
    writer.nodes = {node: number for number, node in enumerate((A, B, C, D, E))}
    for message in said:
        number, fields_of = wire._ENCODERS[type(message)]
        row = fields_of(writer, message)
        if isinstance(message, msg.ReplJob):
            assert writer.copy(message) == msgpack.packb(row)
        row = msgpack.unpackb(msgpack.packb(row), strict_map_key=False)
        by_hand = wire._statement(reader, type(message), wire._DECODERS[number][1], row)
        reads = wire._DECODERS[number][1]
        assert by_hand == type(message)(
            *[read(reader, field) for read, field in zip(reads, row, strict=True)]
        )
