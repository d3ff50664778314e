"""`python -m tests.bench.memory`: queues larger than memory, and a million jobs, on real servers on loopback.

300 MB of bodies through 64 MB of memory, on the node that was asked and on its replica; how fast bodies come from disk,
beside memory; a million small jobs, a kill, the replay of their log, and every job given back. What is given back is
compared byte for byte: another body, or none, ends this with an error. `--json FILE` writes the table's rows; `--only
large` or `million` measures a part. Under four minutes.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from tests.bench import report
from tests.bench.log import replayed, wait_loaded
from tests.bench.provenance import commit, machine
from tests.bench.report import Report, Row, tell
from tests.system.nodes import Cluster, Node, Resp, command_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MB = 1 << 20
PATIENCE_S = 120.0
LARGE_BODIES, LARGE_BYTES = 3_000, 100_000
SMALL_BODIES, SMALL_BYTES = 1_000_000, 100
RETRY_S = 20
LARGE_BATCH, SMALL_BATCH = 10, 500
LOG = ("--appendonly", "yes", "--appendfsync", "everysec")


def large_body(number: int) -> bytes:
    """The bytes of one of the large bodies: no two alike, none that packs well."""
    return b"%08d" % number + random.Random(number).randbytes(LARGE_BYTES - 8)


def small_body(number: int) -> bytes:
    """The bytes of one of the small bodies."""
    return b"%08d" % number * (SMALL_BYTES // 8) + b"-" * (SMALL_BYTES % 8)


@attrs.frozen
class Bodies:
    """So many bodies, and in which batches they come and go."""

    make: Callable[[int], bytes]
    count: int
    batch: int

    def add(self, port: int, *options: str | int) -> None:
        """Add them all, pipelined; RuntimeError for an answer that is no id."""
        with Resp(port, timeout_s=PATIENCE_S) as client:
            for first in range(0, self.count, self.batch):
                numbers = range(first, min(first + self.batch, self.count))
                words = [
                    command_bytes("ADDJOB", "bodies", self.make(number), 0, *options)
                    for number in numbers
                ]
                client.sock.sendall(b"".join(words))
                for _ in numbers:
                    reply = client.read()
                    if not isinstance(reply, str):
                        raise RuntimeError(f"ADDJOB was answered {reply!r}")

    def take(self, port: int) -> float:
        """Take and acknowledge them all, in any order; returns how many came a second.

        RuntimeError for one that was never added, or if no more come though some are missing.
        """
        missing = bytearray(b"\1") * self.count
        left, in_get_s = self.count, 0.0
        with Resp(port, timeout_s=PATIENCE_S) as client:
            while left:
                started = time.perf_counter()
                found = client.call(
                    "GETJOB", "TIMEOUT", 30_000, "COUNT", self.batch, "FROM", "bodies"
                )
                in_get_s += time.perf_counter() - started
                if not found:
                    raise RuntimeError(f"{left} of {self.count} bodies weren't given back")
                for _, _, body in found:
                    number = int(body[:8])
                    if body != self.make(number):
                        raise RuntimeError(f"body {number} came back as {body[:40]!r}…")
                    left -= missing[number]
                    missing[number] = 0
                client.call("ACKJOB", *[id_ for _, id_, _ in found])
        return self.count / in_get_s


LARGE = Bodies(large_body, LARGE_BODIES, LARGE_BATCH)
SMALL = Bodies(small_body, SMALL_BODIES, SMALL_BATCH)


def peak_mb(node: Node) -> float:
    """The most memory that a node ever had in this life, in MB of 10^6 bytes."""
    return _status_kb(node, "VmHWM") * 1024 / 1e6


def resident_mb(node: Node) -> float:
    """What it has now."""
    return _status_kb(node, "VmRSS") * 1024 / 1e6


def _status_kb(node: Node, field: str) -> int:
    assert node.process is not None
    lines = Path(f"/proc/{node.process.pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field + ":")).split()[1])


def larger_than_memory(folder: Path) -> Iterator[Row]:
    """Large bodies on one node whose memory holds few of them, then on one that holds all."""
    what = f"{LARGE_BODIES:,} bodies of {LARGE_BYTES // 1000} kB, maxmemory"
    figures: list[tuple[float, float]] = []
    for maxmemory in ("64mb", "1gb"):
        node = Node(folder / f"large-{maxmemory}", *LOG, "--maxmemory", maxmemory).start()
        try:
            started = time.perf_counter()
            LARGE.add(node.port, "REPLICATE", 1)
            added = LARGE.count / (time.perf_counter() - started)
            taken = LARGE.take(node.port)
            figures.append((taken, peak_mb(node)))
        finally:
            node.kill()
        text = f"all given back; {added:,.0f}/s in, {taken:,.0f}/s out; RSS at most {figures[-1][1]:.0f} MB"
        yield Row(f"{what} {maxmemory}", text, "below 220 MB" if maxmemory == "64mb" else "-")
    ratio = figures[0][0] / figures[1][0]
    yield Row("delivery from disk over delivery from memory", f"{ratio:.2f}", "at least 0.33")


def on_a_replica(folder: Path) -> Iterator[Row]:
    """The same on two nodes; the one that was asked is killed, and the other gives all back."""
    with Cluster(folder / "pair", 2, *LOG, "--maxmemory", "64mb") as cluster:
        asked, replica = cluster.join().nodes
        LARGE.add(asked.port, "REPLICATE", 2, "RETRY", RETRY_S)
        peaks = peak_mb(asked), peak_mb(replica)
        asked.kill()
        LARGE.take(replica.port)
        most = max(*peaks, peak_mb(replica))
    what = f"{LARGE_BODIES:,} bodies of {LARGE_BYTES // 1000} kB on two nodes, maxmemory 64mb"
    yield Row(what, f"all given back by the replica; RSS at most {most:.0f} MB", "below 220 MB")


def million(folder: Path) -> Iterator[Row]:
    """Many small jobs: in, over a kill, and out."""
    node = Node(folder / "million", *LOG, "--maxmemory", "1gb").start()
    what = f"{SMALL_BODIES:,} jobs of {SMALL_BYTES} bytes, maxmemory 1gb"
    asked = f"at most {1.2 * 1024 * MB / 1e6:.0f} MB"
    try:
        started = time.perf_counter()
        SMALL.add(node.port, "REPLICATE", 1, "RETRY", RETRY_S)
        added = SMALL.count / (time.perf_counter() - started)
        yield Row(f"{what}, in", f"{added:,.0f}/s; RSS at most {peak_mb(node):.0f} MB", asked)
        node.kill()
        node.start()
        wait_loaded(node)
        figure = f"{replayed(node.log())}; RSS {resident_mb(node):.0f} MB"
        yield Row(f"{what}, replay after a kill", figure, asked)
        taken = SMALL.take(node.port)
        figure = f"all given back; {taken:,.0f}/s; RSS at most {peak_mb(node):.0f} MB"
        yield Row(f"{what}, out", figure, asked)
    finally:
        node.kill()


PARTS: dict[str, tuple[Callable[[Path], Iterator[Row]], ...]] = {
    "large": (larger_than_memory, on_a_replica),
    "million": (million,),
}


def main() -> None:
    """Measure and tell."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.memory", description=__doc__)
    parser.add_argument("--only", choices=[*PARTS], help="measure this part")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there, too")
    arguments = parser.parse_args()
    names = [arguments.only] if arguments.only else [*PARTS]
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="disque-bench-") as folder:
        for measure in [each for name in names for each in PARTS[name]]:
            for row in measure(Path(folder)):
                tell(row)
                rows.append(row)
    result = Report(machine(), commit(), "python -m tests.bench.memory", tuple(rows))
    print(f"\n{report.table(result)}")
    if arguments.json:
        arguments.json.write_text(report.to_json(result))


if __name__ == "__main__":
    main()
