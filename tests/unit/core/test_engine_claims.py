"""What a member says of itself or of others beyond what can be: it is heard, and neither kept nor obeyed."""

from __future__ import annotations

import attrs
import pytest

from disque.core import asking, wire
from disque.core import messages as msg
from disque.core.job import Reason
from disque.core.limits import Limits
from tests.unit.core.builders import BOOT, DAY_MS, A, B, C, Node, job_id, view
from tests.unit.core.test_engine_moves import move, said_of

UP = view(up=(B, C))
LONG = b"x" * 4_097


# Stamps


@pytest.mark.parametrize("said", [2**61 + 1, 2**62])
def test_a_stamp_that_leaves_no_room_above_it_is_said_as_one_that_does(said: int) -> None:
    (read,) = wire.decode(wire.encode([msg.Pause(b"q", said, B, 1)]))
    assert read == msg.Pause(b"q", 2**61, B, 1)


# Time


@pytest.mark.parametrize("is_retried", [True, False])
def test_an_end_isnt_kept_longer_than_its_id_says(*, is_retried: bool) -> None:
    node = Node(UP)
    end = job_id(3, is_retried=is_retried)  # of a day
    node.hear(B, msg.SetAck(end, Reason.ACKED, (A, C), (B,), 2**62))
    assert end in node.state.undone
    assert node.state.jobs[end].expires_at <= node.state.now_ms + DAY_MS + 4 * 60_000


def test_an_end_of_a_life_longer_than_an_id_can_say_is_kept_for_all_of_it() -> None:
    node = Node(UP)
    end = type(job_id())(job_id()[:36] + b"ffff")
    node.hear(B, msg.SetAck(end, Reason.ACKED, (A, C), (B,), 200 * DAY_MS))
    assert node.state.jobs[end].expires_at == node.state.now_ms + 200 * DAY_MS


# Names


def test_names_that_no_client_could_give_arent_kept() -> None:
    node = Node(UP)
    node.hear(B, msg.NeedJobs(LONG, 5, has_waiting=True))
    node.hear(B, msg.Pause(LONG, 5, B, 1))
    node.hear(B, msg.Subscribed(0, LONG[:1_025], 1, is_anew=True))
    state = node.state
    assert not state.queues
    assert not state.pauses
    assert not state.topics.told
    node.hear(B, msg.NeedJobs(LONG[1:], 5, has_waiting=True), msg.Pause(LONG[1:], 5, B, 1))
    node.hear(B, msg.Subscribed(0, LONG[:1_024], 1, is_anew=True))
    assert len(state.queues) == len(state.pauses) == len(state.topics.told) == 1


def test_the_flags_of_a_queue_that_is_here_count_whatever_its_name() -> None:
    """`queue-name-max` may be larger elsewhere, and jobs came from there."""
    node = Node(UP)
    node.add(queue=b"long name")
    node.engine.set_limits(attrs.evolve(node.state.limits, queue_name_bytes_max=4))
    node.hear(B, msg.Pause(b"long name", 5, B, 1))
    assert node.state.pauses[b"long name"] == (5, B, 1)


# Orders


@pytest.mark.parametrize(
    "lie",
    [
        msg.Purge(C, BOOT, 5, b"q"),  # in another's name
        msg.Purge(B, BOOT + 1, 5, b"q"),  # of a life that hasn't begun
        msg.Question(1, asking.PURGE, b"q", (), (2**62, 5)),
    ],
)
def test_an_order_to_purge_counts_for_who_gives_it_in_its_present_life(lie: msg.Message) -> None:
    node = Node(UP)
    id_ = node.add()
    node.hear(B, lie)
    assert not node.state.jobs[id_].is_done
    assert node.state.purges_seen == {}
    node.hear(C, msg.Purge(C, BOOT, 1, b"q"))
    assert id_ not in node.state.jobs or node.state.jobs[id_].is_done


# Work


def test_a_walk_that_hasnt_begun_is_asked_for_at_no_cost() -> None:
    node = Node(UP)
    node.advance(5_000)
    node.hear(B, msg.Heal(BOOT, 1))
    walk = node.state.peers[B].walk
    assert walk is not None
    id_ = node.add()
    for n in range(2, 20):
        node.hear(B, msg.Heal(BOOT, n))
    assert walk.ids is None
    node.clear()
    node.advance(1)
    assert walk.ids == [id_], "what is there when it begins is said"


def test_a_source_that_closes_no_move_is_refused_and_its_log_records_stay_short() -> None:
    node = Node(UP, limits=Limits(moves_taken_max=10))
    node.hear(B, *[move(n, settled=0) for n in range(1, 30)])
    assert [n for n, is_taken in said_of(node) if is_taken] == list(range(1, 11))
    assert max(len(each.fields[4]) for each in node.records if each.kind == "taken") == 10  # type: ignore[arg-type]
    node.hear(B, move(30, settled=30))
    assert said_of(node)[-1] == (30, True)
