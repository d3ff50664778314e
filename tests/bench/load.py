"""`python -m tests.bench.load [C_DISQUE=/path/disque-server]`: ours beside C Disque, Redis and beanstalkd.

Real servers on loopback, by turns, the medians of each and of the ratios within a turn; Redis and beanstalkd where they
are installed. `--only WORD` measures the rows that have it in their name, `--json FILE` writes the rows. Nothing is
asserted: a slow machine is no bug. About four minutes.
"""

from __future__ import annotations

import argparse
import math
import os
import selectors
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import hiredis

from tests.bench import pipeline, report
from tests.bench.__main__ import commit, machine
from tests.bench.log import binary_of, tell
from tests.bench.report import Report, Row, percentile
from tests.bench.servers import QUEUE, CDisque, Server, join, others
from tests.system.nodes import Resp, command_bytes

ROUNDS = 3
RUN_S = 0.8
WARM = 400
CLIENTS = 50
DEPTH = 16
BATCH = 100  # jobs of one GETJOB and one ACKJOB
CALLS_A_S = 1_000  # of the row about latency
LATENCY_S = 8
MILLION = 1_000_000
IDLE_S = 10

Measure: TypeAlias = Callable[[list[Server]], float]


# One server at a time


def adds(depth: int, copies: int = 1, clients: int = CLIENTS) -> Measure:
    """ADDJOBs a second."""

    def measure(nodes: list[Server]) -> float:
        load, port = nodes[0].add(copies), nodes[0].port
        warm = pipeline.run(port, clients, depth, max(WARM, 2 * clients * depth), load)
        found = pipeline.run(port, clients, depth, int(max(warm * RUN_S, WARM)), load)
        nodes[0].empty()
        return found

    return measure


