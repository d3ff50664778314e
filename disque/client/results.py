"""What commands answer, as values, and how they are read from replies.

Names of queues, ids and nodes are str (UTF-8; other bytes survive as surrogates), bodies are bytes, times are seconds.
A reply that isn't of the expected shape is a `ValueError` of the reader; `Session` takes it for a broken connection.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import attrs

T = TypeVar("T")


@attrs.frozen
class Job:
    """A job as a consumer gets it; acknowledge it by `id`, or hand it over whole.

    `nacks` counts how often it was given back, `additional_deliveries` hand-outs that neither were the first nor
    followed a NACK.
    """

    id: str
    queue: str
    body: bytes
    nacks: int = 0
    additional_deliveries: int = 0

    @property
    def attempt(self) -> int:
        """The number of this delivery, from 1."""
        return 1 + self.nacks + self.additional_deliveries

    @property
    def is_redelivered(self) -> bool:
        """True if somebody may have worked on it before."""
        return self.attempt > 1


@attrs.frozen
class JobInfo:
    """SHOW: all that a node knows of a job.

    `state` is wait-repl, active, queued or acked; `created_at` a Unix time; `queue` and `body` are None for an ack
    whose job the node never had. A dead letter has a `reason`, nack or retry, and another `own_queue`. What C Disque
    doesn't tell has its default. `ctime` orders jobs: `created_at` in ns, made unique by the node that made the job.
    """

    id: str
    queue: str | None
    state: str
    replicate: int
    ttl: float
    created_at: float
    delay: float
    retry: float
    nacks: int
    additional_deliveries: int
    nodes_delivered: tuple[str, ...]
    nodes_confirmed: tuple[str, ...]
    next_requeue_within: float | None
    next_awake_within: float | None
    body: bytes | None
    priority: int | None = None
    max_deliveries: int | None = None
    deliveries: int | None = None
    dead_letter: str | None = None
    reason: str | None = None
    headers: Mapping[str, bytes] = attrs.Factory(dict)
    own_queue: str | None = None
    ctime: int = 0


@attrs.frozen
class QueueStats:
    """QSTAT: a queue at one node. `pause` is none, in, out or all; `import_from` are node ids, `import_rate` jobs/s."""

    name: str
    length: int
    age: float
    idle: float
    blocked: int
    import_from: tuple[str, ...]
    import_rate: int
    jobs_in: int
    jobs_out: int
    pause: str


@attrs.frozen
class GlobalQueueStats:
    """QSTAT GLOBAL: a queue on all nodes that answered, and how many did not.

    `oldest_age`: for so many seconds a queued job could have been delivered, None if none is queued; `acked` counts
    ends not yet collected.
    """

    name: str
    length: int
    oldest_age: float | None
    delivered: int
    delayed: int
    acked: int
    copies: int
    blocked: int
    jobs_in: int
    jobs_out: int
    pause: str
    nodes_answered: int
    nodes_silent: int


@attrs.frozen
class Tally:
    """A number of jobs in the cluster: the sum over the nodes that answered, and how many did not."""

    jobs: int
    nodes_answered: int
    nodes_silent: int


@attrs.frozen
class NodeInfo:
    """A node as HELLO tells it; priority 1 is good, 5 no link, 10 suspected, 100 failed or leaving."""

    id: str
    host: str
    port: int
    priority: int


@attrs.frozen
class Hello:
    """HELLO: who answered, and all the nodes it knows, itself among them."""

    id: str
    nodes: tuple[NodeInfo, ...]


@attrs.frozen
class Page(Generic[T]):
    """One step of QSCAN or JSCAN at one node: go on with `cursor` there until it is 0; an item may come twice."""

    cursor: int
    items: tuple[T, ...]


@attrs.frozen
class Message:
    """What was published to a channel; `pattern` as it was subscribed to, None for the channel itself."""

    channel: str
    body: bytes
    pattern: str | None = None


def text(raw: bytes) -> str:
    """A name or word of a reply."""
    return raw.decode("utf-8", "surrogateescape")


def done(reply: Any) -> None:
    """A status that says nothing but that it is done."""
    _check(reply, bytes)


def number(reply: Any) -> int:
    """An integer."""
    return int(_check(reply, int))


def word(reply: Any) -> str:
    """A status or bulk."""
    return text(_check(reply, bytes))


def seconds(reply: Any) -> float:
    """Whole seconds."""
    return float(_check(reply, int))


def anything(reply: Any) -> Any:
    """The reply as it came: bytes, int, None and lists of them; errors inside lists are ReplyError objects."""
    return reply


def jobs(reply: Any) -> list[Job]:
    """GETJOB or QPEEK: elements of three, or of seven with counters; nil is no job."""
    return [_job(each) for each in reply or ()]


def _job(element: Any) -> Job:
    queue, id_, body = element[:3]
    counters = pairs(element[3:])
    return Job(
        text(id_),
        text(queue),
        _check(body, bytes),
        counters.get("nacks", 0),
        counters.get("additional-deliveries", 0),
    )


def job_info(reply: Any) -> JobInfo | None:
    """SHOW; None if the node doesn't know the id."""
    if reply is None:
        return None
    told = pairs(reply)
    return JobInfo(
        id=text(told["id"]),
        queue=_maybe(text, told["queue"]),
        state=text(told["state"]),
        replicate=told["repl"],
        ttl=float(told["ttl"]),
        created_at=told["ctime"] / 1e9,
        delay=float(told["delay"]),
        retry=float(told["retry"]),
        nacks=told["nacks"],
        additional_deliveries=told["additional-deliveries"],
        nodes_delivered=_texts(told["nodes-delivered"]),
        nodes_confirmed=_texts(told["nodes-confirmed"]),
        next_requeue_within=_maybe(_from_ms, told["next-requeue-within"]),
        next_awake_within=_maybe(_from_ms, told["next-awake-within"]),
        body=told["body"],
        priority=told.get("priority"),
        max_deliveries=told.get("max-deliveries"),
        deliveries=told.get("deliveries"),
        dead_letter=_maybe(text, told.get("dead-letter")),
        reason=_maybe(text, told.get("reason")),
        headers=pairs(told.get("headers", ())),
        own_queue=_maybe(text, told.get("own-queue")),
        ctime=told["ctime"],
    )


