"""The roster: what is known of the cluster, shown as a view, as CLUSTER NODES, and as the content of nodes.conf."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from cluster.messages import LEAVING, LEFT
from cluster.nodesfile import StoredNodes, StoredPeer, flag_names, join_host, node_line
from cluster.peer import Address, Meeting, Peer
from cluster.view import ClusterView, MemberView

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from cluster.handshake import Identity
    from cluster.nodeid import NodeId


@attrs.frozen
class Self:
    """This node as it shows itself; `host` is announced or learned from sockets."""

    identity: Identity
    host: str
    is_leaving: bool
    has_left: bool = False

    @property
    def flags(self) -> int:
        """As gossip tells them."""
        return (LEAVING if self.is_leaving else 0) | (LEFT if self.has_left else 0)


def make_view(
    own: Self,
    peers: Mapping[NodeId, Peer],
    forgotten: frozenset[NodeId],
    drained: frozenset[NodeId],
    node_timeout_ms: int,
    *,
    is_forgotten: bool,
    has_unmet: bool,
) -> ClusterView:
    """The picture for the rest of the node; members sorted by id."""
    members = {peer.id: _member(peer) for peer in peers.values()}
    identity = own.identity
    members[identity.id] = MemberView(
        id=identity.id,
        host=own.host,
        port=identity.port,
        bus_port=identity.bus_port,
        boot=identity.boot,
        since=identity.since,
        is_reachable=True,
        is_suspect=False,
        is_failed=False,
        is_leaving=own.is_leaving,
        tls_port=identity.tls_port,
    )
    return ClusterView(
        self_id=identity.id,
        members={id_: members[id_] for id_ in sorted(members)},
        forgotten=forgotten,
        drained=drained,
        node_timeout_ms=node_timeout_ms,
        is_forgotten=is_forgotten,
        has_unmet=has_unmet,
    )


def make_table(own: Self, peers: Collection[Peer], meetings: Collection[Meeting]) -> str:
    """The text of CLUSTER NODES (reference 4.10): six fields a line, IPv6 in brackets, times in ms."""
    flags = flag_names(own.flags, is_self=True)
    where = join_host(own.host, own.identity.port)
    lines = [node_line(own.identity.id, where, flags, 0, 0, is_connected=True)]
    for peer in peers:
        where = join_host(peer.address.host, peer.address.port)
        pinged = peer.unanswered_since_ms or 0
        is_connected = peer.link is not None
        lines.append(
            node_line(
                peer.id, where, flag_names(peer.flags), pinged, peer.ponged_at_ms, is_connected
            )
        )
    for meeting in meetings:
        where = join_host(meeting.host, max(meeting.bus_port - 10_000, 0))
        flags = flag_names(0, is_handshake=True)
        lines.append(node_line(meeting.handle, where, flags, 0, 0, is_connected=False))
    return "\n".join(lines) + "\n"


def make_stored(
    own: Self,
    peers: Collection[Peer],
    forgotten: Mapping[NodeId, bool],
    drained: frozenset[NodeId],
) -> StoredNodes:
    """What must survive a restart."""
    identity = own.identity
    return StoredNodes(
        id=identity.id,
        address=Address(own.host, identity.port, identity.bus_port),
        boot=identity.boot,
        since=identity.since,
        leaving=own.is_leaving,
        peers=tuple(StoredPeer(p.id, p.address, p.flags, p.boot, p.since) for p in peers),
        forgotten=tuple(forgotten.items()),
        drained=drained,
    )


def _member(peer: Peer) -> MemberView:
    return MemberView(
        id=peer.id,
        host=peer.address.host,
        port=peer.address.port,
        bus_port=peer.address.bus_port,
        boot=peer.boot,
        since=peer.since,
        is_reachable=peer.is_reachable,
        is_suspect=peer.is_suspect or peer.is_failed,
        is_failed=peer.is_failed,
        is_leaving=peer.is_leaving,
        tls_port=peer.tls_port,
    )
