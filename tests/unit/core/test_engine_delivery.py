"""GETJOB: who gets what, in which order, and what a hand-out leaves behind (reference 1.2, 5.9; B1.1)."""

from __future__ import annotations

from collections import Counter

import pytest

from disque.core import commands as cmd
from disque.core import delivery, parsing
from disque.core import messages as msg
from disque.core.delivery import next_job, queue_of, serve
from disque.core.job import Job, JobState
from disque.core.jobid import JobId
from disque.core.jobqueue import PAUSE_OUT, JobQueue
from disque.core.limits import Limits
from disque.core.ready import ClientId, Delivery, Failure, NilArray, Reply, Status
from disque.core.state import State
from tests.unit.core.builders import (
    CTIME,
    DAY_MS,
    ME,
    NOW,
    OTHER,
    RETRY_MS,
    A,
    B,
    C,
    Node,
    copy,
    facts,
    job_id,
    spec,
    view,
)

LEAVING = Failure("LEAVING", "This node is leaving the cluster, please connect to a different one")


def bodies(deliveries: list[Delivery]) -> list[bytes]:
    return [each.body for each in deliveries]


def given(answers: list[Reply]) -> list[bytes]:
    """Bodies of the one array that a client was answered."""
    (answer,) = answers
    assert isinstance(answer, list)
    return bodies([each for each in answer if isinstance(each, Delivery)])


def node_with_jobs(**queues: int) -> Node:
    """Jobs x0, x1 ... in queue x."""
    node = Node()
    for name, count in queues.items():
        for n in range(count):
            node.add(f"{name}{n}".encode(), queue=name.encode())
    node.clear()
    return node


def test_reply_that_is_taken_at_once_is_its_own_though_the_command_served_others() -> None:
    node = Node()
    engine, state = node.engine, node.state
    for waiting in (1, 2):
        assert not engine.command(ClientId(waiting), cmd.GetJob((b"q",)))
    assert engine.command(ClientId(3), cmd.QLen(b"q"))
    assert engine.command(ClientId(4), cmd.AddJob(b"q", b"x", 0, replicate=1))
    assert [client for client, _ in state.ready.replies] == [3, 4, 1]
    assert engine.take_reply(ClientId(4)) == Status(next(iter(state.jobs)))
    assert [client for client, _ in engine.take_ready().replies] == [3, 1]


def test_getjob_goes_round_the_queues_one_job_each() -> None:
    node = node_with_jobs(x=3, y=3)
    assert bodies(node.get(b"x", b"y", count=5)) == [b"x0", b"y0", b"x1", b"y1", b"x2"]
    assert bodies(node.get(b"x", b"y", count=5)) == [b"y2"]


def test_count_takes_what_is_there_and_doesnt_wait_for_more() -> None:
    node = node_with_jobs(x=2)
    assert given(node.do(cmd.GetJob((b"x",), count=100))) == [b"x0", b"x1"]


@pytest.mark.patches
def test_a_queue_that_had_no_job_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    node = node_with_jobs(x=100)
    asked: Counter[bytes] = Counter()

    def ask(state: State, queue: JobQueue) -> Job | None:
        asked[queue.name] += 1
        return next_job(state, queue)

    monkeypatch.setattr(delivery, "next_job", ask)
    assert len(node.get(b"x", b"none", count=100)) == 100
    assert asked == {b"x": 100, b"none": 1}


def test_an_answer_ends_once_it_is_full_and_the_next_goes_on() -> None:
    node = Node(limits=Limits(answer_bytes_max=100))
    for n in range(5):
        node.add(b"%d" % n * 60)
    assert [each[:1] for each in bodies(node.get(count=5))] == [b"0", b"1"]
    assert [each[:1] for each in bodies(node.get(count=5))] == [b"2", b"3"]
    assert [each[:1] for each in bodies(node.get(count=5))] == [b"4"]


def test_nohang_on_empty_queues_is_a_nil_array() -> None:
    assert Node().do(cmd.GetJob((b"x", b"y"), is_nohang=True)) == [NilArray()]


def test_counters_are_given_only_if_asked_for() -> None:
    """U24."""
    node = node_with_jobs(x=1)
    (plain,) = node.get(b"x")
    assert (plain.nacks, plain.additional) == (None, None)
    node.do(cmd.Nack((JobId(plain.id),)))
    (answer,) = node.do(cmd.GetJob((b"x",), with_counters=True))
    assert isinstance(answer, list)
    (counted,) = answer
    assert isinstance(counted, Delivery)
    assert (counted.nacks, counted.additional) == (1, 0)


