"""The Python client against real nodes: every command, and what it makes of nodes that fail."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager
from hashlib import sha256
from typing import TYPE_CHECKING

import pytest
import trio

from disque.client import (
    AsyncClient,
    AuthenticationError,
    BadIdError,
    Client,
    Job,
    JobDoneError,
    Message,
    NotPermittedError,
    NotReplicatedError,
    OutcomeUnknownError,
    QueueFullError,
    QueuePausedError,
    ReplyError,
    Tally,
    UnreachableError,
    commands,
)
from tests.system.nodes import Cluster, Node, free_port, wait_until
from tests.system.proxy import CuttingProxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.system

UNKNOWN_ID = "D-dcb833cf-8YL1NT17e9+wsA/09NqxscQI-05a1"


def url_of(*nodes: Node) -> str:
    return ";".join([f"disque://127.0.0.1:{node.port}" for node in nodes])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes for the tests of this module, each of which uses queues of its own."""
    with Cluster(tmp_path_factory.mktemp("cluster"), 3, "--cluster-node-timeout", "2000") as made:
        yield made.join()


@pytest.fixture
def nodes(cluster: Cluster) -> list[Node]:
    """The cluster's nodes, whole again after what an earlier test did to them."""
    killed = [node for node in cluster.nodes if node.process is None]
    for node in killed:
        node.start()
    cluster.wait_mesh()
    return cluster.nodes


@pytest.fixture
def lone_client(lone: Node) -> Iterator[Client]:
    """A client of the shared node, which forgets all jobs first."""
    lone.call("DEBUG", "FLUSHALL")
    with Client(url_of(lone)) as client:
        yield client


# One node: what the commands do


def test_a_job_goes_round(lone_client: Client) -> None:
    client = lone_client
    job_id = client.add_job(
        "q", b"\0\xff\r\n", priority=9, retry=60, ttl=600, replicate=1, headers={"kind": "a"}
    )
    assert client.qlen("q") == 1
    assert client.qpeek("q") == [Job(job_id, "q", b"\0\xff\r\n")]
    job = client.get_job("q", timeout=5)
    assert job == Job(job_id, "q", b"\0\xff\r\n")
    assert client.working(job) == 60.0
    shown = client.show(job)
    assert shown is not None
    assert (shown.state, shown.priority, shown.retry, shown.deliveries) == ("active", 9, 60.0, 1)
    assert (shown.headers, shown.own_queue) == ({"kind": b"a"}, "q")
    assert client.nack_job(job) == 1
    again = client.get_job("q", timeout=5)
    assert again is not None
    assert (again.id, again.nacks, again.attempt) == (job_id, 1, 2)
    assert client.ack_job(again) == 1
    assert client.ack_job(again) == 0
    assert client.wait_jobs(job_id, timeout=5) == {job_id: "acked"}
    assert client.show(UNKNOWN_ID) is None


def test_several_queues_several_jobs_and_none(lone_client: Client) -> None:
    client = lone_client
    ids = [client.add_job(queue, queue, replicate=1) for queue in ("x", "y", "x")]
    jobs = client.get_jobs("x", "y", count=5)
    assert {job.id for job in jobs} == set(ids)
    assert [job.queue for job in jobs] == ["x", "y", "x"]
    assert client.get_jobs("x", timeout=0) == []
    assert client.get_job("x", timeout=0.01) is None


