"""Accounted memory (M23, reference 6.5): levels, what goes first, what never goes, OOM, idle queues."""

from __future__ import annotations

from itertools import pairwise

import attrs
import pytest

from disque.core import commands as cmd
from disque.core import memory
from disque.core import messages as msg
from disque.core.copies import HEADER_BYTES
from disque.core.job import Reason
from disque.core.limits import Limits
from disque.core.memory import Pressure
from disque.core.ready import ClientId
from tests.unit.core.builders import (
    DAY_MS,
    RETRY_MS,
    A,
    B,
    C,
    Node,
    copy,
    facts,
    job_id,
    node_with,
    view,
)

UP = view(up=(B, C))


def used(node: Node) -> int:
    return memory.used_memory(node.state)


def limit_so_that(node: Node, percent: int, **changes: object) -> None:
    """maxmemory such that the node now uses this much of it."""
    bytes_max = used(node) * 100 // percent
    node.engine.set_limits(attrs.evolve(node.state.limits, maxmemory_bytes=bytes_max, **changes))  # type: ignore[arg-type]


def test_a_fresh_node_uses_less_than_2_mib() -> None:
    assert used(Node()) < 2 << 20


@pytest.mark.parametrize(
    ("percent", "level"),
    [(50, Pressure.NONE), (74, Pressure.NONE), (76, Pressure.HIGH), (94, Pressure.HIGH), (97, Pressure.FULL),
     (500, Pressure.FULL)],
)  # fmt: skip
def test_levels_are_at_75_and_95_percent(percent: int, level: Pressure) -> None:
    node = Node()
    limit_so_that(node, percent)
    assert memory.pressure(node.state) is level


def test_w26_maxmemory_0_is_no_limit() -> None:
    node = Node(limits=Limits(maxmemory_bytes=0))
    for _ in range(100):
        node.add(b"x" * 100_000)
    assert memory.pressure(node.state) is Pressure.NONE
    assert not node.engine.is_out_of_memory()


def test_w25_maxmemory_1_byte_refuses_everything_and_crashes_nothing() -> None:
    node = Node(UP, limits=Limits(maxmemory_bytes=1))
    assert node.engine.is_out_of_memory()
    node.hear(
        B, copy(job_id(1), A, B), msg.SetAck(job_id(2), Reason.ACKED, (A, B, C), (B,), DAY_MS)
    )
    node.do(cmd.AckJob((job_id(3),)))
    node.do(cmd.AddJob(b"q", b"x", 1_000, retry_ms=RETRY_MS), client=ClientId(5))
    node.do(cmd.GetJob((b"q",)), client=ClientId(6))
    node.advance(60_000)
    assert node.engine.is_out_of_memory()
    node.engine.set_limits(Limits())
    assert not node.engine.is_out_of_memory()
    assert len(node.get()) <= 1


def test_bodies_jobs_ends_graves_marks_queues_and_waiting_clients_are_charged() -> None:
    node = Node(UP)
    sizes = [used(node)]
    ids = [node.add(b"x" * 10_000)]
    sizes.append(used(node))
    assert sizes[1] - sizes[0] >= 10_000 + memory.JOB_BYTES + memory.QUEUE_BYTES
    for act in (
        lambda: node.hear(B, copy(job_id(1), A, B)),
        lambda: node.do(cmd.AckJob((job_id(5),))),
        lambda: node.do(cmd.GetJob((b"other",)), client=ClientId(5)),
        lambda: node.hear(B, msg.SetAck(job_id(9), Reason.ACKED, (B, C), (B,), DAY_MS)),
    ):
        act()
        sizes.append(used(node))
    assert all(one < two for one, two in pairwise(sizes))
    before = used(node)
    node.do(cmd.AckJob((ids[0],)))
    assert before - used(node) >= 10_000, "done frees its body at once (S14)"


