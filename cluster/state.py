"""State: all that membership knows, in one place; the modules beside it are functions over it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from cluster import messages, roster
from cluster.nodesfile import FORGOTTEN_MAX, PEERS_MAX
from cluster.ready import ClusterReady, ConnId, DialId, Identity, Note, OnceAMinute

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cluster.nodeid import NodeId
    from cluster.peer import Dice, Meeting, Peer
    from cluster.view import ClusterView

# So many node timeouts after it was last told of, an unmet node is nobody's member.
UNMET_TIMEOUTS = 4


@attrs.define(eq=False, kw_only=True)
class State:
    """Counters, tables and what is to be done; changed only by membership and its modules."""

    identity: Identity
    node_timeout_ms: int
    is_leaving: bool
    dice: Dice
    now_ms: int
    learned_host: str = ""  # of this node, from sockets

    peers: dict[NodeId, Peer] = attrs.Factory(dict)
    meetings: dict[tuple[str, int], Meeting] = attrs.Factory(dict)
    dials: dict[DialId, Peer | Meeting] = attrs.Factory(dict)  # under way
    links: dict[ConnId, Peer] = attrs.Factory(dict)  # dialed
    inbounds: dict[ConnId, Peer] = attrs.Factory(dict)  # accepted

    unmet: dict[NodeId, int] = attrs.Factory(dict)  # others tell of them -> ms when last

    forgotten: dict[NodeId, bool] = attrs.Factory(dict)  # id -> everywhere?, oldest first
    forgotten_ids: frozenset[NodeId] = frozenset()
    drained: frozenset[NodeId] = frozenset()  # of those, that had handed everything over before
    has_left: bool = False  # this node has
    left_at_ms: int = 0  # when that last changed
    tombstones: list[NodeId] = attrs.Factory(list)  # those to gossip
    tombstone_cursor: int = 0
    drained_told: list[NodeId] = attrs.Factory(list)  # `drained`, as it is gossiped
    drained_cursor: int = 0
    forgotten_by: dict[NodeId, None] = attrs.Factory(dict)
    is_called_back: bool = False

    dials_drawn: int = 0
    sent: int = 0
    received: int = 0
    protocol_errors: int = 0
    handshakes_failed: int = 0
    last_failure: tuple[str, str] | None = None  # (address, reason)

    noted: OnceAMinute = attrs.Factory(OnceAMinute)
    ready: ClusterReady = attrs.Factory(ClusterReady)
    view: ClusterView | None = None  # None: to be made anew
    is_view_due: bool = True
    is_file_due: bool = True
    wakeup_ms: int | None = None
    is_wakeup_known: bool = False

    def send(self, peer: Peer, message: messages.Message) -> None:
        """Send over my link to a peer; dropped if there is none."""
        if peer.link is not None:
            self.frame(peer.link, message)

    def frame(self, conn: ConnId, message: messages.Message) -> None:
        """Send over a connection."""
        self.ready.frames.append((conn, messages.encode(message)))
        self.sent += 1

    def changed(self, *, file: bool = False) -> None:
        """The view changed, perhaps, and timers did; with `file` nodes.conf, too."""
        self.view = None
        self.is_view_due = True
        self.is_wakeup_known = False
        self.is_file_due = self.is_file_due or file

    def note(self, level: str, event: str, **facts: object) -> None:
        """Tell the log."""
        self.ready.notes.append(Note(level, event, tuple(facts.items())))

    def note_rarely(self, level: str, event: str, node: NodeId, **facts: object) -> None:
        """Tell the log of what a peer can cause as often as it likes: at most once a minute of each."""
        if self.noted.allows(event, node, self.now_ms):
            self.note(level, event, id=node, **facts)

    def hear_of(self, node: NodeId) -> None:
        """A peer tells of a node that isn't known here; over the bound it is as not told."""
        if node in self.unmet or len(self.unmet) < PEERS_MAX:
            if not self.unmet:
                self.changed()
            self.unmet[node] = self.now_ms

    def review_unmet(self) -> None:
        """Of whom nobody has told for UNMET_TIMEOUTS node timeouts nobody knows any more."""
        oldest_ms = self.now_ms - UNMET_TIMEOUTS * self.node_timeout_ms
        for node in [node for node, at_ms in self.unmet.items() if at_ms < oldest_ms]:
            del self.unmet[node]
            self.changed()

    def remember_forgotten(self, nodes: Iterable[NodeId], *, everywhere: bool) -> None:
        """Add tombstones; the oldest go over the bound."""
        for node in nodes:
            peer = self.peers.get(node)
            if peer is not None and peer.has_left:
                self.drained |= {node}
            self.forgotten[node] = everywhere
            self.unmet.pop(node, None)
        while len(self.forgotten) > FORGOTTEN_MAX:
            del self.forgotten[next(iter(self.forgotten))]
        self.forgotten_changed()

    def learn_drained(self, nodes: Iterable[NodeId]) -> None:
        """Under these ids, as far as they are forgotten, no copy can come back."""
        new = self.forgotten_ids.intersection(nodes) - self.drained
        if new:
            self.drained |= new
            self.forgotten_changed()
            self.changed(file=True)

    def forgotten_changed(self) -> None:
        """Renew what is derived from the tombstones."""
        self.forgotten_ids = frozenset(self.forgotten)
        self.drained &= self.forgotten_ids
        self.drained_told = sorted(self.drained)
        self.tombstones = [node for node, everywhere in self.forgotten.items() if everywhere]

    def own(self) -> roster.Self:
        """This node as it shows itself."""
        host = self.identity.host or self.learned_host
        return roster.Self(self.identity, host, self.is_leaving, self.has_left)

    def learn_own_host(self, host: str) -> None:
        """From a socket's near end; a loopback address gives way to another, otherwise the first one stays."""
        was = self.learned_host
        is_better = not was or (_is_loopback(was) and not _is_loopback(host))
        if host and is_better and host != was and messages.is_host(host):
            self.learned_host = host
            self.changed(file=True)


def _is_loopback(host: str) -> bool:
    return host.startswith("127.") or host == "::1"
