"""Questions to the cluster: GLOBALQLEN, QSTAT GLOBAL, WAITJOB."""

from __future__ import annotations

from typing import Any

import pytest

from disque.core import asking
from disque.core import commands as cmd
from disque.core import messages as msg
from disque.core.job import Reason
from disque.core.jobid import JobId
from disque.core.ready import ClientId, NilArray, Reply, Status
from tests.unit.core.builders import (
    CTIME,
    DAY_MS,
    ME,
    NODE_TIMEOUT_MS,
    OTHER,
    RETRY_MS,
    A,
    B,
    C,
    D,
    Node,
    World,
    facts,
    job_id,
    spec,
    view,
)

UP = view(up=(B, C))
ASK_MS = 500  # cluster-ask-timeout
ANSWERED = [
    b"name", b"len", b"oldest-age", b"delivered", b"delayed", b"acked", b"copies", b"blocked", b"jobs-in", b"jobs-out",
    b"pause", b"nodes-answered", b"nodes-silent",
]  # fmt: skip


def question(node: Node) -> msg.Question:
    """The question that this node asked last."""
    return node.told(msg.Question)[-1]


def answer(node: Node, peer: Any, *numbers: int) -> None:
    """A member answers the last question."""
    node.hear(peer, msg.Answer(question(node).number, numbers))


def had(world: World, command: cmd.Command, *, at: Any = A, client: ClientId = ME) -> list[Reply]:
    """What a client at a node of a world is answered, without any time passing."""
    node = world.nodes[at]
    before = len(node.replies)
    node.do(command, client=client)
    world.settle()
    return [reply for to, reply in node.replies[before:] if to == client]


def replicated(world: World, *, at: Any = A, copies: int = 3, **options: Any) -> JobId:
    """An ADDJOB that is answered once its copies are there."""
    command = cmd.AddJob(
        options.pop("queue", b"q"), b"body", 0, replicate=copies, retry_ms=RETRY_MS, **options
    )
    (said,) = had(world, command, at=at, client=ClientId(77))
    assert isinstance(said, Status)
    return JobId(said.text)


# GLOBALQLEN


def test_u27_one_node_says_qlen_1_and_all_say_globalqlen_1() -> None:
    world = World.of(A, B, C)
    replicated(world)
    assert [node.do(cmd.QLen(b"q"))[0] for node in world.nodes.values()] == [1, 0, 0]
    assert [had(world, cmd.GlobalQLen(b"q"), at=at) for at in (A, B, C)] == [[1], [1], [1]]


def test_globalqlen_is_the_sum_of_qlen_over_the_members_that_answered() -> None:
    node = Node(UP)
    node.add()
    assert node.do(cmd.GlobalQLen(b"q")) == []
    answer(node, B, 20)
    assert node.answers() == []
    answer(node, C, 300)
    assert node.answers() == [321]


def test_globalqlen_asks_each_member_once() -> None:
    node = Node(UP)
    node.do(cmd.GlobalQLen(b"q"))
    assert node.told_to(msg.Question) == [B, C]
    assert {(said.kind, said.queue) for said in node.told(msg.Question)} == {(asking.LENGTH, b"q")}


def test_globalqlen_withnodes_tells_length_answered_and_silent() -> None:
    node = Node(view(up=(B, C), cut=(D,)))
    node.do(cmd.GlobalQLen(b"q", with_nodes=True))
    answer(node, B, 2)
    node.advance(ASK_MS)
    assert node.answers() == [[2, 2, 2]], "self and B answered; C in vain, D without a link"


def test_globalqlen_of_an_unknown_queue_is_0() -> None:
    assert Node().do(cmd.GlobalQLen(b"nope")) == [0]
    assert Node().do(cmd.GlobalQLen(b"nope", with_nodes=True)) == [[0, 1, 0]]


