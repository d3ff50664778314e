"""The commands about jobs and queues, as values; `parse` makes them of a client's arguments.

Times are ms here, whatever unit the client used. What only the shell can answer (PING, INFO,
CLUSTER ...) isn't here, nor any check that needs the state of the node: those are the engine's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from disque.core.integers import INT64_MAX, parse_int
from disque.core.jobid import JobId, parse_job_ids
from disque.core.value import value
from disque.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

REPLICATE_MAX = 65_535  # copies of a job; Disque's
TTL_DEFAULT_MS = 86_400_000  # one day; Disque's
DURATION_MAX_MS = 10**15  # longer times are cut to this, 31,700 years: sums stay exact (W-30)

NO_HEADERS: Mapping[bytes, bytes] = {}


@value
class AddJob:
    """`timeout_ms` 0 waits for ever; None: the client left it out."""

    queue: bytes
    body: bytes
    timeout_ms: int
    replicate: int | None = None
    delay_ms: int = 0
    retry_ms: int | None = None
    ttl_ms: int = TTL_DEFAULT_MS
    maxlen: int | None = None
    is_async: bool = False
    priority: int = 4
    max_deliveries: int = 0
    dead_queue: bytes = b"dead-letters"
    headers: Mapping[bytes, bytes] = NO_HEADERS


@value
class GetJob:
    """`queues` has no duplicates; `timeout_ms` 0 waits for ever."""

    queues: tuple[bytes, ...]
    timeout_ms: int = 0
    count: int = 1
    is_nohang: bool = False
    with_counters: bool = False


@value
class AckJob:
    """Settle jobs: they are done, everywhere."""

    ids: tuple[JobId, ...]


@value
class FastAck:
    """Settle jobs without waiting for the other holders."""

    ids: tuple[JobId, ...]


@value
class DelJob:
    """Drop this node's copies."""

    ids: tuple[JobId, ...]


@value
class Enqueue:
    """Queue jobs at once."""

    ids: tuple[JobId, ...]


@value
class Nack:
    """Give jobs back: queue them again, counted."""

    ids: tuple[JobId, ...]
    delay_ms: int = 0


@value
class Dequeue:
    """Take jobs out of their queue."""

    ids: tuple[JobId, ...]


@value
class Working:
    """Ask for more time before a job is queued again."""

    id: JobId


@value
class Show:
    """Tell all about a job."""

    id: JobId


@value
class QLen:
    """Count a queue's jobs here."""

    queue: bytes


@value
class QStat:
    """Tell about a queue here."""

    queue: bytes


@value
class FlushAll:
    """DEBUG FLUSHALL: forget all jobs and queues of this node."""


Command = (
    AddJob
    | GetJob
    | AckJob
    | FastAck
    | DelJob
    | Enqueue
    | Nack
    | Dequeue
    | Working
    | Show
    | QLen
    | QStat
    | FlushAll
)


def parse(name: bytes, args: list[bytes]) -> Command:
    """Make a command of its lower-case name and its arguments (without the name).

    Raises CommandError with Disque's text; the first failure wins, in the order of reference 1.1
    and 1.2. Times beyond DURATION_MAX_MS are cut to it. Needs a name of `PARSED`;
    FlushAll has none.
    """
    return _PARSERS[name](name, args)


def _add_job(name: bytes, args: list[bytes]) -> Command:
    if len(args) < 3:
        raise _wrong_count(name)
    queue, body, timeout = args[:3]
    if len(args) == 3:
        return AddJob(queue, body, _timeout_ms(timeout))
    replicate: int | None = None
    retry_ms: int | None = None
    maxlen: int | None = None
    delay_ms, ttl_ms, is_async = 0, TTL_DEFAULT_MS, False
    options = iter(args[3:])
    for option in options:
        word = option.lower()
        if word == b"async":
            is_async = True
            continue
        if word not in _ADDJOB_OPTIONS or (text := next(options, None)) is None:
            raise CommandError("syntax error")
        number = parse_int(text)
        lowest, highest, complaint = _ADDJOB_OPTIONS[word]
        if number is None or not lowest <= number <= highest:
            raise CommandError(complaint)
        if word == b"replicate":
            replicate = number
        elif word == b"retry":
            retry_ms = _ms(number)
        elif word == b"ttl":
            ttl_ms = _ms(number)
        elif word == b"delay":
            delay_ms = _ms(number)
        else:
            maxlen = number
    return AddJob(
        queue, body, _timeout_ms(timeout), replicate, delay_ms, retry_ms, ttl_ms, maxlen, is_async
    )


