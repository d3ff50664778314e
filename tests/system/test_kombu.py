"""Kombu's transport on two real nodes: what any broker promises, and what only ours does."""

from __future__ import annotations

import os
import select
import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import kombu
import pytest

from tests.system.kombu_world import (
    SOON_S,
    Reader,
    hub_of,
    passing,
    publish,
    size,
    spin,
    stats,
    url_of,
    wait_gone,
)
from tests.system.nodes import Cluster, wait_until

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two nodes that know each other."""
    with Cluster(tmp_path_factory.mktemp("pair"), 2, "--cluster-node-timeout", "2000") as cluster:
        yield cluster.join()
        for node in cluster.nodes:
            assert "Traceback" not in node.log(), node.log()


@pytest.fixture
def q(request: pytest.FixtureRequest) -> str:
    """The name of a queue for this test alone."""
    return f"q.{request.node.name}"


@pytest.fixture
def connect(pair: Cluster) -> Iterator[Callable[..., kombu.Connection]]:
    """Makes connections to both nodes, or to the one given by `at` and no other; all are closed at the end."""
    made: list[kombu.Connection] = []

    def make(at: int | None = None, **options: Any) -> kombu.Connection:
        nodes = pair.nodes if at is None else [pair.nodes[at]]
        options.setdefault("discover", at is None)
        connection = kombu.Connection(url_of(*nodes), transport_options=options)
        made.append(connection)
        return connection

    yield make
    for connection in made:
        connection.close()


def test_a_job_stays_with_the_broker_until_its_message_is_acknowledged(
    q: str, pair: Cluster, connect: Callable[..., kombu.Connection]
) -> None:
    connection = connect()
    publish(connection, q, 1)
    reader = Reader(connection, q)
    assert reader.read(1) == [1]
    assert stats(pair.nodes[0], q)["delivered"] == 1
    reader.messages[0].ack()
    wait_gone(pair.nodes[0], q)


def test_prefetch_is_respected_and_the_rest_is_others(
    q: str, connect: Callable[..., kombu.Connection]
) -> None:
    publish(connect(), q, *range(10))
    reader = Reader(connect(), q, prefetch=3)
    assert len(reader.read(3)) == 3
    reader.read_nothing()
    other = Reader(connect(), q)
    assert sorted(reader.read(3) + other.read(7)) == list(range(10))
    reader.messages[0].ack()
    publish(connect(), q, 10)
    other.consumer.cancel()
    assert reader.read(4)[3] == 10


def test_what_a_closed_connection_held_is_delivered_again_at_once(
    q: str, connect: Callable[..., kombu.Connection]
) -> None:
    first = connect()
    publish(first, q, 1, 2)
    assert len(Reader(first, q).read(2)) == 2
    first.close()
    reader = Reader(connect(), q)
    assert sorted(reader.read(2)) == [1, 2]
    assert [message.delivery_info["redelivered"] for message in reader.messages] == [True, True]


def test_a_job_on_its_way_to_a_consumer_that_stops_goes_back(
    q: str, pair: Cluster, connect: Callable[..., kombu.Connection]
) -> None:
    connection = connect()
    reader = Reader(connection, q)
    transport = connection.transport
    transport._ask(30.0)
    publish(connect(), q, 1)
    (fd,) = transport._filenos()
    assert select.select([fd], [], [], SOON_S)[0]
    reader.consumer.cancel()
    assert (reader.messages, stats(pair.nodes[0], q)["len"]) == ([], 1)


def test_a_lease_is_renewed_while_a_message_is_worked_on(
    q: str, connect: Callable[..., kombu.Connection]
) -> None:
    connection = connect(visibility_timeout=2)
    publish(connection, q, 1)
    reader = Reader(connection, q)
    reader.read(1)
    other = Reader(connect(), q)
    other.read_nothing(2.5)
    # As if the process had died.
    connection.transport.leases.close()
    assert other.read(1) == [1]
    assert other.messages[0].delivery_info["redelivered"] is True


def test_reject_and_requeue(
    q: str, pair: Cluster, connect: Callable[..., kombu.Connection]
) -> None:
    connection = connect()
    publish(connection, q, 1)
    reader = Reader(connection, q, prefetch=1)
    reader.read(1)
    reader.messages[0].requeue()
    assert reader.read(2) == [1, 1]
    assert reader.messages[1].delivery_info["redelivered"] is True
    reader.messages[1].reject()
    wait_gone(pair.nodes[0], q)


def test_high_priorities_come_first(q: str, connect: Callable[..., kombu.Connection]) -> None:
    connection = connect(at=0)
    for priority in (0, 9, 4, 5, 1):
        publish(connection, q, priority, priority=priority)
    publish(connection, q, "none")
    assert Reader(connection, q).read(6) == [9, 5, 4, 1, 0, "none"]


def test_a_message_with_a_time_stays_in_the_broker_until_then(
    q: str, pair: Cluster, connect: Callable[..., kombu.Connection]
) -> None:
    connection = connect()
    publish(connection, q, *range(50), headers={"x-delay": 3_600_000})
    eta = datetime.now(UTC) + timedelta(seconds=1.5)
    publish(connection, q, "later", headers={"eta": eta.isoformat()})
    reader = Reader(connection, q)
    assert reader.read(1) == ["later"]
    assert datetime.now(UTC) >= eta
    assert stats(pair.nodes[0], q)["delayed"] == 50


def test_messages_expire_but_tasks_are_left_to_their_worker(
    q: str, pair: Cluster, connect: Callable[..., kombu.Connection]
) -> None:
    connection = connect()
    publish(connection, q, "message", expiration=1)
    publish(connection, q, "task", expiration=1, headers={"expires": "2026-11-30T12:00:00"})
    queue = kombu.Queue("brief", message_ttl=1)
    publish(connection, "brief", "brief", declare=[queue(connection)])
    publish(connection, "transient", 1, delivery_mode="transient")
    ((_, job_id, _),) = [
        found for node in pair.nodes for found in node.call("QPEEK", "transient", 9)
    ]
    told = pair.nodes[0].call("SHOW", job_id)
    assert told[told.index(b"ttl") + 1] <= 86_400
    wait_until("only the task is left", lambda: size(connection, q) == 1)
    wait_until("the queue's limit holds", lambda: size(connection, "brief") == 0)
    assert Reader(connection, q, queue).read(1) == ["task"]


def test_counts_and_purge_are_the_cluster_s(
    q: str, pair: Cluster, connect: Callable[..., kombu.Connection]
) -> None:
    publish(connect(at=0), q, 1, 2)
    publish(connect(at=1), q, 3)
    publish(connect(at=1), q, 4, headers={"x-delay": 60_000})
    connection = connect()
    assert size(connection, q) == 3
    assert connection.default_channel.queue_purge(q) == 4
    assert size(connection, q) == 0
    wait_gone(pair.nodes[0], q)


@pytest.mark.parametrize("kind", ["fanout", "topic", "direct"])
def test_bindings_are_known_to_the_whole_cluster(
    kind: str, connect: Callable[..., kombu.Connection]
) -> None:
    exchange = kombu.Exchange(f"bound.{kind}", kind)
    routing_key = "a.*" if kind == "topic" else "a.b"
    here, there = connect(), connect()
    queues = [kombu.Queue(f"{kind}.{n}", exchange, routing_key) for n in range(2)]
    reader = Reader(here, *queues)
    with there.channel() as channel:
        # It has never heard of the exchange, only of its name.
        channel.Producer().publish("news", exchange=exchange.name, routing_key="a.b")
        assert reader.read(2) == ["news", "news"]
        queues[0](here.default_channel).unbind_from(exchange, routing_key)
        queues[1](here.default_channel).delete()
        wait_until(
            "the other node's table is empty",
            lambda: there.transport.bindings.of(exchange.name) == (),
        )
        channel.Producer().publish("more", exchange=exchange.name, routing_key="a.b")
    reader.read_nothing()


def test_a_node_that_lost_the_bindings_is_told_them_again(
    q: str, pair: Cluster, connect: Callable[..., kombu.Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = kombu.Queue(q, kombu.Exchange("kept"), "k")
    connection = connect()
    reader = Reader(connection, queue)
    table = ("QLEN", "_kombu.bindings.kept")
    assert [node.call(*table) for node in pair.nodes] == [1, 1]
    pair.nodes[0].call("DEBUG", "FLUSHALL")
    monkeypatch.setattr(connection.transport.bindings, "_renew_at", 0.0)
    reader.read_nothing()
    assert [node.call(*table) for node in pair.nodes] == [1, 1]
    alone = connect(at=0)
    with alone.channel() as channel:
        channel.Producer().publish("news", exchange="kept", routing_key="k")
    assert reader.read(1) == ["news"]


def test_fanout_reaches_every_process_on_any_node_and_leaves_nothing(
    pair: Cluster, connect: Callable[..., kombu.Connection]
) -> None:
    exchange = kombu.Exchange("shout", "fanout", durable=False)
    readers = [Reader(connect(at=n), passing(f"ear.{n}", exchange)) for n in range(2)]
    for n in range(2):
        with connect(at=n).channel() as channel:
            channel.Producer(exchange=exchange).publish(n, routing_key="x")
    assert [reader.read(2) for reader in readers] == [[0, 1], [0, 1]]
    readers[0].messages[0].ack()
    readers[1].messages[1].requeue()
    assert readers[1].read(3)[2] == 1
    assert readers[1].messages[2].delivery_info["redelivered"] is True
    for node in pair.nodes:
        assert not [name for name in node.call("QSCAN")[1] if b"ear" in name or b"shout" in name]


def test_a_reply_queue_hears_from_its_declaration_on(
    connect: Callable[..., kombu.Connection],
) -> None:
    exchange = kombu.Exchange("reply", "direct", durable=False, delivery_mode="transient")
    queue = passing("me.reply", exchange, "me")
    asking = connect(at=0)
    declared = queue(asking.default_channel)
    declared.declare()
    with connect(at=1).channel() as channel:
        producer = channel.Producer(exchange=exchange)
        producer.publish("not mine", routing_key="you")
        producer.publish("low", routing_key="me", priority=1)
        producer.publish("high", routing_key="me", priority=2)
    reader = Reader(asking, queue, no_ack=True)
    assert reader.read(2)[-1] in ("low", "high")
    declared.delete()
    with connect(at=1).channel() as channel:
        channel.Producer(exchange=exchange).publish("late", routing_key="me")
    reader.read_nothing()


def test_queues_of_one_consumer_take_turns(connect: Callable[..., kombu.Connection]) -> None:
    connection = connect(at=0)
    publish(connection, "long", *range(5))
    publish(connection, "short", "x")
    reader = Reader(connection, "long", "short", prefetch=1)
    for count in range(1, 7):
        reader.read(count)
        reader.messages[-1].ack()
    assert reader.read(6).index("x") < 2


def test_celery_s_brake_on_prefetching_is_asked_for_each_message(
    q: str, pair: Cluster, connect: Callable[..., kombu.Connection]
) -> None:
    connection = connect()
    publish(connection, q, *range(5))
    reader = Reader(connection, q, prefetch=4)
    # What Celery does for worker_disable_prefetch.
    reader.consumer.channel.qos.can_consume = lambda: len(reader.messages) < 2
    assert len(reader.read(2)) == 2
    reader.read_nothing()
    assert stats(pair.nodes[0], q)["len"] == 3


def test_no_channel_starves_another(connect: Callable[..., kombu.Connection]) -> None:
    connection = connect()
    idle, busy = Reader(connection, "idle"), Reader(connection, "busy", prefetch=1)
    publish(connect(), "busy", 1, 2)
    assert busy.read(1) == [1]
    # Full, and the other one still hears.
    publish(connect(), "idle", 3)
    assert idle.read(1) == [3]
    busy.messages[0].ack()
    assert busy.read(2) == [1, 2]


def test_a_no_ack_message_is_done_when_it_comes(
    q: str, pair: Cluster, connect: Callable[..., kombu.Connection]
) -> None:
    connection = connect()
    publish(connection, q, 1, 2)
    assert len(Reader(connection, q, no_ack=True).read(2)) == 2
    wait_gone(pair.nodes[0], q)


def test_basic_get_finds_what_lies_at_another_node(
    q: str, connect: Callable[..., kombu.Connection]
) -> None:
    publish(connect(at=0), q, 1)
    channel = connect(at=1).default_channel
    message = channel.basic_get(q)
    assert message.decode() == 1
    message.ack()
    assert channel.basic_get(q) is None


def test_a_job_of_another_program_is_a_message(
    q: str, pair: Cluster, connect: Callable[..., kombu.Connection]
) -> None:
    pair.nodes[0].call("ADDJOB", q, b"\xff plain", 5000)
    reader = Reader(connect(), q)
    assert reader.read(1) == [b"\xff plain"]


def test_after_too_many_deliveries_it_is_a_dead_letter_with_its_body(
    q: str, connect: Callable[..., kombu.Connection]
) -> None:
    connection = connect(max_deliveries=2, dead_letters="dead")
    publish(connection, q, "poison")
    reader = Reader(connection, q, prefetch=1)
    for count in (1, 2):
        assert reader.read(count)[-1] == "poison"
        reader.messages[-1].requeue()
    assert Reader(connect(), "dead").read(1) == ["poison"]
    reader.read_nothing()


def test_an_ack_after_the_connection_s_end_counts(
    q: str, pair: Cluster, connect: Callable[..., kombu.Connection]
) -> None:
    connection = connect()
    publish(connection, q, 1)
    reader = Reader(connection, q)
    reader.read(1)
    connection.close()
    reader.messages[0].ack()
    wait_gone(pair.nodes[0], q)


def test_a_forked_child_leaves_its_parent_s_messages_alone(
    q: str, connect: Callable[..., kombu.Connection]
) -> None:
    connection = connect()
    publish(connection, q, 1)
    reader = Reader(connection, q)
    reader.read(1)
    with warnings.catch_warnings():
        # Python 3.12 warns of forks in processes with threads; Celery's prefork pool does just that.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        connection.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    Reader(connect(), q).read_nothing()
    publish(connection, q, 2)
    assert reader.read(2) == [1, 2]


def test_celery_s_event_loop_drives_jobs_and_fanout_without_waiting(
    q: str, connect: Callable[..., kombu.Connection]
) -> None:
    exchange = kombu.Exchange("shout", "fanout", durable=False)
    connection, other = connect(), connect()
    with hub_of(connection) as hub:
        tasks = Reader(connection, q, prefetch=2)
        control = Reader(connection, passing("ear", exchange), no_ack=True)
        publish(other, q, *range(5))
        with other.channel() as channel:
            channel.Producer(exchange=exchange).publish("hear")
        spin(hub, lambda: len(tasks.messages) == 2 and len(control.messages) == 1)
        while len(tasks.messages) < 5:
            seen = len(tasks.messages)
            tasks.messages[seen - 1].ack()
            spin(hub, lambda seen=seen: len(tasks.messages) > seen)  # type: ignore[misc]
        assert sorted([message.payload for message in tasks.messages]) == list(range(5))
