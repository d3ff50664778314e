"""ADDJOB: checks in Disque's order and words, copies before the reply, NOREPL (reference 1.1; M2, M3, M25, B7)."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from cluster.nodeid import NodeId
from disque.core import commands as cmd
from disque.core import messages as msg
from disque.core.delivery import queue_of
from disque.core.job import JobState, Reason
from disque.core.jobid import JobId
from disque.core.jobqueue import PAUSE_IN
from disque.core.ready import ClientId, Failure, Status
from disque.core.state import salted
from tests.unit.core.builders import (
    BOOT,
    CTIME,
    DAY_MS,
    ME,
    NOW,
    OTHER,
    RETRY_MS,
    A,
    B,
    C,
    D,
    E,
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

NO_NODES = Failure("NOREPL", "Not enough reachable nodes for the requested replication level")
TIMED_OUT = Failure("NOREPL", "Timeout reached before replicating to the requested number of nodes")
REMOVED = Failure(
    "NOREPL", "job removed (expired?) before the requested replication level was achieved"
)
LEAVING = Failure("LEAVING", "This node is leaving the cluster, please connect to a different one")
RETRY_0 = Failure(
    "ERR", "With RETRY set to 0 please explicitly set  REPLICATE to 1 (at-most-once delivery)"
)
DELAYED = Failure(
    "ERR", "The specified DELAY is greater than TTL. Job refused since would never be delivered"
)
TOO_LONG = Failure("MAXLEN", "Queue is already longer than the specified MAXLEN count")
PAUSED = Failure("PAUSED", "Queue paused in input, try later")

# Each is wrong in one more way than the next; the first complaint wins (reference 1.1, validation order 3-8).
WRONG = [
    (
        cmd.AddJob(b"q", b"", 0, replicate=9, retry_ms=0, delay_ms=9_000, ttl_ms=9_000, maxlen=1),
        RETRY_0,
    ),
    (cmd.AddJob(b"q", b"", 0, replicate=9, delay_ms=9_000, ttl_ms=9_000, maxlen=1), DELAYED),
    (cmd.AddJob(b"q", b"", 0, replicate=9, maxlen=1), NO_NODES),
    (cmd.AddJob(b"q", b"", 0, replicate=1, maxlen=1), TOO_LONG),
    (cmd.AddJob(b"q", b"", 0, replicate=1), PAUSED),
]


@pytest.mark.parametrize(("command", "complaint"), WRONG, ids=[w.code for _, w in WRONG])
def test_addjob_is_refused_in_disques_order_and_words(
    command: cmd.AddJob, complaint: Failure
) -> None:
    node = Node(view(up=(B,)))
    node.add()
    queue_of(node.state, b"q").pause = PAUSE_IN
    node.clear()
    assert node.do(command) == [complaint]
    assert (node.records, node.said) == ([], [])
    assert len(node.state.jobs) == 1


def test_default_replicate_counts_for_retry_0_too() -> None:
    assert Node(view(up=(B,))).do(cmd.AddJob(b"q", b"", 0, retry_ms=0)) == [RETRY_0]
    (answer,) = Node(view()).do(cmd.AddJob(b"q", b"", 0, retry_ms=0))
    assert isinstance(answer, Status), "a single node keeps one copy by default"


@pytest.mark.parametrize("is_async", [True, False])
def test_explicit_replicate_beyond_what_may_be_had_is_norepl_at_once(is_async: bool) -> None:
    command = cmd.AddJob(b"q", b"", 0, replicate=3, is_async=is_async)
    assert Node(view(up=(B,), suspect=(C,))).do(command) == [NO_NODES]
    assert Node(view(up=(B, C), leaving=(C,))).do(command) == [NO_NODES]


def test_a_leaving_node_queues_no_new_job_here() -> None:
    """B5.1: refused, or held by peers alone."""
    node = Node(view(up=(B,), leaving=(A,)))
    node.do(cmd.AddJob(b"q", b"", 0, replicate=1, retry_ms=RETRY_MS))
    assert node.get() == []
    assert node.state.by_state.queued == 0


@pytest.mark.parametrize("length", [0, 1, 2])
def test_maxlen_refuses_at_the_length_itself(length: int) -> None:
    """U01."""
    node = Node()
    for _ in range(length):
        node.add()
    (answer,) = node.do(cmd.AddJob(b"q", b"", 0, replicate=1, maxlen=2))
    assert (answer == TOO_LONG) == (length >= 2)


def test_maxlen_counts_the_queue_not_what_is_leased() -> None:
    node = Node()
    node.add()
    node.get()
    (answer,) = node.do(cmd.AddJob(b"q", b"", 0, replicate=1, maxlen=1))
    assert isinstance(answer, Status)


@pytest.mark.parametrize(
    ("ttl_ms", "retry_ms"),
    [(DAY_MS, 300_000), (100_000, 10_000), (99_999, 9_000), (9_000, 1_000), (1_000, 1_000)],
)
def test_default_retry_is_a_tenth_of_ttl_in_whole_seconds_from_1_to_300(
    ttl_ms: int, retry_ms: int
) -> None:
    node = Node()
    id_ = node.add(retry_ms=None, ttl_ms=ttl_ms)
    assert node.job(id_).retry_ms == retry_ms


@pytest.mark.parametrize(
    ("peers", "replicate"), [((), 1), ((B,), 2), ((B, C), 3), ((B, C, D, E), 3)]
)
def test_default_replicate_is_three_or_the_size_of_the_cluster(peers: Any, replicate: int) -> None:
    """U26."""
    node = Node(view(up=peers))
    node.do(cmd.AddJob(b"q", b"", 0))
    (job,) = node.state.jobs.values()
    assert (job.live_spec.replicate, job.live_spec.is_explicit) == (replicate, False)
    assert len(node.told_to(msg.ReplJob)) == replicate - 1


# W at the reply (M25)


def add(node: Node, *, client: ClientId = ME, **options: Any) -> JobId:
    """ADDJOB that waits; its id."""
    command = attrs.evolve(cmd.AddJob(b"q", b"body", 0, retry_ms=RETRY_MS), **options)
    assert node.do(command, client=client) == []
    return next(reversed(node.state.adding))


def got(node: Node, peer: Any, id_: JobId) -> None:
    node.hear(peer, msg.GotJob(id_, BOOT, 0))


def test_explicit_replicate_answers_at_the_last_copy_and_then_queues() -> None:
    node = Node(view(up=(B, C)))
    id_ = add(node, replicate=3)
    got(node, B, id_)
    assert (node.answers(), node.get()) == ([], [])
    got(node, C, id_)
    assert node.answers() == [Status(id_)]
    assert [each.id for each in node.get()] == [id_]


def test_second_gotjob_from_same_peer_counts_once() -> None:
    node = Node(view(up=(B, C)))
    id_ = add(node, replicate=3)
    for _ in range(3):
        got(node, B, id_)
    assert node.answers() == []


def test_a_gotjob_of_an_earlier_boot_is_no_copy() -> None:
    """M3, M17: the peer restarted empty since."""
    node = Node(view(up=(B, C)))
    id_ = add(node, replicate=2)
    node.hear(B, msg.GotJob(id_, BOOT - 1, 99))
    assert node.answers() == []
    node.hear(B, msg.GotJob(id_, BOOT, 0))
    assert node.answers() == [Status(id_)]


def test_w13_default_replicate_answers_with_one_dead_node_of_two_or_three() -> None:
    """W-13: at min(3, 1 + reachable willing peers)."""
    (answer,) = Node(view(suspect=(B,))).do(cmd.AddJob(b"q", b"", 0))
    assert isinstance(answer, Status)
    node = Node(view(up=(B,), suspect=(C,)))
    id_ = add(node)
    got(node, B, id_)
    assert node.answers() == [Status(id_)]


@pytest.mark.parametrize("change", ["cut", "leaving", "refused"])
def test_default_w_is_counted_anew_when_a_node_can_no_longer_store(change: str) -> None:
    node = Node(view(up=(B, C)))
    id_ = add(node)
    got(node, B, id_)
    assert node.answers() == []
    if change == "cut":
        node.see(view(up=(B,), cut=(C,)))  # its link broke: unreachable at once
    elif change == "leaving":
        node.see(view(up=(B, C), leaving=(C,)))
    else:
        node.hear(C, msg.Refused(id_, is_queue_only=True))
    assert node.answers() == [Status(id_)]


def test_explicit_replicate_stays_a_promise_when_a_node_is_lost() -> None:
    node = Node(view(up=(B, C)))
    id_ = add(node, replicate=3, timeout_ms=1_000)
    got(node, B, id_)
    node.see(view(up=(B,), suspect=(C,)))
    assert node.answers() == []
    node.advance(1_000)
    assert node.answers() == [TIMED_OUT]


def test_async_answers_at_once_and_sends_the_copies() -> None:
    node = Node(view(up=(B, C)))
    (answer,) = node.do(cmd.AddJob(b"q", b"body", 0, replicate=3, retry_ms=RETRY_MS, is_async=True))
    assert isinstance(answer, Status)
    assert sorted(node.told_to(msg.ReplJob)) == [B, C]
    assert len(node.get()) == 1


def test_holders_are_in_the_log_before_a_copy_leaves() -> None:
    """S4, M2: the record of the same Ready, which is stored before its messages are sent."""
    node = Node(view(up=(B, C, D, E)))
    id_ = add(node, replicate=2)
    targets = node.told_to(msg.ReplJob)
    (record,) = node.records
    assert (record.kind, record.fields[0]) == ("job", id_)
    assert record.fields[3] == tuple(sorted([A, *targets]))
    node.clear()
    node.advance(50)
    (more,) = [each for each in node.records if each.kind == "holders"]
    assert set(node.told_to(msg.ReplJob)) <= set(more.fields[1])  # type: ignore[call-overload]


# Silence and refusal


def asked_at(node: Node, ms: int) -> dict[int, list[Any]]:
    """When REPLJOB was said to whom, in ms after the start."""
    found: dict[int, list[Any]] = {}
    for _ in range(0, ms, 10):
        for peer in node.told_to(msg.ReplJob):
            found.setdefault(node.now_ms - NOW, []).append(peer)
        node.clear()
        node.advance(10)
    return found


def test_one_more_node_after_50_100_200_ms_and_no_more_than_replicate_extra() -> None:
    """B7, D: never a big body to the whole cluster."""
    peers = [NodeId(digit * 40) for digit in "12345678"]
    node = Node(view(up=peers))
    id_ = add(node, replicate=2)
    order = salted(id_, peers)
    told = asked_at(node, 4_000)
    first_asked = {peer: at for at, group in reversed(told.items()) for peer in group}
    assert first_asked == {order[0]: 0, order[1]: 50, order[2]: 150}
    assert list(told) == [0, 50, 150, 350, 750, 1_550, 3_150]  # doubling: the silent ones again


def test_u55_peers_that_are_far_away_cost_no_surplus_copies() -> None:
    """A round trip of 101 ms: after a first surprise nobody else is asked, until answers are quick again."""
    peers = [NodeId(digit * 40) for digit in "1234"]
    node = Node(view(up=peers))
    surplus = []
    for round_ in range(40):
        node.clear()
        id_ = add(node, replicate=2)
        node.advance(101 if round_ < 20 else 1)
        asked = list(dict.fromkeys(node.told_to(msg.ReplJob)))
        for peer in asked:
            got(node, peer, id_)
        assert node.answers() == [Status(id_)]
        surplus.append(len(asked) - 1)
    assert sum(surplus) <= len(peers), "one surprise a peer"
    for _ in range(40):
        id_ = add(node, replicate=2)
        node.advance(1)
        for peer in node.told_to(msg.ReplJob):
            got(node, peer, id_)
        node.clear()
    add(node, replicate=2)
    first, second = list(asked_at(node, 120))[:2]
    assert second - first == 50, "a silent node is noticed as early as ever"


def stall(node: Node, ms: int) -> None:
    """The node does nothing for so long: what is due meanwhile comes late."""
    node.now_ms += ms
    node.advance(0)


def test_u55_a_peer_that_confirms_other_copies_is_not_silent() -> None:
    """At load: what it was told comes in order, so the copies behind those will come, too."""
    node = Node(view(up=(B, C)))
    of_b: list[JobId] = []
    while len(of_b) < 4:
        node.clear()
        id_ = add(node, client=ClientId(10 + len(of_b)), replicate=2)
        if node.told_to(msg.ReplJob) == [B]:
            of_b.append(id_)
        else:
            got(node, C, id_)
    node.clear()
    for id_ in of_b[:3]:
        node.advance(40)
        got(node, B, id_)
    assert node.told_to(msg.ReplJob) == []
    node.advance(49)
    assert node.told_to(msg.ReplJob) == []
    node.advance(1)
    assert node.told_to(msg.ReplJob) == [B, C], "silent for 50 ms: once more, and one more node"


def test_u55_nobody_is_silent_to_a_node_that_was_too_busy_to_listen() -> None:
    node = Node(view(up=(B, C)))
    id_ = add(node, replicate=2)
    (first,) = node.told_to(msg.ReplJob)
    node.clear()
    stall(node, 300)
    assert node.told_to(msg.ReplJob) == []
    node.advance(49)
    got(node, first, id_)
    assert node.answers() == [Status(id_)]
    node.advance(1_000)
    assert node.told_to(msg.ReplJob) == []


@pytest.mark.parametrize("is_late", [True, False])
def test_u55_a_node_that_never_comes_to_rest_asks_another_all_the_same(*, is_late: bool) -> None:
    """Its timers fire late each time, or the peer confirms other copies for ever."""
    node = Node(view(up=(B, C)))
    id_ = add(node, replicate=2)
    (first,) = node.told_to(msg.ReplJob)
    (other,) = {B, C} - {first}
    for number in range(8):
        if is_late:
            stall(node, 80)
        else:
            got(node, first, add(node, client=ClientId(10 + number), replicate=2))
            node.advance(80)
    assert node.now_ms - NOW == 640
    assert id_ in [each.id for each in node.told(msg.ReplJob, to=other)]


def test_a_node_that_answers_late_still_counts() -> None:
    node = Node(view(up=(B, C)))
    id_ = add(node, replicate=2)
    (first,) = node.told_to(msg.ReplJob)
    node.advance(700)
    got(node, first, id_)
    assert node.answers() == [Status(id_)]


def test_f2_who_refused_is_left_alone_and_another_is_asked() -> None:
    node = Node(view(up=(B, C)))
    id_ = add(node, replicate=2)
    (first,) = node.told_to(msg.ReplJob)
    second = C if first == B else B
    node.clear()
    for _ in range(5):
        node.hear(first, msg.Refused(id_, is_queue_only=False))
    node.advance(25_000)
    assert set(node.told_to(msg.ReplJob)) == {second}
    node.advance(10_000)
    assert first in node.told_to(msg.ReplJob), "willing again after 30 s"


def test_f2_who_heals_is_asked_again_at_once() -> None:
    # its disk was full, and takes writes again
    node = Node(view(up=(B, C)))
    node.hear(C, msg.Refused(add(node, replicate=3), is_queue_only=False))
    node.clear()
    add(node, replicate=3)
    assert C not in node.told_to(msg.ReplJob)
    node.hear(C, msg.Heal(BOOT, 2))
    node.clear()
    add(node, replicate=3)
    assert C in node.told_to(msg.ReplJob)


def test_f2_two_nodes_of_which_one_refuses_fall_silent() -> None:
    world = World.of(A, B)
    queue_of(world.nodes[B].state, b"q").pause = PAUSE_IN
    world.nodes[A].do(cmd.AddJob(b"q", b"", 500, replicate=2))
    world.settle()
    assert [type(each) for _, _, each in world.sent if not isinstance(each, msg.Heal | msg.Walk | msg.Walked)] == [
        msg.ReplJob, msg.Refused,
    ]  # fmt: skip


@pytest.mark.parametrize("why", ["leaving", "paused"])
def test_a_node_that_keeps_no_copy_says_refused(why: str) -> None:
    """M25, W-21: answered, not dropped."""
    node = Node(view(up=(B,), leaving=(A,) if why == "leaving" else ()))
    if why == "paused":
        queue_of(node.state, b"q").pause = PAUSE_IN
    node.hear(B, copy(job_id(1), A, B))
    assert node.told(msg.Refused, to=B) == [msg.Refused(job_id(1), is_queue_only=why == "paused")]
    assert not node.state.jobs


def test_w21_a_paused_node_confirms_a_copy_that_it_has() -> None:
    node = Node(view(up=(B,)))
    node.hear(B, copy(job_id(1), A, B))
    queue_of(node.state, b"q").pause = PAUSE_IN
    node.clear()
    node.hear(B, copy(job_id(1), A, B))
    assert len(node.told(msg.GotJob, to=B)) == 1


def test_w39_a_done_entry_answers_repljob_with_the_end() -> None:
    for kind in ("done", "dummy", "tombstone", "mark"):
        node, id_ = node_with(kind, view(up=(B, C)))
        node.hear(B, copy(id_, A, B))
        assert not node.told(msg.GotJob)
        assert len(node.told(msg.SetAck, to=B)) + len(node.told(msg.DelJob, to=B)) == 1
        assert state_name(node, id_) == kind


def test_another_spec_under_a_known_id_is_dropped_and_counted() -> None:
    """M1."""
    node = Node(view(up=(B,)))
    node.hear(B, copy(job_id(1), A, B))
    before = node.job(job_id(1)).spec
    node.clear()
    node.hear(B, copy(job_id(1), A, B, C, spec=spec(queue=b"other")))
    assert (node.said, node.job(job_id(1)).spec, node.job(job_id(1)).holders) == (
        [],
        before,
        (A, B),
    )
    assert node.state.counts.spec_conflicts == 1


def test_an_expired_copy_is_refused() -> None:
    """M12."""
    node = Node(view(up=(B,)))
    node.hear(B, copy(job_id(1), A, B, facts=facts(A, B, expires_in=0)))
    assert node.told(msg.Unknown, to=B)
    assert not node.state.jobs


def test_a_copy_keeps_the_rest_of_ttl_and_delay() -> None:
    """M11, M12: no rounding, no second more a hop."""
    node = Node(view(up=(B,)))
    node.hear(B, copy(job_id(1), A, B, facts=facts(A, B, expires_in=12_345, due_in=678)))
    job = node.job(job_id(1))
    assert (job.expires_at - NOW, job.not_before - NOW) == (12_345, 678)


# Bad ends (B7)


def test_timeout_is_norepl_and_every_holder_hears_the_end() -> None:
    node = Node(view(up=(B, C)))
    id_ = add(node, replicate=3, timeout_ms=500)
    got(node, B, id_)
    node.clear()
    node.advance(499)
    assert node.answers() == []
    node.advance(1)
    assert node.answers() == [TIMED_OUT]
    job = node.job(id_)
    assert (job.state, job.reason, job.body) == (JobState.DONE, Reason.NOREPL, None)
    assert set(node.told_to(msg.SetAck)) == {B, C}


def test_timeout_0_waits_for_ever() -> None:
    node = Node(view(up=(B,)))
    add(node, replicate=2, timeout_ms=0, ttl_ms=DAY_MS)
    node.advance(60_000)
    assert node.answers() == []


def test_expiry_while_waiting_is_norepl_in_disques_words() -> None:
    node = Node(view(up=(B,)))
    id_ = add(node, replicate=2, ttl_ms=2_000)
    node.advance(2_000)
    assert node.answers() == [REMOVED]
    assert id_ not in node.state.jobs


def test_deljob_of_a_waiting_job_ends_its_addjob() -> None:
    node = Node(view(up=(B,)))
    id_ = add(node, replicate=2)
    assert node.do(cmd.DelJob((id_,)), client=OTHER) == [1]
    assert node.answers() == [REMOVED]


def test_a_client_that_goes_leaves_nothing_dangling() -> None:
    node = Node(view(up=(B,)))
    id_ = add(node, replicate=2)
    node.disconnect(ME)
    assert (node.answers(), node.state.adding, node.state.adding_of) == ([], {}, {})
    assert node.job(id_).reason is Reason.NOREPL
    got(node, B, id_)
    assert node.told(msg.SetAck, to=B), "a late copy hears of the end"
    assert node.answers() == []


def test_flushall_ends_every_wait_in_disques_words() -> None:
    node = Node(view(up=(B,)))
    add(node, replicate=2)
    node.do(cmd.GetJob((b"other",)), client=OTHER)
    node.do(cmd.FlushAll(), client=ClientId(3))
    assert REMOVED in node.answers(ME)
    assert (node.state.jobs, node.state.adding, node.state.getting) == ({}, {}, {})


def test_w4_ack_while_addjob_waits_is_success() -> None:
    """W-4, B2.1: the client isn't left behind."""
    node = Node(view(up=(B,)))
    id_ = add(node, replicate=2)
    assert node.do(cmd.AckJob((id_,)), client=OTHER) == [1]
    assert node.answers() == [Status(id_)]
    assert node.state.adding == {}