@pytest.mark.parametrize(("timeout_ms", "waits_ms"), [(None, ASK_MS), (70, 70), (2_000, 2_000)])
def test_a_silent_member_costs_the_time_out_and_is_no_error(
    timeout_ms: int | None, waits_ms: int
) -> None:
    node = Node(UP)
    node.do(cmd.GlobalQLen(b"q", timeout_ms, with_nodes=True))
    answer(node, B, 1)
    node.advance(waits_ms - 1)
    assert node.answers() == []
    node.advance(1)
    assert node.answers() == [[1, 2, 1]]


def test_timeout_0_waits_until_each_has_answered_or_failed() -> None:
    node = Node(UP)
    node.do(cmd.GlobalQLen(b"q", 0, with_nodes=True))
    answer(node, B, 1)
    node.advance(60_000)
    assert node.answers() == []
    node.see(view(up=(B,), suspect=(C,)))
    assert node.answers() == [[1, 2, 1]]


def test_a_member_without_a_link_or_suspect_is_silent_at_once() -> None:
    node = Node(view(cut=(B,), suspect=(C,)))
    assert node.do(cmd.GlobalQLen(b"q", 0, with_nodes=True)) == [[0, 1, 2]]


def test_a_forgotten_node_is_no_member() -> None:
    node = Node(view(up=(B,), forgotten=(C,)))
    node.do(cmd.GlobalQLen(b"q", with_nodes=True))
    answer(node, B, 0)
    assert node.answers() == [[0, 2, 0]]


def test_an_answer_that_comes_late_twice_or_of_another_question_changes_nothing() -> None:
    node = Node(UP)
    node.do(cmd.GlobalQLen(b"q", with_nodes=True))
    asked = question(node).number
    node.hear(B, msg.Answer(asked + 1, (50,)), msg.Answer(asked, (2,)), msg.Answer(asked, (4,)))
    node.advance(ASK_MS)
    node.hear(C, msg.Answer(asked, (8,)))
    assert node.answers() == [[2, 2, 1]]


def test_a_disconnect_drops_the_question() -> None:
    node = Node(UP)
    node.do(cmd.GlobalQLen(b"q"))
    node.disconnect()
    assert not node.state.inquiries
    answer(node, B, 1)
    answer(node, C, 1)
    node.advance(60_000)
    assert node.answers() == []


def test_an_empty_answer_counts_as_an_answer() -> None:
    node = Node(UP)
    node.do(cmd.GlobalQLen(b"q", with_nodes=True))
    answer(node, B)
    answer(node, C, 1)
    assert node.answers() == [[1, 3, 0]]


def test_a_question_of_a_kind_that_is_not_known_gets_no_answer() -> None:
    node = Node(UP)
    node.hear(B, msg.Question(1, 999, b"q", (), ()))
    assert not node.said


def test_in_a_partition_both_sides_count_their_own_copy_until_the_heal() -> None:
    world = World.of(A, B)
    replicated(world, copies=2)
    world.split([A], [B], is_suspected=True)
    world.advance(RETRY_MS + 1_000)
    command = cmd.GlobalQLen(b"q", with_nodes=True)
    assert [had(world, command, at=at) for at in (A, B)] == [[[1, 1, 1]], [[1, 1, 1]]]
    world.heal()
    world.advance(2_000)
    assert [had(world, command, at=at) for at in (A, B)] == [[[1, 2, 0]], [[1, 2, 0]]]


# QSTAT GLOBAL


def stat(world: World, *, at: Any = A, queue: bytes = b"q") -> dict[bytes, Any]:
    """QSTAT GLOBAL as a mapping."""
    (flat,) = had(world, cmd.QStat(queue, is_global=True), at=at)
    assert isinstance(flat, list)
    assert len(flat) == 26
    assert flat[::2] == ANSWERED
    return dict(zip(flat[::2], flat[1::2], strict=True))  # type: ignore[arg-type]


def test_qstat_global_of_a_queue_that_no_answerer_knows_is_a_nil_array() -> None:
    world = World.of(A, B)
    assert had(world, cmd.QStat(b"nope", is_global=True)) == [NilArray()]


