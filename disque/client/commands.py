"""The commands, each as a function from Python values to a `Request`: words to send, and how to read what comes back.

Every client has them as methods of the same name (`as_method`). Wherever a job is wanted, its id will do. Times
are float seconds; those that the protocol counts in whole seconds (ttl, retry, delay) must be whole. Nothing is sent
if an argument can't be meant: ValueError or TypeError.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar

import attrs

from disque.client import results
from disque.client.results import Job

T = TypeVar("T")

Word: TypeAlias = str | bytes | int
JobOrId: TypeAlias = Job | str | bytes
Name: TypeAlias = str | bytes
Home: TypeAlias = Literal["produce", "consume"]

# Milliseconds; the protocol's own 0 would be "for ever".
_SHORTEST_MS: Final = 1
_PRIORITY_MOST: Final = 9


@attrs.frozen
class Request(Generic[T]):
    """One command.

    `waits` is how long the node itself may take, in seconds, None for no limit; `timeout_at` is the index of the word
    with that time in ms where a repetition should only get what is left of it. `is_idempotent` says that doing it twice
    does no harm, `may_repeat` that the caller bears the harm. `goes_elsewhere`: another node is asked if one refuses
    for a reason of its own. `home` chooses among the node for producing and the one for consuming.
    """

    words: tuple[bytes, ...]
    read: Callable[[Any], T]
    waits: float | None = 0.0
    timeout_at: int | None = None
    is_idempotent: bool = True
    may_repeat: bool = attrs.field(
        default=attrs.Factory(lambda self: self.is_idempotent, takes_self=True), kw_only=True
    )
    goes_elsewhere: bool = True
    home: Home = "produce"

    @property
    def name(self) -> str:
        """The command's name."""
        return self.words[0].decode("ascii", "replace").upper()


def words(*given: Word | float) -> tuple[bytes, ...]:
    """Spell the words of a command. TypeError for what is no word."""
    return tuple([_spell(each) for each in given])


def _spell(given: Word | float) -> bytes:
    match given:
        case bytes():
            return given
        case str():
            return given.encode("utf-8", "surrogateescape")
        case int() if not isinstance(given, bool):
            return b"%d" % given
        case float():
            return f"{given:.3f}".encode()
    raise TypeError(f"a word of a command is str, bytes or int, got {given!r}")


# Jobs


def add_job(
    queue: Name,
    body: bytes | str,
    *,
    timeout: float | None = 5.0,
    replicate: int | None = None,
    delay: float | None = None,
    retry: float | None = None,
    ttl: float | None = None,
    maxlen: int | None = None,
    async_: bool = False,
    priority: int | None = None,
    max_deliveries: int | None = None,
    dead_letter: Name | None = None,
    headers: Mapping[str, Name] | None = None,
    may_repeat: bool = False,
) -> Request[str]:
    """ADDJOB: returns the job's id once the copies are made, within `timeout` seconds; None waits for ever.

    `delay` before it is queued, `retry` from a hand-out to the next (0: at most once, needs replicate=1), `ttl` until
    it is dropped; what is left out is the node's default. `maxlen` refuses if the queue at that node is as long;
    `async_` answers before there are copies. `priority` 0 to 9, high first. After `max_deliveries` hand-outs it goes
    to the queue `dead_letter`. `headers` travel with the job: STOMP's consumers and SHOW see them. A body or header
    given as str is sent as UTF-8.

    Raises OutcomeUnknownError if the job may have been added all the same; with `may_repeat` it is added again instead,
    at the risk of two jobs. Raises a ReplyError if it surely was not added.
    """
    options: list[Word | float] = []
    for option, value in (
        ("REPLICATE", _count("replicate", replicate, 1)),
        ("DELAY", _whole("delay", delay)),
        ("RETRY", _whole("retry", retry)),
        ("TTL", _whole("ttl", ttl)),
        ("MAXLEN", _count("maxlen", maxlen)),
        ("PRIORITY", _count("priority", priority, 0, _PRIORITY_MOST)),
        ("MAXDELIVERIES", _count("max_deliveries", max_deliveries)),
        ("DEADLETTER", None if dead_letter is None else _queue(dead_letter)),
    ):
        if value is not None:
            options += (option, value)
    if not isinstance(headers, Mapping | None):
        raise TypeError(f"headers are a dict of names and texts, got {headers!r}")
    for name, text in (headers or {}).items():
        options += ("HEADER", name, text)
    if async_:
        options.append("ASYNC")
    return Request(
        words("ADDJOB", _queue(queue), body, _limit_ms(timeout), *options),
        results.word,
        waits=timeout,
        is_idempotent=False,
        may_repeat=may_repeat,
    )


