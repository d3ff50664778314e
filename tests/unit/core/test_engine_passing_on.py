"""NACK, ENQUEUE, DEQUEUE, WORKING, REVIVE at a node without a copy: passed on to one holder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from disque.core import asking
from disque.core import commands as cmd
from disque.core import messages as msg
from disque.core.jobid import JobId
from disque.core.ready import ClientId, Failure, Reply, Status
from disque.core.state import salted
from tests.unit.core.builders import (
    ME,
    OTHER,
    RETRY_MS,
    A,
    B,
    C,
    D,
    Node,
    World,
    job_id,
    node_with,
    view,
)

UP = view(up=(B, C))
ASK_MS = 500
NOT_HERE = Failure("NOJOB", "Job not known in the context of this node.")
ACKED = Failure("ACKED", "Job already acknowledged.")
TOO_LATE = Failure(
    "TOOLATE",
    "Half of job TTL already elapsed, you are no longer allowed to postpone the next delivery.",
)
MANY: tuple[tuple[Callable[[tuple[JobId, ...]], cmd.Command], int], ...] = (
    (cmd.Nack, asking.NACK),
    (cmd.Enqueue, asking.ENQUEUE),
    (cmd.Dequeue, asking.DEQUEUE),
    (cmd.Revive, asking.REVIVE),
)


def questions(node: Node, kind: int) -> list[tuple[Any, msg.Question]]:
    """(peer, question) of one kind."""
    return [
        (peer, said)
        for peer, said in node.said
        if isinstance(said, msg.Question) and said.kind == kind
    ]


def answer(node: Node, peer: Any, kind: int, *numbers: int) -> None:
    """A peer answers the question of this kind that it was asked last."""
    asked = [said for to, said in questions(node, kind) if to == peer]
    node.hear(peer, msg.Answer(asked[-1].number, numbers))


def had(world: World, command: cmd.Command, *, at: Any, client: ClientId = ME) -> list[Reply]:
    """What a client is answered, without any time passing."""
    node = world.nodes[at]
    before = len(node.replies)
    node.do(command, client=client)
    world.settle()
    return [reply for to, reply in node.replies[before:] if to == client]


def three_holders(**options: Any) -> tuple[World, JobId]:
    """A job with copies at A, B and C, queued at A; D has none."""
    world = World.of(A, B, C, D)
    while True:
        command = cmd.AddJob(b"q", b"body", 0, replicate=3, retry_ms=RETRY_MS, **options)
        (said,) = had(world, command, at=A)
        assert isinstance(said, Status)
        id_ = JobId(said.text)
        if id_ not in world.nodes[D].state.jobs:
            return world, id_
        world.nodes[A].do(cmd.AckJob((id_,)))
        world.settle()


# One holder, never all


@pytest.mark.parametrize(("make", "kind"), MANY)
def test_all_members_are_asked_for_holders_and_one_holder_is_told(make: Any, kind: int) -> None:
    node = Node(UP)
    node.do(make((job_id(1),)))
    assert [peer for peer, _ in questions(node, asking.HOLDERS)] == [B, C]
    answer(node, B, asking.HOLDERS, 2)
    answer(node, C, asking.HOLDERS, 2)
    first = salted(job_id(1), (B, C))[0]
    assert [(peer, said.ids) for peer, said in questions(node, kind)] == [(first, (job_id(1),))]
    assert node.answers() == []
    answer(node, first, kind, 1)
    assert node.answers() == [1]


def test_who_handed_the_job_out_last_is_chosen() -> None:
    node = Node(UP)
    for n in range(8):
        node.do(cmd.Nack((job_id(n),)), client=ClientId(n + 1))
        answer(node, B, asking.HOLDERS, 3 + 1_000)
        answer(node, C, asking.HOLDERS, 3 + 1_001)
    assert {peer for peer, _ in questions(node, asking.NACK)} == {C}


def test_a_holder_goes_before_a_node_that_only_knows_the_end() -> None:
    node = Node(UP)
    node.do(cmd.Nack((job_id(1),)))
    answer(node, B, asking.HOLDERS, 1)
    answer(node, C, asking.HOLDERS, 2)
    assert [peer for peer, _ in questions(node, asking.NACK)] == [C]


def test_ids_of_one_holder_travel_in_one_message() -> None:
    node = Node(UP)
    ids = tuple(job_id(n) for n in range(5))
    node.do(cmd.Enqueue(ids))
    assert len(node.told(msg.Question)) == 2, "one to each member"
    answer(node, B, asking.HOLDERS, 2, 0, 2, 0, 2)
    answer(node, C, asking.HOLDERS, 0, 2, 0, 0, 0)
    told = {peer: said.ids for peer, said in questions(node, asking.ENQUEUE)}
    assert told == {B: (ids[0], ids[2], ids[4]), C: (ids[1],)}
    answer(node, B, asking.ENQUEUE, 1, 0, 1)
    answer(node, C, asking.ENQUEUE, 1)
    assert node.answers() == [3], "of five one was not done there, one is known to nobody"


def test_ids_with_a_copy_here_are_done_here_and_nobody_is_asked_for_them() -> None:
    node, id_ = node_with("leased", UP)
    assert node.do(cmd.Nack((id_,))) == [1]
    assert not node.told(msg.Question)


def test_here_and_there_are_counted_together() -> None:
    node, id_ = node_with("leased", UP)
    node.do(cmd.Nack((id_, job_id(7))))
    assert [said.ids for _, said in questions(node, asking.HOLDERS)] == [(job_id(7),)] * 2
    answer(node, B, asking.HOLDERS, 2)
    answer(node, C, asking.HOLDERS, 0)
    answer(node, B, asking.NACK, 1)
    assert node.answers() == [2]


def test_an_id_given_twice_is_passed_on_once() -> None:
    node = Node(UP)
    node.do(cmd.Nack((job_id(1), job_id(1))))
    assert questions(node, asking.HOLDERS)[0][1].ids == (job_id(1),)


def test_u14_a_nack_at_a_node_without_a_copy_queues_the_job_once_at_once() -> None:
    world, id_ = three_holders()
    (delivery,) = world.nodes[A].get()
    world.settle()
    assert delivery.id == id_
    assert had(world, cmd.Nack((id_,)), at=D) == [1]
    assert [len(node.state.queues.get(b"q", ())) for node in world.nodes.values()] == [1, 0, 0, 0]
    shown = world.nodes[A].shown(id_)
    assert (shown[b"nacks"], shown[b"state"]) == (1, b"queued")


def test_nack_with_delay_passes_its_delay_on() -> None:
    world, id_ = three_holders()
    world.nodes[A].get()
    world.settle()
    assert had(world, cmd.Nack((id_,), 4_000), at=D) == [1]
    assert world.nodes[A].shown(id_)[b"next-requeue-within"] == 4_000


def test_enqueue_and_dequeue_act_from_anywhere() -> None:
    world, id_ = three_holders()
    world.nodes[A].get()
    world.settle()
    assert had(world, cmd.Enqueue((id_,)), at=D) == [1]
    assert world.nodes[A].do(cmd.QLen(b"q"), client=OTHER) == [1]
    assert (
        sum([len(n.state.queues[b"q"]) for n in world.nodes.values() if b"q" in n.state.queues])
        == 1
    )


def test_of_a_queued_job_the_holder_that_has_it_queued_is_chosen() -> None:
    for _ in range(4):  # salted order differs
        world, id_ = three_holders()
        assert had(world, cmd.Enqueue((id_,)), at=D) == [0]
        assert had(world, cmd.Nack((id_,)), at=D) == [0]
        assert [len(n.state.queues.get(b"q", ())) for n in world.nodes.values()] == [1, 0, 0, 0]
        assert had(world, cmd.Dequeue((id_,)), at=D) == [1]
        assert world.nodes[A].do(cmd.QLen(b"q"), client=OTHER) == [0]


def test_revive_acts_from_anywhere() -> None:
    world, id_ = three_holders(max_deliveries=1)
    world.nodes[A].get()
    world.nodes[A].do(cmd.Nack((id_,)))
    world.settle()
    assert world.nodes[A].shown(id_)[b"queue"] == b"dead-letters"
    assert had(world, cmd.Revive((id_,)), at=D) == [1]
    world.settle()
    assert sum([len(n.state.queues.get(b"q", ())) for n in world.nodes.values()]) == 1
    assert sum([len(n.state.queues.get(b"dead-letters", ())) for n in world.nodes.values()]) == 0


def test_working_acts_from_anywhere_and_tells_retry() -> None:
    world, id_ = three_holders()
    world.nodes[A].get()
    world.advance(6_000)
    assert had(world, cmd.Working(id_), at=D) == [RETRY_MS // 1_000]
    assert world.nodes[A].shown(id_)[b"next-requeue-within"] == RETRY_MS


# Nobody, the end, silence


@pytest.mark.parametrize(("make", "kind"), MANY)
def test_ids_that_nobody_knows_count_as_0(make: Any, kind: int) -> None:
    node = Node(UP)
    node.do(make((job_id(1),)))
    answer(node, B, asking.HOLDERS, 0)
    answer(node, C, asking.HOLDERS, 0)
    assert node.answers() == [0]
    assert not questions(node, kind)


@pytest.mark.parametrize(("make", "kind"), MANY)
def test_a_node_alone_answers_at_once(make: Any, kind: int) -> None:
    assert Node().do(make((job_id(1),))) == [0]


def test_zero_ids_are_0_and_ask_nobody() -> None:
    node = Node(UP)
    assert [node.do(make(())) for make, _ in MANY] == [[0]] * 4
    assert not node.said


def test_working_of_a_job_that_nobody_knows() -> None:
    node = Node(UP)
    node.do(cmd.Working(job_id(1)))
    answer(node, B, asking.HOLDERS, 0)
    answer(node, C, asking.HOLDERS, 0)
    assert node.answers() == [NOT_HERE]
    assert Node().do(cmd.Working(job_id(1))) == [NOT_HERE]


@pytest.mark.parametrize(
    ("seen", "text"),
    [
        (view(up=(B,), cut=(C,)), "Job not known to 2 of 3 nodes, the others did not answer."),
        (view(up=(B, C, D)), "Job not known to 2 of 4 nodes, the others did not answer."),
        (
            view(up=(B,), suspect=(C, D)),
            "Job not known to 2 of 4 nodes, the others did not answer.",
        ),
    ],
)
def test_working_tells_how_many_did_not_answer(seen: Any, text: str) -> None:
    node = Node(seen)
    node.do(cmd.Working(job_id(1)))
    answer(node, B, asking.HOLDERS, 0)
    node.advance(ASK_MS)
    assert node.answers() == [Failure("NOJOB", text)]


def test_working_alone_among_silent_members() -> None:
    text = "Job not known to 1 of 2 nodes, the others did not answer."
    assert Node(view(cut=(B,))).do(cmd.Working(job_id(1))) == [Failure("NOJOB", text)]


def test_working_of_a_job_whose_end_a_member_knows_is_acked() -> None:
    node = Node(UP)
    node.do(cmd.Working(job_id(1)))
    answer(node, B, asking.HOLDERS, 1)
    answer(node, C, asking.HOLDERS, 0)
    assert node.answers() == [ACKED]


@pytest.mark.parametrize("seen", [UP, view(cut=(B, C))])
def test_w24_working_of_a_job_that_was_settled_here_is_acked(seen: Any) -> None:
    node, id_ = node_with("tombstone", UP)
    node.see(seen)
    assert node.ask(cmd.Working(id_)) == [ACKED]


def test_working_passed_on_to_a_holder_in_the_second_half_of_the_life_is_too_late() -> None:
    world, id_ = three_holders(ttl_ms=100_000)
    world.nodes[A].get()
    world.advance(51_000, step_ms=500)
    assert had(world, cmd.Working(id_), at=D) == [TOO_LATE]


def test_silent_members_cost_500_ms_in_all_and_are_no_error() -> None:
    node = Node(UP)
    node.do(cmd.Nack((job_id(1),)))
    node.advance(100)
    answer(node, B, asking.HOLDERS, 2)
    node.advance(ASK_MS - 101)
    assert [peer for peer, _ in questions(node, asking.NACK)] == [B]
    assert node.answers() == []
    node.advance(1)
    assert node.answers() == [0], "C never spoke, B never confirmed: it may have happened"
    assert node.engine.statistics().forward_timeouts == 1


def test_a_holder_that_does_not_confirm_in_time_counts_as_0_and_as_a_forward_timeout() -> None:
    node = Node(UP)
    node.do(cmd.Nack((job_id(1), job_id(2))))
    answer(node, B, asking.HOLDERS, 2, 0)
    answer(node, C, asking.HOLDERS, 0, 2)
    answer(node, B, asking.NACK, 1)
    assert node.answers() == []
    node.advance(ASK_MS)
    assert node.answers() == [1]
    assert node.engine.statistics().forward_timeouts == 1


def test_working_whose_holder_does_not_confirm_tells_how_many_did_not_answer() -> None:
    node = Node(UP)
    node.do(cmd.Working(job_id(1)))
    answer(node, B, asking.HOLDERS, 2)
    answer(node, C, asking.HOLDERS, 0)
    node.advance(ASK_MS)
    text = "Job not known to 2 of 3 nodes, the others did not answer."
    assert node.answers() == [Failure("NOJOB", text)]


@pytest.mark.parametrize("is_silent", [True, False])
def test_a_found_holder_is_acted_on_though_another_member_is_silent(is_silent: bool) -> None:
    """A member that has no link costs nothing; one that is only slow costs the wait, not the command."""
    node = Node(view(up=(B,), cut=(C,)) if is_silent else UP)
    node.do(cmd.Nack((job_id(1),)))
    answer(node, B, asking.HOLDERS, 2)
    if not is_silent:
        answer(node, C, asking.HOLDERS, 0)
    answer(node, B, asking.NACK, 1)
    assert node.answers() == [1]


def test_a_slow_member_leaves_time_to_act_at_the_holder_that_answered() -> None:
    """All within 500 ms, but a member that says nothing must not make every command of the kind fail."""
    node = Node(UP)
    node.do(cmd.Nack((job_id(1),)))
    answer(node, B, asking.HOLDERS, 2)
    for _ in range(ASK_MS // 10):
        node.advance(10)
        if questions(node, asking.NACK):
            node.advance(5)
            answer(node, B, asking.NACK, 1)
            break
    assert node.answers() == [1]


def test_a_holder_that_is_lost_while_it_is_asked_ends_the_wait() -> None:
    node = Node(UP)
    node.do(cmd.Nack((job_id(1),)))
    answer(node, B, asking.HOLDERS, 2)
    answer(node, C, asking.HOLDERS, 0)
    node.see(view(up=(C,), cut=(B,)))
    assert node.answers() == [0]
    assert node.engine.statistics().forward_timeouts == 1


@pytest.mark.parametrize("is_second", [False, True])
def test_a_disconnect_drops_the_question_at_either_step(is_second: bool) -> None:
    node = Node(UP)
    node.do(cmd.Nack((job_id(1),)))
    if is_second:
        answer(node, B, asking.HOLDERS, 2)
        answer(node, C, asking.HOLDERS, 0)
    node.disconnect()
    assert not node.state.inquiries
    node.advance(ASK_MS)
    assert node.answers() == []


def test_deljob_stays_local() -> None:
    node = Node(UP)
    assert node.do(cmd.DelJob((job_id(1),))) == [0]
    assert not node.said


@pytest.mark.parametrize(
    ("kind", "said"),
    [("none", 0), ("mark", 0), ("tombstone", 1), ("done", 1), ("dummy", 1), ("active", 2)],
)  # fmt: skip
def test_what_a_node_says_about_its_copy(kind: str, said: int) -> None:
    node, id_ = node_with(kind, UP)
    node.hear(B, msg.Question(9, asking.HOLDERS, b"", (id_, job_id(99)), ()))
    assert node.said == [(B, msg.Answer(9, (said, 0)))]


def test_who_has_it_queued_says_more_than_who_handed_it_out_than_who_only_holds_it() -> None:
    said: list[int] = []
    for kind in ("active", "leased", "queued"):
        node, id_ = node_with(kind, UP)
        node.hear(B, msg.Question(9, asking.HOLDERS, b"", (id_,), ()))
        (told,) = node.told(msg.Answer)
        said += told.numbers
    assert said == sorted(set(said))


@pytest.mark.parametrize("kind", ["none", "mark", "tombstone", "done", "dummy"])
@pytest.mark.parametrize("word", [asking.NACK, asking.ENQUEUE, asking.DEQUEUE, asking.REVIVE])
def test_a_command_passed_on_to_a_node_that_has_no_copy_any_more_does_nothing(
    kind: str, word: int
) -> None:
    node, id_ = node_with(kind, UP)
    node.hear(B, msg.Question(9, word, b"", (id_,), ()))
    assert node.said == [(B, msg.Answer(9, (0,)))]


def test_a_command_passed_on_is_never_passed_on_again() -> None:
    node = Node(UP)
    node.hear(B, msg.Question(9, asking.NACK, b"", (job_id(1),), (0,)))
    assert node.told(msg.Question) == []