def test_queue_commands(lone_client: Client) -> None:
    client = lone_client
    assert client.qstat("q") is None
    assert client.global_qstat("q") is None
    ids = [client.add_job("q", b"x", replicate=1) for _ in range(3)]
    assert client.global_qlen("q") == Tally(3, 1, 0)
    local, everywhere = client.qstat("q"), client.global_qstat("q")
    assert local is not None
    assert everywhere is not None
    assert (local.length, local.pause, everywhere.length, everywhere.nodes_silent) == (
        3,
        "none",
        3,
        0,
    )
    assert client.pause("q", "in") == "in"
    with pytest.raises(QueuePausedError):
        client.add_job("q", b"x", replicate=1)
    assert client.pause("q", "none") == "none"
    with pytest.raises(QueueFullError):
        client.add_job("q", b"x", replicate=1, maxlen=3)
    assert client.dequeue(*ids) == 3
    assert client.enqueue(*ids[:2]) == 2
    assert "q" in client.qscan(count=1000).items
    page = client.jscan(queue="q", states=("queued",), count=1000)
    assert {info.id for info in page.items} == set(ids[:2])
    assert client.cancel_job(ids[0]) == 1
    assert client.fast_ack(ids[1]) == 1
    assert client.delete_job(UNKNOWN_ID) == 0
    (stats,) = [each for each in client.qscan_stats(count=1000).items if each.name == "q"]
    assert (stats.nodes_answered, stats.nodes_silent) == (1, 0)
    assert client.qpurge("q").nodes_answered == 1
    assert client.wait_jobs(*ids, timeout=1)[ids[2]] in ("cancelled", "unknown")


def test_delay_and_dead_letters(lone_client: Client) -> None:
    client = lone_client
    job_id = client.add_job("q", b"x", replicate=1, max_deliveries=2, dead_letter="dead")
    for _ in range(2):
        job = client.get_job("q", timeout=5)
        assert job is not None
        assert client.nack_job(job, delay=0.05) == 1
    dead = client.get_job("dead", timeout=5)
    assert dead is not None
    assert (dead.id, dead.queue) == (job_id, "dead")
    assert client.revive(dead) == 1
    assert client.qlen("q") == 1
    later = client.add_job("later", b"x", replicate=1, delay=1)
    assert client.get_job("later", timeout=0) is None
    job = client.get_job("later", timeout=5)
    assert job is not None
    assert job.id == later


def test_errors_say_what_the_node_said(lone_client: Client) -> None:
    client = lone_client
    with pytest.raises(BadIdError, match="BADID Invalid Job ID format"):
        client.ack_job("nonsense")
    with pytest.raises(NotReplicatedError):
        client.add_job("q", b"x", replicate=2)
    with pytest.raises(ReplyError, match="ERR PRIORITY must be between 0 and 9"):
        client.execute("ADDJOB", "q", "x", 0, "PRIORITY", 10)
    job_id = client.add_job("q", b"x", replicate=1)
    client.ack_job(job_id)
    with pytest.raises(JobDoneError):
        client.working(job_id)


def test_raw_commands_and_figures(lone_client: Client) -> None:
    client = lone_client
    assert client.execute("PING", "hello") == b"hello"
    with pytest.raises(ReplyError, match="unknown command"):
        client.execute("NOSUCH")
    assert client.info("jobs")["registered_jobs"] == "0"
    assert client.cluster_info()["cluster_size"] == "1"
    assert client.hello().id == client.hello().nodes[0].id
    assert client.ping() is None


def test_a_large_body_and_a_long_pipeline(lone_client: Client) -> None:
    client = lone_client
    body = os.urandom(3_000_000)
    client.add_job("large", body, replicate=1)
    job = client.get_job("large", timeout=5)
    assert job is not None
    assert job.body == body
    pipe = client.pipeline()
    for number in range(2_000):
        pipe.add_job("many", b"%d" % number, replicate=1)
    pipe.qlen("many")
    pipe.show("nonsense")
    *ids, length, error = pipe.execute()
    assert (len(set(ids)), length, type(error)) == (2_000, 2_000, BadIdError)
    assert [job.id for job in client.get_jobs("many", count=2_000)] == ids
    assert len(pipe) == 0


