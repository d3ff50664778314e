"""Job file: a queue as JSON lines, one job a line, without loss.

A line has what ADDJOB needs to make the job again (`queue`, `body`, `ttl`, `delay`, `retry`, `replicate`, `priority`,
`max_deliveries`, `dead_letter`, `headers`; times in whole seconds, `ttl` and `delay` what was left of them) and what
an import can't bring back and only tells (`id`, `state`, `created_at`, `deliveries`, `nacks`, `reason`). Bytes that
are no UTF-8 are `{"base64": "..."}`. Pure: nothing here knows files or sockets.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import attrs

from disque.cli.replies import from_json_text, json_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from disque.cli.connection import Word

TTL_DEFAULT_S = 86_400
TOLD = ("id", "state", "created_at", "deliveries", "nacks", "reason")


@attrs.frozen
class StoredJob:
    """A job as a file has it; None where the file says nothing and the server's default is to hold."""

    queue: bytes
    body: bytes
    ttl: int | None = None
    delay: int = 0
    retry: int | None = None
    replicate: int | None = None
    priority: int | None = None
    max_deliveries: int | None = None
    dead_letter: bytes | None = None
    headers: tuple[tuple[bytes, bytes], ...] = ()
    own_queue: bytes | None = None  # of a dead letter: where it comes from
    id: str | None = None
    told: Mapping[str, Any] = attrs.Factory(dict)  # the rest of TOLD, as it came


def to_line(job: StoredJob) -> str:
    """One line of JSON, with its newline; what is None isn't there."""
    fields: dict[str, Any] = {
        "id": job.id,
        "queue": json_text(job.queue),
        "body": json_text(job.body),
        "ttl": job.ttl,
        "delay": job.delay,
        "retry": job.retry,
        "replicate": job.replicate,
        "priority": job.priority,
        "max_deliveries": job.max_deliveries,
        "dead_letter": _maybe_text(job.dead_letter),
        "headers": [[json_text(name), json_text(value)] for name, value in job.headers],
        "own_queue": _maybe_text(job.own_queue),
        **job.told,
    }
    kept = {name: value for name, value in fields.items() if value is not None}
    return json.dumps(kept, ensure_ascii=False) + "\n"


def _maybe_text(data: bytes | None) -> str | dict[str, str] | None:
    return None if data is None else json_text(data)


def from_line(line: bytes) -> StoredJob:
    """Read a line. ValueError names the field and what is wrong with it; an unknown field is wrong, too."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"no JSON: {error}") from None
    if not isinstance(fields, dict):
        raise ValueError(f"expected an object, got {json.dumps(fields)[:60]}")
    given: dict[str, Any] = {}
    told: dict[str, Any] = {}
    for name, value in fields.items():
        if name in _READERS:
            try:
                given[name] = _READERS[name](value)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        elif name in TOLD:
            told[name] = value
        else:
            raise ValueError(
                f"{name}: no such field; there are {', '.join([*_READERS, *TOLD[1:]])}"
            )
    for name in ("queue", "body"):
        if name not in given:
            raise ValueError(f"{name}: is missing")
    return StoredJob(**given, told=told)


def _whole(lowest: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or value < lowest:
            raise ValueError(
                f"expected a whole number from {lowest} on, got {json.dumps(value)[:60]}"
            )
        return value

    return read


def _headers(value: Any) -> tuple[tuple[bytes, bytes], ...]:
    if not isinstance(value, list) or any(
        [not isinstance(each, list) or len(each) != 2 for each in value]
    ):
        raise ValueError(f"expected [[name, value], …], got {json.dumps(value)[:60]}")
    return tuple([(from_json_text(name), from_json_text(text)) for name, text in value])


def _id(value: Any) -> str:
    if not isinstance(value, str) or not value or value.split() != [value]:
        raise ValueError(f"expected an id, got {json.dumps(value)[:60]}")
    return value


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "queue": from_json_text,
    "body": from_json_text,
    "ttl": _whole(1),
    "delay": _whole(0),
    "retry": _whole(0),
    "replicate": _whole(1),
    "priority": _whole(0),
    "max_deliveries": _whole(0),
    "dead_letter": from_json_text,
    "headers": _headers,
    "own_queue": from_json_text,
    "id": _id,
}


def add_words(job: StoredJob, *, timeout_ms: int, nodes: int) -> list[Word]:
    """The ADDJOB that makes the job again in a cluster of so many nodes.

    REPLICATE is at most `nodes`. A DELAY that would reach the TTL is cut below it. MAXDELIVERIES and DEADLETTER are
    left out where ADDJOB doesn't take them: with RETRY 0, and for a letter in its own dead letter queue.
    """
    words: list[Word] = ["ADDJOB", job.queue, job.body, timeout_ms]
    ttl = TTL_DEFAULT_S if job.ttl is None else job.ttl
    delay = min(job.delay, ttl - 1)
    is_at_most_once = job.retry == 0
    if is_at_most_once:
        words += ["REPLICATE", 1]
    elif job.replicate is not None:
        words += ["REPLICATE", min(job.replicate, nodes)]
    if job.ttl is not None:
        words += ["TTL", ttl]
    if delay:
        words += ["DELAY", delay]
    if job.retry is not None:
        words += ["RETRY", job.retry]
    if job.priority is not None:
        words += ["PRIORITY", job.priority]
    if job.max_deliveries is not None and not is_at_most_once:
        words += ["MAXDELIVERIES", job.max_deliveries]
    if job.dead_letter is not None and job.dead_letter != job.queue:
        words += ["DEADLETTER", job.dead_letter]
    for name, text in job.headers:
        words += ["HEADER", name, text]
    return words
