"""What people reported of forming a cluster (field-reports A3: U41 ... U49)."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest

from tests.system.nodes import Cluster, Node, Resp, free_port, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.system


def reaches(node: Node, count: int) -> bool:
    """True if a node reaches so many peers."""
    return node.info("cluster")["cluster_reachable_nodes"] == str(count)


def nodes_of(node: Node) -> dict[str, list[str]]:
    """CLUSTER NODES: id -> flags."""
    lines = node.call("CLUSTER", "NODES").decode().splitlines()
    return {line.split()[0]: line.split()[2].split(",") for line in lines}


def test_u41_meet_takes_names_and_says_which_it_cannot_find(
    make_node: Callable[..., Node],
) -> None:
    a, b = make_node().start(), make_node().start()
    text = a.call_error("CLUSTER", "MEET", "nosuch.invalid", 7711)
    assert text == "ERR Invalid node address specified: nosuch.invalid:7711"
    assert a.call("CLUSTER", "MEET", "127.0.0.1", a.port) == "OK"  # itself: harmless
    assert a.call("CLUSTER", "MEET", "localhost", b.port) == "OK"
    for node in (a, b):
        wait_until("they know each other", lambda node=node: reaches(node, 1))  # type: ignore[misc]
    wait_until("nobody else is known", lambda: len(nodes_of(a)) == len(nodes_of(b)) == 2)


class Proxy:
    """Passes TCP on to another port, as a container's or a NAT's port mapping does."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self._sockets: list[socket.socket] = [self.listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                ours, _ = self.listener.accept()
                theirs = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                return
            self._sockets += [ours, theirs]
            for pair in ((ours, theirs), (theirs, ours)):
                threading.Thread(target=self._pump, args=pair, daemon=True).start()

    @staticmethod
    def _pump(source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def close(self) -> None:
        """End all connections."""
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


@pytest.fixture
def make_proxy() -> Iterator[Callable[[int], Proxy]]:
    """Makes proxies that end with the test."""
    made: list[Proxy] = []

    def make(target: int) -> Proxy:
        made.append(Proxy(target))
        return made[-1]

    yield make
    for proxy in made:
        proxy.close()


def test_u42_nodes_behind_port_mappings_find_each_other_by_what_they_announce(
    make_node: Callable[..., Node], make_proxy: Callable[[int], Proxy]
) -> None:
    nodes, outside = [], []
    for _ in range(3):
        node = make_node()
        clients, bus = make_proxy(node.port), make_proxy(node.port + 10_000)
        node.flags = (
            "--cluster-announce-host", "127.0.0.1", "--cluster-announce-port", str(clients.port),
            "--cluster-announce-bus-port", str(bus.port), "--cluster-node-timeout", "2000",
        )  # fmt: skip
        nodes.append(node.start())
        outside.append((clients.port, bus.port))
    for port, bus_port in outside[1:]:
        assert nodes[0].call("CLUSTER", "MEET", "127.0.0.1", port, bus_port) == "OK"
    for node in nodes:
        wait_until("all are reached", lambda node=node: reaches(node, 2))  # type: ignore[misc]
        told = {int(entry[2]) for entry in node.call("HELLO")[2:]}
        assert told == {port for port, _ in outside}


def test_u42_a_meet_that_comes_to_nothing_is_seen(make_node: Callable[..., Node]) -> None:
    node = make_node().start()
    assert node.call("CLUSTER", "MEET", "127.0.0.1", free_port()) == "OK"
    wait_until(
        "CLUSTER INFO counts it",
        lambda: int(node.info("cluster")["cluster_handshakes_failed"]) > 0,
    )
    assert "refused" in node.log()


def test_u43_a_node_that_starts_after_the_meet_is_joined(make_node: Callable[..., Node]) -> None:
    first, late = make_node().start(), make_node()
    assert first.call("CLUSTER", "MEET", "127.0.0.1", late.port) == "OK"
    time.sleep(1.5)
    late.start()
    wait_until("they know each other", lambda: reaches(first, 1) and reaches(late, 1))


def test_u45_a_forgotten_node_stays_away_dead_or_alive(three: Cluster) -> None:
    a, b, c = three.nodes
    gone = c.call("CLUSTER", "MYID").decode()
    c.kill()
    assert a.call("CLUSTER", "FORGET", gone, "ALL") == "OK"
    for node in (a, b):
        wait_until("it is forgotten", lambda node=node: gone not in nodes_of(node))  # type: ignore[misc]
        assert gone.encode() not in [entry[0] for entry in node.call("HELLO")[2:]]
    c.start()
    wait_until("it is told", lambda: c.info("cluster")["cluster_forgotten_by"] != "")
    b.kill()
    b.start()
    wait_until("the others are together again", lambda: reaches(a, 1) and reaches(b, 1))
    assert gone not in nodes_of(a)
    assert gone not in nodes_of(b)
    assert c.call("ADDJOB", "q", "alone", 0, "REPLICATE", 1).startswith("D-")


def test_u46_a_leaving_node_takes_nothing_new_and_drains(three: Cluster) -> None:
    a, b, c = three.nodes
    jobs = [a.call("ADDJOB", "q", str(number), 5_000) for number in range(20)]
    own = a.call("CLUSTER", "MYID")
    with a.connect() as waiting:
        waiting.send("GETJOB", "FROM", "other")
        wait_until("it waits", lambda: a.info("clients")["blocked_clients"] == "1")
        assert a.call("CLUSTER", "LEAVING", "yes") == "OK"
        assert str(waiting.read()).startswith("LEAVING ")
    assert a.call_error("GETJOB", "FROM", "other").startswith("LEAVING ")
    assert a.call("CLUSTER", "LEAVING") == "yes"
    wait_until(
        "others advise against it",
        lambda: [own, b"100"] in [[entry[0], entry[3]] for entry in b.call("HELLO")[2:]],
    )
    jobs.append(a.call("ADDJOB", "q", "new", 5_000, "REPLICATE", 2))
    wait_until("it drains", lambda: a.info("jobs")["registered_jobs"] == "0", within_s=40)
    wait_until("it says so", lambda: a.info("cluster")["cluster_safe_to_stop"] == "1")
    a.kill()
    for node in (b, c):
        assert node.call("CLUSTER", "FORGET", own) == "OK"
    with b.connect() as client:
        found = set()
        while len(found) < len(jobs):
            ((_, job, _),) = client.call("GETJOB", "TIMEOUT", 10_000, "FROM", "q") or [[0, b"", 0]]
            assert job, f"only {len(found)} of {len(jobs)} came"
            found.add(job.decode())
            client.call("ACKJOB", job)
    assert found == set(jobs)
    for node in (b, c):
        wait_until("it is drained", lambda node=node: node.info("jobs")["registered_jobs"] == "0")  # type: ignore[misc]


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: bytes(len(text)),
        lambda text: text.replace(b"\n", b"\r\n"),
        lambda text: text + text,
        lambda text: text.replace(b"myself", b"marvellous"),
        lambda text: b"\xff" * 50,
        lambda text: b"",
    ],
    ids=["cut", "zeros", "crlf", "twice", "unknown-flag", "junk", "empty"],
)
def test_u47_a_damaged_node_table_is_mended_or_refused_in_one_line(
    make_node: Callable[..., Node], damage: Callable[[bytes], bytes]
) -> None:
    node = make_node().start()
    node.kill()
    path = node.folder / "nodes.conf"
    path.write_bytes(damage(path.read_bytes()))
    node.spawn()
    assert node.process is not None
    deadline = time.monotonic() + 10
    while node.process.poll() is None and time.monotonic() < deadline:
        try:
            if node.call("PING") == "PONG":
                break
        except OSError:
            time.sleep(0.02)
    if node.process.poll() is not None:
        assert node.process.returncode == 1
        assert node.complaints().count("\n") == 1
        assert "nodes.conf" in node.complaints()
        node.process = None
    assert "Traceback" not in node.complaints() + node.log()


