"""PAUSE (reference 1.12, M18): this node's flags, the cluster's by the last writer, told again to who comes back."""

from __future__ import annotations

from typing import Any

import pytest

from disque.core import commands as cmd
from disque.core import messages as msg
from disque.core.parsing import parse
from disque.core.ready import Delivery, Failure, Reply, Status
from disque.errors import CommandError
from tests.unit.core.builders import (
    NOW,
    OTHER,
    A,
    B,
    C,
    Node,
    World,
    add_command,
    view,
)

UP = view(up=(B, C))
PAUSED = Failure("PAUSED", "Queue paused in input, try later")


def pause(node: Node, words: str) -> list[Reply]:
    """PAUSE q and these words."""
    return node.do(parse(b"pause", [b"q", *words.encode().split()]))


def state(node: Node) -> bytes:
    """What PAUSE q STATE says."""
    (said,) = pause(node, "state")
    assert isinstance(said, Status)
    return said.text


@pytest.mark.parametrize(
    ("before", "words", "after"),
    [
        ("none", "in", b"in"), ("none", "out", b"out"), ("none", "in out", b"all"), ("none", "all", b"all"),
        ("out", "in", b"in"), ("out", "none in", b"in"), ("out", "in none", b"none"), ("all", "none", b"none"),
        ("in", "state", b"in"), ("in", "state out", b"out"), ("all", "bcast", b"all"), ("in", "IN Out", b"all"),
    ],
)  # fmt: skip
def test_the_new_state_is_made_from_scratch(before: str, words: str, after: bytes) -> None:
    node = Node()
    pause(node, before)
    assert pause(node, words) == [Status(after)]
    assert state(node) == after


@pytest.mark.parametrize("words", ["inn", "in x", "state count 3"])
def test_an_unknown_word_is_a_syntax_error_and_nothing_is_applied(words: str) -> None:
    node = Node()
    with pytest.raises(CommandError, match=r"^syntax error$"):
        pause(node, words)
    assert state(node) == b"none"


@pytest.mark.parametrize(("words", "is_made"), [("state", False), ("none", False), ("in", True)])
def test_a_missing_queue_is_made_only_by_a_pause(words: str, is_made: bool) -> None:
    node = Node()
    pause(node, words)
    assert (b"q" in node.state.queues) == is_made


def test_without_bcast_the_flags_are_this_nodes_alone() -> None:
    node = Node(UP)
    pause(node, "all")
    assert not node.said


def test_paused_in_refuses_jobs_and_still_delivers() -> None:
    node = Node()
    node.add()
    pause(node, "in")
    assert node.do(add_command()) == [PAUSED]
    assert len(node.get()) == 1


def test_paused_out_takes_jobs_and_delivers_none_until_it_ends() -> None:
    node = Node()
    pause(node, "out")
    id_ = node.add()
    assert node.get() == []
    assert node.do(cmd.GetJob((b"q",)), client=OTHER) == []
    pause(node, "none")
    ((delivery,),) = node.answers(OTHER)  # type: ignore[misc]
    assert isinstance(delivery, Delivery)
    assert delivery.id == id_


@pytest.mark.parametrize("words", ["none", "none bcast"])
def test_u18_the_end_of_a_pause_wakes_consumers_at_other_nodes(words: str) -> None:
    """Q3: no consumer waits beside a job; a second is much."""
    world = World.of(A, B)
    pause(world.nodes[A], "out")
    world.nodes[A].add()
    world.nodes[B].do(cmd.GetJob((b"q",)), client=OTHER)
    world.advance(20_000)
    pause(world.nodes[A], words)
    world.advance(1_000)
    assert len(world.nodes[B].answers(OTHER)) == 1


def test_nack_and_enqueue_do_not_queue_while_paused_in() -> None:
    node = Node()
    id_ = node.add()
    node.get()
    pause(node, "in")
    node.do(cmd.Nack((id_,)))
    assert node.do(cmd.QLen(b"q")) == [0]
    node.advance(9_999)
    pause(node, "none")
    node.advance(1)
    assert node.do(cmd.QLen(b"q")) == [1], "RETRY later"


# The cluster's flags


def test_bcast_is_told_to_every_reachable_member() -> None:
    node = Node(UP)
    assert pause(node, "in bcast") == [Status(b"in")]
    assert node.said == [
        (B, msg.Pause(b"q", NOW, A, 1)),
        (C, msg.Pause(b"q", NOW, A, 1)),
    ]


