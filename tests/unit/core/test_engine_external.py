"""ADDJOB where no copy is kept: at a leaving node, or over 75 % of maxmemory (reference 6.4; B6.9, W-6, W-15, W-40)."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from disque.core import commands as cmd
from disque.core import messages as msg
from disque.core.job import Reason
from disque.core.jobid import JobId
from disque.core.limits import Limits
from disque.core.memory import BASE_BYTES
from disque.core.ready import ClientId, Failure, Reply, Status
from tests.unit.core.builders import (
    BOOT,
    ME,
    OTHER,
    RETRY_MS,
    A,
    B,
    C,
    Node,
    World,
    state_name,
    view,
)

TIGHT = Limits(maxmemory_bytes=BASE_BYTES * 100 // 80)  # a node without jobs is at 80 %
PLAIN = "Not enough reachable nodes for the requested replication level"
WHY = PLAIN + ", since I'm unable to hold a copy of the message for the following reason: "
TIMED_OUT = Failure("NOREPL", "Timeout reached before replicating to the requested number of nodes")
REASONS = {"leaving": "I'm leaving the cluster", "tight": "I'm out of memory"}
WHYS = pytest.mark.parametrize("why", sorted(REASONS))


def outside(why: str, *, up: Any = (B, C), **seen: Any) -> Node:
    """A node that keeps no new jobs itself."""
    if why == "leaving":
        return Node(view(up=up, leaving=(A,), **seen))
    return Node(view(up=up, **seen), limits=TIGHT)


def world(why: str) -> World:
    """A keeps nothing, B and C do."""
    all_ = World.of(A, B, C)
    if why == "tight":
        all_.nodes[A] = outside(why)
        all_.settle()
    else:
        for at in (A, B, C):
            up = [n for n in (A, B, C) if n != at]
            all_.nodes[at].see(view(at, up=up, leaving=(A,)))
        all_.settle()
    return all_


def add(replicate: int | None = 1, **options: Any) -> cmd.AddJob:
    return attrs.evolve(cmd.AddJob(b"q", b"body", 0, replicate, retry_ms=RETRY_MS), **options)


def had(all_: World, command: cmd.Command, *, at: Any = A) -> list[Reply]:
    node = all_.nodes[at]
    before = len(node.replies)
    node.do(command)
    all_.settle()
    return [reply for to, reply in node.replies[before:] if to == ME]


def queued(all_: World) -> list[int]:
    return [len(node.state.queues.get(b"q", ())) for node in all_.nodes.values()]


def waiting(node: Node) -> JobId:
    (id_,) = node.state.adding
    return id_


# At least once


@WHYS
@pytest.mark.parametrize(("replicate", "copies"), [(1, 1), (2, 2), (None, 2)])
def test_peers_hold_the_copies_one_queues_the_job_and_nothing_stays_here(
    why: str, replicate: int | None, copies: int
) -> None:
    all_ = world(why)
    (said,) = had(all_, add(replicate))
    assert isinstance(said, Status)
    assert not all_.nodes[A].state.jobs
    held = [at for at in (B, C) if JobId(said.text) in all_.nodes[at].state.jobs]
    assert (len(held), sum(queued(all_)), queued(all_)[0]) == (copies, 1, 0)
    for at in held:
        claims = all_.nodes[at].job(JobId(said.text)).claims
        assert not claims.get(A, (0, 0, False))[2], "nobody counts on a copy here"


@WHYS
def test_the_client_is_answered_after_the_copies_not_before(why: str) -> None:
    node = outside(why)
    assert node.do(add(2)) == []
    id_ = waiting(node)
    node.hear(B, msg.GotJob(id_, BOOT, 1))
    assert node.answers() == []
    node.hear(C, msg.GotJob(id_, BOOT, 1))
    assert node.answers() == [Status(id_)]
    assert len(node.told(msg.YourJobs)) == 1


@WHYS
def test_who_was_asked_first_and_ends_the_job_hears_of_those_asked_later(why: str) -> None:
    """M21: nothing stays here but the holders; if none was added later, not even those."""
    node = outside(why)
    node.do(add(1))
    id_ = waiting(node)
    (first,) = node.told_to(msg.ReplJob)
    later = C if first == B else B
    node.advance(100)
    node.hear(later, msg.GotJob(id_, BOOT, 1))
    assert node.answers() == [Status(id_)]
    node.hear(first, msg.SetAck(id_, Reason.ACKED, tuple(sorted((A, first))), (first,), 60_000))
    assert node.told(msg.GotAck, to=first)[0].holders == (A, B, C)

    node.do(add(2))
    id_ = waiting(node)
    for peer in (B, C):
        node.hear(peer, msg.GotJob(id_, BOOT, 1))
    assert not node.state.absences


@WHYS
def test_a_lost_hand_over_costs_a_retry_no_more(why: str) -> None:
    """W-40."""
    all_ = world(why)
    all_.lose = lambda _from, _to, said: isinstance(said, msg.YourJobs)
    (said,) = had(all_, add(2))
    assert isinstance(said, Status)
    assert queued(all_) == [0, 0, 0]
    all_.lose = None
    all_.advance(RETRY_MS + 1_500)
    assert sum(queued(all_)) == 1


@WHYS
def test_delay_holds_where_the_job_is_kept(why: str) -> None:
    all_ = world(why)
    had(all_, add(2, delay_ms=20_000))
    all_.advance(19_000)
    assert sum(queued(all_)) == 0
    all_.advance(3_000)
    assert sum(queued(all_)) == 1


@WHYS
def test_async_is_answered_at_once_and_stays_until_a_peer_has_a_copy(why: str) -> None:
    node = outside(why)
    (said,) = node.do(add(2, is_async=True))
    assert isinstance(said, Status)
    id_ = JobId(said.text)
    assert id_ in node.state.jobs
    assert len(node.told(msg.ReplJob)) == 2
    node.hear(B, msg.GotJob(id_, BOOT, 1))
    assert id_ not in node.state.jobs
    assert node.told_to(msg.YourJobs) == [B]
    assert node.answers() == [said], "once"


@WHYS
def test_deljob_of_an_answered_async_is_no_norepl_for_the_copies_of_peers(why: str) -> None:
    all_ = world(why)
    all_.lose = lambda _from, _to, said: isinstance(said, msg.GotJob)
    (said,) = had(all_, add(1, is_async=True))
    assert isinstance(said, Status)
    id_ = JobId(said.text)
    assert had(all_, cmd.DelJob((id_,))) == [1]
    all_.lose = None
    all_.advance(RETRY_MS + 1_000)
    assert not all_.nodes[A].state.jobs
    assert sum(queued(all_)) == 1


@WHYS
def test_async_whose_copies_were_lost_says_them_again(why: str) -> None:
    all_ = world(why)
    all_.lose = lambda _from, _to, said: isinstance(said, msg.ReplJob)
    had(all_, add(1, is_async=True))
    all_.advance(500)
    all_.lose = None
    all_.advance(3_000)
    assert sum(queued(all_)) == 1
    assert not all_.nodes[A].state.jobs


@WHYS
def test_a_client_that_goes_ends_it_and_no_copy_lives_on(why: str) -> None:
    node = outside(why)
    node.do(add(2))
    id_ = waiting(node)
    node.hear(B, msg.GotJob(id_, BOOT, 1))
    node.disconnect()
    assert not node.state.adding
    assert node.job(id_).is_done
    assert B in node.told_to(msg.SetAck)


@WHYS
def test_a_time_out_is_norepl_and_the_copies_are_told(why: str) -> None:
    node = outside(why)
    node.do(add(2, timeout_ms=1_000))
    id_ = waiting(node)
    node.hear(B, msg.GotJob(id_, BOOT, 1))
    node.advance(1_000)
    assert node.answers() == [TIMED_OUT]
    assert B in node.told_to(msg.SetAck)


@WHYS
def test_a_refusal_asks_the_next_peer(why: str) -> None:
    node = outside(why)
    node.do(add(1))
    id_ = waiting(node)
    (first,) = node.told_to(msg.ReplJob)
    node.hear(first, msg.Refused(id_, False))
    assert sorted(node.told_to(msg.ReplJob)) == [B, C]


@WHYS
def test_a_job_delivered_by_a_peer_while_the_client_waits_is_a_success(why: str) -> None:
    """B7.3."""
    node = outside(why)
    node.do(add(2))
    id_ = waiting(node)
    (said, *_) = node.told(msg.ReplJob)
    dispatched = attrs.evolve(said.facts, dispatches={B: 1}, leases={B: (5, 5_000)})
    node.hear(B, msg.Leased(id_, dispatched))
    assert node.answers() == [Status(id_)]


# What is refused, and how


@pytest.mark.parametrize(
    ("up", "replicate", "text"),
    [((), None, "why"), ((), 1, "why"), ((), 2, "plain"), ((B,), 2, "why"), ((B,), 3, "plain"), ((B, C), 3, "why")],
)  # fmt: skip
def test_norepl_says_the_reason_if_exactly_one_node_is_missing(
    up: Any, replicate: int | None, text: str
) -> None:
    node = outside("leaving", up=up)
    wanted = PLAIN if text == "plain" else WHY + REASONS["leaving"]
    assert node.do(add(replicate)) == [Failure("NOREPL", wanted)]
    assert not node.state.jobs


def test_a_suspect_or_leaving_peer_is_no_node_to_keep_it() -> None:
    node = Node(view(up=(C,), suspect=(B,), leaving=(A, C)))
    assert node.do(add(1)) == [Failure("NOREPL", WHY + REASONS["leaving"])]


@pytest.mark.parametrize("replicate", [None, 1])
@pytest.mark.parametrize("retry_ms", [RETRY_MS, 0])
def test_a_tight_node_keeps_what_no_peer_can(replicate: int | None, retry_ms: int) -> None:
    """Over 75 % isn't full: a lone node uses all of its memory, up to OOM."""
    node = outside("tight", up=())
    (said,) = node.do(add(replicate, retry_ms=retry_ms))
    assert isinstance(said, Status)
    assert JobId(said.text) in node.state.jobs