def test_a_job_delivered_again_without_a_nack_is_an_additional_delivery() -> None:
    node = node_with_jobs(x=1)
    node.get(b"x")
    node.advance(RETRY_MS)
    (answer,) = node.do(cmd.GetJob((b"x",), with_counters=True))
    assert isinstance(answer, list)
    assert [(each.nacks, each.additional) for each in answer if isinstance(each, Delivery)] == [
        (0, 1)
    ]


# Waiting


def test_a_waiting_client_gets_exactly_one_job_whatever_count_it_gave() -> None:
    node = Node()
    assert node.do(cmd.GetJob((b"x",), count=10)) == []
    node.add(b"1", queue=b"x")
    node.add(b"2", queue=b"x")
    assert given(node.answers()) == [b"1"]


def test_waiting_clients_are_served_first_come_first_served() -> None:
    node = Node()
    for client in (5, 3, 4):
        node.do(cmd.GetJob((b"x",)), client=ClientId(client))
    for body in (b"1", b"2", b"3"):
        node.add(body, queue=b"x")
    assert [given(node.answers(ClientId(client))) for client in (5, 3, 4)] == [
        [b"1"],
        [b"2"],
        [b"3"],
    ]


def test_a_client_that_waits_for_several_queues_is_served_once() -> None:
    """U07."""
    node = Node()
    node.do(cmd.GetJob((b"x", b"y")))
    node.add(b"1", queue=b"y")
    node.add(b"2", queue=b"x")
    assert given(node.answers()) == [b"1"]
    assert [len(queue.blocked) for queue in node.state.queues.values()] == [0, 0]
    assert bodies(node.get(b"x")) == [b"2"]


def test_queue_names_given_twice_are_one() -> None:
    """U07: parse makes them distinct; a single waiter stays, and goes with its client."""
    node = Node()
    command = parsing.parse(b"getjob", [b"FROM", b"q", b"q", b"q"])
    node.do(command)
    assert len(node.state.queues[b"q"].blocked) == 1
    node.disconnect(ME)
    assert (len(node.state.queues[b"q"].blocked), node.state.getting) == (0, {})
    id_ = node.add()
    assert node.answers() == []
    assert [each.id for each in node.get()] == [id_]


def test_timeout_is_a_nil_array_on_the_millisecond() -> None:
    node = Node()
    node.do(cmd.GetJob((b"x",), timeout_ms=200))
    node.advance(199)
    assert node.answers() == []
    node.advance(1)
    assert node.answers() == [NilArray()]
    assert node.state.getting == {}


def test_a_suspended_machine_answers_every_late_timeout() -> None:
    node = Node()
    for client in range(10):
        node.do(cmd.GetJob((b"x",), timeout_ms=200 + client), client=ClientId(client))
    node.leap(DAY_MS)
    assert [node.answers(ClientId(client)) for client in range(10)] == [[NilArray()]] * 10


def test_leaving_ends_waits_and_refuses_new_ones_but_serves_what_is_queued() -> None:
    """U46."""
    node = Node(view(up=(B,)))
    node.do(cmd.GetJob((b"x",)))
    node.add(b"1", queue=b"y")
    node.see(view(up=(B,), leaving=(A,)))
    assert node.answers() == [LEAVING]
    assert node.do(cmd.GetJob((b"x",)), client=OTHER) == [LEAVING]
    assert bodies(node.get(b"y")) == [b"1"]
    assert node.do(cmd.GetJob((b"x",), is_nohang=True), client=OTHER) == [NilArray()]


def test_output_pause_keeps_jobs_and_waiters_apart_until_it_ends() -> None:
    """U18."""
    node = Node()
    queue = queue_of(node.state, b"x")
    queue.pause = PAUSE_OUT
    node.add(b"1", queue=b"x")
    assert node.get(b"x") == []
    node.do(cmd.GetJob((b"x",)))
    node.add(b"2", queue=b"x")
    assert node.answers() == []
    queue.pause = 0
    serve(node.state, queue)
    node.advance(0)
    assert given(node.answers()) == [b"1"]


