"""Copies are made again until REPLICATE is met (B3): when, by whom, to whom, and what stops it."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from cluster.nodeid import NodeId
from disque.core import commands as cmd
from disque.core import messages as msg
from disque.core.job import Reason
from disque.core.jobid import JobId
from disque.core.limits import Limits
from disque.core.ready import ClientId, Status
from disque.core.state import copy_count, salted
from tests.unit.core.builders import (
    BOOT,
    CTIME,
    DAY_MS,
    NODE_TIMEOUT_MS,
    OTHER,
    RETRY_MS,
    A,
    B,
    C,
    D,
    E,
    Node,
    World,
    facts,
    job_id,
    salted_id,
    spec,
    view,
)

AFTER_MS = 60_000  # repair-after
SILENCE_MS = 2_000
STEP_MS = 5_000  # a rank waits so much longer than the one before
F = NodeId("f" * 40)


def has(*nodes: NodeId, boot: int = BOOT) -> dict[NodeId, tuple[int, int, bool]]:
    """Claims of these nodes that they have a copy."""
    return dict.fromkeys(nodes, (boot, 0, True))


def holder(
    *holders: NodeId,
    up: Any = (B, C),
    replicate: int = 3,
    first: NodeId = A,
    limits: Limits | None = None,
    body: bytes = b"body",
    **seen: Any,
) -> tuple[Node, JobId]:
    """A holder A, first in salted order of the holders; the copy came long ago, all holders claimed theirs."""
    id_ = salted_id(holders, first=first)
    node = Node(view(up=up, **seen), limits=limits)
    said = facts(*holders, claims=has(*[n for n in holders if n != A]))
    node.hear(
        B, msg.ReplJob(id_, spec(replicate=replicate, retry_ms=DAY_MS // 4), CTIME, body, said)
    )
    node.advance(1_000)
    node.clear()
    return node, id_


def copied_to(node: Node) -> list[NodeId]:
    """Who was sent a copy."""
    return node.told_to(msg.ReplJob)


def copied_at(node: Node, ms: int, *, step_ms: int = 100) -> int | None:
    """ms until the first copy was sent, None: not within `ms`."""
    start = node.now_ms
    while node.now_ms - start < ms:
        node.advance(step_ms)
        if copied_to(node):
            return node.now_ms - start
    return None


def hear_got(node: Node, peer: NodeId, id_: JobId, clock: int = 1) -> None:
    node.hear(peer, msg.GotJob(id_, BOOT, clock))


# When


def test_after_forget_at_once() -> None:
    node, _ = holder(A, B, C, up=(B, C, D))
    node.see(view(up=(B, D), forgotten=(C,)))
    node.advance(100)
    assert copied_to(node) == [D]


def test_of_a_failed_holder_after_repair_after_not_before() -> None:
    node, _ = holder(A, B, C, up=(B, C, D))
    node.see(view(up=(B, D), suspect=(C,)))
    at = copied_at(node, AFTER_MS + 1_000)
    assert at is not None
    assert AFTER_MS <= at <= AFTER_MS + 200
    assert copied_to(node) == [D]


def test_repair_after_0_is_never_for_failures_and_still_at_once_after_forget() -> None:
    limits = Limits(repair_after_ms=0)
    node, _ = holder(A, B, C, up=(B, C, D), limits=limits)
    node.see(view(up=(B, D), suspect=(C,)))
    assert copied_at(node, 10 * AFTER_MS, step_ms=1_000) is None
    node.see(view(up=(B, D), forgotten=(C,)))
    node.advance(200)
    assert copied_to(node) == [D]


def test_a_holder_that_is_back_before_stops_it() -> None:
    node, _ = holder(A, B, C, up=(B, C, D))
    node.see(view(up=(B, D), suspect=(C,)))
    node.advance(AFTER_MS - 1_000)
    node.see(view(up=(B, C, D)))
    assert copied_at(node, AFTER_MS, step_ms=1_000) is None


def test_a_holder_that_came_back_without_its_store_gets_its_copy_again_after_5_s() -> None:
    """B3.4: never before the ends were said again, or 5 s."""
    node, id_ = holder(A, B, C)
    node.see(view(up=(B, C), boots={C: BOOT + 1}))
    at = copied_at(node, 20_000)
    assert at is not None
    assert 5_000 <= at <= 6_000
    assert copied_to(node) == [C]
    node.hear(C, msg.GotJob(id_, BOOT + 1, 1), boot=BOOT + 1)
    node.clear()
    assert copied_at(node, 60_000, step_ms=500) is None


def test_a_holder_that_came_back_with_its_store_needs_none() -> None:
    node, _ = holder(A, B, C)
    node.see(view(up=(B, C), boots={C: BOOT + 1}, sinces={C: BOOT}))
    assert copied_at(node, 60_000, step_ms=500) is None


def test_unknown_from_a_holder_is_repaired() -> None:
    node, id_ = holder(A, B, C)
    node.hear(C, msg.Unknown(id_, BOOT, 9))
    node.advance(100)
    assert copied_to(node) == [C], "H without C, when nobody else is there (B3.6)"


def test_an_addjob_that_began_short_of_its_aim_is_completed_when_a_peer_comes() -> None:
    node = Node(view(cut=(B, C)))
    node.do(cmd.AddJob(b"q", b"x", 0, retry_ms=DAY_MS // 4))
    assert node.answers(), "left out, REPLICATE is an aim"
    node.clear()
    node.see(view(up=(B, C)))
    node.advance(SILENCE_MS + 5_000)
    assert {B, C} & set(copied_to(node))


def test_one_that_no_longer_leaves_takes_the_copies_that_it_could_not() -> None:
    node, _ = holder(A, B, leaving=(C,))
    assert copied_at(node, 10_000) is None
    node.see(view(up=(B, C)))
    assert copied_at(node, 10_000) is not None
    assert copied_to(node) == [C]


def test_an_async_addjob_whose_copies_were_lost_is_completed() -> None:
    world = World.of(A, B, C)
    world.lose = lambda _from, _to, said: isinstance(said, msg.ReplJob)
    command = cmd.AddJob(b"q", b"x", 0, replicate=3, retry_ms=RETRY_MS, is_async=True)
    world.nodes[A].do(command, client=OTHER)
    world.settle()
    world.lose = None
    world.advance(15_000)
    assert [len(node.state.jobs) for node in world.nodes.values()] == [1, 1, 1]


@pytest.mark.parametrize(
    ("retry_ms", "replicate", "expires_in"),
    [(0, 1, DAY_MS), (10_000, 1, DAY_MS), (10_000, 3, 2 * NODE_TIMEOUT_MS)],
)
def test_at_most_once_single_copies_and_jobs_near_their_end_are_left(
    retry_ms: int, replicate: int, expires_in: int
) -> None:
    node = Node(view(up=(B, C)))
    command = cmd.AddJob(
        b"q", b"b", 0, replicate=replicate, retry_ms=retry_ms, ttl_ms=expires_in, is_async=True
    )
    node.do(command)
    node.clear()
    node.see(view(up=(B,), forgotten=(C,)))
    assert copied_at(node, 20_000, step_ms=500) is None


def test_done_is_never_copied() -> None:
    node, id_ = holder(A, B, C, up=(B, C, D))
    node.do(cmd.AckJob((id_,)))
    node.see(view(up=(B, D), forgotten=(C,)))
    assert copied_at(node, 20_000, step_ms=500) is None


def test_a_waiting_addjob_sees_to_its_copies_itself() -> None:
    node = Node(view(up=(B, C, D)))
    node.do(cmd.AddJob(b"q", b"b", 0, replicate=3, retry_ms=RETRY_MS))
    node.see(view(up=(B, D), forgotten=(C,)))
    assert not node.state.repairs


# Who


@pytest.mark.parametrize("place", [0, 1])
def test_the_first_in_salted_order_leads_the_next_steps_in_after_5_s(place: int) -> None:
    node, _ = holder(A, B, C, up=(B, C, D), first=A if place == 0 else B)
    node.see(view(up=(B, D), forgotten=(C,)))
    at = copied_at(node, 20_000)
    assert at is not None
    assert place * STEP_MS <= at <= place * STEP_MS + 300


def test_a_node_that_said_it_has_no_copy_leads_nothing() -> None:
    """B3.5: first of C ∩ reachable; a *gone* claim is not in C."""
    node, id_ = holder(A, B, C, up=(B, C, D), first=B)
    node.hear(B, msg.Unknown(id_, BOOT, 9))
    at = copied_at(node, 20_000)
    assert at is not None
    assert at <= 1_000


def test_who_steps_in_finds_nothing_to_do_once_the_leader_has_done_it() -> None:
    node, id_ = holder(A, B, C, up=(B, C, D), first=B)
    node.see(view(up=(B, D), forgotten=(C,)))
    node.advance(1_000)
    hear_got(node, D, id_)
    assert copied_at(node, 20_000, step_ms=500) is None
    assert not node.state.repairs


def test_unheard_holders_are_asked_before_a_body_is_sent() -> None:
    id_ = salted_id((A, B, C), first=A)
    node = Node(view(up=(B, C, D)))
    said = facts(A, B, C, claims=has(B))
    node.hear(B, msg.ReplJob(id_, spec(retry_ms=DAY_MS // 4), CTIME, b"b", said))
    node.clear()
    node.see(view(up=(B, C), forgotten=(D,)))
    node.advance(200)
    assert node.told_to(msg.Told) == [C]
    assert not copied_to(node)
    hear_got(node, C, id_)
    node.advance(10_000)
    assert not copied_to(node), "it had one"


def test_an_unheard_holder_that_stays_silent_is_passed_over_after_500_ms() -> None:
    id_ = salted_id((A, B, C), first=A)
    node = Node(view(up=(B, C, D, E)))
    node.hear(
        B, msg.ReplJob(id_, spec(retry_ms=DAY_MS // 4), CTIME, b"b", facts(A, B, C, claims=has(B)))
    )
    node.clear()
    node.see(view(up=(B, C, D), forgotten=(E,)))
    at = copied_at(node, 5_000)
    assert at is not None
    assert 500 <= at <= 700
    assert copied_to(node) == [D]


# To whom


def test_targets_in_salted_order_first_those_that_are_no_holders() -> None:
    node, id_ = holder(A, B, C, up=(B, C, D, E))
    node.see(view(up=(B, D, E), forgotten=(C,)))
    node.advance(200)
    assert copied_to(node) == [salted(id_, (D, E))[0]]


def test_two_leaders_choose_the_same_node() -> None:
    """Whoever leads, the order of targets is the job's."""
    id_ = job_id(1)
    chosen = []
    for leader, other in ((A, B), (B, A)):
        node = Node(view(leader, up=(other, C, D, E)))
        said = facts(A, B, C, claims=has(other, C))
        node.hear(other, msg.ReplJob(id_, spec(retry_ms=DAY_MS // 4), CTIME, b"b", said))
        node.clear()
        node.see(view(leader, up=(other, D, E), forgotten=(C,)))
        node.advance(STEP_MS + 1_000)
        chosen.append(copied_to(node)[0])
    assert chosen == [salted(id_, (D, E))[0]] * 2


def test_the_target_is_in_the_log_as_a_holder_before_the_copy_leaves() -> None:
    node, id_ = holder(A, B, C, up=(B, C, D))
    node.see(view(up=(B, D), forgotten=(C,)))
    node.advance(200)
    assert ("holders", (id_, (A, B, C, D))) in [(r.kind, r.fields) for r in node.records]
    (said,) = node.told(msg.ReplJob)
    assert said.facts.holders == (A, B, C, D)
    assert said.body == b"body"


def test_leaving_nodes_are_no_targets_and_their_copies_count_for_nothing() -> None:
    node, _ = holder(A, B, C, up=(B, C, D, E))
    node.see(view(up=(B, C, D, E), leaving=(C, E), forgotten=(F,)))
    node.advance(300)
    assert copied_to(node) == [D]


def test_silence_of_2_s_takes_the_next_target() -> None:
    node, id_ = holder(A, B, C, up=(B, C, D, E))
    node.see(view(up=(B, D, E), forgotten=(C,)))
    node.advance(SILENCE_MS - 100)
    assert len(copied_to(node)) == 1
    node.advance(1_000)
    assert sorted(copied_to(node)) == [D, E]
    assert copied_to(node)[0] == salted(id_, (D, E))[0]


def test_a_refusal_takes_the_next_target_within_a_second_and_leaves_the_refuser_alone() -> None:
    node, id_ = holder(A, B, C, up=(B, C, D, E))
    node.see(view(up=(B, D, E), forgotten=(C,)))
    node.advance(200)
    (refuser,) = copied_to(node)
    node.hear(refuser, msg.Refused(id_, False))
    node.advance(1_000)
    assert len(copied_to(node)) == 2
    assert copied_to(node)[1] != refuser


def test_set_ack_from_the_target_stops_it() -> None:
    node, id_ = holder(A, B, C, up=(B, C, D, E))
    node.see(view(up=(B, D, E), forgotten=(C,)))
    node.advance(200)
    target = copied_to(node)[0]
    node.hear(target, msg.SetAck(id_, Reason.ACKED, (A, B, C, D), (target,), DAY_MS))
    node.advance(10_000)
    assert len(copied_to(node)) == 1
    assert not node.state.repairs


def test_enough_copies_end_it_and_none_is_surplus() -> None:
    node, id_ = holder(A, B, C, up=(B, C, D, E))
    node.see(view(up=(B, D, E), forgotten=(C,)))
    node.advance(200)
    hear_got(node, copied_to(node)[0], id_)
    node.advance(60_000)
    assert len(copied_to(node)) == 1
    assert copy_count(node.state, node.job(id_)) == 3


def test_two_missing_copies_are_made_one_after_the_other() -> None:
    node, id_ = holder(A, B, C, up=(B, C, D, E))
    node.see(view(up=(D, E), forgotten=(B, C)))
    node.advance(200)
    (first,) = copied_to(node)
    hear_got(node, first, id_)
    node.advance(STEP_MS + 500)  # the first copy's node may lead now
    assert sorted(copied_to(node)) == [D, E]


def test_holders_never_pass_replicate_and_3() -> None:
    """B3.6, M2: then only holders without a copy get one."""
    up = [NodeId(letter * 40) for letter in "bcdef01234"]
    node, id_ = holder(A, B, C, up=up, replicate=2)
    for n, peer in enumerate([B, C]):
        node.hear(peer, msg.Unknown(id_, BOOT, 9 + n))
    node.advance(60_000)
    assert len(node.job(id_).holders) <= 2 + 3


def test_nobody_willing_waits_for_a_view_change() -> None:
    node, _ = holder(A, B, C)
    node.see(view(up=(B,), forgotten=(C,)))
    node.advance(60_000)
    assert copied_to(node) == []
    node.see(view(up=(B, D), forgotten=(C,)))
    node.advance(6_000)
    assert copied_to(node) == [D]


@pytest.mark.parametrize("answer", ["refused", "silence"])
def test_q4_a_target_that_refused_or_missed_one_message_gets_its_copy_later(answer: str) -> None:
    """B3.1: REFUSED wakes repair. The only willing node was paused, or one frame was lost; no view change follows."""
    node, id_ = holder(A, B, C, up=(B, C, D))
    node.see(view(up=(B, D), forgotten=(C,)))
    node.advance(200)
    assert copied_to(node) == [D]
    if answer == "refused":
        node.hear(D, msg.Refused(id_, True))
    node.advance(120_000)
    assert len(copied_to(node)) >= 2
    hear_got(node, D, id_)
    assert copy_count(node.state, node.job(id_)) == 3


# How much


def many(count: int, body: bytes = b"b") -> Node:
    """A holder of many jobs whose third copy is at C; A leads them all."""
    node = Node(view(up=(B, C, D)))
    ids = [i for i in map(job_id, range(8 * count)) if salted(i, (A, B, C))[0] == A][:count]
    assert len(ids) == count
    said = facts(A, B, C, claims=has(B, C))
    copies = [msg.ReplJob(i, spec(retry_ms=DAY_MS // 4), CTIME, body, said) for i in ids]
    node.hear_many(B, copies)
    node.clear()
    return node


def test_b3_8_at_most_256_repairs_are_open_and_the_rest_follows() -> None:
    node = many(600)
    node.see(view(up=(B, D), forgotten=(C,)))
    seen = 0
    for turn in range(200):
        node.advance(50)
        assert len(node.state.repairs) <= 256
        fresh = [said.id for said in node.told(msg.ReplJob, to=D)][seen:]
        seen += len(fresh)
        for id_ in fresh:
            node.engine.receive(D, BOOT, msg.GotJob(id_, BOOT, turn))
        if seen == 600:
            break
    assert seen == 600
    node.advance(1_000)
    assert not node.state.repairs


def test_b3_8_bodies_leave_at_a_rate_of_8_mib_a_second() -> None:
    body = b"x" * (1 << 18)
    node = many(128, body)
    node.see(view(up=(B, D), forgotten=(C,)))
    node.advance(1_000)
    at_once = len(copied_to(node)) * len(body)
    assert at_once <= (8 << 20) + (8 << 20) + len(body), "a second's worth saved, and one second"
    node.advance(1_000)
    assert len(copied_to(node)) * len(body) - at_once <= (8 << 20) + 2 * len(body)


def test_b3_8_a_holder_that_returns_stops_what_is_not_sent() -> None:
    body = b"x" * (1 << 18)
    node = many(128, body)
    node.see(view(up=(B, D), suspect=(C,)))
    node.advance(AFTER_MS + 500)
    sent = len(copied_to(node))
    assert 0 < sent < 128
    node.see(view(up=(B, C, D)))
    node.advance(60_000)
    assert len(copied_to(node)) - sent <= 1


def test_info_shows_under_replicated_jobs() -> None:
    node, _ = holder(A, B, C, up=(B, C, D))
    node.see(view(up=(B, D), forgotten=(C,)))
    node.advance(200)
    assert node.engine.statistics().under_replicated_jobs == 1


def test_info_shows_under_replicated_jobs_though_nobody_is_willing() -> None:
    node, _ = holder(A, B, C)
    node.see(view(up=(B,), forgotten=(C,)))
    node.advance(10_000)
    assert node.engine.statistics().under_replicated_jobs == 1


# A world


def replicated(world: World, copies: int = 3) -> JobId:
    command = cmd.AddJob(b"q", b"x", 0, replicate=copies, retry_ms=RETRY_MS)
    world.nodes[A].do(command, client=ClientId(77))
    world.settle()
    (said,) = [r for to, r in world.nodes[A].replies if to == ClientId(77)]
    assert isinstance(said, Status)
    world.nodes[A].clear()
    return JobId(said.text)


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_q4_four_nodes_lose_one_and_every_job_has_three_copies_again(is_forgotten: bool) -> None:
    world = World.of(A, B, C, D)
    ids = [replicated(world) for _ in range(12)]
    world.split([A, B, C], [D], is_suspected=True)
    if is_forgotten:
        for node in (A, B, C):
            world.nodes[node].see(
                view(node, up=[n for n in (A, B, C) if n != node], forgotten=(D,))
            )
    world.advance(20_000 if is_forgotten else AFTER_MS + 20_000, step_ms=100)
    for id_ in ids:
        live = [n for n in (A, B, C) if id_ in world.nodes[n].state.jobs]
        assert live == [A, B, C], id_
        for node in live:
            assert copy_count(world.nodes[node].state, world.nodes[node].job(id_)) >= 3
    assert (
        sum(
            [
                len(world.nodes[n].state.queues[b"q"])
                for n in (A, B, C)
                if b"q" in world.nodes[n].state.queues
            ]
        )
        == 12
    )


def test_a_repaired_copy_knows_the_lease_and_delivers_only_after_it() -> None:
    world = World.of(A, B, C)
    replicated(world, copies=2)
    assert len(world.nodes[A].get()) == 1
    world.settle()
    world.advance(1_000)
    (id_,) = world.nodes[A].state.jobs
    other = next(n for n in (B, C) if id_ in world.nodes[n].state.jobs)
    free = next(n for n in (B, C) if n != other)
    for node in (A, free):
        up = [n for n in (A, free) if n != node]
        world.nodes[node].see(view(node, up=up, forgotten=(other,)))
    world.cuts = {(other, A): None, (A, other): None, (other, free): None, (free, other): None}
    world.advance(6_000)
    assert id_ in world.nodes[free].state.jobs
    assert world.nodes[free].get() == []
    assert world.nodes[free].job(id_).lease_end() > world.nodes[free].now_ms


def test_a_repaired_copy_of_a_job_acked_meanwhile_is_answered_by_its_end() -> None:
    node = Node(view(up=(B,)))
    node.hear(B, msg.SetAck(job_id(1), Reason.ACKED, (A, B, C), (B,), DAY_MS))
    node.clear()
    node.hear(B, msg.ReplJob(job_id(1), spec(), CTIME, b"b", attrs.evolve(facts(A, B))))
    assert node.told_to(msg.SetAck) == [B]
