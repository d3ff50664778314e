"""How a job ends everywhere: one terminal fact, collected by inclusion (M4-M6, M14, B2).

A done entry stays until every holder has stored the end: told must include the holders. Sizes are never compared, and
"I don't know it" never counts as told. Then it shrinks to a short tombstone.
"""

from __future__ import annotations

from cluster.nodeid import NodeId
from cluster.view import ClusterView
from disque.core import messages as msg
from disque.core.chores import for_each
from disque.core.copies import (
    add_holders,
    end_absence,
    end_record,
    free_body,
    id_expiry,
    insert,
    leave_pools,
    others,
    reason_or,
    remove,
    set_ack,
    shift,
    take_out,
)
from disque.core.delivery import end_wait, finish_add
from disque.core.job import DONE, MOVING, QUEUED, Event, Job, Reason
from disque.core.jobid import JobId, is_endless, is_retried
from disque.core.merge import heard, union
from disque.core.sharing import intern_nodes, only_self
from disque.core.state import (
    AddWait,
    State,
    Tombstone,
    members_of,
    rank,
    reachable,
    record,
    send,
    wake,
)


def finish(state: State, job: Job, reason: Reason) -> None:
    """Make a live copy done at this node; the caller collects. A waiting ADDJOB succeeds, unless by NOREPL."""
    if job.id in state.adding:
        finish_add(state, job)
    if job.state is MOVING and job.queued_at is not None:
        add_holders(state, job, (job.queued_at,))  # it may be there (B9.3)
    if job.state is QUEUED:
        take_out(state, job, Event.FINISH)
    else:
        shift(state, job, Event.FINISH)
    free_body(state, job)
    leave_pools(state, job.id)
    job.reason = reason
    job.told = only_self(state)
    job.collect_round = 0
    state.undone[job.id] = job
    record_end(state, job)


def fail_add(state: State, wait: AddWait) -> None:
    """A waiting ADDJOB has failed, the caller answers the client: no copy may live on (B7.4)."""
    job = wait.job
    end_wait(state, wait)
    state.counts.norepl += 1
    finish(state, job, Reason.NOREPL)
    collect(state, job)


def new_end(
    state: State,
    job: JobId,
    reason: Reason,
    *,
    holders: tuple[NodeId, ...],
    told: tuple[NodeId, ...],
    expires_at: int,
) -> Job:
    """A done entry for an id of which there is no copy here: a dummy if nobody is known to hold it (M14, M15).

    A dummy asks all members even where a copy was dropped: others may have got one since. Whatever a peer says, an end
    isn't kept longer than its id tells that the job lives.
    """
    if not is_endless(job):
        expires_at = min(expires_at, id_expiry(state, job))
    if holders:
        holders = _with_later_ones(state, job, holders)
    entry = Job(
        id=job,
        spec=None,
        ctime=0,
        body=None,
        state=DONE,
        expires_at=expires_at,
        holders=intern_nodes(state, holders),
        reason=reason,
        told=intern_nodes(state, union(told, (state.self_id,))),
    )
    insert(state, entry)
    if holders:
        state.undone[job] = entry
    else:
        keep_dummy(state, entry)
    record_end(state, entry)
    return entry


def keep_dummy(state: State, entry: Job) -> None:
    """Put a registered end without holders into its pool; over the bound the oldest goes (M14)."""
    state.dummies[entry.id] = entry
    if len(state.dummies) > state.limits.dummies_max:
        remove(state, next(iter(state.dummies.values())))
        state.counts.dummies_evicted += 1


def record_end(state: State, job: Job) -> None:
    """Put what is known of the end into the log."""
    if state.is_recording:
        state.ready.records.append(end_record(job))


def raise_reason(state: State, job: Job, reason: Reason) -> None:
    """One more reason for the end of a done job: the higher one stands, in the log as well (M4)."""
    assert job.reason is not None
    if reason > job.reason:
        job.reason = reason
        record_end(state, job)


