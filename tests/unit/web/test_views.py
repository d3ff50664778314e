"""Views: the story of a job in sentences, and the nodes' words put together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from disque.web import text, views
from disque.web.views import story

if TYPE_CHECKING:
    from disque.web.replies import Reply

ADDED_S = 1_800_000_000
NOW_S = ADDED_S + 90
ADDED = "Added 2027-01-15 08:00:00 UTC, 1 min 30 s ago."
EXPIRES = "Expires in 1 h."


def told(**facts: Reply) -> list[str]:
    """The story of a job with these facts, but for its beginning and its end."""
    whole: dict[str, Reply] = {"ctime": ADDED_S * 10**9, "ttl": 3_600}
    whole |= {name.replace("_", "-"): value for name, value in facts.items()}
    lines = story(whole, NOW_S)
    assert lines[0] == ADDED
    assert (lines[-1] == EXPIRES) == (facts["state"] != b"acked")
    return lines[1:] if facts["state"] == b"acked" else lines[1:-1]


@pytest.mark.parametrize(
    ("facts", "lines"),
    [
        (
            {"state": b"queued"},
            ["Never handed out, as far as is known.", "Waits in its queue to be fetched."],
        ),
        (
            {"state": b"active", "next_requeue_within": 90_000},
            [
                "Never handed out, as far as is known.",
                "Is delayed: queued in 1 min 30 s unless it is settled before.",
            ],
        ),
        (
            {"state": b"active", "deliveries": 1, "next_requeue_within": 500},
            [
                "Handed out once.",
                "Is being worked on, or delayed: queued in a moment unless it is settled before.",
            ],
        ),
        (
            {"state": b"queued", "deliveries": 4, "nacks": 2, "additional_deliveries": 1},
            [
                "Handed out 4 times, given back twice, came back once after its RETRY time.",
                "Waits in its queue to be fetched.",
            ],
        ),
        (
            {"state": b"queued", "deliveries": 1, "nacks": 1, "reason": b"nack"},
            [
                "Handed out once, given back once.",
                "A dead letter: it had been handed out as often as it may, and was given back.",
                "Waits in its queue to be fetched.",
            ],
        ),
        (
            {"state": b"active", "deliveries": 1, "next_requeue_within": None},
            ["Handed out once.", "Is not queued, and will not be by itself."],
        ),
        (
            {"state": b"wait-repl"},
            ["Waits for its copies: the producer hasn't got its id yet."],
        ),
        ({"state": b"acked"}, ["Is settled; its copies are being collected."]),
    ],
)
def test_a_jobs_story(facts: dict[str, Reply], lines: list[str]) -> None:
    assert told(**facts) == lines


def test_a_list_keeps_of_a_job_what_it_shows() -> None:
    said: list[Reply] = [
        b"id",
        b"D-1",
        b"body",
        b"x" * 65_536,
        b"headers",
        [b"a", b"b"],
        b"nacks",
        2,
    ]
    row = views.as_row(said)
    assert (row["id"], row["body"], row["nacks"]) == (b"D-1", b"x" * views.LISTED_BYTES, 2)
    assert "headers" not in row
    assert views.as_row([b"id", b"D-1", b"body", None])["body"] is None
    assert views.as_row(None) == {}
    assert text.short(b"x" * views.LISTED_BYTES, 80)[-1] == "…", "a list tells that there is more"
