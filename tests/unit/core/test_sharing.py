"""Sharing: equal things are one thing, of one kind, and what follows from them is found again, as long as it holds."""

from __future__ import annotations

from disque.core import commands as cmd
from disque.core import messages as msg
from disque.core.job import NO_CLAIMS
from disque.core.sharing import intern_claims, intern_nodes, join_claim
from disque.core.state import copy_count
from disque.core.willing import note_refusal, willing_peers
from tests.unit.core.builders import BOOT, A, B, C, Node, view


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
