"""A peer is back: known facts are said again through the ordinary messages, paced; nothing else heals (B4).

Both sides walk over what they share. First the ends of jobs, then every live copy with its facts: equal facts cost the
receiver no answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from cluster.nodeid import NodeId
from cluster.view import ClusterView
from disque.core import messages as msg
from disque.core.chores import for_each
from disque.core.copies import facts_of, set_ack
from disque.core.delivery import LEAVING_TEXT, book, end_get
from disque.core.ending import collect, is_settled
from disque.core.federation import ask_newcomers
from disque.core.job import Job, JobState
from disque.core.jobid import JobId
from disque.core.listing import listed
from disque.core.moves import moves_peer_back, moves_peer_forgotten
from disque.core.passes import Sweep, Walk
from disque.core.replication import adds_review
from disque.core.sleeper import UNBOOKED
from disque.core.state import (
    GetWait,
    Peer,
    State,
    fail,
    peer_of,
    reach_deadline,
    send,
    wake,
)
from disque.core.willing import forget_refusals

_SCAN_MAX = 2_000  # ids looked at in one step of a walk or sweep


def view_changed(state: State, view: ClusterView) -> None:
    """Take in a new view: who is back is healed with, who is lost no longer has our jobs queued."""
    before = state.view
    state.view = view
    members = view.members
    if not members.keys() <= before.members.keys():
        state.met_at = state.now_ms
    state.up = tuple([n for n in members if members[n].is_reachable and n != state.self_id])
    was_up, state.up_set = state.up_set, frozenset(state.up)
    state.staying = tuple([n for n in state.up if not members[n].is_leaving])
    others = [member for node, member in members.items() if node != state.self_id]
    state.hopeful = sum([not each.is_suspect and not each.is_leaving for each in others])
    state.counted.clear()
    lost: set[NodeId] = {
        n
        for n in before.members
        if n != state.self_id
        and not before.members[n].is_suspect
        and (n not in members or members[n].is_suspect)
    }
    newcomers: list[NodeId] = []
    has_reached_more = any([node not in state.reached for node in state.up])
    for node in state.up:
        state.reached[node] = None
        peer = peer_of(state, node)
        member = members[node]
        is_restarted = member.boot > peer.greeted
        if is_restarted:
            if peer.greeted:
                lost.add(node)
            peer.greeted = member.boot
            peer.boot, peer.since = max(peer.boot, member.boot), member.since
        if is_restarted or node not in was_up:
            newcomers.append(node)
    heal_with(state, newcomers)
    new_forgotten = view.forgotten - before.forgotten
    for node in [node for node in state.peers if node in new_forgotten]:
        _drop_peer(state, state.peers.pop(node))
    if lost or new_forgotten or (has_reached_more and state.now_ms < reach_deadline(state)):
        _start_sweep(state, frozenset(lost))
    if view.is_leaving:
        for_each(state, state.getting.values(), _end_get_of_leaver, key=_end_get_of_leaver)
    adds_review(state)


def _end_get_of_leaver(state: State, wait: GetWait) -> None:
    if state.view.is_leaving and state.getting.get(wait.client) is wait:
        end_get(state, wait)
        fail(state, wait.client, "LEAVING", LEAVING_TEXT)


def heal_with(state: State, nodes: Sequence[NodeId]) -> None:
    """These peers are back, or weren't heard for a while though links stood: facts are said again both ways (B4.1)."""
    if not nodes:
        return
    for node in nodes:
        peer = peer_of(state, node)
        _peer_back(state, peer)
        request_walk(state, peer)
    ask_newcomers(state, nodes)


def _peer_back(state: State, peer: Peer) -> None:
    moves_peer_back(state, peer)
    peer.heal_number += 1
    send(state, (peer.id,), msg.Heal(state.boot, peer.heal_number))
    _tell_pauses(state, peer.id)


def _tell_pauses(state: State, peer: NodeId) -> None:
    for name, (stamp, node, flags) in state.pauses.items():
        send(state, (peer,), msg.Pause(name, stamp, node, flags))


def _drop_peer(state: State, peer: Peer) -> None:
    """A forgotten node isn't dealt with any more; what was under way with it ends."""
    moves_peer_forgotten(state, peer)
    if peer.walk is not None:
        state.agenda.cancel(peer.walk)


def on_heal(state: State, peer_id: NodeId, said: msg.Heal) -> None:
    """The peer walks and wants us to walk as well, once for each number (B4.1)."""
    peer = peer_of(state, peer_id)
    if (said.boot, said.n) > peer.heal_seen:
        peer.heal_seen = (said.boot, said.n)
        forget_refusals(state, peer_id)
        request_walk(state, peer)


def request_walk(state: State, peer: Peer) -> None:
    """Walk over all that is shared with a peer; one under way goes once around instead of starting again (B4.7)."""
    walk = peer.walk
    if walk is None:
        walk = peer.walk = Walk(peer.id)
        if len(state.jobs) <= _SCAN_MAX:
            walk.ids, walk.ends = _ids_to_say(state)
        wake(state, walk, peer.heal_next_at)
    elif not walk.has_begun:
        walk.ids = None  # what it would say is old
        wake(state, walk, peer.heal_next_at)
    else:
        walk.is_due_again = True
        if walk.wake_at == UNBOOKED:
            walk.seq = 0
            wake(state, walk, state.now_ms)


