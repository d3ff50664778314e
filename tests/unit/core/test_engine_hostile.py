"""Every word of the bus, to a node with a job in every state, from every kind of sender: nothing breaks, and nobody who
isn't a member moves anything.

What a member that lies can do to jobs is written down in docs/threats.md; here: it can't stop the node, make it grow,
or break what the engine promises about itself (`Engine.check` runs after each word).
"""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disque.core import commands as cmd
from disque.core import messages as msg
from disque.core import wire
from disque.core.job import Reason
from disque.core.jobid import JobId, make_job_id
from tests.unit.core.builders import (
    BOOT,
    CTIME,
    DAY_MS,
    RETRY_MS,
    STATES,
    STRANGER,
    A,
    B,
    C,
    D,
    Node,
    copy,
    facts,
    job_id,
    node_with,
    reread,
    salted_id,
    spec,
    view,
)
from tests.unit.core.test_messages import STATEMENTS

UP = view(up=(B, C), forgotten=(D,))
each_kind = pytest.mark.parametrize("kind", wire.MESSAGE_TYPES, ids=lambda kind: kind.__name__)


def about(said: msg.Message, id_: JobId) -> msg.Message:
    """The same about this job, and about this node where it speaks of one."""
    fields = {each.name for each in attrs.fields(type(said))}
    changes: dict[str, Any] = {}
    if "id" in fields:
        changes["id"] = id_
    if "ids" in fields:
        changes["ids"] = (id_, *said.ids)  # type: ignore[union-attr]
    if "numbers" in fields and "ids" in fields:
        changes["numbers"] = (1, *said.numbers)  # type: ignore[union-attr]
    return attrs.evolve(said, **changes)


def facts_of(node: Node) -> object:
    """All that a word could have changed."""
    state = node.state
    jobs = [
        (job.id, job.state, job.holders, dict(job.claims), job.reason, job.told, dict(job.leases))
        for job in state.jobs.values()
    ]
    pools = (state.tombstones, state.long_tombstones, state.marks, state.dummies, state.queues)
    return jobs, [list(pool) for pool in pools], dict(state.pauses), node.engine.statistics()


@each_kind
def test_nothing_that_a_member_says_breaks_a_node_in_any_state(kind: type[Any]) -> None:
    @settings(max_examples=12, deadline=None, derandomize=True, database=None)
    @given(STATEMENTS[kind], st.integers(0, BOOT + 1))
    def holds(said: msg.Message, boot: int) -> None:
        for state in STATES:
            node, id_ = node_with(state, UP)
            node.hear(B, about(said, id_), boot=boot)
            node.hear(B, about(said, id_))
            node.advance(1_000)
            assert len(node.state.jobs) <= 4
            assert len(node.state.queues) <= 4

    holds()


@each_kind
@pytest.mark.parametrize("sender", [STRANGER, D, A], ids=["unknown", "forgotten", "myself"])
def test_who_is_no_member_changes_nothing(kind: type[Any], sender: Any) -> None:
    @settings(max_examples=1, deadline=None, derandomize=True, database=None)
    @given(STATEMENTS[kind])
    def holds(said: msg.Message) -> None:
        for state in STATES:
            node, id_ = node_with(state, UP)
            before = facts_of(node)
            node.engine.receive(sender, BOOT, reread([about(said, id_)])[0])
            node._take()
            assert facts_of(node) == before
            assert not node.said
            assert not node.records

    holds()


@each_kind
def test_words_of_an_earlier_life_change_nothing(kind: type[Any]) -> None:
    @settings(max_examples=1, deadline=None, derandomize=True, database=None)
    @given(STATEMENTS[kind])
    def holds(said: msg.Message) -> None:
        for state in STATES:
            node, id_ = node_with(state, UP)
            node.hear(B, msg.NeedJobs(b"none", 1, has_waiting=False))
            before = facts_of(node)
            node.hear(B, about(said, id_), boot=BOOT - 1)
            assert facts_of(node) == before

    holds()


