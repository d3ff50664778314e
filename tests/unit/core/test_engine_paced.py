"""What is about very many things is done in bounded steps, and what happens meanwhile counts."""

from __future__ import annotations

from cluster.nodeid import NodeId
from cluster.view import ClusterView
from disque.core import commands as cmd
from disque.core import messages as msg
from disque.core.chores import STEP, for_each
from disque.core.delivery import free
from disque.core.ready import ClientId, Failure, NilArray, Status
from disque.core.state import peer_of
from disque.core.topics import Kind
from tests.unit.core.builders import (
    BOOT,
    NODE_TIMEOUT_MS,
    A,
    B,
    C,
    D,
    Node,
    copy,
    job_id,
    view,
)

MANY = 2_500
FIRST = 1_000  # client
UP = view(up=(B,))


def with_waits(seen: ClusterView, count: int = MANY, *, timeout_ms: int = 0) -> Node:
    """A node in which client FIRST + n waits for queue n."""
    node = Node(seen)
    for n in range(count):
        command = cmd.GetJob((b"%d" % n,), timeout_ms=timeout_ms)
        node.engine.command(ClientId(FIRST + n), command)
    node.advance(0)
    node.clear()
    return node


def test_newcomers_hear_in_steps_what_is_waited_for() -> None:
    node = with_waits(UP)
    node.see(view(up=(B, C)))
    assert len(node.told(msg.NeedJobs, to=C)) == STEP
    node.disconnect(ClientId(FIRST + MANY - 1))
    node.add(queue=b"2000")
    node.advance(MANY // STEP)
    asked = [each.queue for each in node.told(msg.NeedJobs, to=C)]
    assert asked == [b"%d" % n for n in range(MANY - 1) if n != 2_000]
    assert node.told(msg.NeedJobs, to=B) == []


def test_however_often_a_peer_comes_and_goes_one_chore_goes_around_and_then_once_more() -> None:
    node = with_waits(UP)
    for _ in range(20):
        node.see(view(up=(B, C)))
        node.see(view(up=(B,), cut=(C,)))
    node.see(view(up=(B, C)))
    assert len(node.state.chores) == 1
    assert node.told(msg.NeedJobs, to=C)[STEP:] == [], "the first step of the first time"
    node.advance(2 * MANY // STEP)
    asked = [each.queue for each in node.told(msg.NeedJobs, to=C)]
    assert asked == [b"%d" % n for n in (*range(MANY), *range(MANY))]
    assert node.state.chores == {}


def test_of_very_many_chores_a_turn_does_as_much_as_of_one() -> None:
    node = with_waits(UP)
    done: list[int] = []
    for key in range(50):
        for_each(node.state, range(MANY), lambda _, n: done.append(n), key=key)
    del done[:]
    node.engine.advance(node.state.now_ms + 1)
    assert len(done) <= node.state.limits.wakeups_a_turn + STEP


def test_of_walks_to_many_peers_a_turn_does_as_much_as_of_one() -> None:
    peers = tuple(NodeId(f"{n:040x}") for n in range(1, 9))
    node = Node(view(cut=peers))
    for n in range(1_500):
        node.hear(peers[0], copy(job_id(n), A, *peers))
    node.see(view(up=peers))
    node.clear()
    node.engine.advance(node.state.now_ms + 1)
    said = sum([len(part) for _, part in node.engine.take_ready().messages])
    limits = node.state.limits
    assert limits.heal_batch <= said <= limits.wakeups_a_turn + limits.heal_batch + len(peers)
    node.advance(20)
    assert len(node.told(msg.Walk)) + said // limits.heal_batch == len(peers)


def test_peers_are_told_of_topics_in_steps() -> None:
    node = Node()
    for n in range(MANY):
        node.do(cmd.Subscribe(ClientId(FIRST), ((Kind.CHANNEL, b"%d" % n),)))
    node.see(UP)
    assert len(node.told(msg.Subscribed, to=B)) == STEP
    node.do(cmd.Unsubscribe(ClientId(FIRST), ((Kind.CHANNEL, b"0"), (Kind.CHANNEL, b"2000"))))
    node.advance(MANY // STEP)
    said = node.told(msg.Subscribed, to=B)
    assert [each.is_anew for each in said] == [True, *[False] * (MANY + 1)]
    counts = {each.name: each.count for each in said}
    assert counts == {b"%d" % n: int(n not in (0, 2_000)) for n in range(MANY)}


def test_a_crowd_that_waits_for_one_queue_is_one_question() -> None:
    node = Node(UP)
    for n in range(MANY):
        node.engine.command(ClientId(n), cmd.GetJob((b"q",)))
    node.advance(0)
    node.clear()
    node.see(view(up=(B, C)))
    assert node.told_to(msg.NeedJobs) == [C]


def test_waiting_addjobs_are_looked_at_again_in_steps_after_a_change_of_the_view() -> None:
    node = Node(view(up=(B, C)))
    for n in range(1_500):
        node.engine.command(ClientId(n), cmd.AddJob(b"q", b"", 0, replicate=3))
    node.advance(0)
    gone, confirmed = list(node.state.adding)[-2:]
    node.clear()
    node.see(view(up=(B, C, D)))
    assert len(node.told(msg.ReplJob, to=B)) == STEP
    node.do(cmd.CancelJob((gone,)), client=ClientId(9_999))
    node.hear(B, msg.GotJob(confirmed, BOOT, 1))
    node.advance(1_500 // STEP)
    assert len(node.told(msg.ReplJob, to=B)) == 1_498
    assert len(node.told(msg.ReplJob, to=C)) == 1_499


def test_dummies_that_waited_for_the_last_member_end_in_steps() -> None:
    node = Node(view(up=(B,), has_unmet=True))
    node.advance(2 * NODE_TIMEOUT_MS)
    for n in range(MANY):
        node.engine.command(ClientId(1), cmd.AckJob((job_id(n),)))
        node.engine.receive(B, BOOT, msg.Unknown(job_id(n), BOOT, 1))
    node.advance(0)
    assert len(node.state.dummies) == MANY
    node.see(UP)
    assert len(node.state.dummies) == MANY - STEP
    node.see(view(up=(B,), has_unmet=True))
    node.advance(MANY // STEP)
    assert len(node.state.dummies) == MANY - STEP, "somebody may be elsewhere again"
    node.see(UP)
    node.advance(2 * MANY // STEP)
    assert node.state.dummies == {}


def test_peers_that_are_back_together_are_told_from_one_list_which_takes_a_turn() -> None:
    node = Node(view(cut=(B, C)))
    for n in range(MANY):
        node.engine.receive(B, BOOT, copy(job_id(n), A, B, C))
    node.advance(0)
    node.see(view(up=(B, C)))
    node.clear()
    walks = [peer_of(node.state, peer).walk for peer in (B, C)]
    assert walks[0] is not None
    assert walks[1] is not None
    assert walks[0].ids is None
    assert node.state.sweep is not None
    node.engine.advance(node.now_ms)
    assert node.state.sweep.ids is walks[0].ids is walks[1].ids
    assert walks[0].ids is not None
    assert node.state.fired == node.state.limits.wakeups_a_turn
    assert not node.told(msg.Told)
    node.leap(1)
    assert 0 < len(node.told(msg.Told)) <= 2 * node.state.limits.heal_batch


def test_who_waits_at_a_leaving_node_is_told_in_steps_and_not_once_it_stays() -> None:
    node = with_waits(UP)
    node.see(view(up=(B,), leaving=(A,)))
    assert len(node.replies) == STEP
    assert {type(reply) for _, reply in node.replies} == {Failure}
    node.see(UP)
    node.advance(5)
    assert (len(node.replies), len(node.state.getting)) == (STEP, MANY - STEP)
    node.see(view(up=(B,), leaving=(A,)))
    node.disconnect(ClientId(FIRST + MANY - 1))
    node.advance(2 * MANY // STEP)
    told = sorted(client for client, _ in node.replies)
    assert told == list(range(FIRST, FIRST + MANY - 1))


def test_a_flush_tells_those_who_wait_in_steps_each_once() -> None:
    node = with_waits(UP, 12_000, timeout_ms=5)
    adding = ClientId(20_000)
    node.engine.command(adding, cmd.AddJob(b"q", b"", 0, replicate=2))
    node.clear()
    assert node.do(cmd.FlushAll(), client=ClientId(20_001)) == [Status(b"OK")]
    assert (node.state.getting, node.state.adding, node.state.adding_of) == ({}, {}, {})
    assert len(node.replies) <= 2_001
    node.add(queue=b"7")
    node.leap(10)  # their time-outs come to nothing
    node.advance(20)
    assert not node.state.trash.pools
    told = {client: reply for client, reply in node.replies if client in range(FIRST, 20_001)}
    assert sorted(told) == [*range(FIRST, FIRST + 12_000), adding]
    assert len(node.replies) == len(told) + 2, "each once"
    failure = told.pop(adding)
    assert isinstance(failure, Failure)
    assert failure.code == "NOREPL"
    assert {type(reply) for reply in told.values()} == {NilArray}
    assert node.engine.statistics().registered_jobs == 1


def test_what_a_leaving_node_noted_of_a_job_goes_with_the_job() -> None:
    node = Node(view(up=(B,), leaving=(A,)))
    node.see(view(up=(B, C), leaving=(A,)))
    node.see(UP)
    one, other = node.add(), node.add()
    node.see(view(up=(B,), leaving=(A,)))
    node.advance(NODE_TIMEOUT_MS + 200)
    leaver = node.state.leaver
    assert leaver is not None
    assert {one, other} <= leaver.asked.keys()
    leaver.kept[one] = {B: None}
    node.do(cmd.DelJob((one,)))
    assert (one in leaver.asked, one in leaver.kept, other in leaver.asked) == (False, False, True)
    node.do(cmd.FlushAll())
    assert (leaver.ids, leaver.asked, leaver.carried) == ([], {}, {})


def test_a_leaving_node_lists_its_jobs_in_a_turn_and_hands_few_over_in_each_that_follows() -> None:
    node = Node(view(up=(B,)))
    for _ in range(MANY):
        node.add()
    node.see(view(up=(B,), leaving=(A,)))
    node.advance(NODE_TIMEOUT_MS - 1)
    node.leap(1)
    leaver = node.state.leaver
    assert leaver is not None
    assert (len(leaver.ids), node.told(msg.ReplJob)) == (MANY, [])
    assert node.state.fired == node.state.limits.wakeups_a_turn
    node.leap(0)
    assert 0 < len(node.told(msg.ReplJob)) <= 100
    node.advance(1_000)
    assert len(node.told(msg.ReplJob)) == MANY


def test_a_scan_in_full_names_each_queue_once_without_a_look_at_all_at_its_start() -> None:
    node = Node()
    for n in range(40):
        node.add(queue=b"%d" % n)
    for n in range(0, 40, 4):
        node.get(b"%d" % n)
        free(node.state, node.state.queues[b"%d" % n])  # its job is in work
    (reply,) = node.do(cmd.QScan(0, 3, is_full=True))
    (scan,) = node.state.scans.values()
    assert len(scan.names) == 30 + 40
    assert sum(map(len, scan.seen)) == 3
    found: list[object] = []
    while True:
        assert isinstance(reply, list)
        cursor, rows = reply
        assert isinstance(cursor, bytes)
        assert isinstance(rows, list)
        found += [row[1] for row in rows if isinstance(row, list)]
        if cursor == b"0":
            break
        if (later := node.state.queues.get(b"39")) is not None:
            node.get(b"39")
            free(node.state, later)
        (reply,) = node.do(cmd.QScan(int(cursor), 3, is_full=True))
    assert sorted(map(repr, found)) == sorted(repr(b"%d" % n) for n in range(40))