def test_bcast_is_in_force_where_the_queue_is_not_known_yet() -> None:
    world = World.of(A, B)
    pause(world.nodes[A], "in bcast")
    world.settle()
    assert b"q" not in world.nodes[B].state.queues
    assert state(world.nodes[B]) == b"in"
    assert world.nodes[B].do(add_command()) == [PAUSED]


def test_in_force_is_the_union_of_the_nodes_and_the_clusters_flags() -> None:
    node = Node(UP)
    pause(node, "out")
    node.hear(B, msg.Pause(b"q", NOW + 5, B, 1))
    assert state(node) == b"all"
    pause(node, "none")
    assert state(node) == b"in", "its own are cleared, the cluster's are not"


def test_none_bcast_clears_both_kinds_on_every_node_that_hears_it() -> None:
    world = World.of(A, B)
    pause(world.nodes[B], "out")
    pause(world.nodes[B], "in bcast")
    world.settle()
    pause(world.nodes[A], "none bcast")
    world.settle()
    assert [state(node) for node in world.nodes.values()] == [b"none", b"none"]


@pytest.mark.parametrize(
    ("stamp", "node_id", "wins"),
    [(NOW + 1, B, True), (NOW - 1, C, False), (NOW, B, True)],
)
def test_m18_the_larger_stamp_wins_then_the_larger_node(
    stamp: int, node_id: Any, wins: bool
) -> None:
    node = Node(UP)
    pause(node, "in bcast")
    node.hear(B, msg.Pause(b"q", stamp, node_id, 2))
    assert state(node) == (b"out" if wins else b"in")


def test_m18_a_stamp_is_above_what_was_seen_though_the_wall_clock_is_behind() -> None:
    node = Node(UP)
    node.hear(B, msg.Pause(b"q", NOW + 1_000_000, B, 1))
    pause(node, "none bcast")
    assert state(node) == b"none"
    (said, *_) = node.told(msg.Pause)
    assert said.stamp == NOW + 1_000_001


def test_cleared_is_a_value_too_an_old_pause_does_not_come_back() -> None:
    node = Node(UP)
    node.hear(B, msg.Pause(b"q", NOW + 10, B, 0), msg.Pause(b"q", NOW + 5, B, 1))
    assert state(node) == b"none"


def test_flags_are_told_to_returning_and_new_peers() -> None:
    world = World.of(A, B, C)
    world.split([A, B], [C])
    pause(world.nodes[A], "out bcast")
    world.settle()
    assert state(world.nodes[C]) == b"none"
    world.heal()
    assert state(world.nodes[C]) == b"out"


def test_both_sides_of_a_cut_end_with_the_later_word() -> None:
    world = World.of(A, B)
    world.split([A], [B])
    pause(world.nodes[A], "in bcast")
    world.advance(1_000)
    pause(world.nodes[B], "out bcast")
    world.heal()
    assert [state(node) for node in world.nodes.values()] == [b"out", b"out"]


def test_a_restarted_node_learns_the_flags_again_from_any_peer() -> None:
    world = World.of(A, B, C)
    pause(world.nodes[A], "in bcast")
    world.settle()
    world.nodes[C] = Node(view(C, up=(B,), cut=(A,), boots={C: 8}), boot=8)
    world.nodes[B].see(view(B, up=(A, C), boots={C: 8}))
    world.settle()
    assert state(world.nodes[C]) == b"in"


def test_flags_hold_for_a_queue_that_was_freed_in_between() -> None:
    node = Node(UP)
    id_ = node.add()
    node.hear(B, msg.Pause(b"q", NOW + 5, B, 2))
    node.do(cmd.AckJob((id_,)))
    node.advance(400_000)
    assert b"q" not in node.state.queues
    node.add()
    assert node.get() == []


def test_a_queue_paused_here_is_never_freed() -> None:
    node = Node()
    pause(node, "in")
    node.advance(1_000_000)
    assert state(node) == b"in"


def test_the_flags_of_at_most_10_000_queues_are_kept() -> None:
    node = Node(UP)
    node.hear_many(B, [msg.Pause(b"q%d" % n, NOW + n, B, n % 2) for n in range(10_100)])
    assert len(node.state.pauses) == 10_000


def test_flags_that_nobody_knows_are_not_taken() -> None:
    node = Node(UP)
    node.hear(B, msg.Pause(b"q", NOW + 5, B, 250))
    assert state(node) == b"out", "250 & 3"


def test_a_flood_of_cleared_queues_ends_no_pause() -> None:
    """M18: cleared ones are kept 24 h, and no flag in force goes before them."""
    node = Node(UP)
    pause(node, "in bcast")
    node.hear_many(B, [msg.Pause(b"q%d" % n, NOW + n, B, 0) for n in range(10_100)])
    assert state(node) == b"in"
