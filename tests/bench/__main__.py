"""`make bench`: measure real servers on loopback, print the table, write bench.json and the README.

`--no-write` prints only. Nothing is asserted: a slow machine is no bug.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bench import report
from tests.bench.report import Report, Row
from tests.system.nodes import ROOT, Cluster, Node

STARTS = 5
SEQUENTIAL_JOBS = 1_000
CLIENTS = 50
DEPTH = 16
PIPELINED_JOBS = 200_000
BODY = "x" * 100


def start_up(folder: Path) -> Row:
    """From exec to the first PONG, median of STARTS; the first start ever isn't counted."""
    times: list[float] = []
    for number in range(STARTS + 1):
        node = Node(folder / f"start-{number}")
        try:
            times.append(node.start().started_in_s)
        finally:
            node.kill()
    figure = f"median {statistics.median(times[1:]):.3f} s of {STARTS}"
    return Row("start: exec to first PING answered", figure, "below 0.4 s")


def sequential(folder: Path) -> Row:
    """One client adding one job after another, each with three copies before its reply."""
    times_ms: list[float] = []
    with Cluster(folder / "three", 3) as cluster, cluster.join().nodes[0].connect() as client:
        for _ in range(SEQUENTIAL_JOBS // 10):
            client.call("ADDJOB", "warm", BODY, 5000, "REPLICATE", 3)
        for _ in range(SEQUENTIAL_JOBS):
            start = time.perf_counter()
            client.call("ADDJOB", "bench", BODY, 5000, "REPLICATE", 3)
            times_ms.append((time.perf_counter() - start) * 1_000)
    what = f"{SEQUENTIAL_JOBS:,} sequential ADDJOB REPLICATE 3, three nodes"
    return Row(what, report.latencies(times_ms), "below 3 ms each")


def pipelined(folder: Path) -> Row:
    """Many clients with pipelines of ADDJOB on one node."""
    node = Node(folder / "one")
    try:
        rate, by = load(node.start().port)
    finally:
        node.kill()
    what = f"ADDJOB, {CLIENTS} clients x {DEPTH} pipelined, one node ({by})"
    return Row(what, f"{rate:,.0f} jobs/s", "above 20,000/s on two cores")


def load(port: int) -> tuple[float, str]:
    """Jobs a second, and what made the load."""
    if tool := shutil.which("redis-benchmark"):
        sizes = ["-c", str(CLIENTS), "-P", str(DEPTH), "-n", str(PIPELINED_JOBS)]
        call = [tool, "-p", str(port), *sizes, "--csv", "ADDJOB", "bench", BODY, "0"]
        return report.rate_from_csv(output(call)), "redis-benchmark"
    sizes = [str(port), str(CLIENTS), str(DEPTH), str(PIPELINED_JOBS)]
    return float(
        output([sys.executable, "-m", "tests.bench.pipeline", *sizes])
    ), "tests.bench.pipeline"


def output(call: list[str], errors: int | None = None) -> str:
    """What a command prints; CalledProcessError if it fails. `errors`: where its stderr goes."""
    done = subprocess.run(
        call, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True, check=True, timeout=300
    )
    return done.stdout


def machine() -> str:
    """Processor, cores and Python in a few words."""
    model = "unknown processor"
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text().splitlines()
        names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
        model = names[0] if names else model
    return f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}"


def commit() -> str:
    """The short id of the commit, with a plus if files differ from it; "unknown" without git."""
    quiet = subprocess.DEVNULL
    try:
        name = output(["git", "rev-parse", "--short", "HEAD"], quiet).strip()
        return name + ("+" if output(["git", "status", "--porcelain"], quiet).strip() else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def main() -> None:
    """Measure and tell."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument(
        "--no-write", action="store_true", help="leave bench.json and README.md alone"
    )
    arguments = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="disque-bench-") as folder:
        for measure in (start_up, sequential, pipelined):
            rows.append(measure(Path(folder)))
            print(f"{rows[-1].what}: {rows[-1].figure}", flush=True)
    result = Report(machine(), commit(), "make bench", tuple(rows))
    print(f"\n{report.table(result)}")
    if not arguments.no_write:
        (ROOT / "bench.json").write_text(report.to_json(result))
        readme = ROOT / "README.md"
        readme.write_text(report.splice(readme.read_text(), report.table(result)))


if __name__ == "__main__":
    main()
