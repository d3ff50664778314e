"""Story: the tale of a run. Compact rows while it runs; text, digest and biographies made from them on demand.

A row is (ms, kind, who, ids, data): `ids` are the job ids that it is about, so that a job's biography is a filter;
`data` is a text or the messages themselves, which become text only when somebody reads them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import TypeAlias

import attrs

from cluster.nodeid import NODE_ID_CHARS
from disque.core import commands as cmd
from tests.sim import adapter

Row: TypeAlias = "tuple[int, str, str, tuple[bytes, ...], object]"

FAULT_KINDS = frozenset({"fault", "heal", "phase"})


class Story:
    """Rows in the order in which things happened."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._marks = hashlib.sha256()

    def add(
        self, at: int, kind: str, who: str, ids: tuple[bytes, ...] = (), data: object = None
    ) -> None:
        """Keep one row."""
        self.rows.append((at, kind, who, ids, data))

    def mark(self, text: bytes) -> None:
        """Mix something into the digest that no reader wants to see, as each frame's check sum."""
        self._marks.update(text)

    def digest(self) -> str:
        """Hex of 32 characters over all rows and marks; equal runs have equal digests."""
        whole = self._marks.copy()
        for at, kind, who, ids, data in self.rows:
            whole.update(
                repr((at, kind, who, ids, data if isinstance(data, str) else None)).encode()
            )
        return whole.hexdigest()[:32]

    def biography(self, job: bytes, *, rows_max: int = 400) -> Iterator[str]:
        """Lines about one job, with the faults between them; the middle of a very long life is left out."""
        mine = [row for row in self.rows if job in row[3] or row[1] in FAULT_KINDS]
        first = next((i for i, row in enumerate(mine) if job in row[3]), 0)
        mine = mine[max(0, first - 5) :]
        if len(mine) > rows_max:
            half = rows_max // 2
            yield from (show_row(row, job) for row in mine[:half])
            yield f"   ... {len(mine) - rows_max} rows left out ..."
            mine = mine[-half:]
        yield from (show_row(row, job) for row in mine)

    def text(self) -> Iterator[str]:
        """All lines."""
        return (show_row(row) for row in self.rows)


def show_row(row: Row, job: bytes | None = None) -> str:
    """One line; with `job`, of several messages only those about it are shown."""
    at, kind, who, ids, data = row
    if isinstance(data, tuple):
        data = "  ".join(
            show_message(each) for each in data if job is None or getattr(each, "id", None) == job
        )
    names = "" if job is not None else " ".join(map(short, ids[:6]))
    return f"{at / 1000:9.3f} {kind:8} {who:8} {names} {'' if data is None else data}".rstrip()


def show_message(message: object) -> str:
    """A message without its id, spec and body; node ids by their first four characters."""
    if isinstance(message, str):
        return message
    names = [
        field.name
        for field in attrs.fields(type(message))
        if field.name not in ("id", "spec", "body")
    ]
    fields = [f"{name}={_show_value(getattr(message, name))}" for name in names]
    return f"{type(message).__name__}({' '.join(fields)})"


def _show_value(value: object) -> str:
    if attrs.has(type(value)):
        return show_message(value)
    if isinstance(value, str):
        return value[:4] if len(value) == NODE_ID_CHARS else value
    if isinstance(value, dict):
        return "{" + " ".join(f"{_show_value(k)}:{_show_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, tuple):
        return "(" + " ".join(map(_show_value, value)) + ")"
    return repr(value)


def short(job: bytes) -> str:
    """The telling part of a job id."""
    return job[2:6].decode("ascii", "replace") + "." + job[11:17].decode("ascii", "replace")


def show_add(command: cmd.AddJob) -> str:
    """ADDJOB's arguments in a few words."""
    words = [command.queue.decode(), f"v{adapter.value_of(command.body)}", f"W={command.replicate}"]
    words.append(
        f"RETRY={command.retry_ms} DELAY={command.delay_ms} TTL={command.ttl_ms} t={command.timeout_ms}"
    )
    return " ".join(words) + (" ASYNC" if command.is_async else "")
