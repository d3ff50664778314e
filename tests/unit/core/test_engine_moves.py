"""RETRY 0 changes its owner by numbered moves (M20, B6): in doubt nobody delivers, and never two."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from cluster.nodeid import NodeId
from disque.core import commands as cmd
from disque.core import messages as msg
from disque.core.delivery import queue_of
from disque.core.jobid import JobId
from disque.core.jobqueue import PAUSE_IN
from disque.core.limits import Limits
from disque.core.ready import ClientId
from tests.unit.core.builders import (
    BOOT,
    CTIME,
    DAY_MS,
    A,
    B,
    C,
    Node,
    World,
    job_id,
    open_move,
    spec,
    state_name,
    view,
)

ONCE = spec(retry_ms=0, replicate=1)
UP = view(up=(B,))


def move(
    n: int, *, settled: int = 1, boot: int = BOOT, source_boot: int = BOOT, id_: JobId | None = None
) -> msg.Move:
    """Number n of B, which carries the n-th job."""
    name = id_ or job_id(n, is_retried=False)
    return msg.Move(source_boot, boot, n, settled, name, ONCE, CTIME, b"x", DAY_MS, 0)


def ask(n: int, *, boot: int = BOOT, source_boot: int = BOOT) -> msg.AskMove:
    return msg.AskMove(source_boot, boot, n)


def said_of(node: Node) -> list[tuple[int, bool]]:
    """(n, yes or no) of each GOTMOVE."""
    return [(each.n, each.is_taken) for each in node.told(msg.GotMove)]


def moving(**options: Any) -> tuple[Node, JobId]:
    """A source whose job is on its way to B."""
    node = Node(UP, **options)
    id_ = node.add(retry_ms=0)
    node.clear()
    node.hear(B, msg.NeedJobs(b"q", 1, True))
    return node, id_


# The receiver (B6.3, B6.5)


def test_a_move_is_taken_queued_logged_and_confirmed() -> None:
    node = Node(UP)
    node.hear(B, move(1))
    assert said_of(node) == [(1, True)]
    assert [each.kind for each in node.records] == ["job", "taken"]
    assert [each.id for each in node.get()] == [job_id(1, is_retried=False)]


# What the receiver does with each statement, given all that came before: the table of B6.
@pytest.mark.parametrize(
    ("history", "answers", "owned"),
    [
        ([move(1), move(1)], [(1, True), (1, True)], [1]),  # doubled
        # overtaken: closed, the source is owner again
        (
            [move(2), move(1)],
            [(2, True), (1, False)],
            [2],
        ),
        ([ask(1), move(1)], [(1, False), (1, False)], []),  # asked before it came: closed
        ([move(1), ask(1)], [(1, True), (1, True)], [1]),
        ([move(1), move(2, settled=2), ask(2)], [(1, True), (2, True), (2, True)], [1, 2]),
        ([ask(5), move(3), move(6, settled=6)], [(5, False), (3, False), (6, True)], [6]),
        ([move(1, boot=BOOT - 1)], [], []),  # made for an earlier boot of ours: silence
        ([move(1, boot=BOOT + 1), ask(1, boot=BOOT - 1)], [], []),
        ([move(1), ask(1, boot=BOOT - 1)], [(1, True)], [1]),
    ],
)
def test_receiver(
    history: list[msg.Message], answers: list[tuple[int, bool]], owned: list[int]
) -> None:
    node = Node(UP)
    node.hear(B, *history)
    assert said_of(node) == answers
    assert [each.id for each in node.get(count=9)] == [job_id(n, is_retried=False) for n in owned]


@pytest.mark.parametrize("why", ["leaving", "paused", "expired", "retried"])
def test_a_receiver_may_refuse_and_the_number_is_closed(why: str) -> None:
    node = Node(view(up=(B,), leaving=(A,) if why == "leaving" else ()))
    if why == "paused":
        queue_of(node.state, b"q").pause = PAUSE_IN
    refused = move(1)
    if why == "expired":
        refused = msg.Move(BOOT, BOOT, 1, 1, job_id(1, is_retried=False), ONCE, CTIME, b"x", 0, 0)
    elif why == "retried":
        refused = msg.Move(BOOT, BOOT, 1, 1, job_id(1), spec(), CTIME, b"x", DAY_MS, 0)
    node.hear(B, refused, ask(1))
    assert said_of(node) == [(1, False), (1, False)]
    assert not node.state.jobs


def test_settled_numbers_are_forgotten() -> None:
    """M20: bounded by 64 open moves, no tombstones."""
    node = Node(UP)
    for n in range(1, 200):
        node.hear(B, move(n, settled=n))
    (numbers,) = node.state.peers[B].moves_in.values()
    assert list(numbers.taken) == [199]


def test_a_job_that_was_taken_before_a_flushall_isnt_given_back() -> None:
    """S5: it may have been handed out."""
    node = Node(UP)
    node.hear(B, move(1))
    node.get()
    node.do(cmd.FlushAll())
    node.hear(B, ask(1), move(1))
    assert said_of(node) == [(1, True)] * 3
    assert node.get() == []


def test_f6_numbers_of_the_sources_boots_are_kept_apart_whatever_the_view_says() -> None:
    """M17: a restarted source numbers anew, and may be heard before the view knows."""
    node = Node(view(cut=(B,)))
    node.hear(B, move(1, source_boot=BOOT + 1), boot=BOOT + 1)
    assert len(node.get()) == 1
    node.see(view(up=(B,), boots={B: BOOT + 1}))
    node.hear(B, ask(1, source_boot=BOOT + 1))
    assert said_of(node) == [(1, True)]
    node.hear(B, ask(1), move(1, source_boot=BOOT + 2, id_=job_id(9, is_retried=False)))
    assert said_of(node) == [(1, True), (1, False), (1, True)]


def test_the_boots_remembered_of_a_source_are_bounded_and_older_ones_get_silence() -> None:
    node = Node(UP)
    for boot in range(1, 40):
        node.hear(B, ask(1, source_boot=boot))
    assert len(node.state.peers[B].moves_in) <= 8
    node.clear()
    node.hear(B, ask(1, source_boot=1))
    assert node.said == [], "no is said only by who knows"


def test_a_job_that_was_delivered_here_is_never_taken_twice() -> None:
    node = Node(UP)
    node.hear(B, move(1))
    node.get()
    node.hear(B, move(2, id_=job_id(1, is_retried=False)))
    assert node.get() == []
    node.do(cmd.AckJob((job_id(1, is_retried=False),)))
    node.hear(B, move(3, id_=job_id(1, is_retried=False)))
    assert node.get() == []


# The source (B6.2, B6.4)


def test_a_move_is_urgent_in_the_log_before_it_leaves_and_the_job_leaves_its_queue() -> None:
    """B6.8."""
    node, id_ = moving()
    assert state_name(node, id_) == "moving"
    assert [(each.kind, each.fields[:2], each.is_urgent) for each in node.records] == [
        ("move", (id_, B), True)
    ]
    (sent,) = node.told(msg.Move, to=B)
    assert (sent.boot, sent.source_boot, sent.n, sent.settled) == (BOOT, BOOT, 1, 1)
    assert node.get() == []


def answer(node: Node, is_taken: bool) -> msg.GotMove:
    move_ = open_move(node, B)
    return msg.GotMove(move_.source_boot, move_.boot, move_.n, is_taken)


def test_yes_forgets_the_job() -> None:
    node, id_ = moving()
    node.hear(B, answer(node, True))
    assert state_name(node, id_) == "none"
    assert [each.kind for each in node.records] == ["move", "gone"]


def test_no_makes_it_ours_again_and_it_may_move_under_a_new_number() -> None:
    node, id_ = moving()
    node.hear(B, answer(node, False))
    assert state_name(node, id_) == "queued"
    node.hear(B, msg.NeedJobs(b"q", 1, True))
    assert [(each.n, each.settled) for each in node.told(msg.Move)] == [(1, 1), (2, 2)]


@pytest.mark.parametrize(("boot", "n"), [(BOOT - 1, 1), (BOOT + 1, 1), (BOOT, 2), (BOOT, 0)])
def test_an_answer_to_another_number_or_boot_changes_nothing(boot: int, n: int) -> None:
    node, id_ = moving()
    for is_taken in (True, False):
        node.hear(B, msg.GotMove(BOOT, boot, n, is_taken))
    assert state_name(node, id_) == "moving"


def test_an_answer_given_twice_counts_once() -> None:
    node, id_ = moving()
    no = answer(node, False)
    node.hear(B, no)
    assert len(node.get()) == 1
    node.hear(B, no)
    assert node.get() == []
    assert state_name(node, id_) == "spent"


def test_silence_is_asked_about_never_sent_again() -> None:
    """B6.5: 1 s doubling to 30 s."""
    node, id_ = moving()
    node.said.clear()
    times = []
    for second in range(1, 160):
        node.advance(1_000)
        if node.told(msg.AskMove):
            times.append(second)
        assert not node.told(msg.Move)
        node.said.clear()
    assert times[:6] == [1, 2, 4, 8, 16, 32]
    assert {later - earlier for earlier, later in pairwise(times[6:])} == {30}
    assert state_name(node, id_) == "moving"


def test_a_peer_that_is_back_is_asked_at_once() -> None:
    node, _ = moving()
    node.see(view(cut=(B,)))
    node.advance(300_000)
    node.clear()
    node.see(UP)
    assert len(node.told(msg.AskMove, to=B)) == 1


def test_a_receiver_that_lost_its_store_leaves_the_job_in_doubt_till_its_expiry() -> None:
    """B6.6, never dispatched; evictable and counted (M20)."""
    node, id_ = moving()
    node.see(view(up=(B,), boots={B: BOOT + 1}))
    assert node.engine.statistics().moves_in_doubt == 1
    assert id_ in node.state.spent
    node.advance(3_600_000)
    assert (node.get(), state_name(node, id_)) == ([], "spent")
    node.leap(DAY_MS)
    assert state_name(node, id_) == "none"


def test_a_receiver_back_with_its_store_is_asked_for_its_old_boot() -> None:
    node, _ = moving()
    node.clear()
    node.see(view(up=(B,), boots={B: BOOT + 1}, sinces={B: BOOT - 1}))
    assert [each.boot for each in node.told(msg.AskMove, to=B)] == [BOOT]
    assert node.engine.statistics().moves_in_doubt == 0


def test_at_most_64_moves_are_open_the_rest_stays_queued() -> None:
    node = Node(UP, limits=Limits(moves_open_max=3))
    ids = [node.add(retry_ms=0) for _ in range(10)]
    node.hear(B, msg.NeedJobs(b"q", 5, True))
    assert [state_name(node, each) for each in ids] == ["moving"] * 3 + ["queued"] * 7
    assert [each.id for each in node.get()] == [ids[3]]


def test_a_peer_that_is_leaving_refused_or_is_of_unknown_boot_gets_no_move() -> None:
    for seen in (view(up=(B,), leaving=(B,)), view(up=(B,), boots={B: 0})):
        node = Node(seen)
        id_ = node.add(retry_ms=0)
        node.hear(B, msg.NeedJobs(b"q", 1, True), boot=BOOT)
        assert state_name(node, id_) == "queued"


def test_a_moving_job_still_expires_and_its_answer_is_harmless() -> None:
    node = Node(UP)
    id_ = node.add(retry_ms=0, ttl_ms=5_000)
    node.hear(B, msg.NeedJobs(b"q", 1, True))
    no = answer(node, False)
    node.advance(5_000)
    node.hear(B, no)
    assert (state_name(node, id_), node.get()) == ("none", [])


def test_b9_3_an_ack_at_the_source_reaches_the_receiver() -> None:
    """B9.3: done there, undelivered here becomes done."""
    world = World.of(A, B)
    a, b = world.nodes.values()
    id_ = a.add(retry_ms=0)
    world.lose = lambda _sender, _to, each: isinstance(each, msg.GotMove)
    b.do(cmd.GetJob((b"other",)))
    world.settle()
    a.hear(B, msg.NeedJobs(b"q", 1, True))
    world.settle()
    assert [state_name(a, id_), state_name(b, id_)] == ["moving", "queued"]
    a.do(cmd.AckJob((id_,)), client=ClientId(9))
    world.settle()
    assert b.get() == []
    world.advance(3_000)
    assert world.registered() == [0, 0]


def moved_on() -> tuple[World, JobId]:
    """A has given the job to B and doesn't know for certain; B has given it on to C, for certain."""
    world = World.of(A, B, C)
    a, b, c = world.nodes.values()
    id_ = a.add(retry_ms=0)
    world.lose = lambda sender, _to, each: isinstance(each, msg.GotMove) and sender == B
    a.hear(B, msg.NeedJobs(b"q", 1, True))
    world.settle()
    b.hear(C, msg.NeedJobs(b"q", 1, True))
    world.settle()
    assert [state_name(node, id_) for node in (a, b, c)] == ["moving", "none", "queued"]
    return world, id_