def queue_stats(reply: Any) -> QueueStats | None:
    """QSTAT; None if the node doesn't know the queue."""
    if reply is None:
        return None
    told = pairs(reply)
    return QueueStats(
        name=text(told["name"]),
        length=told["len"],
        age=float(told["age"]),
        idle=float(told["idle"]),
        blocked=told["blocked"],
        import_from=_texts(told["import-from"]),
        import_rate=told["import-rate"],
        jobs_in=told["jobs-in"],
        jobs_out=told["jobs-out"],
        pause=text(told["pause"]),
    )


def global_queue_stats(reply: Any) -> GlobalQueueStats | None:
    """QSTAT GLOBAL; None if nobody who answered knows the queue."""
    return None if reply is None else _stats(reply)


def scanned_stats(reply: Any) -> Page[GlobalQueueStats]:
    """QSCAN REPLY all: of one node, which has answered."""
    cursor, found = reply
    spoke = [b"nodes-answered", 1, b"nodes-silent", 0]
    return Page(int(cursor), tuple([_stats([*each, *spoke]) for each in found]))


def _stats(flat: Any) -> GlobalQueueStats:
    told = pairs(flat)
    return GlobalQueueStats(
        name=text(told["name"]),
        length=told["len"],
        oldest_age=_maybe(float, told["oldest-age"]),
        delivered=told["delivered"],
        delayed=told["delayed"],
        acked=told["acked"],
        copies=told["copies"],
        blocked=told["blocked"],
        jobs_in=told["jobs-in"],
        jobs_out=told["jobs-out"],
        pause=text(told["pause"]),
        nodes_answered=told["nodes-answered"],
        nodes_silent=told["nodes-silent"],
    )


def tally(reply: Any) -> Tally:
    """GLOBALQLEN WITHNODES or QPURGE."""
    count, answered, silent = reply
    return Tally(number(count), number(answered), number(silent))


def hello(reply: Any) -> Hello:
    """HELLO without arguments."""
    _, own_id, *nodes = reply
    return Hello(
        text(own_id),
        tuple(
            [
                NodeInfo(text(id_), text(host), int(port), int(priority))
                for id_, host, port, priority in nodes
            ]
        ),
    )


def outcomes(reply: Any) -> dict[str, str]:
    """WAITJOB: id -> acked, dead, cancelled, expired, unknown or pending."""
    return {text(id_): text(outcome) for id_, outcome in reply}


def names(reply: Any) -> Page[str]:
    """QSCAN."""
    cursor, found = reply
    return Page(int(cursor), _texts(found))


def job_infos(reply: Any) -> Page[JobInfo]:
    """JSCAN REPLY all."""
    cursor, found = reply
    infos = [info for info in map(job_info, found) if info is not None]
    return Page(int(cursor), tuple(infos))


def counts(reply: Any) -> dict[str, int]:
    """PUBSUB NUMSUB: channel -> subscriptions."""
    return pairs(reply)


def fields(reply: Any) -> dict[str, str]:
    """INFO or CLUSTER INFO: the lines `name:value`."""
    lines = word(reply).splitlines()
    return dict([line.split(":", 1) for line in lines if ":" in line])


def message(push: Any) -> Message | None:
    """What a subscribed connection is sent; None for the answer to (UN)SUBSCRIBE or PING."""
    match push:
        case [b"message", channel, body]:
            return Message(text(channel), body)
        case [b"pmessage", pattern, channel, body]:
            return Message(text(channel), body, text(pattern))
    return None


def pairs(flat: Any) -> dict[str, Any]:
    """A flat array of names and values."""
    return {text(key): value for key, value in zip(flat[::2], flat[1::2], strict=True)}


def _texts(raw: Any) -> tuple[str, ...]:
    return tuple([text(each) for each in raw])


def _from_ms(ms: int) -> float:
    return ms / 1000


def _maybe(read: Callable[[Any], T], raw: Any) -> T | None:
    return None if raw is None else read(raw)


def _check(reply: Any, kind: type) -> Any:
    if not isinstance(reply, kind):
        raise ValueError(f"{kind.__name__} was expected, got {reply!r}"[:200])
    return reply
