"""History: what clients, faults and observers did and saw, in one format for real and simulated runs.

One `Op` an event, one JSON object a line in `history-full.jsonl`. It knows the shape of an event and how
an invocation finds its completion, and refuses to know what is right: checkers do. The design is Jepsen's,
with two changes: `get` and `ack` are always apart, and an `add` is unknown (`info`) unless its reply says
for sure what happened.

Values by f: what the invocation has, then what an ok adds:

  add      v, queue, retry (s; -1 default), replicate (0 default), delay (s), ttl (s; 0 default), async,
           timeout (ms), limit, dead, size (bytes), priority (0 where nobody says any); ok: id
  get      queues, count, timeout (ms); ok: jobs [{v, id, queue, nacks, extra}], v = -1 and raw if not ours
  ack, fastack, nack, deljob, cancel, enqueue, dequeue, revive
           ids, vs, (nack: delay in s); ok: count
  working  ids [one], vs; ok: seconds
  purge    queue; ok: count
  observe  phase, of process OBSERVER; ok: what `checkers.snapshots.Snapshot` has
  start, stop, phase, leave, forget, join
           of process NEMESIS, twice each, both times info; see `checkers.faults`
  views    of process NEMESIS, once, info: target; proven: it was in every view, between the kills of a rolling restart
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import attrs

NEMESIS: Final = -1
OBSERVER: Final = -2

INVOKE: Final = "invoke"
OK: Final = "ok"
FAIL: Final = "fail"
INFO: Final = "info"

# What a client may order about jobs it names by id, beside ack.
ENDING: Final = frozenset({"ack", "fastack", "deljob", "cancel"})
ORDERS: Final = ENDING | {"nack", "enqueue", "dequeue", "revive", "working"}


@attrs.frozen(slots=True)
class Op:
    """One event. `time` is ns since the run began; `value` is JSON-able: its keys stand at the top of this module."""

    index: int  # dense, from 0
    time: int
    process: int  # a worker's, NEMESIS or OBSERVER
    type: str  # INVOKE, OK, FAIL or INFO
    f: str
    value: Mapping[str, Any]
    node: str = ""  # "n1" ...; "" for the nemesis
    # of FAIL and INFO: the RESP error line, or timeout, refused, reset, eof, cancelled
    error: str = ""

    def to_line(self) -> str:
        """This event as one line of JSON, without the newline; the fields in order, empty ones left out."""
        fields: dict[str, Any] = {
            "index": self.index,
            "time": self.time,
            "process": self.process,
            "type": self.type,
            "f": self.f,
            "value": self.value,
        }
        if self.node:
            fields["node"] = self.node
        if self.error:
            fields["error"] = self.error
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def from_line(cls, line: str) -> Op:
        """The event of one line. Raises ValueError for what is no event."""
        try:
            return cls(**json.loads(line))
        except TypeError as error:
            raise ValueError(f"no event: {line[:200]!r}") from error


class History(list[Op]):
    """The events of a run, in order of index and time."""

    @classmethod
    def read(cls, path: Path) -> History:
        """The events of a file; a last line that was cut off (the harness died) is left out.

        Raises ValueError for any other line that is no event, naming it.
        """
        lines = path.read_text().splitlines()
        history = cls()
        for number, line in enumerate(lines, 1):
            try:
                history.append(Op.from_line(line))
            except ValueError as error:
                if number == len(lines):
                    break
                raise ValueError(f"{path}:{number}: {error}") from error
        return history

    def write(self, path: Path) -> None:
        """Write all events, one a line."""
        with path.open("w") as file:
            file.writelines(f"{op.to_line()}\n" for op in self)

    def pairs(self) -> Iterator[tuple[Op, Op | None]]:
        """Each invocation with its completion, in order of invocation; see `pair`."""
        return pair(self)


def pair(ops: Iterable[Op]) -> Iterator[tuple[Op, Op | None]]:
    """Each invocation of a client or observer with its completion, None if it has none; in order of invocation.

    A completion belongs to the last open invocation of its process; an observer has one open a node. Completions
    without invocation are passed over, nemesis events have no pairs.
    """
    opened: dict[tuple[int, str], int] = {}
    found: list[tuple[Op, Op | None]] = []
    for op in ops:
        if op.process == NEMESIS:
            continue
        key = (op.process, op.node if op.process == OBSERVER else "")
        if op.type == INVOKE:
            opened[key] = len(found)
            found.append((op, None))
        elif (at := opened.pop(key, None)) is not None:
            found[at] = (found[at][0], op)
    return iter(found)
