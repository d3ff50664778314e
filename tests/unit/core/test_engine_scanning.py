"""QPEEK, QSCAN, JSCAN (reference 1.10, 1.11): what stays throughout a scan is returned, snapshots are bounded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from disque.core import commands as cmd
from disque.core import messages as msg
from disque.core.delivery import free
from disque.core.job import Reason
from disque.core.jobid import JobId
from disque.core.limits import Limits
from disque.core.parsing import parse
from disque.core.ready import Status
from disque.errors import CommandError
from tests.unit.core.builders import (
    CTIME,
    DAY_MS,
    OTHER,
    A,
    B,
    C,
    Node,
    add_command,
    facts,
    job_id,
    node_with,
    spec,
    view,
)

UP = view(up=(B, C))


def peeked(node: Node, count: int, queue: bytes = b"q") -> list[Any]:
    """Bodies that QPEEK shows."""
    (found,) = node.do(cmd.QPeek(queue, count))
    assert isinstance(found, list)
    return [each[2] for each in found]  # type: ignore[index]


def call(node: Node, command: cmd.Command) -> tuple[int, list[Any]]:
    """(cursor, elements) of one call of a scan."""
    (answer,) = node.do(command)
    assert isinstance(answer, list)
    cursor, found = answer
    assert isinstance(cursor, bytes)
    assert isinstance(found, list)
    return int(cursor), found


def walk(
    node: Node, make: Callable[[int], cmd.Command], between: Callable[[int], None] = lambda _: None
) -> list[list[Any]]:
    """A whole scan, call by call; `between` runs after each call but the last."""
    cursor, calls = 0, []
    while True:
        cursor, found = call(node, make(cursor))
        calls.append(found)
        if not cursor:
            return calls
        assert len(calls) < 1_000, "the scan never ends"
        between(len(calls))


def flat(calls: list[list[Any]]) -> list[Any]:
    """All elements."""
    return [each for found in calls for each in found]


# QPEEK


def test_u19_qpeek_shows_the_oldest_first_and_with_a_negative_count_the_newest_first() -> None:
    node = Node()
    for n in range(5):
        node.add(b"%d" % n)
    assert peeked(node, 3) == [b"0", b"1", b"2"]
    assert peeked(node, -3) == [b"4", b"3", b"2"]
    assert peeked(node, 99) == [b"0", b"1", b"2", b"3", b"4"]
    assert peeked(node, -99) == [b"4", b"3", b"2", b"1", b"0"]
    assert peeked(node, 0) == []


def test_u19_a_queue_is_paged_through_by_jscan_though_jobs_come_and_go() -> None:
    node = Node()
    ids = [node.add() for _ in range(40)]
    node.add(queue=b"other")

    def between(_: int) -> None:
        node.get()  # by an offset, the next page would begin one job too late
        node.add()

    pages = walk(
        node, lambda cursor: cmd.JScan(cursor, 5, queue=b"q", states=(b"queued",)), between
    )
    assert {len(page) for page in pages[:-1]} == {5}
    found = [each.text for each in flat(pages)]
    assert len(found) == len(set(found))
    assert set(ids[len(pages) :]) <= set(found)


def test_qpeek_shows_queue_id_body_of_each() -> None:
    node = Node()
    id_ = node.add(b"body")
    assert node.do(cmd.QPeek(b"q", 1)) == [[[b"q", id_, b"body"]]]


def test_qpeek_of_an_empty_or_unknown_queue_is_an_empty_array() -> None:
    node = Node()
    node.add()
    node.get()
    assert node.do(cmd.QPeek(b"q", 5)) == [[]]
    assert node.do(cmd.QPeek(b"nope", 5)) == [[]]
    assert b"nope" not in node.state.queues


def test_qpeek_and_a_scan_of_bodies_end_once_the_answer_is_full() -> None:
    node = Node(limits=Limits(answer_bytes_max=100))
    ids = [node.add(b"%d" % n * 60) for n in range(5)]
    assert [each[:1] for each in peeked(node, 5)] == [b"0", b"1"]
    assert [each[:1] for each in peeked(node, -5)] == [b"4", b"3"]
    calls = walk(node, lambda cursor: cmd.JScan(cursor, 5, is_full=True))
    assert [[each[1] for each in call] for call in calls] == [ids[:2], ids[2:4], ids[4:]]
    assert len(call(node, cmd.JScan(0, 5))[1]) == 5


def test_qpeek_changes_nothing_and_ignores_pauses() -> None:
    node = Node()
    node.add()
    node.do(cmd.Pause(b"q", 3))
    node.clear()
    assert peeked(node, 1) == [b"body"]
    assert node.do(cmd.QLen(b"q")) == [1]
    assert (node.said, node.records) == ([], [])


def test_qpeek_follows_priority_then_age_and_reversed_with_a_negative_count() -> None:
    node = Node()
    for body, priority in ((b"low", 0), (b"old", 4), (b"new", 4), (b"high", 9)):
        node.add(body, priority=priority)
    assert peeked(node, 9) == [b"high", b"old", b"new", b"low"]
    assert peeked(node, -9) == [b"low", b"new", b"old", b"high"]


def test_qpeek_shows_a_dead_letter_in_its_dead_queue() -> None:
    node = Node()
    node.add(b"bad", max_deliveries=1)
    (delivery,) = node.get()
    node.do(cmd.Nack((JobId(delivery.id),)))
    assert (peeked(node, 1), peeked(node, 1, b"dead-letters")) == ([], [b"bad"])


# Scans


def test_a_scan_of_nothing_is_cursor_0_and_no_element() -> None:
    assert Node().do(cmd.QScan()) == [[b"0", []]]
    assert Node().do(cmd.JScan()) == [[b"0", []]]


def test_qscan_returns_every_queue_once_in_calls_of_count() -> None:
    node = Node()
    names = [b"q%03d" % n for n in range(250)]
    for name in names:
        node.add(queue=name)
    calls = walk(node, lambda cursor: cmd.QScan(cursor, 100))
    assert [len(found) for found in calls] == [100, 100, 50]
    assert sorted(flat(calls)) == names


def test_busyloop_is_one_call() -> None:
    node = Node()
    for n in range(250):
        node.add(queue=b"q%d" % n)
    cursor, found = call(node, cmd.QScan(count=None))
    assert (cursor, len(found)) == (0, 250)
    cursor, found = call(node, cmd.JScan(count=None))
    assert (cursor, len(found)) == (0, 250)


def test_u20_what_stays_throughout_a_scan_is_returned_whatever_comes_and_goes() -> None:
    node = Node()
    stays = [node.add(queue=b"stay%d" % n) for n in range(50)]
    goes = [node.add(queue=b"go%d" % n) for n in range(50)]

    def between(n: int) -> None:
        node.add(queue=b"new%d" % n)
        if goes:
            node.do(cmd.DelJob((goes.pop(),)))

    jobs = walk(node, lambda cursor: cmd.JScan(cursor, 3), between)
    assert set(stays) <= {each.text for each in flat(jobs)}
    queues = walk(node, lambda cursor: cmd.QScan(cursor, 3), between)
    assert {b"stay%d" % n for n in range(50)} <= set(flat(queues))


def test_a_call_ends_after_ten_times_count_names_even_if_few_were_wanted() -> None:
    node = Node()
    for n in range(95):
        node.add(queue=b"q%d" % n)
    node.add(queue=b"long")
    node.add(queue=b"long")
    calls = walk(node, lambda cursor: cmd.QScan(cursor, 2, length_min=2))
    assert [len(found) for found in calls] == [0, 0, 0, 0, 1]


@pytest.mark.parametrize(
    ("options", "wanted"),
    [({"length_min": 2}, [b"q2", b"q3"]), ({"length_max": 1}, [b"q0", b"q1"]),
     ({"length_min": 1, "length_max": 2}, [b"q1", b"q2"]), ({"import_rate_min": 1}, []),
     ({"import_rate_min": 0}, [b"q0", b"q1", b"q2", b"q3"])],
)  # fmt: skip
def test_qscan_filters_inclusively(options: dict[str, int], wanted: list[bytes]) -> None:
    node = Node()
    for length in range(4):
        for _ in range(length):
            node.add(queue=b"q%d" % length)
    node.do(cmd.GetJob((b"q0",), is_nohang=True))
    _, found = call(node, cmd.QScan(**options))
    assert sorted(found) == wanted


def test_qscan_in_full_tells_of_each_queue_what_qstat_global_says_of_a_lone_node() -> None:
    node = Node()
    node.add(queue=b"q")
    node.add(queue=b"q")
    node.do(cmd.GetJob((b"q",)))
    node.add(queue=b"r")
    (whole,) = node.do(cmd.QStat(b"q", is_global=True))
    assert isinstance(whole, list)
    _, found = call(node, cmd.QScan(is_full=True))
    assert sorted([each[1] for each in found]) == [b"q", b"r"]
    assert [each for each in found if each[1] == b"q"] == [whole[:-4]]
    assert whole[-4:] == [b"nodes-answered", 1, b"nodes-silent", 0]


def test_qscan_in_full_tells_of_queues_that_only_have_jobs_in_work() -> None:
    node = Node()
    node.add(queue=b"q")
    node.do(cmd.GetJob((b"q",)))
    free(node.state, node.state.queues[b"q"])
    assert call(node, cmd.QScan()) == (0, [])
    _, ((*pairs,),) = call(node, cmd.QScan(is_full=True))
    told = dict(zip(pairs[::2], pairs[1::2], strict=True))
    assert (told[b"name"], told[b"len"], told[b"delivered"], told[b"copies"]) == (b"q", 0, 1, 1)
    assert call(node, cmd.QScan(is_full=True, length_min=1)) == (0, [])


def test_jscan_finds_what_a_node_accounts_for_as_delivered_or_delayed() -> None:
    node = Node(UP)
    node.add()
    delayed = node.add(delay_ms=5_000)
    (delivery,) = node.get()
    copied = job_id(7)
    node.hear(B, msg.ReplJob(copied, spec(), CTIME, b"x", facts(A, B)))

    def found(*states: bytes) -> list[bytes]:
        _, jobs = call(node, cmd.JScan(states=states))
        return [each.text for each in jobs]

    assert found(b"delivered") == [delivery.id]
    assert found(b"delayed") == [delayed]
    assert sorted(found(b"delayed", b"delivered")) == sorted([delayed, delivery.id])
    assert sorted(found(b"active")) == sorted([delayed, delivery.id, copied])
    node.do(cmd.AckJob((delivery.id,)))
    assert found(b"delivered") == []


def test_jscan_filters_by_queue_and_by_any_of_the_states() -> None:
    node = Node(UP)
    queued, leased, other = node.add(), node.add(), node.add(queue=b"other")
    node.do(cmd.AckJob((job_id(9),)))  # a dummy
    node.do(cmd.AddJob(b"q", b"w", 0, replicate=2, retry_ms=10_000), client=OTHER)
    (waiting,) = node.state.adding
    (delivery,) = node.get()
    queued, leased = (leased, queued) if delivery.id == queued else (queued, leased)

    def ids(**options: Any) -> set[bytes]:
        return {each.text for each in call(node, cmd.JScan(**options))[1]}

    assert ids() == {queued, leased, other, waiting}, "dummies are left out"
    assert ids(queue=b"other") == {other}
    assert ids(states=(b"queued",)) == {queued, other}
    assert ids(states=(b"active", b"wait-repl")) == {leased, waiting}
    assert ids(queue=b"q", states=(b"queued",)) == {queued}
    assert ids(states=(b"acked",)) == set()


def test_jscan_shows_an_acked_job_that_waits_for_its_holders() -> None:
    node, id_ = node_with("done", UP)
    assert call(node, cmd.JScan(states=(b"acked",))) == (0, [Status(id_)])


def test_jscan_leaves_out_ends_of_jobs_that_were_never_here() -> None:
    node = Node(UP)
    node.hear(B, msg.SetAck(job_id(1), Reason.ACKED, (A, B, C), (B,), DAY_MS))
    assert job_id(1) in node.state.jobs
    assert call(node, cmd.JScan()) == (0, [])


def test_jscan_reply_all_is_what_show_says() -> None:
    node = Node()
    id_ = node.add()
    (shown,) = node.do(cmd.Show(id_))
    assert call(node, cmd.JScan(is_full=True)) == (0, [shown])


def test_jscan_queue_of_a_dead_letter_is_its_dead_queue() -> None:
    node = Node()
    id_ = node.add(max_deliveries=1)
    node.get()
    node.do(cmd.Nack((id_,)))
    assert call(node, cmd.JScan(queue=b"dead-letters")) == (0, [Status(id_)])
    assert call(node, cmd.JScan(queue=b"q")) == (0, [])


def test_two_scans_at_once_do_not_disturb_each_other() -> None:
    node = Node()
    for n in range(10):
        node.add(queue=b"q%d" % n)
    first, found_first = call(node, cmd.QScan(0, 5))
    second, found_second = call(node, cmd.JScan(0, 5))
    _, more_second = call(node, cmd.JScan(second, 5))
    _, more_first = call(node, cmd.QScan(first, 5))
    assert len({*found_first, *more_first}) == 10
    assert len({each.text for each in [*found_second, *more_second]}) == 10


@pytest.mark.parametrize("cursor", [1, 5, 2**32 + 3, 2**64 - 1, 2**200])
def test_a_cursor_that_nobody_gave_starts_anew(cursor: int) -> None:
    node = Node()
    for n in range(3):
        node.add(queue=b"q%d" % n)
    next_cursor, found = call(node, cmd.QScan(cursor))
    assert (next_cursor, len(found)) == (0, 3)


def test_a_cursor_of_the_other_scan_starts_anew() -> None:
    node = Node()
    for n in range(10):
        node.add(queue=b"q%d" % n)
    cursor, _ = call(node, cmd.QScan(0, 4))
    _, found = call(node, cmd.JScan(cursor, 100))
    assert len(found) == 10


def test_a_cursor_used_twice_gives_the_same_elements_again() -> None:
    node = Node()
    for n in range(10):
        node.add(queue=b"q%d" % n)
    cursor, _ = call(node, cmd.QScan(0, 3))
    assert call(node, cmd.QScan(cursor, 3)) == call(node, cmd.QScan(cursor, 3))


def test_unfinished_scans_are_bounded_and_a_dropped_one_starts_anew() -> None:
    node = Node()
    for n in range(10):
        node.add(queue=b"q%d" % n)
    first, _ = call(node, cmd.QScan(0, 3))
    for _ in range(64):
        call(node, cmd.QScan(0, 3))
    assert len(node.state.scans) == 64
    calls = walk(node, lambda cursor: cmd.QScan(cursor or first, 3))
    assert {b"q%d" % n for n in range(10)} <= set(flat(calls))


def test_a_finished_scan_leaves_nothing_behind() -> None:
    node = Node()
    for n in range(10):
        node.add(queue=b"q%d" % n)
    walk(node, lambda cursor: cmd.QScan(cursor, 3))
    assert not node.state.scans


def test_cursors_fit_disques_64_bits() -> None:
    node = Node()
    for n in range(10):
        node.add(queue=b"q%d" % n)
    cursor, _ = call(node, cmd.QScan(0, 3))
    assert 0 < cursor < 2**63


def test_memory_charges_the_snapshots_or_they_are_few() -> None:
    """65 scans over many names must not hold 65 lists of them (bounded snapshots)."""
    node = Node()
    for n in range(100):
        node.do(add_command(queue=b"q%d" % n))
    for _ in range(200):
        call(node, cmd.JScan(0, 1))
    assert sum([len(scan.names) for scan in node.state.scans.values()]) <= 6_400


# The words (reference 1.11)


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("qscan", cmd.QScan()), ("qscan 7", cmd.QScan(7)), ("qscan count 5 7", cmd.QScan(7, 5)),
        ("qscan 7 COUNT 5", cmd.QScan(7, 5)), ("qscan minlen 1 7 maxlen 2", cmd.QScan(7, 100, 1, 2)),
        ("qscan BusyLoop importrate 3 0", cmd.QScan(0, None, None, None, 3)),
        ("qscan reply ALL 2", cmd.QScan(2, is_full=True)), ("qscan 2 reply id", cmd.QScan(2)),
        ("jscan reply all 9 state queued STATE acked", cmd.JScan(9, 100, None, (b"queued", b"acked"), True)),
        ("jscan queue state 4", cmd.JScan(4, 100, b"state")), ("jscan reply ID", cmd.JScan()),
        ("jscan busyloop queue q 3", cmd.JScan(3, None, b"q")),
    ],
)  # fmt: skip
def test_the_cursor_may_stand_anywhere(line: str, command: cmd.Command) -> None:
    name, *words = line.encode().split()
    assert parse(name, words) == command


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("qscan x", "invalid cursor or option name"), ("qscan -1", "invalid cursor or option name"),
        ("qscan 1.5", "invalid cursor or option name"), ("qscan 1 2", "syntax error"), ("qscan 1 x", "syntax error"),
        ("qscan count", "syntax error"), ("qscan count x", "value is not an integer or out of range"),
        ("qscan minlen -x", "value is not an integer or out of range"), ("jscan state", "syntax error"),
        ("jscan state sleeping", "Invalid job state name"), ("jscan reply some", "Invalid REPLY type, try ID or ALL"),
        ("jscan minlen 1", "invalid cursor or option name"), ("qpeek q x", "value is not an integer or out of range"),
        ("qpeek q", "wrong number of arguments for 'qpeek' command"),
    ],
)  # fmt: skip
def test_scans_refuse_what_disque_refuses(line: str, text: str) -> None:
    name, *words = line.encode().split()
    with pytest.raises(CommandError) as refused:
        parse(name, words)
    assert str(refused.value) == text
