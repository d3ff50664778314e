"""How fast the checkers are: `python -m tests.bench.checkers [JOBS]`. Goal: 100,000 events a second, all together.

The history is like that of a long mixed run: five nodes, a fault every ten seconds, snapshots every three, REPLICATE 1
to 3, one job in ten given back, some unknown adds, some duplicates in faults.
"""

from __future__ import annotations

import random
import resource
import sys
import time

from jepsen import checkers
from jepsen.checkers import Meta, Run, judge
from jepsen.checkers.lives import Index
from jepsen.history import INFO, INVOKE, NEMESIS, OBSERVER, OK, Op

NODES = ("n1", "n2", "n3", "n4", "n5")
MS = 1_000_000
STEP = 4 * MS
TAIL = 20_000 * MS


def history(jobs: int, seed: int = 1) -> list[Op]:
    """Events of so many jobs, one each 4 ms."""
    dice = random.Random(seed)
    names: list[str] = []
    events: list[tuple[int, int, str, str, dict[str, object], str, str]] = []

    def call(at: int, f: str, node: str, value: dict[str, object], adds: dict[str, object]) -> None:
        process = len(events)
        events.append((at, process, INVOKE, f, value, node, ""))
        events.append((at + 2 * MS, process, OK, f, {**value, **adds}, node, ""))

    for v in range(jobs):
        at, node = v * STEP, dice.choice(NODES)
        job = _id(v, node)
        names.append(job)
        queue = f"q{v % 3}"
        add = {"v": v, "queue": queue, "retry": 2, "replicate": dice.choice((1, 1, 2)), "delay": 0}
        call(at, "add", node, {**add, "ttl": 0, "limit": 0, "dead": ""}, {"id": job})
        got: dict[str, object] = {
            "jobs": [{"v": v, "id": job, "queue": queue, "nacks": 0, "extra": 0}]
        }
        call(at + 6 * MS, "get", node, {"queues": [queue], "count": 1, "timeout": 500}, got)
        order: dict[str, object] = {"ids": [job], "vs": [v]}
        if not v % 10:
            call(at + 10 * MS, "nack", dice.choice(NODES), order, {"count": 1})
            call(at + 15 * MS, "get", node, {"queues": [queue], "count": 1, "timeout": 500}, got)
        call(at + 20 * MS, "ack", dice.choice(NODES), order, {"count": 1})
    end = jobs * STEP
    _faults(events, end)
    for at in range(0, end, 3_000 * MS):
        first, last = max(0, (at - 18 * MS) // STEP), max(0, at - 2 * MS) // STEP + 1
        _look(events, at, "fault", names[first:last])
    _look(events, end + TAIL, "end", [])
    events.sort(key=lambda each: each[0])
    return [
        Op(index, at, process, kind, f, value, node, error)
        for index, (at, process, kind, f, value, node, error) in enumerate(events)
    ]


def _id(v: int, node: str) -> str:
    return f"D-{NODES.index(node):08x}-{v:024x}-05a1"


def _faults(events: list[tuple[int, int, str, str, dict[str, object], str, str]], end: int) -> None:
    links = [[a, b] for a in NODES for b in NODES if (a in NODES[:2]) != (b in NODES[:2])]
    for number, at in enumerate(range(5_000 * MS, end, 10_000 * MS)):
        value: dict[str, object] = {
            "id": number,
            "kind": "partition-halves",
            "links": links,
            "nodes": [],
        }
        proven: dict[str, object] = {**value, "proven": True}
        for f, when, what in (
            ("start", at, value),
            ("start", at + 100 * MS, proven),
            ("stop", at + 2_900 * MS, value),
            ("stop", at + 3_000 * MS, proven),
        ):
            events.append((when, NEMESIS, INFO, f, what, "", ""))


def _look(
    events: list[tuple[int, int, str, str, dict[str, object], str, str]],
    at: int,
    phase: str,
    held: list[str],
) -> None:
    zeros: dict[str, object] = {"registered": 0, "queued": 0, "acked": 0, "bytes": 0, "ids": held}
    for node in NODES:
        value: dict[str, object] = {"phase": phase, "members": list(NODES), "failing": [], **zeros}
        events.append((at, OBSERVER, INVOKE, "observe", {"phase": phase}, node, ""))
        events.append((at + MS, OBSERVER, OK, "observe", value, node, ""))


def main() -> None:
    """Measure, and print what each checker took."""
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    ops = history(jobs)
    run = Run(Meta(nodes=NODES, nemesis="partition-halves", drained=True), ops)
    begun = time.process_time()
    results = checkers.check(run)
    took = time.process_time() - begun
    for result in results:
        print(
            result.checker,
            result.valid,
            *result.notes[:2],
            *(each.text for each in result.findings[:2]),
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(
        f"{len(ops)} events of {jobs} jobs in {took:.2f} s: {len(ops) / took:,.0f}/s, peak {peak} MiB"
    )
    begun = time.process_time()
    index = Index(run)
    print(f"{'index':16} {time.process_time() - begun:6.3f} s")
    for each in judge.CHECKERS:
        begun = time.process_time()
        each.check(index)
        print(f"{each.NAME:16} {time.process_time() - begun:6.3f} s")


if __name__ == "__main__":
    main()
