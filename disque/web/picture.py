"""Picture: what nodes say of themselves, as values, and what it comes to for the whole cluster.

Pure. Replies in, attrs values out; nothing here asks anybody or knows pages. The one idea: each node is one `Sample`,
a silent one is left out, and every sum says over how many nodes it goes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import attrs

from disque.web.replies import Failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from disque.web.replies import Reply

_NUMBER = re.compile(r"-?[0-9]{1,19}")
_PAUSES = ("none", "in", "out", "all")  # as flags: 1 in, 2 out


@attrs.frozen
class QueueRow:
    """One queue at one node, or in the cluster. Counts of jobs, but for what says otherwise."""

    name: bytes
    length: int = 0
    oldest_s: int | None = None  # age of the oldest waiting job
    delivered: int = 0
    delayed: int = 0
    acked: int = 0  # copies not yet collected
    copies: int = 0
    blocked: int = 0  # clients that wait
    jobs_in: int = 0  # since the queue came into use; a federated job counts at each stop
    jobs_out: int = 0
    pause: str = "none"


@attrs.frozen
class Sample:
    """What one node said at one moment. `links`: id of a peer -> words such as "connected" or "fail"."""

    at_s: float  # of a monotonic clock
    info: Mapping[str, str]  # INFO's fields
    cluster: Mapping[str, str]  # CLUSTER INFO's
    links: Mapping[str, str] = attrs.Factory(dict)
    queues: Mapping[bytes, QueueRow] = attrs.Factory(dict)
    is_complete: bool = True  # False: there are more queues than were asked for
    memory_max: int = 0  # bytes, 0: no limit, or not known
    is_leaving: bool = False

    def number(self, name: str) -> int:
        """A field of INFO or CLUSTER INFO as a number, 0 if it isn't there."""
        return number_in(self.info.get(name) or self.cluster.get(name) or "0")


@attrs.frozen
class Totals:
    """Jobs over all nodes that answer, and how fast they move (jobs/s)."""

    waiting: int = 0
    delivered: int = 0
    delayed: int = 0
    dead: int = 0  # lying in the default queue of dead letters
    added_rate: float = 0.0
    delivered_rate: float = 0.0
    acked_rate: float = 0.0


def fields(reply: Reply) -> dict[str, str]:
    """The `name:text` lines of INFO and CLUSTER INFO; empty for an error."""
    text = reply.decode("utf-8", "backslashreplace") if isinstance(reply, bytes) else ""
    lines = [line.partition(":") for line in text.split("\r\n")]
    return {name: value for name, colon, value in lines if colon and not name.startswith("#")}


def pairs(reply: Reply) -> dict[str, Reply]:
    """A flat array of names and values; empty for anything else."""
    if not isinstance(reply, list):
        return {}
    return {text_of(name): value for name, value in zip(reply[::2], reply[1::2], strict=False)}


def text_of(reply: Reply) -> str:
    """A word of the protocol, as text."""
    if isinstance(reply, bytes):
        return reply.decode("utf-8", "backslashreplace")
    return "" if reply is None else str(reply)


def number_in(text: str) -> int:
    """A number that is spelled as text; 0 for anything else."""
    return int(text) if _NUMBER.fullmatch(text) else 0


def queue_row(reply: Reply) -> QueueRow | None:
    """What QSTAT … GLOBAL or QSCAN … REPLY ALL say of a queue; None if it isn't known there."""
    said = pairs(reply)
    name = said.get("name")
    if not isinstance(name, bytes):
        return None
    oldest = said.get("oldest-age")
    return QueueRow(
        name=name,
        length=_count(said, "len"),
        oldest_s=oldest if isinstance(oldest, int) else None,
        delivered=_count(said, "delivered"),
        delayed=_count(said, "delayed"),
        acked=_count(said, "acked"),
        copies=_count(said, "copies"),
        blocked=_count(said, "blocked"),
        jobs_in=_count(said, "jobs-in"),
        jobs_out=_count(said, "jobs-out"),
        pause=text_of(said.get("pause")) or "none",
    )


def _count(said: Mapping[str, Reply], name: str) -> int:
    return number_of(said.get(name))


def number_of(reply: Reply) -> int:
    """An integer of the protocol; 0 for anything else."""
    return reply if isinstance(reply, int) else 0


def facts(reply: Reply) -> dict[str, Reply]:
    """What SHOW says of a job, each field of the kind that it has there; empty if nothing is said."""
    said = pairs(reply)
    return {name: read(said.get(name)) for name, read in _FACTS.items()} if said else {}


def _bytes_of(reply: Reply) -> bytes | None:
    return reply if isinstance(reply, bytes) else None


