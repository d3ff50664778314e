"""What the log asks of the engine: the present state said again, places of records, bodies that leave memory."""

from __future__ import annotations

import attrs
import msgpack
import pytest

from disque.core import commands as cmd
from disque.core import messages as msg
from disque.core.job import JobState, Paged
from disque.core.jobid import JobId
from disque.core.limits import Limits
from disque.core.memory import BASE_BYTES, Pressure, pressure
from disque.core.ready import BASE_KINDS, Record
from tests.unit.core.builders import (
    BOOT,
    CTIME,
    RETRY_MS,
    STATES,
    A,
    B,
    C,
    Node,
    copy,
    job_id,
    node_with,
    spec,
    state_name,
    view,
)
from tests.unit.core.test_engine_restoring import assert_same_facts, replayed

UP = view(up=(B, C))
TIGHT = BASE_BYTES + 2_000


def said_again(node: Node) -> list[Record]:
    """A fresh log, as a rewrite makes it, through msgpack as the log's files are."""
    records = node.engine.node_records()
    for id_ in node.engine.logged_ids():
        records += node.engine.restate(id_)
    packed = msgpack.packb([[each.kind, *each.fields] for each in records])
    read = msgpack.unpackb(packed, use_list=False, strict_map_key=False)
    return [Record(row[0], row[1:]) for row in read]


def rebuilt(node: Node) -> Node:
    return replayed(node, said_again(node))


@pytest.mark.parametrize("kind", [kind for kind in STATES if kind != "mark"])
def test_what_is_said_again_makes_the_same_state(kind: str) -> None:
    node, id_ = node_with(kind, UP)
    after = rebuilt(node)
    assert_same_facts(node, after)
    assert state_name(after, id_) == {"waiting": "active", "queued": "active"}.get(kind, kind)
    assert node.engine.knows(id_) == (kind != "none")
    first = node.engine.restate(id_)[:1]
    assert [each.kind in BASE_KINDS for each in first] == [True] * (kind != "none")


@pytest.mark.parametrize("kind", [kind for kind in STATES if kind not in ("mark", "none")])
def test_said_again_beside_the_older_records_changes_nothing(kind: str) -> None:
    """A crash between a compaction's copy and the end of the old segment leaves both."""
    node, id_ = node_with(kind, UP)
    twice = said_again(node) * 2
    after = replayed(node, twice)
    assert_same_facts(node, after)
    assert state_name(after, id_) == state_name(rebuilt(node), id_)


def test_leases_are_logged_where_there_is_a_log_and_hold_over_a_restart() -> None:
    node = Node(UP)
    node.add(replicate=1)
    node.get()
    assert "lease" not in [each.kind for each in node.records]

    node = Node(UP)
    node.engine.set_logged(True)
    id_ = node.add(replicate=1)
    records = node.records
    node.get()
    lease = next(each for each in node.records if each.kind == "lease")
    assert lease.is_lazy
    after = replayed(node, [*records, *node.records])
    assert after.job(id_).lease_end() == node.now_ms + RETRY_MS
    assert after.job(id_).delivery_count == 1
    after.advance(RETRY_MS - 1)
    assert after.job(id_).state is JobState.ACTIVE


def test_working_is_logged_too() -> None:
    node = Node(UP)
    node.engine.set_logged(True)
    id_ = node.add(replicate=1)
    node.get()
    node.clear()
    node.do(cmd.Working(id_))
    assert [each.kind for each in node.records] == ["lease"]


def test_a_clock_set_back_while_down_makes_nothing_last_longer() -> None:
    node = Node(UP)
    node.engine.set_logged(True)
    id_ = node.add(replicate=1, delay_ms=0, ttl_ms=3_600_000)
    records = node.records
    node.get()
    records = [*records, *node.records]
    day = 86_400_000
    after = Node(view(cut=(B, C)), boot=BOOT + 1, since=BOOT, now_ms=node.now_ms - day)
    for record in records:
        after.engine.restore(record)
    after.engine.restored()
    job = after.job(id_)
    assert job.expires_at <= after.now_ms + 3_600_000
    assert job.lease_end() <= after.now_ms + RETRY_MS


def first_move() -> msg.Move:
    once = spec(retry_ms=0, replicate=1)
    return msg.Move(7, BOOT, 1, 0, job_id(1, is_retried=False), once, CTIME, b"body", 60_000)


def test_numbers_of_moves_are_answered_for_an_earlier_boot_of_a_whole_log() -> None:
    node = Node(UP)
    node.hear(B, first_move())
    after = rebuilt(node)
    after.see(UP)
    after.clear()
    after.hear(B, msg.AskMove(7, BOOT, 1), msg.AskMove(7, BOOT, 2))
    assert [(each.n, each.is_taken) for each in after.told(msg.GotMove)] == [(1, True), (2, False)]

    lossy = replayed(node, said_again(node), is_intact=False)
    lossy.see(UP)
    lossy.clear()
    lossy.hear(B, msg.AskMove(7, BOOT, 1))
    assert lossy.told(msg.GotMove) == [], "it may have had the job and lost it: silence"


