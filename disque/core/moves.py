"""RETRY 0 jobs change their owner by numbered moves: in doubt nobody delivers (M20, B6).

The source never sends a job twice under one number; it asks. *No* can come only from the boot that the number was made
for: after a restart the receiver may have delivered the job and forgotten it.
"""

from __future__ import annotations

from collections.abc import Iterable

from cluster.nodeid import NodeId
from disque.core import messages as msg
from disque.core.copies import (
    claim_copy,
    insert,
    record_copy,
    set_role,
    shift,
    take_out,
    told_expiry,
)
from disque.core.delivery import (
    count_import,
    drop,
    end_wait,
    finish_add,
    is_paused_in,
    keep_spent,
    start,
)
from disque.core.job import Event, Job, JobState, Role
from disque.core.sharing import intern_spec
from disque.core.sleeper import UNBOOKED
from disque.core.state import (
    MovesIn,
    OpenMove,
    Peer,
    State,
    fail,
    peer_of,
    record,
    send,
    wake,
)
from disque.core.willing import is_willing

_LOST = "The node that the job was handed to is gone with all it knew: nobody can tell whether it was delivered"
_BOOTS_MAX = 8  # pairs of boots, ours and a source's, whose numbers are remembered


def can_move_to(state: State, node: NodeId, queue: bytes) -> bool:
    """True if one more move of this queue to this peer may be opened (B6.2)."""
    if not is_willing(state, node, queue) or state.view.members[node].boot == 0:
        return False
    return len(peer_of(state, node).moves) < state.limits.moves_open_max


def move_out(state: State, job: Job, node: NodeId) -> None:
    """Hand a queued RETRY 0 job to a peer (B6.2)."""
    take_out(state, job, Event.UNQUEUE)
    open_move(state, job, node)


def open_move(state: State, job: Job, node: NodeId) -> None:
    """Hand an active RETRY 0 job to a peer; until it answers, nobody here delivers it (B6.2)."""
    set_role(state, job, Role.NONE)
    peer = peer_of(state, node)
    boot, n = state.view.members[node].boot, peer.move_next
    peer.move_next += 1
    peer.moves[state.boot, boot, n] = OpenMove(job, state.boot, boot, n)
    shift(state, job, Event.MOVE)
    job.queued_at = node
    record(state, "move", job.id, node, state.boot, boot, n, is_urgent=True)
    wake(state, job, job.expires_at)
    body = job.body
    assert body is not None, f"{job.id!r} has no body to move"
    now = state.now_ms
    expires_in, due_in = max(0, job.expires_at - now), max(0, job.not_before - now)
    settled = _settled(state, peer)
    move = msg.Move(
        state.boot, boot, n, settled, job.id, job.live_spec, job.ctime, body, expires_in, due_in
    )
    send(state, (node,), move)
    if peer.wake_at == UNBOOKED:
        peer.move_round = 0
        wake(state, peer, state.now_ms + state.limits.move_ask_first_ms)


def _settled(state: State, peer: Peer) -> int:
    """All numbers of our present boot below it are closed here."""
    return min([n for own, _, n in peer.moves if own == state.boot], default=peer.move_next)


def on_move(state: State, peer_id: NodeId, said: msg.Move) -> None:
    """Take a RETRY 0 job over, once (B6.3)."""
    if said.boot != state.boot:
        return
    numbers = _numbers(peer_of(state, peer_id), said.boot, said.source_boot)
    if numbers is None:
        return
    for n in [n for n in numbers.taken if n < said.settled]:
        del numbers.taken[n]
    if said.n > numbers.high:
        numbers.high = said.n
        if len(numbers.taken) < state.limits.moves_taken_max and _takes(state, said):
            numbers.taken[said.n] = None
            count_import(state, peer_id, said.spec.queue)
            _own(state, said)
        fact = (peer_id, said.source_boot, said.boot, numbers.high, list(numbers.taken))
        record(state, "taken", *fact)
    is_taken = said.n in numbers.taken
    send(state, (peer_id,), msg.GotMove(said.source_boot, said.boot, said.n, is_taken))


def _numbers(peer: Peer, boot: int, source_boot: int) -> MovesIn | None:
    """What we know of a source's numbers; None for boots so old that we have forgotten, and must be silent."""
    key = (boot, source_boot)
    known = peer.moves_in.get(key)
    if known is None:
        if len(peer.moves_in) >= _BOOTS_MAX:
            if key < min(peer.moves_in):
                return None
            del peer.moves_in[min(peer.moves_in)]
        known = peer.moves_in[key] = MovesIn()
    return known


