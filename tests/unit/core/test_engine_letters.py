"""Delivery limit and dead letters, priority (M13, B8, S13; U13)."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from disque.core import commands as cmd
from disque.core import messages as msg
from disque.core.job import DEAD_BY_NACK, DEAD_BY_RETRY, Burials, Reason
from disque.core.jobid import JobId
from disque.core.limits import Limits
from disque.core.parsing import parse
from disque.core.ready import ClientId, Delivery, Failure, Status
from disque.errors import CommandError
from tests.unit.core.builders import (
    CTIME,
    DAY_MS,
    OTHER,
    RETRY_MS,
    A,
    B,
    C,
    Node,
    World,
    add_command,
    facts,
    job_id,
    spec,
    view,
)

DEAD = b"dead-letters"


def hand_out(node: Node, queue: bytes = b"q") -> JobId:
    """One delivery."""
    (delivery,) = node.get(queue)
    return JobId(delivery.id)


def use_up(node: Node, id_: JobId, times: int) -> None:
    """So many deliveries, each given back by NACK."""
    for _ in range(times):
        assert hand_out(node) == id_
        assert node.do(cmd.Nack((id_,))) == [1]


def dead_letter(limit: int = 1, **options: Any) -> tuple[Node, JobId]:
    """A node with one dead letter."""
    node = Node(view(up=(B, C)))
    id_ = node.add(max_deliveries=limit, **options)
    use_up(node, id_, limit)
    node.clear()
    return node, id_


def test_who_asks_for_dead_letters_first_gets_the_one_that_its_look_at_the_queue_behind_buries() -> (
    None
):
    node = Node(view(up=(B, C)))
    id_ = node.add(max_deliveries=1)
    node.hear(B, msg.Queued(id_, facts(A, B, dispatches={B: 1})))
    (answer,) = node.do(cmd.GetJob((DEAD, b"q")))
    assert isinstance(answer, list)
    assert [each.id for each in answer if isinstance(each, Delivery)] == [id_]


def lengths(node: Node, *queues: bytes) -> list[int]:
    return [len(node.state.queues.get(name, ())) for name in queues or (b"q", DEAD)]


# The limit


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_the_limit_is_the_number_of_hand_outs(limit: int) -> None:
    node = Node()
    id_ = node.add(max_deliveries=limit)
    use_up(node, id_, limit - 1)
    assert lengths(node) == [1, 0]
    use_up(node, id_, 1)
    assert lengths(node) == [0, 1]


def test_a_buried_job_keeps_id_body_counters_and_ttl_and_tells_its_reason() -> None:
    node, id_ = dead_letter(limit=3)
    shown = node.shown(id_)
    wanted = {
        b"queue": DEAD, b"state": b"queued", b"nacks": 3, b"body": b"body", b"max-deliveries": 3, b"deliveries": 3,
        b"dead-letter": DEAD, b"reason": b"nack", b"ttl": DAY_MS // 1000, b"priority": 4,
    }  # fmt: skip
    assert {key: shown[key] for key in wanted} == wanted
    (delivery,) = node.get(DEAD)
    assert (delivery.id, delivery.queue, delivery.body) == (id_, DEAD, b"body")


def test_show_appends_seven_names_to_disques() -> None:
    node = Node()
    assert list(node.shown(node.add()))[15:] == [
        b"priority", b"max-deliveries", b"deliveries", b"dead-letter", b"reason", b"headers", b"own-queue",
    ]  # fmt: skip
    assert node.shown(node.add())[b"reason"] is None
    assert node.shown(node.add())[b"headers"] == []
    shown = node.shown(node.add(headers={b"a": b"1", b"b": b"2"}))
    assert shown[b"headers"] == [b"a", b"1", b"b", b"2"]


def test_u78_a_worker_that_dies_counts_and_the_reason_is_retry() -> None:
    node = Node()
    id_ = node.add(max_deliveries=2)
    for _ in range(2):
        assert hand_out(node) == id_
        node.advance(RETRY_MS)
    assert lengths(node) == [0, 1]
    assert node.shown(id_)[b"reason"] == b"retry"


def test_without_a_limit_a_job_is_never_buried() -> None:
    node = Node()
    id_ = node.add()
    use_up(node, id_, 50)
    assert lengths(node) == [1, 0]


def test_enqueue_dequeue_and_working_are_no_delivery() -> None:
    node = Node()
    id_ = node.add(max_deliveries=2)
    hand_out(node)
    for _ in range(5):
        node.do(cmd.Working(id_))
        node.do(cmd.Enqueue((id_,)))
        node.do(cmd.Dequeue((id_,)))
    node.do(cmd.Enqueue((id_,)))
    assert lengths(node) == [1, 0]
    assert node.shown(id_)[b"deliveries"] == 1


def test_enqueue_at_the_limit_buries() -> None:
    """Where a job would be queued again and the sum has reached the limit, it is buried."""
    node = Node()
    id_ = node.add(max_deliveries=1)
    hand_out(node)
    node.do(cmd.Enqueue((id_,)))
    assert lengths(node) == [0, 1]


def test_the_sum_over_nodes_counts_not_this_nodes_own_hand_outs() -> None:
    node = Node(view(up=(B,)))
    said = msg.YourJobs(
        job_id(1), spec(max_deliveries=3), CTIME, b"b", facts(A, B, dispatches={B: 2}, nacks={B: 2})
    )
    node.hear(B, said)
    use_up(node, job_id(1), 1)
    assert lengths(node) == [0, 1]


def test_b8_1_a_queued_job_whose_limit_was_reached_elsewhere_is_buried_not_handed_out() -> None:
    node = Node(view(up=(B,)))
    node.hear(B, msg.YourJobs(job_id(1), spec(max_deliveries=2), CTIME, b"b", facts(A, B)))
    node.hear(B, msg.Told(job_id(1), facts(A, B, dispatches={B: 2})))
    assert node.get() == []
    assert lengths(node) == [0, 1]


def test_a_waiting_consumer_of_the_dead_queue_gets_the_letter_at_once() -> None:
    node = Node()
    id_ = node.add(max_deliveries=1)
    node.do(cmd.GetJob((DEAD,)), client=OTHER)
    use_up(node, id_, 1)
    ((delivery,),) = node.answers(OTHER)  # type: ignore[misc]
    assert isinstance(delivery, Delivery)
    assert (delivery.id, delivery.queue) == (id_, DEAD)


def test_the_limit_is_asked_about_before_a_job_is_buried_at_the_end_of_a_lease() -> None:
    """B8.2: acks of reachable holders are in first."""
    node = Node(view(up=(B,)))
    node.hear(B, msg.YourJobs(job_id(1), spec(max_deliveries=1), CTIME, b"b", facts(A, B)))
    hand_out(node)
    node.advance(RETRY_MS + 600)
    (said, *_) = node.told(msg.WillQueue)
    assert said.id == job_id(1)
    node2 = Node(view(up=(B,)))
    node2.hear(B, msg.YourJobs(job_id(1), spec(max_deliveries=1), CTIME, b"b", facts(A, B)))
    hand_out(node2)
    while not node2.told(msg.WillQueue):
        node2.advance(50)
    node2.hear(B, msg.SetAck(job_id(1), Reason.ACKED, (A, B), (B,), DAY_MS))
    node2.advance(5_000)
    assert lengths(node2) == [0, 0]


def test_dispatches_of_a_limited_job_are_in_the_log() -> None:
    node = Node()
    id_ = node.add(max_deliveries=3)
    node.clear()
    hand_out(node)
    assert [(r.kind, r.fields[:2]) for r in node.records] == [("dispatch", (id_, 1))]


def test_dead_lettered_total_counts() -> None:
    node, _ = dead_letter()
    assert node.engine.statistics().dead_lettered_total == 1


# Never twice, no loops


def test_a_letter_is_never_buried_again_however_often_it_is_delivered() -> None:
    node, id_ = dead_letter()
    for _ in range(5):
        assert hand_out(node, DEAD) == id_
        node.do(cmd.Nack((id_,)))
    for _ in range(3):
        assert hand_out(node, DEAD) == id_
        node.advance(RETRY_MS + 5_000)
    assert lengths(node) == [0, 1]
    assert node.shown(id_)[b"deliveries"] == 9
    assert node.job(id_).burials == Burials(1, DEAD_BY_NACK, 1, node.job(id_).expires_at)


def test_a_loop_of_dead_queues_cannot_grow() -> None:
    node = Node()
    one = node.add(queue=b"x", max_deliveries=1, dead_queue=b"y")
    two = node.add(queue=b"y", max_deliveries=1, dead_queue=b"x")
    for _ in range(10):
        for delivery in [*node.get(b"x", b"y", count=9)]:
            node.do(cmd.Nack((JobId(delivery.id),)))
    assert sorted(node.state.jobs) == sorted([one, two])
    assert lengths(node, b"x", b"y") == [1, 1]
    assert node.engine.statistics().dead_lettered_total == 2


def test_an_ack_of_a_letter_is_dead_acked() -> None:
    node, id_ = dead_letter()
    assert node.do(cmd.AckJob((id_,))) == [1]
    assert node.state.tombstones[id_].reason is Reason.DEAD_ACKED


def test_a_second_ack_of_a_letter_does_not_make_it_acked() -> None:
    node = Node(view(up=(B,)))
    dead = facts(A, B, dispatches={B: 1}, burials=Burials(1, DEAD_BY_NACK, 1, DAY_MS))
    node.hear(B, msg.YourJobs(job_id(1), spec(max_deliveries=1), CTIME, b"b", dead))
    node.do(cmd.AckJob((job_id(1),)))
    assert node.do(cmd.AckJob((job_id(1),))) == [0]
    assert node.job(job_id(1)).reason is Reason.DEAD_ACKED


def test_a_letter_expires_with_its_job() -> None:
    node, id_ = dead_letter(ttl_ms=20_000)
    node.advance(20_000)
    assert id_ not in node.state.jobs
    assert lengths(node) == [0, 0]


# REVIVE


def test_revive_puts_letters_back_at_once_and_counts_them() -> None:
    node, id_ = dead_letter()
    other = node.add()
    assert node.do(cmd.Revive((id_, other))) == [1]
    assert lengths(node) == [2, 0]
    shown = node.shown(id_)
    assert (shown[b"queue"], shown[b"reason"], shown[b"deliveries"]) == (b"q", None, 1)


def test_revive_again_of_one_that_is_no_letter_any_more_is_0() -> None:
    node, id_ = dead_letter()
    assert [node.do(cmd.Revive((id_,))) for _ in range(2)] == [[1], [0]]


def test_the_limit_counts_from_the_revival() -> None:
    node, id_ = dead_letter(limit=2)
    node.do(cmd.Revive((id_,)))
    use_up(node, id_, 1)
    assert lengths(node) == [1, 0]
    use_up(node, id_, 1)
    assert lengths(node) == [0, 1]
    burials = node.job(id_).burials
    assert burials is not None
    assert (burials.count, burials.base) == (3, 4)


def test_revive_of_a_letter_that_is_being_worked_on_queues_it_in_its_own_queue() -> None:
    node, id_ = dead_letter()
    hand_out(node, DEAD)
    assert node.do(cmd.Revive((id_,))) == [1]
    assert lengths(node) == [1, 0]


def test_revive_while_the_own_queue_takes_nothing_waits_for_the_end_of_the_pause() -> None:
    node, id_ = dead_letter()
    node.do(cmd.Pause(b"q", 1))
    assert node.do(cmd.Revive((id_,))) == [1]
    assert lengths(node) == [0, 0]
    node.do(cmd.Pause(b"q", 0))
    node.advance(RETRY_MS)
    assert lengths(node) == [1, 0]


def test_the_larger_count_wins_whatever_order_it_is_heard_in() -> None:
    node, id_ = dead_letter()
    node.hear(B, msg.Told(id_, facts(A, B, burials=Burials(2, 0, 1, DAY_MS))))
    assert not node.job(id_).is_dead
    node.hear(B, msg.Told(id_, facts(A, B, burials=Burials(1, DEAD_BY_NACK, 1, DAY_MS))))
    assert not node.job(id_).is_dead


def test_a_peer_that_says_the_job_is_a_letter_takes_it_out_of_its_queue_here() -> None:
    """B8.4: it leaves the old queue at once."""
    node = Node(view(up=(B,)))
    node.hear(B, msg.YourJobs(job_id(1), spec(max_deliveries=1), CTIME, b"b", facts(A, B)))
    dead = facts(
        A, B, dispatches={B: 1}, burials=Burials(1, DEAD_BY_RETRY, 1, DAY_MS), is_queued=True
    )
    node.hear(B, msg.Queued(job_id(1), dead))
    assert lengths(node) == [0, 0]
    assert node.shown(job_id(1))[b"queue"] == DEAD


def test_b8_4_a_running_lease_stays_valid_and_its_ack_ends_the_letter() -> None:
    node = Node(view(up=(B,)))
    node.hear(B, msg.YourJobs(job_id(1), spec(max_deliveries=1), CTIME, b"b", facts(A, B)))
    hand_out(node)
    dead = facts(A, B, dispatches={B: 1}, burials=Burials(1, DEAD_BY_RETRY, 1, DAY_MS))
    node.hear(B, msg.Queued(job_id(1), attrs.evolve(dead, is_queued=True)))
    assert lengths(node) == [0, 0]
    assert node.told(msg.Leased, to=B)
    assert node.do(cmd.AckJob((job_id(1),))) == [1]


# The cluster


def everywhere(world: World, queue: bytes) -> int:
    return sum([len(node.state.queues.get(queue, ())) for node in world.nodes.values()])


def poisoned(limit: int) -> tuple[World, JobId]:
    """A job of three copies that any consumer gives back."""
    world = World.of(A, B, C)
    command = cmd.AddJob(b"q", b"x", 0, replicate=3, retry_ms=RETRY_MS, max_deliveries=limit)
    world.nodes[A].do(command, client=ClientId(77))
    world.settle()
    ((_, said),) = world.nodes[A].replies
    assert isinstance(said, Status)
    return world, JobId(said.text)


def consume(world: World, *, only: Any = (A, B, C), queue: bytes = b"q") -> int:
    """Each node's consumer takes what it can have and gives it back."""
    count = 0
    for at in only:
        for delivery in world.nodes[at].get(queue):
            count += 1
            world.nodes[at].do(cmd.Nack((JobId(delivery.id),)), client=OTHER)
        world.settle()
    return count


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_u13_one_letter_cluster_wide_after_exactly_the_limit(limit: int) -> None:
    world, id_ = poisoned(limit)
    assert sum([consume(world) for _ in range(6)]) == limit
    assert (everywhere(world, b"q"), everywhere(world, DEAD)) == (0, 1)
    assert {node.job(id_).is_dead for node in world.nodes.values()} == {True}


