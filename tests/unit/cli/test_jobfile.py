"""Job file: a line has all of a job, and a wrong line says what is wrong with it."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disque.cli.jobfile import StoredJob, add_words, from_line, to_line

ID = "D-1234abcd-abcdefghijklmnopqrstuvwx-05a1"
numbers = st.none() | st.integers(0, 1 << 40)
jobs = st.builds(
    StoredJob,
    queue=st.binary(),
    body=st.binary(),
    ttl=st.none() | st.integers(1, 1 << 40),
    delay=st.integers(0, 1 << 40),
    retry=numbers,
    replicate=st.none() | st.integers(1, 65_535),
    priority=st.none() | st.integers(0, 9),
    max_deliveries=numbers,
    dead_letter=st.none() | st.binary(),
    headers=st.lists(st.tuples(st.binary(), st.binary())).map(tuple),
    own_queue=st.none() | st.binary(),
    id=st.none() | st.just(ID),
    told=st.dictionaries(st.sampled_from(["state", "nacks"]), st.integers(0, 9)),
)


@given(jobs)
def test_job_comes_through_a_line_unchanged(job: StoredJob) -> None:
    line = to_line(job)
    assert line.count("\n") == 1
    assert line.endswith("\n")
    assert from_line(line.encode()) == job


def test_text_is_readable_in_the_line() -> None:
    line = json.loads(to_line(StoredJob(b"mail", "grün\n".encode(), headers=((b"a", b"b"),))))
    assert line == {"queue": "mail", "body": "grün\n", "delay": 0, "headers": [["a", "b"]]}


def test_queue_and_body_suffice() -> None:
    assert from_line(b'{"queue": "q", "body": ""}') == StoredJob(b"q", b"")


WRONG = [
    (b"", "no JSON"),
    (b"{", "no JSON"),
    (b"[" * 100_000, "no JSON"),
    (b"[1]", "expected an object"),
    (b'{"body": "x"}', "queue: is missing"),
    (b'{"queue": "q"}', "body: is missing"),
    (b'{"queue": "q", "body": 1}', "body: expected a string"),
    (b'{"queue": "q", "body": {"base64": "!"}}', "body: "),
    (b'{"queue": "q", "body": "", "prority": 1}', "prority: no such field"),
    (b'{"queue": "q", "body": "", "ttl": 0}', "ttl: expected a whole number from 1 on, got 0"),
    (b'{"queue": "q", "body": "", "retry": 1.5}', "retry: expected a whole number"),
    (b'{"queue": "q", "body": "", "delay": true}', "delay: expected a whole number"),
    (b'{"queue": "q", "body": "", "id": "a b"}', "id: expected an id"),
    (b'{"queue": "q", "body": "", "headers": {"a": "b"}}', "headers: expected"),
]


@pytest.mark.parametrize(("line", "complaint"), WRONG)
def test_wrong_line_says_what_is_wrong(line: bytes, complaint: str) -> None:
    with pytest.raises(ValueError, match=re.escape(complaint)):
        from_line(line)


WORDS = [
    (StoredJob(b"q", b"x"), []),
    (StoredJob(b"q", b"x", replicate=3, ttl=60, retry=6), ["REPLICATE", 2, "TTL", 60, "RETRY", 6]),
    # at most once: one copy, said explicitly, and no limit of deliveries
    (StoredJob(b"q", b"x", replicate=1, retry=0, max_deliveries=0), ["REPLICATE", 1, "RETRY", 0]),
    # ADDJOB refuses a delay that reaches the TTL
    (StoredJob(b"q", b"x", ttl=5, delay=9), ["TTL", 5, "DELAY", 4]),
    (
        StoredJob(b"q", b"x", priority=9, max_deliveries=3, dead_letter=b"d"),
        ["PRIORITY", 9, "MAXDELIVERIES", 3, "DEADLETTER", b"d"],
    ),
    # a letter in its own dead letter queue
    (StoredJob(b"d", b"x", max_deliveries=3, dead_letter=b"d"), ["MAXDELIVERIES", 3]),
    (StoredJob(b"q", b"x", headers=((b"a", b"b"),)), ["HEADER", b"a", b"b"]),
]


@pytest.mark.parametrize(("job", "options"), WORDS)
def test_words_that_make_the_job_again(job: StoredJob, options: list[object]) -> None:
    assert add_words(job, timeout_ms=7, nodes=2) == ["ADDJOB", job.queue, b"x", 7, *options]
