"""Floods: what somebody might do to fill a node or hold it up, at any scale, and how to see that it did no harm.

Each flood is a context: inside it the flood stands. Small ones run in each test run, full ones by hand
(`python -m tests.by_hand.floods`).
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import attrs

from tests.system.nodes import ROOT, Node, Resp, command_bytes, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

BATCH = 1_000  # commands sent before their replies are read
PING_EVERY_S = 0.02


@contextmanager
def connections(port: int, count: int, said: bytes = b"") -> Iterator[list[socket.socket]]:
    """So many connections that say this and then nothing."""
    with ExitStack() as stack:
        crowd = []
        for _ in range(count):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", port), 15))
            if said:
                sock.sendall(said)
            crowd.append(sock)
        yield crowd


@contextmanager
def idle_clients(node: Node, count: int) -> Iterator[None]:
    """Clients that do nothing."""
    with connections(node.port, count):
        wait_until("all are served", lambda: connected(node) >= count)
        yield


@contextmanager
def never_readers(node: Node, count: int, body_bytes: int = 100_000) -> Iterator[None]:
    """Clients that ask for long replies, hundreds at a time, and read none."""
    job = node.call("ADDJOB", "long", bytes(body_bytes), 1_000)
    try:
        with connections(node.port, count, command_bytes("SHOW", job) * 200):
            wait_until("they are served", lambda: connected(node) > count)
            yield
    finally:
        node.call("CANCELJOB", job)


@contextmanager
def slow_loris(port: int, count: int, said: bytes) -> Iterator[None]:
    """Connections that begin to say something and never end it: a byte now and then."""
    with connections(port, count) as crowd:
        for byte in said:
            for sock in crowd:
                try:
                    sock.sendall(bytes([byte]))
                except OSError:
                    # it may be thrown out at any time
                    continue
        yield


@contextmanager
def few_files(node: Node, files: int, count: int) -> Iterator[None]:
    """The node may have no more than so many descriptors, and that many clients want one."""
    assert node.process is not None
    before = resource.prlimit(node.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(node.process.pid, resource.RLIMIT_NOFILE, (files, before[1]))
    try:
        with connections(node.port, count):
            yield
    finally:
        resource.prlimit(node.process.pid, resource.RLIMIT_NOFILE, before)


def unfinished(port_of: str) -> bytes:
    """The beginning of a word of each protocol."""
    return {
        "resp": b"*2\r\n$4\r\nPING\r\n$100\r\nabc",
        "stomp": b"CONNECT\naccept-version:1.2\nx:y",
        "bus": b"\0\0\0\x50\x95\xaadisque-bus",
        "http": b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nx: y",
        "tls": b"\x16\x03\x01\x02\x00\x01",
    }[port_of]


def dummy_acks(node: Node, count: int) -> None:
    """Acks of jobs that nobody has."""
    with node.connect() as client:
        for first in range(0, count, BATCH):
            ids = [b"D-deadbeef-%024d-0001" % number for number in range(first, first + BATCH)]
            assert client.call("ACKJOB", *ids) == 0


def queue_names(node: Node, count: int) -> None:
    """Queues that are asked for and never used."""
    with node.connect() as client:
        for first in range(0, count, BATCH):
            names = [f"flood-{number}" for number in range(first, first + BATCH)]
            assert client.call("GETJOB", "NOHANG", "FROM", *names) is None


def jobs(node: Node, count: int, *options: str | int, body_bytes: int = 20) -> None:
    """Jobs of the queue `flood`, pipelined."""
    one = command_bytes("ADDJOB", "flood", bytes(body_bytes), 5_000, *options)
    with node.connect() as client:
        for _ in range(0, count, BATCH):
            client.sock.sendall(one * BATCH)
            for _ in range(BATCH):
                assert isinstance(client.read(), str)


def acked_jobs(node: Node, count: int) -> None:
    """Jobs that are added, fetched and acknowledged."""
    jobs(node, count, "RETRY", 300)
    with node.connect() as client:
        while found := client.call("GETJOB", "NOHANG", "COUNT", BATCH, "FROM", "flood"):
            client.call("ACKJOB", *[id_ for _, id_, _ in found])


def expired_jobs(node: Node, count: int) -> None:
    """Jobs of 1 kB whose time runs out; none of their ids is remembered."""
    remembered = node.call("CONFIG", "GET", "marks-max")[1]
    node.call("CONFIG", "SET", "marks-max", 0)
    jobs(node, count, "TTL", 20, "RETRY", 0, "REPLICATE", 1, body_bytes=1_000)
    wait_until("all expired", lambda: node.call("QLEN", "flood") == 0, within_s=60, every_s=0.5)
    node.call("CONFIG", "SET", "marks-max", remembered)


def purged_jobs(node: Node, count: int) -> None:
    """Jobs that are purged."""
    jobs(node, count, "RETRY", 300)
    with Resp(node.port, timeout_s=120) as client:
        assert client.call("QPURGE", "flood")[0] >= count


def topics(node: Node, count: int) -> None:
    """A client that subscribes to very many topics, and goes."""
    with node.connect() as client:
        for first in range(0, count, BATCH):
            client.send("SUBSCRIBE", *[f"flood-{n}" for n in range(first, first + BATCH)])
            for _ in range(BATCH):
                assert client.read()[0] == b"subscribe"


def connected(node: Node) -> int:
    """Clients that the node serves now."""
    return int(node.info("clients")["connected_clients"])


def used_memory(node: Node) -> int:
    """Accounted bytes."""
    return int(node.info("memory")["used_memory"])


def resident(node: Node) -> int:
    """Bytes of the process in RAM."""
    return int(node.info("memory")["used_memory_rss"])


@attrs.define
class Pulse:
    """How long PINGs took, in ms."""

    ms: list[float] = attrs.Factory(list)

    @property
    def worst_ms(self) -> float:
        """The longest."""
        return max(self.ms, default=0.0)


@contextmanager
def pulse(node: Node) -> Iterator[Pulse]:
    """Another client that pings all the while, from a process of its own; its connection stands before the flood."""
    words = [sys.executable, "-m", "tests.system.floods", str(node.port)]
    found = Pulse()
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield found
        finally:
            process.send_signal(signal.SIGTERM)
            found.ms += map(float, process.stdout.read().split())


def beat(port: int) -> None:
    """Ping until SIGTERM, then tell how long each took; while nobody listens at the port that doesn't count."""
    found: list[float] = []

    def tell(*_: object) -> None:
        print("\n".join(f"{each:.1f}" for each in found), flush=True)
        os._exit(0)

    client = Resp(port, timeout_s=60)
    client.call("PING")
    signal.signal(signal.SIGTERM, tell)
    print("ready", flush=True)
    while True:
        started = time.perf_counter()
        try:
            client.send("PING")
            client.read()
        except (OSError, EOFError):
            # it was ended: so long it takes to be served again
            client = reached(port)
        found.append((time.perf_counter() - started) * 1000)
        time.sleep(PING_EVERY_S)


def reached(port: int) -> Resp:
    """A new connection, once that can be had."""
    while True:
        try:
            client = Resp(port, timeout_s=60)
            client.send("PING")
            client.read()
        except (OSError, EOFError):
            time.sleep(PING_EVERY_S)
        else:
            return client


def wait_base(nodes: Sequence[Node], bases: Sequence[int], within_s: float = 15.0) -> None:
    """Wait until each node's accounted memory is back at its base, or at most 1 % above it."""
    for node, base in zip(nodes, bases, strict=True):
        wait_until(
            f"memory of {node.port} is back at {base}",
            lambda node=node, base=base: used_memory(node) <= base + base // 100,  # type: ignore[misc]
            within_s=within_s,
        )


if __name__ == "__main__":
    beat(int(sys.argv[1]))