def get_jobs(*queues: Name, timeout: float | None = None, count: int = 1) -> Request[list[Job]]:
    """GETJOB: up to `count` jobs of these queues, the leftmost first; none if there is none in `timeout` seconds.

    0 doesn't wait, None waits for ever. Jobs whose reply is lost are offered again after their RETRY time.
    """
    if not queues:
        raise ValueError("get_jobs needs a queue")
    _count("count", count, 1)
    is_nohang = timeout is not None and seconds("timeout", timeout) <= 0
    wait: tuple[Word, ...] = ("NOHANG",) if is_nohang else ("TIMEOUT", _limit_ms(timeout))
    return Request(
        words("GETJOB", *wait, "COUNT", count, "WITHCOUNTERS", "FROM", *map(_queue, queues)),
        results.jobs,
        waits=0.0 if is_nohang else timeout,
        timeout_at=None if is_nohang or timeout is None else 2,
        home="consume",
    )


def ack_job(*jobs: JobOrId) -> Request[int]:
    """ACKJOB: these jobs are done, everywhere; returns how many weren't yet at that node (fewer after a fail-over)."""
    return _of_jobs("ACKJOB", jobs)


def fast_ack(*jobs: JobOrId) -> Request[int]:
    """FASTACK: like ack_job, cheaper, and surer to deliver once more where nodes can't be reached."""
    return _of_jobs("FASTACK", jobs)


def nack_job(*jobs: JobOrId, delay: float = 0.0) -> Request[int]:
    """NACK: give jobs back, to be handed out again at once or after `delay` seconds; returns how many were."""
    if not seconds("delay", delay):
        return _of_jobs("NACK", jobs)
    if not 0 < delay < math.inf:
        raise ValueError(f"delay must be seconds, 0 or more, got {delay!r}")
    return _of_jobs("NACK", jobs, "DELAY", float(delay))


def working(job: JobOrId) -> Request[float]:
    """WORKING: keep a job that takes longer; returns its RETRY, the seconds for which nobody else gets it now.

    Raises TooLateError after half of its TTL, JobDoneError if it is acknowledged, JobUnknownError if nobody has it.
    """
    return Request(words("WORKING", _id(job)), results.seconds, home="consume")


def enqueue(*jobs: JobOrId) -> Request[int]:
    """ENQUEUE: queue jobs at once; returns how many were."""
    return _of_jobs("ENQUEUE", jobs)


def dequeue(*jobs: JobOrId) -> Request[int]:
    """DEQUEUE: take jobs out of their queue until their RETRY is over; returns how many were."""
    return _of_jobs("DEQUEUE", jobs)


def delete_job(*jobs: JobOrId) -> Request[int]:
    """DELJOB: drop the copies of the node that is asked, only those; returns how many."""
    return _of_jobs("DELJOB", jobs)


def cancel_job(*jobs: JobOrId, timeout: float | None = None) -> Request[int]:
    """CANCELJOB: end jobs on all nodes; returns how many an answering node held.

    Silent nodes are waited for `timeout` seconds, None for the server's `cluster-ask-timeout`; they obey later.
    """
    request = _of_jobs("CANCELJOB", jobs, *_asking(timeout))
    return attrs.evolve(request, waits=timeout or 0.0)


def revive(*jobs: JobOrId) -> Request[int]:
    """REVIVE: put dead letters back into their own queues; returns how many were."""
    return _of_jobs("REVIVE", jobs)


def wait_jobs(*jobs: JobOrId, timeout: float | None = None) -> Request[dict[str, str]]:
    """WAITJOB: wait until no job is pending; id -> acked, dead, cancelled, expired or unknown.

    After `timeout` seconds an id may also be pending; None waits for ever.
    """
    if not jobs:
        raise ValueError("wait_jobs needs a job")
    ids = [_id(job) for job in jobs]
    return Request(
        words("WAITJOB", *ids, "TIMEOUT", _limit_ms(timeout)),
        results.outcomes,
        waits=timeout,
        timeout_at=None if timeout is None else len(ids) + 2,
    )


