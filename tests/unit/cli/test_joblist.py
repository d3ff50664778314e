"""Job list: copies on several nodes become one state."""

from __future__ import annotations

import pytest

from disque.cli.joblist import JobView, check_id, matches, merged_state
from disque.client.results import JobInfo

ID = "D-1234abcd-abcdefghijklmnopqrstuvwx-05a1"


def copy(state: str, *, deliveries: int | None = 0, nacks: int = 0, **more: object) -> JobInfo:
    """One node's copy."""
    fields: dict[str, object] = {
        "id": ID,
        "queue": "q",
        "state": state,
        "replicate": 2,
        "ttl": 60.0,
        "created_at": 0.0,
        "delay": 0.0,
        "retry": 6.0,
        "nacks": nacks,
        "additional_deliveries": 0,
        "nodes_delivered": (),
        "nodes_confirmed": (),
        "next_requeue_within": None,
        "next_awake_within": None,
        "body": b"x",
        "deliveries": deliveries,
    }
    return JobInfo(**{**fields, **more})  # type: ignore[arg-type]


STATES = [
    ([copy("queued"), copy("active")], "queued"),
    ([copy("active"), copy("queued", deliveries=3)], "queued"),
    ([copy("active"), copy("active")], "delayed"),
    ([copy("active", deliveries=1), copy("active")], "delivered"),
    # every hand-out came back: it waits for NACK's DELAY
    ([copy("active", deliveries=2, nacks=2)], "delayed"),
    ([copy("active", deliveries=2, nacks=1)], "delivered"),
    # C Disque doesn't tell deliveries
    ([copy("active", deliveries=None)], "delivered"),
    ([copy("wait-repl"), copy("wait-repl")], "wait-repl"),
    ([copy("acked", body=None), copy("queued")], "acked"),
]


@pytest.mark.parametrize(("copies", "state"), STATES)
def test_state_of_a_job_is_that_of_its_copies_together(copies: list[JobInfo], state: str) -> None:
    assert merged_state(copies) == state


def test_view_takes_the_body_where_there_is_one_and_the_first_time_it_is_due() -> None:
    view = JobView(
        {
            "a": copy("active", body=None, next_requeue_within=9.0),
            "b": copy("active", next_requeue_within=5.0),
        }
    )
    assert (view.best.body, view.due_in) == (b"x", 5.0)


def test_dead_letter_is_found_in_whatever_state() -> None:
    dead = JobView({"a": copy("queued", reason="nack", queue="dead-letters")})
    assert matches(dead, None, "dead")
    assert matches(dead, b"dead-letters", "queued")
    assert not matches(dead, b"q", "dead")
    assert not matches(JobView({"a": copy("queued")}), None, "dead")


@pytest.mark.parametrize("text", ["", "x", ID[:-1], f"{ID}x", "E" + ID[1:], ID.replace("-", "_")])
def test_what_is_no_id_is_shown(text: str) -> None:
    with pytest.raises(Exception, match="no job id"):
        check_id(text)


def test_id_is_an_id() -> None:
    assert check_id(ID) == ID
