"""What of a Kombu message is left to the broker, and that every message, and every other job, arrives."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disque.client import Job
from disque.kombu_transport.envelope import (
    Terms,
    delay_of,
    job_options,
    lifetime_of,
    opened,
    priority_of,
    to_body,
    to_message,
)

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
TERMS = Terms(retry_s=60, ttl_s=1_000)
ID = "D-0123456789abcdef-0123456789abcdef01234567-05a1"


def message(
    body: Any = "hello", *, headers: dict[str, Any] | None = None, **properties: Any
) -> dict[str, Any]:
    return {
        "body": body,
        "content-type": "text/plain",
        "content-encoding": "utf-8",
        "headers": headers or {},
        "properties": {"delivery_info": {}, **properties},
    }


@given(st.text() | st.binary(), st.integers(0, 9))
def test_a_message_arrives_as_it_was_sent(body: str | bytes, priority: int) -> None:
    sent = message(body, headers={"id": "x"}, priority=priority)
    assert opened(to_body(sent)) == sent


def test_text_can_be_read_in_the_broker() -> None:
    assert json.loads(to_body(message("[1, 2]")))["body"] == "[1, 2]"


def envelope(**changes: Any) -> bytes:
    """What `to_body` makes, with other fields."""
    return json.dumps({**json.loads(to_body(message())), **changes}).encode()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"plain words",
        b"\xff\x00",
        b"[1, 2]",
        b'{"properties": 1}',
        b"[" * 100_000,
        envelope(properties={"body_encoding": "rot13"}),
        envelope(body="?", properties={"body_encoding": "base64"}),
        envelope(body=1),
        envelope(headers=3),
        envelope(properties={"body_encoding": "utf-8", "delivery_info": 1}),
    ],
)
def test_a_job_without_an_envelope_is_a_message_with_these_bytes(body: bytes) -> None:
    arrived = to_message(Job(ID, "q", body))
    assert (arrived["body"], arrived["content-type"]) == (body, "application/data")
    assert arrived["properties"]["delivery_info"]["routing_key"] == "q"


@pytest.mark.parametrize(("nacks", "additional"), [(0, 0), (1, 0), (0, 1)])
def test_what_the_broker_counted_tells_whether_it_is_redelivered(
    nacks: int, additional: int
) -> None:
    sent = message()
    sent["properties"]["delivery_info"] = {"exchange": "e", "routing_key": "k"}
    arrived = to_message(Job(ID, "q", to_body(sent), nacks, additional))
    assert arrived["properties"]["delivery_tag"] == ID
    assert arrived["properties"]["delivery_info"] == {
        "exchange": "e",
        "routing_key": "k",
        "redelivered": bool(nacks + additional),
        "job_id": ID,
    }


@pytest.mark.parametrize(
    ("given", "priority"),
    [(None, 0), (0, 0), (9, 9), (10, 9), (-1, 0), ("5", 5), ("high", 0), ([], 0)],
)
def test_priority_is_0_to_9(given: Any, priority: int) -> None:
    assert priority_of(message(priority=given)) == priority


@pytest.mark.parametrize(
    ("headers", "delay_s"),
    [
        ({}, 0),
        ({"eta": None}, 0),
        ({"eta": (NOW + timedelta(seconds=90)).isoformat()}, 90),
        ({"eta": (NOW + timedelta(seconds=1.2)).isoformat()}, 2),
        ({"eta": (NOW + timedelta(seconds=0.9)).isoformat()}, 0),
        ({"eta": (NOW - timedelta(days=1)).isoformat()}, 0),
        ({"eta": "2026-11-30T13:00:00Z"}, 3_600),
        ({"eta": "2026-11-30T13:00:00+01:00"}, 0),
        # Without a zone it is in the app's, which only the worker knows.
        ({"eta": "2026-11-30T13:00:00"}, 0),
        ({"eta": "tomorrow"}, 0),
        ({"eta": 5}, 0),
        ({"x-delay": 2_500}, 3),
        ({"x-delay": "soon"}, 0),
        ({"x-delay": -5_000}, 0),
        ({"x-delay": float("inf")}, 0),
    ],
)
def test_the_broker_keeps_back_what_has_a_time(headers: dict[str, Any], delay_s: int) -> None:
    assert delay_of(headers, NOW) == delay_s


@pytest.mark.parametrize(
    ("headers", "expiration", "queue_ttl_s", "lifetime_s"),
    [
        ({}, None, None, None),
        ({}, "2000", None, 2),
        ({}, "1", None, 1),
        ({}, "nonsense", None, None),
        ({}, None, 5.5, 6),
        ({}, "9000", 5.0, 5),
        # A Celery task is revoked by its worker: whoever waits for its result must be told.
        ({"expires": "2026-11-30T12:00:09"}, "9000", None, None),
        ({"expires": "2026-11-30T12:00:09"}, "9000", 30.0, 30),
    ],
)
def test_what_limits_the_life_of_a_message(
    headers: dict[str, Any],
    expiration: str | None,
    queue_ttl_s: float | None,
    lifetime_s: int | None,
) -> None:
    terms = Terms(60, 1_000, message_ttl_s=queue_ttl_s)
    assert lifetime_of(message(headers=headers, expiration=expiration), terms) == lifetime_s


def test_a_job_outlives_its_delay() -> None:
    eta = (NOW + timedelta(days=30)).isoformat()
    options = job_options(message(headers={"eta": eta}), TERMS, NOW)
    assert options == {
        "priority": 0,
        "retry": 60,
        "delay": 30 * 86_400,
        "ttl": 30 * 86_400 + 1_000,
    }
    short = job_options(message(headers={"x-delay": 5_000}, expiration="2000"), TERMS, NOW)
    assert (short["delay"], short["ttl"]) == (5, 7)


def test_a_transient_message_is_kept_for_a_day_at_most() -> None:
    long = Terms(60, 365 * 86_400)
    assert job_options(message(delivery_mode=1), long, NOW)["ttl"] == 86_400
    assert job_options(message(delivery_mode=2), long, NOW)["ttl"] == 365 * 86_400
    assert job_options(message(delivery_mode=1), TERMS, NOW)["ttl"] == 1_000


def test_a_queue_s_arguments_win_over_the_transport_s_options() -> None:
    terms = Terms(60, 1_000, max_deliveries=9, dead_letter="dead", replicate=2)
    assert job_options(message(), terms, NOW) == {
        "priority": 0,
        "retry": 60,
        "ttl": 1_000,
        "replicate": 2,
        "max_deliveries": 9,
        "dead_letter": "dead",
    }
    arguments = {
        "x-message-ttl": 4_000,
        "x-delivery-limit": 3,
        "x-dead-letter-routing-key": "graves",
    }
    options = job_options(message(), terms.of_queue(arguments), NOW)
    assert (options["ttl"], options["max_deliveries"], options["dead_letter"]) == (4, 3, "graves")
