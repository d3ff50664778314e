"""`bench`: how many jobs a second a running cluster takes, gives and has acknowledged, and how long each takes.

Each client is a thread with a connection of its own that sends `pipeline` commands and waits for all their replies.
It is this process that is measured, too: above some tens of thousands a second it is the limit, not the server.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Any

import attrs
import click

from disque.cli.connection import Connection, ServerError
from disque.cli.progress import Progress, progress
from disque.cli.render import note, say_json
from disque.cli.replies import ErrorReply, Reply, Status
from disque.cli.settings import common
from disque.cli.tables import show_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from disque.cli.connection import Word
    from disque.cli.settings import Settings

TIMEOUT_MS = 10_000
COLUMNS = ("COMMAND", "JOBS", "SECONDS", "JOBS/S", "P50ms", "P95ms", "P99ms", "MAXms")


@attrs.frozen
class Load:
    """What is asked for."""

    jobs: int
    clients: int
    pipeline: int
    size: int
    options: tuple[Word, ...]  # of ADDJOB


@attrs.frozen
class Measured:
    """One command: how many jobs in how many seconds, and seconds from sending to the last reply, sorted."""

    command: str
    jobs: int
    seconds: float
    latencies: Sequence[float]

    def percentile(self, percent: float) -> float:
        """In ms; 0 without a measurement."""
        if not self.latencies:
            return 0.0
        at = min(len(self.latencies) - 1, int(len(self.latencies) * percent / 100))
        return self.latencies[at] * 1000

    @property
    def jobs_per_second(self) -> float:
        """The rate."""
        return self.jobs / self.seconds if self.seconds else 0.0


@click.command("bench")
@click.option(
    "-n", "--jobs", type=click.IntRange(min=1), default=10_000, show_default=True, metavar="N"
)
@click.option(
    "-c", "--clients", type=click.IntRange(1, 1_000), default=10, show_default=True, metavar="N"
)
@click.option(
    "-P", "--pipeline", type=click.IntRange(1, 1_000), default=16, show_default=True, metavar="N",
    help="Commands sent before their replies are waited for.",
)  # fmt: skip
@click.option(
    "-d",
    "--size",
    type=click.IntRange(min=0),
    default=64,
    show_default=True,
    metavar="BYTES",
    help="Of a body.",
)
@click.option(
    "--replicate",
    type=click.IntRange(1, 65_535),
    metavar="N",
    help="Copies (the server's default).",
)
@click.option("--async", "is_async", is_flag=True, help="ADDJOB doesn't wait for the copies.")
@common
def bench_command(
    settings: Settings,
    jobs: int,
    clients: int,
    pipeline: int,
    size: int,
    replicate: int | None,
    is_async: bool,
) -> None:
    """Measure how fast a node adds, gives and acks jobs.

    It works in a queue of its own, which it purges at the end. A latency is that of a whole pipeline; use -P 1 for
    that of one command.
    """
    options: list[Word] = [] if replicate is None else ["REPLICATE", replicate]
    load = Load(jobs, clients, pipeline, size, (*options, *(["ASYNC"] if is_async else [])))
    queue = b"bench-" + os.urandom(6).hex().encode()
    try:
        with progress("bench") as bar:
            bar.total(3 * jobs)
            found = list(measure(settings.connect, queue, load, bar))
    finally:
        with settings.connect() as connection:
            connection.call("QPURGE", queue)
    if settings.is_json:
        say_json([measured_json(each) for each in found])
        return
    show_table(COLUMNS, [_row(each) for each in found], numbers=" ".join(COLUMNS[1:]))


def measured_json(each: Measured) -> dict[str, Any]:
    """A measurement as JSON; latencies in ms."""
    return {
        "command": each.command,
        "jobs": each.jobs,
        "seconds": each.seconds,
        "jobs_per_second": each.jobs_per_second,
        "p50_ms": each.percentile(50),
        "p95_ms": each.percentile(95),
        "p99_ms": each.percentile(99),
        "max_ms": each.percentile(100),
    }


def _row(each: Measured) -> list[str]:
    percentiles = [f"{each.percentile(percent):.2f}" for percent in (50, 95, 99, 100)]
    return [
        each.command,
        f"{each.jobs:,}",
        f"{each.seconds:.2f}",
        f"{each.jobs_per_second:,.0f}",
        *percentiles,
    ]


def measure(
    connect: Callable[[], Connection], queue: bytes, load: Load, bar: Progress
) -> Iterator[Measured]:
    """Add all jobs, get them, acknowledge them; each by all clients at once. Raises what the first client raised."""
    shares = [
        load.jobs // load.clients + (at < load.jobs % load.clients) for at in range(load.clients)
    ]
    connections = [connect() for share in shares if share]
    shares = shares[: len(connections)]
    ids: list[bytes] = []
    add: tuple[Word, ...] = ("ADDJOB", queue, os.urandom(load.size), TIMEOUT_MS, *load.options)
    get: tuple[Word, ...] = ("GETJOB", "TIMEOUT", TIMEOUT_MS, "COUNT", 1, "FROM", queue)
    try:
        yield _phase(
            "ADDJOB",
            connections,
            [[add] * share for share in shares],
            load.pipeline,
            bar,
            _count_status,
        )
        yield _phase(
            "GETJOB", connections, [[get] * share for share in shares], load.pipeline, bar,
            lambda reply: _take_ids(reply, ids),
        )  # fmt: skip
        acks: list[list[tuple[Word, ...]]] = [
            [("ACKJOB", id_) for id_ in ids[at :: len(connections)]]
            for at in range(len(connections))
        ]
        yield _phase("ACKJOB", connections, acks, load.pipeline, bar, lambda reply: int(reply == 1))
    finally:
        for connection in connections:
            connection.close()


def _count_status(reply: Reply) -> int:
    return int(isinstance(reply, Status))


def _take_ids(reply: Reply, ids: list[bytes]) -> int:
    """Remember the ids of a GETJOB's jobs; returns how many."""
    jobs = reply if isinstance(reply, list) else []
    ids += [job[1] for job in jobs if isinstance(job, list) and isinstance(job[1], bytes)]
    return len(jobs)


