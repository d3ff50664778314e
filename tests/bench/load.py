"""`python -m tests.bench.load [C_DISQUE=PATH] [[TITLE=]HOST:PORT ...]`: ours beside other servers, as ratios.

Beside C Disque where its binary is named, Redis and beanstalkd where they are installed, and servers by address, which
must speak Disque's commands (their queue `bench` is used and emptied); with `--compiled DIR` the build of ours in that
folder, too. Every measurement has servers of its own; rounds go by turns, and a figure is the median of its rounds, a
ratio that of the ratios within a round. `--only WORD` measures the rows that have it in their name, `--json FILE`
writes them. What fails is told in its row, and the others go on. Nothing is asserted: a slow machine is no bug. About
eleven minutes with C Disque and a compiled build.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import attrs

from tests.bench import report
from tests.bench import workloads as work
from tests.bench.provenance import binary_of, build_in, commit, machine
from tests.bench.report import Beside, Report, Row, tell
from tests.bench.servers import COMPILED, Kind, Server, join, kinds
from tests.bench.workloads import BATCH, CLIENTS, DEPTH
from tests.system.nodes import ReplyError

if TYPE_CHECKING:
    from types import FrameType

ROUNDS = 3
TRIAL_S = 150.0  # for one round of one server; a million jobs take half a minute on a quiet machine
TOTAL_S = 720.0  # no round goes on later than this: `make bench` ends within a quarter of an hour
REASON_CHARS = 60  # of what went wrong, in a cell of the table


class OverdueError(Exception):
    """A round took longer than it may."""


FAILURES = (OSError, EOFError, RuntimeError, AssertionError, ReplyError, ValueError, OverdueError)


@attrs.frozen
class Line:
    """A row to be: its name, the unit of its number, what is asked, and whether the README shows it."""

    what: str
    asked: str
    unit: str = "/s"
    digits: int = 0
    is_in_readme: bool = False

    def text(self, number: float) -> str:
        """The number as the table shows it."""
        return f"{number:,.{self.digits}f}{self.unit}"


@attrs.frozen
class Trial:
    """One workload and its rows; on `nodes` nodes with `flags`, by all servers or by Disques alone."""

    lines: tuple[Line, ...]
    workload: work.Workload
    nodes: int = 1
    rounds: int = ROUNDS
    flags: tuple[str, ...] = ()
    is_for_all: bool = False

    def fits(self, kind: Kind) -> bool:
        """True if such a server can do it."""
        is_plain = self.nodes == 1 and not self.flags
        return (kind.is_disque or self.is_for_all) and (kind.is_started_here or is_plain)


# C Disque takes no 0 for "no limit"
UNBOUNDED = ("--maxmemory", "100gb", "--maxclients", str(work.BLOCKED + 1_000))
C = "of C Disque"

TRIALS = (
    Trial(
        (Line(f"ADDJOB REPLICATE 1, {CLIENTS} clients", f"0.6 {C}, goal 0.9"),),
        work.adds(1),
        is_for_all=True,
    ),
    Trial(
        (
            Line(
                f"ADDJOB REPLICATE 1, {CLIENTS} clients x {DEPTH} pipelined",
                f"0.7 {C}, goal 1.0",
                is_in_readme=True,
            ),
        ),
        work.adds(DEPTH),
        is_for_all=True,
    ),
    Trial(
        (Line(f"GETJOB, {CLIENTS} clients", f"0.6 {C}, goal 0.9"),),
        work.gets(1),
        is_for_all=True,
    ),
    Trial(
        (
            Line(
                f"GETJOB, {CLIENTS} clients x {DEPTH} pipelined",
                f"1.2 {C}, goal 1.5",
                is_in_readme=True,
            ),
        ),
        work.gets(DEPTH),
        is_for_all=True,
    ),
    Trial(
        (Line(f"GETJOB COUNT {BATCH} and ACKJOB of {BATCH}, jobs", f"0.7 {C}, goal 1.0"),),
        work.batches,
    ),
    Trial(
        (Line(f"ADDJOB REPLICATE 3, three nodes, {CLIENTS} clients", f"0.5 {C}, goal 1.0"),),
        work.adds(1, 3),
        nodes=3,
    ),
    Trial(
        (
            Line(
                f"ADDJOB REPLICATE 3, three nodes, {CLIENTS} clients x {DEPTH}",
                f"1.0 {C}, goal 1.5",
                is_in_readme=True,
            ),
        ),
        work.adds(DEPTH, 3),
        nodes=3,
    ),
    Trial(
        (Line(f"ADDJOB REPLICATE 3, three nodes, one client x {DEPTH}", f"2 {C}, goal 4"),),
        work.adds(DEPTH, 3, 1),
        nodes=3,
    ),
    Trial(
        (
            Line(
                "federation, producers on A, consumers on B and C, jobs",
                f"1.0 {C}, goal 1.5",
            ),
        ),
        work.federated,
        nodes=3,
    ),
    Trial(
        tuple(
            Line(
                f"ADDJOB REPLICATE 3 at {work.CALLS_A_S:,} a second, {name}",
                asked,
                " ms",
                2,
            )
            for name, asked in (
                ("p50", f"at most 3 {C}, goal 1.5"),
                ("p99", f"at most 3 {C}, goal 1.5"),
                ("p99.9", f"at most 3 {C}, goal 1.5"),
                ("longest", "no pause above 50 ms"),
            )
        ),
        work.latencies,
        nodes=3,
    ),
    Trial(
        (
            Line(
                f"messages a node sends a peer while {work.WAITING:,} jobs wait, REPLICATE 3, "
                f"RETRY {work.WAITING_RETRY_S}",
                "-",
                "/s",
                1,
            ),
        ),
        work.bus_while_waiting,
        nodes=3,
        rounds=1,
    ),
    Trial(
        (
            Line(
                "RSS of a waiting job of 100 bytes, among a million",
                f"at most 1.4 {C}, goal 1.0",
                " bytes",
                is_in_readme=True,
            ),
            Line("CPU of a node with a million jobs that nobody asks for", "below 1 %", " %", 2),
            Line(
                "CPU of ADDJOB, GETJOB, ACKJOB: a million jobs to a thousand",
                "at most 1.5",
                " x",
                2,
            ),
        ),
        work.waiting,
        rounds=1,
        flags=UNBOUNDED,
    ),
    Trial(
        (Line("the same: a million queues to a thousand", "at most 1.5", " x", 2),),
        work.many_queues,
        rounds=1,
        flags=UNBOUNDED,
    ),
    Trial(
        (
            Line(
                f"the same: {work.BLOCKED:,} blocked clients to a thousand", "at most 1.5", " x", 2
            ),
        ),
        work.many_blocked,
        rounds=1,
        flags=UNBOUNDED,
    ),
)

# A server's numbers, a sequence for each round, or why there are none.
Found: TypeAlias = "list[Sequence[float]] | str"


def rows(servers: Sequence[Kind], only: str = "", total_s: float = TOTAL_S) -> Iterator[Row]:
    """Measure the trials of which a row has `only` in its name; the first of the servers is ours."""
    end = time.monotonic() + total_s
    for trial in TRIALS:
        if any(only in line.what for line in trial.lines):
            fit = [kind for kind in servers if trial.fits(kind)]
            yield from rows_of(trial, by_turns(trial, fit, end))


def by_turns(trial: Trial, servers: Sequence[Kind], end: float) -> dict[str, Found]:
    """One server after another, some rounds; who fails once is not asked again."""
    found: dict[str, Found] = {kind.title: [] for kind in servers}
    for _ in range(trial.rounds):
        for kind in servers:
            numbers = found[kind.title]
            if isinstance(numbers, str):
                continue
            try:
                with running(trial, kind) as nodes, at_most(min(TRIAL_S, end - time.monotonic())):
                    numbers.append(trial.workload(nodes))
            except FAILURES as error:
                found[kind.title] = reason(error)
    return found


def reason(error: Exception) -> str:
    """Why there is no figure, for a cell of the table: the last line, where a server that ended says it."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return f"failed: {lines[-1].strip().replace('|', '/')[:REASON_CHARS]}"


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """OverdueError if what is inside takes longer; for the main thread."""

    def ring(_number: int, _frame: FrameType | None) -> None:
        raise OverdueError(f"not done within {seconds:.0f} s")

    if seconds <= 0:
        raise OverdueError("no time is left")
    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def running(trial: Trial, kind: Kind) -> Iterator[list[Server]]:
    """The nodes of a trial, started and joined; gone at the end."""
    with tempfile.TemporaryDirectory(prefix="disque-bench-") as folder:
        nodes = [kind.make(Path(folder) / f"{at}", *trial.flags) for at in range(trial.nodes)]
        try:
            for node in nodes:
                node.start()
            if len(nodes) > 1:
                join(nodes)
            yield nodes
        finally:
            for node in nodes:
                node.kill()


