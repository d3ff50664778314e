"""Series from histories small enough to count by hand."""

from __future__ import annotations

import pytest

from jepsen.checkers.base import Finding, Meta, Run
from jepsen.history import FAIL, INFO, INVOKE, OBSERVER, OK
from jepsen.report import measures
from jepsen.report.measures import Calls
from tests.unit.jepsen.synthetic import Book, add_value, lost_values, make_run


def calls(book: Book) -> Calls:
    return Calls.of(Run(Meta(), book.history()))


def add(
    book: Book, v: int, at_ms: float, took_ms: float, kind: str = OK, process: int = 0, **given: int
) -> None:
    book.add(at_ms, process, INVOKE, "add", add_value(v, **given), "n1")
    book.add(at_ms + took_ms, process, kind, "add", add_value(v, **given), "n1")


def get(book: Book, at_ms: float, took_ms: float, *vs: int, process: int = 9) -> None:
    jobs = [{"v": v, "id": f"D-{v}", "queue": "q", "nacks": 0, "extra": 0} for v in vs]
    book.add(at_ms, process, INVOKE, "get", {"queues": ["q"]}, "n1")
    book.add(at_ms + took_ms, process, OK, "get", {"queues": ["q"], "jobs": jobs}, "n1")


def test_a_call_that_never_completed_is_unknown_and_lasts_to_the_end() -> None:
    book = Book()
    book.add(10, 0, INVOKE, "add", add_value(1), "n1")
    add(book, 2, 20, 5, process=1)
    found = calls(book)
    first, second = found.clients
    assert (first.type, first.latency_ms(found.end_ns)) == (INFO, 15)
    assert (second.type, second.latency_ms(found.end_ns)) == (OK, 5)


def test_observers_are_no_clients() -> None:
    book = Book()
    book.add(1, OBSERVER, INVOKE, "observe", {"phase": "start"}, "n1")
    book.add(2, OBSERVER, OK, "observe", {"phase": "start", "queued": 4, "members": ["n1"]}, "n1")
    found = calls(book)
    assert not found.clients
    (seen,) = measures.snapshots(found)
    assert (seen.node, seen.at_s, seen.counts) == ("n1", 0.002, {"queued": 4})


def test_rates_count_every_call_once() -> None:
    run = make_run(jobs=100)
    found = Calls.of(run)
    lines = measures.rates(found, 1.0)
    assert sum(y for line in lines.values() for _, y in line) == len(found.clients)
    invoked = [op for op in run.ops if op.type == INVOKE and op.process >= 0]
    assert len(found.clients) == len(invoked)
    assert {
        ("add", OK),
        ("add", INFO),
        ("add", FAIL),
        ("get", OK),
        ("ack", OK),
        ("ack", INFO),
    } == set(lines)


def test_a_rate_is_calls_by_the_second() -> None:
    book = Book()
    for i in range(10):
        add(book, i, 100 * i, 1)
    add(book, 99, 3_000, 1)
    line = measures.rates(calls(book), 2.0)["add", OK]
    assert line == [(1.0, 5.0), (3.0, 0.5)]


@pytest.mark.parametrize(("q", "value"), [(0.5, 50), (0.95, 95), (0.99, 99), (1.0, 100)])
def test_nearest_rank_quantiles(q: float, value: float) -> None:
    assert measures.quantile([float(x) for x in range(1, 101)], q) == value
    assert measures.quantile([7.0], q) == 7


def test_quantiles_by_bin_leave_empty_bins_out() -> None:
    lines = measures.latency_quantiles([(0.1, 5), (0.9, 1), (2.5, 9)], 1.0)
    assert lines[0.5] == [(0.5, 1), (2.5, 9)]
    assert lines[1.0] == [(0.5, 5), (2.5, 9)]


def test_a_delivery_waits_from_the_reply_or_from_the_end_of_the_delay() -> None:
    book = Book()
    add(book, 1, 0, 10)
    add(book, 2, 20, 10, delay=1)
    add(book, 3, 40, 100)
    get(book, 45, 5, 3, 7)
    get(book, 60, 0, 1)
    get(book, 70, 10, 1)
    get(book, 1_000, 30, 2)
    waits = measures.delivery_latencies(calls(book))
    assert waits == [(0.05, 0, 3), (0.06, 50, 1), (1.03, pytest.approx(10), 2)]


def test_what_is_acknowledged_and_not_yet_delivered() -> None:
    book = Book()
    add(book, 1, 0, 10)
    add(book, 2, 20, 10)
    add(book, 3, 40, 10, kind=INFO)
    add(book, 4, 60, 100, process=1)
    get(book, 70, 10, 4)
    get(book, 90, 10, 1)
    get(book, 190, 10, 1)
    steps = measures.unseen(calls(book))
    assert steps == [
        (0, 0),
        (0.01, 0),
        (0.01, 1),
        (0.03, 1),
        (0.03, 2),
        (0.1, 2),
        (0.1, 1),
        (0.2, 1),
    ]


@pytest.mark.parametrize(
    ("lost", "places"),
    [
        ({1, 2}, {1: "prefix", 2: "prefix"}),
        ({3}, {3: "middle"}),
        ({5, 6}, {5: "postfix", 6: "postfix"}),
        ({1, 4, 6}, {1: "prefix", 4: "middle", 6: "postfix"}),
        ({1, 2, 3, 4, 5, 6}, dict.fromkeys(range(1, 7), "prefix")),
        (set(), {}),
    ],
)
def test_where_a_producers_losses_stand(lost: set[int], places: dict[int, str]) -> None:
    assert measures.lost_places([1, 2, 3, 4, 5, 6], lost) == places


def test_what_became_of_each_add() -> None:
    book = Book()
    for v, kind in enumerate([OK, OK, OK, INFO, FAIL, INFO]):
        add(book, v, v * 10, 1, kind)
    # the producer's number after an unknown outcome, and another producer
    add(book, 6, 100, 1, process=2)
    add(book, 7, 110, 1, process=1)
    get(book, 200, 1, 0, 2, 5, 6)
    findings = [
        Finding("loss", "lost", "", v=1),
        Finding("loss", "stuck", "", v=7),
        Finding("order", "x", "", v=2),
    ]
    found = measures.fates(calls(book), findings, concurrency=2)
    assert [fate for _, fate in found] == [
        "delivered",
        "lost-middle",
        "delivered",
        "unknown",
        "refused",
        "delivered",
        "delivered",
        "lost-prefix",
    ]


def test_a_missing_job_without_a_finding_is_not_called_lost() -> None:
    run = make_run(jobs=30)
    fates = {
        call.invoke.value["v"]: fate
        for call, fate in measures.fates(Calls.of(run), [], run.meta.concurrency)
    }
    missing = lost_values(run)
    assert missing
    assert [v for v, fate in fates.items() if fate == "unseen"] == missing


@pytest.mark.parametrize(("end_s", "width"), [(5, 0.5), (60, 2), (120, 5), (290, 10), (4_000, 10)])
def test_bins_are_finer_in_short_runs(end_s: float, width: float) -> None:
    assert measures.bin_width_s(end_s, 10) == width
