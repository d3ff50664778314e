"""CANCELJOB and QPURGE (B9, M19): gone everywhere, and they don't come back."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from disque.core import acks, asking
from disque.core import commands as cmd
from disque.core import messages as msg
from disque.core.delivery import REMOVED_TEXT
from disque.core.job import Burials, Reason
from disque.core.jobid import JobId
from disque.core.memory import BASE_BYTES
from disque.core.ready import ClientId, Failure, Reply, Status
from disque.core.state import Purge, State, salted
from tests.unit.core.builders import (
    BOOT,
    CTIME,
    DAY_MS,
    ME,
    NODE_TIMEOUT_MS,
    OTHER,
    RETRY_MS,
    STRANGER,
    A,
    B,
    C,
    D,
    Node,
    World,
    facts,
    job_id,
    node_with,
    spec,
    state_name,
    view,
)

UP = view(up=(B, C))
REMOVED = Failure("NOREPL", REMOVED_TEXT)


def had(world: World, command: cmd.Command, *, at: Any = A, client: ClientId = ME) -> list[Reply]:
    """What a client is answered, without any time passing."""
    node = world.nodes[at]
    before = len(node.replies)
    node.do(command, client=client)
    world.settle()
    return [reply for to, reply in node.replies[before:] if to == client]


def replicated(world: World, *, at: Any = A, copies: int = 3, **options: Any) -> JobId:
    """An ADDJOB that is answered once its copies are there."""
    command = cmd.AddJob(b"q", b"body", 0, replicate=copies, retry_ms=RETRY_MS, **options)
    (said,) = had(world, command, at=at, client=ClientId(77))
    assert isinstance(said, Status)
    return JobId(said.text)


def live_copies(world: World, id_: JobId) -> list[Any]:
    """Nodes that could still deliver the job."""
    return [
        node.id
        for node in world.nodes.values()
        if id_ in node.state.jobs and not node.state.jobs[id_].is_done
    ]


def handed_out(world: World) -> list[bytes]:
    """What all consumers can have now."""
    ids = [delivery.id for node in world.nodes.values() for delivery in node.get(count=100)]
    world.settle()
    return ids


# CANCELJOB


@pytest.mark.parametrize("at", [A, B, C, D])
def test_u15_a_job_is_cancelled_everywhere_from_any_node(at: Any) -> None:
    world = World.of(A, B, C, D)
    id_ = replicated(world)
    assert had(world, cmd.CancelJob((id_,)), at=at) == [1]
    assert live_copies(world, id_) == []
    world.advance(2_000)
    assert {state_name(n, id_) for n in world.nodes.values()} <= {"none", "tombstone", "mark"}
    assert had(world, cmd.AckJob((id_,)), at=A) == [0], "a late ACKJOB is 0"


def test_it_counts_ids_that_an_answerer_held_and_had_not_acked() -> None:
    world = World.of(A, B, C)
    held, acked = replicated(world), replicated(world)
    had(world, cmd.AckJob((acked,)))
    assert had(world, cmd.CancelJob((held, acked, job_id(50), held))) == [1]


@pytest.mark.parametrize("kind", ["waiting", "active", "leased", "queued", "moving", "spent"])
def test_every_live_state_can_be_cancelled(kind: str) -> None:
    node, id_ = node_with(kind, UP)
    node.do(cmd.CancelJob((id_,)), client=OTHER)
    node.advance(500)
    assert node.answers(OTHER) == [1]
    assert id_ not in node.state.jobs or node.job(id_).reason is Reason.CANCELLED
    assert node.get() == []


@pytest.mark.parametrize("kind", ["done", "dummy", "tombstone", "mark", "none"])
def test_what_is_not_live_counts_as_0(kind: str) -> None:
    node, id_ = node_with(kind, UP)
    node.do(cmd.CancelJob((id_,)), client=OTHER)
    node.advance(500)
    assert node.answers(OTHER) == [0]


def test_an_acked_job_stays_acked() -> None:
    node, id_ = node_with("done", UP)
    node.do(cmd.CancelJob((id_,)), client=OTHER)
    assert node.job(id_).reason is Reason.ACKED


@pytest.mark.parametrize("is_retried", [True, False])
def test_b9_1_an_unknown_id_becomes_a_dummy_with_that_reason_even_ids_too(is_retried: bool) -> None:
    node = Node(view(up=(B,), cut=(C,)))
    id_ = job_id(1, is_retried=is_retried)
    node.do(cmd.CancelJob((id_,)))
    node.hear(B, msg.Answer(node.told(msg.Question)[0].number, (0,)))
    assert node.answers() == [0]
    assert (state_name(node, id_), node.job(id_).reason) == ("dummy", Reason.CANCELLED)


def test_an_id_that_a_member_held_becomes_no_dummy_here() -> None:
    node = Node(UP)
    node.do(cmd.CancelJob((job_id(1),)))
    number = node.told(msg.Question)[0].number
    node.hear(B, msg.Answer(number, (1,)))
    node.hear(C, msg.Answer(number, (0,)))
    assert node.answers() == [1]
    assert job_id(1) not in node.state.jobs


def test_zero_ids_are_0() -> None:
    assert Node().do(cmd.CancelJob(())) == [0]


@pytest.mark.parametrize(("timeout_ms", "waits_ms"), [(None, 500), (80, 80)])
def test_a_silent_member_costs_the_time_out(timeout_ms: int | None, waits_ms: int) -> None:
    node, id_ = node_with("queued", UP)
    node.do(cmd.CancelJob((id_,), timeout_ms), client=OTHER)
    node.advance(waits_ms - 1)
    assert node.answers(OTHER) == []
    node.advance(1)
    assert node.answers(OTHER) == [1]


def test_a_waiting_addjob_is_told_that_its_job_was_removed() -> None:
    world = World.of(A, B, C)
    node = world.nodes[A]
    world.lose = lambda _from, _to, said: isinstance(said, msg.GotJob)
    node.do(cmd.AddJob(b"q", b"x", 0, replicate=3, retry_ms=RETRY_MS))
    world.settle()
    (id_,) = node.state.adding
    world.lose = None
    assert had(world, cmd.CancelJob((id_,)), at=B, client=OTHER) == [1]
    assert live_copies(world, id_) == []
    assert [
        answer for answer in node.answers() if answer == REMOVED or isinstance(answer, Status)
    ] == [REMOVED]


def test_b9_3_retry_0_in_doubt_is_done_at_the_source_and_the_receiver_hears() -> None:
    node, id_ = node_with("moving", UP)
    node.do(cmd.CancelJob((id_,)), client=OTHER)
    assert node.job(id_).reason is Reason.CANCELLED
    assert node.told_to(msg.SetAck) == [B]


@pytest.mark.parametrize("is_suspected", [False, True])
def test_b9_2_a_holder_that_was_cut_off_obeys_at_the_heal(is_suspected: bool) -> None:
    world = World.of(A, B, C)
    id_ = replicated(world)
    world.split([A, B], [C], is_suspected=is_suspected)
    assert had(world, cmd.CancelJob((id_,), 10), at=B, client=OTHER) == [1]
    world.advance(5_000)
    assert live_copies(world, id_) == [C]
    world.heal()
    world.advance(2_000)
    assert live_copies(world, id_) == []
    world.advance(RETRY_MS + 2 * NODE_TIMEOUT_MS)
    assert handed_out(world) == []


def test_a_holder_that_handed_the_job_out_during_the_cut_still_obeys() -> None:
    world = World.of(A, B, C)
    id_ = replicated(world)
    world.split([A, B], [C], is_suspected=True)
    had(world, cmd.CancelJob((id_,)), client=OTHER)
    world.advance(RETRY_MS + 2_000)
    assert [each.id for each in world.nodes[C].get()] == [id_], "legal: it can't know"
    world.heal()
    world.advance(2_000)
    assert live_copies(world, id_) == []
    assert had(world, cmd.Nack((id_,)), at=C, client=OTHER) == [0]


def test_a_job_known_only_beyond_a_cut_is_cancelled_at_the_heal() -> None:
    world = World.of(A, B)
    world.split([A], [B])
    id_ = replicated(world, at=B, copies=1)
    assert had(world, cmd.CancelJob((id_,)), at=A) == [0]
    world.heal()
    world.advance(3_000)
    assert live_copies(world, id_) == []


def test_m15_no_copy_in_flight_comes_back() -> None:
    """A REPLJOB that arrives after its end was heard is answered by the end."""
    node = Node(UP)
    node.hear(B, msg.SetAck(job_id(1), Reason.CANCELLED, (B, C), (B,), DAY_MS))
    node.hear(B, msg.ReplJob(job_id(1), spec(), CTIME, b"b", facts(A, B)))
    node.hear(B, msg.YourJobs(job_id(1), spec(), CTIME, b"b", facts(A, B)))
    assert state_name(node, job_id(1)) == "mark"
    assert node.get() == []


def test_acked_over_cancelled_when_two_ends_meet() -> None:
    world = World.of(A, B)
    id_ = replicated(world, copies=2)
    world.split([A], [B])
    had(world, cmd.CancelJob((id_,)), at=A)
    had(world, cmd.AckJob((id_,)), at=B, client=OTHER)
    world.heal()
    world.advance(2_000)
    reasons = {node.state.tombstones[id_].reason for node in world.nodes.values()}
    assert reasons == {Reason.ACKED}


def test_cancelled_total_counts_copies_ended_here() -> None:
    node, id_ = node_with("queued", UP)
    node.do(cmd.CancelJob((id_,)), client=OTHER)
    assert node.engine.statistics().cancelled_total == 1


# QPURGE


def purge(world: World, *, at: Any = A, queue: bytes = b"q") -> Any:
    (answer,) = had(world, cmd.QPurge(queue), at=at, client=OTHER)
    return answer


def test_u16_every_job_but_acked_ones_goes_whatever_it_does() -> None:
    world = World.of(A, B, C)
    ids = [replicated(world) for _ in range(4)]
    ids += [replicated(world, delay_ms=60_000), replicated(world, at=B, copies=1)]
    delivered = [JobId(each.id) for each in world.nodes[A].get(count=2)]
    world.nodes[A].do(cmd.Nack((delivered[1],), 30_000))
    world.settle()
    assert purge(world, at=C) == [6, 3, 0]
    world.advance(2_000)
    assert [id_ for id_ in ids if live_copies(world, id_)] == []
    assert had(world, cmd.AckJob((delivered[0],)), at=A) == [0]
    world.advance(2 * RETRY_MS)
    assert handed_out(world) == []


def test_jobs_of_other_queues_live_on() -> None:
    node = Node()
    other = node.add(queue=b"other")
    node.add()
    assert node.do(cmd.QPurge(b"q")) == [[1, 1, 0]]
    assert list(node.state.jobs) == [other]


def test_an_empty_or_unknown_queue_is_0() -> None:
    world = World.of(A, B)
    assert purge(world, queue=b"nope") == [0, 2, 0]
    assert b"nope" not in world.nodes[A].state.queues


def test_acked_jobs_stay_acked() -> None:
    node, id_ = node_with("done", UP)
    node.do(cmd.QPurge(b"q"), client=OTHER)
    assert node.job(id_).reason is Reason.ACKED


def test_a_waiting_addjob_of_the_queue_is_told_that_its_job_was_removed() -> None:
    node, _ = node_with("waiting", UP)
    node.do(cmd.QPurge(b"q"), client=OTHER)
    assert node.answers() == [REMOVED]


def test_dead_letters_in_the_queue_go_and_a_job_buried_elsewhere_stays() -> None:
    node = Node()
    ids = [node.add(max_deliveries=1, dead_queue=b"graves") for _ in range(2)]
    node.get(count=2)
    node.do(cmd.Nack(tuple(ids)))
    assert node.do(cmd.QPurge(b"q")) == [[0, 1, 0]]
    assert node.do(cmd.QLen(b"graves")) == [2]
    assert node.do(cmd.QPurge(b"graves")) == [[2, 1, 0]]
    assert not node.state.jobs


def test_what_is_added_afterwards_lives() -> None:
    world = World.of(A, B)
    replicated(world, copies=2)
    purge(world)
    id_ = replicated(world, copies=2)
    world.advance(2_000)
    assert live_copies(world, id_) == [A, B]


def test_m19_a_doubled_or_late_order_does_nothing() -> None:
    node = Node(UP)
    order = msg.Question(1, asking.PURGE, b"q", (), (BOOT, 3))
    node.hear(B, msg.YourJobs(job_id(1), spec(), CTIME, b"b", facts(A, B)))
    node.hear(B, order)
    assert node.told(msg.Answer)[-1].numbers == (1,)
    id_ = node.add()
    node.hear(B, order)
    node.hear(B, msg.Question(2, asking.PURGE, b"q", (), (BOOT, 2)))
    node.hear(B, msg.Purge(B, BOOT, 3, b"q"))
    assert [said.numbers for said in node.told(msg.Answer)[1:]] == [(0,), (0,)]
    assert state_name(node, id_) == "queued"


def test_m19_the_high_water_is_a_nodes_own_and_a_new_boot_begins_again() -> None:
    node = Node(UP)
    for peer, boot, seq in ((B, 7, 9), (C, 7, 1), (B, 8, 1)):
        id_ = node.add()
        node.hear(peer, msg.Question(1, asking.PURGE, b"q", (), (boot, seq)), boot=boot)
        assert id_ not in node.state.jobs, (peer, boot, seq)


def test_an_order_without_its_numbers_or_of_a_stranger_does_nothing() -> None:
    node = Node(UP)
    id_ = node.add()
    node.hear(B, msg.Question(1, asking.PURGE, b"q", (), ()), msg.Purge(STRANGER, 9, 9, b"q"))
    assert state_name(node, id_) == "queued"


def test_two_purges_of_one_node_are_two_orders() -> None:
    world = World.of(A, B)
    for _ in range(3):
        replicated(world, copies=2)
        assert purge(world) == [1, 2, 0]


@pytest.mark.parametrize("is_suspected", [False, True])
def test_a_cut_off_holder_hears_at_the_heal_and_no_copy_comes_back(is_suspected: bool) -> None:
    world = World.of(A, B, C)
    ids = [replicated(world) for _ in range(5)]
    world.split([A, B], [C], is_suspected=is_suspected)
    assert purge(world) == [5, 2, 1]
    world.advance(RETRY_MS + 3_000)
    world.heal()
    world.advance(3_000)
    assert [id_ for id_ in ids if live_copies(world, id_)] == []
    world.advance(60_000)
    assert handed_out(world) == []


def test_b9_7_healing_never_repeats_the_order() -> None:
    world = World.of(A, B, C)
    replicated(world)
    world.split([A, B], [C])
    purge(world)
    later = replicated(world, at=C, copies=1)
    world.heal()
    world.advance(3_000)
    assert live_copies(world, later) == [C], "known only beyond the cut: not seen, lives on"


def test_b9_6_an_addjob_waiting_beyond_the_order_is_answered_the_id_of_a_cancelled_job() -> None:
    """Its replica can't tell that the origin still waits: it cancels; say so in the README."""
    world = World.of(A, B, C)
    world.split([A, B], [C])
    world.nodes[A].do(cmd.AddJob(b"q", b"x", 0, replicate=3, retry_ms=RETRY_MS))
    world.settle()
    (id_,) = world.nodes[A].state.adding
    world.split([A], [B, C])
    purge(world, at=C)
    world.heal()
    world.advance(3_000)
    assert live_copies(world, id_) == []
    assert world.nodes[A].answers() == [Status(id_)]


