"""The life of one job from a history: everything that touched it, nothing else."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

import pytest

from jepsen.checkers.base import Finding, Meta, Run
from jepsen.history import INFO, INVOKE, NEMESIS, OBSERVER, OK
from jepsen.report import biography
from jepsen.report.biography import EVENTS_MAX, Biography, biographies
from tests.unit.jepsen.synthetic import Book, add_value, job_id, make_run


def run_of(book: Book) -> Run:
    return Run(Meta(nodes=("n1", "n2", "n3")), book.history())


def call(
    book: Book,
    at: float,
    f: str,
    value: dict[str, Any],
    more: dict[str, Any] | None = None,
    node: str = "n1",
) -> None:
    """An ok call of 1 ms by a process of its own."""
    process = len(book.events)
    book.add(at, process, INVOKE, f, value, node)
    book.add(at + 1, process, OK, f, {**value, **(more or {})}, node)


def add(book: Book, at: float, v: int, queue: str = "q") -> None:
    call(book, at, "add", add_value(v, queue=queue), {"id": job_id(v)})


def get(book: Book, at: float, *vs: int, node: str = "n2") -> None:
    jobs = [{"v": v, "id": job_id(v), "queue": "q", "nacks": 0, "extra": 1} for v in vs]
    call(book, at, "get", {"queues": ["q"], "count": 9}, {"jobs": jobs}, node)


def observe(book: Book, at: float, node: str, *vs: int) -> None:
    book.add(at, OBSERVER, INVOKE, "observe", {"phase": "fault"}, node)
    book.add(at, OBSERVER, OK, "observe", {"phase": "fault", "ids": [job_id(v) for v in vs]}, node)


def full_life() -> Run:
    """Value 1 lives among values 2 and 3."""
    book = Book()
    add(book, 10, 2)
    add(book, 20, 1)
    observe(book, 25, "n1", 1, 2)
    observe(book, 26, "n2", 2)
    observe(book, 27, "n1", 1)
    get(book, 30, 1, 2)
    call(book, 40, "nack", {"ids": [job_id(1)], "vs": [1], "delay": 3})
    call(book, 45, "working", {"ids": [job_id(2)]}, {"seconds": 2})
    call(book, 50, "purge", {"queue": "q"}, {"count": 3})
    call(book, 55, "purge", {"queue": "other"}, {"count": 0})
    call(book, 60, "ack", {"ids": [job_id(1), job_id(3)]}, {"count": 2}, node="n3")
    book.add(65, 900, INVOKE, "ack", {"ids": [job_id(1)]}, "n2")
    book.add(66, 900, INFO, "ack", {"ids": [job_id(1)]}, "n2", "timeout")
    observe(book, 70, "n1", 2)
    fault = {"kind": "kill", "nodes": ["n2"]}
    for number, start, stop in ((1, 1, 5), (2, 35, 300), (3, 90, 95)):
        book.add(start, NEMESIS, INFO, "start", {"id": number, **fault, "proven": True})
        book.add(stop, NEMESIS, INFO, "stop", {"id": number, "kind": "kill", "proven": True})
    return run_of(book)


def texts(life: Biography) -> list[str]:
    return [
        f"{event.at / 1e6:.0f} {event.node} {event.text}".replace("  ", " ")
        for event in life.events
    ]


@pytest.mark.parametrize("wanted", [(job_id(1), 1), (job_id(1), -1), ("", 1)])
def test_a_life_holds_all_that_touched_the_job_and_nothing_else(wanted: tuple[str, int]) -> None:
    (life,) = biographies(full_life(), [wanted])
    assert (life.job, life.v) == (job_id(1), 1)
    told = texts(life)
    expected = [
        "20 n1 add by process 2: v 1, queue q, retry 2, replicate 2",
        f"21 n1 add by process 2 → ok id {job_id(1)}",
        "25 n1 snapshot shows it, un-acked",
        "31 n2 DELIVERED to process 10 (asked at 0.030 s), queue q, nacks 0, extra deliveries 1",
        "35 starts: kill: nodes n2; 0.265 s; proven",
        "40 n1 nack by process 12: delay 3 s",
        "41 n1 nack by process 12 → ok",
        "50 n1 purge by process 16",
        "51 n1 purge by process 16 → ok count 3",
        "60 n3 ack by process 20: with 1 others",
        "61 n3 ack by process 20 → ok count 2",
        "65 n2 ack by process 900",
        "66 n2 ack by process 900 → info timeout",
        "70 n1 snapshot shows it no longer",
        "300 ends: kill",
    ]
    assert told == expected


def test_findings_are_lines_of_the_life() -> None:
    finding = Finding("acks", "late", "delivered after its ack", job_id(1), 1, 62_000_000)
    other = Finding("acks", "late", "another job", job_id(9), 9, 62_000_000)
    (life,) = biographies(full_life(), [(job_id(1), 1)], [finding, other])
    told = [event for event in life.events if event.kind == biography.FINDING]
    assert [event.text for event in told] == ["acks: late: delivered after its ack"]
    assert told[0].at == 62_000_000


def test_one_pass_tells_several_lives_in_the_order_asked() -> None:
    lives = biographies(full_life(), [("", 2), ("", 1), (job_id(1), -1), ("D-never-seen", -1)])
    assert [(life.v, life.job) for life in lives] == [
        (2, job_id(2)),
        (1, job_id(1)),
        (-1, "D-never-seen"),
    ]
    assert any("working" in event.text for event in lives[0].events)
    assert not lives[2].events


def test_an_add_whose_reply_was_lost_is_known_by_its_delivery() -> None:
    book = Book()
    book.add(1, 0, INVOKE, "add", add_value(5), "n1")
    book.add(2, 0, INFO, "add", add_value(5), "n1", "timeout")
    get(book, 10, 5)
    call(book, 20, "ack", {"ids": [job_id(5)]}, {"count": 1})
    (life,) = biographies(run_of(book), [("", 5)])
    assert life.job == job_id(5)
    assert [event.text.split()[0] for event in life.events] == [
        "add",
        "add",
        "DELIVERED",
        "ack",
        "ack",
    ]


def test_a_strange_body_is_shown() -> None:
    book = Book()
    job = {"v": -1, "id": "D-x", "queue": "q", "raw": "b'<junk>'"}
    call(book, 1, "get", {"queues": ["q"]}, {"jobs": [job]})
    (life,) = biographies(run_of(book), [("D-x", -1)])
    assert "b'<junk>'" in life.events[0].text
    assert "b'<junk>'" in "".join(ET.fromstring(biography.as_html(life)).itertext())


def test_an_endless_life_keeps_its_beginning_and_its_end() -> None:
    book = Book()
    add(book, 0, 1)
    for i in range(EVENTS_MAX * 2):
        get(book, 10 + 10 * i, 1)
    (life,) = biographies(run_of(book), [("", 1)])
    assert len(life.events) == EVENTS_MAX
    assert life.left_out == EVENTS_MAX + 2
    assert life.events[0].text.startswith("add")
    assert life.events[-1].at == (10 + 10 * (EVENTS_MAX * 2 - 1) + 1) * 1_000_000
    assert f"… {life.left_out} lines left out" in biography.as_html(life)


def test_html_tells_every_event() -> None:
    (life,) = biographies(full_life(), [("", 1)])
    assert biography.headline(life).startswith(f"value 1  job {job_id(1)}")
    root = ET.fromstring(biography.as_html(life))
    assert len(list(root.iter("tr"))) == len(life.events)
    assert [each.get("href") for each in root.iter("a")] == ["timeline.html#1"]


def test_the_jobs_to_tell_are_the_first_different_ones() -> None:
    findings = [
        Finding("a", "k", "", "D-1", 1),
        Finding("b", "k", "", "D-1", 1),
        Finding("c", "k", "no job"),
    ]
    findings += [Finding("d", "k", "", v=v) for v in range(5)]
    assert biography.offending(findings, 3) == [("D-1", 1), ("", 0), ("", 1)]


def test_every_op_about_a_job_of_a_whole_run_is_told() -> None:
    run = make_run(jobs=40)
    (life,) = biographies(run, [("", 3)])
    about = {
        op.index
        for op in run.ops
        if op.value.get("v") == 3
        or job_id(3) in op.value.get("ids", ())
        or any(job["v"] == 3 for job in op.value.get("jobs", ()))
    }
    assert {event.index for event in life.events if event.index >= 0} == about