def learn_end(
    state: State, job: Job, said: msg.SetAck | msg.GotAck | msg.DelJob
) -> tuple[NodeId, ...]:
    """Merge the end that a peer speaks of into an entry; returns the holders that are new to us."""
    was = (job.reason, job.holders, job.told)
    if not job.is_done:
        finish(state, job, said.reason)
    elif job.reason is not None:
        job.reason = reason_or(job.reason, said.reason)
    newcomers: tuple[NodeId, ...] = ()
    if heard(job.holders, said.holders) is not job.holders:
        known = frozenset(job.holders)
        newcomers = tuple([node for node in said.holders if node not in known])
        if job.is_dummy:
            newcomers = _with_later_ones(state, job.id, newcomers)
        job.holders = intern_nodes(state, union(job.holders, newcomers))
        if state.dummies.pop(job.id, None) is not None:
            state.dummy_answers.pop(job.id, None)
            state.undone[job.id] = job
    # A dummy doesn't know yet whom else a copy at its node went to: it counts as told once it has answered with them.
    told = heard(job.told, said.told) if said.holders else job.told
    if told is not job.told:
        job.told = intern_nodes(state, told)
    if (job.reason, job.holders, job.told) != was:
        record_end(state, job)
    return newcomers


def _with_later_ones(state: State, job: JobId, holders: tuple[NodeId, ...]) -> tuple[NodeId, ...]:
    """The first holders that we hear of, of a job of which there is no copy here: those whom a copy here went to, too.

    At least once: those that a dropped copy knew (M21). At most once nothing is kept of a job that has moved on: if it
    ever came here, any member may own it now (M20).
    """
    if is_retried(job):
        return end_absence(state, job, holders)
    return union(holders, state.view.members) if state.self_id in holders else holders


def is_settled(state: State, job: Job) -> bool:
    """True if every holder that isn't forgotten has stored the end, and somebody held it (M6)."""
    holders, told = job.holders, job.told
    if holders == told:
        return bool(holders)
    return bool(holders) and frozenset(told).issuperset(members_of(state, holders))


def collect(state: State, job: Job) -> None:
    """Try to forget a done job everywhere; safe to call again at any time.

    Settled: say DELJOB once and keep a tombstone. Else say SETACK to the reachable holders not yet told, a dummy to all
    members, and book the next try: 1 s doubling to 30 s; with nobody to say it to, healing will wake it (B2.5).
    """
    if is_settled(state, job):
        settle(state, job)
        return
    targets = untold(state, job)
    send(state, targets, set_ack(state, job))
    if targets:
        limits = state.limits
        delay = min(limits.setack_first_ms << min(job.collect_round, 10), limits.setack_max_ms)
        job.collect_round += 1
        wake(state, job, min(job.expires_at, state.now_ms + delay))
    elif not (job.is_dummy and _end_dummy(state, job)):
        all_met_at = _all_met_at(state)
        is_early = job.is_dummy and all_met_at > state.now_ms
        wake(state, job, min(job.expires_at, all_met_at) if is_early else job.expires_at)


def untold(state: State, job: Job) -> list[NodeId]:
    """Reachable nodes that should hear of the end: holders not told; for a dummy who hasn't answered."""
    if job.is_dummy:
        answered = state.dummy_answers.get(job.id, {})
        return [node for node in state.up if node not in answered]
    told = frozenset(job.told)
    return [node for node in reachable(state, members_of(state, job.holders)) if node not in told]


def wait_for_initiator(state: State, job: Job) -> None:
    """Who only learned of the end leaves its collection to the one who made it, for a while (B2.2)."""
    limits = state.limits
    delay = limits.setack_first_ms + rank(state, job.id, job.holders) * limits.setack_rank_ms
    wake(state, job, min(job.expires_at, state.now_ms + delay))


def settle(state: State, job: Job, *, but: NodeId | None = None) -> None:
    """Every holder has stored the end: say so once (not to `but`, who sees it by itself) and bury the entry."""
    assert job.reason is not None
    to = [node for node in others(state, job) if node != but]
    if to:
        send(state, to, msg.DelJob(job.id, job.reason, job.holders, job.told))
    bury(state, job)


def bury(state: State, job: Job) -> None:
    """A settled entry becomes a tombstone, which answers whoever still speaks of the job as alive (M6)."""
    assert job.reason is not None
    assert is_settled(state, job), f"{job.id!r} is not settled: {job.holders} {job.told}"
    holders = members_of(state, job.holders)
    is_long = len(holders) < len(job.holders)
    boots = tuple([(node, boot_of(state, node)) for node in holders if node != state.self_id])
    remove(state, job)
    if state.is_recording:
        record(state, "settled", job.id, int(job.reason), job.holders, job.told, job.expires_at)
    stone = Tombstone(job.id, job.reason, job.holders, job.told, boots, job.expires_at, is_long)
    keep_tombstone(state, stone)


