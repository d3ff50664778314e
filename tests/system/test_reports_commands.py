"""What people reported of commands and edge values, one test a report (field-reports A1: U01 ...)."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import pytest

from tests.system.nodes import Cluster, Node, ReplyError, Resp, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.system

UNKNOWN = "D-00000000-aaaaaaaaaaaaaaaaaaaaaaaa-05a1"


def add(client: Resp, queue: str = "q", body: str = "body", *options: str | int) -> str:
    """Add a job and return its id."""
    job: str = client.call("ADDJOB", queue, body, 0, *options)
    return job


def test_u01_maxlen_1_lets_one_job_in(client: Resp) -> None:
    add(client, "q", "a", "MAXLEN", 1)
    assert client.error("ADDJOB", "q", "b", 1000, "MAXLEN", 1).startswith("MAXLEN ")
    assert client.call("QLEN", "q") == 1
    for value in ("0", "-1", "x"):
        text = client.error("ADDJOB", "q", "b", 0, "MAXLEN", value)
        assert text == "ERR MAXLEN must be a positive number"


@pytest.mark.parametrize("count", ["0", "-1", str(2**63), "1.5", "x"])
def test_u02_count_below_1_dequeues_nothing(client: Resp, count: str) -> None:
    job = add(client)
    text = client.error("GETJOB", "COUNT", count, "FROM", "q")
    assert text == "ERR COUNT must be a number greater than zero"
    assert client.call("QLEN", "q") == 1
    assert client.call("GETJOB", "FROM", "q")[0][1] == job.encode()


def test_u03_dequeue_and_enqueue_count_what_really_changed(client: Resp) -> None:
    a, b, c = [add(client) for _ in range(3)]
    assert client.call("DEQUEUE", a) == 1
    assert client.call("DEQUEUE", b, c) == 2
    assert client.call("DEQUEUE", a, b, c) == 0
    assert client.call("ENQUEUE", a) == 1
    assert client.call("ENQUEUE", a, b, c) == 2
    assert client.call("ENQUEUE", a, b, c) == 0


@pytest.mark.parametrize(
    ("command", "reply"),
    [
        ("ACKJOB", 0),
        ("FASTACK", 0),
        ("DELJOB", 0),
        ("NACK", 0),
        ("ENQUEUE", 0),
        ("DEQUEUE", 0),
        ("SHOW", None),
        ("CANCELJOB", 0),
        ("REVIVE", 0),
    ],
)
def test_u04_unknown_ids_are_answered_at_once(client: Resp, command: str, reply: object) -> None:
    client.sock.settimeout(2)
    assert client.call(command, UNKNOWN) == reply
    assert client.call("PING") == "PONG"


def test_u04_working_on_an_unknown_id_says_so(client: Resp) -> None:
    client.sock.settimeout(2)
    text = client.error("WORKING", UNKNOWN)
    assert text == "NOJOB Job not known in the context of this node."
    assert client.call("PING") == "PONG"


def test_u05_show_of_a_job_that_was_just_acked_harms_nobody(three: Cluster) -> None:
    with three.connections() as connections:
        for number in range(200):
            at = connections[number % 3]
            job = add(at)
            at.call("GETJOB", "FROM", "q")
            assert at.call("ACKJOB", job) == 1
            for connection in connections:
                shown = connection.call("SHOW", job)
                assert shown is None or shown[5] in (b"acked", b"active"), shown
    three.wait_drained()


BIG = 2**63 - 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("DELAY", 10, "TTL", 10),
            "ERR The specified DELAY is greater than TTL. Job refused since",
        ),
        (
            ("DELAY", 11, "TTL", 10),
            "ERR The specified DELAY is greater than TTL. Job refused since",
        ),
        (("TTL", 0), "ERR TTL must be a number > 0"),
        (("TTL", -1), "ERR TTL must be a number > 0"),
        (("TTL", BIG + 1), "ERR TTL must be a number > 0"),
        (("RETRY", -1), "ERR RETRY time must be a non negative number"),
        (("DELAY", -1), "ERR DELAY time must be a non negative number"),
        (
            ("RETRY", 0, "REPLICATE", 2),
            "ERR With RETRY set to 0 please explicitly set  REPLICATE to 1",
        ),
        (("REPLICATE", 0), "ERR REPLICATE must be between 1 and 65535"),
        (("REPLICATE", 70_000), "ERR REPLICATE must be between 1 and 65535"),
        (("REPLICATE", 2**31), "ERR REPLICATE must be between 1 and 65535"),
        (("REPLICATE", 2), "NOREPL Not enough reachable nodes for the requested replication level"),
        (("TTL",), "ERR syntax error"),
        (("NONSENSE",), "ERR syntax error"),
    ],
)
def test_u06_numbers_that_cannot_be(client: Resp, words: tuple[str | int, ...], said: str) -> None:
    assert client.error("ADDJOB", "q", "body", 0, *words).startswith(said)


@pytest.mark.parametrize(
    ("timeout", "said"),
    [("-1", "timeout is negative"), (str(2**63), "timeout is not an integer or out of range")],
)
def test_u06_timeouts_that_cannot_be(client: Resp, timeout: str, said: str) -> None:
    assert client.error("ADDJOB", "q", "body", timeout) == f"ERR {said}"
    assert client.error("GETJOB", "TIMEOUT", timeout, "FROM", "q") == f"ERR {said}"


@pytest.mark.parametrize(
    ("words", "retry", "ttl"),
    [
        (("TTL", 2**31), 300, 2**31),
        (("RETRY", 5_000_000, "TTL", 100), 5_000_000, 100),  # W-30: nothing wraps
        (("RETRY", 7, "RETRY", 9), 9, 86_400),  # the last one counts
        (("TTL", 5), 1, 5),
    ],
)
def test_u06_large_numbers_do_not_wrap(
    client: Resp, words: tuple[str | int, ...], retry: int, ttl: int
) -> None:
    shown = client.call("SHOW", add(client, "q", "body", *words))
    fields = dict(zip(shown[::2], shown[1::2], strict=True))
    assert (fields[b"retry"], fields[b"ttl"]) in ((retry, ttl), (retry, ttl - 1))


def test_u07_a_queue_named_thrice_is_waited_for_once(lone: Node, client: Resp) -> None:
    with lone.connect() as waiting:
        waiting.send("GETJOB", "TIMEOUT", 5_000, "FROM", "q7", "q7", "q7")
        wait_until("it waits", lambda: blocked(client, "q7") == 1)
        job = add(client, "q7")
        assert waiting.read() == [[b"q7", job.encode(), b"body"]]
    assert blocked(client, "q7") == 0
    with lone.connect() as leaving:
        leaving.send("GETJOB", "FROM", "q7", "q7")
        wait_until("it waits", lambda: blocked(client, "q7") == 1)
    wait_until("it has gone", lambda: blocked(client, "q7") == 0)


def blocked(client: Resp, queue: str) -> int:
    """Clients that wait for jobs of a queue."""
    shown = client.call("QSTAT", queue) or [b"blocked", 0]
    number: int = dict(zip(shown[::2], shown[1::2], strict=True))[b"blocked"]
    return number


def test_u08_at_most_once_jobs_are_never_delivered_twice(client: Resp) -> None:
    job = add(client, "q", "b", "RETRY", 0, "REPLICATE", 1)
    assert client.call("GETJOB", "FROM", "q")[0][1] == job.encode()
    assert [client.call(word, job) for word in ("NACK", "ENQUEUE")] == [0, 0]
    time.sleep(0.3)
    assert client.call("GETJOB", "NOHANG", "FROM", "q") is None
    client.call("ACKJOB", job)
    assert b"registered_jobs:0\r\n" in client.call("INFO", "jobs")


def test_u09_retry_runs_from_the_delivery(client: Resp) -> None:
    add(client, "q", "b", "RETRY", 2)
    time.sleep(1.2)
    client.call("GETJOB", "FROM", "q")
    delivered = time.monotonic()
    assert client.call("GETJOB", "TIMEOUT", 1_200, "FROM", "q") is None
    assert client.call("GETJOB", "TIMEOUT", 5_000, "FROM", "q")
    assert 1.9 < time.monotonic() - delivered < 4


def test_u10_working_keeps_a_job_till_half_its_life(three: Cluster) -> None:
    with three.connections() as (a, b, c):
        job = add(a, "q", "b", "RETRY", 1, "TTL", 5, "REPLICATE", 1)
        assert a.call("GETJOB", "FROM", "q")
        started = time.monotonic()
        said: object = 1
        while not isinstance(said, ReplyError):
            assert said == 1
            assert time.monotonic() - started < 4
            assert b.call("GETJOB", "TIMEOUT", 300, "FROM", "q") is None
            c.send("WORKING", job)  # a node without a copy
            said = c.read()
    assert str(said).startswith("TOOLATE Half of job TTL already elapsed")
    assert time.monotonic() - started > 2


def test_u18_pause_in_refuses_and_pause_out_holds_back(lone: Node, client: Resp) -> None:
    assert client.call("PAUSE", "p", "in") == "in"
    assert client.error("ADDJOB", "p", "b", 0) == "PAUSED Queue paused in input, try later"
    assert client.call("PAUSE", "p", "out") == "out"
    job = add(client, "p")
    with lone.connect() as waiting:
        waiting.send("GETJOB", "FROM", "p")
        wait_until("it waits", lambda: blocked(client, "p") == 1)
        assert client.call("PAUSE", "p", "all") == "all"
        assert client.call("PAUSE", "p", "state") == "all"
        assert client.call("PAUSE", "p", "none") == "none"
        assert waiting.read() == [[b"p", job.encode(), b"body"]]
    assert client.error("PAUSE", "p", "nonsense") == "ERR syntax error"


def test_u18_pause_of_one_node_ends_with_a_restart(make_node: Callable[..., Node]) -> None:
    node = make_node().start()
    assert node.call("PAUSE", "p", "in") == "in"
    node.kill()
    node.start()
    assert node.call("PAUSE", "p", "state") == "none"


def test_u19_qpeek_shows_both_ends(client: Resp) -> None:
    for number in range(10):
        add(client, "q", str(number))
        time.sleep(0.002)
    assert [job[2] for job in client.call("QPEEK", "q", 3)] == [b"0", b"1", b"2"]
    assert [job[2] for job in client.call("QPEEK", "q", -3)] == [b"9", b"8", b"7"]
    assert len(client.call("QPEEK", "q", 100)) == 10
    assert client.call("QPEEK", "q", 0) == client.call("QPEEK", "nosuch", 3) == []
    assert client.error("QPEEK", "q", "x") == "ERR value is not an integer or out of range"
    assert client.call("QLEN", "q") == 10


def scan(client: Resp, *words: str | int, at: int = 0) -> list[object]:
    """All elements of a scan; the cursor stands at place `at` of the words."""
    cursor, found, rounds = b"0", [], 0
    while rounds == 0 or cursor != b"0":
        cursor, elements = client.call(words[0], *words[1 : 1 + at], cursor, *words[1 + at :])
        found += elements
        rounds += 1
        assert rounds < 100_000
    return found


def test_u20_qscan_finds_all_that_stays_though_queues_come_and_go(client: Resp) -> None:
    names = {b"stays-%d" % number for number in range(5_000)}
    for name in sorted(names):
        client.send("ADDJOB", name, "b", 0)
    for _ in names:
        assert isinstance(client.read(), str)
    found: set[object] = set()
    cursor, rounds = b"0", 0
    while rounds == 0 or cursor != b"0":
        cursor, elements = client.call("QSCAN", cursor, "COUNT", 50)
        found.update(elements)
        add(client, f"comes-{rounds}", "b", "RETRY", 0, "REPLICATE", 1)
        rounds += 1
    assert names <= found
    assert set(scan(client, "QSCAN", "COUNT", 1_000, at=2)) >= names
    cursor, elements = client.call("QSCAN", "BUSYLOOP")
    assert cursor == b"0"
    assert names <= set(elements)


def test_u20_scans_filter(client: Resp) -> None:
    for length in (1, 2, 3):
        for _ in range(length):
            add(client, f"l{length}")
    mine = {b"l1", b"l2", b"l3"}
    for words, wanted in (
        (("MINLEN", 2), {b"l2", b"l3"}),
        (("MAXLEN", 2), {b"l1", b"l2"}),
        (("MINLEN", 2, "MAXLEN", 2), {b"l2"}),
        (("IMPORTRATE", 1), set()),
    ):
        assert set(scan(client, "QSCAN", *words)) & mine == wanted
    job = client.call("GETJOB", "FROM", "l1")[0][1].decode()
    assert scan(client, "JSCAN", "STATE", "active") == [job]
    assert len(scan(client, "JSCAN", "STATE", "active", "STATE", "queued", at=2)) == 6
    assert len(scan(client, "JSCAN", "QUEUE", "l3")) == 3
    ((*shown,),) = scan(client, "JSCAN", "REPLY", "all", "QUEUE", "l1")
    assert dict(zip(shown[::2], shown[1::2], strict=True))[b"id"] == job.encode()
    assert client.error("JSCAN", "x") == "ERR invalid cursor or option name"
    assert client.error("JSCAN", "0", "0") == "ERR syntax error"
    assert client.error("JSCAN", "STATE", "x") == "ERR Invalid job state name"
    assert client.error("JSCAN", "REPLY", "x") == "ERR Invalid REPLY type, try ID or ALL"


def test_u21_queues_used_once_are_freed_and_watched_ones_stay(
    make_node: Callable[..., Node],
) -> None:
    node = make_node("--queue-max-idle", "1").start()
    count = 20_000
    with node.connect() as client, node.connect() as waiting:
        base = int(node.info("memory")["used_memory"])
        waiting.send("GETJOB", "FROM", "watched")
        for number in range(count):
            client.send("GETJOB", "NOHANG", "FROM", f"once-{number}")
        for _ in range(count):
            assert client.read() is None
        wait_until(
            "the queues are freed",
            lambda: node.info("queues")["registered_queues"] == "1",
            within_s=30,
        )
        assert int(node.info("memory")["used_memory"]) < base + 100_000
        job = add(client, "watched")
        assert waiting.read() == [[b"watched", job.encode(), b"body"]]


def test_u22_states_sum_up_to_what_is_registered(client: Resp, lone: Node) -> None:
    def counted() -> dict[str, int]:
        fields = lone.info("jobs")
        names = ("queued", "delivered", "delayed", "acked", "registered")
        return {name: int(fields[f"{name}_jobs"]) for name in names}

    jobs = [add(client) for _ in range(5)]
    late = add(client, "q", "b", "DELAY", 100)
    assert counted() == {"queued": 5, "delivered": 0, "delayed": 1, "acked": 0, "registered": 6}
    got = client.call("GETJOB", "COUNT", 2, "FROM", "q")
    assert counted() == {"queued": 3, "delivered": 2, "delayed": 1, "acked": 0, "registered": 6}
    client.call("NACK", got[0][1])
    assert counted() == {"queued": 4, "delivered": 1, "delayed": 1, "acked": 0, "registered": 6}
    client.call("ACKJOB", got[1][1])
    assert counted() == {"queued": 4, "delivered": 0, "delayed": 1, "acked": 0, "registered": 5}
    client.call("ACKJOB", late, *jobs)
    assert counted() == dict.fromkeys(counted(), 0)
    shown = client.call("QSTAT", "q")
    fields = dict(zip(shown[::2], shown[1::2], strict=True))
    assert (fields[b"jobs-in"], fields[b"jobs-out"]) == (6, 2)


def test_u23_ids_carry_the_prefix_of_their_node(client: Resp) -> None:
    prefix = client.call("CLUSTER", "MYID").decode()[:8]
    pattern = rf"D-{prefix}-[A-Za-z0-9+/]{{24}}-[0-9a-f]{{4}}"
    for words in ((), ("RETRY", 0, "REPLICATE", 1), ("TTL", 10**9)):
        assert re.fullmatch(pattern, add(client, "q", "b", *words))


def test_u24_withcounters_gives_7_elements_a_job(client: Resp) -> None:
    jobs = [add(client, "q", str(number)).encode() for number in range(2)]
    found = client.call("GETJOB", "COUNT", 2, "WITHCOUNTERS", "FROM", "q")
    zeros = [b"nacks", 0, b"additional-deliveries", 0]
    assert sorted(found) == sorted([b"q", job, b"%d" % n, *zeros] for n, job in enumerate(jobs))
    assert client.call("NACK", jobs[0]) == 1
    ((*_, name, nacks, other, again),) = client.call("GETJOB", "WITHCOUNTERS", "FROM", "q")
    assert (name, nacks, other) == (b"nacks", 1, b"additional-deliveries")
    assert isinstance(again, int)


def test_u25_one_bad_id_means_badid_and_nothing_is_done(client: Resp) -> None:
    job = add(client)
    assert client.error("GETJOB", "q") == "ERR syntax error"
    for command in ("ACKJOB", "FASTACK", "DELJOB", "NACK", "ENQUEUE", "DEQUEUE", "CANCELJOB"):
        assert client.error(command, job, "bad") == "BADID Invalid Job ID format."
    assert client.call("QLEN", "q") == 1
    assert client.call("ACKJOB", *[add(client) for _ in range(10)]) == 10


def test_u26_ping_and_the_fields_of_show(client: Resp) -> None:
    assert client.call("PING") == "PONG"
    assert client.call("PING", "x") == b"x"
    shown = client.call("SHOW", add(client))
    assert b" ".join(shown[::2]) == (
        b"id queue state repl ttl ctime delay retry nacks additional-deliveries nodes-delivered "
        b"nodes-confirmed next-requeue-within next-awake-within body priority max-deliveries "
        b"deliveries dead-letter reason headers own-queue"
    )


def test_u28_timeouts_take_what_they_say(client: Resp) -> None:
    assert client.call("GETJOB", "NOHANG", "FROM", "q") is None
    for timeout_ms, most_s in ((1, 0.05), (200, 0.4)):
        started = time.monotonic()
        assert client.call("GETJOB", "TIMEOUT", timeout_ms, "FROM", "q") is None
        assert timeout_ms / 1000 - 0.002 < time.monotonic() - started < most_s


def test_u31_many_rounds_of_get_ack_add_leave_nothing(client: Resp, lone: Node) -> None:
    bodies = [
        b"",
        b"\r\n",
        bytes(range(256)),
        b"$-1\r\n",
        b"*1\r\n$4\r\nPING\r\n",
        b"a",
        b"\0",
        b"x" * 5_000,
    ]
    for _ in range(200):
        for body in bodies:
            assert isinstance(client.call("ADDJOB", "q", body, 0), str)
        assert client.call("QLEN", "q") == 8
        found = client.call("GETJOB", "COUNT", 100, "FROM", "q")
        assert sorted(job[2] for job in found) == sorted(bodies)
        assert client.call("ACKJOB", *[job[1] for job in found]) == 8
    assert lone.info("jobs")["registered_jobs"] == "0"