@pytest.mark.parametrize("what", ["headers", "dead queue", "queue"])
def test_what_a_job_keeps_beside_its_body_is_charged_until_it_is_settled(what: str) -> None:
    node = Node()
    base = used(node)
    options: dict[str, object] = {
        "headers": {"headers": {b"%d" % n: b"x" * 640 for n in range(100)}},
        "dead queue": {"dead_queue": b"d" * 4_096},
        "queue": {"queue": b"q" * 4_096},
    }[what]  # type: ignore[assignment]
    ids = [node.add(ttl_ms=DAY_MS + n, **options) for n in range(10)]
    least = 10 * 64_000 + 1_000 * HEADER_BYTES if what == "headers" else 10 * 4_096
    assert used(node) - base >= least + 10 * memory.JOB_BYTES
    assert node.engine.live_bytes() >= least - 1_000 * HEADER_BYTES
    for id_ in ids[:5]:
        node.do(cmd.AckJob((id_,)))
    node.do(cmd.FlushAll())
    assert used(node) == base
    for id_ in [node.add(**options) for _ in range(10)]:
        node.do(cmd.AckJob((id_,)))
    node.advance(400_000)
    assert used(node) == base


def test_headers_fill_memory() -> None:
    node = Node(limits=Limits(maxmemory_bytes=memory.BASE_BYTES + 1_000_000))
    added = 0
    while not node.engine.is_out_of_memory():
        node.add(b"", headers={b"h": b"x" * 60_000})
        added += 1
    assert added < 20


def test_a_waiting_client_is_charged_for_the_names_it_holds() -> None:
    node = Node()
    base = used(node)
    names = tuple([b"%4096d" % n for n in range(100)])
    for name in names:
        node.do(cmd.GetJob((name,), is_nohang=True))
    queues = used(node)
    assert queues - base >= 100 * 4_096
    node.do(cmd.GetJob(names, timeout_ms=1_000), client=ClientId(5))
    assert used(node) - queues >= 100 * 4_096 + memory.WAIT_BYTES
    node.advance(1_000)
    assert used(node) == queues
    node.advance(400_000)
    assert used(node) == base


def test_a_waitjob_is_charged_for_the_ids_it_holds() -> None:
    node = Node(UP)
    base = used(node)
    ids = tuple([node.add() for _ in range(100)])
    jobs = used(node)
    for timeout_ms, client in ((0, 5), (3_000, 6)):
        node.do(cmd.WaitJob(ids, timeout_ms), client=ClientId(client))
    for _ in range(4):
        assert used(node) - jobs == 2 * (memory.WAIT_BYTES + 100 * memory.ASKED_BYTES)
        node.advance(600)  # asked again and again
    node.advance(1_000)
    assert used(node) - jobs == memory.WAIT_BYTES + 100 * memory.ASKED_BYTES
    node.engine.disconnect(ClientId(5))
    assert used(node) == jobs > base


def test_the_shells_buffers_are_charged() -> None:
    node = Node()
    before = used(node)
    node.engine.set_shell_bytes(5_000_000)
    assert used(node) - before == 5_000_000
    assert node.engine.statistics().used_memory == used(node)


def test_memory_returns_to_base_after_everything_was_acked() -> None:
    node = Node()
    base = used(node)
    for _ in range(50):
        node.do(cmd.AckJob((node.add(b"x" * 1_000),)))
    node.advance(400_000)
    assert used(node) == base


def test_it_is_not_out_of_memory_between_75_and_95_percent() -> None:
    node = Node()
    node.add()
    limit_so_that(node, 90)
    assert not node.engine.is_out_of_memory()


# Eviction


def evictables(node: Node) -> dict[str, int]:
    state = node.state
    return {
        "short": len(state.tombstones),
        "long": len(state.long_tombstones),
        "marks": len(state.marks),
        "spent": len(state.spent),
        "undone": len(state.undone),
        "dummies": len(state.dummies),
        "live": sum([not job.is_done for job in state.jobs.values()]) - len(state.spent),
    }


