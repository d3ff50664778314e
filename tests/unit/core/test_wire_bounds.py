"""What a member may say at once: every count and length is bounded, and one statement's fault spares the others."""

from __future__ import annotations

import time

import msgpack
import pytest

from cluster.errors import RemoteProtocolError
from cluster.nodeid import NodeId
from disque.core import messages as msg
from disque.core import wire
from disque.core.job import Reason
from disque.core.merge import NODES_MAX, union
from tests.unit.core.builders import BOOT, DAY_MS, A, B, C, Node, facts, job_id, view

MIB = 1 << 20
UP = view(up=(B, C))


def many(count: int, *, first: int = 0) -> tuple[NodeId, ...]:
    return tuple([NodeId(f"{number:040x}") for number in range(first, first + count)])


# Counts


def test_a_fact_speaks_of_so_many_nodes_at_most() -> None:
    said = msg.SetAck(job_id(), Reason.ACKED, many(NODES_MAX), many(3), DAY_MS)
    assert wire.decode(wire.encode([said])) == [said]
    for more in (
        msg.SetAck(job_id(), Reason.ACKED, many(NODES_MAX + 1), (), DAY_MS),
        msg.Told(job_id(), facts(A, dispatches=dict.fromkeys(many(NODES_MAX + 1), 1))),
    ):
        with pytest.raises(RemoteProtocolError, match="the limit is 4096"):
            wire.decode(wire.encode([more]))


def test_a_payload_has_so_many_statements_at_most() -> None:
    said: list[msg.Message] = [msg.Walk(1)] * wire.ENTRIES_MAX
    assert wire.decode(wire.encode(said)) == said
    with pytest.raises(RemoteProtocolError, match="2001 statements, at most 2000"):
        wire.decode(wire.encode([*said, msg.Walked(1)]))


@pytest.mark.parametrize("element", [[], {}], ids=["lists", "maps"])
def test_a_large_payload_isnt_made_a_hundred_times_larger(element: object) -> None:
    row = msgpack.packb(element) * (3 * MIB)
    later = b"\x93\x01\x90\x91\x92\xcc\xc8\xdd" + len(row).to_bytes(4, "big") + row
    with pytest.raises(RemoteProtocolError, match="elements"):
        wire.decode(later)


def test_what_a_client_lists_is_read_however_long_it_is() -> None:
    ids = tuple([job_id(number) for number in range(60_000)])
    said: list[msg.Message] = [
        msg.Question(1, 2, b"", ids, ()),
        msg.Answer(2, (1,) * (2 * MIB)),
        msg.Walk(1),
    ]
    assert wire.decode(wire.encode(said)) == said
    parts = list(wire.split(said, entries_max=500, bytes_max=MIB))
    assert parts == [said[:1], said[1:2], said[2:]]


def test_a_complaint_never_holds_all_of_what_it_is_about() -> None:
    class Long(bytes):
        def __repr__(self) -> str:
            raise AssertionError("the repr of all of it")

    assert len(wire._shown(Long(200))) <= 60
    assert wire._shown([Long(200)]) == "list"
    with pytest.raises(RemoteProtocolError) as refusal:
        wire.decode(msgpack.packb([1, [], [], b"x" * MIB]) + b"\x00")
    assert len(str(refusal.value)) < 100


# One statement's fault


def test_statements_beside_a_bad_one_are_read() -> None:
    heal, pause = msg.Heal(BOOT, 1), msg.Pause(b"q", 5, B, 1)
    raw = msgpack.unpackb(wire.encode([heal, pause, pause, msg.Walk(3)]))
    raw[2][1][1][1] = 2**61 + 1
    refused: list[str] = []
    assert wire.decode(msgpack.packb(raw), refused) == [heal, pause, msg.Walk(3)]
    assert refused == [f"a counter or stamp of {2**61 + 1}, the limit is 2^61"]


@pytest.mark.parametrize("row", [[], None, [b"no id", 1, 1], [job_id(), 1, 2**61 + 1], [{}, 1, 1]])
def test_a_row_that_is_no_statement_is_left_out(row: object) -> None:
    good = [job_id(), 1, 1]
    refused: list[str] = []
    read = wire.decode(msgpack.packb([1, [], [[2, row, good]]]), refused)
    assert read == [msg.GotJob(job_id(), 1, 1)]
    assert len(refused) == 1


# What is kept, and how long it takes


def test_joins_take_a_time_that_grows_with_what_is_joined() -> None:
    ours, theirs = many(50_000), many(50_000, first=25_000)
    began = time.process_time()
    assert len(union(ours, theirs)) == 75_000
    assert time.process_time() - began < 2


def test_an_end_with_many_holders_is_handled_in_a_time_that_grows_with_them() -> None:
    node = Node(UP)
    held = tuple(sorted({*many(40_000), A}))
    told = tuple([each for each in held if each not in (A, held[0])])
    began = time.process_time()
    node.engine.receive(B, BOOT, msg.SetAck(job_id(), Reason.ACKED, held, told, DAY_MS))
    node.engine.receive(B, BOOT, msg.SetAck(job_id(), Reason.ACKED, held, told, DAY_MS))
    assert time.process_time() - began < 2
    assert not node.state.jobs[job_id()].is_dummy


def test_no_word_of_others_makes_a_fact_of_a_job_grow_beyond_its_bound() -> None:
    node = Node(UP)
    id_ = node.add()
    done = job_id(5)
    for first in range(0, 4 * NODES_MAX, 1_000):
        some = many(1_000, first=first)
        counts = dict.fromkeys(some, 1)
        node.hear(
            B,
            msg.Told(
                id_,
                facts(
                    A,
                    *some,
                    dispatches=counts,
                    nacks=counts,
                    covered=counts,
                    claims=dict.fromkeys(some, (1, 1, True)),
                    leases=dict.fromkeys(some, (1, 1_000)),
                ),
            ),
            msg.SetAck(done, Reason.ACKED, tuple(sorted((A, *some))), some[1:], DAY_MS),
        )
    job, end = node.state.jobs[id_], node.state.jobs[done]
    facts_kept = (job.holders, job.claims, job.dispatches, job.nacks, job.covered, job.leases)
    for each in (*facts_kept, end.holders, end.told):
        assert 1_000 <= len(each) <= NODES_MAX
    assert A in end.told