@pytest.mark.parametrize("kind", ["leased", "queued-dispatched", "setack", "yourjobs"])
def test_w5_work_elsewhere_while_addjob_waits_is_success(kind: str) -> None:
    """B7.3, U30."""
    node = Node(view(up=(B, C)))
    id_ = add(node, replicate=3)
    spec_ = node.job(id_).live_spec
    worked = facts(A, B, C, dispatches={B: 1}, leases={B: (NOW, 5_000)})
    said: dict[str, msg.Message] = {
        "leased": msg.Leased(id_, worked),
        "queued-dispatched": msg.Queued(id_, facts(A, B, C, is_queued=True, dispatches={B: 1})),
        "setack": msg.SetAck(id_, Reason.ACKED, (A, B), (B,), DAY_MS),
        "yourjobs": msg.YourJobs(id_, spec_, CTIME, b"body", worked),
    }
    node.hear(B, said[kind])
    assert node.answers() == [Status(id_)]
    assert node.state.adding == {}


def test_b7_a_place_in_a_peers_queue_is_no_success_of_a_waiting_addjob() -> None:
    """A replica whose ask was lost queues the job and gives it to a waiting consumer here (simulator, seed 136)."""
    node = Node(view(up=(B, C)))
    id_ = add(node, replicate=3)
    spec_ = node.job(id_).live_spec
    node.hear(B, msg.YourJobs(id_, spec_, CTIME, b"body", facts(A, B, C)))
    assert node.answers() == []
    assert [each.id for each in node.told(msg.Waiting, to=B)] == [id_]


