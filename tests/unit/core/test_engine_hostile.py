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

from disque.core import messages as msg
from disque.core import wire
from disque.core.job import Reason
from disque.core.jobid import JobId
from tests.unit.core.builders import (
    BOOT,
    DAY_MS,
    STATES,
    STRANGER,
    A,
    B,
    C,
    D,
    Node,
    job_id,
    node_with,
    reread,
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
