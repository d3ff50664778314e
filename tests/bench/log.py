"""`python -m tests.bench.log [C_DISQUE=/path/disque-server]`: what the log costs, on real servers on loopback.

Jobs a second with each policy, beside C Disque where its binary is named (same settings, by turns, the median of the
ratios); how fast a log is replayed; what an ADDJOB takes while the log is compacted. `--json FILE` writes the table's
rows. Nothing is asserted: a slow machine is no bug. Under four minutes.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import tempfile
import time
from pathlib import Path

from tests.bench import churn, pipeline, report
from tests.bench.provenance import binary_of, commit, machine
from tests.bench.report import Report, Row, tell
from tests.bench.servers import CDisque
from tests.system.nodes import Node, Resp, wait_until

PARTS = ("rates", "replay", "compaction")
POLICIES = ("off", "no", "everysec", "always")
# Clients, and how many ADDJOBs each sends at once.
SHAPES = ((1, 1), (50, 1), (50, 16))
ROUNDS = 3
RUN_S = 0.8
WARM_JOBS = 400
WATCH_S = 12
REPLAYED_JOBS = 200_000
FSYNCS = 200
PATIENCE_S = 120.0
MB = 1 << 20


def policy_flags(policy: str) -> tuple[str, ...]:
    """Directives that both servers know."""
    if policy == "off":
        return ("--appendonly", "no")
    return ("--appendonly", "yes", "--appendfsync", policy)


def rate(node: Node, clients: int, depth: int) -> float:
    """Jobs a second over about RUN_S; the node is emptied after it."""
    warm = pipeline.run(node.port, clients, depth, max(WARM_JOBS, 2 * clients * depth))
    found = pipeline.run(node.port, clients, depth, int(max(warm * RUN_S, WARM_JOBS)))
    with Resp(node.port, timeout_s=PATIENCE_S) as client:
        client.call("DEBUG", "FLUSHALL")
    return found


def rates(folder: Path, policy: str, binary: str) -> list[Row]:
    """A row for each shape of load: our server, and the other by turns."""
    nodes = [Node(folder / f"ours-{policy}", *policy_flags(policy))]
    if binary:
        nodes.append(CDisque(binary, folder / f"other-{policy}", *policy_flags(policy)))
    try:
        for node in nodes:
            node.start()
        rows = []
        for clients, depth in SHAPES:
            turns = [[rate(node, clients, depth) for node in nodes] for _ in range(ROUNDS)]
            what = f"ADDJOB, log {policy}, {clients} clients x {depth} pipelined"
            rows.append(Row(what, compared(turns), "-"))
            tell(rows[-1])
        return rows
    finally:
        for node in nodes:
            node.kill()


def compared(turns: list[list[float]]) -> str:
    """Medians of each server's rates; of two, the median of the ratios within a turn."""
    ours = statistics.median([turn[0] for turn in turns])
    if len(turns[0]) == 1:
        return f"{ours:,.0f} jobs/s"
    other = statistics.median([turn[1] for turn in turns])
    ratio = statistics.median([turn[0] / turn[1] for turn in turns])
    return f"{ours:,.0f} jobs/s; C Disque {other:,.0f}; ratio {ratio:.2f}"


def fsyncs_ms(folder: Path) -> list[float]:
    """How long the disk takes for a fdatasync after 4 kB more, by itself."""
    times_ms: list[float] = []
    fd = os.open(folder / "fsync-probe", os.O_WRONLY | os.O_CREAT)
    try:
        for _ in range(FSYNCS):
            os.write(fd, b"x" * 4096)
            started = time.perf_counter()
            os.fdatasync(fd)
            times_ms.append((time.perf_counter() - started) * 1_000)
    finally:
        os.close(fd)
    return times_ms