@pytest.mark.parametrize("limit", [1, 3])
def test_u13_a_letter_on_each_side_of_a_cut_is_one_after_the_heal(limit: int) -> None:
    world, id_ = poisoned(limit)
    world.split([A], [B, C], is_suspected=True)
    world.advance(RETRY_MS + 2_000)
    handed_out = sum([consume(world) for _ in range(8)])
    assert handed_out == 2 * limit, "each side may use its own limit (B8.6)"
    assert everywhere(world, DEAD) == 2
    world.heal()
    world.advance(3_000)
    assert (everywhere(world, b"q"), everywhere(world, DEAD)) == (0, 1)
    counts = {tuple(sorted(node.job(id_).dispatches.values())) for node in world.nodes.values()}
    assert [sum(each) for each in counts] == [2 * limit], "after the heal the sum is exact"
    world.advance(60_000)
    assert everywhere(world, DEAD) == 1
    assert {node.job(id_).burials.count for node in world.nodes.values()} == {1}  # type: ignore[union-attr]


def test_a_letter_revived_on_one_side_is_revived_on_both_after_the_heal() -> None:
    world, id_ = poisoned(1)
    consume(world)
    world.split([A], [B, C], is_suspected=True)
    world.advance(RETRY_MS + 2_000)
    assert world.nodes[B].do(cmd.Revive((id_,)), client=OTHER) == [1]
    world.heal()
    world.advance(3_000)
    assert (everywhere(world, b"q"), everywhere(world, DEAD)) == (1, 0)