def test_threads_share_a_client_and_a_get_that_waits_holds_up_nobody(lone_client: Client) -> None:
    client = lone_client
    found: list[Job | None] = []
    threads = [
        threading.Thread(target=lambda: found.append(client.get_job("shared", timeout=10)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    ids = {client.add_job("shared", b"x", replicate=1) for _ in range(4)}
    for thread in threads:
        thread.join()
    assert {job.id for job in found if job is not None} == ids


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_makes_its_own_connection(lone_client: Client) -> None:
    client = lone_client
    client.ping()
    child = os.fork()
    if not child:
        # no test may go on in the child, whatever happens
        status = 1
        try:
            client.add_job("forked", b"child", replicate=1)
            status = 0
        finally:
            os._exit(status)
    for _ in range(20):
        client.ping()
    assert os.waitpid(child, 0)[1] == 0
    assert client.qlen("forked") == 1


def test_what_is_published_is_heard(lone_client: Client) -> None:
    client = lone_client
    with client.subscribe("news", patterns=("log.*",)) as subscription:
        assert client.publish("news", b"one") == 1
        assert subscription.receive(5) == Message("news", b"one")
        assert client.publish("log.a", b"two") == 1
        assert subscription.receive(5) == Message("log.a", b"two", "log.*")
        assert subscription.receive(0) is None
        subscription.subscribe("more")
        assert client.numsub("news", "more") == {"news": 1, "more": 1}
        with pytest.raises(ReplyError, match=r"Patterns are a prefix"):
            subscription.subscribe(patterns=("a?b",))
        subscription.unsubscribe("news")
        client.publish("news", b"not heard")
        client.publish("more", b"three")
        assert next(iter(subscription)) == Message("more", b"three")


def test_a_dedicated_connection_is_for_event_loops(lone_client: Client) -> None:
    client = lone_client
    line = client.dedicated()
    line.send(commands.get_jobs("loop"), commands.ping())
    with pytest.raises(TimeoutError):
        line.receive()
    job_id = client.add_job("loop", b"x", replicate=1)
    assert [job.id for job in line.receive(timeout=5)] == [job_id]
    assert line.receive(timeout=5) is None
    assert line.pending == 0
    line.send(commands.get_jobs("loop"))
    assert line.finish(timeout=5) == []
    with pytest.raises(ConnectionError):
        line.send(commands.ping())


def test_passwords(make_node: Callable[..., Node]) -> None:
    node = make_node("--requirepass", "p@ss word").start()
    place = f"127.0.0.1:{node.port}"
    with Client(f"disque://:p%40ss%20word@{place}") as client:
        assert client.ping() is None
    for url in (f"disque://{place}", f"disque://wrong@{place}"):
        with Client(url) as client, pytest.raises(AuthenticationError):
            client.ping()


def test_users_do_what_they_may(make_node: Callable[..., Node], tmp_path: Path) -> None:
    digest = sha256(b"of-worker").hexdigest()
    config = tmp_path / "disque.conf"
    config.write_text(f"requirepass of-default\nuser worker on #{digest} +@client ~jobs*\n")
    node = make_node()
    line = node.command_line()
    line.insert(3, str(config))
    node.command_line = lambda: line  # type: ignore[method-assign]
    node.start()
    place = f"127.0.0.1:{node.port}"
    with Client(f"disque://worker:of-worker@{place}") as client:
        assert client.add_job("jobs1", b"x", replicate=1)
        with pytest.raises(NotPermittedError):
            client.add_job("other", b"x", replicate=1)
    with Client(f"disque://default:of-default@{place}") as client:
        assert client.add_job("other", b"x", replicate=1)
    client = Client(f"disque://worker:of-default@{place}")
    with client, pytest.raises(AuthenticationError, match="WRONGPASS"):
        client.ping()


def test_nobody_there_is_said_within_the_time_given() -> None:
    place = f"127.0.0.1:{free_port()}"
    client = Client(f"disque://{place}", failover_timeout=0.2)
    with client, pytest.raises(UnreachableError, match=f"{place}: .*refused"):
        client.add_job("q", b"x")


# Several nodes


@contextmanager
def waiting_at(node: Node, client: Client, queue: str) -> Iterator[list[Job]]:
    """A thread that waits for a job at this node; at the end of the context it has got some."""
    found: list[Job] = []
    thread = threading.Thread(target=lambda: found.extend(client.get_jobs(queue, timeout=30)))
    thread.start()
    wait_until("it waits", lambda: node.info("clients")["blocked_clients"] == "1")
    yield found
    thread.join()


def test_a_killed_node_is_left_at_once_by_all_and_the_others_are_learnt_from_it(
    nodes: list[Node],
) -> None:
    a, b, c = nodes
    with Client(url_of(a)) as client, client.subscribe("news") as subscription:
        with waiting_at(a, client, "killed") as found:
            assert client.add_job("else", b"one", replicate=2)
            a.kill()
            job_id = client.add_job("killed", b"two", may_repeat=True)
        assert [job.id for job in found] == [job_id]
        assert len({client.add_job("else", b"more", replicate=2) for _ in range(5)}) == 5
        ids = {node.port: node.id for node in client.hello().nodes}
        assert client.hello().id in (ids[b.port], ids[c.port])
        wait_until(
            "what is published is heard again",
            lambda: subscription.receive(0.05) or (client.publish("news", b"x") and None),
        )


def test_a_leaving_node_is_left_by_those_who_wait(nodes: list[Node]) -> None:
    a, b, _ = nodes
    with Client(url_of(a)) as client:
        try:
            with waiting_at(a, client, "left") as found:
                assert a.call("CLUSTER", "LEAVING", "yes") == "OK"
                job_id = b.call("ADDJOB", "left", "x", 5_000)
            assert [job.id for job in found] == [job_id]
            assert client.add_job("else", b"y", replicate=2)
        finally:
            a.call("CLUSTER", "LEAVING", "no")


def test_a_silent_node_is_left_in_time(nodes: list[Node]) -> None:
    a, b, _ = nodes
    assert a.process is not None
    with Client(url_of(a), reply_timeout=0.5, poll=0.5) as client:
        client.ping()
        a.process.send_signal(signal.SIGSTOP)
        try:
            job_id = b.call("ADDJOB", "silent", "x", 5_000, "REPLICATE", 1, "RETRY", 1)
            assert [job.id for job in client.get_jobs("silent", timeout=20)] == [job_id]
        finally:
            a.process.send_signal(signal.SIGCONT)


def test_a_queue_that_is_paused_at_one_node_is_consumed_and_filled_at_others(
    nodes: list[Node],
) -> None:
    a = nodes[0]
    assert a.call("PAUSE", "paused", "all") == "all"
    with Client(url_of(a), poll=0.2) as client:
        client.ping()
        job_id = client.add_job("paused", b"x")
        assert [job.id for job in client.get_jobs("paused", timeout=20)] == [job_id]


def test_consumers_drift_to_the_node_that_produces_for_them(nodes: list[Node]) -> None:
    a, b, _ = nodes
    with Client(url_of(a)) as client, client.at(f"127.0.0.1:{b.port}") as producer:
        client.get_jobs("drift", timeout=0)
        pipe = producer.pipeline()
        for _ in range(60):
            pipe.add_job("drift", b"x", replicate=1)
        left = len(pipe.execute())
        while left:
            jobs = client.get_jobs("drift", timeout=10, count=10)
            client.ack_job(*jobs)
            left -= len(jobs)
        line = client.dedicated()
        line.send(commands.hello())
        assert line.receive(timeout=5).id == producer.hello().id
        line.close()


def test_nodes_that_are_not_asked_by_name_are_reached_by_at(nodes: list[Node]) -> None:
    with Client(url_of(nodes[0])) as client:
        told = client.hello().nodes
        assert {node.port for node in told} == {node.port for node in nodes}
        for node in told:
            with client.at(f"{node.host}:{node.port}") as alone:
                assert alone.hello().id == node.id


# Unknown outcomes


def test_an_add_whose_reply_is_cut_off_is_of_unknown_outcome(lone: Node) -> None:
    lone.call("DEBUG", "FLUSHALL")
    with CuttingProxy(lone.port) as proxy, Client(proxy.url, discover=False) as client:
        proxy.cut_after(b"cut me")
        with pytest.raises(OutcomeUnknownError) as caught:
            client.add_job("q", b"cut me", replicate=1)
        assert str(caught.value).startswith(f"ADDJOB to 127.0.0.1:{proxy.port}: ")
        # it was done all the same: that is what unknown means
        wait_until("it has come", lambda: lone.call("QLEN", "q") == 1)
        assert client.add_job("q", b"cut me not", replicate=1)


def test_an_add_that_may_be_repeated_is_there_though_its_reply_was_cut_off(lone: Node) -> None:
    lone.call("DEBUG", "FLUSHALL")
    with CuttingProxy(lone.port) as proxy, Client(proxy.url, discover=False) as client:
        proxy.cut_after(b"cut me")
        job_id = client.add_job("q", b"cut me", replicate=1, may_repeat=True)
        bodies = {job.id: job.body for job in client.get_jobs("q", count=2)}
        assert bodies[job_id] == b"cut me"
        assert len(bodies) == 2


# trio


async def test_async_client_does_the_same(lone: Node) -> None:
    lone.call("DEBUG", "FLUSHALL")
    async with AsyncClient(url_of(lone)) as client:
        found: list[Job] = []

        async def consume() -> None:
            found.extend(await client.get_jobs("q", timeout=10))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(consume)
            job_id = await client.add_job("q", b"x", replicate=1)
        assert found == [Job(job_id, "q", b"x")]
        assert await client.ack_job(*found) == 1
        pipe = client.pipeline()
        pipe.add_job("q", b"y", replicate=1)
        pipe.qlen("q")
        added, length = await pipe.execute()
        assert (added[:2], length) == ("D-", 1)
        job = await client.get_job("q")
        assert job is not None
        assert job.body == b"y"
        with pytest.raises(BadIdError):
            await client.show("nonsense")
        async with await client.subscribe("news") as subscription:
            assert await client.publish("news", b"one") == 1
            assert await subscription.receive(5) == Message("news", b"one")
            assert await subscription.receive(0) is None
            await subscription.subscribe(patterns=("x*",))
            await client.publish("xyz", b"two")
            async for message in subscription:
                assert message == Message("xyz", b"two", "x*")
                break
            await subscription.unsubscribe("news")


async def test_async_call_that_is_cancelled_leaves_no_reply_for_the_next(lone: Node) -> None:
    async with AsyncClient(url_of(lone)) as client:
        for _ in range(3):
            with trio.move_on_after(0.02) as scope:
                await client.get_jobs("nothing comes")
            assert scope.cancelled_caught
            assert await client.qlen("nothing comes") == 0
    wait_until("nobody waits", lambda: lone.info("clients")["blocked_clients"] == "0")


async def test_a_job_on_its_way_to_a_get_that_is_cancelled_is_not_lost(lone: Node) -> None:
    lone.call("DEBUG", "FLUSHALL")
    async with AsyncClient(url_of(lone)) as client:
        added: set[str] = set()
        found: set[str] = set()

        async def get() -> None:
            found.update([job.id for job in await client.get_jobs("q")])

        for step in range(40):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(get)
                await trio.sleep(0.001)
                added.add(await client.add_job("q", b"x", replicate=1, retry=300))
                # let more or less of the reply come
                for _ in range(step % 8):
                    await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
        while len(found) < len(added):
            jobs = await client.get_jobs("q", timeout=5, count=40)
            assert jobs, f"{len(added - found)} jobs are kept for nobody"
            found.update([job.id for job in jobs])


async def test_async_client_moves_when_its_node_is_killed(nodes: list[Node]) -> None:
    a = nodes[0]
    async with AsyncClient(url_of(a)) as client:
        await client.ping()
        a.kill()
        ids = [await client.add_job("moves", b"x", may_repeat=True) for _ in range(3)]
        assert len(set(ids)) == 3
        jobs: list[Job] = []
        while len(jobs) < 3:
            jobs += await client.get_jobs("moves", timeout=10, count=3)
        assert {job.id for job in jobs} >= set(ids)