def test_a_number_decided_in_an_earlier_boot_is_not_decided_again() -> None:
    node = Node(UP)
    node.hear(
        B,
        first_move(),
    )
    after = rebuilt(node)
    after.see(UP)
    after.clear()
    after.hear(
        B,
        first_move(),
    )
    assert after.told(msg.GotMove) == [], (
        "a move to the earlier boot: the source asks, it never resends"
    )


def test_pause_flags_of_the_cluster_come_back() -> None:
    node = Node(UP)
    node.do(cmd.Pause(b"q", 1, is_cluster=True))
    after = rebuilt(node)
    assert after.state.pauses == node.state.pauses


def test_what_lay_in_the_queues_at_a_clean_stop_can_go_back_there() -> None:
    node = Node(view())
    once, often = node.add(retry_ms=0), node.add(replicate=1)
    assert node.engine.queued_ids() == [once, often]
    after = Node(view(), boot=BOOT + 1, since=BOOT, now_ms=node.now_ms)
    for record in said_again(node):
        after.engine.restore(record)
    after.engine.restored(queued=node.engine.queued_ids())
    after.engine.check()
    assert [each.id for each in after.get(count=5)] == [once, often]


def test_copies_made_under_another_id_wait_for_the_cluster() -> None:
    """Forgotten, back under a new id, and restarted before the cluster has spoken (B2.8)."""
    node = Node(UP)
    node.hear(B, copy(job_id(1), A, B))
    after = Node(view(self_id=C, up=(B,)), boot=BOOT + 1, since=BOOT, now_ms=node.now_ms)
    for record in said_again(node):
        after.engine.restore(record)
    after.engine.restored()
    assert list(after.state.quarantine) == [job_id(1)]
    assert not after.state.jobs
    assert after.engine.knows(job_id(1))


def test_a_stored_body_leaves_memory_only_while_that_is_tight() -> None:
    roomy, tight = Node(view()), Node(view(), limits=Limits(maxmemory_bytes=TIGHT))
    for node, is_paged in ((roomy, False), (tight, True)):
        id_ = node.add(b"x" * 1000)
        node.engine.placed(id_, 3, 100, 1200)
        node.engine.check()
        assert isinstance(node.job(id_).body, Paged) == is_paged
        assert node.engine.segment_of(id_) == 3
        assert node.engine.live_bytes() >= 1000
    small = tight.add(b"x" * 10)
    tight.engine.placed(small, 3, 1300, 200)
    assert tight.job(small).body == b"x" * 10, "a handle is no smaller"


