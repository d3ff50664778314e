"""Replay of the log: the records of a run make the same facts again (M24, Q7, B1.9, B6.7)."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disque.core import commands as cmd
from disque.core import messages as msg
from disque.core.job import Job, Reason
from disque.core.jobid import JobId
from disque.core.limits import Limits
from disque.core.ready import ClientId, Record
from disque.core.state import copy_count
from tests.unit.core.builders import (
    BOOT,
    CTIME,
    DAY_MS,
    ME,
    ONCE,
    RETRY_MS,
    STATES,
    A,
    B,
    C,
    Node,
    World,
    copy,
    facts,
    job_id,
    node_with,
    spec,
    state_name,
    view,
)

UP = view(up=(B, C))


def replayed(node: Node, records: list[Record], *, is_intact: bool = True) -> Node:
    """A fresh engine at the next boot, its store whole or not, nobody reached yet."""
    after = Node(
        view(cut=(B, C)), boot=BOOT + 1, since=BOOT if is_intact else None, now_ms=node.now_ms
    )
    for record in records:
        after.engine.restore(record)
    after.engine.restored()
    after.engine.check()
    after.clear()
    return after


def stored(job: Job) -> tuple[Any, ...]:
    """The facts that the log must have; counters and leases of unlimited jobs come with the next record (M7).

    Of an end its reason has a test of its own.
    """
    if job.is_done:
        return (job.holders, job.told, job.expires_at)
    burials = job.burials and (job.burials.count, job.burials.reason, job.burials.base)
    return (
        job.spec,
        job.body,
        job.holders,
        dict(job.nacks),
        dict(job.covered),
        burials,
        job.expires_at,
        job.not_before,
    )


def assert_same_facts(before: Node, after: Node) -> None:
    for id_, job in before.state.jobs.items():
        assert id_ in after.state.jobs, f"{job} is gone"
        assert stored(after.state.jobs[id_]) == stored(job)
    assert sorted(after.state.jobs) == sorted(before.state.jobs)
    assert sorted(after.state.tombstones) == sorted(before.state.tombstones)


def node_and_records(kind: str) -> tuple[Node, JobId, list[Record]]:
    """A node with a job in this state, and all its records since the start."""
    kept: list[Record] = []
    original = Node.clear

    def keep(self: Node) -> None:
        kept.extend(self.records)
        original(self)

    Node.clear = keep  # type: ignore[method-assign]
    try:
        node, id_ = node_with(kind, UP)
    finally:
        Node.clear = original  # type: ignore[method-assign]
    return node, id_, kept


@pytest.mark.parametrize("kind", [kind for kind in STATES if kind != "mark"])
def test_a_job_of_any_state_comes_back_with_the_same_facts(kind: str) -> None:
    node, id_, records = node_and_records(kind)
    after = replayed(node, records)
    assert_same_facts(node, after)
    expected = {"waiting": "active", "leased": "active", "queued": "active"}.get(kind, kind)
    assert state_name(after, id_) == expected, (
        "a copy that was queued or leased comes back unqueued"
    )


STEPS = ("add", "once", "get", "ack", "nack", "del", "copy", "your", "set", "told", "wait")
steps = st.lists(
    st.tuples(st.sampled_from(STEPS), st.integers(0, 3)),
    min_size=1,
    max_size=25,
)  # fmt: skip


@settings(max_examples=80, deadline=None)
@given(steps)
def test_the_records_of_any_run_make_the_same_facts(plan: list[tuple[str, int]]) -> None:
    node = Node(UP)
    ids: list[JobId] = [job_id(n) for n in range(4)]
    for client, (what, n) in enumerate(plan, start=100):
        if what == "add":
            node.do(
                cmd.AddJob(b"q", b"x", 0, replicate=1, retry_ms=RETRY_MS, max_deliveries=n),
                client=ClientId(client),
            )
        elif what == "once":
            node.add(retry_ms=0)
        elif what == "get":
            ids += [JobId(each.id) for each in node.get(count=n + 1)]
        elif what in ("ack", "nack", "del"):
            make = {"ack": cmd.AckJob, "nack": cmd.Nack, "del": cmd.DelJob}[what]
            node.do(make((ids[-1 - n % len(ids)],)), client=ClientId(client))
        elif what == "copy":
            node.hear(B, copy(ids[n], A, B))
        elif what == "your":
            node.hear(C, msg.YourJobs(ids[n], spec(), CTIME, b"body", facts(A, C)))
        elif what == "set":
            node.hear(B, msg.SetAck(ids[n], Reason.CANCELLED, (A, B), (B,), DAY_MS))
        elif what == "told":
            node.hear(C, msg.Told(ids[n], facts(A, B, C, nacks={C: n})))
        else:
            node.advance(n * 400)
    assert_same_facts(node, replayed(node, node.records))


def test_replay_of_a_replay_changes_nothing() -> None:
    """A log that is read twice: idempotent."""
    for kind in STATES:
        node, id_, records = node_and_records(kind)
        once, twice = replayed(node, records), replayed(node, records + records)
        assert state_name(once, id_) == state_name(twice, id_)


def test_a_dispatched_retry_0_job_is_never_dispatched_again() -> None:
    """M20, B6.7: whatever clients, peers or time do."""
    node, id_, records = node_and_records("spent")
    for is_intact in (True, False):
        after = replayed(node, records, is_intact=is_intact)
        for command in (
            cmd.Enqueue((id_,)),
            cmd.Nack((id_,)),
            cmd.Dequeue((id_,)),
            cmd.Working(id_),
        ):
            after.do(command)
            after.advance(1_000)
            assert after.get() == []
        after.see(UP)
        after.hear(B, msg.NeedJobs(b"q", 5, True))
        after.advance(60_000)
        assert after.get() == []
        assert after.told(msg.Move) == []


def test_an_undelivered_retry_0_job_is_kept_by_an_intact_store_and_dropped_by_another() -> None:
    """B6.7 (F11)."""
    node = Node()
    id_ = node.add(retry_ms=0)
    intact, broken = (
        replayed(node, node.records, is_intact=is_intact) for is_intact in (True, False)
    )
    intact.advance(1_000)
    assert [each.id for each in intact.get()] == [id_]
    broken.advance(1_000)
    assert (broken.get(), id_ in broken.state.jobs) == ([], False)


def test_a_replayed_move_is_in_doubt_and_asked_about() -> None:
    """B6.7 (F11)."""
    node, id_, records = node_and_records("moving")
    after = replayed(node, records)
    after.advance(60_000)
    assert after.get() == []
    after.see(UP)
    (asked,) = after.told(msg.AskMove, to=B)
    after.hear(B, msg.GotMove(asked.source_boot, asked.boot, asked.n, False))
    after.advance(0)
    assert [each.id for each in after.get()] == [id_]


def test_a_move_that_returned_is_ours_after_a_replay() -> None:
    node, id_, records = node_and_records("moving")
    node.hear(B, msg.GotMove(BOOT, BOOT, 1, False))
    after = replayed(node, records + node.records)
    after.advance(1_000)
    assert [each.id for each in after.get()] == [id_]


def test_a_move_that_returned_is_asked_about_no_more_when_the_job_moves_again() -> None:
    """S5: B's old no must not make it ours while C may have it."""
    node, id_, records = node_and_records("moving")
    node.hear(B, msg.GotMove(BOOT, BOOT, 1, False))
    node.hear(C, msg.NeedJobs(b"q", 1, True))
    after = replayed(node, records + node.records)
    after.see(UP)
    assert after.told_to(msg.AskMove) == [C]
    after.hear(B, msg.GotMove(BOOT, BOOT, 1, False))
    after.advance(1_000)
    assert (after.get(), state_name(after, id_)) == ([], "moving")


