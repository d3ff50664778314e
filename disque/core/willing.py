"""Which peers take copies now: those that can be reached, don't leave, and haven't said no lately (M25)."""

from __future__ import annotations

from cluster.nodeid import NodeId
from disque.core.state import State, peer_of


def is_willing(state: State, node: NodeId, queue: bytes) -> bool:
    """True if a copy may be offered to this peer: reachable, not leaving, no refusal lately."""
    if node not in state.staying:
        return False
    if node not in state.refusing:
        return True
    refused = peer_of(state, node).refused
    return max(refused.get(None, 0), refused.get(queue, 0)) <= state.now_ms


def willing_peers(state: State, queue: bytes) -> tuple[NodeId, ...]:
    """All peers to which a copy may be offered, sorted."""
    refusing = state.refusing
    while refusing and next(iter(refusing.values())) <= state.now_ms:
        del refusing[next(iter(refusing))]
    if not refusing:
        return state.staying
    return tuple([node for node in state.staying if is_willing(state, node, queue)])


_REFUSALS_MAX = 1_000


def note_refusal(state: State, node: NodeId, queue: bytes | None) -> None:
    """A peer takes no copies now, of one queue or (None) of any (M25)."""
    until = state.now_ms + state.limits.refused_for_ms
    state.refusing.pop(node, None)
    state.refusing[node] = until
    refused = peer_of(state, node).refused
    refused.pop(queue, None)
    refused[queue] = until
    if len(refused) > _REFUSALS_MAX:
        del refused[next(iter(refused))]


def forget_refusals(state: State, node: NodeId) -> None:
    """A peer begins anew, as one whose disk takes writes again: what it takes now it says when it is asked."""
    if state.refusing.pop(node, None) is not None:
        peer_of(state, node).refused.clear()
