"""Membership: who is in the cluster, who can be reached, and who has failed.

A pure state machine; `bus` or a simulator does what `take_ready` asks. It carries payloads and doesn't look into them.

One connection carries data one way. Every node dials every other; PING, gossip, PONG and payloads go out only on the link
*I* dialed, so a PONG comes over the answerer's own link and proves both directions. Connections I accepted only bring.
From Redis Cluster by way of Disque (cluster.c); other than there: forgotten is final for an id (rule M16), a smaller boot
is ignored (M17), only a MEET or the first contact by gossip makes an unknown node known, and a failed node is one that a
majority doesn't hear, links or not.
"""

from __future__ import annotations

import attrs

from cluster import failure, gossip, handshake, messages, nodesfile, roster
from cluster.errors import LocalProtocolError, RemoteProtocolError
from cluster.messages import FAILED, LEAVING, NOADDR, SUSPECT, Gossip, GossipEntry
from cluster.nodeid import NodeId, is_node_id
from cluster.nodesfile import FORGOTTEN_MAX, PEERS_MAX, StoredNodes, StoredPeer
from cluster.peer import REFUSED_BACKOFF_MS, Address, Backoff, Dice, Meeting, Peer
from cluster.ready import ClusterReady, ConnId, Dial, DialId, Identity, Note
from cluster.view import ClusterView

__all__ = [
    "Dice",
    "Identity",
    "Membership",
    "MembershipConfig",
    "MembershipStatistics",
    "StoredNodes",
]

MEETINGS_MAX = 64
MEET_GIVE_UP_MS = 60_000  # a MEET is tried for this long, or for a node timeout if that is longer
MEETING_PATIENCE_MS = 1_000  # a handshake under way may become a peer's link within this
NEWS_PING_MS = 100  # a new member is told to the others within this

@attrs.frozen
class MembershipConfig:
    """What is announced, and the one time from which all others derive."""

    node_timeout_ms: int = 15_000
    host: str = ""  # announced host; "" = learned from sockets
    port: int = 7711  # announced client port
    bus_port: int = 17711


@attrs.frozen
class MembershipStatistics:
    """Counters since the start, and what stands now."""

    messages_sent: int
    messages_received: int
    known_nodes: int  # self and handshakes included
    handshakes_pending: int
    handshakes_failed: int  # attempts of MEET and cluster-join
    last_handshake_failure: tuple[str, str] | None  # (host:bus_port, reason)
    forgotten_by: tuple[NodeId, ...]
    protocol_errors: int