def test_u47_two_nodes_of_one_identity_are_noticed(make_node: Callable[..., Node]) -> None:
    first, second = make_node("--cluster-node-timeout", "1000").start(), make_node()
    second.folder.joinpath("nodes.conf").write_bytes(
        first.folder.joinpath("nodes.conf").read_bytes()
    )
    second.start()
    first.call("CLUSTER", "MEET", "127.0.0.1", second.port)
    wait_until(
        "it is counted as failed",
        lambda: (
            int(first.info("cluster")["cluster_handshakes_failed"]) > 0 or len(nodes_of(first)) == 1
        ),
    )
    assert first.call("PING") == second.call("PING") == "PONG"


def test_u49_a_node_without_the_secret_stays_outside(make_node: Callable[..., Node]) -> None:
    timing = ("--cluster-node-timeout", "1000")
    a = make_node("--cluster-secret", "right", *timing).start()
    b = make_node("--cluster-secret", "right", *timing).start()
    wrong = make_node("--cluster-secret", "wrong", *timing).start()
    none = make_node(*timing).start()
    for other in (b, wrong, none):
        assert a.call("CLUSTER", "MEET", "127.0.0.1", other.port) == "OK"
    for outsider in (wrong, none):
        assert outsider.call("CLUSTER", "MEET", "127.0.0.1", a.port) == "OK"
    wait_until("the two are together", lambda: reaches(a, 1) and reaches(b, 1))
    time.sleep(1)
    assert set(nodes_of(b)) == {node.call("CLUSTER", "MYID").decode() for node in (a, b)}
    for outsider in (wrong, none):
        assert reaches(outsider, 0)
    assert "right" not in a.log()


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff\xff\xff\xff" + bytes(100),
        bytes(4),
        b"\x00\x00\x00\x05hello",
        random.Random(7).randbytes(5_000),
    ],
    ids=["http", "four-gigabytes", "nothing", "no-message", "random"],
)
def test_u49_garbage_on_the_bus_closes_that_link_alone(
    lone: Node, client: Resp, data: bytes
) -> None:
    with socket.create_connection(("127.0.0.1", lone.port + 10_000)) as sock:
        sock.settimeout(15)
        sock.sendall(data)
        try:
            while sock.recv(1 << 16):
                pass
        except ConnectionError:
            pass
    assert client.call("PING") == "PONG"