def test_a_crashed_workers_deliveries_count_on_every_node() -> None:
    world, id_ = poisoned(2)
    for _ in range(4):
        for node in world.nodes.values():
            node.get()
        world.advance(RETRY_MS + 2_000)
    assert (everywhere(world, b"q"), everywhere(world, DEAD)) == (0, 1)
    assert world.nodes[C].job(id_).delivery_count == 2


# Words and defaults


def test_defaults_come_from_the_limits() -> None:
    limits = Limits(default_max_deliveries=2, default_dead_queue=b"graves")
    node = Node(limits=limits)
    shown = node.shown(node.add())
    assert (shown[b"max-deliveries"], shown[b"dead-letter"]) == (2, b"graves")


def test_a_given_0_is_no_limit_whatever_the_default() -> None:
    node = Node(limits=Limits(default_max_deliveries=2))
    assert node.shown(node.add(max_deliveries=0))[b"max-deliveries"] == 0


def test_with_the_default_dead_queue_itself_as_target_there_is_no_limit() -> None:
    node = Node(limits=Limits(default_max_deliveries=2))
    assert node.shown(node.add(queue=DEAD))[b"max-deliveries"] == 0


def test_retry_0_has_no_limit_by_default_and_refuses_one_that_was_given() -> None:
    node = Node(limits=Limits(default_max_deliveries=2))
    once = attrs.evolve(add_command(), retry_ms=0)
    assert node.shown(node.add(retry_ms=0))[b"max-deliveries"] == 0
    refusal = Failure("ERR", "MAXDELIVERIES needs a RETRY above 0")
    assert node.do(attrs.evolve(once, max_deliveries=2)) == [refusal]


