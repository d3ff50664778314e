"""Jobs travel to where somebody waits (reference 5.5-5.7; W-1, W-2, W-3, W-8, W-9, W-18, W-20)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import attrs
import pytest

from disque.core import commands as cmd
from disque.core import messages as msg
from disque.core.delivery import queue_of
from disque.core.jobqueue import PAUSE_IN, PAUSE_OUT
from disque.core.ready import ClientId
from disque.core.sleeper import UNBOOKED
from disque.core.state import send
from tests.unit.core.builders import (
    BOOT,
    CTIME,
    ME,
    NOW,
    RETRY_MS,
    A,
    B,
    C,
    D,
    Node,
    World,
    add_command,
    facts,
    job_id,
    node_with,
    spec,
    state_name,
    view,
)

UP = view(up=(B, C))


def asked(node: Node, ms: int, *, step_ms: int = 5) -> list[tuple[int, Any, int]]:
    """(ms since NOW, peer, count) of each NEEDJOBS."""
    found = []
    for _ in range(0, ms + 1, step_ms):
        found += [
            (node.now_ms - NOW, to, said.count)
            for to, said in node.said
            if isinstance(said, msg.NeedJobs)
        ]
        node.said.clear()
        node.advance(step_ms)
    return found


def your_job(n: int, *, queue: bytes = b"q", source: Any = B) -> msg.YourJobs:
    return msg.YourJobs(job_id(n), spec(queue=queue), CTIME, b"%d" % n, facts(A, source))


# Asking


def test_a_waiting_client_makes_its_node_ask_everybody_for_one_job() -> None:
    node = Node(UP)
    node.do(cmd.GetJob((b"q",)))
    assert node.said == [(B, msg.NeedJobs(b"q", 1, True)), (C, msg.NeedJobs(b"q", 1, True))]


def test_nohang_asks_too() -> None:
    node = Node(UP)
    node.get(b"q")
    assert node.told_to(msg.NeedJobs) == [B, C]


def test_w18_the_broadcast_backs_off_to_30_s_and_never_bursts() -> None:
    """W-18: C Disque's exponent overflowed after 8 minutes: a burst each 100 ms."""
    node = Node(view(up=(B,)))
    node.do(cmd.GetJob((b"q",)))
    times = [at for at, _, _ in asked(node, 3_600_000, step_ms=500)]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert gaps[:5] == [2_000, 4_000, 8_000, 16_000, 30_000]
    assert set(gaps[5:]) == {30_000}


def test_several_waiting_clients_of_a_queue_ask_once() -> None:
    node = Node(view(up=(B,)))
    for client in range(20):
        node.do(cmd.GetJob((b"q",)), client=ClientId(client))
    assert node.told_to(msg.NeedJobs) == [B]


def test_sources_are_asked_after_25_ms_doubling_to_2_s_and_reset_by_each_import() -> None:
    node = Node(view(up=(B, C)))
    node.do(cmd.GetJob((b"q",)))
    node.hear(B, your_job(1))
    node.do(cmd.GetJob((b"q",)))
    times = [at for at, to, count in asked(node, 4_000) if count > 1 and to == B]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert gaps[:7] == [25, 50, 100, 200, 400, 800, 1_600]
    node.hear(B, your_job(2))
    node.do(cmd.GetJob((b"q",)))
    (again,) = [said for said in node.told(msg.NeedJobs, to=B) if said.count > 1]
    assert again.count >= 5, "an import resets the back-off"


def test_only_sources_of_the_last_5_s_are_asked_for_more() -> None:
    node = Node(view(up=(B, C)))
    node.do(cmd.GetJob((b"q",)))
    node.hear(B, your_job(1))
    node.advance(5_001)
    node.said.clear()
    node.do(cmd.GetJob((b"q",)))
    node.advance(1_000)
    assert {said.count for said in node.told(msg.NeedJobs)} <= {1}


def test_a_node_that_is_alone_asks_nobody_and_those_who_come_are_asked() -> None:
    node = Node()
    node.do(cmd.GetJob((b"q",)))
    assert (node.state.queues[b"q"].wake_at, node.state.queues[b"q"].exchange) == (UNBOOKED, None)
    node.see(UP)
    assert [said.queue for said in node.told(msg.NeedJobs, to=B)] == [b"q"]
    node.clear()
    node.advance(60_000)
    assert len(node.told(msg.NeedJobs, to=B)) >= 2, "and again, before they forget it"
    node.see(view())
    node.clear()
    node.advance(60_000)
    assert node.state.queues[b"q"].wake_at == UNBOOKED
    node.see(UP)
    node.advance(40_000)
    assert len(node.told(msg.NeedJobs, to=B)) >= 2