def rows_of(trial: Trial, found: dict[str, Found]) -> list[Row]:
    """The rows of a trial; its first server is ours, and another may be our compiled build."""
    (_, ours), *others = found.items()
    compiled = found.get(COMPILED, [])
    made = []
    for at, line in enumerate(trial.lines):
        beside = tuple(
            Beside(title, _figure(line, at, it), _ratio(at, ours, it), _ratio(at, compiled, it))
            for title, it in others
            if title != COMPILED
        )
        figures = [_figure(line, at, each) for each in (ours, compiled)]
        made.append(Row(line.what, figures[0], line.asked, beside, line.is_in_readme, figures[1]))
    return made


def _figure(line: Line, at: int, found: Found) -> str:
    """The median; why there is none; nothing of who wasn't measured."""
    if isinstance(found, str):
        return found
    return line.text(statistics.median([turn[at] for turn in found])) if found else ""


def _ratio(at: int, ours: Found, theirs: Found) -> float | None:
    """The median of the ratios within a round, where both have numbers and theirs is never zero."""
    if isinstance(ours, str) or isinstance(theirs, str) or not ours:
        return None
    if not all(turn[at] for turn in theirs):
        return None
    ratios = [one[at] / other[at] for one, other in zip(ours, theirs, strict=True)]
    return round(statistics.median(ratios), 3)


