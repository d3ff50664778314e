"""Queueing again: asking first, the answers, ties; NACK, ENQUEUE, DEQUEUE, WORKING (B1, M7-M11, M22)."""

from __future__ import annotations

from typing import Any

import pytest

from disque.core import commands as cmd
from disque.core import messages as msg
from disque.core.job import JobState, Reason
from disque.core.jobid import JobId
from disque.core.ready import ClientId, Failure
from disque.core.state import salted
from tests.unit.core.builders import (
    BOOT,
    CTIME,
    DAY_MS,
    NODE_TIMEOUT_MS,
    NOW,
    OTHER,
    RETRY_MS,
    A,
    B,
    C,
    Node,
    World,
    copy,
    facts,
    job_id,
    node_with,
    salted_id,
    spec,
    state_name,
    view,
)

STEP_MS = 500  # clamp(RETRY / 20, 50, 500) of RETRY 10 s
ASK_WAIT_MS = 500
UP = view(up=(B, C))


def replica(
    *, first: object = A, holders: tuple[object, ...] = (A, B), **options: object
) -> tuple[Node, JobId]:
    """A replica at A, with `first` first in salted order of its holders; due RETRY from NOW."""
    id_ = salted_id(holders, first=first)  # type: ignore[arg-type]
    node = Node(view(up=[n for n in holders if n != A], **options))  # type: ignore[misc, arg-type]
    node.hear(B, copy(id_, *holders))  # type: ignore[arg-type]
    node.clear()
    return node, id_


def asked_at(node: Node, ms: int) -> list[int]:
    """When WILLQUEUE was said, in ms after NOW."""
    times = []
    for _ in range(0, ms, 50):
        node.advance(50)
        if node.told(msg.WillQueue):
            times.append(node.now_ms - NOW)
        node.said.clear()
    return times


# Who asks when (B1.2, B1.3)


def test_a_replica_asks_after_delay_and_retry() -> None:
    node, id_ = replica()
    node.advance(RETRY_MS - 1)
    assert not node.told(msg.WillQueue)
    node.advance(1)
    assert node.told_to(msg.WillQueue) == [B]
    assert state_name(node, id_) == "active"


def test_a_replica_of_a_delayed_job_is_due_at_delay_and_retry() -> None:
    node = Node(view(up=(B,)))
    id_ = salted_id((A, B), first=A)
    node.hear(B, copy(id_, A, B, facts=facts(A, B, due_in=5_000), spec=spec(delay_ms=5_000)))
    assert asked_at(node, 5_000 + RETRY_MS + 100)[:1] == [5_000 + RETRY_MS]


def test_facts_said_again_dont_take_a_delayed_job_from_who_waits_for_its_end() -> None:
    """After a heal each holder would ask at that end."""
    id_ = salted_id((A, B), first=A)
    node = Node(view(up=(B,)))
    said = facts(A, B, due_in=5_000)
    node.hear(B, copy(id_, A, B, facts=said, spec=spec(delay_ms=5_000)), msg.Told(id_, said))
    node.advance(5_000 + RETRY_MS - 1)
    assert not node.told(msg.WillQueue)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_f1_holders_ask_in_salted_order_a_step_apart(place: int) -> None:
    id_ = next(i for i in map(job_id, range(1_000)) if salted(i, (A, B, C))[place] == A)
    node = Node(UP)
    node.hear(B, copy(id_, A, B, C))
    assert asked_at(node, RETRY_MS + 3_000)[0] == RETRY_MS + place * STEP_MS


