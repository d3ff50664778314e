"""Contacts: who a peer is and where it lives, as nodes.conf, handshakes and sockets tell.

An announced host is believed. Without one, the far end of the peer's own connection says where it
lives, but a place that works isn't left for one that may not: the other is kept as an alternate,
for when dialing fails (proxies and NAT).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster import dialing, handshake, meetings, nodesfile
from cluster.messages import FAILED, LEAVING, LEFT, NOADDR, SUSPECT
from cluster.nodesfile import PEERS_MAX
from cluster.peer import Address, Backoff, Meeting, Peer

if TYPE_CHECKING:
    from cluster.handshake import Identity
    from cluster.nodesfile import StoredPeer
    from cluster.state import State

NEWS_PING_MS = 100  # a new member is told to the others within this
# Boots are ms of clocks: a node whose clock begins with 1970 must bear the others'
BOOT_AHEAD_MAX = 1 << 42  # 139 years


def restore(state: State, stored: StoredPeer) -> None:
    """List a peer that nodes.conf tells of."""
    if stored.id == state.identity.id or stored.id in state.forgotten:
        return
    state.peers[stored.id] = Peer(
        id=stored.id,
        address=stored.address,
        redial=Backoff(state.now_ms),
        heard_at_ms=state.now_ms,
        boot=stored.boot,
        since=stored.since,
        is_leaving=bool(stored.flags & LEAVING),
        has_left=bool(stored.flags & LEFT),
        is_suspect=bool(stored.flags & (SUSPECT | FAILED)),
        is_failed=bool(stored.flags & FAILED),
        is_ghost=bool(stored.flags & NOADDR),
    )


def add_peer(state: State, identity: Identity, remote_host: str) -> Peer:
    """List a peer that a handshake proved, and tell the others of it soon."""
    address = Address(identity.host or remote_host, identity.port, identity.bus_port)
    peer = Peer(
        id=identity.id,
        address=address,
        redial=Backoff(state.now_ms),
        heard_at_ms=state.now_ms,
    )
    state.peers[peer.id] = peer
    state.unmet.pop(peer.id, None)
    for meeting in list(state.meetings.values()):
        if meeting.expected == peer.id:
            meetings.end(state, meeting)
    where = nodesfile.join_host(address.host, address.bus_port)
    state.note("info", "peer_joined", id=peer.id, address=where)
    state.changed(file=True)
    for other in state.peers.values():
        other.ping_at_ms = min(other.ping_at_ms, state.now_ms + NEWS_PING_MS)
    return peer


def meet_identity(state: State, peer: Peer, identity: Identity) -> None:
    """Take over what the handshake proved: boot, since, announced address."""
    if identity.boot > peer.boot:
        if peer.boot and peer.inbound is not None:
            state.ready.closes.append(peer.inbound)
            state.inbounds.pop(peer.inbound, None)
            peer.inbound = None
        if peer.boot and peer.link is not None:
            dialing.close(state, peer)  # its end died with the old process
        peer.boot = identity.boot
        state.changed(file=True)
    if identity.since != peer.since:
        peer.since = identity.since
        state.changed(file=True)
    announced(state, peer, identity.host, identity.port, identity.bus_port)


def announced(state: State, peer: Peer, host: str, port: int, bus_port: int) -> None:
    """An address from the peer's own mouth; without a host only the ports count."""
    address = Address(host or peer.address.host, port, bus_port)
    if address != peer.address:
        move(state, peer, address)


def meet_socket(state: State, peer: Peer, identity: Identity, remote_host: str) -> None:
    """Without an announced host the socket's far end says where a peer lives, unless the old place works."""
    if identity.host or not remote_host:
        return
    seen = Address(remote_host, identity.port, identity.bus_port)
    if seen == peer.address:
        peer.alternate = None
    elif peer.link is None:
        peer.alternate = peer.address if peer.address.is_dialable else None
        move(state, peer, seen)
    else:
        peer.alternate = seen


def move(state: State, peer: Peer, address: Address) -> None:
    """A peer lives elsewhere now: drop a link to the old place."""
    was = peer.address
    peer.address = address
    state.changed(file=True)
    if (was.host, was.bus_port) == (address.host, address.bus_port):
        return
    where = nodesfile.join_host(address.host, address.bus_port)
    state.note_rarely("info", "peer_moved", peer.id, address=where)
    if peer.link is not None:
        dialing.close(state, peer)
        peer.redial.reset(state.now_ms)


def refuses(state: State, peer: Identity, *, is_meet: bool) -> str | None:
    """Why a proven node may not become, or stay, a peer; None if it may."""
    if peer.id in state.forgotten:
        return f"{handshake.FORGOTTEN}{state.identity.id}"
    known = state.peers.get(peer.id)
    if known is None and not is_meet:
        return f"{handshake.UNKNOWN_NODE} {peer.id} isn't in the table of {state.identity.id}"
    if known is None and len(state.peers) >= PEERS_MAX:
        return f"the cluster has {PEERS_MAX} nodes besides this one, no more are taken"
    if known is not None and peer.boot < known.boot:
        return f"boot {peer.boot} is smaller than {known.boot}, seen before (an old copy?)"
    if peer.boot > state.identity.boot + BOOT_AHEAD_MAX:
        return f"boot {peer.boot} is no clock's, this node's is {state.identity.boot}"
    return None


def refuses_dialed(state: State, target: Peer | Meeting, peer: Identity) -> str | None:
    """Why the node that a dial found is not the one wanted; None if it is."""
    if peer.id == state.identity.id:
        return f"{handshake.SELF} this is node {peer.id} itself"
    expected = target.id if isinstance(target, Peer) else target.expected
    if expected is not None and expected != peer.id:
        return f"{handshake.WRONG_ID} expected {expected}, {peer.id} answered"
    return refuses(state, peer, is_meet=True)