def test_moves_of_jobs_that_are_gone_are_closed_by_a_replay() -> None:
    """Else a log of many moves would fill the places of new ones, and ask about each."""
    node, _, records = node_and_records("moving")
    node.hear(B, msg.GotMove(BOOT, BOOT, 1, True))
    after = replayed(node, records + node.records)
    after.see(UP)
    assert after.told(msg.AskMove) == []


def test_a_job_that_came_back_before_its_move_was_confirmed_is_ours_after_a_replay() -> None:
    node, id_, records = node_and_records("moving")
    job = node.job(id_)
    node.hear(B, msg.Move(BOOT, BOOT, 1, 1, id_, job.live_spec, job.ctime, b"body", DAY_MS, 0))
    after = replayed(node, records + node.records)
    after.advance(1_000)
    assert [each.id for each in after.get()] == [id_]


def test_a_copy_that_a_store_without_its_tail_still_has_counts_and_is_sent_no_more() -> None:
    """M3: it is claimed anew, since claims of a life before the loss don't count."""
    world = World.of(A, B)
    a, b = world.nodes.values()
    id_ = a.add(replicate=None, is_async=True, retry_ms=DAY_MS // 4)
    world.settle()
    boots = {B: BOOT + 1}
    after = world.nodes[B] = Node(view(B, cut=(A,), boots=boots), boot=BOOT + 1, now_ms=b.now_ms)
    for record in b.records:
        after.engine.restore(record)
    after.engine.restored()
    after.see(view(B, up=(A,), boots=boots))
    a.see(view(A, up=(B,), boots=boots))
    world.advance(120_000, step_ms=500)
    copies = [each for _, to, each in world.sent if isinstance(each, msg.ReplJob) and to == B]
    assert len(copies) == 1, "the first one"
    assert copy_count(a.state, a.job(id_)) == copy_count(after.state, after.job(id_)) == 2


def test_a_copy_without_claims_comes_back_beside_an_end_without_holders() -> None:
    node = Node(view(up=(B, C), leaving=(A,)))
    unknown = job_id(1)
    node.do(cmd.AckJob((unknown,)))
    node.do(cmd.AddJob(b"q", b"body", DAY_MS, replicate=2, retry_ms=RETRY_MS))
    (waiting,) = node.state.adding
    for records in (node.records, node.records[::-1]):
        after = replayed(node, records)
        assert after.job(unknown).holders == ()
        assert [node for node, (_, _, has) in after.job(waiting).claims.items() if has] == [A]
        after.see(UP)
        after.hear(B, msg.Unknown(waiting, BOOT, 1))
        assert after.job(waiting).claims[B] == (BOOT, 1, False)


def test_hand_outs_of_a_limited_job_are_counted_again() -> None:
    """M7: logged at dispatch."""
    node = Node()
    id_ = node.add(max_deliveries=5)
    for _ in range(2):
        node.get()
        node.advance(RETRY_MS)
    after = replayed(node, node.records)
    assert after.job(id_).dispatches == {A: 2}


def test_new_hand_outs_raise_the_old_counter() -> None:
    """M7, D: a restart must not hide new counts under old ones."""
    node = Node()
    id_ = node.add(max_deliveries=5)
    node.get()
    after = replayed(node, node.records)
    after.advance(RETRY_MS + 15_000)
    assert len(after.get()) == 1
    assert after.job(id_).dispatches == {A: 2}


def test_a_replayed_end_is_collected_again() -> None:
    node, id_, records = node_and_records("done")
    after = replayed(node, records)
    after.see(UP)
    after.advance(100)
    assert B in after.told_to(msg.SetAck)
    after.hear(B, msg.GotAck(id_, Reason.ACKED, (A, B), (A, B), DAY_MS))
    assert state_name(after, id_) == "tombstone"


def test_a_replay_keeps_no_more_dummies_than_there_may_be() -> None:
    """S14: the log may hold many that went long ago."""
    node = Node(UP, limits=Limits(dummies_max=3))
    node.do(cmd.AckJob(tuple(job_id(n) for n in range(5))))
    after = Node(view(cut=(B, C)), boot=BOOT + 1, since=BOOT, limits=node.state.limits)
    for record in node.records:
        after.engine.restore(record)
    after.engine.restored()
    assert list(after.state.dummies) == [job_id(2), job_id(3), job_id(4)]
    after.engine.check()


def test_a_replayed_tombstone_answers_and_ages() -> None:
    node, id_, records = node_and_records("tombstone")
    after = replayed(node, records)
    after.see(UP)
    after.hear(B, copy(id_, A, B))
    assert len(after.told(msg.DelJob, to=B)) == 1
    after.advance(200_000)
    assert state_name(after, id_) == "none"


def test_f10_an_id_that_settled_twice_leaves_one_tombstone() -> None:
    node = Node(view(up=(B,)))
    for _ in range(2):
        node.do(cmd.AckJob((job_id(1),)))
        node.hear(B, msg.GotAck(job_id(1), Reason.ACKED, (B,), (B,), DAY_MS))
        node.advance(60_000)
    assert sum(each.kind == "settled" for each in node.records) == 2
    after = replayed(node, node.records)
    assert len(after.state.tombstones) == 1
    after.see(view(up=(B,)))
    after.advance(100_000)
    assert not after.state.tombstones


def test_a_reason_that_rose_is_in_the_log() -> None:
    """M4, Q7: NOREPL, then acked."""
    node = Node(view(up=(B,)))
    node.do(cmd.AddJob(b"q", b"x", 100, replicate=2))
    (id_,) = node.state.jobs
    node.advance(100)
    assert node.job(id_).reason is Reason.NOREPL
    node.do(cmd.AckJob((id_,)))
    assert node.job(id_).reason is Reason.ACKED
    assert replayed(node, node.records).job(id_).reason is Reason.ACKED


def test_flushall_is_in_the_log() -> None:
    """What was flushed doesn't come back."""
    for kind in STATES:
        node, id_, records = node_and_records(kind)
        node.do(cmd.FlushAll(), client=ClientId(9))
        after = replayed(node, records + node.records)
        assert state_name(after, id_) == "none", kind


def test_what_a_replayed_flush_forgets_is_cleared_up_in_steps() -> None:
    node = Node()
    for _ in range(5_000):
        node.engine.command(ME, cmd.AddJob(b"q", b"", 0, replicate=1, retry_ms=RETRY_MS))
    node.do(cmd.FlushAll(), client=ClientId(9))
    kept = node.add()
    after = replayed(node, node.records)
    assert [*after.state.jobs] == [kept]
    left = sum(map(len, after.state.trash.pools))
    assert left >= 5_000
    while after.engine.clear_up():
        assert left - sum(map(len, after.state.trash.pools)) <= 2_000
        left = sum(map(len, after.state.trash.pools))
    after.advance(RETRY_MS)
    assert [*after.state.jobs] == [kept]


@pytest.mark.parametrize("fields", [(), (1, 2, 3), (b"x",)])
def test_a_kind_that_a_later_version_wrote_is_skipped(fields: tuple[object, ...]) -> None:
    node = Node()
    node.engine.restore(Record("from-the-future", fields))
    node.engine.check()
    assert not node.state.jobs


@pytest.mark.parametrize("kind", ["facts", "holders", "dispatch", "move", "returned", "gone"])
def test_records_of_a_job_that_is_gone_are_skipped(kind: str) -> None:
    """M24: compaction may have dropped the creation."""
    fields: dict[str, tuple[object, ...]] = {
        "facts": (job_id(1), (A,), {}, {}, {}, {}, {}, None, 5, 0),
        "holders": (job_id(1), (A,)),
        "dispatch": (job_id(1), 1),
        "move": (job_id(1), B, BOOT, BOOT, 1),
        "returned": (job_id(1),),
        "gone": (job_id(1),),
    }
    node = Node()
    node.engine.restore(Record(kind, fields[kind]))
    node.engine.check()
    assert not node.state.jobs


def test_every_record_holds_plain_values_that_msgpack_takes() -> None:
    for kind in STATES:
        _, _, records = node_and_records(kind)
        for record in records:
            raw = msgpack.unpackb(msgpack.packb([record.kind, record.fields]), strict_map_key=False)
            assert raw[0] == record.kind


def test_records_read_back_from_msgpack_restore_as_well() -> None:
    """Lists for tuples, as the log gives them."""
    for kind in STATES:
        if kind in ONCE:
            continue
        node, _, records = node_and_records(kind)
        raw = [
            msgpack.unpackb(msgpack.packb([r.kind, r.fields]), strict_map_key=False)
            for r in records
        ]
        after = replayed(node, [Record(kind_, tuple(fields)) for kind_, fields in raw])
        assert_same_facts(node, after)
        after.see(UP)
        after.advance(30_000)


def test_a_tombstone_that_a_compacted_log_says_again_is_one() -> None:
    node, id_, records = node_and_records("tombstone")
    assert records[-1].kind == "settled"
    after = replayed(node, [*records, records[-1]])
    after.see(UP)
    after.advance(200_000)
    assert state_name(after, id_) == "none"
