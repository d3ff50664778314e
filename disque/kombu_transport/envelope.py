"""Envelopes: how a message of Kombu's becomes a job, and a job a message. Pure.

The job's body is the message as JSON, readable in the broker as far as the message's own body is text. What the broker
can do is left to it: priority, delay (`eta` of Celery's headers, `x-delay` of RabbitMQ's plug-in), time to live,
delivery limit. A job that somebody else added without an envelope arrives as a message with these bytes.
"""

from __future__ import annotations

# mypy: disallow-untyped-calls=False
import base64
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
from kombu.utils.json import dumps, loads

if TYPE_CHECKING:
    from disque.client import Job

Message: TypeAlias = dict[str, Any]

PRIORITY_MAX = 9
# What is published as transient (results of Celery's rpc:// are) is kept for a day at most: nobody may ask for it.
TRANSIENT_TTL_S = 86_400
# Delays below this are left to the worker: the broker counts in whole seconds.
DELAY_MIN_S = 1.0


@attrs.frozen
class Terms:
    """What holds for the jobs of a queue; seconds, None for no limit. `message_ttl_s` is x-message-ttl of the queue."""

    retry_s: int
    ttl_s: int
    replicate: int | None = None
    max_deliveries: int | None = None
    dead_letter: str | None = None
    message_ttl_s: float | None = None

    def of_queue(self, arguments: Mapping[str, Any] | None) -> Terms:
        """These terms as the queue's arguments change them: those of RabbitMQ, by its names."""
        given = arguments or {}
        terms = self
        if (ttl_ms := given.get("x-message-ttl")) is not None:
            terms = attrs.evolve(terms, message_ttl_s=int(ttl_ms) / 1000)
        if (limit := given.get("x-delivery-limit")) is not None:
            terms = attrs.evolve(terms, max_deliveries=int(limit))
        if (queue := given.get("x-dead-letter-routing-key")) is not None:
            terms = attrs.evolve(terms, dead_letter=str(queue))
        return terms


def to_body(message: Message) -> bytes:
    """The body of its job: JSON, in which a body of bytes is base64 and `body_encoding` says so."""
    body, encoding = message["body"], "utf-8"
    if isinstance(body, bytes | bytearray | memoryview):
        body, encoding = base64.b64encode(body).decode("ascii"), "base64"
    properties = {**message["properties"], "body_encoding": encoding}
    return dumps({**message, "body": body, "properties": properties}).encode()  # type: ignore[no-any-return]


def job_options(message: Message, terms: Terms, now: datetime) -> dict[str, Any]:
    """Arguments of `Client.add_job` for a message; `now` is aware of its time zone."""
    delay_s = delay_of(message["headers"], now)
    lifetime_s = lifetime_of(message, terms)
    if lifetime_s is None:
        is_transient = message["properties"].get("delivery_mode") == 1
        lifetime_s = min(terms.ttl_s, TRANSIENT_TTL_S) if is_transient else terms.ttl_s
    options: dict[str, Any] = {
        "priority": priority_of(message),
        "retry": terms.retry_s,
        "ttl": lifetime_s + delay_s,
    }
    if delay_s:
        options["delay"] = delay_s
    if terms.replicate is not None:
        options["replicate"] = terms.replicate
    if terms.max_deliveries is not None:
        options["max_deliveries"] = terms.max_deliveries
    if terms.dead_letter is not None:
        options["dead_letter"] = terms.dead_letter
    return options


def priority_of(message: Message) -> int:
    """0 to 9, high first; what isn't given, or is no number, is 0, as in AMQP."""
    try:
        return max(0, min(int(message["properties"].get("priority") or 0), PRIORITY_MAX))
    except (TypeError, ValueError):
        return 0


def delay_of(headers: Mapping[str, Any], now: datetime) -> int:
    """Whole seconds for which the broker keeps a message back, rounded up: a worker never gets it before its time.

    An `eta` without a time zone is in that of the app, which isn't known here: the worker waits for it.
    """
    delay_s = _seconds(headers.get("x-delay")) or 0.0
    eta = headers.get("eta")
    if isinstance(eta, str):
        try:
            at = datetime.fromisoformat(eta)
        except ValueError:
            at = now
        delay_s = (at - now).total_seconds() if at.tzinfo is not None else 0.0
    return math.ceil(delay_s) if delay_s >= DELAY_MIN_S else 0


def lifetime_of(message: Message, terms: Terms) -> int | None:
    """Whole seconds after which the broker drops a message, rounded up; None for the default.

    Celery's `expires` isn't one of them: the worker revokes such a task, and whoever waits for its result is told.
    """
    given_s = _seconds(message["properties"].get("expiration"))
    if message["headers"].get("expires") is not None:
        given_s = None
    limits = [each for each in (terms.message_ttl_s, given_s) if each is not None]
    return max(1, math.ceil(min(limits))) if limits else None


def _seconds(given_ms: Any) -> float | None:
    """Of milliseconds in a header; None for what can't be meant."""
    try:
        seconds = float(given_ms) / 1000
    except (TypeError, ValueError):
        return None
    return seconds if 0 <= seconds < math.inf else None


def to_message(job: Job) -> Message:
    """The message in a job, with what the broker knows of it: `redelivered` and `job_id` in its delivery_info."""
    message = opened(job.body)
    properties = message["properties"]
    properties["delivery_tag"] = job.id
    properties["delivery_info"] = {
        "exchange": "",
        "routing_key": job.queue,
        **properties["delivery_info"],
        "redelivered": job.is_redelivered,
        "job_id": job.id,
    }
    return message


def opened(body: bytes) -> Message:
    """The message in these bytes, its body decoded; bytes that are no envelope are the body of a message."""
    try:
        return _checked(loads(body))
    except (ValueError, TypeError, KeyError, RecursionError):
        return {
            "body": body,
            "content-type": "application/data",
            "content-encoding": "binary",
            "headers": {},
            "properties": {"delivery_info": {}},
        }


def _checked(message: Any) -> Message:
    """Raises one of many errors if this isn't what `to_body` makes."""
    properties = {**message["properties"]}
    properties["delivery_info"] = {**properties.get("delivery_info", {})}
    body, encoding = message["body"], properties.pop("body_encoding")
    if not isinstance(body, str) or encoding not in ("utf-8", "base64"):
        raise ValueError(encoding)
    if encoding == "base64":
        body = base64.b64decode(body, validate=True)
    return {**message, "body": body, "headers": {**message["headers"]}, "properties": properties}


def utc_now() -> datetime:
    """The wall clock, against which an `eta` is meant."""
    return datetime.now(UTC)