def test_a_given_dead_queue_must_be_another_queue() -> None:
    refusal = Failure("ERR", "DEADLETTER must name another queue")
    assert Node().do(attrs.evolve(add_command(), dead_queue=b"q")) == [refusal]


def test_the_retry_0_check_comes_before_those_of_the_limit() -> None:
    both = attrs.evolve(
        add_command(), retry_ms=0, replicate=2, max_deliveries=1, dead_queue=b"q", delay_ms=DAY_MS
    )
    texts = []
    for change in ({}, {"replicate": 1}, {"max_deliveries": None}, {"dead_queue": None}):
        both = attrs.evolve(both, **change)
        (refusal,) = Node().do(both)
        assert isinstance(refusal, Failure)
        texts.append(refusal.text)
    assert texts == [
        "With RETRY set to 0 please explicitly set  REPLICATE to 1 (at-most-once delivery)",
        "MAXDELIVERIES needs a RETRY above 0",
        "DEADLETTER must name another queue",
        "The specified DELAY is greater than TTL. Job refused since would never be delivered",
    ]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("PRIORITY 10", "PRIORITY must be between 0 and 9"), ("PRIORITY -1", "PRIORITY must be between 0 and 9"),
        ("PRIORITY x", "PRIORITY must be between 0 and 9"), ("PRIORITY", "syntax error"),
        ("MAXDELIVERIES 65536", "MAXDELIVERIES must be between 0 and 65535"),
        ("MAXDELIVERIES -1", "MAXDELIVERIES must be between 0 and 65535"), ("DEADLETTER", "syntax error"),
        ("DEADLETTER d PRIORITY 99 TTL 0", "PRIORITY must be between 0 and 9"),
    ],
)  # fmt: skip
def test_addjob_refuses(words: str, text: str) -> None:
    with pytest.raises(CommandError) as refused:
        parse(b"addjob", [b"q", b"b", b"0", *words.encode().split()])
    assert str(refused.value) == text