def gets(depth: int) -> Measure:
    """GETJOBs of one job a second, from a queue that doesn't run dry."""

    def measure(nodes: list[Server]) -> float:
        node = nodes[0]
        filled = pipeline.run(node.port, CLIENTS, DEPTH, 4 * CLIENTS * DEPTH, node.add())
        count = int(filled * RUN_S)
        pipeline.run(node.port, CLIENTS, DEPTH, count, node.add())
        found = pipeline.run(node.port, CLIENTS, depth, count // 2, node.get())
        node.empty()
        return found

    return measure


def batches(nodes: list[Server]) -> float:
    """Jobs a second that one connection gets by hundreds and acknowledges by hundreds."""
    node = nodes[0]
    pipeline.run(node.port, CLIENTS, DEPTH, 60_000, node.add())
    ask = command_bytes("GETJOB", "COUNT", BATCH, "FROM", QUEUE)
    done = 0
    with Resp(node.port) as client:
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
        took = time.perf_counter() - started
    node.empty()
    return done / took


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
            jobs += len(reply) if isinstance(reply, list) else 0
            self._left -= 1
            if not self._left:
                self._left = self._replies
                self.client.sock.sendall(self._request)
        return jobs


def federated(nodes: list[Server]) -> float:
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
        return _read_for(selector, 2.0)
    finally:
        for each in talkers:
            each.client.close()
        for node in nodes:
            node.empty()


def _read_for(selector: selectors.BaseSelector, seconds: float) -> float:
    """Jobs a second."""
    begun = time.perf_counter()
    jobs = 0
    while time.perf_counter() < begun + seconds:
        jobs += sum(key.data.take() for key, _ in selector.select(0.5))
    return jobs / (time.perf_counter() - begun)


# Rows


def compared(turns: list[list[float]], servers: list[list[Server]], unit: str = "/s") -> str:
    """Medians of each server's rates, and our ratio to each as the median of the ratios within a turn."""
    words = [f"{statistics.median([turn[0] for turn in turns]):,.0f}{unit}"]
    for at, nodes in enumerate(servers[1:], start=1):
        other = statistics.median([turn[at] for turn in turns])
        ratio = statistics.median([turn[0] / turn[at] if turn[at] else math.inf for turn in turns])
        words.append(f"{nodes[0].title} {other:,.0f}, ratio {ratio:.2f}")
    return "; ".join(words)


ALONE: tuple[tuple[str, Measure, str, bool], ...] = (
    # what, how, what is asked against C Disque, whether servers that aren't Disque can do it
    (f"ADDJOB REPLICATE 1, {CLIENTS} clients", adds(1), "0.6, goal 0.9", True),
    (
        f"ADDJOB REPLICATE 1, {CLIENTS} clients x {DEPTH} pipelined",
        adds(DEPTH),
        "0.7, goal 1.0",
        True,
    ),
    (f"GETJOB, {CLIENTS} clients", gets(1), "0.6, goal 0.9", True),
    (f"GETJOB, {CLIENTS} clients x {DEPTH} pipelined", gets(DEPTH), "1.2, goal 1.5", True),
    (f"GETJOB COUNT {BATCH} and ACKJOB of {BATCH}, jobs", batches, "0.7, goal 1.0", False),
)
TOGETHER: tuple[tuple[str, Measure, str], ...] = (
    (f"ADDJOB REPLICATE 3, three nodes, {CLIENTS} clients", adds(1, 3), "0.5, goal 1.0"),
    (
        f"ADDJOB REPLICATE 3, three nodes, {CLIENTS} clients x {DEPTH}",
        adds(DEPTH, 3),
        "1.0, goal 1.5",
    ),
    (f"ADDJOB REPLICATE 3, three nodes, one client x {DEPTH}", adds(DEPTH, 3, 1), "2, goal 4"),
    ("federation, producers on A, consumers on B and C, jobs", federated, "1.0, goal 1.5"),
)


@contextmanager
def running(nodes: list[Server]) -> Iterator[None]:
    """These servers, started; gone at the end."""
    try:
        for node in nodes:
            node.start()
        yield
    finally:
        for node in nodes:
            node.kill()


def by_turns(measure: Measure, servers: list[list[Server]]) -> str:
    """All servers, one after another, some rounds."""
    return compared([[measure(nodes) for nodes in servers] for _ in range(ROUNDS)], servers)


def alone(folder: Path, binary: str, only: str) -> Iterator[Row]:
    """One node each."""
    wanted = [row for row in ALONE if only in row[0]]
    servers = [Server(folder / "ours"), *others(folder, binary)] if wanted else []
    with running(servers):
        for what, measure, asked, is_general in wanted:
            fit = [each for each in servers if is_general or each.knows_replicate]
            yield Row(what, by_turns(measure, [[each] for each in fit]), asked)


def three(folder: Path, name: str, binary: str) -> list[Server]:
    """Three nodes of one kind."""
    places = [folder / f"{name}-{number}" for number in range(3)]
    return [CDisque(binary, place) if binary else Server(place) for place in places]


def together(folder: Path, binary: str, only: str) -> Iterator[Row]:
    """Clusters of three."""
    wanted = [row for row in TOGETHER if only in row[0]]
    is_latency = only in LATENCY
    if not (wanted or is_latency):
        return
    clusters = [three(folder, "three", "")]
    if binary:
        clusters.append(three(folder, "c-three", binary))
    with running([node for nodes in clusters for node in nodes]):
        for nodes in clusters:
            join(nodes)
        for what, measure, asked in wanted:
            yield Row(what, by_turns(measure, clusters), asked)
        if is_latency:
            words = [f"{nodes[0].title} {latencies(nodes)}" for nodes in clusters]
            yield Row(LATENCY, "; ".join(words), "3 x, goal 1.5 x; no pause above 50 ms")


LATENCY = "latency of ADDJOB REPLICATE 3 at 1,000 a second"


def latencies(nodes: list[Server]) -> str:
    """p50, p99, p99.9 and the worst, in ms; a call is due whether the one before it is back or not."""
    clients = [Resp(nodes[0].port) for _ in range(20)]
    request = nodes[0].add(3).request
    selector = selectors.DefaultSelector()
    sent: dict[int, list[float]] = {}
    took: list[float] = []
    for each in clients:
        selector.register(each.sock, selectors.EVENT_READ)
        sent[each.sock.fileno()] = []
    started = time.perf_counter()
    count, total = 0, CALLS_A_S * LATENCY_S
    while len(took) < total:
        now = time.perf_counter()
        while count < total and started + count / CALLS_A_S <= now:
            sock = clients[count % len(clients)].sock
            sent[sock.fileno()].append(started + count / CALLS_A_S)
            sock.sendall(request)
            count += 1
        for key, _ in selector.select(0.0005):
            replies = key.fileobj.recv(1 << 16).count(b"\n")  # type: ignore[union-attr]
            now = time.perf_counter()
            took += [(now - at) * 1_000 for at in sent[key.fd][:replies]]
            del sent[key.fd][:replies]
    for each in clients:
        each.close()
    nodes[0].empty()
    took = took[CALLS_A_S:]
    shares = [f"{percentile(took, share):.1f}" for share in (0.5, 0.99, 0.999)]
    return f"p50/p99/p99.9 {' / '.join(shares)} ms, worst {max(took):.1f}"


# What waits


def waiting(folder: Path, binary: str, only: str) -> Iterator[Row]:
    """A million jobs in a queue: what they weigh, what they cost while nobody asks, how a full node is to add to."""
    bytes_row, idle_row = (
        "bytes of RSS a waiting job, a million of 100 bytes",
        "CPU while they wait",
    )
    growth_row = "ADDJOB x 16 with a million jobs waiting, to that with none"
    if not any(only in name for name in (bytes_row, idle_row, growth_row)):
        return
    servers: list[Server] = [Server(folder / "full", "--maxmemory", "0")]
    if binary:
        servers.append(CDisque(binary, folder / "c-full", "--maxmemory", "0"))
    weighed, idle, growth = [], [], []
    for node in servers:
        with running([node]):
            pipeline.run(node.port, CLIENTS, DEPTH, 2_000, node.add())
            before = rss_bytes(node)
            empty_rate = pipeline.run(node.port, CLIENTS, DEPTH, 20_000, node.add())
            pipeline.run(node.port, CLIENTS, DEPTH, MILLION - 20_000, node.add())
            weighed.append(f"{node.title} {(rss_bytes(node) - before) / MILLION:,.0f}")
            full_rate = pipeline.run(node.port, CLIENTS, DEPTH, 20_000, node.add())
            growth.append(f"{node.title} {full_rate / empty_rate:.2f}")
            begun = cpu_s(node)
            time.sleep(IDLE_S)
            idle.append(f"{node.title} {100 * (cpu_s(node) - begun) / IDLE_S:.2f} %")
    yield Row(bytes_row, "; ".join(weighed), "1.4 x, goal 1.0 x")
    yield Row(idle_row, "; ".join(idle), "below 1 %")
    yield Row(growth_row, "; ".join(growth), "at least 0.67")


def rss_bytes(node: Server) -> int:
    """Resident memory of the process."""
    assert node.process is not None
    words = Path(f"/proc/{node.process.pid}/statm").read_text().split()
    return int(words[1]) * os.sysconf("SC_PAGE_SIZE")


def cpu_s(node: Server) -> float:
    """Processor time that it has used."""
    assert node.process is not None
    fields = Path(f"/proc/{node.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure and tell."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.load", description=__doc__)
    parser.add_argument("other", nargs="?", default="", metavar="C_DISQUE=PATH")
    parser.add_argument("--only", default="", metavar="WORD", help="rows with this in their name")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there, too")
    arguments = parser.parse_args()
    binary = binary_of(arguments.other or os.environ.get("C_DISQUE", ""))
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="disque-bench-") as name:
        for part in (alone, together, waiting):
            for row in part(Path(name), binary, arguments.only):
                rows.append(row)
                tell(row)
    words = f"python -m tests.bench.load {binary and 'C_DISQUE=…'}".strip()
    result = Report(machine(), commit(), words, tuple(rows))
    print(f"\n{report.table(result)}")
    if arguments.json:
        arguments.json.write_text(report.to_json(result))


if __name__ == "__main__":
    main()
