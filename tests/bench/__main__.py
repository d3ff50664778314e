"""`make bench`: measure, print the table, write bench.json and the tables of README.md and docs/performance.md.

Real servers on loopback, ours and those that `tests.bench.load` finds to compare with (`C_DISQUE=/path/disque-server`
names C Disque's), then the parts by themselves (`bench_*.py`, pytest-benchmark). What fails is told in its row, and the
others go on. `--only WORD` measures the rows that have it in their name and writes nothing; `--no-write` writes nothing
either. Nothing is asserted: a slow machine is no bug. Twenty minutes at most.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

from tests.bench import load, report
from tests.bench.parts import COUNT
from tests.bench.provenance import commit, machine, output
from tests.bench.report import Report, Row, tell
from tests.docs import reference
from tests.system.nodes import ROOT, Cluster, Node

STARTS = 5
SEQUENTIAL_JOBS = 1_000
CLIENTS = 50
DEPTH = 16
PIPELINED_JOBS = 200_000
BODY = "x" * 100
OWN_S = 40.0  # for one of the first rows
PARTS_S = 60.0


def start_up(folder: Path, root: Path) -> str:
    """From exec to the first PONG, median of STARTS; the first start ever isn't counted."""
    times: list[float] = []
    for number in range(STARTS + 1):
        node = Node(folder / f"start-{number}", root=root)
        try:
            times.append(node.start().started_in_s)
        finally:
            node.kill()
    return f"median {statistics.median(times[1:]):.3f} s of {STARTS}"


def sequential(folder: Path, root: Path) -> str:
    """One client adding one job after another, each with three copies before its reply."""
    times_ms: list[float] = []
    with (
        Cluster(folder / "three", 3, root=root) as cluster,
        cluster.join().nodes[0].connect() as client,
    ):
        for _ in range(SEQUENTIAL_JOBS // 10):
            client.call("ADDJOB", "warm", BODY, 5000, "REPLICATE", 3)
        for _ in range(SEQUENTIAL_JOBS):
            start = time.perf_counter()
            client.call("ADDJOB", "bench", BODY, 5000, "REPLICATE", 3)
            times_ms.append((time.perf_counter() - start) * 1_000)
    return report.latencies(times_ms)


def pipelined(folder: Path, root: Path) -> str:
    """Many clients with pipelines of ADDJOB on one node, as redis-benchmark makes them."""
    tool = shutil.which("redis-benchmark")
    if tool is None:
        return "redis-benchmark isn't installed"
    sizes = ["-c", str(CLIENTS), "-P", str(DEPTH), "-n", str(PIPELINED_JOBS)]
    node = Node(folder / "one", root=root)
    try:
        call = [tool, "-p", str(node.start().port), *sizes]
        rate = report.rate_from_csv(output([*call, "--csv", "ADDJOB", "bench", BODY, "0"]))
    finally:
        node.kill()
    return f"{rate:,.0f} jobs/s"


OWN: tuple[tuple[str, Callable[[Path, Path], str], str, bool], ...] = (
    # what, how, what is asked, whether the README shows it
    ("start: exec to first PING answered", start_up, "below 0.4 s", False),
    (
        f"{SEQUENTIAL_JOBS:,} sequential ADDJOB REPLICATE 3, three nodes",
        sequential,
        "below 3 ms each",
        True,
    ),
    (
        f"ADDJOB, {CLIENTS} clients x {DEPTH} pipelined, by redis-benchmark",
        pipelined,
        "above 20,000/s on two cores",
        False,
    ),
)


def own(compiled: Path | None, only: str) -> Iterator[Row]:
    """What there is nothing to compare with but our other build."""
    for what, measure, asked, is_in_readme in OWN:
        if only in what:
            figures = [figure_of(measure, root) if root else "" for root in (ROOT, compiled)]
            yield Row(what, figures[0], asked, is_in_readme=is_in_readme, compiled=figures[1])


def figure_of(measure: Callable[[Path, Path], str], root: Path) -> str:
    """What comes out for the build in `root`, or why nothing does."""
    try:
        with tempfile.TemporaryDirectory(prefix="disque-bench-") as folder, load.at_most(OWN_S):
            return measure(Path(folder), root)
    except (*load.FAILURES, subprocess.SubprocessError) as error:
        return load.reason(error)


def parts(compiled: Path | None, only: str) -> Iterator[Row]:
    """The parts by themselves, without sockets; a build of which they fail says so in a row of its own."""
    ours, others = (parts_of(root, only) if root else {} for root in (ROOT, compiled))
    for what in ours | others:
        figure, compiled_figure = ours.get(what, ""), others.get(what, "")
        yield Row(what, figure, "-", is_in_readme=False, compiled=compiled_figure)


def parts_of(root: Path, only: str) -> dict[str, str]:
    """What the parts of the build in `root` take by pytest-benchmark, medians."""
    with tempfile.TemporaryDirectory(prefix="disque-bench-") as folder:
        path = Path(folder) / "parts.json"
        try:
            with load.at_most(PARTS_S):
                output(parts_command(root, path), subprocess.DEVNULL)
            found = json.loads(path.read_text())["benchmarks"]
        except (*load.FAILURES, subprocess.SubprocessError) as error:
            return {"parts by themselves": load.reason(error)}
    medians = {each["extra_info"]["what"]: each["stats"]["median"] for each in found}
    return {what: microseconds(each / COUNT) for what, each in medians.items() if only in what}


def parts_command(root: Path, path: Path) -> list[str]:
    """Measures them in this Python and writes `path`; tests come from here, what they measure from `root`."""
    # Not PYTHONPATH: `-m` and pyproject.toml put this folder before it
    paths = f"pythonpath={shlex.quote(str(root))} {shlex.quote(str(ROOT))}"
    words = [sys.executable, "-m", "pytest", "tests/bench", "-o", "python_files=bench_*.py"]
    return [*words, "-o", paths, "--benchmark-only", f"--benchmark-json={path}"]


def microseconds(seconds: float) -> str:
    """As the table shows it."""
    return f"{seconds * 1e6:,.2f} µs"


def write(result: Report) -> None:
    """Write bench.json, and the tables that are made of it."""
    (ROOT / "bench.json").write_text(report.to_json(result))
    readme = ROOT / "README.md"
    readme.write_text(report.splice(readme.read_text(), report.table(report.headlines(result))))
    page = ROOT / "docs" / "performance.md"
    page.write_text(reference.generated(page.read_text()))


def main() -> None:
    """Measure and tell."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--no-write", action="store_true", help="leave all files alone")
    arguments = load.options(parser)
    only, compiled = arguments.only, arguments.compiled
    measured: list[Row] = []
    for row in chain(
        own(compiled, only), load.rows(arguments.servers, only), parts(compiled, only)
    ):
        measured.append(row)
        tell(row)
    result = Report(machine(), commit(), "make bench", tuple(measured))
    print(f"\n{report.table(result)}")
    if not (arguments.only or arguments.no_write):
        write(result)


if __name__ == "__main__":
    main()