def owner_is_told_at_the_heal(world: World, id_: JobId) -> None:
    """C, which has the job and is cut off, hears of its end; until then nothing of it is settled."""
    a, b, c = world.nodes.values()
    assert [state_name(node, id_) for node in (a, b)] == ["done", "done"], "C isn't told yet"
    world.heal()
    world.advance(3_000)
    assert c.get() == []
    assert world.registered() == [0, 0, 0]


@pytest.mark.parametrize(
    ("command", "at"), [(cmd.AckJob, A), (cmd.FastAck, A), (cmd.CancelJob, A), (cmd.CancelJob, B)]
)
def test_an_end_reaches_the_owner_of_a_job_that_moved_on(command: Any, at: NodeId) -> None:
    """B9.3: B keeps nothing of the job, so nothing is settled until all members were told."""
    world, id_ = moved_on()
    world.split((A, B), (C,))
    world.nodes[at].do(command((id_,)), client=ClientId(9))
    world.settle()
    owner_is_told_at_the_heal(world, id_)


def test_a_cancel_that_found_nobody_at_first_reaches_the_owner_of_a_job_that_moved_on() -> None:
    """M5: B has the end, but knows no holders yet: A can't settle by that word that C was told."""
    world, id_ = moved_on()
    a, b, _ = world.nodes.values()
    world.split((A,), (B,), (C,))
    b.do(cmd.CancelJob((id_,)), client=ClientId(9))
    world.settle()
    world.advance(1_000)
    assert [state_name(node, id_) for node in (a, b)] == ["moving", "dummy"]
    world.split((A, B), (C,))
    world.advance(3_000)
    owner_is_told_at_the_heal(world, id_)


