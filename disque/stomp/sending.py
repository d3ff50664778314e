"""SEND: from a frame's headers to a command of the core.

Our headers decide how the job is kept; all others travel with it, but for those that a MESSAGE has itself.
"""

from __future__ import annotations

from collections.abc import Mapping

from disque.core.commands import (
    DURATION_MAX_MS,
    PRIORITY_DEFAULT,
    REPLICATE_MAX,
    TTL_DEFAULT_MS,
    AddJob,
    Publish,
)
from disque.core.integers import INT64_MAX, parse_int
from disque.errors import CommandError
from disque.stomp.destinations import TEMP, temporary_name
from disque.stomp.frames import Frame, shown

SEND_TIMEOUT_MS = 10_000  # for the copies of a job, then NOREPL

ACK_TIMEOUT = b"ack-timeout"
_OURS = frozenset({b"replicate", b"ttl", b"delay", b"retry", b"priority", b"maxlen"})
# A MESSAGE, or the protocol, says these itself.
_RESERVED = frozenset(
    {
        b"destination", b"content-length", b"receipt", b"receipt-id", b"transaction", b"message-id", b"subscription",
        b"ack", b"id", b"redelivered", b"nacks", b"additional-deliveries", b"login", b"passcode",
    }
)  # fmt: skip


def add_command(queue: bytes, frame: Frame, connection: bytes) -> AddJob:
    """The job that a SEND to a queue means; CommandError shows a header that can't be used."""
    headers = frame.headers
    priority = _whole(headers, b"priority", 0, 9)
    return AddJob(
        queue,
        frame.body,
        SEND_TIMEOUT_MS,
        replicate=_whole(headers, b"replicate", 1, REPLICATE_MAX),
        delay_ms=_seconds(headers, b"delay") or 0,
        retry_ms=_retry_ms(headers),
        ttl_ms=_ttl_ms(headers),
        maxlen=_whole(headers, b"maxlen", 1, INT64_MAX),
        priority=PRIORITY_DEFAULT if priority is None else priority,
        headers=_travelling(headers, connection),
    )


def publish_command(channel: bytes, frame: Frame, connection: bytes) -> Publish:
    """What a SEND to a topic means."""
    return Publish(channel, frame.body, _travelling(frame.headers, connection))


def is_renewable(headers: Mapping[bytes, bytes]) -> bool:
    """True if the producer of a job said nothing of how soon it must be done."""
    return ACK_TIMEOUT not in headers


def _travelling(headers: Mapping[bytes, bytes], connection: bytes) -> dict[bytes, bytes]:
    """What the job keeps. `retry` above 0 becomes the ack-timeout that it is, so that a subscriber's node knows."""
    kept = {k: v for k, v in headers.items() if k not in _OURS and k not in _RESERVED}
    if _retry_ms(headers):
        kept[ACK_TIMEOUT] = headers[b"retry" if b"retry" in headers else ACK_TIMEOUT]
    else:
        kept.pop(ACK_TIMEOUT, None)
    reply_to = kept.get(b"reply-to", b"")
    if reply_to.startswith(TEMP):
        kept[b"reply-to"] = b"/queue/" + temporary_name(reply_to, connection)
    return kept


def _retry_ms(headers: Mapping[bytes, bytes]) -> int | None:
    """`retry`, 0 included, means RETRY itself; an `ack-timeout` of 0 is as none."""
    retry_ms = _seconds(headers, b"retry")
    if retry_ms is not None:
        return retry_ms
    return _seconds(headers, ACK_TIMEOUT) or None


def _ttl_ms(headers: Mapping[bytes, bytes]) -> int:
    ttl_ms = _seconds(headers, b"ttl")
    if ttl_ms == 0:
        raise CommandError("ttl must be above 0 s")
    return TTL_DEFAULT_MS if ttl_ms is None else ttl_ms


def _seconds(headers: Mapping[bytes, bytes], name: bytes) -> int | None:
    """A decimal of seconds in ms; more than 0 never becomes 0."""
    text = headers.get(name)
    if text is None:
        return None
    whole, point, fraction = text.strip().partition(b".")
    digits = whole + fraction
    if not digits.isdigit() or len(whole) > 18 or (point and not fraction):
        raise CommandError(f"{name.decode()} must be a number of seconds, got {shown(text)}")
    ms = int(whole or b"0") * 1_000 + int((fraction + b"000")[:3])
    return min(ms or bool(digits.strip(b"0")), DURATION_MAX_MS)


def _whole(headers: Mapping[bytes, bytes], name: bytes, low: int, high: int) -> int | None:
    text = headers.get(name)
    if text is None:
        return None
    number = parse_int(text.strip())
    if number is None or not low <= number <= high:
        raise CommandError(f"{name.decode()} must be between {low} and {high}, got {shown(text)}")
    return number
