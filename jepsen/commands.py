"""Commands: an operation of the history as words of the protocol, and its reply as the history's values.

Pure; what `fail` and `info` mean stands in jepsen.history.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from jepsen import bodies
from jepsen.history import FAIL, INFO
from jepsen.resp import Trouble, Word

Value = Mapping[str, Any]

# The first words of error replies that promise that nothing happened; any other word leaves it unknown.
NOTHING_HAPPENED: Final = frozenset(
    {
        "ACKED",
        "BADID",
        "DENIED",
        "ERR",
        "LEAVING",
        "LOADING",
        "MAXLEN",
        "MISCONF",
        "NOAUTH",
        "NOJOB",
        "NOPERM",
        "OOM",
        "PAUSED",
        "TOOLATE",
    }
)

BY_ID: Final = {
    "ack": "ACKJOB",
    "fastack": "FASTACK",
    "nack": "NACK",
    "deljob": "DELJOB",
    "cancel": "CANCELJOB",
    "enqueue": "ENQUEUE",
    "dequeue": "DEQUEUE",
    "revive": "REVIVE",
    "working": "WORKING",
}
ANSWER_MS: Final = 2_500  # for commands without a time-out of their own
GRACE_MS: Final = 1_500  # beyond a command's own time-out


def words_of(f: str, value: Value, run: str) -> tuple[Word, ...]:
    """The command of an invocation. Raises ValueError for an f that no client sends."""
    if f == "add":
        return _addjob(value, run)
    if f == "get":
        head = ("GETJOB", "WITHCOUNTERS", "COUNT", value["count"])
        waiting = ("TIMEOUT", value["timeout"]) if value["timeout"] else ("NOHANG",)
        return (*head, *waiting, "FROM", *value["queues"])
    if f == "purge":
        return ("QPURGE", value["queue"])
    if f == "show":
        return ("SHOW", value["id"])
    if f in BY_ID:
        after = ("DELAY", value["delay"]) if f == "nack" and value.get("delay") else ()
        return (BY_ID[f], *value["ids"], *after)
    raise ValueError(f"no command for {f!r}")


def timeout_ms(f: str, value: Value) -> int:
    """How long a client waits for the reply before it gives up."""
    return int(value["timeout"]) + GRACE_MS if f in {"add", "get"} else ANSWER_MS


def result_of(f: str, reply: Any, run: str) -> dict[str, Any]:
    """What an ok adds to its invocation's value."""
    if f == "add":
        return {"id": reply}
    if f == "get":
        return {"jobs": [_delivery(each, run) for each in reply or ()]}
    if f == "working":
        return {"seconds": reply}
    if f == "purge":
        return {"count": reply[0], "answered": reply[1], "silent": reply[2]}
    return {"count": reply}


def outcome_of_error(f: str, line: str) -> str:
    """FAIL if this error reply promises that nothing happened, else INFO.

    A waiting ADDJOB is taken back by best effort when its node is to leave, or can't write; of the latter it says so.
    """
    word = line.partition(" ")[0]
    if f == "add" and (word == "LEAVING" or line.endswith("isn't known")):
        return INFO
    return FAIL if word in NOTHING_HAPPENED else INFO


def outcome_of_trouble(trouble: Trouble) -> str:
    """FAIL if no byte of the command can have been out, else INFO."""
    return INFO if trouble.was_sent else FAIL


def _addjob(value: Value, run: str) -> tuple[Word, ...]:
    words: list[Word] = ["ADDJOB", value["queue"], bodies.make(run, value["v"], value["size"])]
    words.append(value["timeout"])
    named = (("REPLICATE", "replicate", 0), ("DELAY", "delay", 0), ("RETRY", "retry", -1))
    for word, key, absent in (*named, ("TTL", "ttl", 0), ("MAXDELIVERIES", "limit", 0)):
        if value[key] != absent:
            words += (word, value[key])
    if value["dead"]:
        words += ("DEADLETTER", value["dead"])
    if value["async"]:
        words.append("ASYNC")
    return tuple(words)


def _delivery(fields: list[Any], run: str) -> dict[str, Any]:
    queue, job, body, _, nacks, _, extra = fields
    v = bodies.value_of(body, run)
    found = {
        "v": -1 if v is None else v,
        "id": job.decode(),
        "queue": queue.decode(),
        "nacks": nacks,
        "extra": extra,
    }
    return found if v is not None else {**found, "raw": repr(body[:200])}
