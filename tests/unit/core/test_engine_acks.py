"""The end of jobs: acks, dummies, tombstones, marks (reference 1.3-1.5; M4-M6, M14, M15, M21, B2)."""

from __future__ import annotations

from itertools import pairwise

import pytest

from cluster.nodeid import NodeId
from disque.core import commands as cmd
from disque.core import messages as msg
from disque.core.job import Reason
from disque.core.jobid import JobId
from disque.core.limits import Limits
from disque.core.ready import ClientId
from disque.core.state import salted
from tests.unit.core.builders import (
    BOOT,
    CTIME,
    DAY_MS,
    NODE_TIMEOUT_MS,
    RETRY_MS,
    A,
    B,
    C,
    D,
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

SHORT_MS = 2 * NODE_TIMEOUT_MS + 15_000  # M6: 2 NT + the longest time a frame may wait in a link
_SOMEBODY = ClientId(50)
UP = view(up=(B, C))


def got_ack(
    id_: JobId, peer: NodeId, *holders: NodeId, told: tuple[NodeId, ...] | None = None
) -> msg.GotAck:
    reached = (peer,) if told is None else told
    ends = (tuple(sorted(holders)), tuple(sorted(reached)))
    return msg.GotAck(id_, Reason.ACKED, *ends, DAY_MS)


def node_that_holds(*holders: NodeId) -> tuple[Node, JobId]:
    """A with an active copy that these hold as well."""
    node = Node(UP)
    node.hear(B, copy(job_id(1), A, *holders))
    node.clear()
    return node, job_id(1)


# Replies


def test_ackjob_counts_known_jobs_that_werent_done() -> None:
    node, id_ = node_that_holds(B)
    unknown = job_id(2)
    assert node.do(cmd.AckJob((id_, unknown))) == [1]
    assert node.do(cmd.AckJob((id_, unknown))) == [0]
    assert node.do(cmd.AckJob(())) == [0]


def test_the_same_id_twice_in_one_ackjob_counts_once() -> None:
    node, id_ = node_that_holds(B)
    assert node.do(cmd.AckJob((id_, id_))) == [1]


@pytest.mark.parametrize("kind", ["waiting", "active", "leased", "queued", "moving", "spent"])
@pytest.mark.parametrize("command", [cmd.AckJob, cmd.FastAck])
def test_an_ack_ends_a_live_job_of_any_state(
    kind: str, command: type[cmd.AckJob | cmd.FastAck]
) -> None:
    node, id_ = node_with(kind, UP)
    assert node.do(command((id_,)), client=_SOMEBODY) == [1]
    assert state_name(node, id_) in ("done", "tombstone")
    assert node.state.body_bytes == 0, "done frees the body at once (S14)"
    assert node.get() == []


def test_deljob_drops_this_copy_alone_and_nobody_dies_of_it() -> None:
    """M21, U15."""
    node, id_ = node_that_holds(B, C)
    assert node.do(cmd.DelJob((id_, job_id(2)))) == [1]
    assert state_name(node, id_) == "none"
    assert set(node.told_to(msg.Unknown)) == {B, C}
    assert not node.told(msg.SetAck)
    other = Node(view(B, up=(A, C)))
    other.hear(A, copy(id_, A, B))
    other.hear(A, *node.told(msg.Unknown, to=B))
    assert state_name(other, id_) == "active"


def test_m21_who_dropped_its_copy_still_names_the_holders_that_the_ender_never_heard_of() -> None:
    node, id_ = node_that_holds(B, C)
    node.do(cmd.DelJob((id_,)))
    node.clear()
    node.hear(B, msg.SetAck(id_, Reason.ACKED, (A, B), (B,), DAY_MS))
    (said,) = node.told(msg.GotAck, to=B)
    assert (said.holders, said.told) == ((A, B, C), (A, B))
    assert not node.job(id_).is_dummy


def test_m21_a_copy_that_comes_back_knows_the_holders_of_the_one_that_was_dropped() -> None:
    node, id_ = node_that_holds(B, C)
    node.do(cmd.DelJob((id_,)))
    node.hear(B, copy(id_, A, B))
    assert node.job(id_).holders == (A, B, C)


def test_m21_an_ack_where_the_copy_was_dropped_asks_all_and_still_names_its_holders() -> None:
    node = Node(view(up=(B, C), suspect=(D,)))
    id_ = job_id(1)
    node.hear(B, copy(id_, A, B, D))
    node.do(cmd.DelJob((id_,)))
    node.clear()
    assert node.do(cmd.AckJob((id_,))) == [0]
    assert node.told_to(msg.SetAck) == [B, C]
    node.hear(B, got_ack(id_, B, A, B, told=(A, B)))
    assert node.job(id_).holders == (A, B, D)
    assert node.job(id_).told == (A, B)


def test_m5_a_dummy_at_a_holder_isnt_told_until_it_has_named_its_holders() -> None:
    """B dropped its copy, which knew C; then it was told of an ack and doesn't know yet that A has a copy."""
    node, id_ = node_that_holds(B)
    node.clear()
    node.hear(B, msg.SetAck(id_, Reason.ACKED, (), (B,), DAY_MS))
    (said,) = node.told(msg.GotAck, to=B)
    assert (said.holders, said.told) == ((A, B), (A,))
    node.hear(B, got_ack(id_, B, A, B, C, told=(A, B)))
    assert node.told_to(msg.SetAck) == [C]
    assert state_name(node, id_) == "done"


def test_m21_at_most_once_leaves_no_memory_of_holders() -> None:
    node = Node(UP)
    once = node.add(retry_ms=0, replicate=1)
    node.do(cmd.DelJob((once,)))
    assert not node.state.absences


def test_m21_the_memory_of_dropped_copies_is_bounded_and_ends_with_the_job() -> None:
    node = Node(UP, limits=Limits(absences_max=2))
    ids = [job_id(n) for n in range(1, 4)]
    node.hear(B, *[copy(id_, A, B) for id_ in ids])
    node.do(cmd.DelJob(tuple(ids)))
    assert list(node.state.absences) == ids[1:]
    node.advance(DAY_MS + 1)
    assert not node.state.absences


def test_deljob_doesnt_un_ack() -> None:
    """S14: an unsettled end stays, whatever is asked."""
    node, id_ = node_that_holds(B)
    node.do(cmd.AckJob((id_,)))
    assert node.do(cmd.DelJob((id_,))) == [0]
    assert state_name(node, id_) == "done"


@pytest.mark.parametrize(
    "command",
    [cmd.AckJob, cmd.FastAck, cmd.DelJob, cmd.Nack, cmd.Enqueue, cmd.Dequeue],
    ids=lambda command: command.__name__,
)
def test_u04_every_command_answers_an_unknown_id_with_0(command: type[cmd.AckJob]) -> None:
    assert Node().do(command((job_id(9),))) == [0]
    assert Node(UP).ask(command((job_id(9),))) == [0], "though members are silent"


# Collection


def test_w1_a_job_is_forgotten_when_every_holder_has_stored_the_end_not_by_number() -> None:
    """W-1, W-38: inclusion, never sizes."""
    node, id_ = node_that_holds(B, C)
    node.do(cmd.AckJob((id_,)))
    assert set(node.told_to(msg.SetAck)) == {B, C}
    node.clear()
    node.hear(B, got_ack(id_, B, A, B, D))  # B knows one more holder, D
    node.hear(C, got_ack(id_, C, A, B, C, told=(C, A)))
    assert state_name(node, id_) == "done", "three told, but D isn't"
    node.see(view(up=(B, C, D)))
    node.hear(D, got_ack(id_, D, A, D))
    assert state_name(node, id_) == "tombstone"
    assert set(node.told_to(msg.DelJob)) == {B, C, D}


def test_w1_an_importer_acks_and_the_source_hears_of_it() -> None:
    """W-1, U56: REPLICATE 1 on A, got and acked on C, never again on A."""
    world = World.of(A, B, C)
    a, c = world.nodes[A], world.nodes[C]
    id_ = a.add(b"x")
    c.do(cmd.GetJob((b"q",)))
    world.settle()
    assert len(c.answers()) == 1
    assert c.do(cmd.AckJob((id_,)), client=_SOMEBODY) == [1]
    world.settle()
    assert world.registered() == [0, 0, 0]
    world.advance(3 * RETRY_MS, step_ms=500)
    assert (a.get(), c.get()) == ([], [])


def test_w38_the_end_reaches_holders_that_only_the_answerer_knew() -> None:
    """W-38, B2.4."""
    node, id_ = node_that_holds(B)
    node.do(cmd.AckJob((id_,)))
    node.clear()
    node.hear(B, got_ack(id_, B, A, B, C))
    assert node.told_to(msg.SetAck) == [C]
    assert state_name(node, id_) == "done"


def test_setack_says_again_after_1_s_doubling_to_30_s() -> None:
    node, id_ = node_that_holds(B)
    node.do(cmd.AckJob((id_,)))
    times = []
    node.clear()
    for second in range(1, 200):
        node.advance(1_000)
        if node.told(msg.SetAck):
            times.append(second)
        node.clear()
    assert times[:6] == [1, 3, 7, 15, 31, 61]
    assert {later - earlier for earlier, later in pairwise(times[5:])} == {30}


def test_who_only_learned_of_the_end_waits_for_the_initiator_a_rank_each() -> None:
    """B2.2: 1 s + rank x 200 ms."""
    for place, wait_ms in enumerate((1_000, 1_200, 1_400)):
        id_ = next(i for i in map(job_id, range(1_000)) if salted(i, (A, B, C))[place] == A)
        node = Node(UP)
        node.hear(B, copy(id_, A, B, C))
        node.hear(B, msg.SetAck(id_, Reason.ACKED, (A, B, C), (B,), DAY_MS))
        node.advance(wait_ms - 1)
        assert not node.told(msg.SetAck)
        node.advance(1)
        assert node.told_to(msg.SetAck) == [C]


def test_setack_is_answered_with_the_answerers_own_holders() -> None:
    """B2.3, M5: only the node itself puts itself into told."""
    node, id_ = node_that_holds(B, C)
    node.hear(B, msg.SetAck(id_, Reason.ACKED, (A, B), (B,), DAY_MS))
    (answer,) = node.told(msg.GotAck, to=B)
    assert (answer.holders, answer.told) == ((A, B, C), (A, B))


def test_deljob_buries_only_if_our_own_holders_are_told() -> None:
    """B2.6."""
    node, id_ = node_that_holds(B, C)
    node.hear(B, msg.DelJob(id_, Reason.ACKED, (A, B), (A, B)))
    assert state_name(node, id_) == "done"
    assert node.told_to(msg.SetAck) == [C], "goes on as initiator"
    node.hear(C, msg.DelJob(id_, Reason.ACKED, (A, B, C), (A, B, C)))
    assert state_name(node, id_) == "tombstone"
    assert not node.told(msg.DelJob), "DELJOB is never answered"


def test_an_ack_alone_in_the_world_is_forgotten_at_once() -> None:
    node = Node()
    id_ = node.add()
    node.do(cmd.AckJob((id_,)))
    assert state_name(node, id_) == "tombstone"
    assert not node.state.jobs


@pytest.mark.parametrize(
    ("seen", "kind"),
    [
        ({}, "none"),
        ({"forgotten": (B,)}, "dummy"),
        ({"forgotten": (B,), "drained": (B,)}, "none"),
        ({"cut": (B,)}, "dummy"),
    ],
)
def test_who_is_alone_keeps_an_ack_only_for_a_machine_that_may_come_back(
    seen: dict[str, tuple[NodeId, ...]], kind: str
) -> None:
    node = Node(view(**seen))
    node.do(cmd.AckJob((job_id(1),)))
    node.advance(3 * NODE_TIMEOUT_MS)
    assert state_name(node, job_id(1)) == kind


@pytest.mark.parametrize("first", list(Reason))
@pytest.mark.parametrize("second", list(Reason))
def test_of_two_reasons_the_higher_stays(first: Reason, second: Reason) -> None:
    """M4."""
    node, id_ = node_that_holds(B, C)
    for reason in (first, second):
        node.hear(B, msg.SetAck(id_, reason, (A, B, C), (B,), DAY_MS))
    assert node.job(id_).reason is max(first, second)


def test_w3_nothing_brings_an_acked_job_back() -> None:
    """W-3, S1: YOURJOBS and REPLJOB meet the end and are told of it."""
    for kind in ("done", "tombstone", "dummy", "mark"):
        node, id_ = node_with(kind, UP)
        node.hear(B, msg.YourJobs(id_, spec(), CTIME, b"body", facts(A, B)), copy(id_, A, B))
        assert state_name(node, id_) == kind
        assert node.get() == []
        assert len(node.told(msg.SetAck, to=B) + node.told(msg.DelJob, to=B)) == 2


def test_w16_forget_settles_what_waited_for_the_forgotten_and_its_tombstone_is_long() -> None:
    """W-16, B2.7."""
    node = Node(view(up=(B,), suspect=(C,)))
    node.hear(B, copy(job_id(1), A, B, C))
    node.do(cmd.AckJob((job_id(1),)))
    node.hear(B, got_ack(job_id(1), B, A, B, C))
    node.advance(60_000)
    assert state_name(node, job_id(1)) == "done"
    node.see(view(up=(B,), forgotten=(C,)))
    node.advance(1_000)
    assert state_name(node, job_id(1)) == "tombstone"
    assert job_id(1) in node.state.long_tombstones
    node.advance(10 * SHORT_MS)
    assert job_id(1) in node.state.long_tombstones, "until the job's expiry"
    node.advance(DAY_MS)
    assert not node.state.long_tombstones


def test_a_lost_deljob_is_replaced_by_the_tombstones_answer() -> None:
    """M6: any SETACK is answered by DELJOB."""
    node, id_ = node_with("tombstone", UP)
    node.hear(B, msg.SetAck(id_, Reason.ACKED, (A, B), (B,), DAY_MS))
    assert len(node.told(msg.DelJob, to=B)) == 1
    node.clear()
    for said in (
        msg.DelJob(id_, Reason.ACKED, (A, B), (A, B)),
        got_ack(id_, B, A, B),
        msg.Unknown(id_, BOOT, 1),
    ):
        node.hear(B, said)
    assert node.said == [], "never answers DELJOB, GOTACK, UNKNOWN"


def test_an_entry_expires_with_the_job() -> None:
    node = Node(view(up=(B,)))
    node.hear(B, copy(job_id(1), A, B, C, facts=facts(A, B, C, expires_in=20_000)))
    node.do(cmd.AckJob((job_id(1),)))
    node.advance(19_999)
    assert state_name(node, job_id(1)) == "done"
    node.advance(1)
    assert state_name(node, job_id(1)) == "none"


# Tombstones


def test_a_short_tombstone_goes_when_nothing_older_can_be_on_its_way() -> None:
    node, _ = node_with("tombstone", UP)
    node.advance(SHORT_MS - 1)
    assert len(node.state.tombstones) == 1
    node.advance(1)
    assert not node.state.tombstones
    node, _ = node_with("tombstone", UP)
    assert [stone.boots for stone in node.state.tombstones.values()] == [((B, BOOT),)]


def test_a_short_tombstone_stays_while_a_holder_cant_be_reached() -> None:
    node, _ = node_with("tombstone", UP)
    node.see(view(up=(C,), suspect=(B,)))
    node.advance(4 * SHORT_MS)
    assert len(node.state.tombstones) == 1
    node.see(UP)
    node.advance(NODE_TIMEOUT_MS)
    assert not node.state.tombstones


def test_a_holder_back_with_an_unbroken_store_lets_a_short_tombstone_go() -> None:
    node, _ = node_with("tombstone", UP)
    node.see(view(up=(B, C), boots={B: BOOT + 1}, sinces={B: BOOT - 1}))
    node.advance(SHORT_MS)
    assert not node.state.tombstones


def test_a_holder_back_without_its_store_makes_a_tombstone_long() -> None:
    node, id_ = node_with("tombstone", UP)
    node.see(view(up=(B, C), boots={B: BOOT + 1}))
    node.advance(SHORT_MS + NODE_TIMEOUT_MS)
    assert (list(node.state.tombstones), list(node.state.long_tombstones)) == ([], [id_])
    node.advance(DAY_MS)
    assert not node.state.long_tombstones


def test_tombstones_are_bounded_the_oldest_go_and_long_ones_are_counted() -> None:
    """S14, M6."""
    node = Node(limits=Limits(tombstones_max=3))
    ids = [node.add() for _ in range(5)]
    node.do(cmd.AckJob(tuple(ids)))
    assert list(node.state.tombstones) == ids[2:]
    node.advance(SHORT_MS)
    assert not node.state.tombstones
    node = Node(view(up=(B,), forgotten=(D,)), limits=Limits(tombstones_max=1))
    for n in range(3):
        node.hear(B, copy(job_id(n), A, D))
        node.do(cmd.AckJob((job_id(n),)))
    assert list(node.state.long_tombstones) == [job_id(2)]
    assert node.state.counts.tombstones_evicted == 2


# Marks (M15)


def test_a_node_that_isnt_a_holder_answers_unknown_and_keeps_a_mark() -> None:
    node, id_ = node_with("mark", UP)
    node.hear(B, msg.SetAck(id_, Reason.ACKED, (B, C), (B,), DAY_MS))
    assert len(node.told(msg.Unknown, to=B)) == 1
    node.advance(SHORT_MS)
    assert state_name(node, id_) == "none"


def test_a_copy_that_lands_after_the_answer_is_told_the_end() -> None:
    node, id_ = node_with("mark", UP)
    node.hear(C, copy(id_, A, B, C))
    (answer,) = node.told(msg.SetAck, to=C)
    assert (answer.reason, answer.holders, answer.told) == (Reason.ACKED, (), ())
    assert state_name(node, id_) == "mark"


def test_a_holder_that_never_got_its_copy_keeps_the_end_not_a_tombstone() -> None:
    """M15, D: found by the model."""
    node = Node(UP)
    node.hear(B, msg.SetAck(job_id(1), Reason.ACKED, (A, B, C), (B,), DAY_MS))
    assert state_name(node, job_id(1)) == "done"
    assert node.told(msg.GotAck, to=B)[0].told == (A, B)


@pytest.mark.parametrize("kind", [msg.WillQueue, msg.Queued, msg.Leased, msg.Told])
def test_unknown_jobs_are_answered_unknown_and_leave_nothing(kind: type[msg.WillQueue]) -> None:
    """M15: no mark, it would end a live job."""
    node = Node(UP)
    node.hear(B, kind(job_id(1), facts(A, B)))
    assert len(node.told(msg.Unknown, to=B)) == 1
    assert state_name(node, job_id(1)) == "none"


def test_marks_are_bounded_the_oldest_go() -> None:
    node = Node(UP, limits=Limits(marks_max=3))
    for n in range(5):
        node.hear(B, msg.SetAck(job_id(n), Reason.ACKED, (B,), (B,), DAY_MS))
    assert list(node.state.marks) == [job_id(2), job_id(3), job_id(4)]
    assert node.engine.statistics().marks_evicted == 2


def test_claims_of_absence_beat_earlier_copies_and_lose_to_later_ones() -> None:
    """M3: the answerer's clock."""
    node = Node(UP)
    node.hear(B, copy(job_id(1), A, B))
    node.do(cmd.DelJob((job_id(1),)))
    (gone,) = node.told(msg.Unknown, to=B)
    node.hear(B, copy(job_id(1), A, B))
    first, second = node.told(msg.GotJob, to=B)
    assert (first.boot, first.clock) < (gone.boot, gone.clock) < (second.boot, second.clock)


# Dummies (M14)


def test_a_dummy_is_made_for_odd_ids_in_a_cluster_only() -> None:
    for id_, seen, is_made in (
        (job_id(1), UP, True),
        (job_id(1, is_retried=False), UP, False),
        (job_id(1), view(), False),
        (job_id(1), view(suspect=(B,)), True),
    ):
        node = Node(seen)
        assert node.do(cmd.AckJob((id_,))) == [0]
        assert (state_name(node, id_) == "dummy") == is_made
        assert len(node.told(msg.SetAck)) == (2 if is_made and seen is UP else 0)


def test_a_dummy_ends_when_each_member_knows_nothing() -> None:
    node, id_ = node_with("dummy", UP)
    node.hear(B, msg.Unknown(id_, BOOT, 1))
    node.hear(B, msg.Unknown(id_, BOOT, 1))
    assert state_name(node, id_) == "dummy"
    node.hear(C, msg.Unknown(id_, BOOT, 1))
    assert state_name(node, id_) == "none"


def test_a_dummy_waits_for_members_that_are_down() -> None:
    node, id_ = node_with("dummy", view(up=(B,), suspect=(C,)))
    node.hear(B, msg.Unknown(id_, BOOT, 1))
    node.advance(3_600_000)
    assert state_name(node, id_) == "dummy"


def test_a_dummy_doesnt_end_by_answers_while_a_machine_is_forgotten() -> None:
    node, id_ = node_with("dummy", view(up=(B, C), forgotten=(D,)))
    for peer in (B, C):
        node.hear(peer, msg.Unknown(id_, BOOT, 1))
    assert state_name(node, id_) == "dummy"


def test_a_dummy_waits_for_members_that_only_others_have_met() -> None:
    node, id_ = node_with("dummy", view(up=(B,), has_unmet=True))
    node.hear(B, msg.Unknown(id_, BOOT, 1))
    node.advance(DAY_MS // 24)
    assert state_name(node, id_) == "dummy"
    node.see(view(up=(B, C)))
    node.advance(100)
    assert C in node.told_to(msg.SetAck)
    node.hear(C, msg.Unknown(id_, BOOT, 1))
    node.advance(2 * NODE_TIMEOUT_MS + 1)
    assert state_name(node, id_) == "none"


def test_a_dummy_ends_when_nobody_tells_of_unmet_members_any_more() -> None:
    node, id_ = node_with("dummy", view(up=(B,), has_unmet=True))
    node.hear(B, msg.Unknown(id_, BOOT, 1))
    node.see(view(up=(B,)))
    assert state_name(node, id_) == "none"


def test_c3_3_a_machine_that_had_handed_everything_over_holds_up_no_dummy() -> None:
    node, id_ = node_with("dummy", view(up=(B, C), forgotten=(D,), drained=(D,)))
    for peer in (B, C):
        node.hear(peer, msg.Unknown(id_, BOOT, 1))
    assert state_name(node, id_) == "none"


def test_c6_2_a_dummy_ends_when_the_forgotten_machine_is_back_under_another_id() -> None:
    node, id_ = node_with("dummy", view(up=(B, C), forgotten=(D,)))
    for peer in (B, C):
        node.hear(peer, msg.Unknown(id_, BOOT, 1))
    assert state_name(node, id_) == "dummy"
    node.see(view(up=(B, C), forgotten=(D,), drained=(D,)))
    assert state_name(node, id_) == "none"


def test_w34_a_dummy_outlives_the_ttl_in_the_id_rounded_up_and_a_minute() -> None:
    node, id_ = node_with("dummy", view(suspect=(B,)))
    minutes = int(id_[36:40], 16)
    node.advance((minutes + 1) * 60_000)
    assert state_name(node, id_) == "dummy"
    node.advance(60_000)
    assert state_name(node, id_) == "none"


def test_w7_two_dummies_dont_delete_each_other_while_a_member_is_missing() -> None:
    """W-7: crossing and not crossing; the owner comes back and hears of it."""
    for is_crossing in (True, False):
        world = World.of(A, B, C)
        id_ = world.nodes[C].add()
        world.settle()
        world.split((A, B), (C,), is_suspected=True)
        world.nodes[A].do(cmd.AckJob((id_,)))
        if not is_crossing:
            world.settle()
        world.nodes[B].do(cmd.AckJob((id_,)))
        world.advance(40_000, step_ms=1_000)
        assert [state_name(world.nodes[n], id_) for n in (A, B)] == ["dummy", "dummy"]
        world.heal()
        world.advance(5_000)
        assert world.registered() == [0, 0, 0]
        assert world.nodes[C].get() == []


def test_a_dummy_that_meets_a_real_copy_becomes_its_end() -> None:
    node, id_ = node_with("dummy", UP)
    node.hear(B, got_ack(id_, B, B, C))
    assert state_name(node, id_) == "done"
    assert node.told_to(msg.SetAck) == [C]
    node.hear(C, got_ack(id_, C, B, C))
    assert state_name(node, id_) == "tombstone"


def test_w17_dummies_are_bounded_the_oldest_go_and_are_counted() -> None:
    """W-17: a flood of ids pushes out no real ack."""
    node = Node(UP, limits=Limits(dummies_max=3))
    node.hear(B, copy(job_id(99), A, B))
    node.do(cmd.AckJob((job_id(99),)))
    node.do(cmd.AckJob(tuple(job_id(n) for n in range(5))))
    assert list(node.state.dummies) == [job_id(2), job_id(3), job_id(4)]
    assert node.state.counts.dummies_evicted == 2
    assert state_name(node, job_id(99)) == "done"


def test_w4b_forget_of_the_missing_member_crashes_no_dummy() -> None:
    """W-4b."""
    node, id_ = node_with("dummy", view(suspect=(B,)))
    node.see(view(forgotten=(B,)))
    node.advance(60_000)
    node.do(cmd.AckJob((id_,)))
    node.leap(2 * DAY_MS)
    assert state_name(node, id_) == "none"


# Whole worlds


def test_memory_drains_to_zero_everywhere_after_the_ack() -> None:
    world = World.of(A, B, C)
    a, b, c = world.nodes.values()
    a.do(cmd.AddJob(b"q", b"x", 500, replicate=3))
    world.settle()
    b.do(cmd.GetJob((b"q",)))
    world.settle()
    (id_,) = b.state.jobs
    c.do(cmd.AckJob((id_,)))
    world.settle()
    assert world.registered() == [0, 0, 0]
    world.advance(SHORT_MS + 1_000, step_ms=1_000)
    for node in world.nodes.values():
        assert node.engine.statistics().tombstones == 0
        assert node.engine.statistics().body_bytes == 0


def test_w14_a_norepl_reaches_the_replica_that_was_cut_off() -> None:
    """W-14, B7.4."""
    world = World.of(A, B, C)
    a = world.nodes[A]
    world.lose = lambda sender, to, each: isinstance(each, msg.GotJob)
    a.do(cmd.AddJob(b"q", b"x", 500, replicate=3, retry_ms=60_000))
    world.settle()
    world.split((A,), (B, C))
    world.advance(600)
    assert len(a.answers()) == 1
    assert world.registered() == [1, 1, 1]
    world.lose = None
    world.heal()
    world.advance(3_000)
    assert world.registered() == [0, 0, 0]


def test_acked_jobs_leave_their_queue_on_the_other_side_of_a_cut_after_the_heal() -> None:
    """U58: an ack on either side wins."""
    world = World.of(A, B, C)
    a, _, c = world.nodes.values()
    a.do(cmd.AddJob(b"q", b"x", 500, replicate=3, retry_ms=1_000))
    world.settle()
    (id_,) = a.state.jobs
    world.split((A, B), (C,), is_suspected=True)
    world.advance(3_000)
    assert state_name(c, id_) == "queued"
    a.do(cmd.AckJob((id_,)))
    world.settle()
    world.heal()
    world.advance(2_000)
    assert c.get() == []
    assert world.registered() == [0, 0, 0]
