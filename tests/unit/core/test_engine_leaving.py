"""CLUSTER LEAVING (B5): hands over what somebody needs, drops nothing without promises, says when it may stop."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.nodeid import NodeId
from disque.core import commands as cmd
from disque.core import messages as msg
from disque.core.job import Reason
from disque.core.jobid import JobId
from disque.core.ready import ClientId, Failure, Reply, Status
from tests.unit.core.builders import (
    BOOT,
    CTIME,
    DAY_MS,
    NODE_TIMEOUT_MS,
    OTHER,
    RETRY_MS,
    A,
    B,
    C,
    D,
    Node,
    World,
    copy,
    facts,
    job_id,
    node_with,
    spec,
    state_name,
    view,
)

BEGIN_MS = NODE_TIMEOUT_MS  # after the command
GONE = Failure("LEAVING", "This node is leaving the cluster, please connect to a different one")


def see(world: World, *, leaving: Any = (), forgotten: Any = ()) -> None:
    """All nodes see these leaving, and all others that aren't forgotten up."""
    known = [n for n in world.nodes if n not in forgotten]
    for node in known:
        up = [n for n in known if n != node]
        world.nodes[node].see(view(node, up=up, leaving=leaving, forgotten=forgotten))
    for node in forgotten:
        world.nodes[node].see(view(node, suspect=known))
        for other in known:
            world.cuts[node, other] = world.cuts[other, node] = None
    world.settle()


def had(
    world: World, command: cmd.Command, *, at: Any = A, client: ClientId = OTHER
) -> list[Reply]:
    node = world.nodes[at]
    before = len(node.replies)
    node.do(command, client=client)
    world.settle()
    return [reply for to, reply in node.replies[before:] if to == client]


def added(world: World, *, at: Any = A, copies: int = 1, **options: Any) -> JobId:
    """An ADDJOB that is answered once its copies are there."""
    options.setdefault("retry_ms", RETRY_MS)
    command = cmd.AddJob(b"q", b"body", 0, replicate=copies, **options)
    (said,) = had(world, command, at=at, client=ClientId(77))
    assert isinstance(said, Status), said
    return JobId(said.text)


def is_safe(world: World, at: Any = A) -> bool:
    return world.nodes[at].engine.is_safe_to_stop()


def drained(world: World, at: Any = A, *, within_ms: int = 60_000) -> int:
    """ms until a node says that it may stop."""
    for ms in range(0, within_ms, 500):
        if is_safe(world, at):
            return ms
        world.advance(500, step_ms=100)
    left = [f"{j.state.name} {j.holders}" for j in world.nodes[at].state.jobs.values()]
    raise AssertionError(f"never safe, still has {left}")


def taken(world: World, *nodes: NodeId) -> list[bytes]:
    """What consumers of these nodes can have now."""
    ids = [delivery.id for at in nodes for delivery in world.nodes[at].get(count=100)]
    world.settle()
    return ids


def queued(world: World, *nodes: NodeId) -> int:
    return sum([len(world.nodes[at].state.queues.get(b"q", ())) for at in nodes])


# It drains


@pytest.mark.parametrize("copies", [1, 2, 3])
def test_queued_jobs_move_without_any_consumer_and_lie_in_one_queue_elsewhere(copies: int) -> None:
    world = World.of(A, B, C)
    ids = [added(world, copies=copies) for _ in range(10)]
    see(world, leaving=[A])
    ms = drained(world)
    assert ms >= BEGIN_MS - 500, "starts one node timeout after the command"
    assert not world.nodes[A].state.jobs
    see(world, forgotten=[A])
    world.advance(2_000)
    assert queued(world, B, C) == 10
    assert sorted(taken(world, B, C)) == sorted(ids)


def test_nothing_moves_before_one_node_timeout() -> None:
    world = World.of(A, B)
    added(world)
    see(world, leaving=[A])
    world.sent.clear()
    world.advance(BEGIN_MS - 1_000, step_ms=500)
    assert not [s for _, _, s in world.sent if isinstance(s, msg.ReplJob | msg.YourJobs | msg.Keep)]
    assert not is_safe(world)


def test_an_empty_node_is_safe_only_after_one_node_timeout() -> None:
    world = World.of(A, B)
    see(world, leaving=[A])
    assert not is_safe(world)
    world.advance(BEGIN_MS, step_ms=500)
    assert is_safe(world)


def test_a_node_that_is_not_leaving_is_never_safe() -> None:
    world = World.of(A, B)
    world.advance(BEGIN_MS, step_ms=500)
    assert not is_safe(world)