def show(job: JobOrId) -> Request[results.JobInfo | None]:
    """SHOW: what the node that is asked knows of a job; None if nothing."""
    return Request(words("SHOW", _id(job)), results.job_info)


# Queues


def qlen(queue: Name) -> Request[int]:
    """QLEN: jobs queued at the node that is asked."""
    return Request(words("QLEN", _queue(queue)), results.number)


def global_qlen(queue: Name, *, timeout: float | None = None) -> Request[results.Tally]:
    """GLOBALQLEN: jobs queued on all nodes that answer within `timeout` (None: `cluster-ask-timeout`)."""
    request = words("GLOBALQLEN", _queue(queue), "WITHNODES", *_asking(timeout))
    return Request(request, results.tally, waits=timeout or 0.0)


def qstat(queue: Name) -> Request[results.QueueStats | None]:
    """QSTAT: a queue at the node that is asked; None if it isn't known there."""
    return Request(words("QSTAT", _queue(queue)), results.queue_stats)


def global_qstat(
    queue: Name, *, timeout: float | None = None
) -> Request[results.GlobalQueueStats | None]:
    """QSTAT GLOBAL: a queue on all nodes that answer within `timeout`; None if none knows it."""
    request = words("QSTAT", _queue(queue), "GLOBAL", *_asking(timeout))
    return Request(request, results.global_queue_stats, waits=timeout or 0.0)


def qpeek(queue: Name, count: int = 1) -> Request[list[Job]]:
    """QPEEK: the next `count` jobs at the node that is asked, untouched; a negative count: the last ones."""
    return Request(words("QPEEK", _queue(queue), count), results.jobs)


def qpurge(queue: Name, *, timeout: float | None = None) -> Request[results.Tally]:
    """QPURGE: end all jobs of a queue on all nodes that answer, once; says how many."""
    request = words("QPURGE", _queue(queue), *_asking(timeout))
    return Request(request, results.tally, waits=timeout or 0.0, is_idempotent=False)


def pause(
    queue: Name, state: Literal["none", "in", "out", "all"] | None = None, *, bcast: bool = False
) -> Request[str]:
    """PAUSE: stop what goes in or out of a queue, here or (`bcast`) everywhere; returns what holds, None only asks."""
    if state not in (None, "none", "in", "out", "all"):
        raise ValueError(f"a pause is 'in', 'out', 'all', 'none', or None to ask, got {state!r}")
    options = ([state] if state is not None else ["state"]) + (["bcast"] if bcast else [])
    return Request(words("PAUSE", _queue(queue), *options), results.word)


def qscan(
    cursor: int = 0, *, count: int = 100, minlen: int | None = None, maxlen: int | None = None
) -> Request[results.Page[str]]:
    """QSCAN: some names of queues at the node that is asked. A cursor means nothing to other nodes: use `at(node)`."""
    options: list[Word] = []
    for option, value in (("MINLEN", minlen), ("MAXLEN", maxlen)):
        if value is not None:
            options += (option, value)
    return Request(words("QSCAN", cursor, "COUNT", count, *options), results.names)


def qscan_stats(
    cursor: int = 0, *, count: int = 100
) -> Request[results.Page[results.GlobalQueueStats]]:
    """QSCAN REPLY all: the queues at the node that is asked, each with the figures of that node alone."""
    request = words("QSCAN", cursor, "COUNT", count, "REPLY", "all")
    return Request(request, results.scanned_stats)


def jscan(
    cursor: int = 0, *, queue: Name | None = None, states: tuple[str, ...] = (), count: int = 100
) -> Request[results.Page[results.JobInfo]]:
    """JSCAN: some jobs at the node that is asked, of one queue or of these states; cursors as in qscan."""
    options: list[Word] = [] if queue is None else ["QUEUE", _queue(queue)]
    for state in states:
        options += ("STATE", state)
    request = words("JSCAN", cursor, "COUNT", count, *options, "REPLY", "all")
    return Request(request, results.job_infos)


# Topics and nodes


