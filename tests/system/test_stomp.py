"""STOMP with a foreign client, stomp.py, in all three versions on two nodes, and a crash under a subscriber."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
import stomp

from tests.system.nodes import Cluster, Node, free_port, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.system

CONNECTIONS = {
    "1.0": stomp.StompConnection10,
    "1.1": stomp.StompConnection11,
    "1.2": stomp.StompConnection12,
}
VERSIONS = list(CONNECTIONS)


class Ear(stomp.ConnectionListener):
    """Keeps what a connection hears; its methods run in stomp.py's thread."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.messages: list[Any] = []
        self.receipts: list[str] = []
        self.errors: list[Any] = []
        self.is_disconnected = False

    def on_message(self, frame: Any) -> None:
        """A MESSAGE."""
        with self.lock:
            self.messages.append(frame)

    def on_receipt(self, frame: Any) -> None:
        """A RECEIPT."""
        with self.lock:
            self.receipts.append(frame.headers["receipt-id"])

    def on_error(self, frame: Any) -> None:
        """An ERROR."""
        with self.lock:
            self.errors.append(frame)

    def on_disconnected(self) -> None:
        """The connection has ended."""
        self.is_disconnected = True

    def bodies(self) -> list[str]:
        """Of the messages so far."""
        with self.lock:
            return [frame.body for frame in self.messages]


class Client:
    """One connection by stomp.py and its ear."""

    def __init__(self, port: int, version: str, **options: Any) -> None:
        self.version = version
        self.wire: Any = CONNECTIONS[version]([("127.0.0.1", port)], **options)
        self.ear = Ear()
        self.wire.set_listener("", self.ear)
        self._receipts = 0

    def connect(self, passcode: str = "any") -> Client:
        """CONNECT and wait for CONNECTED."""
        self.wire.connect("guest", passcode, wait=True)
        return self

    def send(self, destination: str, body: str, **headers: str) -> None:
        """SEND and wait for the receipt."""
        self._receipts += 1
        name = f"receipt-{self._receipts}"
        self.wire.send(
            destination,
            body,
            headers={k.replace("_", "-"): v for k, v in headers.items()},
            receipt=name,
        )
        wait_until(f"{name} comes", lambda: name in self.ear.receipts)

    def subscribe(
        self, destination: str, id_: str = "0", ack: str = "auto", **headers: str
    ) -> None:
        """SUBSCRIBE and wait for the receipt."""
        self._receipts += 1
        name = f"receipt-{self._receipts}"
        self.wire.subscribe(destination, id=id_, ack=ack, headers={"receipt": name, **headers})
        wait_until(f"{name} comes", lambda: name in self.ear.receipts)

    def wait_bodies(self, *bodies: str) -> list[Any]:
        """Wait for exactly these messages; their frames."""
        wait_until(f"{bodies} come", lambda: len(self.ear.bodies()) >= len(bodies))
        assert self.ear.bodies() == list(bodies)
        return list(self.ear.messages)

    def ack(self, frame: Any, id_: str = "0", *, is_nack: bool = False) -> None:
        """ACK or NACK as the version says it."""
        say = self.wire.nack if is_nack else self.wire.ack
        headers = frame.headers
        if self.version == "1.0":
            say(headers["message-id"])
        elif self.version == "1.1":
            say(headers["message-id"], id_)
        else:
            say(headers["ack"])

    def close(self) -> None:
        """End the connection, if it hasn't ended."""
        if self.wire.is_connected():
            self.wire.disconnect()


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, list[int]]]:
    """Two nodes that know each other, and their STOMP ports."""
    cluster = Cluster(tmp_path_factory.mktemp("two"), 2, "--cluster-node-timeout", "2000")
    ports = [free_port() for _ in cluster.nodes]
    for node, port in zip(cluster.nodes, ports, strict=True):
        node.flags = (*node.flags, "--stomp-port", str(port))
    with cluster:
        yield cluster.join(), ports
        for node in cluster.nodes:
            assert "Traceback" not in node.log(), node.log()


@pytest.fixture
def connect(two: tuple[Cluster, list[int]]) -> Iterator[Callable[..., Client]]:
    """Makes clients of one of the two nodes."""
    made: list[Client] = []

    def make(node: int, version: str, **options: Any) -> Client:
        made.append(Client(two[1][node], version, **options))
        return made[-1].connect()

    yield make
    for client in made:
        client.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_jobs_go_from_one_node_to_a_subscriber_of_the_other(
    version: str, connect: Callable[..., Client], two: tuple[Cluster, list[int]]
) -> None:
    queue = f"/queue/across-{version}"
    consumer, producer = connect(1, version), connect(0, version)
    consumer.subscribe(queue, ack="client-individual", prefetch="10")
    producer.send(queue, "one\0two", replicate="2", foo="b:ar")
    producer.send(queue, "three")
    first, second = consumer.wait_bodies("one\0two", "three")
    assert first.headers["foo"] == "b:ar"
    assert first.headers["destination"] == queue
    consumer.ack(first)
    consumer.ack(second)
    for node in two[0].nodes:
        wait_until(
            "the jobs are settled", lambda node=node: node.info("jobs")["registered_jobs"] == "0"
        )