def test_a_limit_that_falls_sends_bodies_to_the_log_and_no_more_than_needed() -> None:
    node = Node(view())
    node.engine.set_logged(True)
    ids = [node.add(b"x" * 50_000) for _ in range(60)]
    for n, id_ in enumerate(ids):
        node.engine.placed(id_, 1, n * 60_000, 50_100)
    node.clear()
    node.engine.set_limits(Limits(maxmemory_bytes=(BASE_BYTES + 1_500_000) * 10 // 6))
    for _ in range(20):
        node.advance(10)
        for n, record in enumerate(node.records):
            assert record.kind == "job"
            assert isinstance(record.fields[0], bytes)
            node.engine.placed(record.fields[0], 2, n * 60_000, 50_100)
        node.clear()
    assert 1_300_000 < node.state.body_bytes <= 1_500_000
    assert len(node.get(count=100)) == 60


def write(node: Node) -> None:
    """The log's write at the end of a turn; what was said is forgotten."""
    for record in node.records:
        if record.kind in BASE_KINDS:
            node.engine.placed(JobId(record.fields[0]), 1, 100, 1_000)  # type: ignore[arg-type]
    node.clear()


def limited(maxmemory: int) -> Node:
    node = Node(UP, limits=Limits(maxmemory_bytes=maxmemory))
    node.engine.set_logged(True)
    return node


LIMIT = 10_000_000


def test_handles_that_need_room_send_early_bodies_to_the_log() -> None:
    node = limited(LIMIT // 3)
    for turn in range(23):
        copies = [copy(job_id(turn * 100 + n), B, A, body=b"x" * 8_000) for n in range(100)]
        node.hear_many(B, copies)
        assert not node.told(msg.Refused), f"turn {turn}"
        write(node)
        node.advance(10)
        write(node)
    assert node.state.body_bytes < LIMIT // 30
    assert pressure(node.state) is Pressure.NONE


def test_a_pass_that_could_not_help_is_not_repeated() -> None:
    node = limited(LIMIT)
    node.hear_many(B, [copy(job_id(n), B, A, body=b"x" * 200) for n in range(8_000)])
    write(node)
    node.engine.set_shell_bytes(0)
    assert node.state.pager.ids
    node.advance(1_000)
    node.engine.set_shell_bytes(0)
    assert not node.state.pager.ids


def test_bodies_of_one_turn_are_no_reason_to_refuse_until_they_are_too_many() -> None:
    node = limited(LIMIT)
    node.hear_many(B, [copy(job_id(n), B, A, body=b"x" * 100_000) for n in range(120)])
    refused = len(node.told(msg.Refused))
    assert refused
    taken_bytes = (120 - refused) * 100_000
    assert 0.8 * LIMIT < taken_bytes < LIMIT
    write(node)
    assert pressure(node.state) is Pressure.NONE

    without_log = Node(UP, limits=Limits(maxmemory_bytes=LIMIT))
    without_log.hear_many(B, [copy(job_id(n), B, A, body=b"x" * 100_000) for n in range(80)])
    assert without_log.told(msg.Refused)


def test_a_paged_body_moves_and_is_freed_with_its_job() -> None:
    node = Node(view(), limits=Limits(maxmemory_bytes=TIGHT))
    id_ = node.add(b"x" * 1000)
    node.engine.placed(id_, 3, 100, 1200)
    node.engine.placed(id_, 4, 8, 1300)
    assert node.job(id_).body == Paged(4, 8, 1300)
    assert node.get()[0].body == Paged(4, 8, 1300)
    node.do(cmd.AckJob((id_,)))
    node.engine.check()
    assert node.state.paged_bytes == 0
    assert node.engine.segment_of(id_) == 0


def test_a_paged_job_is_said_again_with_its_handle_and_restored_paged() -> None:
    limits = Limits(maxmemory_bytes=TIGHT)
    node = Node(view(), limits=limits)
    id_ = node.add(b"x" * 1000)
    node.engine.placed(id_, 3, 100, 1200)
    (base,) = node.engine.restate(id_)
    assert base.fields[2] == Paged(3, 100, 1200)
    after = Node(view(), boot=BOOT + 1, since=BOOT, now_ms=node.now_ms, limits=limits)
    fields = (*base.fields[:2], b"x" * 1000, *base.fields[3:])
    after.engine.restore(Record("job", fields), 9, 8, 1200)
    assert after.job(id_).body == Paged(9, 8, 1200), "a replay doesn't fill memory either"
    assert attrs.asdict(after.job(id_).live_spec) == attrs.asdict(node.job(id_).live_spec)


def test_a_record_that_replay_passed_over_is_no_place_of_its_id() -> None:
    """D1-4: after damage the copy of an acked job may stand behind its end; the end must be what compaction keeps."""
    node, id_ = node_with("done", UP)
    (end,) = node.engine.restate(id_)
    live, _ = node_with("active", UP)
    copy_of_it = Record(
        "job", (id_, *live.engine.restate(next(iter(live.state.jobs)))[0].fields[1:])
    )
    after = Node(view(cut=(B, C)), boot=BOOT + 1, since=BOOT, now_ms=node.now_ms)
    after.engine.restore(end, 3, 8, 100)
    after.engine.restore(copy_of_it, 4, 8, 200)
    after.engine.restored()
    assert after.job(id_).is_done
    assert after.engine.segment_of(id_) == 3


def test_a_move_in_doubt_for_good_stays_so_when_it_is_said_again() -> None:
    """D3-1: else a restart makes this node the owner again, of a job that the peer may have delivered."""
    node, id_ = node_with("moving", UP)
    node.see(view(cut=(B, C)))
    node.see(view(up=(B, C), boots={B: BOOT + 1}, sinces={B: BOOT + 1}))
    assert not any(peer.moves for peer in node.state.peers.values())
    after = rebuilt(node)
    assert after.job(id_).state is JobState.MOVING
    after.advance(60_000)
    assert after.get() == []
    assert rebuilt(after).job(id_).state is JobState.MOVING


def test_dead_letters_come_back_from_the_log_as_such() -> None:
    """D3-2: counted for the queue in which they lie."""
    node = Node(view())
    node.do(cmd.AddJob(b"q", b"x", 0, replicate=1, retry_ms=RETRY_MS, max_deliveries=1))
    (given,) = node.get()
    node.do(cmd.Nack((JobId(given.id),)))
    assert node.job(JobId(given.id)).is_dead
    for records in (node.records, said_again(node)):
        after = Node(view(), boot=BOOT + 1, since=BOOT, now_ms=node.now_ms)
        for record in records:
            after.engine.restore(record)
        after.engine.restored()
        after.engine.check()
        after.advance(1_000)
        dead = node.job(JobId(given.id)).live_spec.dead_queue
        assert [each.id for each in after.get(dead)] == [given.id]
        assert after.state.tallies[dead].copies == 1


def test_a_record_tells_whose_it_is() -> None:
    assert Record("gone", (job_id(1),)).id == job_id(1)
    assert Record("flush", ()).id is None
    assert Record("taken", (B, 1, 2, 3, [])).id is None
    assert JobId(job_id(1)) == job_id(1)
    assert spec().queue == b"q"
