"""Suspicion: from silence and others' reports to PFAIL and FAIL, and back at the first word."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster import failure, messages
from cluster.messages import FAILED, NOADDR, SUSPECT, GossipEntry
from cluster.peer import Address, Peer

if TYPE_CHECKING:
    from cluster.nodeid import NodeId
    from cluster.state import State


def heard(state: State, peer: Peer) -> None:
    """A peer spoke: whatever was thought of it, it is there."""
    peer.heard_at_ms = state.now_ms
    if (peer.is_suspect or peer.is_failed) and peer.suspects_gone():
        state.note("info", "peer_back", id=peer.id)
        state.changed(file=True)


def report(state: State, teller: Peer, peer: Peer, entry: GossipEntry) -> None:
    """What another node says of a peer: missed or not, and, if we miss it, where else it may be."""
    if peer is teller:
        return
    if entry.flags & (SUSPECT | FAILED):
        peer.reports[teller.id] = state.now_ms
        judge(state, peer)
        return
    peer.reports.pop(teller.id, None)
    address = Address(entry.host, entry.port, entry.bus_port)
    is_elsewhere = address != peer.address and address.is_dialable
    if is_elsewhere and peer.link is None and not entry.flags & NOADDR:
        if peer.is_suspect or peer.is_ghost:
            peer.alternate = address


def judge(state: State, peer: Peer) -> None:
    """Suspect and missed by a majority: failed, and tell everybody."""
    if not peer.is_suspect or peer.is_failed:
        return
    size = 1 + len(state.peers)
    if failure.is_failed(peer.reports, state.now_ms, state.node_timeout_ms, size):
        fail(state, peer, by=state.identity.id)
        for other in state.peers.values():
            if other is not peer:
                state.send(other, messages.Fail(peer.id))


def fail(state: State, peer: Peer, *, by: NodeId) -> None:
    """A majority misses this peer."""
    peer.is_suspect = peer.is_failed = True
    state.note("warning", "peer_failed", id=peer.id, by=by)
    state.changed(file=True)


def believe_failed(state: State, teller: Peer, node: NodeId) -> None:
    """Another node says that a majority misses `node`: believed unless we hear it ourselves."""
    peer = state.peers.get(node)
    if peer is None or peer is teller or peer.is_failed:
        return
    if not failure.is_hearing(state.now_ms, peer.heard_at_ms, state.node_timeout_ms):
        fail(state, peer, by=teller.id)


def forgive_own_sleep(state: State, overslept_ms: int) -> None:
    """If this process was stopped, others' words wait in sockets: give them half a node timeout to be read."""
    patience_ms = state.node_timeout_ms // 2
    if overslept_ms <= patience_ms:
        return
    for peer in state.peers.values():
        if not peer.is_suspect:
            peer.heard_at_ms = max(peer.heard_at_ms, state.now_ms - patience_ms)
        if peer.unanswered_since_ms is not None:
            peer.unanswered_since_ms = max(peer.unanswered_since_ms, state.now_ms - 1)