def full_house() -> Node:
    """100 of each: short and long tombstones, marks, dispatched RETRY 0, unsettled ends, dummies, live jobs."""
    node = Node(view(up=(B,), cut=(C,)))
    for n in range(100):
        node.hear(B, msg.SetAck(job_id(n), Reason.ACKED, (A, B), (B,), DAY_MS))
        node.hear(B, msg.SetAck(job_id(1_000 + n), Reason.ACKED, (B, C), (B,), DAY_MS))
        node.hear(B, msg.SetAck(job_id(2_000 + n), Reason.ACKED, (A, B, C), (B,), DAY_MS))
        node.do(cmd.AckJob((job_id(3_000 + n),)))
        node.add(retry_ms=0, queue=b"once")
        node.add()
    node.get(b"once", count=100)
    return node


def test_over_95_percent_short_tombstones_marks_and_spent_jobs_go_nothing_else() -> None:
    node = full_house()
    before = evictables(node)
    assert (before["short"], before["marks"], before["spent"]) == (100, 100, 100)
    limit_so_that(node, 300)
    assert node.engine.is_out_of_memory(), "still: the rest may not go"
    assert evictables(node) == {**before, "short": 0, "marks": 0, "spent": 0}


def test_eviction_stops_as_soon_as_there_is_room() -> None:
    node = full_house()
    limit_so_that(node, 96)
    assert not node.engine.is_out_of_memory()
    left = evictables(node)
    assert 0 < left["short"] < 100
    assert (left["marks"], left["spent"]) == (100, 100), "graves first"


def test_the_oldest_graves_go_first() -> None:
    node = full_house()
    limit_so_that(node, 96)
    node.engine.is_out_of_memory()
    assert job_id(0) not in node.state.tombstones
    assert job_id(99) in node.state.tombstones


def test_what_was_evicted_wakes_nobody_later() -> None:
    node = full_house()
    limit_so_that(node, 300)
    node.engine.is_out_of_memory()
    node.advance(120_000)


def test_an_ack_that_others_must_still_hear_is_never_evicted() -> None:
    """S14, M23: evicting it would un-ack the job."""
    node, id_ = node_with("done", UP)
    limit_so_that(node, 1_000)
    assert node.engine.is_out_of_memory()
    assert id_ in node.state.undone


def test_noeviction_evicts_nothing() -> None:
    node = full_house()
    before = evictables(node)
    limit_so_that(node, 96, is_eviction_on=False)
    assert node.engine.is_out_of_memory()
    assert evictables(node) == before


def test_u32_it_recovers_after_acks() -> None:
    node = Node()
    ids = [node.add(b"x" * 10_000) for _ in range(100)]
    limit_so_that(node, 97)
    assert node.engine.is_out_of_memory()
    for id_ in ids[:50]:
        node.do(cmd.AckJob((id_,)))
    assert not node.engine.is_out_of_memory()
    assert memory.pressure(node.state) is Pressure.NONE


def test_what_was_evicted_is_in_the_log() -> None:
    node = Node()
    id_ = node.add(retry_ms=0)
    node.get()
    limit_so_that(node, 200)
    node.clear()
    node.engine.is_out_of_memory()
    node.advance(0)
    assert ("gone", (id_,)) in [(record.kind, record.fields) for record in node.records]


def test_pools_keep_their_bounds() -> None:
    limits = Limits(tombstones_max=5, marks_max=5, dummies_max=5, spent_max=5)
    node = Node(view(up=(B,), cut=(C,)), limits=limits)
    for n in range(20):
        node.hear(B, msg.SetAck(job_id(n), Reason.ACKED, (A, B), (B,), DAY_MS))
        node.hear(B, msg.SetAck(job_id(1_000 + n), Reason.ACKED, (B, C), (B,), DAY_MS))
        node.do(cmd.AckJob((job_id(3_000 + n),)))
        node.add(retry_ms=0)
        node.get()
    pools = evictables(node)
    assert [pools[name] for name in ("short", "marks", "dummies", "spent")] == [5, 5, 5, 5]
    assert len(node.state.expired) <= 5


def test_ids_that_expired_are_kept_for_waitjob_as_many_as_marks() -> None:
    node = Node(limits=Limits(marks_max=5))
    for _ in range(20):
        node.add(ttl_ms=1_000)
    node.advance(2_000)
    assert len(node.state.expired) == 5