def test_addjob_takes_the_options_in_any_case_and_order_the_last_one_wins() -> None:
    words = b"deadletter x MaxDeliveries 3 PRIORITY 1 priority 9 DEADLETTER y maxdeliveries 65535"
    command = parse(b"addjob", [b"q", b"b", b"0", *words.split()])
    assert command == cmd.AddJob(b"q", b"b", 0, priority=9, max_deliveries=65_535, dead_queue=b"y")


# Priority


def test_higher_first_then_age() -> None:
    node = Node()
    for body, priority in ((b"a", 0), (b"b", 4), (b"c", 9), (b"d", 4), (b"e", 9)):
        node.add(body, priority=priority)
    assert [each.body for each in node.get(count=9)] == [b"c", b"e", b"b", b"d", b"a"]


def test_priority_is_4_unless_given_and_show_tells_it() -> None:
    node = Node()
    assert node.shown(node.add())[b"priority"] == 4
    assert node.shown(node.add(priority=0))[b"priority"] == 0


def test_a_nacked_job_keeps_its_place_by_priority_and_age() -> None:
    node = Node()
    first = node.add(b"first", priority=5)
    node.add(b"second", priority=5)
    hand_out(node)
    node.do(cmd.Nack((first,)))
    assert [each.body for each in node.get(count=9)] == [b"first", b"second"]


def test_needjobs_gives_high_ones_first() -> None:
    node = Node(view(up=(B,)))
    for n in range(8):
        node.add(b"%d" % n, priority=n)
    node.hear(B, msg.NeedJobs(b"q", 3, True))
    assert [said.body for said in node.told(msg.YourJobs)] == [b"7", b"6", b"5"]


def test_a_copy_keeps_the_priority() -> None:
    node = Node(view(up=(B,)))
    for n, priority in ((1, 1), (2, 8)):
        said = attrs.evolve(spec(), priority=priority)
        node.hear(B, msg.YourJobs(job_id(n), said, CTIME, b"%d" % priority, facts(A, B)))
    assert [each.body for each in node.get(count=2)] == [b"8", b"1"]


def test_a_dead_queue_is_in_order_of_priority_too() -> None:
    node = Node()
    ids = [node.add(b"%d" % n, priority=n, max_deliveries=1) for n in (3, 7)]
    node.get(count=2)
    node.do(cmd.Nack(tuple(ids)))
    assert [each.body for each in node.get(DEAD, count=2)] == [b"7", b"3"]
