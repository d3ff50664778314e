"""Membership: who is in the cluster, who can be reached, and who has failed.

A pure state machine; `bus` or a simulator does what `take_ready` asks. It carries payloads and
doesn't look into them.

One connection carries data one way. Every node dials every other; PING, gossip, PONG and payloads
go out only on the link *I* dialed, so a PONG comes over the answerer's own link and proves both
directions. Connections I accepted only bring. From Redis Cluster by way of Disque (cluster.c);
other than there: forgotten is final for an id (rule M16), a smaller boot is ignored (M17), only a
MEET or the first contact by gossip makes an unknown node known, and a failed node is one that a
majority doesn't hear, links or not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from cluster import (
    contacts,
    dialing,
    forgetting,
    handshake,
    meetings,
    messages,
    nodesfile,
    roster,
    suspicion,
    timers,
)
from cluster.errors import LocalProtocolError, RemoteProtocolError
from cluster.meetings import MEET_GIVE_UP_MS, MEETINGS_MAX
from cluster.nodesfile import FORGOTTEN_MAX, StoredNodes
from cluster.peer import Address, Dice, Meeting, Peer
from cluster.ready import ClusterReady, ConnId, DialId, Identity
from cluster.state import State

if TYPE_CHECKING:
    from cluster.messages import Gossip
    from cluster.nodeid import NodeId
    from cluster.view import ClusterView

__all__ = [
    "Dice",
    "Identity",
    "Membership",
    "MembershipConfig",
    "MembershipStatistics",
    "StoredNodes",
]

MEETING_PATIENCE_MS = 1_000  # a handshake under way may become a peer's link within this


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
    # Peers that are reached, and don't let this node in, or aren't believed by it
    refused_by: tuple[NodeId, ...]
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
        """`config` has the announced address, whatever `identity` says; `stored`: see nodesfile."""
        self._state = State(
            identity=attrs.evolve(
                identity, host=config.host, port=config.port, bus_port=config.bus_port
            ),
            node_timeout_ms=config.node_timeout_ms,
            is_leaving=stored.leaving,
            dice=dice,
            now_ms=now_ms,
        )
        self._last_payload: tuple[bytes, bytes] | None = None
        self._shown_view: ClusterView | None = None
        self._saved_nodes: StoredNodes | None = None
        self._state.forgotten.update(stored.forgotten[-FORGOTTEN_MAX:])
        self._state.drained = stored.drained
        self._state.forgotten_changed()
        for each in stored.peers:
            contacts.restore(self._state, each)

    # Time

    def advance(self, now_ms: int) -> None:
        """Fire what is due; time never goes back."""
        now_ms = max(now_ms, self._state.now_ms)
        due_ms = self.next_wakeup_ms()
        self._state.now_ms = now_ms
        if due_ms is None or now_ms < due_ms:
            return
        suspicion.forgive_own_sleep(self._state, now_ms - due_ms)
        self._state.is_wakeup_known = False
        for peer in list(self._state.peers.values()):
            timers.tick_peer(self._state, peer)
        for meeting in list(self._state.meetings.values()):
            meetings.tick(self._state, meeting)

    def next_wakeup_ms(self) -> int | None:
        """When `advance` has something to do next; None if only an input can bring that."""
        if not self._state.is_wakeup_known:
            self._state.wakeup_ms = min(timers.due_times(self._state), default=None)
            self._state.is_wakeup_known = True
        return self._state.wakeup_ms

    # Connections

    def dialed(
        self, dial: DialId, conn: ConnId, peer: Identity, own_host: str, remote_host: str
    ) -> None:
        """My dial reached `peer` and both sides proved themselves; hosts are those of the socket's two ends."""
        target = self._state.dials.pop(dial, None)
        self._state.is_wakeup_known = False
        if target is None:  # forgotten or reset meanwhile
            self._state.ready.closes.append(conn)
            return
        target.dial = None
        self._state.learn_own_host(own_host)
        if isinstance(target, Meeting):
            self._state.meetings.pop((target.host, target.bus_port), None)
        reason = contacts.refuses_dialed(self._state, target, peer)
        if reason is not None:
            if peer.id in self._state.forgotten and not meetings.is_unasked(target):
                self._state.frame(conn, messages.Forgotten((peer.id,)))
            self._state.ready.closes.append(conn)
            timers.dial_lost(self._state, target, reason)
            return
        known = self._state.peers.get(peer.id)
        if known is None:
            known = contacts.add_peer(self._state, peer, remote_host)
        elif isinstance(target, Meeting) and not peer.host:
            contacts.move(self._state, known, Address(remote_host, peer.port, peer.bus_port))
        contacts.meet_identity(self._state, known, peer)
        known.is_ghost = known.is_refusing = False
        self._state.forgotten_by.pop(known.id, None)
        # The newer one counts; where two dials crossed, each side may drop another one, and both are dialed anew
        if known.link is not None:
            self._state.ready.closes.append(known.link)
            self._state.links.pop(known.link, None)
        known.link = conn
        self._state.links[conn] = known
        known.redial.linked(self._state.now_ms)
        known.unanswered_since_ms = None
        self._state.changed(file=True)
        dialing.ping(self._state, known, is_new_link=True)
        # Else two that link by turns, each as the other gives its own up for unanswered, could go on so for long
        if known.is_pong_owed:
            known.is_pong_owed = False
            if known.inbound is not None:
                dialing.pong(self._state, known)

    def dial_failed(self, dial: DialId, reason: str) -> None:
        """The dial came to nothing; what `reason` begins with may matter (see handshake.py)."""
        target = self._state.dials.pop(dial, None)
        if target is not None:
            target.dial = None
            timers.dial_lost(self._state, target, reason)

    def admits(self, peer: Identity, expected: NodeId | None, is_meet: bool) -> str | None:
        """Whether a proven dialer may come in: None, or why not; ask before `accepted`."""
        own = self._state.identity
        if peer.id == own.id:
            if peer == own:
                return f"{handshake.SELF} this is node {own.id} itself"
            self._state.note(
                "warning", "duplicate_node_id", id=peer.id, host=peer.host, port=peer.port
            )
            return f"{handshake.DUPLICATE} another process runs with the id {own.id}"
        if expected is not None and expected != own.id:
            return f"{handshake.WRONG_ID} expected {expected}, {own.id} answered"
        reason = contacts.refuses(self._state, peer, is_meet=is_meet)
        if reason is not None and peer.id in self._state.peers:
            self._state.note_rarely("warning", "peer_refused", peer.id, reason=reason)
        return reason

    def accepted(
        self, conn: ConnId, peer: Identity, is_meet: bool, own_host: str, remote_host: str
    ) -> None:
        """A dialer that `admits` let in; frames on `conn` count as its words from now on."""
        self._state.is_wakeup_known = False
        reason = contacts.refuses(self._state, peer, is_meet=is_meet)
        if peer.id == self._state.identity.id or reason is not None:
            self._state.ready.closes.append(conn)
            return
        self._state.learn_own_host(own_host)
        known = self._state.peers.get(peer.id)
        if known is None:
            known = contacts.add_peer(self._state, peer, remote_host)
        contacts.meet_identity(self._state, known, peer)
        contacts.meet_socket(self._state, known, peer, remote_host)
        if known.inbound is not None:
            self._state.ready.closes.append(known.inbound)
            self._state.inbounds.pop(known.inbound, None)
        known.inbound = conn
        known.is_inbound_new_meet = is_meet
        self._state.inbounds[conn] = known
        known.is_ghost = False
        self._state.forgotten_by.pop(known.id, None)
        self._state.changed(file=True)
        suspicion.heard(self._state, known)
        if known.link is None and known.dial is None:
            known.redial.hurry(self._state.now_ms)
            if meetings.is_under_way(self._state, known):
                known.redial.due_at_ms += MEETING_PATIENCE_MS
            else:
                dialing.dial_peer(self._state, known)

    def frame(self, conn: ConnId, body: bytes) -> None:
        """A frame's body came on `conn`; those of superseded and unknown connections are dropped."""
        peer = self._state.inbounds.get(conn)
        if peer is None:
            if conn in self._state.links:
                self._break_protocol(
                    conn, self._state.links[conn], "a dialed link brings no frames"
                )
            return
        self._state.received += 1
        try:
            message = messages.decode(body)
        except RemoteProtocolError as error:
            self._break_protocol(conn, peer, str(error))
            return
        suspicion.heard(self._state, peer)
        is_first_of_meet, peer.is_inbound_new_meet = peer.is_inbound_new_meet, False
        match message:
            case messages.Payload(boot=boot, data=data):
                if boot == peer.boot:
                    self._state.ready.payloads.append((peer.id, boot, data))
            case messages.Ping(gossip=told):
                self._learn(peer, told)
                if self._state.peers.get(peer.id) is peer:
                    peer.is_pong_owed = peer.link is None
                    if peer.link is not None:
                        dialing.pong(self._state, peer)
            case messages.Pong(gossip=told):
                peer.ponged_at_ms = self._state.now_ms
                peer.unanswered_since_ms = None
                self._state.is_wakeup_known = False
                self._learn(peer, told)
            case messages.Fail(node=node):
                suspicion.believe_failed(self._state, peer, node)
            case messages.Forgotten(nodes=nodes):
                own = self._state.identity.id
                if own in nodes and is_first_of_meet:
                    self._state.is_called_back = True  # somebody there ordered the MEET
                forgetting.obey(self._state, peer, nodes)

    def closed(self, conn: ConnId) -> None:
        """`conn` broke or was closed by the other side; unknown ones are ignored."""
        self._state.is_wakeup_known = False
        peer = self._state.links.pop(conn, None)
        if peer is not None:
            peer.link = None
            # As frames that are too long for the other side make it
            if not peer.redial.has_lasted(self._state.now_ms):
                lasted_ms = self._state.now_ms - peer.redial.linked_at_ms
                self._state.note_rarely("info", "link_short", peer.id, lasted_ms=lasted_ms)
            dialing.lost(self._state, peer)
            return
        peer = self._state.inbounds.pop(conn, None)
        if peer is not None:
            peer.inbound = None
            self._state.changed()

    # Commands

    def meet(self, host: str, bus_port: int, *, is_sticky: bool = False) -> None:
        """Try to reach a node at an address (host may be a name) until it's known; a second order changes nothing.

        Given up, with a note, after MEET_GIVE_UP_MS or a node timeout; sticky: never. LocalProtocolError for
        what can't be an address, or with 64 handshakes pending.
        """
        host = host.removeprefix("[").removesuffix("]")
        if not host or not messages.is_host(host) or not 0 < bus_port <= 65535:
            raise LocalProtocolError(f"Invalid node address specified: {host:.80}:{bus_port}")
        give_up_at_ms = None
        if not is_sticky:
            give_up_at_ms = self._state.now_ms + max(self._state.node_timeout_ms, MEET_GIVE_UP_MS)
        known = self._state.meetings.get((host, bus_port))
        if known is not None:
            known.is_by_hand = True
            known.expected = None  # gossip may have begun it, and insisted on an id
            if known.give_up_at_ms is not None:
                known.give_up_at_ms = give_up_at_ms
            self._state.is_wakeup_known = False
            return
        if len(self._state.meetings) >= MEETINGS_MAX:
            raise LocalProtocolError(f"{MEETINGS_MAX} handshakes are pending, try again later")
        meetings.start(self._state, host, bus_port, give_up_at_ms, expected=None)

    def forget(self, node: NodeId, *, everywhere: bool = False) -> None:
        """Drop a node for good (rule M16); `everywhere` gossips that. LocalProtocolError if unknown or self."""
        if node == self._state.identity.id:
            raise LocalProtocolError("I tried hard but I can't forget myself...")
        if node not in self._state.peers and not (everywhere and node in self._state.forgotten):
            raise LocalProtocolError(f"Unknown node {node}")
        forgetting.forget(self._state, (node,), everywhere=everywhere, by=self._state.identity.id)

    def reset(self, *, new_id: NodeId | None) -> None:
        """Forget all peers without tombstones; with `new_id` (HARD) tombstones go, too. The leaving flag stays."""
        for conn in [*self._state.links, *self._state.inbounds]:
            self._state.ready.closes.append(conn)
        for table in (
            self._state.links,
            self._state.inbounds,
            self._state.dials,
            self._state.peers,
            self._state.meetings,
            self._state.unmet,
        ):
            table.clear()
        self._state.forgotten_by.clear()
        self._state.is_called_back = False
        if new_id is not None:
            self._state.identity = attrs.evolve(self._state.identity, id=new_id)
            self._state.forgotten.clear()
            self._state.forgotten_changed()
        self._state.note(
            "info", "cluster_reset", id=self._state.identity.id, hard=new_id is not None
        )
        self._state.changed(file=True)

    def come_back(self, new_id: NodeId) -> None:
        """Become another node because this one was forgotten: the old id is forgotten here, too (rule M16).

        Meetings that were ordered by hand go on.
        """
        old = self._state.identity.id
        forgotten = dict(self._state.forgotten)
        ordered = [each for each in self._state.meetings.values() if each.is_by_hand]
        self.reset(new_id=new_id)
        for each in ordered:
            meetings.start(self._state, each.host, each.bus_port, each.give_up_at_ms, expected=None)
        self._state.forgotten.update(forgotten)
        self._state.remember_forgotten((old,), everywhere=False)
        self._state.learn_drained((old,))  # its copies wait here, under the new id (B2.8)

    @property
    def is_called_back(self) -> bool:
        """A MEET by hand, from here or from there, was answered that this node is forgotten: `come_back` is due."""
        return self._state.is_called_back

    def set_leaving(self, leaving: bool) -> None:
        """Spread, or take back, that this node is leaving; kept over restarts."""
        if leaving != self._state.is_leaving:
            self._state.is_leaving = leaving
            self._state.changed(file=True)
            dialing.ping_all(self._state)

    def set_left(self, has_left: bool) -> None:
        """Spread that this leaving node has handed everything over, or that this isn't so (any more)."""
        if has_left != self._state.has_left:
            self._state.has_left = has_left
            self._state.left_at_ms = self._state.now_ms
            self._state.changed()
            dialing.ping_all(self._state)

    @property
    def is_left_told(self) -> bool:
        """True if this node has left, and all who can be reached have heard it."""
        state = self._state
        reachable = [peer for peer in state.peers.values() if peer.is_reachable]
        return state.has_left and all(
            [p.unanswered_since_ms is None or p.ponged_at_ms > state.left_at_ms for p in reachable]
        )

    def set_node_timeout(self, ms: int) -> None:
        """Change the time after which a silent node is suspect."""
        self._state.node_timeout_ms = ms
        self._state.changed()

    def set_boot(self, boot: int, *, since: int) -> None:
        """This boot, and the first of which this node's store holds every record; before any peer is met."""
        self._state.identity = attrs.evolve(self._state.identity, boot=boot, since=since)
        self._state.changed()

    def set_announce(self, host: str, port: int, bus_port: int, tls_port: int) -> None:
        """Change the announced address and tell all peers; host "" lets them use the socket's."""
        self._state.identity = attrs.evolve(
            self._state.identity, host=host, port=port, bus_port=bus_port, tls_port=tls_port
        )
        self._state.changed(file=True)
        dialing.ping_all(self._state)

    # Payloads

    def send(self, peer: NodeId, payload: bytes) -> bool:
        """Send opaque bytes on my own link; False, and dropped, if there is none."""
        known = self._state.peers.get(peer)
        if known is None or known.link is None:
            return False
        if self._last_payload is None or self._last_payload[0] is not payload:
            body = messages.encode(messages.Payload(self._state.identity.boot, payload))
            self._last_payload = (payload, body)
        self._state.ready.frames.append((known.link, self._last_payload[1]))
        self._state.sent += 1
        return True

    # What is known

    @property
    def identity(self) -> Identity:
        """Who this node is now, as handshakes tell it; `reset` and `set_announce` change it."""
        return self._state.identity

    def view(self) -> ClusterView:
        """The cluster as this node sees it now."""
        if self._state.view is None:
            self._state.view = roster.make_view(
                self._state.own(),
                self._state.peers,
                self._state.forgotten_ids,
                self._state.drained,
                self._state.node_timeout_ms,
                is_forgotten=bool(self._state.forgotten_by),
                has_unmet=bool(self._state.unmet),
            )
        return self._state.view

    def take_payloads(self) -> list[tuple[NodeId, int, bytes]]:
        """The payloads since the last call, each with sender and its boot, for the core at once."""
        payloads, self._state.ready.payloads = self._state.ready.payloads, []
        return payloads

    def take_ready(self) -> ClusterReady:
        """What is to be done since the last call."""
        ready, self._state.ready = self._state.ready, ClusterReady()
        self._last_payload = None
        if self._state.is_file_due:
            self._state.is_file_due = False
            stored = roster.make_stored(
                self._state.own(),
                self._state.peers.values(),
                self._state.forgotten,
                self._state.drained,
            )
            if stored != self._saved_nodes:
                self._saved_nodes = stored
                ready.nodes_file = nodesfile.format(stored)
        if self._state.is_view_due:
            self._state.is_view_due = False
            view = self.view()
            if view != self._shown_view:
                self._shown_view = ready.view = view
        return ready

    def statistics(self) -> MembershipStatistics:
        """Counters and facts for CLUSTER INFO."""
        return MembershipStatistics(
            messages_sent=self._state.sent,
            messages_received=self._state.received,
            known_nodes=1 + len(self._state.peers) + len(self._state.meetings),
            handshakes_pending=len(self._state.meetings),
            handshakes_failed=self._state.handshakes_failed,
            last_handshake_failure=self._state.last_failure,
            forgotten_by=tuple(self._state.forgotten_by),
            refused_by=tuple([p.id for p in self._state.peers.values() if p.is_refusing]),
            protocol_errors=self._state.protocol_errors,
        )

    def nodes_text(self) -> str:
        """The text of CLUSTER NODES."""
        return roster.make_table(
            self._state.own(), self._state.peers.values(), self._state.meetings.values()
        )

    # Helpers

    def _break_protocol(self, conn: ConnId, peer: Peer, reason: str) -> None:
        self._state.protocol_errors += 1
        self._state.note_rarely("warning", "peer_broke_protocol", peer.id, reason=reason)
        self._state.ready.closes.append(conn)
        self.closed(conn)

    def _learn(self, teller: Peer, told: Gossip) -> None:
        if told.is_leaving != teller.is_leaving:
            teller.is_leaving = told.is_leaving
            event = "peer_leaving" if told.is_leaving else "peer_stays"
            self._state.note_rarely("info", event, teller.id)
            self._state.changed(file=True)
        if told.has_left != teller.has_left:
            teller.has_left = told.has_left
            self._state.changed(file=True)
        if told.tls_port != teller.tls_port:
            teller.tls_port = told.tls_port
            self._state.changed()
        contacts.announced(self._state, teller, told.host, told.port, told.bus_port)
        forgetting.obey(self._state, teller, told.forgotten)
        self._state.learn_drained(told.drained)
        for entry in told.entries:
            known = self._state.peers.get(entry.id)
            if known is not None:
                suspicion.report(self._state, teller, known, entry)
            elif entry.id not in self._state.forgotten and entry.id != self._state.identity.id:
                self._state.hear_of(entry.id)
                meetings.invite(self._state, entry)
        self._state.review_unmet()