def test_what_is_wanted_follows_the_import_rate_from_5_to_100() -> None:
    for imports, wanted in ((1, 20), (3, 60), (50, 100)):
        node = Node(view(up=(B,)))
        node.hear(B, *[your_job(n) for n in range(imports)])
        node.said.clear()
        node.get(count=imports)  # it ran dry: asks its source at once
        assert [said.count for said in node.told(msg.NeedJobs) if said.count > 1] == [wanted]


def test_a_queue_that_ran_dry_without_imports_asks_nobody() -> None:
    node = Node(UP)
    node.add()
    node.get()
    assert node.told(msg.NeedJobs) == []


def test_a_leaving_node_and_a_paused_queue_ask_nobody() -> None:
    node = Node(view(up=(B,), leaving=(A,)))
    node.get()
    assert node.said == []
    node = Node(UP)
    queue_of(node.state, b"q").pause = PAUSE_OUT
    node.do(cmd.GetJob((b"q",)))
    assert node.said == []


def test_nodes_that_come_back_hear_what_is_waited_for() -> None:
    """U62: no consumer waits beside a job."""
    node = Node(view(suspect=(B,)))
    node.do(cmd.GetJob((b"q",)))
    node.advance(100_000)
    node.see(view(up=(B,)))
    assert node.told(msg.NeedJobs, to=B) == [msg.NeedJobs(b"q", 1, True)]


def test_who_stopped_waiting_asks_no_more() -> None:
    node = Node(view(up=(B,)))
    node.do(cmd.GetJob((b"q",)))
    node.disconnect(ME)
    node.clear()
    node.advance(120_000)
    assert node.told(msg.NeedJobs) == []


# Answering


@pytest.mark.parametrize(
    ("length", "count", "given"),
    [
        (0, 5, 0),
        (1, 5, 1),
        (2, 5, 1),
        (3, 1, 1),
        (9, 5, 4),
        (10, 5, 5),
        (50, 5, 5),
        (300, 100, 100),
        (150, 100, 75),
    ],
)
def test_a_short_queue_gives_half_at_least_one(length: int, count: int, given: int) -> None:
    node = Node(UP)
    for _ in range(length):
        node.add()
    node.hear(B, msg.NeedJobs(b"q", count, True))
    assert len(node.told(msg.YourJobs, to=B)) == given


@pytest.mark.parametrize("count", [0, 101, 2**31, 2**62])
def test_w20_a_count_beyond_reason_is_clamped(count: int) -> None:
    """W-20: 1 to 100."""
    node = Node(UP)
    for _ in range(300):
        node.add()
    node.hear(B, msg.NeedJobs(b"q", count, True))
    assert len(node.told(msg.YourJobs, to=B)) == (100 if count else 1)
    assert all(left <= 100 for left, _ in node.state.queues[b"q"].open_exchange().wanted.values())


def test_the_oldest_jobs_are_given_and_the_giver_stays_a_holder() -> None:
    node = Node(UP)
    ids = [node.add() for _ in range(4)]
    node.clear()
    node.hear(B, msg.NeedJobs(b"q", 2, True))
    given = node.told(msg.YourJobs, to=B)
    assert [each.id for each in given] == ids[:2]
    assert [each.facts.holders for each in given] == [(A, B)] * 2
    assert [state_name(node, each) for each in ids] == ["active", "active", "queued", "queued"]
    logged = [each.fields for each in node.records if each.kind == "holders"]
    assert logged == [(id_, (A, B)) for id_ in ids[:2]]


def test_w9_who_cant_be_reached_is_given_nothing() -> None:
    """W-9: popped first, sent never."""
    for retry_ms in (0, RETRY_MS):
        node = Node(view(cut=(B,)))
        id_ = node.add(retry_ms=retry_ms)
        node.hear(B, msg.NeedJobs(b"q", 1, True))
        assert state_name(node, id_) == "queued"
        node.see(view(up=(B,), leaving=(B,)))
        node.hear(B, msg.NeedJobs(b"q", 1, True))
        assert state_name(node, id_) == "queued"


def test_output_pause_gives_nothing() -> None:
    node = Node(UP)
    node.add()
    queue_of(node.state, b"q").pause = PAUSE_OUT
    node.hear(B, msg.NeedJobs(b"q", 1, True))
    assert node.told(msg.YourJobs) == []