def test_a_pause_for_the_whole_cluster_ends_by_a_later_stamp_only() -> None:
    """M18."""
    node = Node(view(up=(B, C)))
    node.hear(B, msg.Pause(b"x", 10, B, PAUSE_OUT))
    node.add(b"1", queue=b"x")
    assert node.get(b"x") == []
    node.hear(C, msg.Pause(b"x", 9, C, 0))
    assert node.get(b"x") == []
    node.hear(C, msg.Pause(b"x", 11, C, 0))
    assert bodies(node.get(b"x")) == [b"1"]


# What a hand-out does


def test_priority_then_age() -> None:
    node = Node()
    for priority, body in ((4, b"b"), (9, b"a"), (0, b"d"), (4, b"c")):
        node.add(body, priority=priority)
    assert bodies(node.get(count=4)) == [b"a", b"b", b"c", b"d"]


def test_w12_retry_counts_from_the_hand_out_not_from_queueing() -> None:
    """W-12, U09."""
    node = Node()
    id_ = node.add()
    node.advance(RETRY_MS - 1_000)
    node.get()
    node.advance(RETRY_MS - 1)
    assert node.get() == []
    node.advance(1)
    assert [each.id for each in node.get()] == [id_]


def test_the_first_holders_hear_of_a_lease_only_if_their_last_word_is_old_or_deliveries_are_limited() -> (
    None
):
    """B1.1."""
    node = Node(view(up=(B,)))
    for wait_ms, limit, is_told in ((0, 0, False), (RETRY_MS // 10, 0, True), (0, 3, True)):
        node.add(replicate=2, is_async=True, retry_ms=RETRY_MS, max_deliveries=limit)
        node.advance(wait_ms)
        node.clear()
        node.get()
        assert bool(node.told(msg.Leased, to=B)) == is_told


def test_who_takes_a_job_for_queued_here_hears_of_its_hand_out() -> None:
    """B1.1, B1.5: else it would be offered again as soon as this node fails, not at the end of its lease (U09)."""
    node = Node(view(up=(B,)))
    given, again = job_id(1), job_id(2)
    node.hear(B, msg.YourJobs(given, spec(), CTIME, b"", facts(A, B)))
    node.hear(B, copy(again, A, B))
    node.do(cmd.Enqueue((again,)))
    node.get(count=2)
    node.clear()
    node.do(cmd.Nack((again,)))
    assert node.told(msg.Queued, to=B)
    node.get()
    assert [each.id for each in node.told(msg.Leased, to=B)] == [again]


def test_a_limited_job_has_its_hand_out_in_the_log_before_the_reply() -> None:
    """M7."""
    node = Node()
    id_ = node.add(max_deliveries=3)
    node.clear()
    node.get()
    assert [(each.kind, each.fields) for each in node.records] == [("dispatch", (id_, 1))]


def test_a_retry_0_hand_out_is_urgent_in_the_log_and_frees_the_body() -> None:
    """B6.8, U08."""
    node = Node()
    id_ = node.add(b"x" * 100, retry_ms=0)
    node.clear()
    (delivery,) = node.get()
    assert delivery.body == b"x" * 100
    assert [(each.kind, each.fields, each.is_urgent) for each in node.records] == [
        ("dispatch", (id_, 1), True)
    ]
    assert node.state.body_bytes == 0


def test_a_retry_0_job_is_never_handed_out_twice_by_any_command_or_time() -> None:
    node = Node()
    id_ = node.add(retry_ms=0)
    node.get()
    for command in (cmd.Nack((id_,)), cmd.Enqueue((id_,)), cmd.Dequeue((id_,)), cmd.Working(id_)):
        node.do(command)
        node.advance(60_000)
        assert node.get() == []
    node.advance(DAY_MS)
    assert node.get() == []
    assert id_ not in node.state.jobs


def test_spent_jobs_are_bounded_and_the_oldest_go() -> None:
    node = Node(limits=Limits(spent_max=3))
    ids = [node.add(retry_ms=0) for _ in range(5)]
    node.get(count=5)
    assert list(node.state.spent) == ids[2:]
    assert list(node.state.jobs) == ids[2:]


def test_delayed_jobs_wait_and_then_go_out_on_the_millisecond() -> None:
    """S10, U63."""
    node = Node()
    id_ = node.add(delay_ms=5_000)
    node.advance(4_999)
    assert node.get() == []
    node.advance(1)
    assert [each.id for each in node.get()] == [id_]


def test_nothing_is_handed_out_after_its_expiry() -> None:
    node = Node()
    node.add(ttl_ms=5_000)
    node.advance(5_000)
    assert (node.get(), node.state.jobs) == ([], {})


def test_a_clock_that_goes_back_changes_nothing() -> None:
    """U66: time never goes back inside."""
    node = Node()
    node.add(delay_ms=5_000)
    node.engine.advance(NOW - DAY_MS)
    assert node.state.now_ms == NOW
    assert node.get() == []


@pytest.mark.parametrize("count", [1, 3])
def test_disconnect_of_a_waiting_client_wastes_no_job(count: int) -> None:
    node = Node()
    node.do(cmd.GetJob((b"q",), count=count))
    node.disconnect(ME)
    id_ = node.add()
    assert [each.id for each in node.get()] == [id_]


def test_disconnect_of_an_unknown_client_is_nothing() -> None:
    node = Node()
    node.disconnect(ClientId(77))
    assert (node.said, node.records, node.replies) == ([], [], [])


def test_w31_an_idle_node_sleeps() -> None:
    """W-31, D: no wake-up a millisecond because a job exists."""
    node = Node()
    node.add(delay_ms=3_600_000, ttl_ms=DAY_MS)
    turns = 0
    while node.now_ms < NOW + 600_000:
        at = node.engine.next_wakeup_ms()
        assert at is not None
        node.now_ms = at
        node.engine.advance(at)
        turns += 1
    assert turns <= 2 * 600, "the sweep of idle queues, once a second, and a bucket now and then"


def test_idle_queues_are_freed_watched_ones_are_not() -> None:
    """U21, W-17."""
    node = Node()
    node.get(b"empty")
    node.do(cmd.GetJob((b"watched",)))
    node.add(queue=b"full", retry_ms=DAY_MS, ttl_ms=DAY_MS)
    node.advance(301_000)
    assert sorted(node.state.queues) == [b"full", b"watched"]


def test_a_lease_elsewhere_takes_a_queued_copy_out_of_its_queue() -> None:
    """M10, S9."""
    node = Node(view(up=(B,)))
    node.hear(B, msg.YourJobs(job_id(1), spec(), CTIME, b"", facts(A, B)))
    node.hear(B, msg.Leased(job_id(1), facts(A, B, dispatches={B: 1}, leases={B: (NOW, 5_000)})))
    assert node.get() == []
    assert node.job(job_id(1)).state is JobState.ACTIVE


def test_a_lease_is_clamped_to_retry() -> None:
    """M8, S11."""
    node = Node(view(up=(B,)))
    node.hear(B, copy(job_id(1), A, B))
    node.hear(B, msg.Leased(job_id(1), facts(A, B, leases={B: (NOW, DAY_MS)})))
    assert node.job(job_id(1)).lease_end() == NOW + RETRY_MS


@pytest.mark.parametrize("known", ["covered", "lease"])
def test_f4_a_new_lease_beats_every_stamp_known_of_this_node(known: str) -> None:
    """M8: a restart with the wall clock behind; D: stamp from wall time and seen."""
    node = Node(view(up=(B,)))
    told = (
        facts(A, B, covered={A: NOW + 100_000})
        if known == "covered"
        else facts(A, B, leases={A: (NOW + 100_000, 500)})
    )
    node.hear(B, msg.YourJobs(job_id(1), spec(), CTIME, b"", told))
    node.advance(RETRY_MS)
    node.hear(B, msg.YourJobs(job_id(1), spec(), CTIME, b"", told))
    node.advance(RETRY_MS)
    assert len(node.get()) == 1
    job = node.job(job_id(1))
    assert job.leases[A][0] > NOW + 100_000
    assert job.lease_end() == node.now_ms + RETRY_MS


@pytest.mark.parametrize("counter", ["dispatches", "nacks"])
def test_f5_a_counter_at_the_codecs_bound_can_be_counted_on(counter: str) -> None:
    node = Node(view(up=(B,)))
    told = facts(A, B, **{counter: {A: 2**61}})  # type: ignore[arg-type]
    node.hear(B, msg.YourJobs(job_id(1), spec(), CTIME, b"", told))
    node.advance(RETRY_MS // 10)
    assert len(node.get()) == 1
    node.do(cmd.Nack((job_id(1),)))