def boot_of(state: State, node: NodeId) -> int:
    """The last boot heard of a member, 0 if none."""
    member = state.view.members.get(node)
    return member.boot if member is not None else 0


def keep_tombstone(state: State, stone: Tombstone) -> None:
    """Put a tombstone of an id that has none into its pool; over the bound the oldest goes."""
    pool = state.long_tombstones if stone.is_long else state.tombstones
    pool[stone.id] = stone
    until = _no_more_words_at(state, stone)
    if not stone.is_long:
        until = min(until, state.now_ms + short_life(state))
    wake(state, stone, until)
    if len(pool) > state.limits.tombstones_max:
        _, oldest = pool.popitem(last=False)
        state.agenda.cancel(oldest)
        state.counts.tombstones_evicted += 1


def forget_tombstone(state: State, job: JobId) -> None:
    """Take a tombstone out of its pool, if there is one."""
    stone = state.tombstones.pop(job, None) or state.long_tombstones.pop(job, None)
    if stone is not None:
        state.agenda.cancel(stone)


def short_life(state: State) -> int:
    """ms that a short tombstone or mark is kept: nothing older can still be on its way (M6)."""
    return 2 * state.view.node_timeout_ms + state.limits.link_wait_max_ms


def tombstone_due(state: State, stone: Tombstone) -> None:
    """A tombstone goes once no holder can speak of the job any more; else it is looked at again each node timeout."""
    pool = state.long_tombstones if stone.is_long else state.tombstones
    last = _no_more_words_at(state, stone)
    if last <= state.now_ms or _is_quiet(state, stone):
        del pool[stone.id]
        return
    if not stone.is_long and _is_wiped(state, stone):
        del pool[stone.id]
        stone.is_long = True
        keep_tombstone(state, stone)
        return
    wake(state, stone, min(last, state.now_ms + state.view.node_timeout_ms))


def _no_more_words_at(state: State, stone: Tombstone) -> int:
    """ms; when the job has expired and no frame that left before can still be on its way."""
    return stone.expires_at + state.limits.link_wait_max_ms


def _is_quiet(state: State, stone: Tombstone) -> bool:
    if stone.is_long:
        return False
    members = state.view.members
    for node, boot in stone.boots:
        if node not in state.up_set or members[node].since > boot:
            return False
    return True


def _is_wiped(state: State, stone: Tombstone) -> bool:
    members = state.view.members
    for node, boot in stone.boots:
        member = members.get(node)
        if member is None or member.since > boot:
            return True
    return False


def done_due(state: State, job: Job) -> None:
    """The time of a done entry has come: expiry, or one more try to collect it."""
    if job.expires_at <= state.now_ms:
        remove(state, job)
        record(state, "gone", job.id)
    else:
        collect(state, job)


def dummy_answered(state: State, job: Job, peer: NodeId) -> None:
    """A member doesn't know the job of a dummy, or has but a dummy itself; when all say so, it ends (M14)."""
    state.dummy_answers.setdefault(job.id, {})[peer] = None
    _end_dummy(state, job)


def _end_dummy(state: State, job: Job) -> bool:
    """Forget it if all have answered, and there is surely nobody else; True if so."""
    if may_be_elsewhere(state.view) or state.now_ms < _all_met_at(state):
        return False
    answered = state.dummy_answers.get(job.id, {})
    others = [node for node in state.view.members if node != state.self_id]
    # who knows nobody hasn't asked anybody: a node that was forgotten is alone till it has been met again
    if not others or not all([node in answered for node in others]):
        return False
    remove(state, job)
    record(state, "gone", job.id)
    return True


def _all_met_at(state: State) -> int:
    """ms; when a node that meets the members of a cluster one by one has surely heard of all of them."""
    return state.met_at + 2 * state.view.node_timeout_ms


def may_be_elsewhere(view: ClusterView) -> bool:
    """True while somebody may have a copy who can't be asked (M14).

    A machine that was forgotten may come back with it; a member that was cut off from the others when this node joined
    is known to them alone.
    """
    return view.has_unmet or bool(view.forgotten - view.drained)


def end_dummies(state: State) -> None:
    """Nobody may have a copy any more who can't be asked: dummies that waited for that alone end."""
    for_each(state, state.dummies, _end_dummy_of, key=end_dummies)


def _end_dummy_of(state: State, id_: JobId) -> None:
    job = state.dummies.get(id_)
    if job is not None:
        _end_dummy(state, job)
