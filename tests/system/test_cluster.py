"""Three real nodes: joining, a job's way from node to node, crash and return."""

from __future__ import annotations

import signal
import socket
import struct
from typing import TYPE_CHECKING

import pytest

from tests.system.nodes import Cluster, Node, ReplyError, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.system


def test_job_added_here_is_got_there_acked_elsewhere_and_leaves_no_trace(three: Cluster) -> None:
    a, b, c = three.nodes
    job = a.call("ADDJOB", "q", "body", 0)
    assert job.startswith(f"D-{a.call('CLUSTER', 'MYID').decode()[:8]}-")
    assert b.call("GETJOB", "TIMEOUT", 10_000, "FROM", "q") == [[b"q", job.encode(), b"body"]]
    with c.connect() as client:
        assert client.call("ACKJOB", job) in (0, 1)
    three.wait_drained()
    for node in three.nodes:
        assert node.call("GETJOB", "NOHANG", "FROM", "q") is None


def test_blocked_getjob_on_another_node_gets_a_job_added_later(three: Cluster) -> None:
    a, b, _ = three.nodes
    with b.connect() as waiting:
        waiting.send("GETJOB", "TIMEOUT", 10_000, "FROM", "late")
        job = a.call("ADDJOB", "late", "x", 0)
        assert waiting.read() == [[b"late", job.encode(), b"x"]]
    assert a.call("ACKJOB", job) in (0, 1)
    three.wait_drained()


def test_nodes_meet_by_host_name(tmp_path: Path) -> None:
    with Cluster(tmp_path, 3) as cluster:
        cluster.join("localhost")


def test_nodes_join_by_configuration_though_the_first_starts_last(
    make_node: Callable[..., Node],
) -> None:
    first = make_node()
    others = [make_node("--cluster-join", f"localhost:{first.port}") for _ in range(2)]
    for node in others:
        node.start()
    first.start()
    for node in (first, *others):
        wait_until(
            f"node {node.port} reaches both others",
            lambda node=node: node.info("cluster")["cluster_reachable_nodes"] == "2",  # type: ignore[misc]
        )


def test_addjob_goes_on_without_a_killed_node_and_an_explicit_replicate_is_a_promise(
    three: Cluster,
) -> None:
    a, b, c = three.nodes
    c.kill()
    for node in (a, b):
        wait_until(
            "the killed node is unreachable",
            lambda node=node: node.info("cluster")["cluster_reachable_nodes"] == "1",  # type: ignore[misc]
        )
    with a.connect() as client:
        job = client.call("ADDJOB", "q", "body", 2_000)
        assert client.error("ADDJOB", "q", "no", 200, "REPLICATE", 3).startswith("NOREPL ")
        wait_until(
            "the killed node is suspected", lambda: b" fail" in client.call("CLUSTER", "NODES")
        )
        text = client.error("ADDJOB", "q", "no", 2_000, "REPLICATE", 3)
        assert text == "NOREPL Not enough reachable nodes for the requested replication level"
        assert client.call("ADDJOB", "q", "other", 2_000, "REPLICATE", 2).startswith("D-")
        assert client.call("GETJOB", "FROM", "q")[0][1] == job.encode()


def test_client_that_goes_while_addjob_waits_leaves_nothing(three: Cluster) -> None:
    a, b, c = three.nodes
    assert c.process is not None
    c.process.send_signal(signal.SIGSTOP)
    try:
        client = a.connect()
        client.send("ADDJOB", "q", "body", 0, "REPLICATE", 3)
        wait_until("it waits", lambda: a.info("clients")["blocked_clients"] == "1")
        client.close()
        wait_until("it's gone", lambda: a.info("clients")["blocked_clients"] == "0")
    finally:
        c.process.send_signal(signal.SIGCONT)
    three.wait_drained()
    for node in (a, b, c):
        assert node.call("GETJOB", "NOHANG", "FROM", "q") is None


