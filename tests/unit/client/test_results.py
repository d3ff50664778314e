"""Results: replies to values. The replies are those of reference 1 and docs/commands.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from disque.client import results
from disque.client.results import Job

ID = b"D-dcb833cf-8YL1NT17e9+wsA/09NqxscQI-05a1"
SID = ID.decode()
NODE = "d" * 40

SHOW = [
    b"id", ID, b"queue", b"q", b"state", b"active", b"repl", 2, b"ttl", 60, b"ctime", 1_500_000_000,
    b"delay", 3, b"retry", 6, b"nacks", 1, b"additional-deliveries", 2,
    b"nodes-delivered", [NODE.encode()], b"nodes-confirmed", [], b"next-requeue-within", 1500,
    b"next-awake-within", None, b"body", b"\0\xff",
]  # fmt: skip
OURS = [
    b"priority", 9, b"max-deliveries", 5, b"deliveries", 4, b"dead-letter", b"dead", b"reason", None,
    b"headers", [b"kind", b"\xff"], b"own-queue", b"own",
]  # fmt: skip
INFO = results.JobInfo(
    id=SID, queue="q", state="active", replicate=2, ttl=60.0, created_at=1.5, delay=3.0, retry=6.0,
    nacks=1, additional_deliveries=2, nodes_delivered=(NODE,), nodes_confirmed=(),
    next_requeue_within=1.5, next_awake_within=None, body=b"\0\xff", ctime=1_500_000_000,
)  # fmt: skip


def test_show_of_c_disque_has_defaults_for_what_is_ours() -> None:
    assert results.job_info(SHOW) == INFO
    assert results.job_info(None) is None


def test_show_has_our_fields_too_and_more_that_a_later_node_adds() -> None:
    told = results.job_info([*SHOW, *OURS, b"later", 1])
    assert told is not None
    assert (told.priority, told.max_deliveries, told.deliveries) == (9, 5, 4)
    assert (told.dead_letter, told.reason, told.own_queue) == ("dead", None, "own")
    assert told.headers == {"kind": b"\xff"}


def test_show_of_an_ack_without_its_job_has_no_queue_and_no_body() -> None:
    dummy = list(SHOW)
    dummy[3], dummy[29] = None, None
    told = results.job_info(dummy)
    assert told is not None
    assert (told.queue, told.body) == (None, None)


READ: list[tuple[Callable[[Any], object], Any, object]] = [
    (results.jobs, None, []),
    (results.jobs, [[b"q", ID, b"x"]], [Job(SID, "q", b"x")]),
    (
        results.jobs,
        [[b"q\xff", ID, b"\xff", b"nacks", 1, b"additional-deliveries", 2]],
        [Job(SID, "q\udcff", b"\xff", 1, 2)],
    ),
    (results.number, 3, 3),
    (results.seconds, 3, 3.0),
    (results.word, b"OK", "OK"),
    (results.done, b"OK", None),
    (results.tally, [5, 2, 1], results.Tally(5, 2, 1)),
    (results.outcomes, [[ID, b"acked"]], {SID: "acked"}),
    (results.names, [b"7", [b"a", b"b"]], results.Page(7, ("a", "b"))),
    (results.job_infos, [b"0", [SHOW]], results.Page(0, (INFO,))),
    (results.counts, [b"c", 2], {"c": 2}),
    (results.fields, b"# Jobs\r\na:1\r\nb:x:y\r\n", {"a": "1", "b": "x:y"}),
    (
        results.hello,
        [1, b"id", [b"id", b"h", b"7711", b"1"], [b"o", b"", b"1", b"100"]],
        results.Hello("id", (results.NodeInfo("id", "h", 7711, 1), results.NodeInfo("o", "", 1, 100))),
    ),
    (results.queue_stats, None, None),
    (
        results.queue_stats,
        [
            b"name", b"q", b"len", 1, b"age", 2, b"idle", 3, b"blocked", 4, b"import-from",
            [b"n"], b"import-rate", 5, b"jobs-in", 6, b"jobs-out", 7, b"pause", b"in",
        ],
        results.QueueStats("q", 1, 2.0, 3.0, 4, ("n",), 5, 6, 7, "in"),
    ),
    (results.global_queue_stats, None, None),
    (
        results.global_queue_stats,
        [
            b"name", b"q", b"len", 1, b"oldest-age", None, b"delivered", 2, b"delayed", 3,
            b"acked", 4, b"copies", 5, b"blocked", 6, b"jobs-in", 7, b"jobs-out", 8,
            b"pause", b"none", b"nodes-answered", 2, b"nodes-silent", 1,
        ],
        results.GlobalQueueStats("q", 1, None, 2, 3, 4, 5, 6, 7, 8, "none", 2, 1),
    ),
    (
        results.scanned_stats,
        [
            b"3",
            [
                [
                    b"name", b"q", b"len", 1, b"oldest-age", 9, b"delivered", 2, b"delayed", 3,
                    b"acked", 4, b"copies", 5, b"blocked", 6, b"jobs-in", 7, b"jobs-out", 8,
                    b"pause", b"none",
                ],
            ],
        ],
        results.Page(
            3, (results.GlobalQueueStats("q", 1, 9.0, 2, 3, 4, 5, 6, 7, 8, "none", 1, 0),)
        ),
    ),
    (results.message, [b"message", b"c", b"x"], results.Message("c", b"x")),
    (results.message, [b"pmessage", b"c*", b"cd", b"x"], results.Message("cd", b"x", "c*")),
    (results.message, [b"subscribe", b"c", 1], None),
    (results.message, [b"pong", b""], None),
]  # fmt: skip


@pytest.mark.parametrize(("read", "reply", "value"), READ)
def test_reply_is_read(read: Callable[[Any], object], reply: Any, value: object) -> None:
    assert read(reply) == value


@pytest.mark.parametrize(
    ("read", "reply"),
    [
        (results.number, b"3"),
        (results.word, 3),
        (results.done, None),
        (results.tally, [1, 2]),
        (results.jobs, [[b"q", ID, None]]),
        (results.jobs, [[b"q"]]),
        (results.hello, [1]),
        (results.job_info, [b"id"]),
        (results.queue_stats, [b"name", b"q"]),
    ],
)
def test_reply_of_another_shape_is_an_error(read: Callable[[Any], object], reply: Any) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        read(reply)


def test_attempt_counts_every_delivery_before() -> None:
    assert [Job("", "", b"", *counters).attempt for counters in ((), (2,), (0, 1), (2, 3))] == [
        1,
        3,
        2,
        6,
    ]
    assert not Job("", "", b"").is_redelivered
    assert Job("", "", b"", 0, 1).is_redelivered