def restore_taken(
    state: State, peer_id: NodeId, source_boot: int, boot: int, high: int, taken: Iterable[int]
) -> None:
    """From the log: the numbers of a source that were decided."""
    numbers = _numbers(peer_of(state, peer_id), boot, source_boot)
    if numbers is not None:
        numbers.high, numbers.taken = high, dict.fromkeys(taken)


def _takes(state: State, said: msg.Move) -> bool:
    if said.spec.retry_ms or not said.expires_in:
        return False
    return not state.view.is_leaving and not is_paused_in(state, said.spec.queue)


def _own(state: State, said: msg.Move) -> None:
    known = state.jobs.get(said.id)
    expires_at = told_expiry(state, said.id, said.expires_in)
    if known is not None and known.state is JobState.MOVING:
        # It comes back before its earlier move was confirmed: that move did happen.
        if known.id in state.adding:
            finish_add(state, known)
        drop(state, known)
        expires_at, known = min(expires_at, known.expires_at), None
    if known is not None or said.id in state.tombstones or said.id in state.long_tombstones:
        return  # dispatched or cancelled here: it must not live a second time
    job = Job(
        id=said.id,
        spec=intern_spec(state, said.spec),
        ctime=said.ctime,
        body=said.body,
        state=JobState.ACTIVE,
        expires_at=expires_at,
        not_before=state.now_ms + said.due_in if said.due_in else 0,
        holders=(state.self_id,),
    )
    claim_copy(state, job)
    insert(state, job)
    record_copy(state, job)
    start(state, job)


def on_got_move(state: State, peer_id: NodeId, said: msg.GotMove) -> Job | None:
    """Yes: the job is the peer's, and returned if its ADDJOB waits. No: it is ours again (B6.4)."""
    peer = peer_of(state, peer_id)
    move = peer.moves.pop((said.source_boot, said.boot, said.n), None)
    if move is None:
        return None
    if not peer.moves:
        state.agenda.cancel(peer)
    job = move.job
    if state.jobs.get(job.id) is not job or job.state is not JobState.MOVING:
        return None
    if not said.is_taken:
        shift(state, job, Event.RETURN)
        record(state, "returned", job.id)
        if job.id not in state.adding:
            start(state, job)
        return job
    if job.id not in state.adding:
        drop(state, job)
    return job


def on_ask_move(state: State, peer_id: NodeId, said: msg.AskMove) -> None:
    """Close the number if it never came, and answer (B6.5).

    For an earlier boot, too, if the log is whole since: nothing that came then can be unknown now (B6.6).
    """
    if said.boot > state.boot or said.boot < state.since:
        return
    numbers = _numbers(peer_of(state, peer_id), said.boot, said.source_boot)
    if numbers is None:
        return
    numbers.high = max(numbers.high, said.n)
    is_taken = said.n in numbers.taken
    send(state, (peer_id,), msg.GotMove(said.source_boot, said.boot, said.n, is_taken))


def moves_due(state: State, peer: Peer) -> None:
    """Ask about the moves that weren't answered, ever more rarely (B6.5)."""
    if not peer.moves:
        return
    for source_boot, boot, n in peer.moves:
        send(state, (peer.id,), msg.AskMove(source_boot, boot, n))
    limits = state.limits
    delay = min(limits.move_ask_first_ms << min(peer.move_round, 10), limits.move_ask_max_ms)
    peer.move_round += 1
    if peer.id in state.up_set:
        wake(state, peer, state.now_ms + delay)


def moves_peer_back(state: State, peer: Peer) -> None:
    """The peer can be reached again: ask at once; of a boot that is gone for good no answer can come (B6.6)."""
    _give_up(state, peer, [key for key in peer.moves if key[1] < peer.since])
    peer.move_round = 0
    moves_due(state, peer)


def moves_peer_forgotten(state: State, peer: Peer) -> None:
    """The peer is forgotten: it is asked nothing more, and answers nothing (M16)."""
    state.agenda.cancel(peer)
    _give_up(state, peer, list(peer.moves))


def _give_up(state: State, peer: Peer, keys: list[tuple[int, int, int]]) -> None:
    """Nobody will ever tell what became of these moves: their jobs are in doubt till they expire (B6.6)."""
    for key in keys:
        job = peer.moves.pop(key).job
        state.counts.moves_in_doubt += 1
        if state.jobs.get(job.id) is not job or job.state is not JobState.MOVING:
            continue
        wait = state.adding.get(job.id)
        if wait is not None:
            end_wait(state, wait)
            fail(state, wait.client, "NOREPL", _LOST)
        keep_spent(state, job)