def test_who_imports_a_queue_gives_nothing_for_a_stock_and_one_job_to_who_waits() -> None:
    """Rate rule (5.7.1): else two dry nodes pass jobs to and fro; but no consumer waits beside a job (U62)."""
    node = Node(UP)
    for n in (1, 2, 3):
        node.hear(C, your_job(n, source=C))
    node.hear(B, msg.NeedJobs(b"q", 5, False))
    assert node.told(msg.YourJobs) == []
    node.hear(B, msg.NeedJobs(b"q", 5, True))
    assert [each.id for each in node.told(msg.YourJobs, to=B)] == [job_id(1)]


def test_peers_remember_a_want_only_for_as_long_as_its_client_waits() -> None:
    """No job moves to a node whose GETJOB has timed out."""
    for after_ms, is_given in ((999, True), (1_001, False)):
        node = Node(UP)
        node.hear(B, msg.NeedJobs(b"q", 1, True, 1_000))
        node.advance(after_ms)
        node.add(replicate=1)
        assert bool(node.told(msg.YourJobs, to=B)) == is_given


def test_a_client_that_waits_longer_is_told_of_when_the_want_would_be_forgotten() -> None:
    node = Node(UP)
    node.do(cmd.GetJob((b"q",), timeout_ms=1_000), client=ClientId(1))
    node.advance(500)
    node.do(cmd.GetJob((b"q",), timeout_ms=9_000), client=ClientId(2))
    node.clear()
    node.advance(501)
    assert [each.wait_ms for each in node.told(msg.NeedJobs, to=B)] == [8_500]


def test_clients_that_come_and_go_within_ms_make_no_broadcast_each() -> None:
    node = Node(UP)
    for n in range(100):
        node.do(cmd.GetJob((b"q",), timeout_ms=1), client=ClientId(n))
        node.advance(1)
    assert len(node.told(msg.NeedJobs, to=B)) <= 5


def test_a_blocked_client_is_told_of_at_once_though_polls_went_before() -> None:
    node = Node(UP)
    assert node.get() == []
    node.clear()
    node.do(cmd.GetJob((b"q",)))
    assert [each.has_waiting for each in node.told(msg.NeedJobs, to=B)] == [True]


def test_a_question_is_remembered_for_30_s_and_then_forgotten() -> None:
    for after_ms, is_given in ((29_999, True), (30_000, False)):
        node = Node(UP)
        node.hear(B, msg.NeedJobs(b"q", 1, True))
        node.advance(after_ms)
        node.add()
        assert bool(node.told(msg.YourJobs, to=B)) == is_given


def test_only_askers_with_waiting_clients_are_remembered() -> None:
    node = Node(UP)
    node.hear(B, msg.NeedJobs(b"q", 5, False))
    node.add()
    assert node.told(msg.YourJobs) == []
    assert len(node.get()) == 1
    node.add()
    node.hear(B, msg.NeedJobs(b"q", 5, False))
    assert len(node.told(msg.YourJobs, to=B)) == 1, "what is there is given"


def test_a_remembered_question_is_answered_once() -> None:
    node = Node(UP)
    node.hear(B, msg.NeedJobs(b"q", 2, True))
    for _ in range(5):
        node.add()
    assert len(node.told(msg.YourJobs, to=B)) == 2
    assert len(node.get(count=9)) == 3


def test_a_consumer_here_goes_before_a_remembered_question() -> None:
    node = Node(UP)
    node.hear(B, msg.NeedJobs(b"q", 1, True))
    node.do(cmd.GetJob((b"q",)))
    node.add()
    assert len(node.answers()) == 1
    assert node.told(msg.YourJobs) == []


# Receiving


def test_w8_your_jobs_are_queued_confirmed_and_in_the_log() -> None:
    """W-8: imports are in the log."""
    node = Node(UP)
    node.hear(B, your_job(1))
    assert [(to, type(each)) for to, each in node.said] == [(B, msg.GotJob), (B, msg.Queued)]
    assert [(each.kind, each.fields[0]) for each in node.records] == [("job", job_id(1))]
    assert [each.id for each in node.get()] == [job_id(1)]
    assert node.job(job_id(1)).holders == (A, B)


def test_w3_a_job_that_was_acked_while_needjobs_flew_isnt_delivered() -> None:
    """W-3."""
    world = World.of(A, B)
    a, b = world.nodes.values()
    a.do(cmd.AddJob(b"q", b"x", 0, replicate=2, retry_ms=RETRY_MS))
    world.settle()
    (id_,) = a.state.jobs
    b.do(cmd.GetJob((b"q",)), client=ClientId(5))
    b.do(cmd.AckJob((id_,)), client=ClientId(6))
    world.settle()
    assert b.answers(ClientId(5)) == []
    assert world.registered() == [0, 0]