def _ids_to_say(state: State) -> tuple[list[JobId], int]:
    """Ends first: nobody should be asked to keep what is over (B4.2); then all, of which a walk skips the ends."""
    ids = listed(state.undone, state.dummies, state.jobs)
    return ids, len(state.undone) + len(state.dummies)


def _list_ids(state: State) -> bool:
    """Once for all walks, and the sweep, that begin now; True if that is all there is to do in this turn.

    A million ids take some 30 ms.
    """
    ids, ends = _ids_to_say(state)
    for node in state.up:
        peer = peer_of(state, node)
        walk = peer.walk
        if walk is not None and walk.ids is None and peer.heal_next_at <= state.now_ms:
            walk.ids, walk.ends = ids, ends
    if state.sweep is not None and state.sweep.ids is None:
        state.sweep.ids = ids
    if len(ids) <= _SCAN_MAX:
        return False
    state.fired = state.limits.wakeups_a_turn
    return True


def walk_due(state: State, walk: Walk) -> None:
    """The next batch, or the last one again if it wasn't answered in time."""
    if walk.peer not in state.up_set:
        return  # goes on where it is once the peer is back
    walk.has_begun = True
    if walk.ids is None and _list_ids(state):
        wake(state, walk, state.now_ms)
        return
    assert walk.ids is not None
    if walk.position == 0 and walk.batch_end == 0:
        _tell_pauses(state, walk.peer)  # once more: who asked for this walk may have missed them
    if walk.position >= len(walk.ids):
        _end_walk(state, walk)
        return
    said = 0
    at = walk.position
    end = min(len(walk.ids), walk.position + _SCAN_MAX)
    while at < end and said < state.limits.heal_batch:
        job = state.jobs.get(walk.ids[at])
        is_end_phase = at < walk.ends
        at += 1
        if job is not None and job.is_done == is_end_phase:
            said += _say_again(state, job, walk.peer)
    state.fired += said
    if said:
        walk.batch_end = at
        peer = peer_of(state, walk.peer)
        peer.walk_seq += 1
        walk.seq = peer.walk_seq
        send(state, (walk.peer,), msg.Walk(walk.seq))
        wake(state, walk, state.now_ms + state.limits.heal_answer_ms)
    else:
        walk.position = walk.batch_end = at
        wake(state, walk, state.now_ms + 1)


def _say_again(state: State, job: Job, peer: NodeId) -> bool:
    """Say what this peer should know of a job; True if there was anything."""
    if job.is_done:
        if not job.is_dummy and (peer not in job.holders or peer in job.told):
            return False
        send(state, (peer,), set_ack(state, job))
        job.collect_round = 0  # said once here; if that is lost, the ordinary tries go on (B2.5)
        again = state.now_ms + state.limits.setack_first_ms
        wake(state, job, min(job.expires_at, again))
        return True
    if peer not in job.holders or not job.retry_ms:
        return False
    if job.state is JobState.WAITING:
        assert job.body is not None
        copy = msg.ReplJob(job.id, job.live_spec, job.ctime, job.body, facts_of(state, job))
        send(state, (peer,), copy)
    else:
        send(state, (peer,), msg.Told(job.id, facts_of(state, job)))
    return True


def _end_walk(state: State, walk: Walk) -> None:
    """Around once; again, if it was asked for meanwhile, after a gap that grows with the length of the way (B4.7)."""
    peer = peer_of(state, walk.peer)
    limits = state.limits
    peer.walk = None
    gap = walk.position // limits.heal_pace
    peer.heal_next_at = state.now_ms + min(max(gap, limits.heal_gap_min_ms), limits.heal_gap_max_ms)
    if walk.is_due_again:
        request_walk(state, peer)


def on_walk(state: State, peer: NodeId, said: msg.Walk) -> None:
    """All before this has been handled."""
    send(state, (peer,), msg.Walked(said.seq))


def on_walked(state: State, peer_id: NodeId, said: msg.Walked) -> None:
    """The peer has handled a batch: go on."""
    walk = peer_of(state, peer_id).walk
    if walk is not None and walk.seq == said.seq and walk.batch_end > walk.position:
        walk.position = walk.batch_end
        wake(state, walk, state.now_ms)


def _start_sweep(state: State, lost: frozenset[NodeId]) -> None:
    """Look through all jobs for those that lost nodes had queued, or that wait till others are reached.

    And for ends that a FORGET settles.
    """
    if state.sweep is not None:
        state.agenda.cancel(state.sweep)
        lost |= state.sweep.lost
    state.sweep = Sweep(lost)
    wake(state, state.sweep, state.now_ms)


def sweep_due(state: State, sweep: Sweep) -> None:
    """One bounded step of the sweep (B1.5, B1.9, B2.7)."""
    if sweep.ids is None and _list_ids(state):
        wake(state, sweep, state.now_ms)
        return
    assert sweep.ids is not None
    end = min(len(sweep.ids), sweep.position + _SCAN_MAX)
    for id_ in sweep.ids[sweep.position : end]:
        job = state.jobs.get(id_)
        if job is None:
            continue
        if job.is_done:
            if is_settled(state, job):
                collect(state, job)
        elif job.queued_at in sweep.lost and job.state is JobState.ACTIVE:
            job.queued_at = None
            job.ask_round = 0
            job.ask_at = 0
            book(state, job)
        elif job.is_unsure and job.ask_at == reach_deadline(state):
            job.ask_at = 0
            book(state, job)
    sweep.position = end
    if end < len(sweep.ids):
        wake(state, sweep, state.now_ms + 1)
    else:
        state.sweep = None
