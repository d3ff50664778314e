"""Workloads: what is done to servers, and the numbers that come of it.

Each takes fresh nodes, the first of which is asked, and returns one number for each row that `load` makes of it.
Nothing waits for ever: no GETJOB is sent for a job that hasn't been added, and the caller's clock ends the rest.
"""

from __future__ import annotations

import random
import selectors
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TypeAlias

import hiredis

from tests.bench import pipeline
from tests.bench.report import percentile
from tests.bench.servers import QUEUE, Server
from tests.system.nodes import Resp, command_bytes, wait_until

Workload: TypeAlias = Callable[[list[Server]], Sequence[float]]

RUN_S = 0.8
WARM = 400
CLIENTS = 50
DEPTH = 16
BATCH = 100  # jobs of one GETJOB and one ACKJOB
CALLS_A_S = 1_000  # of the row about latency
LATENCY_S = 8
THOUSAND, MILLION = 1_000, 1_000_000
BLOCKED = 10_000  # clients; each takes a descriptor here and one there
CYCLES = 16_000  # ADDJOB, GETJOB, ACKJOB, of which the cost is taken
WATCH_S = 10
WAITING = 10_000  # jobs with three copies whose bus is listened to
WAITING_RETRY_S = 5  # short, so that two rounds of questions fall into WATCH_S


# Rates


def adds(depth: int, copies: int = 1, clients: int = CLIENTS) -> Workload:
    """ADDJOBs a second."""

    def measure(nodes: list[Server]) -> Sequence[float]:
        node, load = nodes[0], nodes[0].add(copies)
        warm = _run(node, clients, depth, max(WARM, 2 * clients * depth), load)
        return [_run(node, clients, depth, int(max(warm * RUN_S, WARM)), load)]

    return measure


