"""A forgotten node comes back under a new id (B2.8)."""

from __future__ import annotations

import pytest

from cluster.nodeid import NodeId
from disque.core import asking
from disque.core import commands as cmd
from disque.core import messages as msg
from disque.core.job import Reason
from tests.unit.core.builders import (
    BOOT,
    CTIME,
    DAY_MS,
    NODE_TIMEOUT_MS,
    A,
    B,
    C,
    D,
    Node,
    copy,
    facts,
    job_id,
    spec,
    view,
)

NEW = NodeId("e" * 40)


def returned(*copies: msg.ReplJob) -> Node:
    """A node that had these copies as A, was forgotten, and is met again as NEW by B and C."""
    node = Node(view(up=(B,)))
    node.hear(B, *copies)
    node.view = view(NEW, up=(B, C), forgotten=(A,))
    assert list(node.engine.come_back(node.view)) == []
    node.advance(0)
    node.clear()
    return node


def answer_all(node: Node, *codes: int) -> None:
    """Every open question of the node is answered by B and C with these codes."""
    for peer in (B, C):
        for question in node.told(msg.Question, to=peer):
            node.hear(peer, msg.Answer(question.number, codes))
    node.clear()


def test_a_quarantined_copy_is_neither_offered_nor_counted() -> None:
    i = job_id(1)
    node = returned(copy(i, A, B))
    assert i not in node.state.jobs
    node.advance(100)
    assert node.get() == []


def test_every_member_is_asked_by_id() -> None:
    i = job_id(1)
    node = returned(copy(i, A, B))
    node.advance(1_000)
    asked = [(peer, each.ids) for peer, each in node.said if isinstance(each, msg.Question)]
    assert asked == [(B, (i,)), (C, (i,))]


def test_a_copy_that_is_done_elsewhere_goes() -> None:
    i = job_id(1)
    node = returned(copy(i, A, B))
    node.advance(1_000)
    answer_all(node, 1)
    assert i not in node.state.quarantine
    assert i not in node.state.jobs


def test_a_copy_that_is_held_elsewhere_makes_a_holder_under_the_new_id() -> None:
    i = job_id(1)
    node = returned(copy(i, A, B))
    node.advance(1_000)
    node.hear(B, msg.Answer(node.told(msg.Question, to=B)[0].number, (2,)))
    node.hear(C, msg.Answer(node.told(msg.Question, to=C)[0].number, (0,)))
    assert node.job(i).holders == (B, NEW)
    assert node.told(msg.Told, to=B)[0].facts.holders == (B, NEW)


def test_unknown_to_all_lives_again_only_in_a_round_begun_two_node_timeouts_after_the_return() -> (
    None
):
    i = job_id(1)
    node = returned(copy(i, A, B))
    waited = 0
    while i in node.state.quarantine:
        node.advance(500)
        answer_all(node, 0)
        waited += 500
        assert waited < 4 * NODE_TIMEOUT_MS
    assert waited >= 2 * NODE_TIMEOUT_MS
    assert node.job(i).holders == (B, NEW)


def test_a_returned_node_that_leaves_isnt_safe_to_stop_while_nobody_has_spoken() -> None:
    """B5, Q8: its copy may be the last one."""
    i = job_id(1)
    node = returned(copy(i, A, B))
    node.see(view(NEW, up=(B, C), forgotten=(A,), leaving=(NEW,)))
    node.advance(NODE_TIMEOUT_MS + 1_000)
    assert not node.engine.is_safe_to_stop()
    answer_all(node, 1)
    assert node.engine.is_safe_to_stop()


def test_what_lives_again_gets_its_copies_again() -> None:
    i = job_id(1)
    node = returned(copy(i, A, B))
    while i in node.state.quarantine:
        node.advance(500)
        answer_all(node, 0)
    node.clear()
    node.advance(3_000)
    assert set(node.told_to(msg.ReplJob)) & {B, C}


def test_a_silent_member_keeps_a_copy_in_quarantine() -> None:
    i = job_id(1)
    node = returned(copy(i, A, B))
    node.advance(3 * NODE_TIMEOUT_MS)
    assert i in node.state.quarantine
    assert i not in node.state.jobs


@pytest.mark.parametrize("ends", [cmd.AckJob, cmd.FastAck])
def test_an_ack_at_the_returned_node_ends_its_quarantined_copy(ends: type[cmd.AckJob]) -> None:
    i = job_id(1)
    node = returned(copy(i, A, B))
    assert node.do(ends((i,))) == [1]
    assert node.told(msg.SetAck, to=B)[0].holders == (B, NEW)


