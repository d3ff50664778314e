"""`python -m tests.bench.stomp_rates [PORT]`: STOMP on one node beside what ocamlmq's README says of ocamlmq.

Rates, the node's CPU time a message (which a busy machine changes least), and what a million queues and subscriptions
cost. With PORT whatever STOMP broker listens there is measured beside, but for memory and CPU; without it RabbitMQ,
where Debian's `rabbitmq-server` is installed and its plug-in answers at 61613. Plain sockets and one thread here: its
time isn't the server's. Nothing is asserted. `--short`: a hundredth of each, to see that it works. About ten minutes.
"""

from __future__ import annotations

import os
import selectors
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs

from tests.system.nodes import Node, free_port, wait_until

BODY = b"x" * 100
DEPTH = 100  # SENDs in one write
STALL_S = 60.0
CONNECTIONS = 200  # that share the subscriptions
STOMP_PORT = 61613
NAMES = 5_000  # queues in one GETJOB
IDLE_S = 10.0

# ocamlmq's README, on "an oldish dual core AMD Athlon 64 X2": messages a second, bytes
OCAMLMQ = {
    "SEND with receipt, 1 client": ">9,000-17,000 (4,000 with fsync)",
    "delivery and ACK, 1 subscriber": ">12,000 (2,000 from disk)",
    "topic, 1 to 1": ">40,000 (60,000 at 3 GHz)",
    "a subscription of a topic": "about 150 bytes",
    "a subscription of a queue": "about 150 bytes",
    "a queue that is empty": "0 bytes",
}


