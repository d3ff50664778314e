"""A log that is compacted while clients wait: what an ADDJOB takes then, and how large the log gets.

One process adds and acknowledges as fast as it may; which job goes is drawn by lot, so that every segment keeps some
that live: the worst case for compaction. This process adds one job after another, and looks at the sizes.
"""

from __future__ import annotations

import multiprocessing
import random
import socket
import time
from typing import TYPE_CHECKING

import attrs

from tests.bench.report import percentile
from tests.system.logged import segments
from tests.system.nodes import Node, Resp, command_bytes, wait_until

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.synchronize import Event
    from pathlib import Path

BATCH_BYTES = 100_000
SAMPLE_EVERY_S = 0.1
SEGMENT_BYTES = 32 << 20
PATIENCE_S = 120.0
PROBE_BODY = b"p" * 100


@attrs.frozen
class Sample:
    """What INFO said at one moment; `live_bytes` is an estimate."""

    size_bytes: int
    live_bytes: int


@attrs.frozen
class Churn:
    """What was seen in a time of churn. `scale`: bytes of a fresh log for each byte that is estimated to live."""

    latencies_ms: list[float]
    samples: list[Sample]
    scale: float
    deleted: int  # segments

    def worst_ratio(self) -> float:
        """The log's size over its live bytes at the worst moment."""
        return max([each.size_bytes / (each.live_bytes * self.scale) for each in self.samples])

    def worst_ratio_but_two_segments(self) -> float:
        """The same for what is beyond two segments: the promise is 2.5."""
        sizes = [
            (each.size_bytes - 2 * SEGMENT_BYTES, each.live_bytes * self.scale)
            for each in self.samples
        ]
        return max([max(size, 0) / live for size, live in sizes])

    def live_mb(self) -> float:
        """Median of the live MB."""
        return percentile([each.live_bytes for each in self.samples], 0.5) * self.scale / 1e6

    def figure(self) -> str:
        """For a table."""
        ratio, beyond = self.worst_ratio(), self.worst_ratio_but_two_segments()
        return (
            f"{tail(self.latencies_ms)}; log at most {ratio:.2f} x live ({self.live_mb():.0f} MB), "
            f"{beyond:.2f} without two segments; {self.deleted} segments deleted"
        )


def tail(values_ms: Sequence[float]) -> str:
    """Median, p99 and worst, as the tables show them."""
    p50, p99 = percentile(values_ms, 0.5), percentile(values_ms, 0.99)
    return f"p50 {p50:.1f} ms, p99 {p99:.1f}, worst {max(values_ms):.1f}"


def churn(port: int, body_bytes: int, live_jobs: int, is_full: Event, is_over: Event) -> None:
    """Keep so many jobs alive: for each new one an old one is acknowledged; the next batch is sent before replies."""
    dice, ids = random.Random(1), list[str]()
    batch = max(1, min(50, BATCH_BYTES // body_bytes))
    adds = command_bytes("ADDJOB", "churn", b"x" * body_bytes, 0, "REPLICATE", 1) * batch
    with Resp(port, timeout_s=PATIENCE_S) as client:
        client.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.sock.sendall(adds)
        while not is_over.is_set():
            gone = [_drawn(ids, dice) for _ in range(len(ids) - live_jobs)]
            if gone:
                is_full.set()
            client.sock.sendall((command_bytes("ACKJOB", *gone) if gone else b"") + adds)
            for _ in range(batch):
                reply = client.read()
                if not isinstance(reply, str):
                    raise RuntimeError(f"ADDJOB was answered {reply!r}")
                ids.append(reply)
            if gone:
                client.read()


def _drawn(ids: list[str], dice: random.Random) -> str:
    at = dice.randrange(len(ids))
    ids[at], ids[-1] = ids[-1], ids[at]
    return ids.pop()


def watch(node: Node, seconds: float) -> tuple[list[float], list[Sample]]:
    """Add (and acknowledge) one job after another; times of the adds in ms, and sizes every 100 ms."""
    latencies_ms: list[float] = []
    samples: list[Sample] = []
    end = time.monotonic() + seconds
    sampled_at = 0.0
    with Resp(node.port, timeout_s=PATIENCE_S) as client:
        while time.monotonic() < end:
            started = time.perf_counter()
            id_ = client.call("ADDJOB", "probe", PROBE_BODY, 0, "REPLICATE", 1)
            latencies_ms.append((time.perf_counter() - started) * 1_000)
            client.call("ACKJOB", id_)
            if time.monotonic() - sampled_at > SAMPLE_EVERY_S:
                samples.append(_sample(client))
                sampled_at = time.monotonic()
    return latencies_ms, samples


def _fields(client: Resp) -> dict[str, str]:
    lines = client.call("INFO", "persistence").decode().split("\r\n")
    return dict(line.split(":", 1) for line in lines if ":" in line)


def _sample(client: Resp) -> Sample:
    fields = _fields(client)
    return Sample(int(fields["aof_current_size"]), int(fields["aof_live_size"]))


def _scale(node: Node) -> float:
    """Rewrite the log: what a byte of its estimate really takes."""
    with Resp(node.port, timeout_s=PATIENCE_S) as client:
        client.call("BGREWRITEAOF")
        wait_until("the log is rewritten", lambda: _is_quiet(client), within_s=PATIENCE_S)
        sample = _sample(client)
    return sample.size_bytes / sample.live_bytes


def _is_quiet(client: Resp) -> bool:
    fields = _fields(client)
    busy = ("aof_rewrite_in_progress", "aof_rewrite_scheduled", "aof_pending_rewrite")
    return all(fields[name] == "0" for name in busy)


def measure(
    folder: Path, *flags: str, body_bytes: int, live_jobs: int, is_compacted: bool, seconds: float
) -> Churn:
    """Start a node with a log, let it churn, and watch it once so many jobs live.

    `is_compacted`: and once a segment has been deleted, so that compaction is in full swing.
    """
    node = Node(folder, "--appendonly", "yes", *flags).start()
    is_full, is_over = multiprocessing.Event(), multiprocessing.Event()
    words = (node.port, body_bytes, live_jobs, is_full, is_over)
    worker = multiprocessing.Process(target=churn, args=words, daemon=True)
    worker.start()
    try:
        if not is_full.wait(PATIENCE_S):
            raise RuntimeError(f"{live_jobs} jobs weren't added within {PATIENCE_S} s")
        if is_compacted:
            first = _oldest(node)
            wait_until("a segment goes", lambda: _oldest(node) > first, within_s=PATIENCE_S)
        before = _oldest(node)
        latencies_ms, samples = watch(node, seconds)
        deleted = _oldest(node) - before
        is_over.set()
        worker.join(PATIENCE_S)
        return Churn(latencies_ms, samples, _scale(node), deleted)
    finally:
        worker.kill()
        worker.join()
        node.kill()


def _oldest(node: Node) -> int:
    return int(segments(node)[0].name.split("-")[0])
