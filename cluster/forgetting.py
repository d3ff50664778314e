"""Forgetting: final for an id (rule M16), here only or everywhere; the forgotten node is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster import meetings, messages, suspicion
from cluster.nodesfile import FORGOTTEN_MAX, PEERS_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cluster.nodeid import NodeId
    from cluster.peer import Peer
    from cluster.state import State

_NOTED_MAX = 10  # of one message, a line each


def forget(state: State, nodes: Iterable[NodeId], *, everywhere: bool, by: NodeId) -> None:
    """Drop nodes for good: close their links, tell them, and, if `everywhere`, tell all others (rule M16)."""
    ids = tuple(nodes)
    new = [n for n in ids if n not in state.forgotten or (everywhere and not state.forgotten[n])]
    if new:
        state.remember_forgotten(new, everywhere=everywhere)
        state.changed(file=True)
        if len(new) > _NOTED_MAX:
            state.note("info", "nodes_forgotten", count=len(new), everywhere=everywhere, by=by)
        else:
            for node in new:
                state.note("info", "node_forgotten", id=node, everywhere=everywhere, by=by)
    if new and everywhere:
        for other in state.peers.values():
            told = tuple([node for node in new if node != other.id])
            if told:
                state.send(other, messages.Forgotten(told))
    for meeting in list(state.meetings.values()):
        if meeting.expected in ids:
            meetings.end(state, meeting)
    for node in ids:
        if node in state.peers:
            _drop(state, node)


def _drop(state: State, node: NodeId) -> None:
    peer = state.peers[node]
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


def obey(state: State, teller: Peer, nodes: Iterable[NodeId]) -> None:
    """Another node told of tombstones: drop those nodes, too, or learn that it is about me.

    Ids that were never here find room as long as there is some: by hearsay no tombstone of ours is pushed out.
    """
    room = FORGOTTEN_MAX - len(state.forgotten)
    new: dict[NodeId, None] = {}
    for node in nodes:
        if node == state.identity.id:
            told_forgotten(state, teller.id)
        elif state.forgotten.get(node) is not True and node != teller.id and node not in new:
            is_stranger = node not in state.peers and node not in state.forgotten
            room -= is_stranger
            if room >= 0 or not is_stranger:
                new[node] = None
    if new:
        forget(state, new, everywhere=True, by=teller.id)


def told_forgotten(state: State, by: NodeId) -> None:
    """Another node has forgotten me: noted once."""
    if by not in state.forgotten_by and len(state.forgotten_by) < PEERS_MAX:
        state.forgotten_by[by] = None
        state.changed()
        state.note("warning", "cluster_forgotten_by", by=by, id=state.identity.id)
