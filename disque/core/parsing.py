"""From a client's arguments to a command: option words, numbers and their exact complaints.

No check that needs the state of the node is here: those are the engine's. Orders and texts are Disque's (reference 1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias, TypeVar

from disque.core.commands import (
    DURATION_MAX_MS,
    NO_HEADERS,
    PRIORITY_DEFAULT,
    REPLICATE_MAX,
    TTL_DEFAULT_MS,
    AckJob,
    AddJob,
    CancelJob,
    Command,
    DelJob,
    Dequeue,
    Enqueue,
    FastAck,
    GetJob,
    GlobalQLen,
    JScan,
    Nack,
    NumSub,
    Pause,
    Publish,
    QLen,
    QPeek,
    QPurge,
    QScan,
    QStat,
    Revive,
    Show,
    WaitJob,
    Working,
)
from disque.core.integers import INT64_MAX, parse_int
from disque.core.jobid import JobId, parse_job_ids
from disque.core.topics import Kind, Topic
from disque.errors import CommandError

_Read = TypeVar("_Read")
# The fields of AddJob from `timeout_ms` on
_AddOptions: TypeAlias = tuple[
    int, int | None, int, int | None, int, int | None, bool, int, int | None, bytes | None,
    Mapping[bytes, bytes],
]  # fmt: skip

WAITJOB_IDS_MAX = 1_024
_OPTION_WORDS_MAX = 100  # behind ids
# Of a job, as STOMP's frames may have: they are kept in memory and sent to each holder
HEADERS_MAX = 256
HEADERS_BYTES_MAX = 64 << 10  # names and values together, likewise
_TOO_MANY_HEADERS = f"HEADER: at most {HEADERS_MAX} of them, {HEADERS_BYTES_MAX} bytes together"
_CACHED_OPTIONS_MAX = 1_000
# More words, or more bytes, would make the cache large.
_CACHED_WORDS_MAX = 24
_CACHED_BYTES_MAX = 512
_SYNTAX = "syntax error"
_NOT_A_NUMBER = "value is not an integer or out of range"


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
    words = tuple(args[2:])
    options = _READ_OPTIONS.get(words)
    if options is None:
        options = _add_options(words)
        _remember(_READ_OPTIONS, words, options)
    (
        timeout_ms, replicate, delay_ms, retry_ms, ttl_ms, maxlen, is_async, priority, max_deliveries, dead_queue,
        headers,
    ) = options  # fmt: skip
    return AddJob(
        args[0], args[1], timeout_ms, replicate, delay_ms, retry_ms, ttl_ms, maxlen, is_async, priority,
        max_deliveries, dead_queue, headers,
    )  # fmt: skip


# What was made of the words of clients, who say the same again and again
_READ_OPTIONS: dict[tuple[bytes, ...], _AddOptions] = {}
_READ_GETS: dict[tuple[bytes, ...], GetJob] = {}


def _remember(known: dict[tuple[bytes, ...], _Read], words: tuple[bytes, ...], read: _Read) -> None:
    """Keep what is small."""
    if len(words) <= _CACHED_WORDS_MAX and len(b"".join(words)) <= _CACHED_BYTES_MAX:
        if len(known) >= _CACHED_OPTIONS_MAX:
            known.clear()
        known[words] = read


def _add_options(args: tuple[bytes, ...]) -> _AddOptions:
    given: dict[bytes, int] = {}
    headers: dict[bytes, bytes] = {}
    dead_queue: bytes | None = None
    is_async = False
    timeout, *options = args
    words = iter(options)
    for word in words:
        option = word.lower()
        if option == b"async":
            is_async = True
        elif option == b"deadletter":
            dead_queue = _value_of(words)
        elif option == b"header":
            header = _value_of(words)
            headers.setdefault(header, _value_of(words))
        elif option in _ADDJOB_OPTIONS:
            given[option] = _bounded(_value_of(words), *_ADDJOB_OPTIONS[option])
        else:
            raise CommandError(_SYNTAX)
    if (
        len(headers) > HEADERS_MAX
        or sum(map(len, [*headers, *headers.values()])) > HEADERS_BYTES_MAX
    ):
        raise CommandError(_TOO_MANY_HEADERS)
    retry = given.get(b"retry")
    return (
        _timeout_ms(timeout),
        given.get(b"replicate"),
        _ms(given.get(b"delay", 0)),
        None if retry is None else _ms(retry),
        _ms(given[b"ttl"]) if b"ttl" in given else TTL_DEFAULT_MS,
        given.get(b"maxlen"),
        is_async,
        given.get(b"priority", PRIORITY_DEFAULT),
        given.get(b"maxdeliveries"),
        dead_queue,
        headers or NO_HEADERS,
    )


def _value_of(words: Iterator[bytes]) -> bytes:
    value = next(words, None)
    if value is None:
        raise CommandError(_SYNTAX)
    return value


def _bounded(text: bytes, lowest: int, highest: int, complaint: str) -> int:
    number = parse_int(text)
    if number is None or not lowest <= number <= highest:
        raise CommandError(complaint)
    return number


# Value-taking options: least, most, what else is said.
_ADDJOB_OPTIONS: Mapping[bytes, tuple[int, int, str]] = {
    b"replicate": (1, REPLICATE_MAX, f"REPLICATE must be between 1 and {REPLICATE_MAX}"),
    b"ttl": (1, INT64_MAX, "TTL must be a number > 0"),
    b"retry": (0, INT64_MAX, "RETRY time must be a non negative number"),
    b"delay": (0, INT64_MAX, "DELAY time must be a non negative number"),
    b"maxlen": (1, INT64_MAX, "MAXLEN must be a positive number"),
    b"priority": (0, 9, "PRIORITY must be between 0 and 9"),
    b"maxdeliveries": (0, 65_535, "MAXDELIVERIES must be between 0 and 65535"),
}


def _get_job(name: bytes, args: list[bytes]) -> Command:
    if not args:
        raise _wrong_count(name)
    words = tuple(args)
    command = _READ_GETS.get(words)
    if command is None:
        command = _get_options(words)
        _remember(_READ_GETS, words, command)
    return command


def _get_options(args: tuple[bytes, ...]) -> GetJob:
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


def _ids_and_options(
    args: list[bytes], options: tuple[bytes, ...]
) -> tuple[list[bytes], list[tuple[bytes, bytes]]]:
    """`<id>... [OPTION value]...`: the first option word ends the ids; of a repeated option the last one counts.

    Options are looked for in the last words alone: there may be a million ids.
    """
    first = max(len(args) - _OPTION_WORDS_MAX, 0)
    at = next(
        (i for i, word in enumerate(args[first:], first) if word.lower() in options), len(args)
    )
    given: list[tuple[bytes, bytes]] = []
    words = iter(args[at:])
    for word in words:
        if word.lower() not in options:
            raise CommandError(_SYNTAX)
        given.append((word.lower(), _value_of(words)))
    return args[:at], given


def _nack(_name: bytes, args: list[bytes]) -> Command:
    ids, options = _ids_and_options(args, (b"delay",))
    delay_ms = 0
    for _, text in options:
        delay_ms = _fraction_ms(text)
    return Nack(parse_job_ids(ids), delay_ms)


def _fraction_ms(text: bytes) -> int:
    """Seconds as a decimal with a fraction, in ms."""
    whole, _, fraction = text.partition(b".")
    if not (whole + fraction).isdigit() or len(whole) > 18 or (b"." in text and not fraction):
        raise CommandError("DELAY time must be a non negative number")
    return _ms(int(whole or b"0")) + int((fraction + b"000")[:3])


def _cancel_job(_name: bytes, args: list[bytes]) -> Command:
    ids, options = _ids_and_options(args, (b"timeout",))
    timeout_ms = None
    for _, text in options:
        timeout_ms = _timeout_ms(text)
    return CancelJob(parse_job_ids(ids), timeout_ms)


def _wait_job(name: bytes, args: list[bytes]) -> Command:
    if not args:
        raise _wrong_count(name)
    ids, options = _ids_and_options(args, (b"timeout",))
    timeout_ms = 0
    for _, text in options:
        timeout_ms = _timeout_ms(text)
    if len(ids) > WAITJOB_IDS_MAX:
        raise CommandError(f"WAITJOB takes at most {WAITJOB_IDS_MAX} ids")
    return WaitJob(parse_job_ids(ids), timeout_ms)


def _queue_options(
    name: bytes, args: list[bytes], flags: tuple[bytes, ...]
) -> tuple[bytes, int | None, frozenset[bytes]]:
    """`<queue> [TIMEOUT ms] [FLAG]...`"""
    if not args:
        raise _wrong_count(name)
    timeout_ms: int | None = None
    given: list[bytes] = []
    words = iter(args[1:])
    for word in words:
        option = word.lower()
        if option == b"timeout":
            timeout_ms = _timeout_ms(_value_of(words))
        elif option in flags:
            given.append(option)
        else:
            raise CommandError(_SYNTAX)
    return args[0], timeout_ms, frozenset(given)


def _queue_status(name: bytes, args: list[bytes]) -> Command:
    queue, timeout_ms, flags = _queue_options(name, args, (b"global",))
    if timeout_ms is not None and not flags:
        raise CommandError(_SYNTAX)
    return QStat(queue, bool(flags), timeout_ms)


def _global_queue_length(name: bytes, args: list[bytes]) -> Command:
    queue, timeout_ms, flags = _queue_options(name, args, (b"withnodes",))
    return GlobalQLen(queue, timeout_ms, bool(flags))


def _queue_purge(name: bytes, args: list[bytes]) -> Command:
    queue, timeout_ms, _ = _queue_options(name, args, ())
    return QPurge(queue, timeout_ms)


def _queue_peek(name: bytes, args: list[bytes]) -> Command:
    if len(args) != 2:
        raise _wrong_count(name)
    return QPeek(args[0], _number(args[1]))


def _number(text: bytes) -> int:
    number = parse_int(text)
    if number is None:
        raise CommandError(_NOT_A_NUMBER)
    return number


_Scanned = tuple[int | None, dict[bytes, bytes], list[bytes], bool]


def _scan_words(args: list[bytes], options: tuple[bytes, ...]) -> _Scanned:
    """Cursor anywhere, options with values, STATE repeatable: (cursor, options, states, is_busyloop)."""
    cursor: int | None = None
    given: dict[bytes, bytes] = {}
    states: list[bytes] = []
    is_busyloop = False
    words = iter(args)
    for word in words:
        option = word.lower()
        if option == b"busyloop":
            is_busyloop = True
        elif option in options:
            given[option] = _scan_value(option, _value_of(words))
            if option == b"state":
                states.append(given[option])
        elif cursor is not None:
            raise CommandError(_SYNTAX)
        else:
            cursor = parse_int(word)
            if cursor is None or cursor < 0:
                raise CommandError("invalid cursor or option name")
    return cursor, given, states, is_busyloop


_STATES = (b"wait-repl", b"active", b"queued", b"acked", b"delivered", b"delayed")


def _scan_value(option: bytes, text: bytes) -> bytes:
    if option == b"state":
        if text.lower() not in _STATES:
            raise CommandError("Invalid job state name")
        return text.lower()
    if option == b"reply":
        if text.lower() not in (b"all", b"id"):
            raise CommandError("Invalid REPLY type, try ID or ALL")
        return text.lower()
    if option != b"queue":
        _number(text)
    return text


def _queue_scan(_name: bytes, args: list[bytes]) -> Command:
    options = (b"count", b"minlen", b"maxlen", b"importrate", b"reply")
    cursor, given, _, is_busyloop = _scan_words(args, options)
    length_min, length_max, import_rate_min = [
        _number(given[word]) if word in given else None for word in options[1:4]
    ]
    return QScan(
        cursor or 0,
        None if is_busyloop else _scan_count(given),
        length_min,
        length_max,
        import_rate_min,
        given.get(b"reply") == b"all",
    )


def _scan_count(given: dict[bytes, bytes]) -> int:
    return max(1, _number(given.get(b"count", b"100")))


def _job_scan(_name: bytes, args: list[bytes]) -> Command:
    options = (b"count", b"queue", b"state", b"reply")
    cursor, given, states, is_busyloop = _scan_words(args, options)
    return JScan(
        cursor or 0,
        None if is_busyloop else _scan_count(given),
        given.get(b"queue"),
        tuple(dict.fromkeys(states)),
        given.get(b"reply") == b"all",
    )


_PAUSE_WORDS = {b"in": 1, b"out": 2, b"all": 3}


def _pause(name: bytes, args: list[bytes]) -> Command:
    if len(args) < 2:
        raise _wrong_count(name)
    flags: int | None = None
    is_cluster = False
    for word in args[1:]:
        option = word.lower()
        if option == b"none":
            flags = 0
        elif option in _PAUSE_WORDS:
            flags = (flags or 0) | _PAUSE_WORDS[option]
        elif option == b"bcast":
            is_cluster = True
        elif option != b"state":
            raise CommandError(_SYNTAX)
    return Pause(args[0], flags, is_cluster)


def _publish(name: bytes, args: list[bytes]) -> Command:
    if len(args) != 2:
        raise _wrong_count(name)
    channel, body = args
    return Publish(channel, body)


def _pubsub(_name: bytes, args: list[bytes]) -> Command:
    if not args or args[0].lower() != b"numsub":
        raise CommandError("Unknown PUBSUB subcommand or wrong number of arguments")
    return NumSub(tuple(args[1:]))


def parse_pattern(text: bytes) -> Topic:
    """A pattern of PSUBSCRIBE: a name, or a prefix and one final star. CommandError for any other special character."""
    name = text[:-1] if text.endswith(b"*") else text
    if any([special in name for special in b"*?[]\\"]):
        shown = text[:128].decode("utf-8", "surrogateescape")
        raise CommandError(f"Patterns are a prefix followed by *: '{shown}'")
    return (Kind.NAME if name == text else Kind.PREFIX, name)


_PARSERS: Mapping[bytes, Callable[[bytes, list[bytes]], Command]] = {
    b"addjob": _add_job,
    b"getjob": _get_job,
    b"ackjob": _of_ids(AckJob),
    b"fastack": _of_ids(FastAck),
    b"deljob": _of_ids(DelJob),
    b"enqueue": _of_ids(Enqueue),
    b"nack": _nack,
    b"dequeue": _of_ids(Dequeue),
    b"working": _of_id(Working),
    b"show": _of_id(Show),
    b"qlen": _of_queue(QLen),
    b"qstat": _queue_status,
    b"revive": _of_ids(Revive),
    b"canceljob": _cancel_job,
    b"waitjob": _wait_job,
    b"globalqlen": _global_queue_length,
    b"qpurge": _queue_purge,
    b"qpeek": _queue_peek,
    b"qscan": _queue_scan,
    b"jscan": _job_scan,
    b"pause": _pause,
    b"publish": _publish,
    b"pubsub": _pubsub,
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
