"""Back-off and reachability."""

from __future__ import annotations

import random

import pytest

from cluster.nodeid import NodeId
from cluster.peer import Address, Backoff, Peer
from cluster.ready import ConnId


def test_back_off_never_waits_longer_than_half_a_node_timeout():
    backoff = Backoff(0)
    for _ in range(10):
        backoff.fail(0, 600, random.Random(1))
        assert 50 <= backoff.due_at_ms <= 300


def test_back_off_begins_anew_after_a_reset():
    backoff = Backoff(0)
    for _ in range(5):
        backoff.fail(0, 60_000, random.Random(1))
    backoff.reset(7)
    assert backoff.due_at_ms == 7
    backoff.fail(7, 60_000, random.Random(1))
    assert backoff.due_at_ms <= 107


@pytest.mark.parametrize(
    ("link", "inbound", "is_suspect", "is_reachable"),
    [
        (1, 2, False, True),
        (1, 2, True, False),
        (None, 2, False, False),
        (1, None, False, False),
    ],
)
def test_reachable_needs_both_directions_and_no_suspicion(link, inbound, is_suspect, is_reachable):
    peer = Peer(NodeId("a" * 40), Address("h", 1, 2), Backoff(0), heard_at_ms=0)
    peer.link = None if link is None else ConnId(link)
    peer.inbound = None if inbound is None else ConnId(inbound)
    peer.is_suspect = is_suspect
    assert peer.is_reachable is is_reachable