def test_qstat_global_counts_a_job_once_by_who_accounts_for_it() -> None:
    world = World.of(A, B, C)
    replicated(world)
    replicated(world)
    replicated(world, delay_ms=60_000)
    world.nodes[A].get()
    world.settle()
    told = {at: stat(world, at=at) for at in (A, B, C)}
    assert told[A] == told[B] == told[C]
    assert told[A] == {
        b"name": b"q", b"len": 1, b"oldest-age": 0, b"delivered": 1, b"delayed": 1, b"acked": 0, b"copies": 9,
        b"blocked": 0, b"jobs-in": 2, b"jobs-out": 1, b"pause": b"none", b"nodes-answered": 3, b"nodes-silent": 0,
    }  # fmt: skip


def test_qstat_global_at_a_node_without_the_queue_knows_it_all_the_same() -> None:
    world = World.of(A, B, C)
    replicated(world, copies=1)
    assert stat(world, at=C)[b"len"] == 1


def test_oldest_age_is_of_the_oldest_queued_job_of_all_nodes_and_nil_without_one() -> None:
    world = World.of(A, B)
    replicated(world, at=A, copies=1)
    world.advance(3_000)
    replicated(world, at=B, copies=1)
    world.advance(1_000)
    assert stat(world)[b"oldest-age"] == 4
    for node in world.nodes.values():
        node.get(count=5)
    assert stat(world)[b"oldest-age"] is None


def test_oldest_age_looks_at_every_priority() -> None:
    world = World.of(A)
    replicated(world, copies=1, priority=1)
    world.advance(7_000)
    replicated(world, copies=1, priority=9)
    assert stat(world)[b"oldest-age"] == 7


def test_oldest_age_counts_from_the_end_of_a_delay() -> None:
    world = World.of(A, B)
    replicated(world, at=A, copies=2, delay_ms=60_000)
    world.advance(58_000)
    replicated(world, at=A, copies=1)
    world.advance(1_000)
    assert stat(world)[b"oldest-age"] == 1
    world.advance(6_000)
    assert world.nodes[A].do(cmd.QLen(b"q")) == [2]
    assert stat(world)[b"oldest-age"] == 7, "the delayed one lies before it, and has waited less"
    world.nodes[A].get()
    assert stat(world)[b"oldest-age"] == 7
    world.nodes[A].get()
    assert stat(world)[b"oldest-age"] is None


def test_oldest_age_counts_from_the_enqueue_that_ended_a_delay() -> None:
    world = World.of(A, B)
    id_ = replicated(world, at=A, copies=2, delay_ms=60_000)
    world.advance(10_000)
    assert world.nodes[A].do(cmd.Enqueue((id_,))) == [1]
    world.advance(4_000)
    assert stat(world)[b"oldest-age"] == 4


def test_acked_counts_copies_that_are_not_yet_collected() -> None:
    world = World.of(A, B, C)
    id_ = replicated(world, copies=2)
    (holder,) = [node for node in (B, C) if id_ in world.nodes[node].state.jobs]
    (free,) = [node for node in (B, C) if node != holder]
    world.split([A, free], [holder])
    world.nodes[A].get()
    world.nodes[A].do(cmd.AckJob((id_,)))
    world.settle()
    told = stat(world)
    assert (told[b"acked"], told[b"delivered"], told[b"copies"]) == (1, 0, 1)
    assert (told[b"nodes-answered"], told[b"nodes-silent"]) == (2, 1)


def test_blocked_is_the_sum_of_waiting_clients() -> None:
    world = World.of(A, B)
    for node, client in ((A, OTHER), (B, OTHER), (B, ClientId(3))):
        world.nodes[node].do(cmd.GetJob((b"q",)), client=client)
    world.settle()
    assert stat(world)[b"blocked"] == 3