def test_an_addjob_waiting_on_the_node_of_the_order_gets_norepl_and_its_copies_go() -> None:
    world = World.of(A, B, C)
    world.lose = lambda _from, _to, said: isinstance(said, msg.GotJob)
    world.nodes[A].do(cmd.AddJob(b"q", b"x", 0, replicate=2, retry_ms=RETRY_MS))
    world.settle()
    (id_,) = world.nodes[A].state.adding
    world.lose = None
    purge(world)
    world.advance(2_000)
    assert world.nodes[A].answers() == [REMOVED]
    assert live_copies(world, id_) == []


def filled(count: int, queue: bytes = b"q") -> Node:
    node = Node()
    for n in range(count):
        add = cmd.AddJob(queue, b"", 0, replicate=1, retry_ms=RETRY_MS)
        node.engine.command(ClientId(n + 100), add)
    node.records += node.engine.take_ready().records
    return node


def test_b9_4_a_large_queue_goes_in_bounded_steps_and_the_answer_comes_when_it_is_empty() -> None:
    node = filled(25_000)
    assert node.do(cmd.QPurge(b"q")) == []
    assert node.engine.is_waiting(ClientId(1))
    assert 15_000 < len(node.state.jobs) < 25_000
    later = node.add()
    node.replies.clear()
    while not node.replies:
        node.advance(1)
    assert node.replies == [(ClientId(1), [25_000, 1, 0])]
    assert node.do(cmd.QLen(b"q")) == [1]
    node.advance(100)
    assert list(node.state.jobs) == [later]