def publish(channel: Name, body: bytes | str) -> Request[int]:
    """PUBLISH: tell all who are subscribed now, at most once; returns to how many subscriptions."""
    return Request(words("PUBLISH", channel, body), results.number, is_idempotent=False)


def numsub(*channels: Name) -> Request[dict[str, int]]:
    """PUBSUB NUMSUB: channel -> subscriptions, without patterns."""
    return Request(words("PUBSUB", "NUMSUB", *channels), results.counts)


def hello() -> Request[results.Hello]:
    """HELLO: the node that is asked, and all that it knows."""
    return Request(words("HELLO"), results.hello)


def info(section: str | None = None) -> Request[dict[str, str]]:
    """INFO: figures of the node that is asked."""
    return Request(words("INFO", *([] if section is None else [section])), results.fields)


def cluster_info() -> Request[dict[str, str]]:
    """CLUSTER INFO: figures of the node that is asked about its cluster."""
    return Request(words("CLUSTER", "INFO"), results.fields)


def ping() -> Request[None]:
    """PING: some node answers."""
    return Request(words("PING"), results.done)


def execute(*given: Word, timeout: float | None = 0.0, may_repeat: bool = False) -> Request[Any]:
    """Any command, word by word; the reply as bytes, int, None or lists of these.

    `timeout` is how long the node may take by the command's own doing (a GETJOB's TIMEOUT), None for no limit. An error
    reply isn't tried at another node, and a lost reply is OutcomeUnknownError unless `may_repeat`.
    """
    if not given:
        raise ValueError("execute needs a command")
    return Request(
        words(*given),
        results.anything,
        waits=timeout,
        is_idempotent=False,
        may_repeat=may_repeat,
        goes_elsewhere=False,
    )


def as_method(function: Callable[..., Any]) -> None:
    """Have a method that stands for a command here show the command's arguments to help() and editors."""
    self_ = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    signature = inspect.signature(function)
    parameters = [self_, *signature.parameters.values()]
    function.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=parameters, return_annotation=inspect.Signature.empty
    )


def _of_jobs(name: str, jobs: tuple[JobOrId, ...], *options: Word | float) -> Request[int]:
    return Request(
        words(name, *[_id(job) for job in jobs], *options), results.number, home="consume"
    )


def _id(job: JobOrId) -> str | bytes:
    if isinstance(job, Job):
        return job.id
    if isinstance(job, str | bytes):
        return job
    raise TypeError(f"a job or its id is wanted, got {job!r}")


def _queue(name: Name) -> Name:
    """A queue's name: TypeError if it is no text, ValueError if it is empty."""
    if not isinstance(name, str | bytes):
        raise TypeError(f"a queue's name is str or bytes, got {name!r}")
    if not name:
        raise ValueError(f"a queue's name can't be empty, got {name!r}")
    return name


def _count(name: str, given: int | None, least: int = 0, most: int | None = None) -> int | None:
    """An integer; TypeError for another type, ValueError if out of range."""
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int):
        raise TypeError(f"{name} must be an int, got {given!r}")
    if given < least or (most is not None and given > most):
        limits = f"{least} or more" if most is None else f"{least} to {most}"
        raise ValueError(f"{name} must be {limits}, got {given}")
    return given


def seconds(name: str, given: float) -> float:
    """A number; TypeError for anything else."""
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise TypeError(f"{name} must be a number of seconds, got {given!r}")
    return given


def _asking(timeout: float | None) -> tuple[Word, ...]:
    return () if timeout is None else ("TIMEOUT", _limit_ms(timeout))


def _limit_ms(timeout: float | None) -> int:
    """A time limit on the wire, rounded up; None is 0, the protocol's "for ever"."""
    if timeout is None:
        return 0
    if not 0 < seconds("timeout", timeout) < math.inf:
        raise ValueError(f"timeout must be seconds above 0, or None for no limit, got {timeout!r}")
    return max(_SHORTEST_MS, math.ceil(timeout * 1000))


def _whole(name: str, given: float | None) -> int | None:
    """Seconds that the protocol has as an integer."""
    if given is None:
        return None
    if not 0 <= seconds(name, given) < math.inf or given != int(given):
        raise ValueError(f"{name} must be whole seconds, 0 or more, got {given!r}")
    return int(given)