def test_a_tight_node_keeps_a_job_after_all_if_its_peers_refuse() -> None:
    node = outside("tight")
    node.do(add(None))
    id_ = waiting(node)
    for peer in (B, C):
        node.hear(peer, msg.Refused(id_, False))
    assert node.answers() == [Status(id_)]
    assert [each.id for each in node.get()] == [id_]


def test_a_tight_node_keeps_an_at_most_once_job_that_every_peer_refuses() -> None:
    node = outside("tight")
    node.do(once())
    for at in range(2):
        move, peer = node.told(msg.Move)[at], node.told_to(msg.Move)[at]
        node.hear(peer, msg.GotMove(BOOT, BOOT, move.n, False))
    assert node.answers() == [Status(node.told(msg.Move)[0].id)]
    assert len(node.get()) == 1


def test_leaving_is_the_reason_if_both_hold() -> None:
    node = Node(view(leaving=(A,)), limits=TIGHT)
    assert node.do(add(1)) == [Failure("NOREPL", WHY + REASONS["leaving"])]


@WHYS
def test_maxlen_and_paused_are_checked_here_too(why: str) -> None:
    node = outside(why)
    node.do(cmd.Pause(b"q", 1))
    assert node.do(add(1), client=OTHER) == [Failure("PAUSED", "Queue paused in input, try later")]