@pytest.mark.parametrize("why", ["leaving", "paused"])
def test_your_jobs_may_be_refused_and_the_giver_asks_at_once(why: str) -> None:
    node = Node(view(up=(B,), leaving=(A,) if why == "leaving" else ()))
    if why == "paused":
        queue_of(node.state, b"q").pause = PAUSE_IN
    node.hear(B, your_job(1))
    assert len(node.told(msg.Refused, to=B)) == 1
    giver = Node(view(up=(B,)))
    id_ = giver.add()
    giver.hear(B, msg.NeedJobs(b"q", 1, True))
    giver.hear(B, msg.Refused(id_, is_queue_only=True))
    giver.advance(1_100)
    assert state_name(giver, id_) == "queued"


def test_your_jobs_lost_on_the_way_come_back_after_retry() -> None:
    giver = Node(view(up=(B,)))
    id_ = giver.add()
    giver.hear(B, msg.NeedJobs(b"q", 1, True))
    giver.advance(RETRY_MS + 1_500)
    assert state_name(giver, id_) == "queued"


@pytest.mark.parametrize("replicate", [1, 2])
def test_your_jobs_lost_with_a_link_come_back_as_soon_as_it_does(replicate: int) -> None:
    """B1.5: the peer says that it has no copy, or none in its queue; RETRY is five minutes where none is given."""
    world = World.of(A, B)
    a, b = world.nodes.values()
    a.do(attrs.evolve(add_command(), replicate=replicate, retry_ms=300_000))
    world.settle()
    (id_,) = a.state.jobs
    world.lose = lambda _sender, _to, each: isinstance(each, msg.YourJobs)
    b.do(cmd.GetJob((b"q",)), client=ClientId(5))
    world.settle()
    assert a.job(id_).queued_at == B
    world.lose = None
    world.split((A,), (B,))
    world.heal()
    world.advance(2_000)
    assert len(b.answers(ClientId(5))) == 1


@pytest.mark.parametrize("kind", ["active", "leased", "queued"])
def test_a_known_copy_takes_the_facts_and_a_lease_stays(kind: str) -> None:
    node, id_ = node_with(kind, UP)
    node.hear(B, msg.YourJobs(id_, spec(), CTIME, b"body", facts(A, B, C, dispatches={B: 3})))
    assert node.job(id_).holders == (A, B, C)
    assert node.job(id_).dispatches[B] == 3
    assert state_name(node, id_) == ("leased" if kind == "leased" else "queued")


@pytest.mark.parametrize("sizes", [(A, B), (A, B, C), (A, B, C, D)])
def test_u62_a_consumer_anywhere_gets_a_job_added_anywhere(sizes: tuple[Any, ...]) -> None:
    for source in sizes:
        for consumer in sizes:
            world = World.of(*sizes)
            world.nodes[consumer].do(cmd.GetJob((b"q",)), client=ClientId(5))
            world.settle()
            world.advance(20_000, step_ms=1_000)
            world.nodes[source].add()
            world.settle()
            world.advance(2_000, step_ms=250)
            assert len(world.nodes[consumer].answers(ClientId(5))) == 1


def test_one_job_and_many_askers_is_delivered_once() -> None:
    """RETRY 0 and RETRY > 0; the answer goes to one."""
    for retry_ms in (0, 60_000):
        world = World.of(A, B, C, D)
        for node in (B, C, D):
            world.nodes[node].do(cmd.GetJob((b"q",)), client=ClientId(5))
        world.settle()
        world.nodes[A].add(retry_ms=retry_ms)
        world.settle()
        world.advance(5_000, step_ms=250)
        assert sum(len(world.nodes[n].answers(ClientId(5))) for n in (B, C, D)) == 1


def test_what_is_said_of_one_job_arrives_in_the_order_in_which_it_was_said() -> None:
    """In one turn a job is queued (said to B and C) and given to B, which had been told something else before."""
    node = Node(view(up=(B, C)))
    state, id_ = node.state, job_id(1)
    copy_ = msg.YourJobs(id_, spec(), CTIME, b"", facts(A, B))
    send(state, (B,), msg.GotJob(job_id(2), BOOT, 1))
    send(state, (B, C), msg.Queued(id_, facts(A, B, C)))
    send(state, (B,), copy_)
    send(state, (B, C), msg.GotJob(job_id(3), BOOT, 1))
    said = [
        (peers, [type(each).__name__ for each in batch])
        for peers, batch in node.engine.take_ready().messages
    ]
    assert said == [
        ((B,), ["GotJob"]),
        ((B, C), ["Queued", "GotJob"]),
        ((B,), ["YourJobs"]),
    ]
    assert (state.batch_of, state.said_in) == ({}, {})