@pytest.mark.parametrize("version", VERSIONS)
def test_topics_reach_both_nodes_and_resp(
    version: str, connect: Callable[..., Client], two: tuple[Cluster, list[int]]
) -> None:
    near, far = connect(0, version), connect(1, version)
    near.subscribe(f"/topic/{version}.x")
    far.subscribe(f"/topic/{version}.*")
    with two[0].nodes[1].connect() as resp:
        assert resp.call("SUBSCRIBE", f"{version}.x") == [b"subscribe", f"{version}.x".encode(), 1]
        near.send(f"/topic/{version}.x", "hello")
        near.wait_bodies("hello")
        far.wait_bodies("hello")
        assert resp.read() == [b"message", f"{version}.x".encode(), b"hello"]
        wait_until(
            "both nodes count three",
            lambda: two[0].nodes[0].call("PUBLISH", f"{version}.x", "again") == 3,
        )


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_nack_and_redelivery(version: str, connect: Callable[..., Client]) -> None:
    client = connect(0, version)
    queue = f"/queue/nack-{version}"
    client.subscribe(queue, ack="client")
    client.send(queue, "x")
    (frame,) = client.wait_bodies("x")
    client.ack(frame, is_nack=True)
    again = client.wait_bodies("x", "x")[1]
    assert (again.headers["redelivered"], again.headers["nacks"]) == ("true", "1")
    client.ack(again)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_client_that_goes_gives_its_messages_back(
    version: str, connect: Callable[..., Client]
) -> None:
    first, second = connect(0, version), connect(1, version)
    queue = f"/queue/gone-{version}"
    first.subscribe(queue, ack="client")
    first.send(queue, "x")
    first.wait_bodies("x")
    second.subscribe(queue, ack="client")
    first.close()
    (frame,) = second.wait_bodies("x")
    assert frame.headers["redelivered"] == "true"
    second.ack(frame)


@pytest.mark.parametrize("version", VERSIONS)
def test_transactions(version: str, connect: Callable[..., Client]) -> None:
    client = connect(0, version)
    queue = f"/queue/transaction-{version}"
    client.subscribe(queue)
    for is_commit in (False, True):
        name = client.wire.begin()
        client.wire.send(queue, f"{is_commit}", transaction=name)
        (client.wire.commit if is_commit else client.wire.abort)(name)
    client.wait_bodies("True")


def test_errors_name_the_receipt_and_end_a_1_2_connection(connect: Callable[..., Client]) -> None:
    client = connect(0, "1.2")
    client.wire.send("/nowhere/x", "", receipt="r1")
    wait_until("an error", lambda: client.ear.errors)
    assert client.ear.errors[0].headers["receipt-id"] == "r1"
    wait_until("the end", lambda: client.ear.is_disconnected)


def test_heart_beats_both_ways_keep_an_idle_connection(connect: Callable[..., Client]) -> None:
    client = connect(0, "1.2", heartbeats=(1_000, 1_000))
    client.subscribe("/queue/idle")
    started = client.ear.receipts
    assert started
    other = connect(0, "1.2")
    deadline = threading.Event()
    deadline.wait(5)
    assert not client.ear.is_disconnected
    other.send("/queue/idle", "still there")
    client.wait_bodies("still there")


def test_the_password_is_asked_for(make_node: Callable[..., Node]) -> None:
    port = free_port()
    make_node("--stomp-port", str(port), "--requirepass", "se:cret").start()
    for version in VERSIONS:
        good, bad = Client(port, version), Client(port, version)
        try:
            good.connect("se:cret").send("/queue/q", "x")
            with pytest.raises(stomp.exception.ConnectFailedException):
                bad.connect("wrong")
            assert bad.ear.errors[0].headers["message"] == "wrong login or passcode"
        finally:
            good.close()
            bad.close()


def test_a_node_is_killed_under_its_subscriber(tmp_path: Path) -> None:
    """What the subscriber hadn't acknowledged goes to one elsewhere, once its time is over; nothing is lost."""
    cluster = Cluster(tmp_path, 3, "--cluster-node-timeout", "2000")
    ports = [free_port() for _ in cluster.nodes]
    for node, port in zip(cluster.nodes, ports, strict=True):
        node.flags = (*node.flags, "--stomp-port", str(port))
    clients: list[Client] = []
    with cluster:
        cluster.join()
        try:
            doomed, heir, producer = [Client(port, "1.2").connect() for port in ports]
            clients += [doomed, heir, producer]
            doomed.subscribe("/queue/q", ack="client-individual")
            for n in range(20):
                producer.send("/queue/q", f"{n}", ack_timeout="2", replicate="2")
            wait_until("all are delivered", lambda: len(doomed.ear.bodies()) >= 20)
            for frame in doomed.ear.messages[:5]:
                doomed.ack(frame)
            done = [frame.body for frame in doomed.ear.messages[:5]]
            doomed.send("/topic/any", "")  # its receipt: the ACKs before it have been received
            cluster.nodes[0].kill()
            heir.subscribe("/queue/q", ack="client-individual")
            left = sorted({f"{n}" for n in range(20)} - set(done))
            wait_until("the rest arrives", lambda: set(left) <= set(heir.ear.bodies()))
            for frame in list(heir.ear.messages):
                heir.ack(frame)
        finally:
            for client in clients:
                client.close()
