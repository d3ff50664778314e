"""Sharing: equal things are one thing, of one kind, and what follows from them is found again, as long as it holds."""

from __future__ import annotations

import attrs
import pytest

from disque.core import commands as cmd
from disque.core import messages as msg
from disque.core.job import NO_CLAIMS, Job
from disque.core.sharing import intern_claims, intern_nodes, join_claim
from disque.core.state import copy_count
from disque.core.willing import note_refusal, willing_peers
from tests.unit.core.builders import BOOT, DAY_MS, A, B, C, Node, job_id, spec, view


def test_no_claims_and_no_nodes_are_different_things() -> None:
    state = Node().state
    assert intern_nodes(state, ()) == ()
    assert intern_claims(state, {}) == {}


def test_jobs_that_take_the_same_steps_share_their_claims() -> None:
    state = Node().state
    claim = (1, 0, True)
    one, two = (join_claim(state, NO_CLAIMS, A, claim) for _ in range(2))
    assert one == {A: claim}
    assert two is one
    assert join_claim(state, one, B, claim) is join_claim(state, two, B, claim)


def test_an_older_claim_changes_nothing() -> None:
    state = Node().state
    ours = join_claim(state, NO_CLAIMS, A, (2, 0, True))
    assert join_claim(state, ours, A, (1, 7, False)) is ours


def test_many_different_claims_dont_fill_memory() -> None:
    state = Node().state
    claims = NO_CLAIMS
    for boot in range(25_000):
        claims = join_claim(state, claims, A, (boot, 0, True))
    assert claims == {A: (24_999, 0, True)}
    assert len(state.joined) + len(state.shared_claims) < 25_000


def test_copies_are_counted_anew_when_a_holder_has_lost_its_store() -> None:
    node = Node(view(A, up=[B, C]))
    node.do(cmd.AddJob(b"q", b"x", 0, replicate=3))
    (said, *_) = node.told(msg.ReplJob)
    node.hear(B, msg.GotJob(said.id, BOOT, 0))
    job = node.job(said.id)
    assert copy_count(node.state, job) == 2
    node.see(view(A, up=[B, C], boots={B: BOOT + 1}))
    assert copy_count(node.state, job) == 1


def test_who_refused_is_asked_again_after_a_while_and_no_longer_a_case_of_its_own() -> None:
    node = Node(view(A, up=[B, C]))
    note_refusal(node.state, B, b"q")
    assert willing_peers(node.state, b"q") == (C,)
    assert willing_peers(node.state, b"other") == (B, C)
    node.advance(node.state.limits.refused_for_ms)
    assert willing_peers(node.state, b"q") == (B, C)
    assert not node.state.refusing


PLAIN = cmd.AddJob(b"q", b"x", 0, replicate=1)


@pytest.mark.parametrize(
    "other",
    [
        attrs.evolve(PLAIN, queue=b"r"),
        attrs.evolve(PLAIN, replicate=None),
        attrs.evolve(PLAIN, retry_ms=0),
        attrs.evolve(PLAIN, retry_ms=7_000),
        attrs.evolve(PLAIN, delay_ms=7_000),
        attrs.evolve(PLAIN, ttl_ms=7_000_000),
        attrs.evolve(PLAIN, priority=7),
        attrs.evolve(PLAIN, max_deliveries=7),
        attrs.evolve(PLAIN, dead_queue=b"r"),
        attrs.evolve(PLAIN, headers={b"a": b"b"}),
    ],
)
def test_a_job_has_of_the_one_before_only_what_is_the_same(other: cmd.AddJob) -> None:
    def added(node: Node, command: cmd.AddJob) -> tuple[object, bytes, bytes]:
        known = {*node.state.jobs}
        node.do(command)
        (job,) = [job for id_, job in node.state.jobs.items() if id_ not in known]
        return attrs.asdict(job.live_spec), job.id[:11], job.id[35:]

    node = Node()
    commands = (PLAIN, other, other, PLAIN)
    assert [added(node, each) for each in commands] == [added(Node(), each) for each in commands]


def _stored(node: Node, n: int) -> dict[str, object]:
    left_out = ("id", "bucket", "ahead", "behind")
    job: Job = node.job(job_id(n))
    return attrs.asdict(job, filter=lambda field, _: field.name not in left_out)


def test_of_copies_alike_the_same_is_stored_as_of_each_alone() -> None:
    claims = {B: (BOOT, 4, True)}
    facts = msg.Facts(holders=(A, B, C), expires_in=DAY_MS, due_in=3, claims=claims)
    said = [msg.ReplJob(job_id(n), spec(), n, b"x", facts) for n in range(4)]
    node = Node(view(A, up=[B, C]))
    node.hear(B, said[0])
    node.advance(5)
    node.hear(B, said[1])
    alone = Node(view(A, up=[B, C]))
    alone.advance(5)
    alone.hear(B, said[1])
    assert _stored(node, 1) == _stored(alone, 1)
    node.do(cmd.DelJob((job_id(0),)))
    for each in (said[2], said[0]):  # a copy after one that has gone makes a larger claim (M3)
        node.hear(B, each)
    first, later = node.job(job_id(1)).claims[A], node.job(job_id(2)).claims[A]
    assert later > first
    assert node.job(job_id(0)).claims[A] == later
