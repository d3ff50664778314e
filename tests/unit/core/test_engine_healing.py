"""A peer is back: known facts are said again, paced, ends first, the cursor kept (B4, B2.5, B2.7)."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from disque.core import commands as cmd
from disque.core import messages as msg
from disque.core.job import Reason
from disque.core.limits import Limits
from disque.core.ready import ClientId, Failure
from tests.unit.core.builders import (
    BOOT,
    DAY_MS,
    RETRY_MS,
    A,
    B,
    C,
    Node,
    World,
    add_command,
    copy,
    facts,
    job_id,
    spec,
    state_name,
    view,
)

CUT, UP = view(cut=(B,)), view(up=(B,))
LIMITS = Limits(heal_batch=10)
WALKING = (msg.Told, msg.SetAck, msg.ReplJob)


def node_with_shared(count: int, *, seen: Any = None, retry_ms: int = DAY_MS // 2) -> Node:
    """A node that holds jobs together with B, B unreachable."""
    node = Node(UP, limits=LIMITS)
    for n in range(count):
        node.hear(B, copy(job_id(n), A, B, spec=spec(retry_ms=retry_ms)))
    node.see(CUT)
    node.advance(1_000)
    node.clear()
    return node


def ids_said(node: Node) -> list[bytes]:
    return [each.id for _, each in node.said if isinstance(each, WALKING)]


def walk_on(node: Node, *, rounds: int = 100) -> list[list[bytes]]:
    """Answer each batch until the walk ends; the ids of each batch."""
    batches: list[list[bytes]] = []
    for _ in range(rounds):
        node.advance(10)
        ends = node.told(msg.Walk)
        if not ends:
            return batches
        batches.append(ids_said(node))
        node.said.clear()
        node.hear(B, msg.Walked(ends[-1].seq))
    raise AssertionError("the walk never ends")


def test_a_peer_that_is_back_is_told_to_walk_and_walked_to() -> None:
    node = node_with_shared(1)
    node.see(UP)
    assert [(each.boot) for each in node.told(msg.Heal, to=B)] == [BOOT]
    node.advance(0)
    assert ids_said(node) == [job_id(0)]
    assert len(node.told(msg.Walk)) == 1


def test_every_shared_job_is_said_once_a_bounded_batch_at_a_time() -> None:
    node = node_with_shared(35)
    node.see(UP)
    batches = walk_on(node)
    assert [len(batch) for batch in batches] == [10, 10, 10, 5]
    assert sorted(i for batch in batches for i in batch) == sorted(job_id(n) for n in range(35))


def test_one_batch_is_unanswered_at_a_time_and_said_again_after_2_s() -> None:
    node = node_with_shared(35)
    node.see(UP)
    node.advance(1_990)
    assert len(node.told(msg.Walk)) == 1
    first = ids_said(node)
    node.clear()
    node.advance(20)
    assert ids_said(node) == first
    assert len(node.told(msg.Walk)) == 1


@pytest.mark.parametrize("seq", [0, 99, 2**61])
def test_an_answer_to_another_batch_doesnt_drive_the_walk(seq: int) -> None:
    node = node_with_shared(35)
    node.see(UP)
    node.advance(0)
    node.clear()
    node.hear(B, msg.Walked(seq), msg.Walked(seq))
    node.advance(100)
    assert node.said == []


def test_an_answer_given_twice_drives_the_walk_once() -> None:
    node = node_with_shared(35)
    node.see(UP)
    node.advance(0)
    (end,) = node.told(msg.Walk)
    node.clear()
    node.hear(B, msg.Walked(end.seq), msg.Walked(end.seq))
    node.advance(10)
    assert len(node.told(msg.Walk)) == 1
    assert len(ids_said(node)) == 10


def test_flapping_keeps_the_cursor_and_goes_once_around() -> None:
    """B4.7, U59."""
    node = node_with_shared(35)
    node.see(UP)
    said: list[bytes] = []
    for _ in range(3):
        node.advance(10)
        said += ids_said(node)
        (end,) = node.told(msg.Walk)
        node.said.clear()
        node.hear(B, msg.Walked(end.seq))
        node.see(CUT)
        node.advance(10)
        node.said.clear()
        node.see(UP)
    assert len(said) == len(set(said)) == 30, "never restarts at zero"


@pytest.mark.parametrize("flaps", [20, 300])
def test_f8_flapping_starts_a_walk_a_second_at_most_and_the_last_comes_soon(flaps: int) -> None:
    """B4.7, C3-5: many flaps of a small store; facts are known within seconds of the last."""
    node = node_with_shared(3)
    for _ in range(flaps):
        node.see(UP)
        node.advance(50)
        for end in node.told(msg.Walk):
            node.hear(B, msg.Walked(end.seq))
        node.see(CUT)
        node.advance(50)
    assert len(ids_said(node)) <= 3 * (1 + flaps // 10)
    node.see(UP)
    node.clear()
    node.advance(1_100)
    assert set(ids_said(node)) == {job_id(0), job_id(1), job_id(2)}, (
        "and yet all is said after the last flap"
    )


def test_work_of_a_turn_is_bounded_however_many_jobs_there_are() -> None:
    node = Node(view(up=(B, C)))
    node.hear_many(
        C, [copy(job_id(n), A, C, spec=spec(retry_ms=DAY_MS // 2)) for n in range(5_000)]
    )
    node.see(view(up=(C,), cut=(B,)))
    node.clear()
    node.see(view(up=(B, C)))
    for _ in range(4):
        at = node.engine.next_wakeup_ms()
        assert at is not None
        node.leap(max(0, at - node.now_ms))
        assert len(node.said) <= 510
    node.advance(100)
    assert ids_said(node) == [], "nothing is shared with B"


def test_ends_are_said_before_live_jobs_and_each_once() -> None:
    """B4.2, phase 1 before phase 3."""
    node = node_with_shared(6)
    node.see(view(up=(C,), cut=(B,)))
    node.do(cmd.AckJob(tuple(job_id(n) for n in (4, 5, 77))))
    node.advance(30_000)
    node.clear()
    node.see(view(up=(B, C)))
    node.advance(900)
    kinds = [type(each) for to, each in node.said if to == B and isinstance(each, WALKING)]
    assert kinds[:3] == [msg.SetAck] * 3
    assert kinds[3:] == [msg.Told] * 4


def test_told_holders_and_jobs_of_others_are_not_said() -> None:
    node = Node(view(up=(B, C)), limits=LIMITS)
    node.hear(C, copy(job_id(1), A, C))  # B is no holder
    node.hear(C, copy(job_id(2), A, B, C))
    node.do(cmd.AckJob((job_id(2),)))
    node.hear(B, msg.GotAck(job_id(2), Reason.ACKED, (A, B, C), (B,), DAY_MS))
    node.see(view(up=(C,), cut=(B,)))
    node.clear()
    node.see(view(up=(B, C)))
    node.advance(1_000)
    assert [each for to, each in node.said if to == B and isinstance(each, WALKING)] == []


def test_a_waiting_addjob_says_its_copy_again() -> None:
    """B4.3, phase 4."""
    node = Node(view(cut=(B,)))
    node.do(cmd.AddJob(b"q", b"x", 0, replicate=2))
    node.see(UP)
    node.advance(10)
    assert len(node.told(msg.ReplJob, to=B)) >= 1


@pytest.mark.parametrize(
    "said", [[(BOOT, 1), (BOOT, 1), (BOOT, 1)], [(BOOT, 1), (BOOT - 1, 9)], [(BOOT, 2), (BOOT, 1)]]
)
def test_heal_is_obeyed_once_for_each_number_of_a_boot(said: list[tuple[int, int]]) -> None:
    """B4.1."""
    node = node_with_shared(1)
    node.see(UP)
    walk_on(node)
    node.advance(60_000)
    node.clear()
    node.hear(B, *[msg.Heal(boot, n) for boot, n in said])
    node.advance(500)
    walk_on(node)
    node.advance(3_000)  # longer than the gap between two walks
    assert len(ids_said(node)) <= 1
    assert not node.told(msg.Heal), "S17: not answered by itself"


def test_walk_is_answered_after_what_came_before_it() -> None:
    node = Node(UP)
    node.clear()
    node.hear(B, msg.Told(job_id(1), facts(A, B)), msg.Walk(7))
    assert [type(each) for _, each in node.said] == [msg.Unknown, msg.Walked]


def test_equal_facts_cost_the_receiver_nothing_but_the_answer_to_the_batch() -> None:
    """B4.5."""
    world = World.of(A, B)
    a = world.nodes[A]
    for n in range(20):
        a.do(cmd.AddJob(b"q", b"x", 0, replicate=2, retry_ms=60_000), client=ClientId(n))
    world.settle()
    world.split((A,), (B,))
    world.sent.clear()
    world.heal()
    world.advance(500)
    by_type = {
        kind: [each for _, _, each in world.sent if isinstance(each, kind)]
        for kind in (msg.Told, msg.Queued)
    }
    assert len(by_type[msg.Told]) <= 2 * 2 * 20
    assert len(by_type[msg.Queued]) == 0


def test_facts_that_met_on_no_side_meet_after_the_heal() -> None:
    """Q2: counters, holders, leases."""
    world = World.of(A, B, C)
    a, b, _ = world.nodes.values()
    a.do(cmd.AddJob(b"q", b"x", 0, replicate=3, retry_ms=2_000))
    world.settle()
    (id_,) = a.state.jobs
    world.split((A,), (B, C), is_suspected=True)
    a.get()
    world.advance(4_000)
    for node in (b, world.nodes[C]):
        if node.get():
            node.do(cmd.Nack((id_,)))
    world.heal()
    world.advance(10_000)
    jobs = [node.job(id_) for node in world.nodes.values()]
    assert (
        len(
            {
                (j.holders, tuple(sorted(j.dispatches.items())), tuple(sorted(j.nacks.items())))
                for j in jobs
            }
        )
        == 1
    )
    assert sum(jobs[0].dispatches.values()) == 2
    assert [state_name(node, id_) for node in world.nodes.values()].count("queued") <= 1


def test_what_a_lost_node_had_queued_is_asked_for_at_once_in_bounded_steps() -> None:
    """B1.5."""
    node = Node(UP)
    ids = [job_id(n) for n in range(3_000)]
    node.hear_many(B, [copy(each, A, B, spec=spec(retry_ms=DAY_MS // 2)) for each in ids])
    node.hear_many(B, [msg.Queued(each, facts(A, B, is_queued=True)) for each in ids])
    node.see(view(suspect=(B,)))
    node.leap(0)
    assert node.state.by_state.queued == 0, "to list a million takes a turn"
    node.leap(0)
    assert 0 < node.state.by_state.queued <= 2_000
    node.advance(100)
    assert node.state.by_state.queued == 3_000


@pytest.mark.parametrize("change", ["suspect", "restarted", "forgotten"])
def test_queued_at_a_node_that_failed_restarted_or_was_forgotten_is_void(change: str) -> None:
    node = Node(UP)
    node.hear(B, copy(job_id(1), A, B), msg.Queued(job_id(1), facts(A, B, is_queued=True)))
    seen = {
        "suspect": view(suspect=(B,)),
        "restarted": view(up=(B,), boots={B: BOOT + 1}),
        "forgotten": view(forgotten=(B,)),
    }[change]
    node.advance(2_000)
    node.clear()
    node.see(seen)
    node.advance(1_100)
    assert state_name(node, job_id(1)) == "queued"


def test_a_walk_to_a_node_that_is_forgotten_is_no_longer_kept() -> None:
    """It holds every id that was here."""
    node = Node(view(up=(B, C)))
    node.see(view(cut=(B, C)))
    node.see(view(up=(B, C)))
    node.see(view(up=(C,), forgotten=(B,)))
    assert list(node.state.peers) == [C]
    node.advance(60_000)


def test_what_one_side_missed_over_links_that_stand_it_hears_after_heal() -> None:
    """Jobs, and flags of queues (M18); as after a log that couldn't be written for a while."""
    world = World.of(A, B)
    a, b = world.nodes.values()
    world.lose = lambda _sender, to, _each: to == B
    a.do(attrs.evolve(add_command(), replicate=2, is_async=True))
    a.do(cmd.Pause(b"other", 1, is_cluster=True))
    world.settle()
    assert (len(b.state.jobs), b.state.pauses) == (0, {})
    world.lose = None
    b.engine.heal()
    world.advance(5_000)
    assert (len(b.state.jobs), list(b.state.pauses)) == (1, [b"other"])


def test_a_link_that_just_broke_leaves_jobs_where_they_are() -> None:
    node = Node(UP)
    node.hear(B, copy(job_id(1), A, B), msg.Queued(job_id(1), facts(A, B, is_queued=True)))
    node.see(CUT)
    node.advance(RETRY_MS - 1_000)
    assert state_name(node, job_id(1)) == "active"


def test_leaving_kicks_waiting_consumers_and_lets_waiting_addjobs_finish() -> None:
    """W-15: an ADDJOB under way isn't interrupted."""
    node = Node(view(up=(B,)))
    node.do(cmd.AddJob(b"q", b"x", 0, replicate=2), client=ClientId(1))
    node.do(cmd.GetJob((b"other",)), client=ClientId(2))
    (id_,) = node.state.adding
    node.see(view(up=(B,), leaving=(A,)))
    assert [type(each) for each in node.answers(ClientId(2))] == [Failure]
    assert node.answers(ClientId(1)) == []
    node.hear(B, msg.GotJob(id_, BOOT, 0))
    assert len(node.answers(ClientId(1))) == 1
    assert not isinstance(node.answers(ClientId(1))[0], Failure)
