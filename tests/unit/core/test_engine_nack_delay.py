"""NACK … DELAY (B1.8, M8): kept back under its own id and counters, by all holders."""

from __future__ import annotations

from typing import Any

import pytest

from disque.core import commands as cmd
from disque.core import messages as msg
from disque.core.job import Reason
from disque.core.jobid import JobId
from disque.core.parsing import parse
from disque.core.ready import Status
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
    facts,
    job_id,
    spec,
    view,
)

DELAY_MS = 30_000


def held(delay_ms: int = DELAY_MS, **options: Any) -> tuple[Node, JobId]:
    """A job at one node, handed out and given back with a delay."""
    node = Node(view(up=(B,)))
    id_ = node.add(**options)
    node.get()
    node.clear()
    assert node.do(cmd.Nack((id_,), delay_ms)) == [1]
    return node, id_


def queued_at(node: Node, ms: int) -> int | None:
    """ms after which the job is in the queue; None: not within `ms`."""
    start = node.now_ms
    for _ in range(ms // 10):
        node.advance(10)
        if len(node.state.queues[b"q"]):
            return node.now_ms - start
    return None


@pytest.mark.parametrize("delay_ms", [1, 500, 1_500, DELAY_MS])
def test_u12_the_same_id_comes_back_after_the_delay_with_nacks_1(delay_ms: int) -> None:
    node, id_ = held(delay_ms)
    shown = node.shown(id_)
    assert (shown[b"state"], shown[b"nacks"], shown[b"next-requeue-within"]) == (
        b"active",
        1,
        delay_ms,
    )
    node.advance(delay_ms - 1)
    assert node.get() == []
    node.advance(1)
    (delivery,) = node.do(cmd.GetJob((b"q",), with_counters=True), client=OTHER)
    assert [(each.id, each.nacks, each.additional) for each in delivery] == [(id_, 1, 0)]  # type: ignore[union-attr]


def test_delay_0_is_a_plain_nack() -> None:
    node, _ = held(0)
    assert node.do(cmd.QLen(b"q")) == [1]


def test_each_delay_is_counted_as_a_nack() -> None:
    node, id_ = held(10)
    for _ in range(20):
        node.advance(10)
        assert len(node.get()) == 1
        node.do(cmd.Nack((id_,), 10))
    assert node.shown(id_)[b"nacks"] == 21


@pytest.mark.parametrize("command", [cmd.Nack, cmd.Enqueue])
def test_a_plain_nack_or_enqueue_meanwhile_queues_at_once(command: Any) -> None:
    node, id_ = held()
    node.advance(1_000)
    assert node.do(command((id_,))) == [1]
    assert node.do(cmd.QLen(b"q")) == [1]
    assert node.shown(id_)[b"nacks"] == (2 if command is cmd.Nack else 1)


def test_another_delay_meanwhile_starts_anew() -> None:
    node, id_ = held()
    node.advance(10_000)
    assert node.do(cmd.Nack((id_,), 1_000)) == [1]
    assert queued_at(node, 5_000) == 1_000


def test_an_ack_wins() -> None:
    node, id_ = held()
    assert node.do(cmd.AckJob((id_,))) == [1]
    assert queued_at(node, DELAY_MS + RETRY_MS) is None


def test_at_the_delivery_limit_it_is_buried_at_once() -> None:
    node, id_ = held(max_deliveries=1)
    assert node.do(cmd.QLen(b"dead-letters")) == [1]
    assert node.shown(id_)[b"reason"] == b"nack"


def test_retry_0_is_0() -> None:
    node = Node()
    id_ = node.add(retry_ms=0)
    node.get()
    assert node.do(cmd.Nack((id_,), DELAY_MS)) == [0]


@pytest.mark.parametrize("state", ["queued", "delayed", "done"])
def test_only_an_active_job_that_was_handed_out_is_given_back(state: str) -> None:
    node = Node(view(up=(B,)))
    id_ = node.add(delay_ms=5_000 if state == "delayed" else 0)
    if state == "done":
        node.do(cmd.AckJob((id_,)))
        assert node.ask(cmd.Nack((id_,), DELAY_MS)) == [0]
    else:
        assert node.do(cmd.Nack((id_,), DELAY_MS)) == [0]


def test_a_delay_beyond_the_ttl_expires_first() -> None:
    node, id_ = held(DAY_MS, ttl_ms=60_000)
    node.advance(60_000)
    assert id_ not in node.state.jobs


def test_qstat_counts_it_as_delayed_not_delivered() -> None:
    node, _ = held()
    node.see(view())
    (said,) = node.do(cmd.QStat(b"q", is_global=True))
    pairs = dict(zip(said[::2], said[1::2], strict=True))  # type: ignore[index]
    assert (pairs[b"delayed"], pairs[b"delivered"], pairs[b"len"]) == (1, 0, 0)


def test_working_meanwhile_is_a_lease_again() -> None:
    node, id_ = held()
    assert node.do(cmd.Working(id_)) == [RETRY_MS // 1_000]
    assert node.engine.statistics().delayed_jobs == 0


def test_a_consumer_that_waits_gets_it_at_the_end_of_the_delay() -> None:
    node, _ = held(2_000)
    node.do(cmd.GetJob((b"q",)), client=OTHER)
    node.advance(1_999)
    assert node.answers(OTHER) == []
    node.advance(1)
    assert len(node.answers(OTHER)) == 1


# Other holders


def test_b1_8_the_other_holders_get_a_lease_of_delay_and_retry() -> None:
    node = Node(view(up=(B, C)))
    node.hear(B, msg.YourJobs(job_id(1), spec(), CTIME, b"b", facts(A, B, C)))
    node.get()
    node.clear()
    node.do(cmd.Nack((job_id(1),), DELAY_MS))
    assert node.told_to(msg.Leased) == [B, C]
    (said, _) = node.told(msg.Leased)
    stamp, remaining = said.facts.leases[A]
    assert remaining == DELAY_MS + RETRY_MS
    assert (said.facts.nacks, stamp > said.facts.covered[A]) == ({A: 1}, True)


def shared(copies: int = 3) -> tuple[World, JobId, Any]:
    """A job of three copies that its worker at A gave back with a delay."""
    world = World.of(A, B, C)
    command = cmd.AddJob(b"q", b"b", 0, replicate=copies, retry_ms=RETRY_MS)
    world.nodes[A].do(command, client=OTHER)
    world.settle()
    ((_, said),) = world.nodes[A].replies
    assert isinstance(said, Status)
    id_ = JobId(said.text)
    assert len(world.nodes[A].get()) == 1
    world.settle()
    world.advance(4_000)
    assert world.nodes[A].do(cmd.Nack((id_,), DELAY_MS)) == [1]
    world.settle()
    return world, id_, world.nodes[A].now_ms


def first_queued(world: World, start: int, ms: int, *, only: Any = (A, B, C)) -> tuple[int, Any]:
    """(ms since start, node) of the first queueing."""
    for _ in range(ms // 50):
        world.advance(50)
        for at in only:
            queue = world.nodes[at].state.queues.get(b"q")
            if queue is not None and len(queue):
                return world.nodes[at].now_ms - start, at
    raise AssertionError("nobody queued it")


def test_in_a_healthy_cluster_its_node_queues_it_at_the_delay_once() -> None:
    world, id_, start = shared()
    ms, at = first_queued(world, start, DELAY_MS + 5_000)
    assert at == A
    assert DELAY_MS <= ms <= DELAY_MS + 2 * 500 + 50, "asks first, in its rank's turn (B1.2)"
    world.advance(RETRY_MS)
    assert sum([len(n.state.queues.get(b"q", ())) for n in world.nodes.values()]) == 1
    assert {node.job(id_).nack_count for node in world.nodes.values()} == {1}


@pytest.mark.parametrize("is_suspected", [False, True])
def test_if_its_node_dies_one_of_the_others_queues_it_by_delay_and_retry(
    is_suspected: bool,
) -> None:
    world, _, start = shared()
    world.split([A], [B, C], is_suspected=is_suspected)
    ms, _ = first_queued(world, start, DELAY_MS + RETRY_MS + 5_000, only=(B, C))
    assert DELAY_MS + RETRY_MS <= ms <= DELAY_MS + RETRY_MS + 500 + 500 + 50
    assert sum([len(world.nodes[n].state.queues.get(b"q", ())) for n in (B, C)]) == 1


def test_a_holder_that_was_cut_off_during_the_nack_obeys_after_the_heal() -> None:
    world = World.of(A, B)
    world.nodes[A].do(cmd.AddJob(b"q", b"b", 0, replicate=2, retry_ms=RETRY_MS), client=OTHER)
    world.settle()
    (delivery,) = world.nodes[A].get()
    world.settle()
    world.split([A], [B])
    world.nodes[A].do(cmd.Nack((JobId(delivery.id),), DELAY_MS))
    start = world.nodes[A].now_ms
    world.advance(5_000)
    world.heal()
    ms, at = first_queued(world, start, DELAY_MS + 5_000, only=(A, B))
    assert (at, ms >= DELAY_MS) == (A, True)


def test_news_of_the_nack_covers_older_leases_not_the_new_one() -> None:
    node = Node(view(up=(B,)))
    node.hear(B, msg.YourJobs(job_id(1), spec(), CTIME, b"b", facts(A, B)))
    node.get()
    stamp, _ = node.job(job_id(1)).leases[A]
    said = facts(
        A, B, dispatches={A: 1}, nacks={B: 1}, covered={A: stamp}, leases={B: (stamp + 5, 40_000)}
    )
    node.hear(B, msg.Leased(job_id(1), said))
    assert node.job(job_id(1)).lease_end() == node.now_ms + 40_000


def test_an_end_that_is_heard_meanwhile_wins() -> None:
    node = Node(view(up=(B,)))
    node.hear(B, msg.YourJobs(job_id(1), spec(), CTIME, b"b", facts(A, B)))
    node.get()
    node.do(cmd.Nack((job_id(1),), 5_000))
    node.hear(B, msg.SetAck(job_id(1), Reason.ACKED, (A, B), (B,), DAY_MS))
    assert queued_at(node, 20_000) is None


def test_a_lease_is_clamped_to_retry_where_nobody_gave_the_job_back() -> None:
    """M8; only a NACK with DELAY makes longer ones."""
    node = Node(view(up=(B,)))
    node.hear(B, msg.YourJobs(job_id(1), spec(), CTIME, b"b", facts(A, B)))
    node.hear(B, msg.Leased(job_id(1), facts(A, B, dispatches={B: 1}, leases={B: (5, DAY_MS)})))
    assert node.job(job_id(1)).lease_end() == node.now_ms + RETRY_MS


# Words


@pytest.mark.parametrize(
    ("text", "delay_ms"),
    [("0", 0), ("3", 3_000), ("0.5", 500), (".25", 250), ("1.0019", 1_001), ("0.001", 1), ("0.0009", 0)],
)  # fmt: skip
def test_seconds_may_be_fractions_to_the_ms(text: str, delay_ms: int) -> None:
    assert parse(b"nack", [job_id(1), b"Delay", text.encode()]) == cmd.Nack((job_id(1),), delay_ms)


@pytest.mark.parametrize(
    "text", ["-1", "x", "1e3", "1.", "", "1.5.2", "inf", "nan", "+1", " 1", "0x1", "1,5", "\u0661"]
)
def test_a_delay_that_is_no_decimal_is_refused(text: str) -> None:
    with pytest.raises(CommandError, match=r"^DELAY time must be a non negative number$"):
        parse(b"nack", [job_id(1), b"DELAY", text.encode()])


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([job_id(1), b"DELAY"], "syntax error"), ([b"DELAY", b"1", job_id(1)], "syntax error"),
        ([b"notanid", b"DELAY", b"1"], "Invalid Job ID format."),
        ([b"notanid", b"DELAY", b"x"], "DELAY time must be a non negative number"),
    ],
)  # fmt: skip
def test_options_are_checked_before_ids(words: list[bytes], text: str) -> None:
    with pytest.raises(CommandError) as refused:
        parse(b"nack", words)
    assert str(refused.value) == text


def test_the_last_delay_wins_and_zero_ids_are_no_error() -> None:
    assert parse(b"nack", [b"DELAY", b"1", b"delay", b"2"]) == cmd.Nack((), 2_000)
    assert Node().do(cmd.Nack((), 2_000)) == [0]