def options(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The command line; `servers` become kinds, `compiled` a folder or None. A usage error for what isn't there."""
    parser.add_argument("servers", nargs="*", metavar="C_DISQUE=PATH|[TITLE=]HOST:PORT")
    parser.add_argument("--compiled", default="", metavar="DIR", help="our compiled build, too")
    parser.add_argument("--only", default="", metavar="WORD", help="rows with this in their name")
    arguments = parser.parse_args()
    try:
        arguments.compiled = build_in(arguments.compiled)
        arguments.servers = named(arguments.servers, arguments.compiled)
    except ValueError as error:
        parser.error(str(error))
    return arguments


def named(words: Sequence[str], compiled: Path | None = None) -> list[Kind]:
    """The servers to measure: ours in both builds, and what C_DISQUE (a word or the environment) and addresses name."""
    binary = os.environ.get("C_DISQUE", "")
    addresses = []
    for word in words:
        if word.startswith("C_DISQUE="):
            binary = word
        else:
            addresses.append(word)
    return kinds(binary_of(binary), tuple(addresses), compiled)


def main() -> None:
    """Measure and tell."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.load", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there, too")
    arguments = options(parser)
    measured = []
    for row in rows(arguments.servers, arguments.only):
        measured.append(row)
        tell(row)
    result = Report(machine(), commit(), "python -m tests.bench.load", tuple(measured))
    print(f"\n{report.table(result)}")
    if arguments.json:
        arguments.json.write_text(report.to_json(result))


if __name__ == "__main__":
    main()
