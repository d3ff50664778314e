"""A history made up: clients that add, get and ack, two faults, an observer; for the store and the report only.

It looks like a real one in shape and rates, and promises nothing about being valid: a few acknowledged adds are never
delivered, some calls never complete, errors carry text that a page must escape.
"""

from __future__ import annotations

import random
from typing import Any

import attrs

from jepsen.checkers.base import Finding, Meta, Result, Run
from jepsen.history import FAIL, INFO, INVOKE, NEMESIS, OBSERVER, OK, History, Op

NODES = ("n1", "n2", "n3")
MS = 1_000_000
# A bus address, an error and a name that would break a page which doesn't escape.
NASTY = "-ERR <script>alert('x')</script> & \"quotes\" \x00\x1b"


@attrs.define(eq=False)
class Book:
    """Collects events in any order and gives them their index at the end."""

    events: list[tuple[int, Op]] = attrs.field(factory=list)

    def add(
        self,
        at_ms: float,
        process: int,
        kind: str,
        f: str,
        value: dict[str, Any],
        node: str = "",
        error: str = "",
    ) -> None:
        """Note one event at an instant in ms."""
        op = Op(0, int(at_ms * MS), process, kind, f, value, node, error)
        self.events.append((len(self.events), op))

    def history(self) -> History:
        """All events in order of time, with dense indexes."""
        ordered = sorted(self.events, key=lambda event: (event[1].time, event[0]))
        return History(attrs.evolve(op, index=i) for i, (_, op) in enumerate(ordered))


def job_id(v: int) -> str:
    """The id of the job of a value."""
    return f"D-{v:08x}-x-05a1"


def add_value(v: int, **given: Any) -> dict[str, Any]:
    """The value of an add's invocation."""
    return {"v": v, "queue": "q", "retry": 2, "replicate": 2, "delay": 0, "ttl": 0} | given


def make_run(jobs: int = 60, seed: int = 1) -> Run:
    """A run of `jobs` adds, one every 50 ms, by three clients; every tenth is lost, every ninth add is unknown."""
    dice = random.Random(seed)
    book = Book()
    for v in range(jobs):
        node = NODES[v % 3]
        at = v * 50.0
        add_job(book, v, node, at, dice)
    end_ms = jobs * 50 + 500
    for start, kind, proven in ((500, "partition-halves", True), (1500, "kill", False)):
        add_fault(book, start, kind, proven=proven)
    for at in range(0, end_ms, 500):
        for i, node in enumerate(NODES):
            counts = {
                "queued": i + at // 500,
                "registered": 3 * i,
                "acked": 1,
                "members": list(NODES),
            }
            book.add(at, OBSERVER, INVOKE, "observe", {"phase": "fault"}, node)
            book.add(at + 1, OBSERVER, OK, "observe", {"phase": "fault", **counts}, node)
    book.add(end_ms, 2, INVOKE, "ack", {"ids": [job_id(0)], "vs": [0]}, "n3")
    meta = Meta(
        name="queue <partition>",
        nodes=NODES,
        concurrency=3,
        workload="queue",
        nemesis="partition-halves",
        seed=77,
    )
    return Run(meta, book.history())


def add_job(book: Book, v: int, node: str, at: float, dice: random.Random) -> None:
    """The life of one job: added, delivered and acked, unless it is a lost or an unknown one."""
    process = v % 3
    value = add_value(v)
    book.add(at, process, INVOKE, "add", value, node)
    took = dice.uniform(0.5, 5)
    if v % 9 == 8:
        book.add(at + took, process, INFO, "add", value, node, "timeout")
        return
    if v % 13 == 12:
        book.add(at + took, process, FAIL, "add", value, node, NASTY)
        return
    book.add(at + took, process, OK, "add", {**value, "id": job_id(v)}, node)
    asked = {"queues": ["q"], "count": 1, "timeout": 500}
    book.add(at + 10, process, INVOKE, "get", asked, node)
    if v % 10 == 5:
        book.add(at + 20, process, OK, "get", {**asked, "jobs": []}, node)
        return
    job = {"v": v, "id": job_id(v), "queue": "q", "nacks": 0, "extra": 0}
    book.add(at + 10 + took, process, OK, "get", {**asked, "jobs": [job]}, node)
    ack = {"ids": [job_id(v)], "vs": [v]}
    book.add(at + 30, process, INVOKE, "ack", ack, node)
    book.add(at + 30 + took, process, OK, "ack", {**ack, "count": 1}, node)


def add_fault(book: Book, start_ms: float, kind: str, *, proven: bool) -> None:
    """A fault of 500 ms."""
    value: dict[str, Any] = {
        "id": int(start_ms),
        "kind": kind,
        "links": [["n1", "n2"]],
        "nodes": ["n1"],
        "params": {},
    }
    proof = {"asked": 1, "silent": 1}
    book.add(start_ms, NEMESIS, INFO, "start", value)
    book.add(start_ms + 9, NEMESIS, INFO, "start", {**value, "proof": proof, "proven": proven})
    book.add(start_ms + 500, NEMESIS, INFO, "stop", {"id": value["id"], "kind": kind})
    book.add(
        start_ms + 509, NEMESIS, INFO, "stop", {"id": value["id"], "kind": kind, "proven": True}
    )


def lost_values(run: Run) -> list[int]:
    """The values that were acknowledged and never delivered, which a checker would find."""
    acknowledged = [op.value["v"] for op in run.ops if op.f == "add" and op.type == OK]
    got = {
        job["v"] for op in run.ops if op.f == "get" and op.type == OK for job in op.value["jobs"]
    }
    return [v for v in acknowledged if v not in got]


def make_results(run: Run) -> list[Result]:
    """What checkers might have said about a run of `make_run`."""
    lost = tuple(
        Finding(
            "loss",
            "lost",
            f"acknowledged on <n{v % 3 + 1}>, delivered nowhere",
            job_id(v),
            v,
            v * 50 * MS,
        )
        for v in lost_values(run)
    )
    numbers = {
        "attempted": 4913,
        "duplicated": 31,
        "attempt-count": 4913,
        "duplicated_in_faults": 28,
        "duplicated_after_nack": 3,
        "duplicated_after_ack": 0,
    }
    return [
        Result("accounting", True, "Only added jobs are delivered.", numbers=numbers),
        Result(
            "loss", not lost, "Acknowledged jobs survive W - 1 failures.", lost, {"lost": len(lost)}
        ),
        Result(
            "stats", None, "The run is not vacuous.", notes=("fault 1500 (kill) is not proven",)
        ),
    ]
