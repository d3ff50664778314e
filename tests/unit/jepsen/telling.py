"""Telling: histories for tests, written as a story. Each call is one thing that happened; times in ms.

`Tale` keeps the clock and the process numbers; it knows nothing of what is right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import attrs

from jepsen.checkers import Meta, Result, Run, check
from jepsen.history import INFO, INVOKE, NEMESIS, OBSERVER, OK, History, Op

MS = 1_000_000
NODES = ("n1", "n2", "n3", "n4", "n5")
PREFIXES = {node: f"{number:08x}" for number, node in enumerate(NODES, 0xA0)}


@attrs.define
class Tale:
    """A history in the making. Calls may come out of order of time: `run` sorts."""

    nodes: tuple[str, ...] = NODES
    _events: list[tuple[int, int, dict[str, Any]]] = attrs.Factory(list)
    _process: int = 100
    _fault: int = 0
    ids: dict[int, str] = attrs.Factory(dict)

    def _at(self, ms: float, **fields: Any) -> None:
        self._events.append((int(ms * MS), len(self._events), fields))

    def _call(
        self,
        at: float,
        f: str,
        node: str,
        value: dict[str, Any],
        adds: dict[str, Any],
        *,
        outcome: str,
        took: float,
        error: str,
        process: int | None,
    ) -> None:
        if process is None:
            self._process += 1
            process = self._process
        who = {"process": process, "f": f, "node": node}
        self._at(at, type=INVOKE, value=value, **who)
        if outcome:
            done = {**value, **adds} if outcome == OK else value
            self._at(at + took, type=outcome, value=done, error=error, **who)

    def add(
        self,
        v: int,
        at: float,
        node: str = "n1",
        *,
        queue: str = "q",
        outcome: str = OK,
        took: float = 5,
        error: str = "",
        job: str = "",
        is_async: bool = False,
        process: int | None = None,
        **given: Any,
    ) -> str:
        """ADDJOB; RETRY 2 s, REPLICATE 2 unless given. Returns the id, which the value has whether it is ok or not."""
        value = {
            "v": v,
            "queue": queue,
            "retry": 2,
            "replicate": 2,
            "delay": 0,
            "ttl": 0,
            "async": is_async,
            "timeout": 1000,
            "limit": 0,
            "dead": "",
            "size": 0,
        }
        value |= given
        job = self.ids[v] = job or f"D-{PREFIXES[node]}-{v:024x}-05a1"
        self._call(
            at,
            "add",
            node,
            value,
            {"id": job},
            outcome=outcome,
            took=took,
            error=error,
            process=process,
        )
        return job

    def get(
        self,
        vs: Sequence[int],
        at: float,
        node: str = "n1",
        *,
        queue: str = "q",
        outcome: str = OK,
        took: float = 5,
        error: str = "",
        timeout: int = 500,
        ids: dict[int, str] | None = None,
        from_queue: str = "",
        process: int | None = None,
    ) -> None:
        """GETJOB that brings these values; a value without ADDJOB gets an id of its own."""
        names = {**self.ids, **(ids or {})}
        jobs = [
            {
                "v": v,
                "id": names.get(v, f"D-ffffffff-{abs(v):024x}-05a1"),
                "queue": from_queue or queue,
                "nacks": 0,
                "extra": 0,
                **({"raw": "?"} if v < 0 else {}),
            }
            for v in vs
        ]
        value = {"queues": [queue], "count": max(1, len(jobs)), "timeout": timeout}
        self._call(
            at,
            "get",
            node,
            value,
            {"jobs": jobs},
            outcome=outcome,
            took=took,
            error=error,
            process=process,
        )

    def order(
        self,
        f: str,
        vs: Sequence[int],
        at: float,
        node: str = "n1",
        *,
        outcome: str = OK,
        took: float = 5,
        error: str = "",
        process: int | None = None,
        **given: Any,
    ) -> None:
        """ack, fastack, nack, working, deljob, cancel, enqueue, dequeue, revive; all ids are counted unless given."""
        count = given.pop("count", len(vs))
        value = {"ids": [self.ids[v] for v in vs], "vs": list(vs), **given}
        adds = {"seconds": 2} if f == "working" else {"count": count}
        self._call(
            at, f, node, value, adds, outcome=outcome, took=took, error=error, process=process
        )

    def ack(self, vs: Sequence[int], at: float, node: str = "n1", **given: Any) -> None:
        """ACKJOB."""
        self.order("ack", vs, at, node, **given)

    def purge(self, at: float, queue: str = "q", node: str = "n1") -> None:
        """QPURGE."""
        self._call(
            at,
            "purge",
            node,
            {"queue": queue},
            {"count": 0},
            outcome=OK,
            took=5,
            error="",
            process=None,
        )

    def whole(self, v: int, at: float, node: str = "n1", **given: Any) -> None:
        """The usual life: added, got 20 ms later, acked 20 ms after that."""
        queue = given.get("queue", "q")
        self.add(v, at, node, **given)
        self.get([v], at + 20, node, queue=queue)
        self.ack([v], at + 40, node)

    def fault(
        self,
        start: float,
        stop: float | None,
        kind: str = "partition-halves",
        *,
        proven: bool = True,
        heal_proven: bool = True,
        **given: Any,
    ) -> None:
        """A fault from start to stop (None: never ends); 50 ms to make and to mend."""
        self._fault += 1
        value = {"id": self._fault, "kind": kind, "links": [], "nodes": [], "params": {}, **given}
        proof = {"proof": {"asked": 1, "silent": int(proven)}, "proven": proven}
        self.nemesis("start", start, value)
        self.nemesis("start", start + 50, {**value, **proof})
        if stop is not None:
            ends = {"id": self._fault, "kind": kind}
            self.nemesis("stop", stop - 50, ends)
            self.nemesis("stop", stop, {**ends, "proven": heal_proven})

    def cut(self, start: float, stop: float | None, left: Iterable[str], **given: Any) -> None:
        """A partition, this side and the rest, both ways."""
        side = set(left)
        links = [[a, b] for a in self.nodes for b in self.nodes if (a in side) != (b in side)]
        self.fault(start, stop, links=links, **given)

    def kill(self, start: float, stop: float | None, *nodes: str, wipes: bool = True) -> None:
        """Nodes killed, and started again."""
        self.fault(start, stop, "kill", nodes=list(nodes), wipes=list(nodes) if wipes else [])

    def nemesis(self, f: str, at: float, value: dict[str, Any]) -> None:
        """One event of the nemesis."""
        self._at(at, process=NEMESIS, type=INFO, f=f, value=value)

    def look(
        self,
        at: float,
        held: dict[str, Sequence[int]] | None = None,
        *,
        phase: str = "fault",
        only: Sequence[str] = (),
        members: dict[str, list[str]] | None = None,
        silent: Sequence[str] = (),
        **given: Any,
    ) -> None:
        """A round of snapshots: `held` says which values each node has un-acked; counters follow from it."""
        for number, node in enumerate(only or self.nodes):
            vs = (held or {}).get(node, ())
            value: dict[str, Any] = {
                "phase": phase,
                "members": (members or {}).get(node, sorted(self.nodes)),
                "failing": [],
                "registered": len(vs),
                "queued": len(vs),
                "acked": 0,
                "bytes": 0,
                "ids": [self.ids[v] for v in vs],
            }
            value |= {name: each.get(node, 0) for name, each in given.items()}
            self._at(
                at + number,
                process=OBSERVER,
                type=INVOKE,
                f="observe",
                node=node,
                value={"phase": phase},
            )
            end: dict[str, Any] = {"type": OK, "value": value}
            if node in silent:
                end = {"type": INFO, "value": {"phase": phase}, "error": "timeout"}
            self._at(at + number + 0.5, process=OBSERVER, f="observe", node=node, **end)

    def end(self, at: float) -> None:
        """The last round, with nothing left, once before the bound and once after."""
        self.look(at, phase="end")
        self.look(at + 8000, phase="end")

    def run(self, **meta: Any) -> Run:
        """The run that this tells; drained, five nodes, no demands, unless said otherwise."""
        history = History()
        for index, (at, _, fields) in enumerate(sorted(self._events, key=lambda each: each[:2])):
            history.append(Op(index, at, **fields))
        known: dict[str, Any] = {"nodes": self.nodes, "drained": True, "demands": {}} | meta
        return Run(Meta(**known), history)


Story = Callable[[Tale], Any]


def usual(tale: Tale) -> None:
    """What every run has: some jobs before, in and after a cut, rounds of snapshots, an empty end."""
    for number in range(12):
        tale.whole(1000 + number, 8_000 + 1_000 * number, NODES[number % 5])
    tale.cut(12_000, 15_000, ["n1", "n2"])
    tale.look(500, phase="start")
    tale.end(60_000)


def run_of(story: Story, **meta: Any) -> Run:
    """The run of a story with the usual around it; the story may give meta."""
    tale = Tale()
    usual(tale)
    given = story(tale) or {}
    return tale.run(**{"nemesis": "partition-halves", **given, **meta})


def judge(run: Run) -> dict[str, Result]:
    """Results by checker."""
    return {result.checker: result for result in check(run)}


def found(run: Run) -> set[tuple[str, str]]:
    """What was found, as (checker, kind)."""
    return {(each.checker, each.kind) for result in check(run) for each in result.findings}


def unknown(run: Run) -> set[str]:
    """The checkers that can't tell."""
    return {result.checker for result in check(run) if result.valid is None}