def test_b5_2_replicate_is_met_without_the_leaving_node() -> None:
    """Q4: as many copies as REPLICATE or as there are willing nodes."""
    world = World.of(A, B, C, D)
    ids = [added(world, copies=3) for _ in range(8)]
    see(world, leaving=[A])
    drained(world)
    for id_ in ids:
        holding = [n for n in (B, C, D) if id_ in world.nodes[n].state.jobs]
        assert len(holding) == 3, id_


def test_a_leased_jobs_lease_is_known_to_those_who_keep_it() -> None:
    world = World.of(A, B)
    id_ = added(world, retry_ms=120_000)
    assert taken(world, A) == [id_]
    see(world, leaving=[A])
    drained(world)
    assert taken(world, B) == []
    assert world.nodes[B].job(id_).lease_end() > world.nodes[B].now_ms
    see(world, forgotten=[A])
    world.advance(120_000, step_ms=1_000)
    assert taken(world, B) == [id_]


def test_a_worker_may_still_ack_at_the_leaving_node() -> None:
    world = World.of(A, B)
    id_ = added(world, retry_ms=120_000)
    taken(world, A)
    see(world, leaving=[A])
    drained(world)
    had(world, cmd.AckJob((id_,)))
    world.advance(3_000)
    assert state_name(world.nodes[B], id_) in ("none", "tombstone")
    drained(world)


def test_a_delayed_job_keeps_its_delay() -> None:
    world = World.of(A, B)
    id_ = added(world, delay_ms=60_000)
    see(world, leaving=[A])
    drained(world)
    see(world, forgotten=[A])
    assert taken(world, B) == []
    for _ in range(100):
        world.advance(1_000, step_ms=500)
        if queued(world, B):
            break
    assert world.nodes[B].now_ms - world.nodes[B].engine.state.started_at >= 60_000
    assert taken(world, B) == [id_]


def test_b5_5_retry_0_moves_and_is_delivered_once() -> None:
    world = World.of(A, B, C)
    ids = [added(world, retry_ms=0) for _ in range(5)]
    see(world, leaving=[A])
    drained(world)
    assert sorted(taken(world, B, C)) == sorted(ids)
    assert taken(world, A, B, C) == []


def test_b5_5_a_delayed_retry_0_job_moves_with_its_delay() -> None:
    world = World.of(A, B)
    id_ = added(world, retry_ms=0, delay_ms=60_000)
    see(world, leaving=[A])
    drained(world)
    assert taken(world, B) == []
    world.advance(61_000, step_ms=1_000)
    assert taken(world, B) == [id_]


def test_b5_5_what_was_dispatched_once_is_of_no_use_and_goes() -> None:
    world = World.of(A, B)
    added(world, retry_ms=0)
    taken(world, A)
    see(world, leaving=[A])
    drained(world)


def test_b5_5_a_move_in_doubt_does_not_block() -> None:
    world = World.of(A, B)
    added(world, retry_ms=0)
    world.lose = lambda _from, _to, said: isinstance(said, msg.Move | msg.AskMove | msg.GotMove)
    world.nodes[B].do(cmd.GetJob((b"q",)))
    world.settle()
    world.cuts = {(A, B): None, (B, A): None}
    world.nodes[A].see(view(A, suspect=(B,), leaving=(A,)))
    world.advance(BEGIN_MS + 1_000, step_ms=500)
    assert is_safe(world)


def test_a_move_on_its_way_to_a_reachable_node_is_waited_for() -> None:
    """Stopped a moment after MOVE left, the job would be lost though nothing failed."""
    world = World.of(A, B)
    added(world, retry_ms=0)
    see(world, leaving=[A])
    world.lose = lambda _from, _to, said: isinstance(said, msg.Move)
    world.advance(BEGIN_MS + 500, step_ms=100)
    assert [job.state.name for job in world.nodes[A].state.jobs.values()] == ["MOVING"]
    assert not is_safe(world), "B hasn't answered yet"