@pytest.mark.parametrize(
    ("retry_ms", "step_ms"),
    [(500, 50), (1_000, 50), (4_000, 200), (10_000, 500), (DAY_MS // 2, 500)],
)
def test_the_step_is_a_twentieth_of_retry_from_50_to_500_ms(retry_ms: int, step_ms: int) -> None:
    id_ = salted_id((A, B), first=B)
    node = Node(view(up=(B,)))
    node.hear(B, copy(id_, A, B, spec=spec(retry_ms=retry_ms)))
    node.leap(retry_ms)
    start = node.now_ms
    while not node.told(msg.WillQueue):
        node.advance(10)
    assert node.now_ms - start == step_ms


def test_unreachable_holders_count_in_no_rank() -> None:
    node, _ = replica(first=B, holders=(A, B))
    node.see(view(suspect=(B,)))
    node.advance(RETRY_MS)
    assert len(node.get()) == 1, "nobody to ask: queued at once"


def test_a_holder_that_is_lost_makes_its_turn_ours() -> None:
    node, id_ = replica()
    node.hear(B, msg.Queued(id_, facts(A, B, is_queued=True)))
    node.advance(1_000)
    node.see(view(suspect=(B,)))
    node.advance(100)
    assert state_name(node, id_) == "queued", "`at` failed: ask_at = now (B1.5)"


def test_no_answer_for_500_ms_is_no_objection() -> None:
    node, id_ = replica()
    node.advance(RETRY_MS + ASK_WAIT_MS - 1)
    assert state_name(node, id_) == "active"
    node.advance(1)
    assert state_name(node, id_) == "queued"
    assert node.told_to(msg.Queued) == [B]


@pytest.mark.parametrize("answer", ["have", "unknown"])
def test_queued_once_all_who_were_asked_have_nothing_against_it(answer: str) -> None:
    node, id_ = replica(holders=(A, B, C))
    node.advance(RETRY_MS)
    said: msg.Message = (
        msg.Have(id_, facts(A, B, C)) if answer == "have" else msg.Unknown(id_, BOOT, 1)
    )
    node.hear(B, said)
    node.hear(B, said)
    assert state_name(node, id_) == "active"
    node.hear(C, said)
    assert state_name(node, id_) == "queued"


@pytest.mark.parametrize("kind", ["lease", "waiting", "queued", "done", "tombstone"])
def test_who_knows_better_is_obeyed(kind: str) -> None:
    node, id_ = replica()
    node.advance(RETRY_MS)
    said: dict[str, tuple[msg.Message, str]] = {
        "lease": (
            msg.Leased(id_, facts(A, B, dispatches={B: 1}, leases={B: (NOW + 9, 3_000)})),
            "leased",
        ),
        "waiting": (msg.Waiting(id_, 3_000), "active"),
        "queued": (msg.Queued(id_, facts(A, B, is_queued=True)), "active"),
        "done": (msg.SetAck(id_, Reason.ACKED, (A, B), (B,), DAY_MS), "tombstone"),
        "tombstone": (msg.DelJob(id_, Reason.ACKED, (A, B), (A, B)), "tombstone"),
    }
    node.hear(B, said[kind][0])
    node.advance(2_999)
    assert state_name(node, id_) == said[kind][1]
    assert node.get() == []


def test_a_lease_that_ended_is_asked_for_again_at_its_end() -> None:
    node, id_ = replica()
    node.hear(B, msg.Leased(id_, facts(A, B, dispatches={B: 1}, leases={B: (NOW, 12_000)})))
    node.clear()
    assert asked_at(node, 13_000)[0] == RETRY_MS, "clamped to RETRY (M8)"


def test_w32_a_queued_winner_is_asked_ever_more_rarely() -> None:
    """W-32, B1.5: RETRY x 2^k, at most max(RETRY, 600 s)."""
    node, id_ = replica()
    gaps: list[int] = []
    last = node.now_ms
    while len(gaps) < 9:
        node.advance(500)
        if node.told(msg.WillQueue):
            gaps.append((node.now_ms - last) // 1_000)
            last = node.now_ms
            node.said.clear()
            node.hear(B, msg.Queued(id_, facts(A, B, is_queued=True)))
    assert gaps == [10, 10, 20, 40, 80, 160, 320, 600, 600]


def test_w32_a_hundred_unconsumed_jobs_make_no_storm() -> None:
    """W-32: C Disque sent 6,628 messages in 5 s, for ever (RETRY 1, REPLICATE 3).

    Here each replica asks at 1, 2, 4, 8 ... s.
    """
    world = World.of(A, B, C)
    for n in range(100):
        world.nodes[A].do(
            cmd.AddJob(b"q", b"x", 0, replicate=3, retry_ms=1_000), client=ClientId(1_000 + n)
        )
    world.advance(200)
    world.sent.clear()
    world.advance(5_000, step_ms=100)
    assert len(world.sent) <= 2 * 3 * (2 + 2) * 100, (
        "2 replicas, 3 times, 2 holders asked, 2 answers"
    )
    assert [len(node.state.queues.get(b"q", ())) for node in world.nodes.values()] == [100, 0, 0]


# The first that holds (B1.4)


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        ("none", msg.Unknown),
        ("dummy", msg.SetAck),
        ("waiting", msg.Waiting),
        ("active", msg.Have),
        ("leased", msg.Leased),
        ("queued", msg.Queued),
        ("done", msg.SetAck),
        ("tombstone", msg.DelJob),
        ("mark", msg.SetAck),
    ],
)
def test_willqueue_is_answered_by_the_first_that_holds(
    kind: str, answer: type[msg.Message]
) -> None:
    node, id_ = node_with(kind, UP)
    node.hear(B, msg.WillQueue(id_, facts(A, B)))
    assert [type(each) for to, each in node.said if to == B] == [answer]
    assert {to for to, _ in node.said} == {B}, "answers are never broadcast"


@pytest.mark.parametrize("kind", ["moving", "spent"])
def test_retry_0_is_silent_about_requeues(kind: str) -> None:
    node, id_ = node_with(kind, UP)
    for said in (msg.WillQueue, msg.Queued, msg.Have, msg.Told):
        node.hear(B, said(id_, facts(A, B)))
    assert node.said == []
    assert state_name(node, id_) == kind


# Two queued copies (M10)


def both_queued(first: object) -> tuple[World, JobId]:
    """Two nodes that queued the same job while they were cut."""
    world = World.of(A, B)
    id_ = salted_id((A, B), first=first, node=A)  # type: ignore[arg-type]
    for node in world.nodes.values():
        peer = B if node.id == A else A
        node.hear(peer, msg.YourJobs(id_, spec(), CTIME, b"body", facts(A, B)))
        node.clear()
    return world, id_


@pytest.mark.parametrize("speaker", [A, B])
@pytest.mark.parametrize("first", [A, B])
def test_w10_of_two_queued_copies_the_first_in_salted_order_stays_whoever_speaks(
    first: object, speaker: object
) -> None:
    """W-10: symmetrical."""
    world, id_ = both_queued(first)
    node = world.nodes[speaker]  # type: ignore[index]
    peer = B if speaker == A else A
    node.said.append((peer, msg.Queued(id_, facts(A, B, is_queued=True))))
    world.settle()
    assert {n: state_name(world.nodes[n], id_) for n in (A, B)} == {
        n: "queued" if n == first else "active" for n in (A, B)
    }


@pytest.mark.parametrize("first", [A, B])
def test_w2_two_queued_copies_become_one_after_a_heal(first: object) -> None:
    """W-2, B4: and the loser asks again after RETRY, so nothing is lost if the winner dies."""
    world, id_ = both_queued(first)
    world.split((A,), (B,))
    world.heal()
    world.advance(1_000)
    states = [state_name(node, id_) for node in world.nodes.values()]
    assert sorted(states) == ["active", "queued"]
    winner = world.nodes[first]  # type: ignore[index]
    loser = world.nodes[B if first == A else A]
    assert state_name(winner, id_) == "queued"
    world.split((A,), (B,), is_suspected=True)
    world.advance(RETRY_MS + 1_000)
    assert state_name(loser, id_) == "queued"


def test_w2_the_importer_is_known_to_the_other_copies() -> None:
    """W-2, D: no second queueing while the importer has it queued."""
    world = World.of(A, B)
    a, b = world.nodes.values()
    b.do(cmd.GetJob((b"q",)))
    b.disconnect(ClientId(1))
    world.settle()
    id_ = a.add()
    world.settle()
    assert a.job(id_).holders == (A, B)
    world.advance(3 * RETRY_MS, step_ms=250)
    assert [state_name(a, id_), state_name(b, id_)] == ["active", "queued"]
    assert len(a.get()) == 0


def test_a_lease_beats_a_queued_copy() -> None:
    node, id_ = node_with("leased", UP)
    node.hear(B, msg.Queued(id_, facts(A, B, is_queued=True)))
    (answer,) = node.told(msg.Leased, to=B)
    assert A in answer.facts.leases


# Facts and news (M22)

OWN = {A: (BOOT, 0, True)}  # the sender knows that we have a copy


def test_an_answer_to_equal_facts_is_nothing() -> None:
    """S17; a sender that hasn't heard that we have a copy is told that, no more (M3)."""
    node, id_ = node_with("active", UP)
    node.hear(B, msg.Told(id_, facts(A, B, claims=OWN)))
    assert node.said == []
    node.hear(B, msg.Told(id_, facts(A, B)))
    assert node.said == [(B, msg.GotJob(id_, BOOT, 0))]


def test_facts_are_answered_only_with_news_for_the_sender() -> None:
    node, id_ = node_with("active", UP)
    node.hear(B, msg.Told(id_, facts(A, B, claims=OWN, dispatches={B: 1})))
    assert node.said == [], "news for us, none for the sender"
    node.hear(B, msg.Told(id_, facts(A, B)))
    assert [each.facts.dispatches for each in node.told(msg.Told, to=B)] == [{B: 1}]


def test_if_holders_grew_the_new_ones_hear_the_facts_once() -> None:
    node, id_ = node_with("active", UP)
    for _ in range(3):
        node.hear(B, msg.Told(id_, facts(A, B, C)))
    assert node.told_to(msg.Told) == [C]


# NACK, ENQUEUE, DEQUEUE, WORKING


def test_nack_queues_at_once_counts_and_voids_the_lease_everywhere() -> None:
    """B1.8, M9, U12."""
    world = World.of(A, B)
    a, b = world.nodes.values()
    a.do(cmd.AddJob(b"q", b"x", 0, replicate=2, retry_ms=RETRY_MS))
    world.settle()
    (delivery,) = a.get()
    world.advance(2_000)
    assert a.do(cmd.Nack((JobId(delivery.id),)), client=OTHER) == [1]
    world.settle()
    assert (b.job(JobId(delivery.id)).nack_count, b.job(JobId(delivery.id)).lease_end()) == (1, 0)
    assert [each.id for each in a.get()] == [delivery.id]


def test_nack_at_another_holder_shortens_the_lease() -> None:
    """D: under M8 alone a NACK could never shorten a lease."""
    world = World.of(A, B)
    a, b = world.nodes.values()
    a.do(cmd.AddJob(b"q", b"x", 0, replicate=2, retry_ms=RETRY_MS))
    world.settle()
    (delivery,) = a.get()
    assert b.do(cmd.Nack((JobId(delivery.id),)), client=OTHER) == [1]
    world.settle()
    assert [len(node.get()) for node in (b, a)] == [1, 0]


@pytest.mark.parametrize(
    "kind", ["none", "dummy", "waiting", "queued", "moving", "done", "tombstone", "mark", "spent"]
)
@pytest.mark.parametrize("command", [cmd.Nack, cmd.Enqueue])
def test_only_active_copies_are_given_back(
    kind: str, command: type[cmd.Nack | cmd.Enqueue]
) -> None:
    node, id_ = node_with(kind, UP)
    assert node.ask(command((id_,)), client=OTHER) == [0]
    assert state_name(node, id_) == kind


def test_enqueue_ends_a_delay_and_is_no_nack_and_no_delivery() -> None:
    """M11, W-11."""
    node = Node(view(up=(B,)))
    id_ = node.add(delay_ms=60_000, replicate=1)
    assert node.do(cmd.Enqueue((id_,))) == [1]
    shown = node.shown(id_)
    assert (shown[b"state"], shown[b"nacks"], shown[b"additional-deliveries"]) == (b"queued", 0, 0)


def test_nack_doesnt_end_a_delay() -> None:
    """S10: there is nothing to give back."""
    node = Node()
    id_ = node.add(delay_ms=60_000)
    assert node.do(cmd.Nack((id_,))) == [0]
    assert node.get() == []


def test_enqueue_voids_a_lease() -> None:
    node, id_ = node_with("leased", UP)
    assert node.do(cmd.Enqueue((id_,))) == [1]
    assert state_name(node, id_) == "queued"
    assert node.job(id_).nack_count == 0


def test_dequeue_takes_out_and_the_job_comes_back_after_retry() -> None:
    """U03."""
    node = Node()
    ids = tuple(node.add() for _ in range(3))
    assert [node.do(cmd.Dequeue(some)) for some in (ids[:1], ids[1:], ids)] == [[1], [2], [0]]
    assert node.get() == []
    node.advance(RETRY_MS)
    assert len(node.get(count=9)) == 3


def test_a_dequeued_retry_0_job_comes_back_by_enqueue_only() -> None:
    node = Node()
    id_ = node.add(retry_ms=0)
    assert node.do(cmd.Dequeue((id_,))) == [1]
    node.advance(3_600_000)
    assert node.get() == []
    assert node.do(cmd.Enqueue((id_,))) == [1]
    assert len(node.get()) == 1


def test_working_leases_anew_and_answers_retry_in_seconds() -> None:
    node, id_ = node_with("leased", UP)
    node.advance(6_000)
    assert node.do(cmd.Working(id_)) == [RETRY_MS // 1_000]
    assert node.job(id_).lease_end() == node.now_ms + RETRY_MS
    assert node.told_to(msg.Leased) == [B]


NOJOB = Failure("NOJOB", "Job not known in the context of this node.")
ACKED = Failure("ACKED", "Job already acknowledged.")
TOOLATE = Failure(
    "TOOLATE",
    "Half of job TTL already elapsed, you are no longer allowed to postpone the next delivery.",
)


@pytest.mark.parametrize(
    ("kind", "answer"),
    [("none", NOJOB), ("mark", NOJOB), ("tombstone", ACKED), ("dummy", ACKED), ("done", ACKED)],
)
def test_w24_working_on_what_is_over_is_an_error(kind: str, answer: Failure) -> None:
    """W-24."""
    node, id_ = node_with(kind, UP)
    node.see(view())
    assert node.do(cmd.Working(id_)) == [answer]


def test_w24_working_is_too_late_after_half_of_the_life() -> None:
    """U10; judged by what is left, not by the origin's clock."""
    node = Node(view(up=(B,)))
    id_ = salted_id((A, B), first=A)
    node.hear(B, msg.YourJobs(id_, spec(ttl_ms=40_000), 1, b"", facts(A, B, expires_in=40_000)))
    node.get()
    node.advance(20_000)
    assert node.do(cmd.Working(id_)) == [RETRY_MS // 1_000]
    node.advance(1)
    assert node.do(cmd.Working(id_)) == [TOOLATE]


def test_w24_working_on_a_queued_retry_0_job_leaves_it_queued() -> None:
    node = Node()
    id_ = node.add(retry_ms=0)
    assert node.do(cmd.Working(id_)) == [0]
    assert len(node.get()) == 1


def test_w24_working_on_a_delayed_job_never_brings_it_forward() -> None:
    node = Node()
    id_ = node.add(delay_ms=60_000)
    node.do(cmd.Working(id_))
    node.advance(59_999)
    assert node.get() == []
    node.advance(1)
    assert len(node.get()) == 1


def test_working_takes_a_queued_copy_out_of_its_queue() -> None:
    node, id_ = node_with("queued", UP)
    node.do(cmd.Working(id_))
    assert (node.get(), state_name(node, id_)) == ([], "leased")


def test_working_refuses_nothing_for_ever_a_stuck_worker_loses_the_job() -> None:
    """U10: RETRY 2, TTL 20, WORKING each second: no delivery until about 10 s, then an error."""
    node = Node()
    id_ = node.add(retry_ms=2_000, ttl_ms=20_000)
    node.get()
    answers = []
    for _ in range(12):
        node.advance(1_000)
        answers += node.do(cmd.Working(id_))
    assert answers[:10] == [2] * 10
    assert answers[10:] == [TOOLATE] * 2
    assert len(node.get()) == 1


def test_a_queue_paused_in_gets_no_retried_jobs_until_it_ends() -> None:
    """U18, M10."""
    node = Node()
    id_ = node.add()
    node.get()
    queue = node.state.queues[b"q"]
    queue.pause = 1
    node.advance(3 * RETRY_MS)
    assert state_name(node, id_) == "active"
    queue.pause = 0
    node.advance(RETRY_MS)
    assert state_name(node, id_) == "queued"


# A restart (B1.9)


def restarted(*, is_intact: bool, **seen: Any) -> tuple[Node, JobId]:
    """A node whose log had a job held by A and B, RETRY 1 s."""
    before = Node(view(up=(B,)))
    before.hear(B, copy(job_id(1), A, B, spec=spec(retry_ms=1_000)))
    return started_again(before, is_intact=is_intact, **seen), job_id(1)


def started_again(before: Node, *, is_intact: bool, **seen: Any) -> Node:
    """The same node after a restart that replayed its log."""
    node = Node(view(**seen), boot=BOOT + 1, since=BOOT if is_intact else None)
    for record in before.records:
        node.engine.restore(record)
    node.engine.restored()
    node.clear()
    return node


def test_a_replayed_copy_isnt_offered_before_its_asks_were_answered_or_timed_out() -> None:
    """Q7."""
    node, id_ = restarted(is_intact=True, up=(B,))
    node.advance(100)
    assert state_name(node, id_) == "active"
    node.advance(ASK_WAIT_MS)
    # an answer to the first question may have gone to the life before
    assert node.told_to(msg.WillQueue) == [B, B]
    assert state_name(node, id_) == "active"
    node.advance(ASK_WAIT_MS)
    assert node.told_to(msg.WillQueue) == [B, B]
    assert state_name(node, id_) == "queued"


def test_a_replayed_copy_waits_a_node_timeout_for_holders_that_werent_reached() -> None:
    node, id_ = restarted(is_intact=True, cut=(B,))
    node.advance(NODE_TIMEOUT_MS - 1)
    assert state_name(node, id_) == "active"
    node.advance(1_100)
    assert state_name(node, id_) == "queued"


def test_a_replayed_copy_of_a_store_that_isnt_intact_asks_all_members() -> None:
    """B1.9: whoever acked a one-holder job isn't in H."""
    node, id_ = restarted(is_intact=False, up=(B, C))
    node.advance(1_100)
    assert set(node.told_to(msg.WillQueue)) == {B, C}
    node.hear(C, msg.SetAck(id_, Reason.ACKED, (C,), (C,), DAY_MS))
    assert node.get() == []


def test_a_replayed_copy_of_one_holder_waits_for_members_if_the_store_isnt_intact() -> None:
    """B1.9: any member may know of its end, and none of them is a holder."""
    before = Node(view(up=(B,)))
    id_ = before.add(retry_ms=1_000)
    for is_intact, state in ((True, "queued"), (False, "active")):
        node = started_again(before, is_intact=is_intact, cut=(B,))
        node.advance(NODE_TIMEOUT_MS - 1)
        assert state_name(node, id_) == state
        node.advance(1)
        assert state_name(node, id_) == "queued"


def test_the_wait_for_holders_begins_when_the_log_has_been_read() -> None:
    node, id_ = restarted(is_intact=True, cut=(B,))
    node.leap(10 * NODE_TIMEOUT_MS)
    assert state_name(node, id_) == "active"
    node.advance(2 * NODE_TIMEOUT_MS)
    assert state_name(node, id_) == "queued"


def test_a_replayed_copy_asks_as_soon_as_its_holders_were_reached() -> None:
    """B1.9: whatever other members do."""
    node, _ = restarted(is_intact=True, cut=(B, C))
    node.advance(100)
    node.see(view(up=(C,), cut=(B,)))
    node.advance(100)
    assert node.told_to(msg.WillQueue) == []
    node.see(view(up=(B,), cut=(C,)))
    node.advance(STEP_MS)
    assert set(node.told_to(msg.WillQueue)) == {B}


def test_a_store_that_isnt_intact_asks_as_soon_as_all_members_were_reached() -> None:
    before = Node()
    id_ = before.add()
    node = started_again(before, is_intact=False, cut=(B, C))
    node.advance(100)
    node.see(view(up=(B,), cut=(C,)))
    node.advance(100)
    assert node.told_to(msg.WillQueue) == []
    node.see(view(up=(B, C)))
    node.advance(0)
    assert sorted(node.told_to(msg.WillQueue)) == [B, C]
    node.hear(C, msg.DelJob(id_, Reason.ACKED, (A,), (A, C)))
    assert node.get() == []


def test_a_replayed_copy_of_a_node_that_was_forgotten_waits_till_it_is_met() -> None:
    """B2.8: what was done meanwhile nobody tells it any more."""
    node, id_ = restarted(is_intact=True, cut=(B,), is_forgotten=True)
    node.advance(3_600_000)
    assert state_name(node, id_) == "active"
    assert node.get() == []
    assert len(node.said) == 0
    node.add()
    assert len(node.get(count=9)) == 1, "what it is given now it serves"


def test_a_forgotten_node_asks_the_holders_that_still_know_it() -> None:
    node, id_ = restarted(is_intact=True, up=(B,), cut=(C,), is_forgotten=True)
    node.advance(STEP_MS + 2 * ASK_WAIT_MS + 100)
    assert set(node.told_to(msg.WillQueue)) == {B}
    assert state_name(node, id_) == "queued"


def test_a_job_isnt_lost_when_its_origin_dies() -> None:
    """U63: delayed or not, a survivor takes over, once."""
    world = World.of(A, B, C)
    world.nodes[A].do(cmd.AddJob(b"q", b"x", 0, replicate=3, retry_ms=1_000, delay_ms=5_000))
    world.advance(1_000)
    world.split((A,), (B, C), is_suspected=True)
    world.advance(8_000)
    assert len(world.nodes[B].get() + world.nodes[C].get()) == 1
    states = [
        node.job(next(iter(node.state.jobs))).state for node in list(world.nodes.values())[1:]
    ]
    assert states == [JobState.ACTIVE, JobState.ACTIVE]