# At most once (B6.9)


def once(**options: Any) -> cmd.AddJob:
    return add(1, retry_ms=0, **options)


@WHYS
def test_w6_retry_0_is_moved_to_one_peer_and_answered_after_its_yes(why: str) -> None:
    all_ = world(why)
    (said,) = had(all_, once())
    assert isinstance(said, Status)
    assert sum(queued(all_)) == 1
    assert not all_.nodes[A].state.jobs
    ids = [d.id for at in (B, C) for d in all_.nodes[at].get(count=9)]
    assert ids == [said.text]


@WHYS
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("delay_ms", [0, 20_000])
def test_w6_async_and_delay_variants_are_delivered_once(
    why: str, is_async: bool, delay_ms: int
) -> None:
    all_ = world(why)
    had(all_, once(is_async=is_async, delay_ms=delay_ms))
    all_.advance(max(delay_ms - 1_000, 0), step_ms=500)
    assert sum(queued(all_)) == (0 if delay_ms else 1)
    all_.advance(2_000)
    ids = [d.id for at in (B, C) for d in all_.nodes[at].get(count=9)]
    all_.advance(60_000, step_ms=500)
    ids += [d.id for at in (A, B, C) for d in all_.nodes[at].get(count=9)]
    assert len(ids) == 1


@WHYS
def test_only_one_peer_is_asked_however_long_it_is_silent(why: str) -> None:
    node = outside(why)
    node.do(once(timeout_ms=20_000))
    node.advance(15_000)
    assert len(node.told(msg.Move)) == 1
    assert len(node.told(msg.AskMove)) >= 2, "asked about, never sent again (B6.5)"


