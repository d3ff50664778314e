"""Dramatiq over a real node: actors run, and no message is lost, kept twice or run before its time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import dramatiq
import pytest
from dramatiq import Message, Worker
from dramatiq.errors import ConnectionClosed, QueueJoinTimeout, QueueNotFound

from disque.integrations.dramatiq import DisqueBroker
from tests.system.nodes import WAIT_S, Node, free_port, wait_until

pytestmark = pytest.mark.system

SOON_MS = int(1_000 * WAIT_S)


@pytest.fixture
def make_broker(lone: Node) -> Iterator[Callable[..., DisqueBroker]]:
    """Makes brokers on the shared node, which has forgotten all jobs."""
    lone.call("DEBUG", "FLUSHALL")
    made: list[DisqueBroker] = []

    def make(**options: Any) -> DisqueBroker:
        broker = DisqueBroker(f"disque://127.0.0.1:{lone.port}", **options)
        broker.declare_queue("default")
        made.append(broker)
        return broker

    yield make
    for broker in made:
        broker.close()


@contextmanager
def working(broker: DisqueBroker) -> Iterator[Worker]:
    """A worker of two threads."""
    worker = Worker(broker, worker_timeout=50, worker_threads=2)
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()


def message(number: int) -> Message[Any]:
    return Message("default", "act", (number,), {}, {})


def receive(consumer: Any) -> Any:
    """The next message; AssertionError if none comes soon."""
    return wait_until("a message", lambda: next(consumer))


def registered(node: Node) -> int:
    """Jobs on the node, in whatever state."""
    return int(node.info("jobs")["registered_jobs"])


def test_actors_run_once_and_nothing_stays(
    lone: Node, make_broker: Callable[..., DisqueBroker]
) -> None:
    broker, ran = make_broker(), []

    @dramatiq.actor(broker=broker)
    def act(number: int) -> None:
        ran.append(number)

    with working(broker) as worker:
        for number in range(50):
            act.send(number)
        broker.join("default", timeout=SOON_MS)
        worker.join()
    assert sorted(ran) == list(range(50))
    assert registered(lone) == 0


def test_delayed_messages_wait_in_the_broker_and_run_on_time(
    lone: Node, make_broker: Callable[..., DisqueBroker]
) -> None:
    broker, late = make_broker(), threading.Event()
    ran_at: list[float] = []

    @dramatiq.actor(broker=broker)
    def act() -> None:
        ran_at.append(time.time())
        late.set()

    with working(broker):
        act.send_with_options(delay=3_600_000)
        assert lone.info("jobs")["delayed_jobs"] == "1"
        due_at = time.time() + 1.2
        act.send_with_options(delay=1_200)
        assert late.wait(WAIT_S)
    assert ran_at[0] >= due_at
    assert len(ran_at) == 1
    assert lone.info("jobs")["delayed_jobs"] == "1"


def test_a_failing_message_is_retried_then_kept_among_the_dead(
    lone: Node, make_broker: Callable[..., DisqueBroker]
) -> None:
    broker, runs = make_broker(), []

    @dramatiq.actor(broker=broker, max_retries=1, min_backoff=100, max_backoff=100)
    def act() -> None:
        runs.append(1)
        raise ValueError("no")

    with working(broker):
        sent = act.send()
        broker.join("default", timeout=SOON_MS)
    assert len(runs) == 2
    ((_, _, body),) = lone.call("QPEEK", "dramatiq:default.XQ", 5)
    dead = Message.decode(body)
    assert (dead.message_id, dead.options["retries"]) == (sent.message_id, 1)


def test_a_lease_lasts_as_long_as_its_process(make_broker: Callable[..., DisqueBroker]) -> None:
    dying, living = make_broker(retry=1), make_broker()
    dying.enqueue(message(1))
    consumer, other = dying.consume("default", timeout=50), living.consume("default", timeout=50)
    held = receive(consumer)
    dying.leases.close()
    again = receive(other)
    assert again.message_id == held.message_id
    assert again.job.is_redelivered
    other.ack(again)


def test_prefetch_is_respected_and_what_is_not_begun_goes_back(
    lone: Node, make_broker: Callable[..., DisqueBroker]
) -> None:
    broker = make_broker()
    for number in range(5):
        broker.enqueue(message(number))
    consumer = broker.consume("default", prefetch=3, timeout=50)
    held = [receive(consumer) for _ in range(3)]
    assert next(consumer) is None
    assert lone.call("QLEN", "dramatiq:default") == 2
    consumer.ack(held.pop())
    assert receive(consumer).args == (3,)
    consumer.requeue(held)
    wait_until("they are back", lambda: lone.call("QLEN", "dramatiq:default") == 3)

    # Fetched, and never seen.
    greedy = broker.consume("default", prefetch=9, timeout=50)
    receive(greedy)
    assert lone.call("QLEN", "dramatiq:default") == 0
    greedy.close()
    assert lone.call("QLEN", "dramatiq:default") == 2


def test_what_waited_for_its_time_goes_back_with_its_consumer(
    lone: Node, make_broker: Callable[..., DisqueBroker]
) -> None:
    broker = make_broker()
    broker.enqueue(message(1), delay=900)
    consumer = broker.consume("default.DQ", timeout=50)
    receive(consumer)
    # What Dramatiq does after an error: its delay queue is forgotten.
    consumer.close()
    assert lone.call("QLEN", "dramatiq:default.DQ") == 1
    assert len(broker.leases) == 0


def test_a_job_that_is_no_message_is_buried(
    lone: Node, make_broker: Callable[..., DisqueBroker]
) -> None:
    broker = make_broker()
    lone.call("ADDJOB", "dramatiq:default", "not json", 5000)
    consumer = broker.consume("default", timeout=50)
    wait_until(
        "it lies among the dead",
        lambda: next(consumer) is None and lone.call("QLEN", "dramatiq:default.XQ"),
    )
    ((_, _, body),) = lone.call("QPEEK", "dramatiq:default.XQ", 5)
    assert body == b"not json"
    assert lone.info("jobs")["delivered_jobs"] == "0"


def test_flush_and_join(lone: Node, make_broker: Callable[..., DisqueBroker]) -> None:
    broker = make_broker()
    broker.enqueue(message(1))
    broker.enqueue(message(2), delay=60_000)
    with pytest.raises(QueueJoinTimeout):
        broker.join("default", timeout=50)
    broker.flush_all()
    broker.join("default", timeout=SOON_MS)
    assert registered(lone) == 0


def test_unknown_queues_and_absent_nodes_are_dramatiq_s_errors(
    make_broker: Callable[..., DisqueBroker],
) -> None:
    broker = make_broker()
    stray = Message("elsewhere", "act", (), {}, {})
    for call in (broker.consume, broker.flush, broker.join):
        with pytest.raises(QueueNotFound):
            call("elsewhere")
    with pytest.raises(QueueNotFound):
        broker.enqueue(stray)
    alone = DisqueBroker(f"disque://127.0.0.1:{free_port()}", failover_timeout=0.1)
    alone.declare_queue("default")
    for act in (
        lambda: alone.enqueue(message(1)),
        lambda: next(alone.consume("default")),
        lambda: alone.flush("default"),
    ):
        with pytest.raises(ConnectionClosed, match="no node can be reached"):
            act()
    alone.close()