@attrs.frozen
class Sizes:
    """How much of each is done."""

    sends: int = 60_000
    deliveries: int = 30_000
    published: int = 60_000  # deliveries of topic messages
    subscriptions: int = 1_000_000
    queues: int = 1_000_000

    def short(self) -> Sizes:
        """To see that it works."""
        return Sizes(*[number // 100 for number in attrs.astuple(self)])


class Peer:
    """One blocking STOMP 1.2 connection."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=STALL_S)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.say(b"CONNECT\naccept-version:1.2\nhost:/\nlogin:guest\npasscode:guest\n\n\0")
        self.wait(b"CONNECTED", 1)

    def say(self, data: bytes) -> None:
        """Send bytes."""
        self.sock.sendall(data)

    def wait(self, word: bytes, count: int) -> None:
        """Read until so many frames with this command have come."""
        rest = b""
        while count > 0:
            rest += self.hear()
            count -= rest.count(word + b"\n")
            rest = rest[-len(word) :]

    def hear(self) -> bytes:
        """What has come; RuntimeError for an ERROR."""
        data = self.sock.recv(1 << 18)
        if not data or b"ERROR\n" in data:
            raise RuntimeError(f"the server said {data[:200]!r}")
        return data


@contextmanager
def connected(port: int, count: int) -> Iterator[list[Peer]]:
    """So many connections."""
    peers: list[Peer] = []
    try:
        while len(peers) < count:
            peers.append(Peer(port))
        yield peers
    finally:
        for peer in peers:
            peer.sock.close()


def ready(peers: Iterable[Peer]) -> Iterator[Peer]:
    """Those that can be read, again and again."""
    with selectors.DefaultSelector() as selector:
        for peer in peers:
            selector.register(peer.sock, selectors.EVENT_READ, peer)
        while events := selector.select(STALL_S):
            for key, _ in events:
                yield key.data
    raise RuntimeError(f"nothing has come for {STALL_S:.0f} s")


def send_frames(count: int, queue: bytes) -> bytes:
    """SENDs with receipts."""
    return b"".join(
        b"SEND\ndestination:/queue/%b\nreplicate:1\nreceipt:%d\n\n%b\0" % (queue, n, BODY)
        for n in range(count)
    )


def cpu_s(node: Node) -> float:
    """CPU time that a node has used."""
    assert node.process is not None
    stat = Path(f"/proc/{node.process.pid}/stat").read_text()
    user, system = stat.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


class Watch:
    """Measures from the moment when all are connected."""

    def __init__(self, node: Node | None) -> None:
        self._node = node
        self._start = self._cpu = 0.0

    def start(self) -> None:
        """Now."""
        self._cpu = 0.0 if self._node is None else cpu_s(self._node)
        self._start = time.perf_counter()

    def tell(self, done: int) -> str:
        """Messages a second until now, and what each cost the node."""
        text = f"{done / (time.perf_counter() - self._start):,.0f}/s"
        if self._node is None:
            return text
        return f"{text}, {(cpu_s(self._node) - self._cpu) / done * 1e6:.1f} us of CPU"


# Rates


def sends(port: int, clients: int, count: int, watch: Watch) -> str:
    """SENDs, each with its receipt, pipelined."""
    batch = send_frames(DEPTH, b"bench")
    with connected(port, clients) as peers:
        owed = dict.fromkeys(peers, DEPTH)
        watch.start()
        for peer in peers:
            peer.say(batch)
        done = 0
        for peer in ready(peers):
            receipts = peer.hear().count(b"RECEIPT\n")
            done += receipts
            owed[peer] -= receipts
            if done >= count:
                break
            if owed[peer] <= 0:
                peer.say(batch)
                owed[peer] += DEPTH
        return watch.tell(done)


def fill(port: int, queue: bytes, count: int) -> None:
    """So many messages in a queue."""
    with connected(port, 1) as (peer,):
        for _ in range(0, count, DEPTH):
            peer.say(send_frames(DEPTH, queue))
            peer.wait(b"RECEIPT", DEPTH)


def deliveries(port: int, clients: int, count: int, watch: Watch) -> str:
    """Messages of a full queue, each acknowledged one by one, prefetch 100."""
    subscribe = (
        b"SUBSCRIBE\nid:0\nack:client-individual\nprefetch:100\nprefetch-count:100\n"
        b"destination:/queue/deliver-%d\n\n\0" % clients
    )
    with connected(port, clients) as peers:
        rests = dict.fromkeys(peers, b"")
        watch.start()
        for peer in peers:
            peer.say(subscribe)
        done = 0
        for peer in ready(peers):
            *frames, rests[peer] = (rests[peer] + peer.hear()).split(b"\0")
            heads = [frame.partition(b"\n\n")[0].split(b"\n") for frame in frames]
            ids = [line[4:] for head in heads for line in head if line[:4] == b"ack:"]
            peer.say(b"".join([b"ACK\nid:%b\n\n\0" % id_ for id_ in ids]))
            done += len(ids)
            if done >= count:
                break
        return watch.tell(done)


def fan_out(port: int, subscribers: int, count: int, watch: Watch) -> str:
    """Messages of a topic, as they reach all subscribers together."""
    topic = b"/topic/fan-%d" % subscribers
    a_round = max(1, min(500, 20_000 // subscribers))
    batch = b"SEND\ndestination:%b\n\n%b\0" % (topic, BODY) * a_round
    with connected(port, subscribers) as peers, connected(port, 1) as (publisher,):
        for peer in peers:
            peer.say(b"SUBSCRIBE\nid:0\ndestination:%b\nreceipt:r\n\n\0" % topic)
            peer.wait(b"RECEIPT", 1)
        watch.start()
        publisher.say(batch)
        sent, done = a_round * subscribers, 0
        for peer in ready(peers):
            done += peer.hear().count(b"MESSAGE\n")
            if done >= count:
                break
            if done >= sent:
                publisher.say(batch)
                sent += a_round * subscribers
        return watch.tell(done)


def rates(port: int, sizes: Sizes, node: Node | None) -> Iterator[tuple[str, str]]:
    """What is measured of any broker."""
    watch = Watch(node)
    for clients, word in ((1, "client"), (20, "clients")):
        yield f"SEND with receipt, {clients} {word}", sends(port, clients, sizes.sends, watch)
    for clients, word in ((1, "subscriber"), (20, "subscribers")):
        fill(port, b"deliver-%d" % clients, sizes.deliveries)
        text = deliveries(port, clients, sizes.deliveries, watch)
        yield f"delivery and ACK, {clients} {word}", text
    for count in (1, 20, 1_000):
        yield f"topic, 1 to {count:,}", fan_out(port, count, sizes.published, watch)


# Memory: each of a node of its own, since what another has freed would be used first


def resident(node: Node) -> int:
    """Resident bytes of a node."""
    return int(node.info("memory")["used_memory_rss"])


def subscriptions(node: Node, port: int, what: str, count: int) -> Iterator[tuple[str, str]]:
    """Resident bytes that one more subscription takes, and what all of them cost while nothing happens."""
    each = count // CONNECTIONS
    before = resident(node)
    with connected(port, CONNECTIONS) as peers:
        for number, peer in enumerate(peers):
            frames = b"".join(
                b"SUBSCRIBE\nid:%d\ndestination:/%b/m-%d-%d\n\n\0" % (n, what.encode(), number, n)
                for n in range(each)
            )
            peer.say(frames + b"SUBSCRIBE\nid:last\ndestination:/topic/last\nreceipt:r\n\n\0")
            peer.wait(b"RECEIPT", 1)
        grown = (resident(node) - before) / (each * CONNECTIONS)
        cpu = cpu_s(node)
        time.sleep(IDLE_S)
        idle = (cpu_s(node) - cpu) / IDLE_S
    text = f"{grown:,.0f} bytes of {each * CONNECTIONS:,}, {idle:.1%} of a core while idle"
    yield f"a subscription of a {what}", text


def queue_count(node: Node) -> int:
    """Queues that a node remembers."""
    return int(node.info("queues")["registered_queues"])


def queues(node: Node, count: int) -> Iterator[tuple[str, str]]:
    """What one more empty queue takes while it is remembered, and what is left of it once it isn't."""
    start, ends = resident(node), [0.0, 0.0]
    for turn in (0, 1):
        node.call("CONFIG", "SET", "queue-max-idle", 3_600)
        for first in range(0, count, NAMES):
            names = [f"q-{turn}-{n}" for n in range(first, min(first + NAMES, count))]
            node.call("GETJOB", "NOHANG", "FROM", *names)
        if turn == 0:
            yield "a queue that is remembered", f"{(resident(node) - start) / count:,.0f} bytes"
        node.call("CONFIG", "SET", "queue-max-idle", 1)
        wait_until("all are gone", lambda: queue_count(node) == 0, within_s=10 * STALL_S)
        ends[turn] = resident(node)
    left = (ends[1] - ends[0]) / count
    yield "a queue that is empty", f"{left:,.0f} bytes ({count:,} more came and went)"


@contextmanager
def fresh() -> Iterator[tuple[Node, int]]:
    """A new node, and its port for STOMP."""
    with tempfile.TemporaryDirectory(prefix="disque-bench-") as folder:
        port = free_port()
        node = Node(Path(folder), "--stomp-port", str(port), "--maxmemory", "8gb").start()
        try:
            yield node, port
        finally:
            node.kill()


def ours(sizes: Sizes) -> Iterator[tuple[str, str]]:
    """All rows of our node."""
    with fresh() as (node, port):
        yield from rates(port, sizes, node)
    with fresh() as (node, _):
        yield from queues(node, sizes.queues)
    for what in ("topic", "queue"):
        with fresh() as (node, port):
            yield from subscriptions(node, port, what, sizes.subscriptions)


def other_port(words: list[str]) -> int | None:
    """Where another broker listens that is to be measured, too."""
    if words:
        return int(words[0])
    if shutil.which("rabbitmq-server", path="/usr/sbin:/usr/lib/rabbitmq/bin") is None:
        return None
    with socket.socket() as probe:
        return STOMP_PORT if probe.connect_ex(("127.0.0.1", STOMP_PORT)) == 0 else None


def main() -> None:
    """Measure and tell."""
    words = sys.argv[1:]
    sizes = Sizes().short() if "--short" in words else Sizes()
    other = other_port([word for word in words if word != "--short"])
    for name, text in ours(sizes):
        print(f"{name:32} {text:52} ocamlmq: {OCAMLMQ.get(name, '-')}", flush=True)
    if other is not None:
        print(f"\nThe broker at port {other}:")
        for name, text in rates(other, sizes, None):
            print(f"{name:32} {text}", flush=True)


if __name__ == "__main__":
    main()