def test_client_that_is_reset_while_addjob_waits_takes_it_back_at_once(three: Cluster) -> None:
    a, _, c = three.nodes
    assert c.process is not None
    c.process.send_signal(signal.SIGSTOP)
    try:
        client = a.connect()
        for _ in range(3):
            client.send("ADDJOB", "q", "body", 0, "REPLICATE", 3)
        wait_until("they wait", lambda: a.info("clients")["blocked_clients"] == "1")
        linger = struct.pack("ii", 1, 0)  # close() sends a reset
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        client.close()
        wait_until("it's gone", lambda: a.info("clients")["blocked_clients"] == "0", within_s=2)
    finally:
        c.process.send_signal(signal.SIGCONT)
    three.wait_drained()


def test_sigterm_of_a_node_ends_it_and_the_others_go_on(three: Cluster) -> None:
    a, b, c = three.nodes
    job = c.call("ADDJOB", "q", "body", 5_000, "REPLICATE", 3, "RETRY", 1)
    assert c.terminate() == 0
    found = wait_until(
        "a survivor delivers the job", lambda: a.call("GETJOB", "TIMEOUT", 1_000, "FROM", "q")
    )
    assert found == [[b"q", job.encode(), b"body"]]
    assert b.call("ACKJOB", job) in (0, 1)
    assert a.call("ADDJOB", "q", "other", 5_000).startswith("D-")


def test_killed_node_comes_back_with_its_identity(three: Cluster) -> None:
    a, _, c = three.nodes
    identity = c.call("CLUSTER", "MYID")
    c.kill()
    c.start()
    assert c.call("CLUSTER", "MYID") == identity
    three.wait_mesh()
    job = c.call("ADDJOB", "back", "x", 5_000, "REPLICATE", 3)
    assert a.call("GETJOB", "TIMEOUT", 10_000, "FROM", "back") == [[b"back", job.encode(), b"x"]]
    assert c.call("ACKJOB", job) in (0, 1)
    three.wait_drained()


def test_node_with_another_secret_is_never_listed(make_node: Callable[..., Node]) -> None:
    a = make_node("--cluster-secret", "right").start()
    b = make_node("--cluster-secret", "right").start()
    stranger = make_node("--cluster-secret", "wrong").start()
    with a.connect() as client:
        client.call("CLUSTER", "MEET", "127.0.0.1", stranger.port)
        client.call("CLUSTER", "MEET", "127.0.0.1", b.port)
    wait_until(
        "the handshake with the stranger failed",
        lambda: int(a.info("cluster")["cluster_handshakes_failed"]) > 0,
    )
    wait_until("a reaches b", lambda: a.info("cluster")["cluster_reachable_nodes"] == "1")
    for node in (a, b, stranger):
        assert node.info("cluster")["cluster_size"] == ("1" if node is stranger else "2")
    identity = stranger.call("CLUSTER", "MYID")
    assert identity not in a.call("CLUSTER", "NODES")


def test_forgotten_node_stays_out_though_others_gossip_about_it(three: Cluster) -> None:
    a, b, c = three.nodes
    identity = c.call("CLUSTER", "MYID")
    assert a.call("CLUSTER", "FORGET", identity, "ALL") == "OK"
    for node in (a, b):
        wait_until(
            f"node {node.port} has forgotten it",
            lambda node=node: identity not in node.call("CLUSTER", "NODES"),  # type: ignore[misc]
        )
    assert b.info("cluster")["cluster_size"] == "2"


def test_leaving_node_sends_getjob_away_and_keeps_its_flag_over_a_restart(three: Cluster) -> None:
    c = three.nodes[2]
    with c.connect() as client:
        assert client.call("CLUSTER", "LEAVING") == "no"
        assert client.call("CLUSTER", "LEAVING", "yes") == "OK"
        client.send("GETJOB", "FROM", "nothing")
        reply = client.read()
    assert isinstance(reply, ReplyError)
    assert str(reply).startswith("LEAVING This node is leaving the cluster")
    c.terminate()
    c.start()
    assert c.call("CLUSTER", "LEAVING") == "yes"


def test_reset_node_has_no_peers_and_hard_gives_it_a_new_identity(three: Cluster) -> None:
    c = three.nodes[2]
    identity = c.call("CLUSTER", "MYID")
    assert c.call("CLUSTER", "RESET") == "OK"
    assert c.call("CLUSTER", "MYID") == identity
    assert c.info("cluster")["cluster_size"] == "1"
    assert c.call("CLUSTER", "RESET", "HARD") == "OK"
    assert c.call("CLUSTER", "MYID") != identity
