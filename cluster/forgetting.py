"""Forgetting: final for an id (rule M16), here only or everywhere; the forgotten node is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster import meetings, messages, suspicion
from cluster.nodesfile import PEERS_MAX

if TYPE_CHECKING:
    from cluster.nodeid import NodeId
    from cluster.peer import Peer
    from cluster.state import State


def forget(state: State, node: NodeId, *, everywhere: bool, by: NodeId) -> None:
    """Drop a node for good: close its links, tell it, and, if `everywhere`, tell all others (rule M16)."""
    was_everywhere = state.forgotten.get(node)
    if was_everywhere is None or (everywhere and not was_everywhere):
        state.remember_forgotten(node, everywhere=everywhere)
        state.changed(file=True)
        state.note("info", "node_forgotten", id=node, everywhere=everywhere, by=by)
        if everywhere:
            for other in state.peers.values():
                if other.id != node:
                    state.send(other, messages.Forgotten((node,)))
    for meeting in list(state.meetings.values()):
        if meeting.expected == node:
            meetings.end(state, meeting)
    peer = state.peers.get(node)
    if peer is None:
        return
    state.send(peer, messages.Forgotten((node,)))
    del state.peers[node]
    if peer.dial is not None:
        state.dials.pop(peer.dial, None)
    for conn, table in ((peer.link, state.links), (peer.inbound, state.inbounds)):
        if conn is not None:
            state.ready.closes.append(conn)
            table.pop(conn, None)
    state.forgotten_by.pop(node, None)
    for other in state.peers.values():
        other.reports.pop(node, None)
    for other in list(state.peers.values()):
        suspicion.judge(state, other)  # the cluster is smaller: a majority, too


def obey(state: State, teller: Peer, node: NodeId) -> None:
    """Another node told of a tombstone: drop that node, too, or learn that it is about me."""
    if node == state.identity.id:
        told_forgotten(state, teller.id)
    elif state.forgotten.get(node) is not True and node != teller.id:
        forget(state, node, everywhere=True, by=teller.id)


def told_forgotten(state: State, by: NodeId) -> None:
    """Another node has forgotten me: noted once."""
    if by not in state.forgotten_by and len(state.forgotten_by) < PEERS_MAX:
        state.forgotten_by[by] = None
        state.changed()
        state.note("warning", "cluster_forgotten_by", by=by, id=state.identity.id)