@pytest.mark.parametrize("clock_ms", [0, 5_000, -5_000])
def test_b9_4_a_purge_after_a_restart_takes_what_was_added_before_it(clock_ms: int) -> None:
    """Wherever the wall clock stands then."""
    before = filled(1_200)
    node = Node(boot=BOOT + 1, since=BOOT, now_ms=before.now_ms + clock_ms, seed=1)
    for record in before.records:
        node.engine.restore(record)
    node.engine.restored()
    node.do(cmd.QPurge(b"q"))
    later = node.add()
    node.advance(100)
    assert list(node.state.jobs) == [later]


def test_a_short_queue_is_purged_at_once_however_many_jobs_there_are() -> None:
    node = filled(12_000, b"other")
    node.add()
    assert node.do(cmd.QPurge(b"q")) == [[1, 1, 0]]


@pytest.mark.patches
@pytest.mark.parametrize(("kind", "looks"), [("delivered", 1), ("done", 0)])
def test_a_purge_looks_for_jobs_only_while_there_are_some(
    kind: str, looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, _ = node_with("done", UP)
    if kind == "delivered":
        node.add()
        node.get()
    for n in range(12_000):
        add = cmd.AddJob(b"other", b"", 0, replicate=1, retry_ms=RETRY_MS)
        node.engine.command(ClientId(n + 100), add)
    looked, look = [], acks._purge_others

    def count(state: State, purge: Purge, left: int) -> None:
        looked.append(purge)
        look(state, purge, left)

    monkeypatch.setattr(acks, "_purge_others", count)
    node.do(cmd.QPurge(b"q"), client=OTHER)
    node.advance(100)
    assert len(looked) == looks


def test_a_large_purge_outlasts_the_time_that_others_have_and_its_client() -> None:
    node = filled(3_000)
    node.see(view(up=[B]))
    assert node.do(cmd.QPurge(b"q", 1)) == []
    node.advance(1)
    node.see(view())
    node.hear(B, msg.Answer(1, (5,)))
    assert node.replies == []
    node.advance(100)
    assert node.answers() == [[3_000, 1, 1]]
    node = filled(3_000)
    node.do(cmd.QPurge(b"q"), client=OTHER)
    node.engine.disconnect(OTHER)
    node.advance(100)
    assert (node.state.jobs, node.replies) == ({}, [])


def test_a_final_purge_frees_the_queue_everywhere_unless_somebody_needs_it() -> None:
    world = World.of(A, B, C)
    replicated(world)
    world.nodes[B].do(cmd.GetJob((b"q",), 1))
    world.nodes[C].do(cmd.Attend(b"q", 1))
    world.settle()
    had(world, cmd.QPurge(b"q", is_final=True), at=A, client=OTHER)
    assert [b"q" in node.state.queues for node in world.nodes.values()] == [False, False, True]
    node = filled(3_000)
    node.do(cmd.QPurge(b"q", is_final=True))
    assert b"q" in node.state.queues
    node.advance(100)
    assert b"q" not in node.state.queues


def test_jobs_are_counted_once_by_who_accounts_for_them() -> None:
    world = World.of(A, B, C)
    for at in (A, B, C):
        replicated(world, at=at)
    assert purge(world, at=B) == [3, 3, 0]


def test_a_silent_member_is_counted_and_no_error() -> None:
    node = Node(view(up=(B,), cut=(C,)))
    node.add()
    node.do(cmd.QPurge(b"q", 50))
    node.advance(50)
    assert node.answers() == [[1, 1, 2]]


def test_consumers_that_wait_are_not_disturbed() -> None:
    node = Node()
    node.do(cmd.GetJob((b"q",)), client=ClientId(5))
    node.do(cmd.QPurge(b"q"))
    id_ = node.add()
    ((delivery,),) = node.answers(ClientId(5))  # type: ignore[misc]
    assert delivery.id == id_  # type: ignore[union-attr]


def test_a_letter_that_a_purged_peer_still_speaks_of_is_answered_by_its_end() -> None:
    node = Node(view(up=(B,)))
    node.hear(B, msg.YourJobs(job_id(1), spec(max_deliveries=1), CTIME, b"b", facts(A, B)))
    node.do(cmd.CancelJob((job_id(1),)), client=OTHER)
    node.clear()
    dead = facts(A, B, dispatches={B: 1}, burials=Burials(1, 1, 1, DAY_MS), is_queued=True)
    node.hear(B, msg.Queued(job_id(1), dead))
    assert node.told_to(msg.SetAck) == [B]
    assert state_name(node, job_id(1)) == "done"


def test_salted_order_has_no_part_in_who_counts() -> None:
    for n in range(3):
        world = World.of(A, B)
        id_ = replicated(world, copies=2)
        assert purge(world, at=salted(id_, (A, B))[n % 2]) == [1, 2, 0]


def test_a_flush_gives_a_long_queue_back_a_page_at_a_time() -> None:
    node = Node()
    for n in range(12_000):
        node.engine.command(ClientId(n + 1_000), cmd.AddJob(b"q", b"", 0, replicate=1))
    node.add(queue=b"short")

    def in_pages() -> int:
        pools = node.state.trash.pools
        pages = [each for pool in pools for each in pool.values() if isinstance(each, list)]
        return sum(map(len, pages))

    node.do(cmd.FlushAll())
    counts = [in_pages()]
    while counts[-1]:
        node.engine.clear_up()
        counts.append(in_pages())
    assert counts[0] == 12_000
    steps = [before - after for before, after in pairwise(counts)]
    assert max(steps) <= 2_000 + 512


def test_a_flush_forgets_all_at_once_and_clears_up_in_bounded_steps() -> None:
    node = Node()
    engine, state = node.engine, node.state
    for n in range(12_000):
        engine.command(ClientId(n + 10), cmd.AddJob(b"q", b"", 0, replicate=1, retry_ms=RETRY_MS))
    engine.take_ready()
    assert node.do(cmd.FlushAll()) == [Status(b"OK")]
    assert (len(state.jobs), len(state.queues), state.body_bytes) == (0, 0, 0)
    assert engine.statistics().used_memory == BASE_BYTES
    assert state.trash.pools, "more than one step"
    kept = node.add()
    # Retries and expiries of what is gone come to nothing
    node.leap(RETRY_MS)
    assert list(state.jobs) == [kept]
    node.advance(100)
    assert not state.trash.pools
