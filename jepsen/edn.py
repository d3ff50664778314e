"""EDN: the view of a history that Jepsen's own checkers read, one map a line.

`add` is :enqueue, each job of a `get` a pair of :dequeue events, acks are :ack, faults :info of :nemesis. Indices are
dense anew. What has no counterpart (observations, purges) is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from jepsen.history import FAIL, INFO, INVOKE, NEMESIS, OK, ORDERS, Op, pair


class Keyword(str):
    """A string that EDN writes as :name."""

    __slots__ = ()


def dumps(value: object) -> str:
    """Any JSON-able value, or a Keyword, as EDN. Keys of maps become keywords. Raises TypeError for others."""
    if isinstance(value, Keyword):
        return f":{value}"
    if value is None:
        return "nil"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return '"' + escaped.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t") + '"'
    if isinstance(value, Mapping):
        return "{" + ", ".join(f":{key} {dumps(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + " ".join(dumps(each) for each in value) + "]"
    raise TypeError(f"no EDN for {value!r}")


def write(path: Path, ops: Iterable[Op]) -> None:
    """Write Jepsen's view of a history to a file."""
    with path.open("w") as file:
        file.writelines(f"{line}\n" for line in lines(ops))


def lines(ops: Iterable[Op]) -> Iterator[str]:
    """Jepsen's view, one map an item."""
    known = list(ops)
    ends = {invoke.index: done for invoke, done in pair(known)}
    values: dict[str, int] = {}
    for index, event in enumerate(event for op in known for event in _events(op, ends, values)):
        yield dumps({"index": index, **event})


def _events(
    op: Op, ends: Mapping[int, Op | None], values: dict[str, int]
) -> Iterator[dict[str, Any]]:
    """What Jepsen sees of one of our events; a pair is written where its completion stands, if it has to be split."""
    if op.process == NEMESIS:
        name = op.value.get("kind") or op.value.get("name") or op.value.get("target")
        yield _event(op, INFO, op.f, name, Keyword("nemesis"))
    elif op.type == INVOKE and op.f == "add":
        yield _event(op, INVOKE, "enqueue", op.value["v"])
        done = ends[op.index]
        if done is not None and done.type == OK:
            values[done.value["id"]] = op.value["v"]
    elif op.f == "add":
        extra = {"job": op.value["id"]} if op.type == OK else {}
        yield _event(op, op.type, "enqueue", op.value.get("v")) | extra
    elif op.f == "get" and op.type != INVOKE:
        yield from _dequeues(op, values)
    elif op.f in ORDERS:
        ids = op.value.get("ids", ())
        yield _event(op, op.type, op.f, [values.get(job, job) for job in ids])


def _dequeues(op: Op, values: dict[str, int]) -> Iterator[dict[str, Any]]:
    jobs = op.value.get("jobs") or () if op.type == OK else ()
    for job in jobs:
        values[job["id"]] = job["v"]
        yield _event(op, INVOKE, "dequeue", None)
        yield _event(op, OK, "dequeue", job["v"])
    if not jobs:
        yield _event(op, INVOKE, "dequeue", None)
        # Jepsen's tests call an empty answer a failure
        yield _event(op, FAIL if op.type == OK else op.type, "dequeue", None)


def _event(
    op: Op, kind: str, f: str, value: object, process: int | Keyword | None = None
) -> dict[str, Any]:
    event: dict[str, Any] = {
        "time": op.time,
        "process": op.process if process is None else process,
        "type": Keyword(kind),
        "f": Keyword(f),
        "value": value,
    }
    if op.node:
        event["node"] = op.node
    if op.error:
        event["error"] = op.error
    return event