def test_setack_norepl_never_meets_an_id_that_was_answered() -> None:
    """S8, B7.2: once C >= W the reply is out and nothing ends it as NOREPL."""
    node = Node(view(up=(B,)))
    id_ = add(node, replicate=2, timeout_ms=500)
    got(node, B, id_)
    node.disconnect(ME)
    node.advance(5_000)
    assert node.job(id_).reason is None


def test_a_replica_doesnt_deliver_while_the_origin_says_waiting() -> None:
    """B1.4, B7.1: first due at not_before + RETRY, and then it asks."""
    node = Node(view(up=(B,)))
    id_ = job_id(1)
    node.hear(B, copy(id_, A, B))
    node.clear()
    node.advance(RETRY_MS + 600)
    assert node.told_to(msg.WillQueue) in ([], [B])
    for _ in range(5):
        node.hear(B, msg.Waiting(id_, 1_000))
        node.advance(400)
        assert node.get() == []


def test_origin_that_waits_answers_willqueue_with_the_rest_of_its_timeout() -> None:
    node = Node(view(up=(B,)))
    id_ = add(node, replicate=2, timeout_ms=9_000)
    node.hear(C, msg.WillQueue(id_, facts(A, B)))
    node.hear(B, msg.WillQueue(id_, facts(A, B)))
    assert node.told(msg.Waiting) == [msg.Waiting(id_, 9_000)]


def test_ids_are_unique_and_ctimes_rise_within_a_millisecond() -> None:
    node = Node()
    ids = [node.add() for _ in range(50)]
    assert len(set(ids)) == 50
    times = [node.job(each).ctime for each in ids]
    assert times == sorted(set(times))
