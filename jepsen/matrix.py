"""Matrix: which tests make up `test-all`, in what order, and how their ends become one exit status."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs

from jepsen.nemesis.packages import KINDS, NEEDS_LOG
from jepsen.options import Options

VALID: Final = 0
INVALID: Final = 1
UNKNOWN: Final = 2
BAD_ARGUMENTS: Final = 254
BROKEN: Final = 255
# A bug that was found is never masked by a harness that broke, nor that by a run that can't tell.
WORST_FIRST: Final = (INVALID, BROKEN, UNKNOWN, VALID)
STATUS: Final = {True: VALID, False: INVALID, None: UNKNOWN}
WORDS: Final = {VALID: "valid", INVALID: "INVALID", UNKNOWN: "unknown", BROKEN: "HARNESS BROKEN"}


@attrs.frozen
class Cell:
    """One test of the matrix. `aof` and `final` are its own, whatever the command line says; "": as that says."""

    workload: str
    nemesis: str
    time_limit: float
    replicate: int = 0
    aof: str = ""
    final: str = ""

    @property
    def title(self) -> str:
        """What it is, in a few words."""
        own = {"aof": self.aof, "final": self.final}
        words = [f" --{name} {value}" for name, value in own.items() if value]
        return f"{self.workload} x {self.nemesis}{''.join(words)}"


QUICK: Final = (
    Cell("queue", "partition-random-halves,kill,one-way", 45),
    Cell("at-most-once", "partition-halves,flapping", 30),
    Cell("ack-race", "one-way,pause", 30),
    Cell("federation", "bridge", 20),
)
RACES: Final = ("partition-halves", "one-way", "flapping", "kill")
# What kills nodes runs once more with a log, where a kill excuses no loss.
KILLS: Final = ("kill", "kill-two", "rolling-restart", "mass-restart")


def full() -> tuple[Cell, ...]:
    """Every nemesis under the queue, the races under four of them, every other workload under its own, 60 s each.

    Disk faults need a log, and so does `mixed`: without one it leaves out what wipes more than copies can outlast
    (packages.TOO_HARSH), with one it has every kind.
    """
    queue = [
        Cell("queue", name, 60, aof="always" if name in NEEDS_LOG else "")
        for name in ("none", *KINDS)
    ]
    logged = [Cell("queue", name, 60, aof="always") for name in KILLS]
    races = [
        Cell(workload, name, 60) for workload in ("at-most-once", "ack-race") for name in RACES
    ]
    others = [
        Cell("nack-working", "partition-halves", 60),
        Cell("delay-ttl", "partition-random-halves", 60),
        Cell("replication", "partition-one", 60),
        Cell("federation", "partition-random-halves,bridge", 60),
        Cell("async-fastack", "partition-halves,flapping", 60),
        Cell("leave-join", "leave-join", 60),
        Cell("bigmem", "none", 60),
        Cell("fifo", "none", 60),
        Cell("purge-cancel", "partition-halves", 60),
        Cell("dead-letter", "partition-halves", 60),
        Cell("queue", "partition-halves", 60, final="core"),
        Cell("queue", "mixed", 120, aof="always"),
    ]
    return (*queue, *logged, *races, *others)


def options_of(cell: Cell, base: Options) -> Options:
    """The options of a cell: what the command line says for all, with the cell's own."""
    return attrs.evolve(
        base,
        workload=cell.workload,
        nemesis=cell.nemesis,
        time_limit=cell.time_limit,
        replicate=cell.replicate or base.replicate,
        aof=cell.aof or base.aof,
        final=cell.final or base.final,
    )


def worst(statuses: Sequence[int]) -> int:
    """One exit status for many tests; UNKNOWN for none: nothing was shown."""
    return next((status for status in WORST_FIRST if status in statuses), UNKNOWN)