def test_pause_is_the_union_of_what_is_in_force_anywhere() -> None:
    world = World.of(A, B)
    world.nodes[A].do(cmd.Pause(b"q", 1))
    world.nodes[B].do(cmd.Pause(b"q", 2))
    assert stat(world)[b"pause"] == b"all"


def test_nobody_accounts_for_the_job_of_a_crashed_node_until_a_holder_queues_it() -> None:
    world = World.of(A, B, C)
    replicated(world)
    world.split([A], [B, C], is_suspected=True)
    told = stat(world, at=B)
    assert (told[b"len"], told[b"delivered"], told[b"delayed"], told[b"copies"]) == (0, 0, 0, 2)
    world.advance(RETRY_MS + 2_000)
    assert stat(world, at=B)[b"len"] == 1


def test_a_job_handed_out_twice_is_accounted_for_by_the_last_node_alone() -> None:
    world = World.of(A, B)
    replicated(world, copies=2)
    world.nodes[A].get()
    world.settle()
    world.nodes[B].do(cmd.GetJob((b"q",)), client=OTHER)
    world.advance(RETRY_MS + 2_000)
    assert len(world.nodes[B].answers(OTHER)) + len(world.nodes[A].answers(OTHER)) == 1
    assert stat(world)[b"delivered"] == 1


def test_a_job_whose_lease_is_over_is_accounted_for_by_the_node_that_queued_it() -> None:
    world = World.of(A, B, C)
    for _ in range(6):
        replicated(world)
    assert len(world.nodes[A].get(count=6)) == 6
    world.advance(RETRY_MS + 2_000)
    told = stat(world)
    assert (told[b"len"], told[b"delivered"]) == (6, 0)
    assert had(world, cmd.QLen(b"q"), at=A) != [6]


def test_a_delayed_job_held_for_a_leaving_node_is_still_accounted_for() -> None:
    """Who counts a job: one node in a healthy cluster; here the one that got the place in the queue."""
    world = World.of(A, B)
    world.nodes[A].see(view(A, up=(B,), leaving=(A,)))
    world.nodes[B].see(view(B, up=(A,), leaving=(A,)))
    world.settle()
    replicated(world, copies=1, delay_ms=60_000)
    assert stat(world)[b"delayed"] == 1


# WAITJOB


def outcome(world: World, *ids: JobId, at: Any = A, timeout_ms: int = 0) -> list[Reply]:
    """What WAITJOB tells within 1.5 s, without ids; empty if it still waits."""
    node = world.nodes[at]
    before = len(node.replies)
    node.do(cmd.WaitJob(ids, timeout_ms), client=OTHER)
    world.advance(1_500)
    answers = [reply for to, reply in node.replies[before:] if to == OTHER]
    if not answers:
        node.disconnect(OTHER)
        return []
    (pairs,) = answers
    assert isinstance(pairs, list)
    assert [pair[0] for pair in pairs] == list(ids)  # type: ignore[index]
    return [pair[1] for pair in pairs]  # type: ignore[index]


def acked(world: World, id_: JobId, at: Any = A) -> None:
    world.nodes[at].do(cmd.AckJob((id_,)), client=ClientId(78))
    world.settle()


@pytest.mark.parametrize("at", [A, B, C])
def test_waitjob_waits_for_an_ack_wherever_it_is_asked(at: Any) -> None:
    world = World.of(A, B, C)
    id_ = replicated(world, copies=2)
    node = world.nodes[at]
    node.do(cmd.WaitJob((id_,)))
    world.advance(3_000)
    assert node.answers() == []
    acked(world, id_)
    world.advance(1_500)
    assert node.answers() == [[[id_, b"acked"]]]


def test_waitjob_of_an_acked_job_answers_without_any_time() -> None:
    world = World.of(A, B, C)
    id_ = replicated(world)
    acked(world, id_)
    assert had(world, cmd.WaitJob((id_,))) == [[[id_, b"acked"]]]


