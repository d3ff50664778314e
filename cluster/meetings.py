"""Meetings: addresses where a node should be that isn't known yet, by MEET, cluster-join or gossip."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster import dialing, handshake, nodesfile
from cluster.messages import FAILED, NOADDR, SUSPECT, GossipEntry
from cluster.nodesfile import PEERS_MAX
from cluster.peer import Backoff, Meeting, Peer

if TYPE_CHECKING:
    from cluster.nodeid import NodeId
    from cluster.state import State

MEETINGS_MAX = 64
MEET_GIVE_UP_MS = 180_000  # a MEET is tried for this long, or for a node timeout if that is longer


def start(
    state: State, host: str, bus_port: int, give_up_at_ms: int | None, expected: NodeId | None
) -> None:
    """Begin to look for a node at an address; dials at once."""
    meeting = Meeting(
        host=host,
        bus_port=bus_port,
        redial=Backoff(state.now_ms),
        give_up_at_ms=give_up_at_ms,
        handle=state.dice.randbytes(20).hex(),
        expected=expected,
        is_by_hand=expected is None,
    )
    state.meetings[(host, bus_port)] = meeting
    tick(state, meeting)


def end(state: State, meeting: Meeting) -> None:
    """Stop looking; a dial under way will be ignored."""
    state.meetings.pop((meeting.host, meeting.bus_port), None)
    if meeting.dial is not None:
        state.dials.pop(meeting.dial, None)
    state.is_wakeup_known = False


def tick(state: State, meeting: Meeting) -> None:
    """Give up, or dial again, if it is time."""
    if meeting.give_up_at_ms is not None and state.now_ms >= meeting.give_up_at_ms:
        end(state, meeting)
        if meeting.is_by_hand:
            reason = meeting.last_reason or "no answer"
            where = nodesfile.join_host(meeting.host, meeting.bus_port)
            state.note("warning", "meet_given_up", address=where, reason=reason)
    elif meeting.dial is None and state.now_ms >= meeting.redial.due_at_ms:
        meeting.dial = dialing.dial(
            state, meeting, meeting.host, meeting.bus_port, meeting.expected, is_meet=True
        )


def failed(state: State, meeting: Meeting, reason: str) -> None:
    """A dial of a meeting came to nothing: count and note it if somebody ordered it, go on or end."""
    is_self = reason.startswith(handshake.SELF)
    where = (meeting.host, meeting.bus_port)
    is_new = reason != meeting.last_reason
    meeting.last_reason = reason
    if is_self and (meeting.give_up_at_ms is not None or state.peers):
        end(state, meeting)  # MEET of the own address is harmless
    elif not meeting.is_by_hand and reason.startswith((handshake.WRONG_ID, handshake.FORGOTTEN)):
        end(state, meeting)
    elif where not in state.meetings and meeting.is_by_hand:
        # `dialed` took it out; who was forgotten may come back as another.
        state.meetings[where] = meeting
    if is_self or not meeting.is_by_hand:
        return
    forgetter = handshake.forgetter_in(reason)
    if forgetter not in (None, state.identity.id) and not is_unasked(meeting):
        state.is_called_back = True
    state.handshakes_failed += 1
    state.last_failure = (nodesfile.join_host(*where), reason)
    if is_new:
        # An address in the configuration may belong to a node that starts later
        is_awaited = meeting.give_up_at_ms is None and reason.startswith(handshake.UNREACHED)
        level = "info" if is_awaited else "warning"
        state.note(level, "handshake_failed", address=state.last_failure[0], reason=reason)


def is_unasked(target: Peer | Meeting) -> bool:
    """True for a dial that nobody ordered now: gossip's, or that of an address in the configuration."""
    if isinstance(target, Peer):
        return False
    return not target.is_by_hand or target.give_up_at_ms is None


def invite(state: State, entry: GossipEntry) -> None:
    """First contact with a node that others know: only one that is well, so that ghosts don't spread."""
    where = (entry.host, entry.bus_port)
    if entry.flags & (SUSPECT | FAILED | NOADDR) or not entry.host or not entry.bus_port:
        return
    is_expected = any(meeting.expected == entry.id for meeting in state.meetings.values())
    if where in state.meetings or is_expected or len(state.meetings) >= MEETINGS_MAX:
        return
    if len(state.peers) < PEERS_MAX:
        start(state, *where, state.now_ms + state.node_timeout_ms, entry.id)


def is_under_way(state: State, peer: Peer) -> bool:
    """True if a handshake is on its way that will become this peer's link."""
    where = (peer.address.host, peer.address.bus_port)
    meeting = state.meetings.get(where)
    return meeting is not None and meeting.dial is not None
