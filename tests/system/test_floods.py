"""Floods at a scale for each run: the node answers others, keeps its peers, and all it took is given back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.certificates import Authority
from tests.system import floods
from tests.system.nodes import Cluster, Node, free_port, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Node, Node]]:
    """Two nodes; the first one with all its ports."""
    folder = tmp_path_factory.mktemp("floods")
    authority = Authority(folder)
    own = authority.issue("node")
    words = ["--cluster-node-timeout", "2000"]
    with Cluster(folder, 2, *words) as cluster:
        first, second = cluster.nodes
        first.kill()
        more = ["--stomp-port", str(free_port()), "--tls-port", str(free_port())]
        more += ["--tls-cert-file", str(own.cert), "--tls-key-file", str(own.key)]
        more += [
            "--tls-auth-clients",
            "no",
            "--clients-memory-max",
            "10mb",
            "--queue-max-idle",
            "1",
        ]
        more += ["--cluster-handshakes-max", "20", "--dummies-max", "500"]
        first.flags = (*first.flags, *more)
        first.start()
        cluster.join()
        yield first, second
        for each in cluster.nodes:
            assert "Traceback" not in each.log() + each.complaints()


@pytest.fixture
def still_well(pair: tuple[Node, Node]) -> Iterator[Callable[[], None]]:
    """A check for inside the flood; after the test: the peer is there, and memory is at its base again."""
    first, second = pair
    bases = [floods.used_memory(each) for each in pair]

    def check() -> None:
        assert first.call("PING", "here") == b"here"
        job = second.call("ADDJOB", "check", "body", 10_000, "REPLICATE", 2)
        assert first.call("GETJOB", "FROM", "check")[0][1] == job.encode()
        assert first.call("ACKJOB", job) == 1

    yield check
    check()
    floods.wait_base(pair, bases)
    for each in pair:
        assert each.info("cluster")["cluster_reachable_nodes"] == "1"


def port_of(node: Node, kind: str) -> int:
    if kind == "resp":
        return node.port
    if kind == "bus":
        return node.port + 10_000
    name = {"stomp": "--stomp-port", "tls": "--tls-port"}[kind]
    return int(node.flags[node.flags.index(name) + 1])


def test_idle_clients(pair: tuple[Node, Node], still_well: Callable[[], None]) -> None:
    before = floods.used_memory(pair[0])
    with floods.idle_clients(pair[0], 500):
        still_well()
        assert 4_000_000 < floods.used_memory(pair[0]) - before < 5_000_000  # 9 KB each, really


def test_clients_that_never_read_hold_so_much_and_no_more(
    pair: tuple[Node, Node], still_well: Callable[[], None]
) -> None:
    before = int(pair[0].info("limits")["clients_dropped_memory"])
    with floods.never_readers(pair[0], 60):
        still_well()
        wait_until(
            "some are dropped",
            lambda: int(pair[0].info("limits")["clients_dropped_memory"]) > before,
        )
        wait_until("all hold little", lambda: floods.used_memory(pair[0]) < 15 << 20)


@pytest.mark.parametrize("kind", ["resp", "stomp", "bus", "tls"])
def test_connections_that_never_end_what_they_begin(
    pair: tuple[Node, Node], still_well: Callable[[], None], kind: str
) -> None:
    with floods.slow_loris(port_of(pair[0], kind), 100, floods.unfinished(kind)):
        still_well()


def test_half_open_links_make_room_for_peers(
    pair: tuple[Node, Node], still_well: Callable[[], None], make_node: Callable[..., Node]
) -> None:
    newcomer = make_node("--cluster-node-timeout", "2000").start()
    with floods.connections(port_of(pair[0], "bus"), 100):
        still_well()
        assert newcomer.call("CLUSTER", "MEET", "127.0.0.1", pair[0].port) == "OK"
        wait_until(
            "it is let in", lambda: newcomer.info("cluster")["cluster_reachable_nodes"] == "2"
        )
    assert int(pair[0].info("limits")["bus_handshakes_dropped"]) >= 80
    newcomer.kill()
    lines = pair[0].call("CLUSTER", "NODES").decode().splitlines()
    (name,) = [line.split()[0] for line in lines if f":{newcomer.port} " in line]
    assert pair[0].call("CLUSTER", "FORGET", name, "ALL") == "OK"


def test_acks_of_jobs_that_nobody_has(
    pair: tuple[Node, Node], still_well: Callable[[], None]
) -> None:
    floods.dummy_acks(pair[0], 5_000)
    still_well()
    assert int(pair[0].info("jobs")["acked_jobs"]) <= 510
    assert int(pair[0].info("limits")["dummy_acks_dropped"]) >= 4_500
    # Else they stay as long as their jobs could have lived
    for each in pair:
        assert each.call("DEBUG", "FLUSHALL") == "OK"


def test_names_of_queues_that_nobody_needs(
    pair: tuple[Node, Node], still_well: Callable[[], None]
) -> None:
    floods.queue_names(pair[0], 20_000)
    still_well()
    wait_until("they are forgotten", lambda: pair[0].info("queues")["registered_queues"] == "0")


def test_topics_of_a_client_that_goes(
    pair: tuple[Node, Node], still_well: Callable[[], None]
) -> None:
    floods.topics(pair[0], 10_000)
    still_well()
    assert pair[0].call("PUBSUB", "NUMSUB", "flood-1") == [b"flood-1", 0]
