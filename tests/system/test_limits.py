"""Each limit of a node, one by one on real nodes: when it bites, its figure in INFO says so."""

from __future__ import annotations

import signal
import socket
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from tests.system.nodes import WAIT_S, Cluster, Node, ReplyError, Resp, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.system
SECRET = "secret"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two nodes that know each other."""
    with Cluster(tmp_path_factory.mktemp("limits"), 2) as cluster:
        yield cluster.join()


@contextmanager
def asleep(node: Node) -> Iterator[None]:
    """It says and hears nothing meanwhile."""
    assert node.process is not None
    node.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        node.process.send_signal(signal.SIGCONT)


def figures(admin: Resp) -> dict[str, str]:
    """INFO limits and stats, over a connection that stands."""
    lines = b"".join(admin.call("INFO", section) for section in ("limits", "stats")).decode()
    return dict(line.split(":", 1) for line in lines.split("\r\n") if ":" in line)


def a_long_argument(pair: Cluster) -> None:
    with pair.nodes[0].connect() as client:
        assert "invalid bulk length" in client.error("PING", b"x" * 2_000)


def many_arguments(pair: Cluster) -> None:
    with pair.nodes[0].connect() as client:
        assert "invalid multibulk length" in client.error("GETJOB", "FROM", *["q"] * 20)


def a_pipeline(pair: Cluster) -> None:
    with pair.nodes[0].connect() as client, asleep(pair.nodes[1]):
        for _ in range(3):
            client.send("ADDJOB", "p", "b", 500, "REPLICATE", 2)
        assert [isinstance(client.read(), ReplyError) for _ in range(3)] == [True] * 3


def an_unread_answer(pair: Cluster) -> None:
    with pair.nodes[0].connect() as client:
        id_ = client.call("ADDJOB", "large", b"x" * (12 << 20), 5_000, "REPLICATE", 1)
        client.send("SHOW", id_)
        wait_until("it is dropped", lambda: has_gone(pair, client))
        pair.nodes[0].call("ACKJOB", id_)


def has_gone(pair: Cluster, client: Resp) -> bool:
    """True if the node has ended this connection."""
    host, port = client.sock.getsockname()
    return f"addr={host}:{port} " not in pair.nodes[0].call("CLIENT", "LIST").decode()


def strangers(pair: Cluster) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(pair.nodes[0].connect()) for _ in range(3)]
        clients[0].sock.settimeout(WAIT_S)
        assert clients[0].sock.recv(1) == b""


def connections_of_one_address(pair: Cluster) -> None:
    with pair.nodes[0].connect() as client:
        assert "of one address" in str(client.read())


def one_connection_too_many(pair: Cluster) -> None:
    with pair.nodes[0].connect() as client:
        assert str(client.read()) == "ERR max number of clients reached"


def a_long_queue_name(pair: Cluster) -> None:
    pair.nodes[0].call_error("ADDJOB", "x" * 9, "b", 0)


def queues(pair: Cluster) -> None:
    pair.nodes[0].call("DEBUG", "FLUSHALL")
    pair.nodes[0].call("ADDJOB", "one", "b", 0, "REPLICATE", 1)
    pair.nodes[0].call_error("ADDJOB", "one-more", "b", 0)


def blocked_clients(pair: Cluster) -> None:
    with pair.nodes[0].connect() as one, pair.nodes[0].connect() as two:
        one.send("GETJOB", "FROM", "blocked")
        two.send("GETJOB", "FROM", "blocked")
        first = next(read for read in (two, one) if is_answered(read))
        assert isinstance(first.read(), ReplyError)


def is_answered(client: Resp) -> bool:
    """True if something has come, or comes soon."""
    client.sock.settimeout(1)
    try:
        return bool(client.sock.recv(1, socket.MSG_PEEK))
    except TimeoutError:
        return False


def dummy_acks(pair: Cluster) -> None:
    with asleep(pair.nodes[1]), pair.nodes[0].connect() as client:
        ids = [f"D-01234567-{'A' * 23}{letter}-05a1" for letter in "ABC"]
        assert client.call("ACKJOB", *ids) == 0


def tombstones(pair: Cluster) -> None:
    with pair.nodes[0].connect() as client:
        for _ in range(4):
            client.call("ACKJOB", client.call("ADDJOB", "t", "b", 5_000, "REPLICATE", 2))


def messages_of_topics(pair: Cluster) -> None:
    with pair.nodes[0].connect() as deaf, pair.nodes[0].connect() as client:
        deaf.call("SUBSCRIBE", "topic")
        for _ in range(20):
            client.call("PUBLISH", "topic", b"x" * (1 << 20))


def a_long_frame(pair: Cluster) -> None:
    with suppress(ReplyError):  # NOREPL
        pair.nodes[1].call("ADDJOB", "f", b"x" * 100_000, 500, "REPLICATE", 2)


def a_link_that_brings_nothing_away(pair: Cluster) -> None:
    with asleep(pair.nodes[1]), pair.nodes[0].connect() as client:
        for _ in range(8):
            client.send("ADDJOB", "f", b"x" * (2 << 20), 500, "REPLICATE", 2)
        for _ in range(8):
            client.read()


ROWS: tuple[tuple[str, Callable[[Cluster], None], dict[str, str | int]], ...] = (
    ("requests_over_limit", a_long_argument, {"body-max": "1024"}),
    ("requests_over_limit", many_arguments, {"arguments-max": 16}),
    ("pipelines_paused", a_pipeline, {"pipeline-max": 1}),
    (
        "clients_dropped_output",
        an_unread_answer,
        {"client-output-buffer-limit": "normal 1048576 0 0"},
    ),
    ("strangers_dropped", strangers, {"unauthenticated-max": 1, "requirepass": SECRET}),
    ("clients_per_address_refused", connections_of_one_address, {"clients-per-address-max": 1}),
    ("rejected_connections", one_connection_too_many, {"maxclients": 1}),
    ("queue_names_refused", a_long_queue_name, {"queue-name-max": 8}),
    ("queues_refused", queues, {"queues-max": 1}),
    ("blocked_clients_refused", blocked_clients, {"blocked-clients-max": 1}),
    ("dummy_acks_dropped", dummy_acks, {"dummies-max": 1}),
    ("tombstones_dropped", tombstones, {"tombstones-max": 1}),
    ("topic_messages_dropped", messages_of_topics, {"topic-buffer": 1_000}),
    ("bus_links_dropped", a_long_frame, {"cluster-frame-max": "65536"}),
    ("bus_links_dropped", a_link_that_brings_nothing_away, {"cluster-link-buffer": "65536"}),
)


@pytest.mark.parametrize(
    ("figure", "act", "directives"), ROWS, ids=[act.__name__ for _, act, _ in ROWS]
)
def test_a_limit_that_bites_is_in_info(
    pair: Cluster, figure: str, act: Callable[[Cluster], None], directives: dict[str, str | int]
) -> None:
    pair.wait_mesh()
    with pair.nodes[0].connect() as admin:
        before = int(figures(admin)[figure])
        old = {name: admin.call("CONFIG", "GET", name)[1] for name in directives}
        for name, value in directives.items():
            assert admin.call("CONFIG", "SET", name, value) == "OK"
        if "requirepass" in directives:
            assert admin.call("AUTH", SECRET) == "OK"
        try:
            act(pair)
            wait_until(f"{figure} counts", lambda: int(figures(admin)[figure]) > before)
        finally:
            for name, value in old.items():
                secret = "" if name == "requirepass" else value
                assert admin.call("CONFIG", "SET", name, secret) == "OK"