class Membership:
    """One node's part in the cluster."""

    def __init__(
        self,
        *,
        identity: Identity,
        config: MembershipConfig,
        stored: StoredNodes,
        dice: Dice,
        now_ms: int,
    ) -> None:
        """`config` has the announced address, whatever `identity` says; `stored` is what nodes.conf said, or empty."""
        self._identity = attrs.evolve(
            identity, host=config.host, port=config.port, bus_port=config.bus_port
        )
        self._node_timeout_ms = config.node_timeout_ms
        self._is_leaving = stored.leaving
        self._learned_host = ""
        self._dice = dice
        self._now_ms = now_ms
        self._peers: dict[NodeId, Peer] = {}
        self._forgotten: dict[NodeId, bool] = {}  # id -> everywhere?, oldest first
        self._forgotten_ids: frozenset[NodeId] = frozenset()
        self._tombstones: list[NodeId] = []  # those to gossip
        self._tombstone_cursor = 0
        self._forgotten_by: dict[NodeId, None] = {}
        self._meetings: dict[tuple[str, int], Meeting] = {}
        self._dials: dict[DialId, Peer | Meeting] = {}
        self._links: dict[ConnId, Peer] = {}  # dialed
        self._inbounds: dict[ConnId, Peer] = {}  # accepted
        self._dials_drawn = 0
        self._sent = self._received = self._protocol_errors = 0
        self._handshakes_failed = 0
        self._last_failure: tuple[str, str] | None = None
        self._last_payload: tuple[bytes, bytes] | None = None
        self._ready = ClusterReady()
        self._view: ClusterView | None = None
        self._shown_view: ClusterView | None = None
        self._is_view_due = True
        self._saved_nodes: StoredNodes | None = None
        self._is_file_due = True
        self._wakeup_ms: int | None = None
        self._is_wakeup_known = False
        for node, everywhere in stored.forgotten:
            self._remember_forgotten(node, everywhere=everywhere)
        for each in stored.peers:
            self._restore(each)

    # Time

    def advance(self, now_ms: int) -> None:
        """Fire what is due; time never goes back."""
        if now_ms <= self._now_ms:
            now_ms = self._now_ms
        due_ms = self.next_wakeup_ms()
        self._now_ms = now_ms
        if due_ms is None or now_ms < due_ms:
            return
        self._forgive_own_sleep(now_ms - due_ms)
        self._is_wakeup_known = False
        for peer in list(self._peers.values()):
            self._tick_peer(peer)
        for meeting in list(self._meetings.values()):
            self._tick_meeting(meeting)

    def next_wakeup_ms(self) -> int | None:
        """When `advance` has something to do next; None if only an input can bring that."""
        if not self._is_wakeup_known:
            self._wakeup_ms = min(self._due_times(), default=None)
            self._is_wakeup_known = True
        return self._wakeup_ms

    # Connections

    def dialed(
        self, dial: DialId, conn: ConnId, peer: Identity, own_host: str, remote_host: str
    ) -> None:
        """My dial reached `peer` and both sides proved themselves; hosts are those of the socket's two ends."""
        target = self._dials.pop(dial, None)
        self._is_wakeup_known = False
        if target is None:  # forgotten or reset meanwhile
            self._ready.closes.append(conn)
            return
        target.dial = None
        self._learn_own_host(own_host)
        if isinstance(target, Meeting):
            self._meetings.pop((target.host, target.bus_port), None)
        reason = self._refuses_dialed(target, peer)
        if reason is not None:
            if peer.id in self._forgotten:
                self._frame(conn, messages.Forgotten((peer.id,)))
            self._ready.closes.append(conn)
            self._dial_lost(target, reason)
            return
        known = self._peers.get(peer.id)
        if known is None:
            known = self._add_peer(peer, remote_host)
        elif isinstance(target, Meeting) and not peer.host:
            self._move(known, Address(remote_host, peer.port, peer.bus_port))
        self._meet_identity(known, peer)
        known.is_ghost = False
        self._forgotten_by.pop(known.id, None)
        if known.link is not None:  # the newer one counts, as on the other side
            self._ready.closes.append(known.link)
            self._links.pop(known.link, None)
        known.link = conn
        self._links[conn] = known
        known.redial.reset(self._now_ms)
        known.unanswered_since_ms = None
        self._changed(file=True)
        self._ping(known, is_new_link=True)

    def dial_failed(self, dial: DialId, reason: str) -> None:
        """The dial came to nothing; what `reason` begins with may matter (see handshake.py)."""
        target = self._dials.pop(dial, None)
        if target is not None:
            target.dial = None
            self._dial_lost(target, reason)

    def admits(self, peer: Identity, expected: NodeId | None, is_meet: bool) -> str | None:
        """Whether a proven dialer may come in: None, or why not; ask before `accepted`."""
        own = self._identity
        if peer.id == own.id:
            if peer == own:
                return f"{handshake.SELF} this is node {own.id} itself"
            self._note("warning", "duplicate_node_id", id=peer.id, host=peer.host, port=peer.port)
            return f"{handshake.DUPLICATE} another process runs with the id {own.id}"
        if expected is not None and expected != own.id:
            return f"{handshake.WRONG_ID} expected {expected}, {own.id} answered"
        return self._refuses(peer, is_meet=is_meet)

    def accepted(
        self, conn: ConnId, peer: Identity, is_meet: bool, own_host: str, remote_host: str
    ) -> None:
        """A dialer that `admits` let in; frames on `conn` count as its words from now on."""
        self._is_wakeup_known = False
        reason = self._refuses(peer, is_meet=is_meet)
        if peer.id == self._identity.id or reason is not None:
            self._ready.closes.append(conn)
            return
        self._learn_own_host(own_host)
        known = self._peers.get(peer.id)
        if known is None:
            known = self._add_peer(peer, remote_host)
        self._meet_identity(known, peer)
        self._meet_socket(known, peer, remote_host)
        if known.inbound is not None:
            self._ready.closes.append(known.inbound)
            self._inbounds.pop(known.inbound, None)
        known.inbound = conn
        self._inbounds[conn] = known
        known.is_ghost = False
        self._forgotten_by.pop(known.id, None)
        self._changed(file=True)
        self._heard(known)
        if known.link is None and known.dial is None:
            known.redial.reset(self._now_ms)
            if self._is_meeting(known):
                known.redial.due_at_ms += MEETING_PATIENCE_MS
            else:
                self._dial_peer(known)

    def frame(self, conn: ConnId, body: bytes) -> None:
        """A frame's body came on `conn`; those of superseded and unknown connections are dropped."""
        peer = self._inbounds.get(conn)
        if peer is None:
            if conn in self._links:
                self._break_protocol(conn, self._links[conn], "a dialed link brings no frames")
            return
        self._received += 1
        try:
            message = messages.decode(body)
        except RemoteProtocolError as error:
            self._break_protocol(conn, peer, str(error))
            return
        self._heard(peer)
        match message:
            case messages.Payload(boot=boot, data=data):
                if boot == peer.boot:
                    self._ready.payloads.append((peer.id, boot, data))
            case messages.Ping(gossip=told):
                self._learn(peer, told)
                if self._peers.get(peer.id) is peer and peer.link is not None:
                    self._send(peer, messages.Pong(self._gossip(peer)))
            case messages.Pong(gossip=told):
                peer.ponged_at_ms = self._now_ms
                peer.unanswered_since_ms = None
                self._is_wakeup_known = False
                self._learn(peer, told)
            case messages.Fail(node=node):
                self._believe_failed(peer, node)
            case messages.Forgotten(nodes=nodes):
                for node in nodes:
                    self._obey_forget(peer, node)

    def closed(self, conn: ConnId) -> None:
        """`conn` broke or was closed by the other side; unknown ones are ignored."""
        self._is_wakeup_known = False
        peer = self._links.pop(conn, None)
        if peer is not None:
            peer.link = None
            self._link_lost(peer)
            return
        peer = self._inbounds.pop(conn, None)
        if peer is not None:
            peer.inbound = None
            self._changed()

    # Commands

    def meet(self, host: str, bus_port: int, *, is_sticky: bool = False) -> None:
        """Try to reach a node at an address (host may be a name) until it's known; a second order changes nothing.

        Given up, with a note, after 60 s or a node timeout; sticky: never. LocalProtocolError for what can't be an address, or
        with 64 handshakes pending.
        """
        host = host.removeprefix("[").removesuffix("]")
        if not host or not messages.is_host(host) or not 0 < bus_port <= 65535:
            raise LocalProtocolError(f"Invalid node address specified: {host:.80}:{bus_port}")
        give_up_at_ms = None
        if not is_sticky:
            give_up_at_ms = self._now_ms + max(self._node_timeout_ms, MEET_GIVE_UP_MS)
        known = self._meetings.get((host, bus_port))
        if known is not None and not known.is_by_hand and known.dial is not None:
            # A handshake that gossip began goes on; ours must not insist on its id.
            known.expected = None
            known.is_by_hand = True
        if known is not None:
            known.is_by_hand = True
            if known.give_up_at_ms is not None:
                known.give_up_at_ms = give_up_at_ms
            self._is_wakeup_known = False
            return
        if len(self._meetings) >= MEETINGS_MAX:
            raise LocalProtocolError(f"{MEETINGS_MAX} handshakes are pending, try again later")
        self._start_meeting(host, bus_port, give_up_at_ms, expected=None)

    def forget(self, node: NodeId, *, everywhere: bool = False) -> None:
        """Drop a node for good (rule M16); `everywhere` gossips that. LocalProtocolError if unknown or self."""
        if node == self._identity.id:
            raise LocalProtocolError("I tried hard but I can't forget myself...")
        if node not in self._peers and not (everywhere and node in self._forgotten):
            raise LocalProtocolError(f"Unknown node {node}")
        self._forget(node, everywhere=everywhere, by=self._identity.id)

    def reset(self, *, new_id: NodeId | None) -> None:
        """Forget all peers without tombstones; with `new_id` (HARD) tombstones go, too. The leaving flag stays."""
        for conn in [*self._links, *self._inbounds]:
            self._ready.closes.append(conn)
        for table in (self._links, self._inbounds, self._dials, self._peers, self._meetings):
            table.clear()
        self._forgotten_by.clear()
        if new_id is not None:
            self._identity = attrs.evolve(self._identity, id=new_id)
            self._forgotten.clear()
            self._forgotten_changed()
        self._note("info", "cluster_reset", id=self._identity.id, hard=new_id is not None)
        self._changed(file=True)

    def set_leaving(self, leaving: bool) -> None:
        """Spread, or take back, that this node is leaving; kept over restarts."""
        if leaving != self._is_leaving:
            self._is_leaving = leaving
            self._changed(file=True)
            self._ping_all()

    def set_node_timeout(self, ms: int) -> None:
        """Change the time after which a silent node is suspect."""
        self._node_timeout_ms = ms
        self._changed()

    def set_announce(self, host: str, port: int, bus_port: int) -> None:
        """Change the announced address and tell all peers; host "" lets them use the socket's."""
        self._identity = attrs.evolve(self._identity, host=host, port=port, bus_port=bus_port)
        self._changed(file=True)
        self._ping_all()

    # Payloads

    def send(self, peer: NodeId, payload: bytes) -> bool:
        """Send opaque bytes on my own link; False, and dropped, if there is none."""
        known = self._peers.get(peer)
        if known is None or known.link is None:
            return False
        if self._last_payload is None or self._last_payload[0] is not payload:
            body = messages.encode(messages.Payload(self._identity.boot, payload))
            self._last_payload = (payload, body)
        self._ready.frames.append((known.link, self._last_payload[1]))
        self._sent += 1
        return True

    # What is known

    @property
    def identity(self) -> Identity:
        """Who this node is now, as handshakes tell it; `reset` and `set_announce` change it."""
        return self._identity

    def view(self) -> ClusterView:
        """The cluster as this node sees it now."""
        if self._view is None:
            self._view = roster.make_view(
                self._self(), self._peers, self._forgotten_ids, self._node_timeout_ms
            )
        return self._view

    def take_payloads(self) -> list[tuple[NodeId, int, bytes]]:
        """The payloads that came since the last call, each with its sender and the sender's boot; for the core at once."""
        payloads, self._ready.payloads = self._ready.payloads, []
        return payloads

    def take_ready(self) -> ClusterReady:
        """What is to be done since the last call."""
        ready, self._ready = self._ready, ClusterReady()
        self._last_payload = None
        if self._is_file_due:
            self._is_file_due = False
            stored = roster.make_stored(self._self(), self._peers.values(), self._forgotten)
            if stored != self._saved_nodes:
                self._saved_nodes = stored
                ready.nodes_file = nodesfile.format(stored)
        if self._is_view_due:
            self._is_view_due = False
            view = self.view()
            if view != self._shown_view:
                self._shown_view = ready.view = view
        return ready

    def statistics(self) -> MembershipStatistics:
        """Counters and facts for CLUSTER INFO."""
        return MembershipStatistics(
            messages_sent=self._sent,
            messages_received=self._received,
            known_nodes=1 + len(self._peers) + len(self._meetings),
            handshakes_pending=len(self._meetings),
            handshakes_failed=self._handshakes_failed,
            last_handshake_failure=self._last_failure,
            forgotten_by=tuple(self._forgotten_by),
            protocol_errors=self._protocol_errors,
        )

    def nodes_text(self) -> str:
        """The text of CLUSTER NODES."""
        return roster.make_table(self._self(), self._peers.values(), self._meetings.values())

    # Helpers: time

    def _due_times(self) -> list[int]:
        times: list[int] = []
        unanswered_max_ms = failure.unanswered_max_ms(self._node_timeout_ms)
        for peer in self._peers.values():
            if not peer.is_suspect:
                times.append(peer.heard_at_ms + self._node_timeout_ms + 1)
            if peer.link is not None:
                times.append(peer.ping_at_ms)
                if peer.unanswered_since_ms is not None:
                    times.append(peer.unanswered_since_ms + unanswered_max_ms)
            elif peer.dial is None and peer.address.is_dialable:
                times.append(peer.redial.due_at_ms)
        for meeting in self._meetings.values():
            if meeting.dial is None:
                times.append(meeting.redial.due_at_ms)
            if meeting.give_up_at_ms is not None:
                times.append(meeting.give_up_at_ms)
        return times

    def _forgive_own_sleep(self, overslept_ms: int) -> None:
        """If this process was stopped, others' words wait in sockets: give them half a node timeout to be read."""
        patience_ms = self._node_timeout_ms // 2
        if overslept_ms <= patience_ms:
            return
        for peer in self._peers.values():
            if not peer.is_suspect:
                peer.heard_at_ms = max(peer.heard_at_ms, self._now_ms - patience_ms)
            if peer.unanswered_since_ms is not None:
                peer.unanswered_since_ms = max(peer.unanswered_since_ms, self._now_ms - 1)

    def _tick_peer(self, peer: Peer) -> None:
        now_ms, timeout_ms = self._now_ms, self._node_timeout_ms
        if not peer.is_suspect and failure.is_silent(now_ms, peer.heard_at_ms, timeout_ms):
            peer.is_suspect = True
            self._note("warning", "peer_suspect", id=peer.id, silent_ms=now_ms - peer.heard_at_ms)
            self._changed(file=True)
            self._judge(peer)
        if peer.link is None:
            if peer.dial is None and now_ms >= peer.redial.due_at_ms and peer.address.is_dialable:
                self._dial_peer(peer)
            return
        since_ms = peer.unanswered_since_ms
        if since_ms is not None and now_ms - since_ms >= failure.unanswered_max_ms(timeout_ms):
            self._note("info", "link_unanswered", id=peer.id, unanswered_ms=now_ms - since_ms)
            self._close_link(peer)
        elif now_ms >= peer.ping_at_ms:
            self._ping(peer)

    def _tick_meeting(self, meeting: Meeting) -> None:
        if meeting.give_up_at_ms is not None and self._now_ms >= meeting.give_up_at_ms:
            self._end_meeting(meeting)
            if meeting.is_by_hand:
                reason = meeting.last_reason or "no answer"
                where = nodesfile.join_host(meeting.host, meeting.bus_port)
                self._note("warning", "meet_given_up", address=where, reason=reason)
        elif meeting.dial is None and self._now_ms >= meeting.redial.due_at_ms:
            meeting.dial = self._dial(
                meeting, meeting.host, meeting.bus_port, meeting.expected, is_meet=True
            )

    # Helpers: peers

    def _restore(self, stored: StoredPeer) -> None:
        if stored.id == self._identity.id or stored.id in self._forgotten:
            return
        self._peers[stored.id] = Peer(
            id=stored.id,
            address=stored.address,
            redial=Backoff(self._now_ms),
            heard_at_ms=self._now_ms,
            boot=stored.boot,
            since=stored.since,
            is_leaving=bool(stored.flags & LEAVING),
            is_suspect=bool(stored.flags & (SUSPECT | FAILED)),
            is_failed=bool(stored.flags & FAILED),
            is_ghost=bool(stored.flags & NOADDR),
        )

    def _add_peer(self, identity: Identity, remote_host: str) -> Peer:
        address = Address(identity.host or remote_host, identity.port, identity.bus_port)
        peer = Peer(
            id=identity.id,
            address=address,
            redial=Backoff(self._now_ms),
            heard_at_ms=self._now_ms,
        )
        self._peers[peer.id] = peer
        for meeting in list(self._meetings.values()):
            if meeting.expected == peer.id:
                self._end_meeting(meeting)
        where = nodesfile.join_host(address.host, address.bus_port)
        self._note("info", "peer_joined", id=peer.id, address=where)
        self._changed(file=True)
        for other in self._peers.values():
            other.ping_at_ms = min(other.ping_at_ms, self._now_ms + NEWS_PING_MS)
        return peer

    def _meet_identity(self, peer: Peer, identity: Identity) -> None:
        """Take over what the handshake proved: boot, since, announced address."""
        if identity.boot > peer.boot:
            if peer.boot and peer.inbound is not None:
                self._ready.closes.append(peer.inbound)
                self._inbounds.pop(peer.inbound, None)
                peer.inbound = None
            if peer.boot and peer.link is not None:
                self._close_link(peer)  # its end died with the old process
            peer.boot = identity.boot
            self._changed(file=True)
        if identity.since != peer.since:
            peer.since = identity.since
            self._changed(file=True)
        self._announced(peer, identity.host, identity.port, identity.bus_port)

    def _announced(self, peer: Peer, host: str, port: int, bus_port: int) -> None:
        """An address from the peer's own mouth; without a host only the ports count."""
        peer.is_announced = bool(host)
        address = Address(host or peer.address.host, port, bus_port)
        if address != peer.address:
            self._move(peer, address)

    def _meet_socket(self, peer: Peer, identity: Identity, remote_host: str) -> None:
        """Without an announced host the socket's far end says where a peer lives, unless the old place works."""
        if identity.host or not remote_host:
            return
        seen = Address(remote_host, identity.port, identity.bus_port)
        if seen == peer.address:
            peer.alternate = None
        elif peer.link is None:
            peer.alternate = peer.address if peer.address.is_dialable else None
            self._move(peer, seen)
        else:
            peer.alternate = seen

    def _move(self, peer: Peer, address: Address) -> None:
        was = peer.address
        peer.address = address
        where = nodesfile.join_host(address.host, address.bus_port)
        self._note("info", "peer_moved", id=peer.id, address=where)
        self._changed(file=True)
        if peer.link is not None and (was.host, was.bus_port) != (address.host, address.bus_port):
            self._close_link(peer)
            peer.redial.reset(self._now_ms)

    def _forget(self, node: NodeId, *, everywhere: bool, by: NodeId) -> None:
        was_everywhere = self._forgotten.get(node)
        if was_everywhere is None or (everywhere and not was_everywhere):
            self._remember_forgotten(node, everywhere=everywhere)
            self._changed(file=True)
            self._note("info", "node_forgotten", id=node, everywhere=everywhere, by=by)
            if everywhere:
                for other in self._peers.values():
                    if other.id != node:
                        self._send(other, messages.Forgotten((node,)))
        for meeting in list(self._meetings.values()):
            if meeting.expected == node:
                self._end_meeting(meeting)
        peer = self._peers.get(node)
        if peer is None:
            return
        self._send(peer, messages.Forgotten((node,)))
        del self._peers[node]
        if peer.dial is not None:
            self._dials.pop(peer.dial, None)
        for conn, table in ((peer.link, self._links), (peer.inbound, self._inbounds)):
            if conn is not None:
                self._ready.closes.append(conn)
                table.pop(conn, None)
        self._forgotten_by.pop(node, None)
        for other in self._peers.values():
            other.reports.pop(node, None)
        for other in list(self._peers.values()):
            self._judge(other)  # the cluster is smaller: a majority, too

    def _remember_forgotten(self, node: NodeId, *, everywhere: bool) -> None:
        self._forgotten[node] = everywhere
        while len(self._forgotten) > FORGOTTEN_MAX:
            del self._forgotten[next(iter(self._forgotten))]
        self._forgotten_changed()

    def _forgotten_changed(self) -> None:
        self._forgotten_ids = frozenset(self._forgotten)
        self._tombstones = [node for node, everywhere in self._forgotten.items() if everywhere]

    def _obey_forget(self, teller: Peer, node: NodeId) -> None:
        if node == self._identity.id:
            self._told_forgotten(teller.id)
        elif self._forgotten.get(node) is not True and node != teller.id:
            self._forget(node, everywhere=True, by=teller.id)

    def _told_forgotten(self, by: NodeId) -> None:
        if by not in self._forgotten_by and len(self._forgotten_by) < PEERS_MAX:
            self._forgotten_by[by] = None
            self._note("warning", "cluster_forgotten_by", by=by, id=self._identity.id)

    # Helpers: handshakes

    def _refuses(self, peer: Identity, *, is_meet: bool) -> str | None:
        if peer.id in self._forgotten:
            return f"{handshake.FORGOTTEN}{self._identity.id}"
        known = self._peers.get(peer.id)
        if known is None and not is_meet:
            return f"{handshake.UNKNOWN_NODE} {peer.id} isn't in the table of {self._identity.id}"
        if known is None and len(self._peers) >= PEERS_MAX:
            return f"the cluster has {PEERS_MAX} nodes besides this one, no more are taken"
        if known is not None and peer.boot < known.boot:
            return f"boot {peer.boot} is smaller than {known.boot}, seen before (an old copy?)"
        return None

    def _refuses_dialed(self, target: Peer | Meeting, peer: Identity) -> str | None:
        if peer.id == self._identity.id:
            return f"{handshake.SELF} this is node {peer.id} itself"
        expected = target.id if isinstance(target, Peer) else target.expected
        if expected is not None and expected != peer.id:
            return f"{handshake.WRONG_ID} expected {expected}, {peer.id} answered"
        return self._refuses(peer, is_meet=True)

    def _start_meeting(
        self, host: str, bus_port: int, give_up_at_ms: int | None, expected: NodeId | None
    ) -> None:
        meeting = Meeting(
            host=host,
            bus_port=bus_port,
            redial=Backoff(self._now_ms),
            give_up_at_ms=give_up_at_ms,
            handle=self._dice.randbytes(20).hex(),
            expected=expected,
            is_by_hand=expected is None,
        )
        self._meetings[(host, bus_port)] = meeting
        self._tick_meeting(meeting)

    def _end_meeting(self, meeting: Meeting) -> None:
        self._meetings.pop((meeting.host, meeting.bus_port), None)
        if meeting.dial is not None:
            self._dials.pop(meeting.dial, None)
        self._is_wakeup_known = False

    def _is_meeting(self, peer: Peer) -> bool:
        """True if a handshake is on its way that will become this peer's link."""
        where = (peer.address.host, peer.address.bus_port)
        meeting = self._meetings.get(where)
        return meeting is not None and meeting.dial is not None

    def _dial_lost(self, target: Peer | Meeting, reason: str) -> None:
        self._is_wakeup_known = False
        target.redial.fail(self._now_ms, self._node_timeout_ms, self._dice)
        if reason.startswith(handshake.FORGOTTEN):
            by = reason.removeprefix(handshake.FORGOTTEN)[:40]
            if is_node_id(by):
                self._told_forgotten(NodeId(by))
            target.redial.due_at_ms = self._now_ms + REFUSED_BACKOFF_MS
        if isinstance(target, Meeting):
            self._meeting_failed(target, reason)
            return
        elsewhere = (handshake.WRONG_ID, handshake.SELF)
        if reason.startswith(elsewhere) and not target.is_ghost:
            target.is_ghost = True
            self._note("warning", "peer_is_ghost", id=target.id, reason=reason)
            self._changed(file=True)
        else:
            self._note("debug", "dial_failed", id=target.id, reason=reason)
        if target.alternate is not None:
            target.address, target.alternate = target.alternate, target.address
            self._changed()  # saved when one of them answers

    def _meeting_failed(self, meeting: Meeting, reason: str) -> None:
        is_self = reason.startswith(handshake.SELF)
        where = (meeting.host, meeting.bus_port)
        is_new = reason != meeting.last_reason
        meeting.last_reason = reason
        if is_self and (meeting.give_up_at_ms is not None or self._peers):
            self._end_meeting(meeting)  # MEET of the own address is harmless
        elif not meeting.is_by_hand and reason.startswith((handshake.WRONG_ID, handshake.FORGOTTEN)):
            self._end_meeting(meeting)
        elif self._meetings.get(where) is not meeting and meeting.give_up_at_ms is None:
            self._meetings[where] = meeting  # sticky: `dialed` took it out, go on
        if is_self or not meeting.is_by_hand:
            return
        self._handshakes_failed += 1
        self._last_failure = (nodesfile.join_host(*where), reason)
        if is_new:
            self._note("warning", "handshake_failed", address=self._last_failure[0], reason=reason)

    # Helpers: links

    def _dial_peer(self, peer: Peer) -> None:
        address = peer.address
        if address.is_dialable:
            peer.dial = self._dial(peer, address.host, address.bus_port, peer.id, is_meet=False)

    def _dial(
        self, target: Peer | Meeting, host: str, bus_port: int, expected: NodeId | None, is_meet: bool
    ) -> DialId:
        self._dials_drawn += 1
        dial = DialId(self._dials_drawn)
        self._dials[dial] = target
        self._ready.dials.append(Dial(dial, host, bus_port, expected, is_meet))
        self._is_wakeup_known = False
        return dial

    def _close_link(self, peer: Peer) -> None:
        if peer.link is not None:
            self._ready.closes.append(peer.link)
            self._links.pop(peer.link, None)
            peer.link = None
            self._link_lost(peer)

    def _link_lost(self, peer: Peer) -> None:
        peer.unanswered_since_ms = None
        peer.redial.fail(self._now_ms, self._node_timeout_ms, self._dice)
        self._changed()

    def _break_protocol(self, conn: ConnId, peer: Peer, reason: str) -> None:
        self._protocol_errors += 1
        self._note("warning", "peer_broke_protocol", id=peer.id, reason=reason)
        self._ready.closes.append(conn)
        self.closed(conn)

    def _ping_all(self) -> None:
        for peer in self._peers.values():
            if peer.link is not None:
                self._ping(peer)

    def _ping(self, peer: Peer, *, is_new_link: bool = False) -> None:
        self._send(peer, messages.Ping(self._gossip(peer, is_new_link=is_new_link)))
        peer.ping_at_ms = self._now_ms + failure.ping_interval_ms(self._node_timeout_ms)
        if peer.unanswered_since_ms is None:
            peer.unanswered_since_ms = self._now_ms
        self._is_wakeup_known = False

    def _send(self, peer: Peer, message: messages.Message) -> None:
        if peer.link is not None:
            self._frame(peer.link, message)

    def _frame(self, conn: ConnId, message: messages.Message) -> None:
        self._ready.frames.append((conn, messages.encode(message)))
        self._sent += 1

    # Helpers: gossip and failure

    def _gossip(self, receiver: Peer, *, is_new_link: bool = False) -> Gossip:
        own = self._identity
        forgotten, self._tombstone_cursor = gossip.take_turns(
            self._tombstones, self._tombstone_cursor
        )
        return Gossip(
            boot=own.boot,
            is_leaving=self._is_leaving,
            host=own.host,
            port=own.port,
            bus_port=own.bus_port,
            entries=gossip.choose(
                self._peers.values(), receiver.id, self._dice, is_new_link=is_new_link
            ),
            forgotten=forgotten,
        )

    def _learn(self, teller: Peer, told: Gossip) -> None:
        if told.is_leaving != teller.is_leaving:
            teller.is_leaving = told.is_leaving
            self._note("info", "peer_leaving", id=teller.id, leaving=told.is_leaving)
            self._changed(file=True)
        self._announced(teller, told.host, told.port, told.bus_port)
        for node in told.forgotten:
            self._obey_forget(teller, node)
        for entry in told.entries:
            known = self._peers.get(entry.id)
            if known is not None:
                self._report(teller, known, entry)
            elif entry.id not in self._forgotten and entry.id != self._identity.id:
                self._invite(entry)

    def _report(self, teller: Peer, peer: Peer, entry: GossipEntry) -> None:
        if peer is teller:
            return
        if entry.flags & (SUSPECT | FAILED):
            peer.reports[teller.id] = self._now_ms
            self._judge(peer)
            return
        peer.reports.pop(teller.id, None)
        address = Address(entry.host, entry.port, entry.bus_port)
        is_elsewhere = address != peer.address and address.is_dialable
        if is_elsewhere and peer.link is None and not entry.flags & NOADDR:
            if peer.is_suspect or peer.is_ghost:
                peer.alternate = address

    def _invite(self, entry: GossipEntry) -> None:
        """First contact with a node that others know: only one that is well, so that ghosts don't spread."""
        where = (entry.host, entry.bus_port)
        if entry.flags & (SUSPECT | FAILED | NOADDR) or not entry.host or not entry.bus_port:
            return
        is_expected = any(meeting.expected == entry.id for meeting in self._meetings.values())
        if where in self._meetings or is_expected or len(self._meetings) >= MEETINGS_MAX:
            return
        if len(self._peers) < PEERS_MAX:
            self._start_meeting(*where, self._now_ms + self._node_timeout_ms, entry.id)

    def _judge(self, peer: Peer) -> None:
        """Suspect and missed by a majority: failed, and tell everybody."""
        if not peer.is_suspect or peer.is_failed:
            return
        size = 1 + len(self._peers)
        if failure.is_failed(peer.reports, self._now_ms, self._node_timeout_ms, size):
            self._fail(peer, by=self._identity.id)
            for other in self._peers.values():
                if other is not peer:
                    self._send(other, messages.Fail(peer.id))

    def _believe_failed(self, teller: Peer, node: NodeId) -> None:
        peer = self._peers.get(node)
        if peer is None or peer is teller or peer.is_failed:
            return
        if not failure.is_hearing(self._now_ms, peer.heard_at_ms, self._node_timeout_ms):
            self._fail(peer, by=teller.id)

    def _fail(self, peer: Peer, *, by: NodeId) -> None:
        peer.is_suspect = peer.is_failed = True
        self._note("warning", "peer_failed", id=peer.id, by=by)
        self._changed(file=True)

    def _heard(self, peer: Peer) -> None:
        peer.heard_at_ms = self._now_ms
        if (peer.is_suspect or peer.is_failed) and peer.suspects_gone():
            self._note("info", "peer_back", id=peer.id)
            self._changed(file=True)

    # Helpers: rest

    def _self(self) -> roster.Self:
        host = self._identity.host or self._learned_host
        return roster.Self(self._identity, host, self._is_leaving)

    def _learn_own_host(self, host: str) -> None:
        """From a socket's near end; a loopback address gives way to another, otherwise the first one stays."""
        was = self._learned_host
        is_better = not was or (_is_loopback(was) and not _is_loopback(host))
        if host and is_better and host != was and messages.is_host(host):
            self._learned_host = host
            self._changed(file=True)

    def _changed(self, *, file: bool = False) -> None:
        self._view = None
        self._is_view_due = True
        self._is_wakeup_known = False
        self._is_file_due = self._is_file_due or file

    def _note(self, level: str, event: str, **facts: object) -> None:
        self._ready.notes.append(Note(level, event, tuple(facts.items())))


def _is_loopback(host: str) -> bool:
    return host.startswith("127.") or host == "::1"