def _phase(
    command: str,
    connections: Sequence[Connection],
    commands: Sequence[Sequence[Sequence[Word]]],
    pipeline: int,
    bar: Progress,
    count: Callable[[Reply], int],
) -> Measured:
    """Run each client's commands in a thread; count what their replies say.

    At an error or Ctrl-C no more is sent, and what was sent is waited for: then a purge takes all of it.
    """
    latencies: list[float] = []
    counted: list[int] = []
    errors: list[BaseException] = []
    is_over = threading.Event()

    def client(connection: Connection, mine: Sequence[Sequence[Word]]) -> None:
        try:
            for at in range(0, len(mine), pipeline):
                if is_over.is_set():
                    return
                began = time.perf_counter()
                replies = connection.pipeline(mine[at : at + pipeline])
                latencies.append(time.perf_counter() - began)
                for reply in replies:
                    if isinstance(reply, ErrorReply):
                        raise ServerError(reply)
                    counted.append(count(reply))
                bar.advance(len(replies))
        except BaseException as error:  # noqa: BLE001 - told by the thread that waits for us
            errors.append(error)
            is_over.set()

    threads = [
        threading.Thread(target=client, args=pair, daemon=True)
        for pair in zip(connections, commands, strict=True)
    ]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    try:
        _join(threads)
    except KeyboardInterrupt:
        is_over.set()
        _join(threads)
        raise
    seconds = time.perf_counter() - began
    if errors:
        raise errors[0]
    if sum(counted) != sum(map(len, commands)):
        note(f"{command}: {sum(counted)} of {sum(map(len, commands))} did what they should")
    return Measured(command, sum(counted), seconds, sorted(latencies))


def _join(threads: Sequence[threading.Thread]) -> None:
    for thread in threads:
        thread.join()
