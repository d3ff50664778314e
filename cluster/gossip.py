"""Gossip: which peers a PING tells about.

A few, drawn by chance, so that its size doesn't grow with the cluster; missed ones come first, so
that reports make a majority soon. A new link gets many at once, so that a mesh forms in few steps.
Disque: clusterSendPing in cluster.c.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.messages import GossipEntry

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cluster.nodeid import NodeId
    from cluster.peer import Dice, Peer

ENTRIES_MIN = 3
ENTRIES_DIVISOR = 10  # or a tenth of the peers
ENTRIES_ON_NEW_LINK = 100
FORGOTTEN_IDS = 100  # in one message; they take turns


def choose(
    peers: Iterable[Peer], receiver: NodeId, dice: Dice, *, is_new_link: bool
) -> tuple[GossipEntry, ...]:
    """Entries about missed peers, then about linked ones; of each kind max(3, N/10), or 100 on a new link.

    A peer that is neither missed nor linked isn't told: it may have reset itself, and must not be
    drawn back in.
    """
    missed: list[Peer] = []
    linked: list[Peer] = []
    count = 0
    for peer in peers:
        count += 1
        if peer.id == receiver or not peer.address.is_dialable:
            continue
        if peer.is_suspect or peer.is_ghost:
            missed.append(peer)
        elif peer.link is not None or peer.inbound is not None:
            linked.append(peer)
    most = ENTRIES_ON_NEW_LINK if is_new_link else max(ENTRIES_MIN, count // ENTRIES_DIVISOR)
    return tuple(_entry(peer) for peer in _sample(missed, most, dice) + _sample(linked, most, dice))


def take_turns(ids: Sequence[NodeId], cursor: int) -> tuple[tuple[NodeId, ...], int]:
    """The next 100 ids from `cursor` on, and the cursor after them."""
    if len(ids) <= FORGOTTEN_IDS:
        return tuple(ids), 0
    start = cursor % len(ids)
    chosen = ids[start : start + FORGOTTEN_IDS]
    return tuple(chosen), start + len(chosen)


def _entry(peer: Peer) -> GossipEntry:
    address = peer.address
    return GossipEntry(peer.id, address.host, address.port, address.bus_port, peer.flags)


def _sample(peers: list[Peer], most: int, dice: Dice) -> list[Peer]:
    """The first steps of a Fisher-Yates shuffle."""
    for index in range(min(most, len(peers) - 1)):
        other = index + dice.randrange(len(peers) - index)
        peers[index], peers[other] = peers[other], peers[index]
    return peers[:most]