def replay(folder: Path) -> Row:
    """Kill a node with many jobs in its log; how long the next one reads."""
    node = Node(folder / "replay", *policy_flags("everysec")).start()
    try:
        pipeline.run(node.port, 50, 16, REPLAYED_JOBS)
        wait_until("the log is synced", lambda: node.info("persistence")["aof_fsyncs"] != "0")
        node.kill()
        node.start()
        wait_loaded(node)
        figure = replayed(node.log())
    finally:
        node.kill()
    return Row(f"replay of {REPLAYED_JOBS:,} jobs of 100 bytes", figure, "-")


def wait_loaded(node: Node) -> None:
    """Wait until the log is loaded, however many jobs it has."""
    wait_until(
        f"{node.port} has loaded",
        lambda: node.info("persistence")["loading"] == "0",
        within_s=PATIENCE_S,
        every_s=0.1,
    )


def replayed(log: str) -> str:
    """What the newest log-loaded event of a server's log says; ValueError if there is none."""
    found = re.findall(r"log-loaded .*?jobs=(\d+).*? bytes=(\d+).*? seconds=([\d.]+)", log)
    if not found:
        raise ValueError(f"no log-loaded event in {log[-500:]!r}")
    jobs, size, seconds = int(found[-1][0]), int(found[-1][1]), float(found[-1][2])
    return f"{jobs / max(seconds, 0.01):,.0f} jobs/s ({jobs:,} jobs, {size / MB:.0f} MB, {seconds:.1f} s)"


def compactions(folder: Path, fsync_p99_ms: float) -> list[Row]:
    """Churn under compaction, small, middle and large; once without, to compare; once with `always`."""
    asked = {
        "everysec": "p99 at most 50 ms; 2.5 x live and two segments",
        "always": f"p99 at most {fsync_p99_ms + 50:.0f} ms; 2.5 x live and two segments",
    }
    # Policy, bytes of a body, jobs that live, compaction.
    runs = (
        ("everysec", 1_000, 30_000, False),
        ("everysec", 1_000, 30_000, True),
        ("everysec", 100, 30_000, True),
        ("everysec", 10_000, 15_000, True),
        ("always", 1_000, 30_000, True),
    )
    rows = []
    for number, (policy, body_bytes, live_jobs, is_on) in enumerate(runs):
        percentage = "100" if is_on else "0"
        found = churn.measure(
            folder / f"churn-{number}",
            *("--appendfsync", policy, "--auto-aof-rewrite-percentage", percentage),
            *("--auto-aof-rewrite-min-size", "16mb"),
            body_bytes=body_bytes,
            live_jobs=live_jobs,
            is_compacted=is_on,
            seconds=WATCH_S,
        )
        word = "compaction" if is_on else "no compaction"
        what = f"ADDJOB under {word}, {policy}, {live_jobs:,} jobs of {body_bytes:,} bytes"
        rows.append(Row(what, found.figure(), asked[policy] if is_on else "-"))
        tell(rows[-1])
    return rows


def main() -> None:
    """Measure and tell."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.log", description=__doc__)
    parser.add_argument("other", nargs="?", default="", metavar="C_DISQUE=PATH")
    parser.add_argument("--only", choices=PARTS, help="measure this part")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there, too")
    arguments = parser.parse_args()
    binary = binary_of(arguments.other or os.environ.get("C_DISQUE", ""))
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="disque-bench-") as name:
        folder = Path(name)
        disk_ms = fsyncs_ms(folder)
        rows.append(Row("fdatasync of 4 kB, the disk by itself", churn.tail(disk_ms), "-"))
        tell(rows[-1])
        if arguments.only in (None, "rates"):
            for policy in POLICIES:
                rows += rates(folder, policy, binary)
        if arguments.only in (None, "replay"):
            rows.append(replay(folder))
            tell(rows[-1])
        if arguments.only in (None, "compaction"):
            rows += compactions(folder, report.percentile(disk_ms, 0.99))
    words = f"python -m tests.bench.log {arguments.other and 'C_DISQUE=…'}".strip()
    result = Report(machine(), commit(), words, tuple(rows))
    print(f"\n{report.table(result)}")
    if arguments.json:
        arguments.json.write_text(report.to_json(result))


if __name__ == "__main__":
    main()