def test_no_tries_the_next_peer_and_the_last_no_is_norepl_for_certain() -> None:
    node = outside("leaving")
    node.do(once())
    (first,) = node.told_to(msg.Move)
    (move,) = node.told(msg.Move)
    node.hear(first, msg.GotMove(BOOT, BOOT, move.n, False))
    assert sorted(node.told_to(msg.Move)) == [B, C]
    second = node.told_to(msg.Move)[1]
    node.hear(second, msg.GotMove(BOOT, BOOT, node.told(msg.Move)[1].n, False))
    assert node.answers() == [Failure("NOREPL", WHY + REASONS["leaving"])]
    assert not node.state.jobs


@WHYS
@pytest.mark.parametrize("is_taken", [True, False])
def test_silence_until_the_time_out_is_norepl_and_the_job_is_in_doubt(
    why: str, is_taken: bool
) -> None:
    node = outside(why)
    node.do(once(timeout_ms=1_000))
    (peer,) = node.told_to(msg.Move)
    (move,) = node.told(msg.Move)
    node.advance(1_000)
    assert node.answers() == [TIMED_OUT]
    assert state_name(node, move.id) == "moving"
    node.hear(peer, msg.GotMove(BOOT, BOOT, move.n, is_taken))
    assert node.answers() == [TIMED_OUT], "answered once"
    assert (move.id in node.state.jobs) == (not is_taken)


def test_a_job_that_comes_back_before_its_move_was_confirmed_was_taken() -> None:
    node = outside("tight")
    node.do(once())
    (peer,) = node.told_to(msg.Move)
    (move,) = node.told(msg.Move)
    node.hear(peer, attrs.evolve(move, source_boot=BOOT, boot=BOOT, n=1))
    assert node.answers() == [Status(move.id)]
    assert [each.id for each in node.get()] == [move.id]


@WHYS
@pytest.mark.parametrize("is_forgotten", [True, False])
def test_a_move_that_nobody_can_tell_of_any_more_is_norepl_at_once(
    why: str, *, is_forgotten: bool
) -> None:
    """B6.6, S14: what may be evicted from now on mustn't be waited for."""
    node = outside(why)
    node.state.limits = attrs.evolve(node.state.limits, spent_max=1)
    for client in (ME, OTHER):
        node.do(once(), client=client)
    leaving = (A,) if why == "leaving" else ()
    if is_forgotten:
        node.see(view(leaving=leaving, forgotten=(B, C)))
    else:
        node.see(view(up=(B, C), leaving=leaving, boots={B: BOOT + 1, C: BOOT + 1}))
    for client in (ME, OTHER):
        (answer,) = node.answers(client)
        assert isinstance(answer, Failure)
        assert answer.code == "NOREPL"
    assert node.engine.statistics().moves_in_doubt == 2
    assert len(node.state.jobs) == len(node.state.spent) == 1


@WHYS
def test_a_disconnect_while_the_move_flies_tells_the_receiver(why: str) -> None:
    """Finding 8: S3."""
    node = outside(why)
    node.do(once())
    (peer,) = node.told_to(msg.Move)
    (move,) = node.told(msg.Move)
    node.disconnect()
    assert node.told_to(msg.SetAck) == [peer]
    assert node.job(move.id).is_done


def test_nobody_to_take_it_is_norepl_at_once_with_the_reason() -> None:
    assert outside("leaving", up=()).do(once()) == [Failure("NOREPL", WHY + REASONS["leaving"])]


def test_above_75_percent_copies_of_others_are_refused_and_below_taken() -> None:
    for limits, kind in ((TIGHT, msg.Refused), (Limits(maxmemory_bytes=8 << 20), msg.GotJob)):
        node = Node(view(up=(B,)), limits=limits)
        other = Node(view(B, up=(A,)))
        other.do(add(2))
        (said,) = other.told(msg.ReplJob)
        node.hear(B, said)
        assert len(node.told(kind)) == 1


def test_at_most_once_stays_at_a_tight_node_when_no_peer_can_take_one_more_move() -> None:
    """The bound of open moves is no lack of nodes: the job is kept, as any that peers refuse."""
    node = Node(view(up=(B, C)), limits=attrs.evolve(TIGHT, moves_open_max=1))
    once = add(retry_ms=0)
    for client in (OTHER, ClientId(77)):
        assert node.do(once, client=client) == [], "B and C have one open move each"
    (said,) = node.do(once)
    assert isinstance(said, Status)
    assert state_name(node, JobId(said.text)) == "queued"