def test_b5_6_an_unsettled_end_goes_on_at_another_node() -> None:
    world = World.of(A, B, C)
    id_ = added(world, copies=2)
    (other,) = [n for n in (B, C) if id_ in world.nodes[n].state.jobs]
    (free,) = [n for n in (B, C) if n != other]
    world.cuts = {(a, b): None for a in (A, free) for b in (other,)}
    world.cuts |= {(b, a): None for a, b in world.cuts}
    for node in (A, free):
        (up,) = [n for n in (A, free) if n != node]
        world.nodes[node].see(view(node, up=[up], suspect=[other]))
    world.nodes[other].see(view(other, suspect=[A, free]))
    had(world, cmd.AckJob((id_,)))
    world.nodes[A].see(view(A, up=[free], suspect=[other], leaving=[A]))
    world.nodes[free].see(view(free, up=[A], suspect=[other], leaving=[A]))
    world.advance(BEGIN_MS + 5_000, step_ms=100)
    assert is_safe(world)
    assert world.nodes[free].job(id_).is_done
    for node, up in ((free, other), (other, free)):
        world.nodes[node].see(view(node, up=[up], forgotten=[A]))
    world.cuts = {(A, n): None for n in (B, C)} | {(n, A): None for n in (B, C)}
    world.advance(20_000, step_ms=100)
    assert taken(world, other, free) == []
    assert state_name(world.nodes[other], id_) in ("tombstone", "none")


def test_b5_6_a_dummy_goes_on_at_another_node() -> None:
    world = World.of(A, B, C)
    for node, up in ((A, B), (B, A)):
        world.nodes[node].see(view(node, up=[up], suspect=[C], leaving=[A]))
    had(world, cmd.AckJob((job_id(1, node=C),)))
    assert not is_safe(world)
    world.advance(BEGIN_MS + 3_000, step_ms=100)
    assert is_safe(world)
    dummy = world.nodes[B].job(job_id(1, node=C))
    assert (dummy.is_dummy, dummy.reason, A in dummy.told and B in dummy.told) == (
        True,
        Reason.ACKED,
        True,
    )


def test_many_jobs_are_handed_over_in_bounded_steps() -> None:
    node = Node(view(up=(B,)))
    for n in range(1_200):
        node.engine.command(
            ClientId(100 + n), cmd.AddJob(b"q", b"x", 0, replicate=1, retry_ms=RETRY_MS)
        )
    node.engine.take_ready()
    node.see(view(up=(B,), leaving=(A,)))
    node.clear()
    counts: list[int] = []
    while len(node.told(msg.ReplJob)) < 1_200:
        before = len(node.told(msg.ReplJob))
        node.advance(BEGIN_MS if not counts else 100)
        counts.append(len(node.told(msg.ReplJob)) - before)
        assert len(counts) < 10
    assert counts[0] <= 500
    assert max(counts) <= 500


# Promises


