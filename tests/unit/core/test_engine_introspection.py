"""SHOW, QLEN, QSTAT and the figures of INFO, in the reference's order (1.6, 1.10); check() sees what is wrong."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from disque.core import commands as cmd
from disque.core import messages as msg
from disque.core.delivery import queue_of
from disque.core.job import Reason
from disque.core.jobqueue import PAUSE_IN, PAUSE_OUT
from disque.core.ready import ClientId, NilArray
from tests.unit.core.builders import (
    BOOT,
    CTIME,
    DAY_MS,
    NOW,
    OTHER,
    RETRY_MS,
    STATES,
    A,
    B,
    C,
    Node,
    copy,
    facts,
    job_id,
    node_with,
    spec,
    view,
)

UP = view(up=(B, C))
SHOWN = [
    b"id", b"queue", b"state", b"repl", b"ttl", b"ctime", b"delay", b"retry", b"nacks", b"additional-deliveries",
    b"nodes-delivered", b"nodes-confirmed", b"next-requeue-within", b"next-awake-within", b"body",
]  # fmt: skip
QSTAT = [
    b"name", b"len", b"age", b"idle", b"blocked", b"import-from", b"import-rate", b"jobs-in", b"jobs-out", b"pause",
]  # fmt: skip


def array(node: Node, command: cmd.Command) -> list[Any]:
    (answer,) = node.do(command, client=OTHER)
    assert isinstance(answer, list)
    return answer


def qstat(node: Node) -> dict[bytes, Any]:
    flat = array(node, cmd.QStat(b"q"))
    return dict(zip(flat[::2], flat[1::2], strict=True))


@pytest.mark.parametrize(
    "kind", [kind for kind in STATES if kind not in ("none", "mark", "tombstone")]
)
def test_show_tells_disques_15_names_in_order(kind: str) -> None:
    """U26: ours may come after them."""
    node, id_ = node_with(kind, UP)
    assert array(node, cmd.Show(id_))[::2][:15] == SHOWN


@pytest.mark.parametrize("kind", ["none", "mark", "tombstone"])
def test_show_of_an_unknown_job_is_nil(kind: str) -> None:
    node, id_ = node_with(kind, UP)
    assert node.do(cmd.Show(id_)) == [None]


@pytest.mark.parametrize(
    ("kind", "state"),
    [("waiting", b"wait-repl"), ("active", b"active"), ("leased", b"active"), ("queued", b"queued"),
     ("moving", b"active"), ("done", b"acked"), ("dummy", b"acked"), ("spent", b"active")],
)  # fmt: skip
def test_show_uses_disques_words_for_states(kind: str, state: bytes) -> None:
    node, id_ = node_with(kind, UP)
    assert node.shown(id_)[b"state"] == state


def test_show_of_a_queued_job() -> None:
    node = Node()
    id_ = node.add(b"body", ttl_ms=100_000)
    node.advance(1_500)
    shown = node.shown(id_)
    assert {key: shown[key] for key in SHOWN} == {
        b"id": id_,
        b"queue": b"q",
        b"state": b"queued",
        b"repl": 1,
        b"ttl": 98,
        b"ctime": NOW * 1_000_000,
        b"delay": 0,
        b"retry": RETRY_MS // 1_000,
        b"nacks": 0,
        b"additional-deliveries": 0,
        b"nodes-delivered": [A.encode()],
        b"nodes-confirmed": [A.encode()],
        b"next-requeue-within": None,
        b"next-awake-within": 98_500,
        b"body": b"body",
    }


def test_show_of_a_delayed_and_of_a_leased_job_tells_when_it_is_due() -> None:
    node = Node()
    delayed, leased = node.add(delay_ms=5_000), node.add()
    node.get()
    node.advance(1_000)
    assert node.shown(delayed)[b"next-requeue-within"] == 4_000
    assert node.shown(leased)[b"next-requeue-within"] == RETRY_MS - 1_000
    assert node.shown(delayed)[b"delay"] == 5


def test_show_of_a_dummy_has_nothing_made_up() -> None:
    """Reference 1.6: C shows uninitialised memory; 0 and nil are right."""
    node, id_ = node_with("dummy", UP)
    shown = node.shown(id_)
    assert [shown[key] for key in (b"queue", b"repl", b"ctime", b"delay", b"retry", b"body")] == [
        None,
        0,
        0,
        0,
        0,
        None,
    ]
    assert shown[b"nodes-delivered"] == []


def test_show_tells_holders_and_copies_apart() -> None:
    """M2, M3."""
    node = Node(UP)
    node.do(cmd.AddJob(b"q", b"x", 0, replicate=3))
    (id_,) = node.state.jobs
    node.hear(B, msg.GotJob(id_, 7, 0))
    shown = node.shown(id_)
    assert shown[b"nodes-delivered"] == [A.encode(), B.encode(), C.encode()]
    assert shown[b"nodes-confirmed"] == [A.encode(), B.encode()]


def test_u05_show_of_an_acked_job_on_every_node_never_fails() -> None:
    node, id_ = node_with("done", UP)
    shown = node.shown(id_)
    assert (shown[b"state"], shown[b"body"]) == (b"acked", None)
    assert shown[b"nodes-confirmed"] == [A.encode()]


def test_qstat_tells_ten_names_in_order_and_nil_for_an_unknown_queue() -> None:
    node = Node()
    assert node.do(cmd.QStat(b"q")) == [NilArray()]
    node.add()
    assert array(node, cmd.QStat(b"q"))[::2] == QSTAT


def test_qstat_counts() -> None:
    node = Node(view(up=(B,)))
    node.add()
    node.hear(B, msg.YourJobs(job_id(1), spec(), CTIME, b"", facts(A, B)))
    node.get()
    node.advance(2_700)
    node.get(b"other")
    told = qstat(node)
    assert told == {
        b"name": b"q", b"len": 1, b"age": 2, b"idle": 2, b"blocked": 0, b"import-from": [B.encode()],
        b"import-rate": 1, b"jobs-in": 2, b"jobs-out": 1, b"pause": b"none",
    }  # fmt: skip


def test_qstat_forgets_sources_after_5_s() -> None:
    node = Node(view(up=(B,)))
    node.hear(B, msg.YourJobs(job_id(1), spec(), CTIME, b"", facts(A, B)))
    node.advance(5_001)
    assert (qstat(node)[b"import-from"], qstat(node)[b"import-rate"]) == ([], 0)


def test_qstat_counts_blocked_clients() -> None:
    node = Node()
    for client in range(5, 8):
        node.do(cmd.GetJob((b"q",)), client=ClientId(client))
    assert qstat(node)[b"blocked"] == 3


@pytest.mark.parametrize(
    ("flags", "word"),
    [(0, b"none"), (PAUSE_IN, b"in"), (PAUSE_OUT, b"out"), (PAUSE_IN | PAUSE_OUT, b"all")],
)
def test_qstat_names_the_pause(flags: int, word: bytes) -> None:
    node = Node()
    queue_of(node.state, b"q").pause = flags
    assert qstat(node)[b"pause"] == word


def test_qlen_counts_what_is_queued_here() -> None:
    node = Node()
    assert node.do(cmd.QLen(b"q")) == [0]
    for _ in range(3):
        node.add()
    node.get()
    assert node.do(cmd.QLen(b"q")) == [2]


@pytest.mark.parametrize("kind", STATES)
def test_u22_counters_by_state_add_up_to_the_registered_jobs(kind: str) -> None:
    node, _ = node_with(kind, UP)
    told = node.engine.statistics()
    by_state = (
        told.waiting_jobs + told.active_jobs + told.queued_jobs + told.moving_jobs + told.done_jobs
    )
    assert by_state == told.registered_jobs
    assert (told.tombstones, told.marks, told.dummies) == tuple(
        int(kind == each) for each in ("tombstone", "mark", "dummy")
    )


def test_totals_count_what_happened() -> None:
    node = Node(view(up=(B,)))
    ids = [node.add() for _ in range(3)]
    node.get(count=2)
    node.do(cmd.AckJob(tuple(ids[:2])))
    node.do(cmd.AddJob(b"q", b"x", 100, replicate=2))
    node.advance(100)
    told = node.engine.statistics()
    assert (told.added_total, told.delivered_total, told.acked_total, told.norepl_total) == (
        3,
        2,
        2,
        1,
    )


def test_a_hand_out_counts_as_first_or_again_and_the_first_is_timed_from_when_it_was_due() -> None:
    node = Node()
    (at_once, delayed) = node.add(), node.add(delay_ms=1_000)
    node.advance(1_007)
    assert len(node.get(count=2)) == 2
    node.do(cmd.Nack((at_once,)))
    node.get()
    told = node.engine.statistics()
    assert (told.delivered_total, told.redelivered_total, told.nacked_total) == (3, 1, 1)
    timed = node.state.counts.delivery
    assert (sum(timed.counts), timed.sum_ms) == (2, 1_007 + 7)
    assert delayed in node.state.jobs


def test_an_addjob_that_waited_for_copies_is_timed() -> None:
    node = Node(view(up=(B,)))
    node.add()
    assert sum(node.state.counts.replication.counts) == 0
    node.do(cmd.AddJob(b"q", b"x", 1_000, replicate=2))
    (id_,) = node.state.adding
    node.advance(30)
    node.hear(B, msg.GotJob(id_, BOOT, 1))
    timed = node.state.counts.replication
    assert (sum(timed.counts), timed.sum_ms) == (1, 30)


# check() must be able to fail: each planted fault is seen


def break_count(node: Node) -> None:
    node.state.by_state.active += 1


def break_tally(node: Node) -> None:
    node.state.tallies[b"q"].done += 1


def break_bytes(node: Node) -> None:
    node.state.body_bytes += 1


def break_timer(node: Node) -> None:
    node.state.agenda.cancel(node.job(job_id(1)))


def break_holders(node: Node) -> None:
    node.job(job_id(1)).holders = (B,)


def break_lease(node: Node) -> None:
    node.job(job_id(1)).leases = {B: (1, NOW + DAY_MS)}


def break_reason(node: Node) -> None:
    node.job(job_id(1)).reason = Reason.ACKED


def break_pools(node: Node) -> None:
    node.state.undone[job_id(2)] = node.job(job_id(1))
    node.do(cmd.AckJob((job_id(1),)))
    node.state.undone.pop(job_id(1), None)


@pytest.mark.parametrize(
    "break_it",
    [
        break_count,
        break_tally,
        break_bytes,
        break_timer,
        break_holders,
        break_lease,
        break_reason,
        break_pools,
    ],
    ids=lambda f: f.__name__,
)
def test_check_sees_a_planted_fault(break_it: Any) -> None:
    node = Node(UP)
    node.hear(B, copy(job_id(1), A, B))
    node.engine.check()
    break_it(node)
    with pytest.raises(AssertionError):
        node.engine.check()


def test_statistics_is_a_value_of_plain_integers() -> None:
    assert all(isinstance(each, int) for each in attrs.astuple(Node().engine.statistics()))
