"""What clients may not add to the state, and that peers always may."""

from __future__ import annotations

import attrs
import pytest

from disque.core import commands as cmd
from disque.core.ready import ClientId, Failure
from tests.unit.core.builders import B, Node, copy, job_id, view

LONG = b"q" * 9
TOO_LONG = Failure("ERR", "queue name of 9 bytes, the limit is 8")
TOO_MANY = Failure("ERR", "too many queues, the limit is 2")
TOO_MANY_1 = Failure("ERR", "too many queues, the limit is 1")
TOO_FULL = Failure("ERR", "too many blocked clients, the limit is 2")


def bounded(**limits: int) -> Node:
    node = Node(view(up=[B]))
    node.engine.set_limits(attrs.evolve(node.state.limits, **limits))
    return node


@pytest.mark.parametrize(
    "command",
    [
        cmd.AddJob(LONG, b"x", 0),
        cmd.AddJob(b"q", b"x", 0, dead_queue=LONG),
        cmd.GetJob((b"q", LONG), is_nohang=True),
        cmd.Pause(LONG, 1),
        cmd.Attend(LONG, 1),
    ],
)
def test_a_queue_name_has_its_length(command: cmd.Command) -> None:
    node = bounded(queue_name_bytes_max=8)
    assert node.do(command) == [TOO_LONG]
    assert not node.state.queues
    assert node.engine.statistics().queue_names_refused == 1


def test_a_long_name_may_be_asked_about() -> None:
    assert bounded(queue_name_bytes_max=8).do(cmd.QLen(LONG)) == [0]


def test_new_queues_end_at_the_limit_and_those_that_are_there_go_on() -> None:
    node = bounded(queues_max=2)
    node.add(queue=b"a")
    node.add(queue=b"b")
    for command in (
        cmd.AddJob(b"c", b"x", 0),
        cmd.GetJob((b"a", b"c"), is_nohang=True),
        cmd.Pause(b"c", 1),
    ):
        assert node.do(command) == [TOO_MANY]
    assert len(node.get(b"a", b"b", count=2)) == 2
    assert node.engine.statistics().queues_refused == 3


def test_subscriptions_of_queues_have_the_places_of_clients_that_wait() -> None:
    node = bounded(blocked_max=2)
    too_many = "too many subscriptions of queues, the limit is 2 (blocked-clients-max)"
    assert [*node.do(cmd.Attend(b"a", 1)), *node.do(cmd.Attend(b"b", 1))] == [1, 1]
    assert node.do(cmd.Attend(b"a", 1)) == [Failure("ERR", too_many)]
    for number in (10, 11):
        fetch = cmd.GetJob((b"a",), is_admitted=True)
        assert node.do(fetch, client=ClientId(number)) == [], "a place was kept"
    assert node.do(cmd.GetJob((b"a",)), client=ClientId(12)) == [TOO_FULL]
    assert node.do(cmd.Attend(b"b", -1)) == [0]
    assert node.do(cmd.Attend(b"a", 1)) == [Failure("ERR", too_many)], "GETJOBs wait, too"
    assert node.state.topics.attended == 1


def test_a_subscription_of_a_queue_needs_room_for_it_and_ends_without() -> None:
    node = bounded(queues_max=1)
    assert [*node.do(cmd.Attend(b"a", 1)), *node.do(cmd.Attend(b"b", 1))] == [1, TOO_MANY_1]
    node.engine.set_limits(attrs.evolve(node.state.limits, queues_max=0))
    assert node.do(cmd.Attend(b"a", -1)) == [0]


def test_a_job_of_a_peer_finds_room_beyond_the_limits() -> None:
    node = bounded(queues_max=1, queue_name_bytes_max=1)
    node.add(queue=b"a")
    node.hear(B, attrs.evolve(copy(job_id(), B), body=b"x"))
    assert node.do(cmd.Enqueue((job_id(),))) == [1]
    assert sorted(node.state.queues) == [b"a", b"q"]


def test_who_would_wait_beyond_the_limit_is_told_so_at_once() -> None:
    node = bounded(blocked_max=2)
    for number in (11, 12):
        assert node.do(cmd.GetJob((b"q",)), client=ClientId(number)) == []
    assert node.do(cmd.GetJob((b"q",))) == [TOO_FULL]
    assert node.do(cmd.WaitJob((job_id(),))) == [TOO_FULL]
    assert node.engine.statistics().blocked_refused == 2


def test_who_needn_t_wait_is_served_beyond_the_limit() -> None:
    node = bounded(blocked_max=0)
    assert node.get(b"q") == []
    node.add(b"body")
    (answer,) = node.do(cmd.GetJob((b"none", b"q")))
    assert isinstance(answer, list)
    assert len(answer) == 1