def test_u52_retry_0_jobs_on_two_nodes_both_reach_one_consumer_once() -> None:
    """U52: import is a move, not a retry."""
    world = World.of(A, B)
    a, b = world.nodes.values()
    a.add(b"a", retry_ms=0)
    b.add(b"b", retry_ms=0)
    found = []
    for client in range(2):
        a.do(cmd.GetJob((b"q",)), client=ClientId(client))
        world.settle()
        found += a.answers(ClientId(client))
    assert len(found) == 2
    world.advance(120_000, step_ms=5_000)
    assert (a.get(), b.get()) == ([], [])


@pytest.mark.parametrize("lost", [msg.Move, msg.GotMove, msg.AskMove])
def test_w6_a_lost_message_neither_loses_nor_doubles_a_retry_0_job(lost: type[msg.Message]) -> None:
    """W-6: the first message of each type is lost."""
    world = World.of(A, B, C)
    a = world.nodes[A]
    dropped: list[msg.Message] = []

    def lose(_sender: Any, _to: Any, each: msg.Message) -> bool:
        if isinstance(each, lost) and not dropped:
            dropped.append(each)
            return True
        return False

    world.lose = lose
    for node in (B, C):
        world.nodes[node].do(cmd.GetJob((b"q",)), client=ClientId(5))
    world.settle()
    a.add(retry_ms=0)
    world.advance(40_000, step_ms=500)
    assert sum(len(world.nodes[n].answers(ClientId(5))) for n in (B, C)) == 1
    assert not a.state.by_state.moving, "nothing stays in doubt"