def test_a_lease_is_charged_as_long_as_the_job_is_in_work() -> None:
    node = Node()
    ids = [node.add() for _ in range(3)]
    lying = used(node)
    node.get(count=2)
    assert used(node) == lying + 2 * memory.LEASE_BYTES
    node.do(cmd.Nack((ids[0],)))
    assert used(node) == lying + memory.LEASE_BYTES
    node.do(cmd.AckJob(tuple(ids)))
    assert used(node) < lying


def test_what_is_handed_out_once_and_never_again_has_no_lease() -> None:
    node = Node()
    node.add(retry_ms=0)
    lying = used(node)
    node.get()
    assert used(node) == lying - len(b"body")


def test_ids_that_expired_are_forgotten_in_time() -> None:
    limits = Limits(expired_kept_ms=60_000, expired_step=7)
    node = Node(limits=limits)
    for _ in range(20):
        node.add(ttl_ms=1_000)
    node.advance(2_000)
    before = used(node)
    node.advance(55_000)
    assert (len(node.state.expired), used(node)) == (20, before)
    node.leap(4_000)
    node.advance(limits.queue_sweep_ms)
    assert 0 < len(node.state.expired) < 20, "in steps"
    node.advance(2 * limits.queue_sweep_ms)
    assert (len(node.state.expired), used(node)) == (0, before - 20 * memory.MARK_BYTES)


def test_ids_that_expired_make_room_first() -> None:
    node = full_house()
    house = evictables(node)
    for _ in range(200):
        node.add(ttl_ms=1_000)
    node.advance(2_000)
    limit_so_that(node, 96)
    assert not node.engine.is_out_of_memory()
    assert len(node.state.expired) < 200
    assert evictables(node) == house


# Idle queues (U21)


@pytest.mark.parametrize(("percent", "idle_s"), [(10, 300), (80, 10), (97, 2)])
def test_an_empty_unwatched_queue_is_freed_after_its_time(percent: int, idle_s: int) -> None:
    node = Node()
    node.do(cmd.GetJob((b"once",), is_nohang=True))
    limit_so_that(node, percent)
    node.advance(idle_s * 1_000 - 500)
    assert b"once" in node.state.queues
    node.advance(2_000)
    assert b"once" not in node.state.queues


def test_queue_max_idle_is_configurable_and_never_longer_under_pressure() -> None:
    node = Node(limits=Limits(queue_idle_max_ms=1_000))
    node.do(cmd.GetJob((b"once",), is_nohang=True))
    limit_so_that(node, 97)
    node.advance(2_500)
    assert b"once" not in node.state.queues


@pytest.mark.parametrize("why", ["job", "client", "paused", "asked"])
def test_a_queue_that_is_of_use_is_never_freed(why: str) -> None:
    node = Node(UP)
    if why == "job":
        node.add(ttl_ms=DAY_MS, delay_ms=0)
    elif why == "client":
        node.do(cmd.GetJob((b"q",)))
    elif why == "paused":
        node.do(cmd.Pause(b"q", 2))
    for _ in range(60):
        if why == "asked":
            node.hear(B, msg.NeedJobs(b"q", 1, True))
        node.advance(10_000)
    assert b"q" in node.state.queues


def test_u21_two_thousand_queues_used_once_leave_nothing() -> None:
    node = Node()
    base = used(node)
    for n in range(2_000):
        node.engine.command(ClientId(5), cmd.GetJob((b"q%d" % n,), is_nohang=True))
    node.engine.take_ready()
    names = sum(len(b"q%d" % n) for n in range(2_000))
    assert used(node) - base == 2_000 * memory.QUEUE_BYTES + names
    node.advance(330_000)
    assert used(node) == base


def test_facts_of_ends_carry_no_body() -> None:
    node, id_ = node_with("done", UP)
    node.hear(B, msg.Told(id_, facts(A, B)))
    assert node.job(id_).body is None