@pytest.mark.parametrize(
    "command", ["PING", "ADDJOB q b 0", "HELLO", "INFO", "CLUSTER NODES", "MONITOR"]
)
def test_u49_without_the_password_only_auth_and_quit_are_served(
    make_node: Callable[..., Node], command: str
) -> None:
    node = make_node("--requirepass", "secret").start()
    with node.connect() as client:
        assert client.error(*command.split()) == "NOAUTH Authentication required."
        assert client.error("AUTH", "wrong") == "ERR invalid password"
        assert client.call("AUTH", "secret") == "OK"
        client.send(*command.split())
        assert "NOAUTH" not in str(client.read())
    with node.connect() as client:
        assert client.call("QUIT") == "OK"


@pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6")
def test_nodes_live_on_ipv6_alone(make_node: Callable[..., Node]) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    nodes = [make_node("--bind", "[::1]") for _ in range(2)]
    for node in nodes:
        node.spawn()
    first, second = nodes

    def over_6(node: Node, *words: str | int) -> object:
        with Resp(node.port, "::1") as client:
            return client.call(*words)

    for node in nodes:
        wait_until("it answers", lambda node=node: over_6(node, "PING") == "PONG")  # type: ignore[misc]
    assert over_6(first, "CLUSTER", "MEET", "::1", second.port) == "OK"
    wanted = b"cluster_reachable_nodes:1\r\n"
    for node in nodes:
        wait_until("they meet", lambda node=node: wanted in over_6(node, "CLUSTER", "INFO"))  # type: ignore[misc,operator]
    shown = over_6(first, "CLUSTER", "NODES").decode()  # type: ignore[attr-defined]
    assert f"[::1]:{second.port}" in shown
    assert "addr=[::1]:" in over_6(first, "CLIENT", "LIST").decode()  # type: ignore[attr-defined]
    hosts = {(entry[1], entry[2]) for entry in over_6(first, "HELLO")[2:]}  # type: ignore[index]
    assert hosts == {(b"::1", b"%d" % node.port) for node in nodes}


def test_several_addresses_are_listened_at(make_node: Callable[..., Node]) -> None:
    node = make_node("--bind", "127.0.0.1", "127.0.0.2").start()
    for host in ("127.0.0.1", "127.0.0.2"):
        with Resp(node.port, host) as client:
            assert client.call("PING") == "PONG"
            assert client.call("CONFIG", "GET", "bind") == [b"bind", b"127.0.0.1 127.0.0.2"]
    with pytest.raises(OSError, match="refused"):
        Resp(node.port, "127.0.0.3")