def leaver(*, up: Any = (B, C), copies: int = 2) -> tuple[Node, JobId]:
    """A holder whose other holders all claim a copy; leaving, past its start."""
    node = Node(view(up=up))
    id_ = job_id(1)
    node.hear(B, copy(id_, A, *up, spec=spec(retry_ms=DAY_MS // 4)))
    for peer in up:
        node.hear(peer, msg.GotJob(id_, BOOT, 1))
    node.see(view(up=up, leaving=[A]))
    node.clear()
    node.advance(BEGIN_MS + 200)
    return node, id_


def test_b5_4_a_copy_is_dropped_only_after_promises_given_to_that_question() -> None:
    node, id_ = leaver()
    assert node.told_to(msg.Keep) == [B, C]
    node.hear(B, msg.GotJob(id_, BOOT, 2))
    node.hear(C, msg.GotJob(id_, BOOT, 2))
    assert id_ in node.state.jobs, "GOTJOB was given to something else"
    node.hear(B, msg.Kept(id_, BOOT, 2))
    assert id_ in node.state.jobs, "one of two"
    node.hear(C, msg.Kept(id_, BOOT, 2))
    assert id_ not in node.state.jobs
    assert node.told_to(msg.Unknown) == [B, C]


@pytest.mark.parametrize("boot", [BOOT - 1, BOOT + 1])
def test_a_promise_of_another_boot_is_none(boot: int) -> None:
    node, id_ = leaver(up=(B,))
    node.hear(B, msg.Kept(id_, boot, 2))
    assert id_ in node.state.jobs


def test_a_copy_that_came_through_a_restart_is_promised_by_the_boot_of_its_claim() -> None:
    node, id_ = leaver(up=(B,))
    node.see(view(up=(B,), leaving=[A], boots={B: BOOT + 3}, sinces={B: BOOT}))
    node.hear(B, msg.Kept(id_, BOOT, 2))
    assert id_ not in node.state.jobs


@pytest.mark.parametrize("answer", [msg.Refused(job_id(1), False), msg.Unknown(job_id(1), BOOT, 9)])
def test_refused_and_unknown_are_no_promise(answer: msg.Message) -> None:
    node, id_ = leaver(up=(B,))
    node.hear(B, answer)
    node.advance(1_000)
    assert id_ in node.state.jobs


def test_a_promise_of_a_node_that_is_leaving_by_now_is_none() -> None:
    node, id_ = leaver(up=(B, C))
    node.see(view(up=(B, C), leaving=(A, B)))
    node.hear(B, msg.Kept(id_, BOOT, 2))
    assert id_ in node.state.jobs
    node.hear(C, msg.Kept(id_, BOOT, 2))
    assert id_ not in node.state.jobs, "C is the one willing member"


def test_while_its_addjob_waits_elsewhere_a_job_is_asked_about_again_and_others_go_there() -> None:
    """B5.4: for 30 s after a REFUSED nothing could."""
    node, id_ = leaver(up=(B,))
    node.hear(B, msg.Waiting(id_, 1_000))
    node.clear()
    node.advance(2_500)
    assert node.told_to(msg.Keep) == [B]


@pytest.mark.parametrize(
    ("kind", "is_leaving", "answer"),
    [("active", False, msg.Kept), ("leased", False, msg.Kept), ("queued", False, msg.Kept),
     ("waiting", False, msg.Waiting), ("waiting", True, msg.Refused),
     ("active", True, msg.Refused), ("none", False, msg.Unknown),
     ("mark", False, msg.SetAck), ("done", False, msg.SetAck), ("tombstone", False, msg.DelJob)],
)  # fmt: skip
def test_how_keep_is_answered(kind: str, is_leaving: bool, answer: type[msg.Message]) -> None:
    node, id_ = node_with(kind, view(up=(B, C)))
    node.see(view(up=(B, C), leaving=(A,) if is_leaving else (B,)))
    node.clear()
    node.hear(B, msg.Keep(id_, facts(A, B)))
    assert [type(said) for peer, said in node.said if peer == B][:1] == [answer]
    assert not node.told(msg.Kept) or answer is msg.Kept


def test_a_promise_while_not_leaving_drops_nothing() -> None:
    node = Node(view(up=(B,)))
    node.hear(B, copy(job_id(1), A, B))
    node.hear(B, msg.Kept(job_id(1), BOOT, 1))
    assert job_id(1) in node.state.jobs


def test_two_leaving_nodes_never_rely_on_each_other() -> None:
    world = World.of(A, B, C)
    ids = [added(world, copies=2) for _ in range(10)]
    see(world, leaving=[A, B])
    drained(world, A)
    drained(world, B)
    assert sorted(world.nodes[C].state.jobs) == sorted(ids)
    see(world, forgotten=[A, B])
    world.advance(RETRY_MS + 3_000, step_ms=100)
    assert sorted(taken(world, C)) == sorted(ids)


def test_when_all_nodes_leave_none_may_stop_with_jobs() -> None:
    world = World.of(A, B)
    added(world, copies=2)
    see(world, leaving=[A, B])
    world.advance(60_000, step_ms=500)
    assert not is_safe(world, A)
    assert not is_safe(world, B)
    assert queued(world, A, B) >= 1


def test_b5_7_no_willing_peer_never_safe_until_one_comes() -> None:
    node = Node(view(cut=(B,)))
    node.add()
    node.see(view(cut=(B,), leaving=(A,)))
    node.advance(60_000)
    assert not node.engine.is_safe_to_stop()


def test_a_paused_peer_takes_nothing_and_the_job_stays_until_another_does() -> None:
    world = World.of(A, B)
    id_ = added(world)
    world.nodes[B].do(cmd.Pause(b"q", 1))
    see(world, leaving=[A])
    world.advance(40_000, step_ms=100)
    assert not is_safe(world)
    assert id_ in world.nodes[A].state.jobs
    world.nodes[B].do(cmd.Pause(b"q", 0))
    drained(world, within_ms=90_000)
    world.advance(RETRY_MS, step_ms=100)
    assert taken(world, B) == [id_]


# Clients, and the flag


def test_consumers_are_sent_away_and_new_ones_too() -> None:
    node = Node(view(up=(B,)))
    node.do(cmd.GetJob((b"q",)))
    node.see(view(up=(B,), leaving=(A,)))
    assert node.answers() == [GONE]
    assert node.do(cmd.GetJob((b"q",)), client=OTHER) == [GONE]


def test_w15_an_open_addjob_finishes() -> None:
    node = Node(view(up=(B,)))
    node.do(cmd.AddJob(b"q", b"x", 0, replicate=2, retry_ms=RETRY_MS))
    (id_,) = node.state.adding
    node.see(view(up=(B,), leaving=(A,)))
    node.hear(B, msg.GotJob(id_, BOOT, 1))
    assert node.answers() == [Status(id_)]


def test_a_job_is_never_taken_from_under_a_waiting_client() -> None:
    node = Node(view(up=(B, C)))
    node.do(cmd.AddJob(b"q", b"x", 0, replicate=3, retry_ms=RETRY_MS))
    (id_,) = node.state.adding
    node.hear(B, msg.GotJob(id_, BOOT, 1))
    node.see(view(up=(B, C), leaving=(A,)))
    node.advance(BEGIN_MS + 5_000)
    node.hear(B, msg.Kept(id_, BOOT, 1))
    assert id_ in node.state.adding
    assert not node.engine.is_safe_to_stop()


def test_toggled_off_it_keeps_what_it_has_and_starts_anew_when_toggled_on() -> None:
    world = World.of(A, B)
    added(world)
    see(world, leaving=[A])
    world.advance(BEGIN_MS - 1_000, step_ms=500)
    see(world)
    world.advance(BEGIN_MS, step_ms=500)
    assert not is_safe(world)
    assert queued(world, A) == 1
    assert len(taken(world, A)) == 1, "it serves again"
    see(world, leaving=[A])
    world.advance(BEGIN_MS - 1_000, step_ms=500)
    assert len(world.nodes[A].state.jobs) == 1, "one node timeout after the second command"


def test_a_leaving_node_takes_no_copies_and_no_jobs() -> None:
    node = Node(view(up=(B,), leaving=(A,)))
    node.hear(B, copy(job_id(1), A, B))
    node.hear(B, msg.YourJobs(job_id(2), copy(job_id(2)).spec, CTIME, b"b", facts(A, B)))
    assert node.told_to(msg.Refused) == [B, B]
    assert not node.state.jobs


def test_no_copy_of_a_drained_node_was_the_only_one() -> None:
    """Q8: removing a node that may stop loses nothing, whatever it held."""
    world = World.of(A, B, C)
    ids = [added(world, at=at, copies=n) for at in (A, B) for n in (1, 2, 3)]
    ids += [added(world, delay_ms=3_000), added(world, retry_ms=0)]
    leased = [each.id for each in world.nodes[A].get()]
    world.settle()
    see(world, leaving=[A])
    drained(world)
    see(world, forgotten=[A])
    handed_out = {*leased, *taken(world, B, C)}
    world.advance(2 * RETRY_MS + 5_000, step_ms=100)
    handed_out |= {*taken(world, B, C)}
    assert set(ids) <= handed_out


def test_who_stays_after_all_still_knows_the_ends_that_a_peer_carried_on() -> None:
    id_ = job_id(1)
    node = Node(view(up=(B,), suspect=(C,)))
    node.hear(B, copy(id_, A, B, C))
    node.hear(B, msg.SetAck(id_, Reason.ACKED, (A, B, C), (B,), DAY_MS))
    node.see(view(up=(B,), suspect=(C,), leaving=(A,)))
    node.advance(BEGIN_MS + 1_000)
    assert node.engine.is_safe_to_stop()
    node.see(view(up=(B, C)))
    node.clear()
    node.hear(C, copy(id_, A, C))
    assert [said.holders for said in node.told(msg.SetAck, to=C)] == [(A, B, C)]
    assert node.job(id_).is_done


def test_an_end_whose_bearer_leaves_as_well_is_carried_on_by_another() -> None:
    id_ = job_id(1)
    node = Node(view(up=(B, D), suspect=(C,)))
    node.hear(B, msg.SetAck(id_, Reason.ACKED, (A, B, C), (B,), DAY_MS))
    node.see(view(up=(B, D), suspect=(C,), leaving=(A,)))
    node.advance(BEGIN_MS + 1_000)
    assert node.engine.is_safe_to_stop()
    node.see(view(up=(B, D), suspect=(C,), leaving=(A, B)))
    node.clear()
    node.advance(1_000)
    assert not node.engine.is_safe_to_stop()
    assert node.told_to(msg.SetAck) == [D]
    node.hear(D, msg.GotAck(id_, Reason.ACKED, (A, B, C, D), (A, B, D), DAY_MS))
    node.advance(3_000)
    assert node.engine.is_safe_to_stop()