def test_waitjob_fastacked_is_acked() -> None:
    world = World.of(A, B)
    id_ = replicated(world, copies=2)
    world.nodes[A].do(cmd.FastAck((id_,)))
    world.settle()
    assert outcome(world, id_, at=B) == [b"acked"]


def test_waitjob_cancelled_and_purged_are_cancelled() -> None:
    world = World.of(A, B)
    cancelled, purged = replicated(world, copies=2), replicated(world, copies=2)
    had(world, cmd.CancelJob((cancelled,)))
    had(world, cmd.QPurge(b"q"))
    assert outcome(world, cancelled, purged, at=B) == [b"cancelled", b"cancelled"]


def test_waitjob_a_dead_letter_is_dead_and_stays_so_once_it_was_acked() -> None:
    world = World.of(A, B)
    id_ = replicated(world, copies=2, max_deliveries=1)
    world.nodes[A].get()
    world.nodes[A].do(cmd.Nack((id_,)))
    world.settle()
    assert outcome(world, id_, at=B) == [b"dead"]
    acked(world, id_)
    assert outcome(world, id_, at=B) == [b"dead"]


def test_waitjob_an_expired_job_is_expired_where_somebody_saw_it_expire() -> None:
    world = World.of(A, B, C)
    id_ = replicated(world, copies=1, ttl_ms=20_000)
    world.advance(21_000, step_ms=500)
    assert outcome(world, id_, at=C) == [b"expired"]


def test_waitjob_of_an_id_that_all_members_say_they_do_not_know_is_unknown() -> None:
    world = World.of(A, B)
    assert had(world, cmd.WaitJob((job_id(5),))) == [[[job_id(5), b"unknown"]]]
    assert Node().do(cmd.WaitJob((job_id(5),))) == [[[job_id(5), b"unknown"]]]


def test_waitjob_of_an_id_nobody_here_knows_stays_pending_while_some_are_silent() -> None:
    node = Node(view(cut=(B,)))
    node.do(cmd.WaitJob((job_id(5),), 5_000))
    node.advance(4_999)
    assert node.answers() == []
    node.advance(1)
    assert node.answers() == [[[job_id(5), b"pending"]]]


def test_waitjob_answers_pending_at_its_time_out_not_before() -> None:
    world = World.of(A, B)
    id_ = replicated(world, copies=2)
    node = world.nodes[A]
    node.do(cmd.WaitJob((id_,), 2_000))
    world.advance(1_950)
    assert node.answers() == []
    world.advance(50)
    assert node.answers() == [[[id_, b"pending"]]]


def test_waitjob_has_one_pair_an_id_in_order_doubles_too() -> None:
    world = World.of(A, B)
    one, two = replicated(world, copies=2), replicated(world, copies=2)
    acked(world, two)
    node = world.nodes[B]
    node.do(cmd.WaitJob((two, one, job_id(5), two), 1_000))
    world.advance(1_100)
    assert node.answers() == [
        [[two, b"acked"], [one, b"pending"], [job_id(5), b"unknown"], [two, b"acked"]]
    ]


def test_waitjob_one_holder_that_has_it_un_acked_keeps_it_pending() -> None:
    node = Node(UP)
    node.do(cmd.AckJob((job_id(1),)))  # a dummy: acked, as far as this node knows
    node.do(cmd.WaitJob((job_id(1),)), client=OTHER)
    answer(node, B, 5)
    answer(node, C, 0)
    assert node.answers(OTHER) == []
    node.advance(20)
    answer(node, B, 3)
    answer(node, C, 0)
    assert node.answers(OTHER) == [[[job_id(1), b"acked"]]]


@pytest.mark.parametrize(("said", "shown"), [(3, b"acked"), (0, b"unknown"), (2, b"cancelled")])
def test_waitjob_tells_at_its_time_out_what_members_said_last(said: int, shown: bytes) -> None:
    """Answers take 5 ms: none to a question of the last moment."""
    node = Node(view(up=(B,)))
    node.do(cmd.WaitJob((job_id(1), job_id(2)), 100), client=OTHER)
    for _ in range(20):
        node.advance(5)
        if question(node).number in node.state.inquiries:
            answer(node, B, said, 5)
        node.advance(1)
    assert node.answers(OTHER) == [[[job_id(1), shown], [job_id(2), b"pending"]]]