CANCELS = msg.Question(1, asking.CANCEL, b"", (job_id(1),), ())
PURGES = msg.Question(1, asking.PURGE, b"q", (), (BOOT, 1))


@pytest.mark.parametrize("order", [CANCELS, PURGES, msg.Purge(C, BOOT, 1, b"q")])
def test_what_a_peer_orders_of_live_copies_ends_a_quarantined_one(order: msg.Message) -> None:
    i = job_id(1)
    node = returned(copy(i, A, B))
    node.hear(C, order)
    assert not node.state.quarantine
    assert node.job(i).reason is Reason.CANCELLED
    assert node.job(i).holders == (B, NEW)


def test_quarantined_copies_are_purged_in_steps() -> None:
    node = returned(*[copy(job_id(n), A, B) for n in range(600)])
    node.hear(C, msg.Purge(C, BOOT, 1, b"q"))
    assert len(node.state.quarantine) == 350
    node.advance(2)
    assert not node.state.quarantine
    assert {job.reason for job in node.state.jobs.values()} == {Reason.CANCELLED}


def test_an_order_to_purge_that_comes_twice_sets_nothing_free() -> None:
    i = job_id(1)
    node = returned(copy(i, A, B))
    node.hear(C, msg.Purge(C, BOOT, 1, b"other"))
    node.hear(C, msg.Purge(C, BOOT, 1, b"q"))
    assert list(node.state.quarantine) == [i]


def test_setack_meets_a_quarantined_copy_as_a_copy() -> None:
    i = job_id(1)
    node = returned(copy(i, A, B))
    node.hear(B, msg.SetAck(i, Reason.ACKED, (B,), (B,), DAY_MS))
    (got,) = node.told(msg.GotAck, to=B)
    assert (got.holders, got.told) == ((B, NEW), (B, NEW))


def test_deljob_drops_it_and_willqueue_is_met_with_silence() -> None:
    i, j = job_id(1), job_id(2)
    node = returned(copy(i, A, B), copy(j, A, B))
    node.hear(B, msg.DelJob(i, Reason.ACKED, (B,), (B,)))
    node.hear(B, msg.WillQueue(j, facts(B)))
    assert list(node.state.quarantine) == [j]
    assert node.said == []


def test_at_most_once_copies_do_not_come_back() -> None:
    node = Node(view(up=(B,)))
    once = node.add(retry_ms=0, replicate=1)
    assert list(node.engine.come_back(view(NEW, up=(B,), forgotten=(A,)))) == []
    node.engine.check()
    assert once not in node.state.jobs
    assert once not in node.state.quarantine


def test_unsettled_ends_go_on_under_the_new_id() -> None:
    i = job_id(1)
    node = Node(view(up=(B,)))
    node.hear(B, copy(i, A, B, C))
    node.see(view(cut=(B,)))
    node.do(cmd.AckJob((i,)))
    node.view = view(NEW, up=(B, C), forgotten=(A,))
    assert list(node.engine.come_back(node.view)) == []
    node.engine.check()
    assert node.job(i).holders == (B, C, NEW)
    assert NEW in node.job(i).told


def test_a_member_that_has_the_job_adds_the_returned_node_before_it_answers() -> None:
    i = job_id(1)
    node = Node(view(up=(B, C)))
    node.hear(B, msg.YourJobs(i, spec(), CTIME, b"body", facts(A, B)))
    node.clear()
    node.hear(C, msg.Question(7, 12, b"", (i, job_id(2)), ()))
    assert node.told(msg.Answer, to=C) == [msg.Answer(7, (2, 0))]
    assert C in node.job(i).holders
    assert node.records[0].kind == "holders"


def test_an_ack_that_only_the_forgotten_node_heard_is_told_once_it_is_back() -> None:
    i = job_id(1)
    node = Node(view(suspect=(B, C), forgotten=(D,)))
    node.do(cmd.AckJob((i,)))
    # it has its new id, and hasn't met anybody yet
    node.view = view(NEW)
    assert list(node.engine.come_back(node.view)) == []
    node.advance(0)
    node.see(node.view)
    # It meets one after the other, and what is forgotten last; who answers at once is no reason to end it.
    node.see(view(NEW, up=(B,)))
    node.advance(2_000)
    node.hear(B, msg.Unknown(i, 1, 0))
    node.clear()
    node.see(view(NEW, up=(B, C)))
    node.advance(2_000)
    assert C in node.told_to(msg.SetAck)
    node.hear(C, msg.Unknown(i, 1, 0))
    assert i in node.state.dummies
    node.advance(2 * NODE_TIMEOUT_MS)
    assert i not in node.state.jobs
