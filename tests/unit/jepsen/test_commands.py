"""Commands: words of each operation, results of replies, and what each kind of failure means."""

from __future__ import annotations

from typing import Any

import pytest

from disque.server.clients import UNKNOWN_OUTCOME
from jepsen import bodies, commands
from jepsen.history import FAIL, INFO
from jepsen.resp import Trouble

RUN = "5d2f"
ADD: dict[str, Any] = {
    "v": 7,
    "queue": "jx",
    "retry": -1,
    "replicate": 0,
    "delay": 0,
    "ttl": 0,
    "async": False,
    "timeout": 1000,
    "limit": 0,
    "dead": "",
    "size": 0,
}


def test_a_body_names_its_add() -> None:
    assert bodies.value_of(bodies.make(RUN, 7), RUN) == 7
    long = bodies.make(RUN, 7, 500)
    assert len(long) == 500
    assert bodies.value_of(long, RUN) == 7


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"hello",
        bodies.make("other", 7),
        bodies.make(RUN, 7)[:-1],
        bodies.make(RUN, 7).replace(b":7:", b":8:"),
        bodies.make(RUN, 7, 500)[:-1] + b"x",
    ],
)
def test_a_foreign_or_damaged_body_has_no_value(body: bytes) -> None:
    assert bodies.value_of(body, RUN) is None


def test_a_plain_add_says_no_options() -> None:
    assert commands.words_of("add", ADD, RUN) == ("ADDJOB", "jx", bodies.make(RUN, 7), 1000)


def test_an_add_says_what_is_set_and_retry_0_is_set() -> None:
    value = ADD | {
        "retry": 0,
        "replicate": 1,
        "delay": 2,
        "ttl": 9,
        "limit": 3,
        "dead": "d",
        "async": True,
    }
    assert commands.words_of("add", value, RUN)[4:] == (
        *("REPLICATE", 1, "DELAY", 2, "RETRY", 0, "TTL", 9),
        *("MAXDELIVERIES", 3, "DEADLETTER", "d", "ASYNC"),
    )


@pytest.mark.parametrize(
    ("f", "value", "words"),
    [
        (
            "get",
            {"queues": ["a", "b"], "count": 2, "timeout": 300},
            ("GETJOB", "WITHCOUNTERS", "COUNT", 2, "TIMEOUT", 300, "FROM", "a", "b"),
        ),
        (
            "get",
            {"queues": ["a"], "count": 1, "timeout": 0},
            ("GETJOB", "WITHCOUNTERS", "COUNT", 1, "NOHANG", "FROM", "a"),
        ),
        ("ack", {"ids": ["i", "j"]}, ("ACKJOB", "i", "j")),
        ("nack", {"ids": ["i"], "delay": 1}, ("NACK", "i", "DELAY", 1)),
        ("nack", {"ids": ["i"], "delay": 0}, ("NACK", "i")),
        ("cancel", {"ids": ["i"]}, ("CANCELJOB", "i")),
        ("purge", {"queue": "q"}, ("QPURGE", "q")),
    ],
)
def test_words_of_other_operations(f: str, value: dict[str, Any], words: tuple[Any, ...]) -> None:
    assert commands.words_of(f, value, RUN) == words


def test_no_words_for_what_no_client_sends() -> None:
    with pytest.raises(ValueError, match="observe"):
        commands.words_of("observe", {}, RUN)


def test_a_delivery_tells_value_id_queue_and_counters() -> None:
    reply = [[b"jx", b"D-1", bodies.make(RUN, 7), b"nacks", 1, b"additional-deliveries", 2]]
    job = {"v": 7, "id": "D-1", "queue": "jx", "nacks": 1, "extra": 2}
    assert commands.result_of("get", reply, RUN) == {"jobs": [job]}


def test_a_foreign_delivery_shows_its_body() -> None:
    reply = [[b"jx", b"D-1", b"what?", b"nacks", 0, b"additional-deliveries", 0]]
    (job,) = commands.result_of("get", reply, RUN)["jobs"]
    assert (job["v"], job["raw"]) == (-1, "b'what?'")


def test_no_delivery_is_an_empty_list() -> None:
    assert commands.result_of("get", None, RUN) == {"jobs": []}


@pytest.mark.parametrize(
    ("line", "outcome"),
    [
        ("NOREPL Not enough reachable nodes", INFO),
        ("UNHEARD-OF something", INFO),
        ("", INFO),
        ("ERR syntax error", FAIL),
        ("OOM command not allowed", FAIL),
        ("PAUSED Queue paused in input", FAIL),
        ("LEAVING This node is leaving", FAIL),
        ("NOJOB Job not known", FAIL),
        ("BADID Invalid Job ID format.", FAIL),
    ],
)
def test_an_error_reply_is_a_fail_only_if_nothing_can_have_happened(
    line: str, outcome: str
) -> None:
    assert commands.outcome_of_error("ack", line) == outcome


@pytest.mark.parametrize(
    ("line", "outcome"),
    [
        ("MISCONF Errors writing to the AOF file: no space", FAIL),
        (f"MISCONF Errors writing to the AOF file: no space{UNKNOWN_OUTCOME}", INFO),
        ("LEAVING This node is leaving", INFO),
        ("OOM command not allowed", FAIL),
    ],
)
def test_a_waiting_addjob_may_have_added_its_job_though_its_node_gave_it_up(
    line: str, outcome: str
) -> None:
    assert commands.outcome_of_error("add", line) == outcome


def test_no_reply_is_a_fail_only_before_the_first_byte() -> None:
    assert commands.outcome_of_trouble(Trouble("refused", was_sent=False)) == FAIL
    for kind in ("timeout", "reset", "eof"):
        assert commands.outcome_of_trouble(Trouble(kind, was_sent=True)) == INFO


def test_a_client_waits_longer_than_the_command() -> None:
    assert commands.timeout_ms("add", ADD) > 1000
    assert commands.timeout_ms("ack", {"ids": []}) > 1000