@pytest.mark.parametrize("kind", [msg.ReplJob, msg.YourJobs, msg.Move])
def test_whatever_a_peer_says_a_job_lives_no_longer_than_its_id_tells(kind: Any) -> None:
    """Nor does its end, where nobody answers who is said to hold it."""
    node, is_once = Node(UP), kind is msg.Move
    for number in range(3):
        id_ = job_id(number, is_retried=not is_once)
        what = spec(retry_ms=0 if is_once else RETRY_MS, ttl_ms=2**61)
        if is_once:
            node.hear(B, msg.Move(BOOT, BOOT, number + 1, 1, id_, what, CTIME, b"body", 2**61))
        else:
            node.hear(B, kind(id_, what, CTIME, b"body", facts(A, B, STRANGER, expires_in=2**61)))
        assert node.job(id_).expires_at <= node.now_ms + DAY_MS + 240_000
    node.do(cmd.AckJob((job_id(0, is_retried=not is_once),)))
    node.leap(DAY_MS + 300_000)
    assert not node.state.jobs


def test_an_id_of_another_length_of_life_is_not_taken_for_one_alike() -> None:
    node, told = Node(UP), facts(A, B, expires_in=2**61)
    short = make_job_id(B, b"%018d" % 7, ttl_ms=60_000, is_retried=True)
    for id_ in (job_id(1), short, job_id(2)):
        node.engine.receive(B, BOOT, msg.ReplJob(id_, spec(), CTIME, b"body", told))
    node._take()
    lives = [node.job(id_).expires_at - node.now_ms for id_ in (job_id(1), short, job_id(2))]
    assert lives[0] == lives[2] > lives[1] == 3 * 60_000


def test_who_asks_and_yields_to_an_asker_that_falls_silent_does_not_spin_meanwhile() -> None:
    """Its own question is over before the other's time is: it looks again at the latter, and asks anew."""
    id_ = salted_id((A, B), first=B)
    node = Node(UP)
    node.hear(B, copy(id_, A, B, C))
    while not node.told(msg.WillQueue):
        node.advance(100)
    wait_ms = node.state.limits.ask_wait_ms
    for _ in range(5):
        node.advance(wait_ms // 2)
        node.hear(B, msg.WillQueue(id_, facts(A, B, C)))
    looks = 0
    until = node.now_ms + wait_ms
    while (at := node.engine.next_wakeup_ms()) is not None and at <= until:
        node.now_ms = max(at, node.now_ms)
        node.engine.advance(node.now_ms)
        node._take()
        looks += 1
        assert looks < 50, f"it looks again and again at {at}"


def test_a_liar_can_make_a_node_keep_so_much_and_no_more() -> None:
    """Acks of jobs that never were, queues that nobody needs, pauses of nothing: all have their bound."""
    node = Node(UP)
    bounds = {"tombstones_max": 20, "dummies_max": 20, "marks_max": 20, "pauses_max": 20}
    node.engine.set_limits(attrs.evolve(node.state.limits, queues_max=20, **bounds))
    for number in range(200):
        ended, unknown = job_id(number), job_id(number, node=C)
        node.hear(B, msg.Pause(b"q%d" % number, number, C, 1))
        node.hear(B, msg.SetAck(ended, Reason.ACKED, (A, B), (A, B), DAY_MS))
        node.hear(B, msg.DelJob(ended, Reason.ACKED, (A, B), (A, B)))
        node.hear(B, msg.SetAck(unknown, Reason.ACKED, (), (), DAY_MS))
        node.hear(B, msg.NeedJobs(b"n%d" % number, 5, has_waiting=True))
    state = node.state
    pools = (
        state.tombstones,
        state.long_tombstones,
        state.dummies,
        state.marks,
        state.pauses,
        state.queues,
    )
    assert max(map(len, pools)) == 20
