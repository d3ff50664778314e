"""RETRY 0 jobs change their owner by numbered moves: in doubt nobody delivers (M20, B6).

The source never sends a job twice under one number; it asks. *No* can come only from the boot that the number was made
for: after a restart the receiver may have delivered the job and forgotten it.
"""

from __future__ import annotations

from cluster.nodeid import NodeId
from disque.core import messages as msg
from disque.core.copies import claim_copy, insert, record_copy, remove, shift, take_out
from disque.core.delivery import is_paused_in, start
from disque.core.job import Event, Job, JobState
from disque.core.state import OpenMove, Peer, State, is_willing, peer_of, record, send, wake


def can_move_to(state: State, node: NodeId, queue: bytes) -> bool:
    """True if one more move of this queue to this peer may be opened (B6.2)."""
    if not is_willing(state, node, queue) or state.view.members[node].boot == 0:
        return False
    return len(peer_of(state, node).moves) < state.limits.moves_open_max


def move_out(state: State, job: Job, node: NodeId) -> None:
    """Hand a queued RETRY 0 job to a peer; until it answers, nobody here delivers it (B6.2)."""
    take_out(state, job, Event.UNQUEUE)
    peer = peer_of(state, node)
    boot, n = state.view.members[node].boot, peer.move_next
    peer.move_next += 1
    peer.moves[boot, n] = OpenMove(job, boot, n)
    shift(state, job, Event.MOVE)
    job.queued_at = node
    record(state, "move", job.id, node, boot, n, is_urgent=True)
    wake(state, job, job.expires_at)
    body = job.body
    assert body is not None, f"{job.id!r} has no body to move"
    expires_in = max(0, job.expires_at - state.now_ms)
    move = msg.Move(boot, n, _settled(peer, boot), job.id, job.live_spec, body, expires_in)
    send(state, (node,), move)
    if peer.wake_at is None:
        peer.move_round = 0
        wake(state, peer, state.now_ms + state.limits.move_ask_first_ms)


def _settled(peer: Peer, boot: int) -> int:
    """All numbers of this boot below it are closed here."""
    return min([n for b, n in peer.moves if b == boot], default=peer.move_next)


def on_move(state: State, peer_id: NodeId, said: msg.Move) -> None:
    """Take a RETRY 0 job over, once (B6.3)."""
    if said.boot != state.boot:
        return
    peer = peer_of(state, peer_id)
    for n in [n for n in peer.moves_taken if n < said.settled]:
        del peer.moves_taken[n]
    if said.n > peer.move_high:
        peer.move_high = said.n
        if _takes(state, said):
            peer.moves_taken[said.n] = None
            _own(state, said)
    _answer_move(state, peer, said.n)


def _takes(state: State, said: msg.Move) -> bool:
    if said.spec.retry_ms or not said.expires_in:
        return False
    return not state.view.is_leaving and not is_paused_in(state, said.spec.queue)


def _own(state: State, said: msg.Move) -> None:
    known = state.jobs.get(said.id)
    if known is not None and known.state is JobState.MOVING:
        # It comes back before its earlier move was confirmed: that move did happen.
        remove(state, known)
        known = None
    if known is not None or said.id in state.tombstones or said.id in state.long_tombstones:
        return  # dispatched or cancelled here: it must not live a second time
    job = Job(
        id=said.id,
        spec=said.spec,
        body=said.body,
        state=JobState.ACTIVE,
        expires_at=state.now_ms + said.expires_in,
        holders=(state.self_id,),
    )
    claim_copy(state, job)
    insert(state, job)
    record_copy(state, job)
    start(state, job)


def _answer_move(state: State, peer: Peer, n: int) -> None:
    send(state, (peer.id,), msg.GotMove(state.boot, n, n in peer.moves_taken))


def on_got_move(state: State, peer_id: NodeId, said: msg.GotMove) -> None:
    """Yes: the job is the peer's. No: it is ours again, and may be queued (B6.4)."""
    peer = peer_of(state, peer_id)
    move = peer.moves.pop((said.boot, said.n), None)
    if move is None:
        return
    if not peer.moves:
        state.agenda.cancel(peer)
    job = move.job
    if state.jobs.get(job.id) is not job or job.state is not JobState.MOVING:
        return
    if said.is_taken:
        remove(state, job)
        record(state, "gone", job.id)
    else:
        shift(state, job, Event.RETURN)
        record(state, "returned", job.id)
        start(state, job)


def on_ask_move(state: State, peer_id: NodeId, said: msg.AskMove) -> None:
    """Answer for this boot alone, and close the number if it never came (B6.5)."""
    if said.boot != state.boot:
        return
    peer = peer_of(state, peer_id)
    peer.move_high = max(peer.move_high, said.n)
    _answer_move(state, peer, said.n)


def moves_due(state: State, peer: Peer) -> None:
    """Ask about the moves that weren't answered, ever more rarely (B6.5)."""
    if not peer.moves:
        return
    for boot, n in peer.moves:
        send(state, (peer.id,), msg.AskMove(boot, n))
    limits = state.limits
    delay = min(limits.move_ask_first_ms << min(peer.move_round, 10), limits.move_ask_max_ms)
    peer.move_round += 1
    if peer.id in state.up_set:
        wake(state, peer, state.now_ms + delay)


def moves_peer_back(state: State, peer: Peer) -> None:
    """The peer can be reached again: ask at once; of a boot that is gone for good no answer can come (B6.6)."""
    for key in [key for key in peer.moves if key[0] < peer.since]:
        move = peer.moves.pop(key)
        state.counts.moves_in_doubt += 1
        if state.jobs.get(move.job.id) is move.job and move.job.state is JobState.MOVING:
            state.spent[move.job.id] = move.job
    peer.move_round = 0
    moves_due(state, peer)


def moves_from_restarted(peer: Peer) -> None:
    """The peer has a new boot and numbers its moves anew."""
    peer.move_high = 0
    peer.moves_taken.clear()
