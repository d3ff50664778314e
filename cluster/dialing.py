"""Dialing: my links to peers, how they come, are pinged, and go."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster import failure, gossip, messages
from cluster.messages import Gossip
from cluster.ready import Dial, DialId

if TYPE_CHECKING:
    from cluster.nodeid import NodeId
    from cluster.peer import Meeting, Peer
    from cluster.state import State


def dial(
    state: State,
    target: Peer | Meeting,
    host: str,
    bus_port: int,
    expected: NodeId | None,
    is_meet: bool,
) -> DialId:
    """Ask for a connection to an address; membership hears of its end by the id returned."""
    state.dials_drawn += 1
    drawn = DialId(state.dials_drawn)
    state.dials[drawn] = target
    state.ready.dials.append(Dial(drawn, host, bus_port, expected, is_meet))
    state.is_wakeup_known = False
    return drawn


def dial_peer(state: State, peer: Peer) -> None:
    """Dial a peer where it is thought to be; nothing happens without an address."""
    address = peer.address
    if address.is_dialable:
        peer.dial = dial(state, peer, address.host, address.bus_port, peer.id, is_meet=False)


def close(state: State, peer: Peer) -> None:
    """Close my link to a peer, if there is one, and book the next dial."""
    if peer.link is not None:
        state.ready.closes.append(peer.link)
        state.links.pop(peer.link, None)
        peer.link = None
        lost(state, peer)


def lost(state: State, peer: Peer) -> None:
    """My link to a peer is gone: it is unreachable from now on, and dialed again after a while."""
    peer.unanswered_since_ms = None
    peer.redial.hurry(state.now_ms)
    peer.redial.fail(state.now_ms, state.node_timeout_ms, state.dice)
    state.changed()


def ping(state: State, peer: Peer, *, is_new_link: bool = False) -> None:
    """Ping a peer over my link; a new link gets more gossip."""
    state.send(peer, messages.Ping(compose_gossip(state, peer, is_new_link=is_new_link)))
    peer.ping_at_ms = state.now_ms + failure.ping_interval_ms(state.node_timeout_ms)
    if peer.unanswered_since_ms is None:
        peer.unanswered_since_ms = state.now_ms
    state.is_wakeup_known = False


def pong(state: State, peer: Peer) -> None:
    """Answer a peer's PING over my link."""
    state.send(peer, messages.Pong(compose_gossip(state, peer)))


def ping_all(state: State) -> None:
    """Ping all linked peers now: something of mine changed."""
    for peer in state.peers.values():
        if peer.link is not None:
            ping(state, peer)


def compose_gossip(state: State, receiver: Peer, *, is_new_link: bool = False) -> Gossip:
    """What a PING or PONG to `receiver` says."""
    own = state.identity
    forgotten, state.tombstone_cursor = gossip.take_turns(state.tombstones, state.tombstone_cursor)
    drained, state.drained_cursor = gossip.take_turns(state.drained_told, state.drained_cursor)
    return Gossip(
        boot=own.boot,
        is_leaving=state.is_leaving,
        host=own.host,
        port=own.port,
        bus_port=own.bus_port,
        entries=gossip.choose(
            state.peers.values(), receiver.id, state.dice, is_new_link=is_new_link
        ),
        forgotten=forgotten,
        has_left=state.has_left,
        drained=drained,
        tls_port=own.tls_port,
    )
