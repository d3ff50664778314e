"""Timers: what is due for peers, and what follows when a dial comes to nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster import dialing, failure, forgetting, handshake, meetings, suspicion
from cluster.peer import REFUSED_BACKOFF_MS, Meeting, Peer

if TYPE_CHECKING:
    from cluster.state import State


def due_times(state: State) -> list[int]:
    """All instants at which something is to be done."""
    times: list[int] = []
    unanswered_max_ms = failure.unanswered_max_ms(state.node_timeout_ms)
    for peer in state.peers.values():
        if not peer.is_suspect:
            times.append(peer.heard_at_ms + state.node_timeout_ms + 1)
        if peer.link is not None:
            times.append(peer.ping_at_ms)
            if peer.unanswered_since_ms is not None:
                times.append(peer.unanswered_since_ms + unanswered_max_ms)
        elif peer.dial is None and peer.address.is_dialable:
            times.append(peer.redial.due_at_ms)
    for meeting in state.meetings.values():
        if meeting.dial is None:
            times.append(meeting.redial.due_at_ms)
        if meeting.give_up_at_ms is not None:
            times.append(meeting.give_up_at_ms)
    return times


def tick_peer(state: State, peer: Peer) -> None:
    """Do what is due for one peer: suspect it, dial, ping, or drop a dead link."""
    now_ms, timeout_ms = state.now_ms, state.node_timeout_ms
    if not peer.is_suspect and failure.is_silent(now_ms, peer.heard_at_ms, timeout_ms):
        peer.is_suspect = True
        state.note("warning", "peer_suspect", id=peer.id, silent_ms=now_ms - peer.heard_at_ms)
        state.changed(file=True)
        suspicion.judge(state, peer)
    if peer.link is None:
        if peer.dial is None and now_ms >= peer.redial.due_at_ms and peer.address.is_dialable:
            dialing.dial_peer(state, peer)
        return
    since_ms = peer.unanswered_since_ms
    if since_ms is not None and now_ms - since_ms >= failure.unanswered_max_ms(timeout_ms):
        state.note("info", "link_unanswered", id=peer.id, unanswered_ms=now_ms - since_ms)
        dialing.close(state, peer)
    elif now_ms >= peer.ping_at_ms:
        dialing.ping(state, peer)


def dial_lost(state: State, target: Peer | Meeting, reason: str) -> None:
    """A dial came to nothing: back off, and draw what the reason tells."""
    state.is_wakeup_known = False
    target.redial.fail(state.now_ms, state.node_timeout_ms, state.dice)
    forgetter = handshake.forgetter_in(reason)
    # If it was this node that has forgotten the other, the other may soon come back as a new one.
    if forgetter is not None and forgetter != state.identity.id:
        forgetting.told_forgotten(state, forgetter)
        target.redial.due_at_ms = state.now_ms + REFUSED_BACKOFF_MS
    if isinstance(target, Meeting):
        meetings.failed(state, target, reason)
        return
    target.is_refusing = False
    elsewhere = (handshake.WRONG_ID, handshake.SELF)
    if reason.startswith(elsewhere) and not target.is_ghost:
        target.is_ghost = True
        state.note("warning", "peer_is_ghost", id=target.id, reason=reason)
        state.changed(file=True)
    elif reason.startswith(handshake.UNREACHED) or forgetter is not None or target.is_ghost:
        state.note("debug", "dial_failed", id=target.id, reason=reason)
    else:
        target.is_refusing = True
        state.note_rarely("warning", "link_refused", target.id, reason=reason)
    if target.alternate is not None:
        target.address, target.alternate = target.alternate, target.address
        state.changed()  # saved when one of them answers