@pytest.mark.parametrize(
    ("said", "shown"),
    [((3, 2), b"acked"), ((2, 1), b"cancelled"), ((1, 0), b"expired"), ((3, 1), b"acked"), ((0, 0), b"unknown")],
)  # fmt: skip
def test_waitjob_shows_acked_over_cancelled_over_expired(
    said: tuple[int, int], shown: bytes
) -> None:
    for first, second in (said, said[::-1]):
        node = Node(UP)
        node.do(cmd.WaitJob((job_id(1),)), client=OTHER)
        answer(node, B, first)
        answer(node, C, second)
        assert node.answers(OTHER) == [[[job_id(1), shown]]]


def test_waitjob_asks_again_at_a_view_change() -> None:
    node = Node(view(up=(B,), cut=(C,)))
    node.do(cmd.WaitJob((job_id(1),)), client=OTHER)
    answer(node, B, 0)
    node.clear()
    node.see(UP)
    node.advance(0)
    assert node.told_to(msg.Question) == [B, C]


def test_waitjob_asks_at_most_once_a_second() -> None:
    world = World.of(A, B)
    id_ = replicated(world, copies=2)
    world.nodes[A].do(cmd.WaitJob((id_,)), client=OTHER)
    world.advance(5_000)
    world.sent.clear()
    world.advance(20_000)
    asked = [said for _, _, said in world.sent if isinstance(said, msg.Question)]
    assert 15 <= len(asked) <= 20


def test_waitjob_changes_and_consumes_nothing_and_works_while_leaving() -> None:
    world = World.of(A, B)
    id_ = replicated(world, copies=2)
    acked_id = replicated(world, copies=2)
    acked(world, acked_id)
    world.nodes[A].see(view(A, up=(B,), leaving=(A,)))
    assert outcome(world, acked_id) == [b"acked"]
    assert outcome(world, id_) == []
    assert world.nodes[A].do(cmd.QLen(b"q")) == [1]


def test_waitjob_that_a_client_left_asks_no_more() -> None:
    world = World.of(A, B)
    id_ = replicated(world, copies=2)
    world.nodes[A].do(cmd.WaitJob((id_,)), client=OTHER)
    world.advance(500)
    world.nodes[A].disconnect(OTHER)
    world.sent.clear()
    world.advance(3_000)
    assert not [said for _, _, said in world.sent if isinstance(said, msg.Question)]
    assert not world.nodes[A].state.inquiries


def test_waitjob_of_a_job_acked_at_a_node_that_was_cut_off_is_acked_after_the_heal() -> None:
    world = World.of(A, B)
    id_ = replicated(world, copies=2)
    world.split([A], [B], is_suspected=True)
    acked(world, id_)
    assert outcome(world, id_, at=A) == [b"acked"], "no answerer holds it un-acked"
    assert outcome(world, id_, at=B) == []
    world.heal()
    assert outcome(world, id_, at=B) == [b"acked"]


def test_waitjob_knows_a_cancelled_id_while_its_tombstone_lives() -> None:
    node = Node(view(up=(B,)))
    node.hear(B, msg.YourJobs(job_id(1), spec(), CTIME, b"x", facts(A, B)))
    node.do(cmd.CancelJob((job_id(1),)))
    answer(node, B, 1)
    node.hear(B, msg.GotAck(job_id(1), Reason.CANCELLED, (A, B), (A, B), DAY_MS))
    node.advance(2 * NODE_TIMEOUT_MS)
    node.do(cmd.WaitJob((job_id(1),)), client=OTHER)
    answer(node, B, 0)
    assert node.answers(OTHER) == [[[job_id(1), b"cancelled"]]]