# Value-taking options: least, most, what else is said.
_ADDJOB_OPTIONS: Mapping[bytes, tuple[int, int, str]] = {
    b"replicate": (1, REPLICATE_MAX, f"REPLICATE must be between 1 and {REPLICATE_MAX}"),
    b"ttl": (1, INT64_MAX, "TTL must be a number > 0"),
    b"retry": (0, INT64_MAX, "RETRY time must be a non negative number"),
    b"delay": (0, INT64_MAX, "DELAY time must be a non negative number"),
    b"maxlen": (1, INT64_MAX, "MAXLEN must be a positive number"),
}


def _get_job(name: bytes, args: list[bytes]) -> Command:
    if not args:
        raise _wrong_count(name)
    timeout_ms, count = 0, 1
    is_nohang = with_counters = False
    words = iter(args)
    for word in words:
        option = word.lower()
        if option == b"from":
            break
        if option == b"nohang":
            is_nohang = True
        elif option == b"withcounters":
            with_counters = True
        elif option not in (b"timeout", b"count") or (text := next(words, None)) is None:
            raise CommandError("syntax error")
        elif option == b"timeout":
            timeout_ms = _timeout_ms(text)
        else:
            number = parse_int(text)
            if number is None or number < 1:
                raise CommandError("COUNT must be a number greater than zero")
            count = number
    queues = tuple(dict.fromkeys(words))
    if not queues:
        raise CommandError("syntax error")
    return GetJob(queues, timeout_ms, count, is_nohang, with_counters)


def _of_ids(make: Callable[[tuple[JobId, ...]], Command]) -> Callable[..., Command]:
    return lambda _name, args: make(parse_job_ids(args))


def _of_id(make: Callable[[JobId], Command]) -> Callable[..., Command]:
    def parse_one(name: bytes, args: list[bytes]) -> Command:
        if len(args) != 1:
            raise _wrong_count(name)
        return make(parse_job_ids(args)[0])

    return parse_one


def _of_queue(make: Callable[[bytes], Command]) -> Callable[..., Command]:
    def parse_one(name: bytes, args: list[bytes]) -> Command:
        if len(args) != 1:
            raise _wrong_count(name)
        return make(args[0])

    return parse_one


_PARSERS: Mapping[bytes, Callable[[bytes, list[bytes]], Command]] = {
    b"addjob": _add_job,
    b"getjob": _get_job,
    b"ackjob": _of_ids(AckJob),
    b"fastack": _of_ids(FastAck),
    b"deljob": _of_ids(DelJob),
    b"enqueue": _of_ids(Enqueue),
    b"nack": _of_ids(Nack),
    b"dequeue": _of_ids(Dequeue),
    b"working": _of_id(Working),
    b"show": _of_id(Show),
    b"qlen": _of_queue(QLen),
    b"qstat": _of_queue(QStat),
}

PARSED = frozenset(_PARSERS)  # the names `parse` takes


def _timeout_ms(text: bytes) -> int:
    number = parse_int(text)
    if number is None:
        raise CommandError("timeout is not an integer or out of range")
    if number < 0:
        raise CommandError("timeout is negative")
    return min(number, DURATION_MAX_MS)


def _ms(seconds: int) -> int:
    return min(seconds * 1000, DURATION_MAX_MS)


def _wrong_count(name: bytes) -> CommandError:
    return CommandError(f"wrong number of arguments for '{name.decode()}' command")
