"""The log of real nodes: killed under load, and with full disks.

kill -9 keeps what was written, whatever appendfsync says: so with each policy nothing that was answered may be lost.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.system.load import Load, check, drain
from tests.system.logged import (
    LOG,
    jobs_of,
    limit,
    start_again,
    wait_ready,
)
from tests.system.nodes import Cluster, Node, ReplyError, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.system

POLICIES = ("always", "everysec", "no")


@pytest.mark.parametrize("policy", POLICIES)
def test_kill_of_a_lone_node_under_load_loses_nothing(
    make_node: Callable[..., Node], policy: str
) -> None:
    node = make_node(*LOG, "--appendfsync", policy).start()
    with Load([node.port]) as load:
        for _ in range(3):
            count = len(load.added)
            wait_until("jobs were added", lambda count=count: len(load.added) > count + 100)  # type: ignore[misc]
            node.kill()
            acked, delivered = [*load.acked], [*load.delivered]
            start_again(node)
            assert node.info("persistence")["aof_intact"] == "1", node.log()
    drain([node], load)
    check(load, acked_before=acked, delivered_before=delivered)
    once = {body for body, _ in load.added if body.startswith(b"once")}
    # A reply may have been on its way when the node was killed: at most one a kill and consumer.
    assert len(once - {*load.delivered}) <= 3


@pytest.mark.parametrize("policy", POLICIES)
def test_kill_of_all_nodes_under_load_loses_nothing(tmp_path: Path, policy: str) -> None:
    flags = (*LOG, "--appendfsync", policy, "--cluster-node-timeout", "2000")
    with Cluster(tmp_path, 3, *flags) as cluster:
        cluster.join()
        with Load([node.port for node in cluster.nodes]) as load:
            wait_until("jobs were added", lambda: len(load.added) > 100)
            cluster.nodes[0].kill()
            wait_until("jobs were added", lambda: len(load.added) > 200)
            for node in cluster.nodes:
                node.kill()
            acked, delivered = [*load.acked], [*load.delivered]
            for node in cluster.nodes:
                node.spawn()
            for node in cluster.nodes:
                wait_until("it answers", node.answers)
                wait_ready(node)
            count = len(load.added)
            cluster.wait_mesh()
            wait_until("jobs were added", lambda: len(load.added) > count + 50)
        drain(cluster.nodes, load)
        check(load, acked_before=acked, delivered_before=delivered)


def test_retry_0_job_is_kept_over_a_kill_and_given_once(make_node: Callable[..., Node]) -> None:
    node = make_node(*LOG).start()
    node.call("ADDJOB", "q", "given", 0, "RETRY", 0)
    node.call("ADDJOB", "q", "waiting", 0, "RETRY", 0)
    assert node.call("GETJOB", "FROM", "q")[0][2] == b"given"
    node.kill()
    start_again(node)
    assert wait_until("the other comes", lambda: jobs_of(node, "q")) == [b"waiting"]


def test_always_shares_one_sync_between_clients(make_node: Callable[..., Node]) -> None:
    node = make_node(*LOG, "--appendfsync", "always").start()
    clients = [node.connect() for _ in range(50)]
    before = int(node.info("persistence")["aof_fsyncs"])
    for _ in range(10):
        for client in clients:
            client.send("ADDJOB", "q", "body", 0)
        for client in clients:
            assert isinstance(client.read(), str)
    syncs = int(node.info("persistence")["aof_fsyncs"]) - before
    for client in clients:
        client.close()
    assert 10 <= syncs <= 250, "500 jobs"


# A disk that takes nothing more


def fill(node: Node) -> int:
    """Add jobs until one is refused; returns how many were answered."""
    with node.connect() as client:
        client.sock.settimeout(1)
        for count in range(10_000):
            client.send("ADDJOB", "q", "x" * 1000, 0)
            try:
                reply = client.read()
            except TimeoutError:
                return count
            if isinstance(reply, ReplyError):
                assert str(reply).startswith("MISCONF Errors writing to the AOF file"), reply
                return count
    raise AssertionError("nothing was ever refused")


UNWRITTEN = "MISCONF Errors writing to the AOF file: File too large"


def test_full_disk_refuses_writes_answers_reads_and_heals_by_itself(logging: Node) -> None:
    limit(logging, 64 << 10)
    blocked = logging.connect()
    blocked.send("GETJOB", "FROM", "empty")
    added = fill(logging)
    assert added >= 30
    for words in (("PING",), ("ADDJOB", "q", "b", 0), ("GETJOB", "NOHANG", "FROM", "q")):
        assert logging.call_error(*words) == UNWRITTEN
    assert str(blocked.read()) == UNWRITTEN
    blocked.close()
    # One more is held: it was in memory when its record couldn't be written.
    assert logging.call("QLEN", "q") == added + 1
    assert logging.info("persistence")["aof_last_write_status"] == "err"
    assert logging.call("CONFIG", "GET", "port") == [b"port", str(logging.port).encode()]
    limit(logging, -1)
    wait_until("it writes", lambda: logging.info("persistence")["aof_last_write_status"] == "ok")
    assert logging.call("ADDJOB", "q", "b", 0)
    assert "log-unwritable" in logging.log()
    assert "log-writable-again" in logging.log()
    left = logging.call("QLEN", "q")
    logging.kill()
    start_again(logging)
    found = logging.info("persistence")
    assert (found["aof_damaged_bytes"], found["aof_torn_bytes"]) == ("0", "0")
    assert logging.info("jobs")["registered_jobs"] == str(left)


def test_what_was_held_is_answered_when_there_is_space_again(logging: Node) -> None:
    limit(logging, 0)
    with logging.connect() as held:
        held.send("ADDJOB", "q", "x" * 5000, 0)
        wait_until("trouble", lambda: logging.info("persistence")["aof_last_write_status"] == "err")
        limit(logging, -1)
        assert held.read().startswith("D-")


def test_member_whose_disk_is_full_stays_a_member(tmp_path: Path) -> None:
    with Cluster(tmp_path, 3, *LOG, "--cluster-node-timeout", "1000") as cluster:
        cluster.join()
        full, other = cluster.nodes[:2]
        limit(full, 64 << 10)
        fill(full)
        time.sleep(2.5)  # longer than the time-out after which a silent member is taken for dead
        assert "fail" not in other.call("CLUSTER", "NODES").decode()
        assert full.info("cluster")["cluster_reachable_nodes"] == "2"
        with other.connect() as client:
            assert client.call("ADDJOB", "r", "b", 5000, "REPLICATE", 2).startswith("D-")
            assert client.error("ADDJOB", "r", "b", 1000, "REPLICATE", 3).startswith("NOREPL")
        limit(full, -1)
        wait_until("it writes", lambda: full.info("persistence")["aof_last_write_status"] == "ok")
        assert other.call("ADDJOB", "r", "b", 5000, "REPLICATE", 3).startswith("D-")


def test_killed_while_the_disk_is_full_it_knows_all_that_was_answered(logging: Node) -> None:
    limit(logging, 64 << 10)
    added = fill(logging)
    logging.kill()
    start_again(logging)
    assert int(logging.info("jobs")["registered_jobs"]) == added


def test_stop_while_the_disk_is_full_fits_into_the_grace_time_of_a_container(logging: Node) -> None:
    limit(logging, 64 << 10)
    fill(logging)
    started = time.monotonic()
    assert logging.terminate() == 0
    assert time.monotonic() - started < 8


def test_full_disk_of_one_node_keeps_no_producer_of_the_others_waiting(tmp_path: Path) -> None:
    with Cluster(tmp_path, 3, *LOG) as cluster:
        cluster.join()
        one, _, full = cluster.nodes
        one.call("ADDJOB", "q", "on all three", 60_000, "REPLICATE", 3)
        limit(full, 0)
        ids = [one.call("ADDJOB", "q", "on two", 60_000) for _ in range(3)]
        assert full.info("persistence")["aof_last_write_status"] == "err"
        assert len(set(ids)) == 3
        text = one.call_error("ADDJOB", "q", "on all three", 100, "REPLICATE", 3)
        assert text.startswith("NOREPL"), text


def test_rewrite_that_nobody_needs_troubles_nobody_when_the_disk_is_full(node: Node) -> None:
    for _ in range(100):
        node.call("ADDJOB", "q", "x" * 1000, 0)
    limit(node, 20_000)
    blocked = node.connect()
    blocked.send("GETJOB", "FROM", "later")
    assert node.call("BGREWRITEAOF").startswith("Background")
    for number in range(30):
        node.call("ADDJOB", "q", "x" * 1000 + str(number), 0)
    wait_until("it gave up", lambda: "rewrite-failed" in node.log())
    wait_until("it goes on", lambda: node.info("persistence")["aof_last_write_status"] == "ok")
    assert node.call("PING") == "PONG"
    assert node.call("QLEN", "q") == 130
    node.call("ADDJOB", "later", "b", 0)
    assert blocked.read()[0][2] == b"b"
    blocked.close()
