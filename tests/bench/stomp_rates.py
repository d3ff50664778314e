"""`python -m tests.bench.stomp_rates [PORT]`: rates of STOMP on one node, and what a subscription costs.

Without PORT a node is started. With it whatever broker listens there is measured (RabbitMQ with its STOMP plug-in, for
example), but for memory. Plain sockets and one thread here: its time isn't the server's. Nothing is asserted.
"""

from __future__ import annotations

import selectors
import socket
import sys
import tempfile
import time
from pathlib import Path

from tests.system.nodes import Node, free_port

BODY = b"x" * 100
SENDS = 60_000
DEPTH = 100  # SENDs in one write
DELIVERIES = 30_000
PUBLISHED = 60_000  # deliveries of topic messages
SUBSCRIPTIONS = 200_000
STALL_S = 60.0


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
            data = self.sock.recv(1 << 18)
            if not data or b"ERROR\n" in data:
                raise RuntimeError(f"the server said {data[:200]!r}")
            rest += data
            count -= rest.count(word + b"\n")
            rest = rest[-len(word) :]


def send_frames(first: int, count: int, queue: bytes) -> bytes:
    """SENDs with receipts."""
    return b"".join(
        b"SEND\ndestination:/queue/%b\nreplicate:1\nreceipt:%d\n\n%b\0" % (queue, first + n, BODY)
        for n in range(count)
    )


def sends(port: int, clients: int) -> float:
    """SENDs a second, each with its receipt, pipelined."""
    peers = [Peer(port) for _ in range(clients)]
    batch = send_frames(0, DEPTH, b"bench")
    selector = selectors.DefaultSelector()
    owed: dict[int, int] = {}
    start = time.perf_counter()
    for peer in peers:
        selector.register(peer.sock, selectors.EVENT_READ, peer)
        peer.say(batch)
        owed[peer.sock.fileno()] = DEPTH
    done = 0
    while done < SENDS:
        for key, _ in selector.select(STALL_S):
            data = key.data.sock.recv(1 << 18)
            if not data or b"ERROR\n" in data:
                raise RuntimeError(f"the server said {data[:200]!r}")
            receipts = data.count(b"RECEIPT\n")
            done += receipts
            owed[key.fd] -= receipts
            if owed[key.fd] <= 0:
                key.data.say(batch)
                owed[key.fd] += DEPTH
    rate = done / (time.perf_counter() - start)
    for peer in peers:
        peer.sock.close()
    return rate


def deliveries(port: int, clients: int) -> float:
    """Messages of a full queue a second, each acknowledged one by one, prefetch 100."""
    producer = Peer(port)
    queue = b"deliver-%d" % clients
    for first in range(0, DELIVERIES, DEPTH):
        producer.say(send_frames(first, DEPTH, queue))
        producer.wait(b"RECEIPT", DEPTH)
    peers = [Peer(port) for _ in range(clients)]
    selector = selectors.DefaultSelector()
    rests: dict[int, bytes] = {}
    start = time.perf_counter()
    for peer in peers:
        selector.register(peer.sock, selectors.EVENT_READ, peer)
        peer.say(
            b"SUBSCRIBE\nid:0\nack:client-individual\nprefetch:100\ndestination:/queue/%b\n\n\0"
            % queue
        )
    done = 0
    while done < DELIVERIES:
        events = selector.select(STALL_S)
        if not events:
            raise RuntimeError(f"stalled after {done} of {DELIVERIES}")
        for key, _ in events:
            data = rests.pop(key.fd, b"") + key.data.sock.recv(1 << 18)
            *frames, rests[key.fd] = data.split(b"\0")
            ids = [
                line[4:]
                for f in frames
                for line in f.split(b"\n\n", 1)[0].split(b"\n")
                if line[:4] == b"ack:"
            ]
            done += len(ids)
            key.data.say(b"".join([b"ACK\nid:%b\n\n\0" % id_ for id_ in ids]))
    rate = done / (time.perf_counter() - start)
    for peer in [producer, *peers]:
        peer.sock.close()
    return rate


def fan_out(port: int, subscribers: int) -> float:
    """Messages of a topic delivered a second, to all subscribers together."""
    topic = b"/topic/fan-%d" % subscribers
    peers = [Peer(port) for _ in range(subscribers)]
    for peer in peers:
        peer.say(b"SUBSCRIBE\nid:0\ndestination:%b\nreceipt:r\n\n\0" % topic)
        peer.wait(b"RECEIPT", 1)
    selector = selectors.DefaultSelector()
    for peer in peers:
        peer.sock.setblocking(False)
        selector.register(peer.sock, selectors.EVENT_READ, peer)
    publisher = Peer(port)
    a_round = max(1, min(500, 20_000 // subscribers))
    batch = b"SEND\ndestination:%b\n\n%b\0" % (topic, BODY) * a_round
    done = sent = 0
    start = time.perf_counter()
    while done < PUBLISHED:
        if done >= sent:
            publisher.say(batch)
            sent += a_round * subscribers
        events = selector.select(STALL_S)
        if not events:
            raise RuntimeError(f"stalled after {done} of {PUBLISHED}")
        for key, _ in events:
            done += key.data.sock.recv(1 << 18).count(b"MESSAGE\n")
    rate = done / (time.perf_counter() - start)
    for peer in [publisher, *peers]:
        peer.sock.close()
    return rate


def resident(node: Node) -> int:
    """Resident bytes of a node."""
    return int(node.info("memory")["used_memory_rss"])


def memory(node: Node, port: int, what: bytes) -> float:
    """Resident bytes that one more subscription takes, of 200 connections with a thousand each."""
    before = resident(node)
    peers = [Peer(port) for _ in range(200)]
    each = SUBSCRIPTIONS // len(peers)
    for number, peer in enumerate(peers):
        frames = b"".join(
            b"SUBSCRIBE\nid:%d\ndestination:/%b/m-%d-%d\n\n\0" % (n, what, number, n)
            for n in range(each)
        )
        peer.say(frames + b"SUBSCRIBE\nid:last\ndestination:/topic/last\nreceipt:r\n\n\0")
        peer.wait(b"RECEIPT", 1)
    grown = (resident(node) - before) / SUBSCRIPTIONS
    for peer in peers:
        peer.sock.close()
    return grown


def main() -> None:
    """Measure and tell."""
    with tempfile.TemporaryDirectory(prefix="disque-bench-") as folder:
        node = None
        if len(sys.argv) > 1:
            port = int(sys.argv[1])
        else:
            port = free_port()
            node = Node(Path(folder), "--stomp-port", str(port), "--maxmemory", "8gb").start()
        try:
            for clients in (1, 20):
                print(
                    f"SEND with receipt, {clients} clients: {sends(port, clients):,.0f}/s",
                    flush=True,
                )
            for clients in (1, 20):
                rate = deliveries(port, clients)
                print(f"delivery and ACK, {clients} subscribers: {rate:,.0f}/s", flush=True)
            for subscribers in (1, 20, 1_000):
                rate = fan_out(port, subscribers)
                print(f"topic, 1 to {subscribers}: {rate:,.0f} messages delivered/s", flush=True)
            if node is not None:
                for what in (b"topic", b"queue"):
                    grown = memory(node, port, what)
                    print(f"a subscription of a {what.decode()}: {grown:,.0f} bytes", flush=True)
        finally:
            if node is not None:
                node.kill()


if __name__ == "__main__":
    main()