def gets(depth: int) -> Workload:
    """GETJOBs of one job a second, from a queue that doesn't run dry."""

    def measure(nodes: list[Server]) -> Sequence[float]:
        node = nodes[0]
        filled = _run(node, CLIENTS, DEPTH, 4 * CLIENTS * DEPTH, node.add())
        count = int(filled * RUN_S)
        _run(node, CLIENTS, DEPTH, count, node.add())
        return [_run(node, CLIENTS, depth, count // 2, node.get())]

    return measure


def _run(
    node: Server, clients: int, depth: int, count: int, load: pipeline.Load | None = None
) -> float:
    return pipeline.run(node.port, clients, depth, count, load or node.add(), host=node.host)


def batches(nodes: list[Server]) -> Sequence[float]:
    """Jobs a second that one connection gets by hundreds and acknowledges by hundreds."""
    node = nodes[0]
    _run(node, CLIENTS, DEPTH, 60_000)
    ask = command_bytes("GETJOB", "COUNT", BATCH, "FROM", QUEUE)
    done = 0
    with node.connect() as client:
        reader = hiredis.Reader()

        def call(request: bytes) -> object:
            client.sock.sendall(request)
            while (reply := reader.gets()) is False:
                reader.feed(client.sock.recv(1 << 18))
            return reply

        started = time.perf_counter()
        while done < 50_000:
            jobs = call(ask)
            assert isinstance(jobs, list), jobs
            done += len(jobs)
            assert call(command_bytes("ACKJOB", *[job[1] for job in jobs])) == len(jobs)
        return [done / (time.perf_counter() - started)]


class Talker:
    """A connection that says one request again as soon as all its replies are there."""

    def __init__(self, port: int, request: bytes, replies: int) -> None:
        self.client = Resp(port)
        self.client.sock.sendall(request)
        self._request = request
        self._replies = self._left = replies
        self._reader = hiredis.Reader()

    def take(self) -> int:
        """Read what has come; the jobs in it."""
        self._reader.feed(self.client.sock.recv(1 << 18))
        jobs = 0
        while (reply := self._reader.gets()) is not False:
            if isinstance(reply, Exception):
                raise RuntimeError(f"the server said {reply}")
            jobs += len(reply) if isinstance(reply, list) else 0
            self._left -= 1
            if not self._left:
                self._left = self._replies
                self.client.sock.sendall(self._request)
        return jobs


def federated(nodes: list[Server]) -> Sequence[float]:
    """Jobs a second that two other nodes hand out while one takes them in, with three consumers each."""
    source, *sinks = nodes
    ask = command_bytes("GETJOB", "TIMEOUT", 5000, "COUNT", 10, "FROM", QUEUE)
    talkers = [Talker(node.port, ask, 1) for node in sinks for _ in range(3)]
    talkers += [Talker(source.port, source.add().request * DEPTH, DEPTH) for _ in range(4)]
    selector = selectors.DefaultSelector()
    for each in talkers:
        selector.register(each.client.sock, selectors.EVENT_READ, each)
    try:
        # Federation finds out first who needs how much
        _read_for(selector, 1.0)
        return [_read_for(selector, 2.0)]
    finally:
        for each in talkers:
            each.client.close()


def _read_for(selector: selectors.BaseSelector, seconds: float) -> float:
    """Jobs a second."""
    begun = time.perf_counter()
    jobs = 0
    while time.perf_counter() < begun + seconds:
        jobs += sum(key.data.take() for key, _ in selector.select(0.5))
    return jobs / (time.perf_counter() - begun)


def latencies(nodes: list[Server]) -> Sequence[float]:
    """p50, p99, p99.9 and the worst, in ms; a call is due whether the one before it is back or not."""
    request = nodes[0].add(3).request
    selector = selectors.DefaultSelector()
    due: dict[int, list[float]] = {}
    took_ms: list[float] = []
    with ExitStack() as stack:
        clients = [stack.enter_context(nodes[0].connect()) for _ in range(20)]
        for each in clients:
            selector.register(each.sock, selectors.EVENT_READ)
            due[each.sock.fileno()] = []
        started = time.perf_counter()
        count, total = 0, CALLS_A_S * LATENCY_S
        while len(took_ms) < total:
            now = time.perf_counter()
            while count < total and started + count / CALLS_A_S <= now:
                sock = clients[count % len(clients)].sock
                due[sock.fileno()].append(started + count / CALLS_A_S)
                sock.sendall(request)
                count += 1
            for key, _ in selector.select(0.0005):
                raw = key.fileobj.recv(1 << 16)  # type: ignore[union-attr]
                if not raw or raw.startswith(b"-"):
                    raise RuntimeError(f"the server said {raw[:200]!r}")
                replies, now = raw.count(b"\n"), time.perf_counter()
                took_ms += [(now - at) * 1_000 for at in due[key.fd][:replies]]
                del due[key.fd][:replies]
    # The first second warms up
    took_ms = took_ms[CALLS_A_S:]
    return [*[percentile(took_ms, share) for share in (0.5, 0.99, 0.999)], max(took_ms)]


# What waits


def waiting(nodes: list[Server]) -> Sequence[float]:
    """A million jobs: bytes of RSS each, % of a core while nobody asks, cost of a cycle to that among a thousand."""
    node = nodes[0]
    _run(node, CLIENTS, DEPTH, THOUSAND)
    few = cycle_cost(node, [QUEUE])
    before = node.rss_bytes()
    _run(node, CLIENTS, DEPTH, MILLION - THOUSAND)
    weight = (node.rss_bytes() - before) / (MILLION - THOUSAND)
    begun = node.cpu_s()
    time.sleep(WATCH_S)
    idle = 100 * (node.cpu_s() - begun) / WATCH_S
    return [weight, idle, cycle_cost(node, [QUEUE]) / few]


def many_queues(nodes: list[Server]) -> Sequence[float]:
    """A million queues with a job each: cost of a cycle in a thousand of them to that without the others."""
    node = nodes[0]
    # The same ones before and after: else it is the processor's caches that are measured
    used = [f"queue-{n}" for n in range(THOUSAND)]
    _fill_queues(node, range(THOUSAND))
    few = cycle_cost(node, used)
    _fill_queues(node, range(THOUSAND, MILLION))
    return [cycle_cost(node, used) / few]


def many_blocked(nodes: list[Server]) -> Sequence[float]:
    """Ten thousand clients that wait at another queue: cost of a cycle to that among a thousand of them."""
    node = nodes[0]
    with ExitStack() as stack:

        def block(until: int) -> None:
            while len(blocked) < until:
                blocked.append(stack.enter_context(node.connect()))
                blocked[-1].send("GETJOB", "FROM", "nothing-comes-here")
            wait_until(
                f"{until} clients wait",
                lambda: int(node.info("clients")["blocked_clients"]) == until,
            )

        blocked: list[Resp] = []
        block(THOUSAND)
        few = cycle_cost(node, [QUEUE])
        block(BLOCKED)
        return [cycle_cost(node, [QUEUE]) / few]


def bus_while_waiting(nodes: list[Server]) -> Sequence[float]:
    """Messages a second that a node sends a peer while jobs with three copies merely wait, gossip included."""
    _run(nodes[0], CLIENTS, DEPTH, WAITING, nodes[0].add(3, "RETRY", WAITING_RETRY_S))
    # A round goes by first: every copy is asked about at its time from now on
    time.sleep(WAITING_RETRY_S + 1)

    def sent() -> int:
        return sum(int(node.info("cluster")["cluster_stats_messages_sent"]) for node in nodes)

    before = sent()
    time.sleep(WATCH_S)
    links = len(nodes) * (len(nodes) - 1)
    return [(sent() - before) / links / WATCH_S]


def cycle_cost(node: Server, queues: Sequence[str]) -> float:
    """Processor time, in s, that CYCLES of ADDJOB, GETJOB and ACKJOB take of a warm server, DEPTH at a time."""
    dice = random.Random(1)
    with node.connect() as client:
        _cycle(client, CYCLES // 10, queues, dice)
        begun = node.cpu_s()
        _cycle(client, CYCLES, queues, dice)
        return node.cpu_s() - begun


def _cycle(client: Resp, count: int, queues: Sequence[str], dice: random.Random) -> None:
    def call(commands: list[bytes]) -> list[object]:
        client.sock.sendall(b"".join(commands))
        replies = [client.read() for _ in commands]
        assert not any(isinstance(each, Exception) for each in replies), replies
        return replies

    for _ in range(count // DEPTH):
        chosen = dice.choices(queues, k=DEPTH)
        call([command_bytes("ADDJOB", queue, pipeline.BODY, 0) for queue in chosen])
        got = call([command_bytes("GETJOB", "FROM", queue) for queue in chosen])
        call([command_bytes("ACKJOB", job[0][1]) for job in got])  # type: ignore[index]


def _fill_queues(node: Server, numbers: range) -> None:
    """A job in each of these queues."""
    with node.connect() as client:
        for first in range(numbers.start, numbers.stop, THOUSAND):
            some = range(first, min(first + THOUSAND, numbers.stop))
            adding = [command_bytes("ADDJOB", f"queue-{n}", pipeline.BODY, 0) for n in some]
            client.sock.sendall(b"".join(adding))
            replies = [client.read() for _ in some]
            assert all(isinstance(each, str) for each in replies), replies[:3]