def _words_of(reply: Reply) -> list[Reply]:
    return [each for each in reply if isinstance(each, bytes)] if isinstance(reply, list) else []


def _maybe_number(reply: Reply) -> int | None:
    return reply if isinstance(reply, int) else None


_FACTS: Mapping[str, Callable[[Reply], Reply]] = {
    **dict.fromkeys(
        ("id", "state", "queue", "body", "dead-letter", "reason", "own-queue"), _bytes_of
    ),
    **dict.fromkeys(("ctime", "ttl", "delay", "retry", "repl", "priority"), number_of),
    **dict.fromkeys(("deliveries", "max-deliveries", "nacks", "additional-deliveries"), number_of),
    **dict.fromkeys(("next-requeue-within", "next-awake-within"), _maybe_number),
    **dict.fromkeys(("nodes-delivered", "nodes-confirmed", "headers"), _words_of),
}


def links(reply: Reply) -> dict[str, str]:
    """CLUSTER NODES' lines as id -> state of the link, of peers."""
    found: dict[str, str] = {}
    for line in text_of(reply).split("\n") if isinstance(reply, bytes) else []:
        words = line.split(" ")
        if len(words) < 6:
            continue
        node, flags = words[0], words[2].split(",")
        if "myself" in flags or "handshake" in flags:
            continue
        troubles = [flag for flag in flags if flag in ("fail", "fail?")]
        found[node] = troubles[0] if troubles else words[5].strip()
    return found


def sum_queues(samples: Iterable[Sample]) -> dict[bytes, QueueRow]:
    """Queues by name over all nodes."""
    summed: dict[bytes, QueueRow] = {}
    for sample in samples:
        for name, row in sample.queues.items():
            known = summed.get(name)
            summed[name] = row if known is None else _add(known, row)
    return summed


def _add(a: QueueRow, b: QueueRow) -> QueueRow:
    ages = [age for age in (a.oldest_s, b.oldest_s) if age is not None]
    flags = _pause_flags(a.pause) | _pause_flags(b.pause)
    return QueueRow(
        name=a.name,
        length=a.length + b.length,
        oldest_s=max(ages, default=None),
        delivered=a.delivered + b.delivered,
        delayed=a.delayed + b.delayed,
        acked=a.acked + b.acked,
        copies=a.copies + b.copies,
        blocked=a.blocked + b.blocked,
        jobs_in=a.jobs_in + b.jobs_in,
        jobs_out=a.jobs_out + b.jobs_out,
        pause=_PAUSES[flags],
    )


def _pause_flags(pause: str) -> int:
    return _PAUSES.index(pause) if pause in _PAUSES else 0


def rate(before: int, now: int, seconds: float) -> float:
    """Per second; a counter that went back has started again: 0."""
    return max(0, now - before) / seconds if seconds > 0 else 0.0


def rate_of(before: Sample | None, now: Sample, name: str) -> float:
    """How fast a counter of a node's INFO grew between two samples."""
    if before is None:
        return 0.0
    return rate(before.number(name), now.number(name), now.at_s - before.at_s)


def queue_rates(
    steps: Iterable[tuple[Sample | None, Sample]],
) -> dict[bytes, tuple[float, float]]:
    """Jobs/s into and out of each queue, over the last step of each node."""
    rates: dict[bytes, tuple[float, float]] = {}
    for before, now in steps:
        if before is None:
            continue
        seconds = now.at_s - before.at_s
        for name, row in now.queues.items():
            then = before.queues.get(name)
            if then is not None:
                came, went = rates.get(name, (0.0, 0.0))
                came += rate(then.jobs_in, row.jobs_in, seconds)
                went += rate(then.jobs_out, row.jobs_out, seconds)
                rates[name] = (came, went)
    return rates


def totals(steps: Sequence[tuple[Sample | None, Sample]], dead_queue: bytes) -> Totals:
    """The sums that an overview begins with."""
    samples = [now for _, now in steps]

    def summed(name: str) -> int:
        return sum(sample.number(name) for sample in samples)

    def speed(name: str) -> float:
        return sum(rate_of(before, now, name) for before, now in steps)

    dead = [sample.queues[dead_queue].length for sample in samples if dead_queue in sample.queues]
    return Totals(
        waiting=summed("queued_jobs"),
        delivered=summed("delivered_jobs"),
        delayed=summed("delayed_jobs"),
        dead=sum(dead),
        added_rate=speed("added_total"),
        delivered_rate=speed("delivered_total"),
        acked_rate=speed("acked_total"),
    )


def trouble_of(reply: Reply) -> str | None:
    """What a node refuses, None if it doesn't."""
    return reply.text if isinstance(reply, Failure) else None
