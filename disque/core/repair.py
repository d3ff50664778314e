"""Copies are made again until REPLICATE is met: after a node failed for long, was forgotten, or lost its store (B3).

Nothing polls. A change of the view books a sweep over all jobs for the time when it may act; the sweep opens at most
256 repairs at once. Of the nodes that hold a job the first in salted order leads; the others step in if nothing
happens.
"""

from __future__ import annotations

from cluster.nodeid import NodeId
from cluster.view import ClusterView, MemberView
from disque.core import messages as msg
from disque.core.copies import add_holders, body_size, facts_of
from disque.core.job import Job, JobState
from disque.core.jobid import JobId
from disque.core.listing import listed
from disque.core.passes import Repairer
from disque.core.state import Repair, State, is_counted, members_of, salted, send, wake
from disque.core.willing import is_willing

_OPEN_MAX = 256
_SCAN_MAX = 2_000  # jobs looked at in one step of a sweep
_AFTER_HEAL_MS = 5_000  # acked jobs must be known as such first (B3.4)
_STEP_IN_MS = 5_000  # a rank waits so much longer than the one before
_SILENCE_MS = 2_000
_HOLDERS_BEYOND = 3  # |H| stays below REPLICATE + this
_BYTES_A_SECOND = 8 << 20
_BUSY_MS = 50


def repair_view_changed(state: State, before: ClusterView) -> None:
    """Note who is down since when, and book sweeps (B3.1, B3.4)."""
    now, view = state.now_ms, state.view
    after = state.limits.repair_after_ms
    if view.forgotten - before.forgotten:
        _book_sweep(state, now)
    for node, member in view.members.items():
        if node == state.self_id:
            continue
        if node in state.up_set:
            was_down = state.down_since.pop(node, None) is not None
            if was_down or _takes_more(before.members.get(node), member):
                _book_sweep(state, now + _AFTER_HEAL_MS)
        elif node not in state.down_since:
            state.down_since[node] = now
            if after:
                _book_sweep(state, now + after)
    for node in [node for node in state.down_since if node not in view.members]:
        del state.down_since[node]


def _takes_more(before: MemberView | None, now: MemberView) -> bool:
    """True for a new member, one with a new boot, and one that no longer leaves."""
    if before is None or before.boot != now.boot:
        return True
    return before.is_leaving and not now.is_leaving


def _book_sweep(state: State, at: int) -> None:
    repairer = state.repairer
    repairer.times = [*[time for time in repairer.times if abs(time - at) > _BUSY_MS], at]
    _wake_repairer(state, repairer)


def _wake_repairer(state: State, repairer: Repairer) -> None:
    if repairer.ids:
        wake(state, repairer, state.now_ms + _BUSY_MS)
    elif repairer.times:
        wake(state, repairer, min(repairer.times))


def repairer_due(state: State, repairer: Repairer) -> None:
    """Begin a sweep, or go on with one as far as repairs may be open."""
    now = state.now_ms
    if not repairer.ids:
        if repairer.times and min(repairer.times) <= now:
            repairer.times = [time for time in repairer.times if time > now]
            repairer.ids = listed(state.jobs)
            if len(repairer.ids) > _SCAN_MAX:
                state.fired = state.limits.wakeups_a_turn  # to list a million takes a turn
                wake(state, repairer, now)
                return
        else:
            _wake_repairer(state, repairer)
            return
    for _ in range(_SCAN_MAX):
        if not repairer.ids or len(state.repairs) >= _OPEN_MAX:
            break
        job = state.jobs.get(repairer.ids.pop())
        if job is not None:
            note_short(state, job)
    _wake_repairer(state, repairer)


def note_short(state: State, job: Job, *, at: int = 0) -> None:
    """If a live job has fewer copies than it should, see to it at `at` ms; over the bound a sweep finds it again."""
    if not is_short(state, job):
        state.under_replicated.pop(job.id, None)
        return
    state.under_replicated[job.id] = None
    if job.id in state.repairs:
        return
    if len(state.repairs) >= _OPEN_MAX:
        _book_sweep(state, state.now_ms + _AFTER_HEAL_MS)
        return
    repair = state.repairs[job.id] = Repair(job, max(at, state.now_ms))
    wake(state, repair, at)


def note_new(state: State) -> None:
    """New jobs that began with fewer copies than their aim: see to them unless the copies under way arrive (B3.1)."""
    while state.short:
        id_, _ = state.short.popitem()
        job = state.jobs.get(id_)
        if job is not None:
            note_short(state, job, at=state.now_ms + _SILENCE_MS)


def is_short(state: State, job: Job) -> bool:
    """True if the job should have more copies and may get them (B3.2, B3.3)."""
    if job.is_done or not job.retry_ms or job.state is JobState.WAITING:
        return False
    if job.live_spec.replicate < 2:
        return False
    if job.expires_at - state.now_ms <= 2 * state.view.node_timeout_ms:
        return False
    return len(copies_that_last(state, job)) < job.live_spec.replicate


def copies_that_last(state: State, job: Job) -> list[NodeId]:
    """Nodes that count for repair: not leaving, with a copy, there or not away for long (B3.3, B3.4).

    A holder that is away and never told us whether it has a copy gets the benefit of the doubt for that long, too.
    """
    lasting: list[NodeId] = []
    for node in members_of(state, job.holders):
        if node != state.self_id and (
            node not in state.view.members or state.view.members[node].is_leaving
        ):
            continue
        claim = job.claims.get(node)
        is_away = _is_away_for_now(state, node)
        if claim is None:
            if is_away:
                lasting.append(node)
        elif is_counted(state, node, claim) and (is_away or node not in state.down_since):
            lasting.append(node)
    return lasting


def _is_away_for_now(state: State, node: NodeId) -> bool:
    down_since, after = state.down_since.get(node), state.limits.repair_after_ms
    return down_since is not None and (not after or state.now_ms - down_since < after)


def repair_due(state: State, repair: Repair) -> None:
    """One step of a repair: lead or wait, choose a target, send a copy (B3.5-B3.7)."""
    job, now = repair.job, state.now_ms
    if state.jobs.get(job.id) is not job or not is_short(state, job):
        _close(state, repair)
        state.under_replicated.pop(job.id, None)
        return
    leaders = salted(job.id, _leaders(state, job))
    turn = repair.started_at + leaders.index(state.self_id) * _STEP_IN_MS
    if now < turn:
        wake(state, repair, turn)
        return
    unheard = [
        n
        for n in job.holders
        if n in state.up_set
        and n not in job.claims
        and n not in repair.asked
        and n not in repair.tried
    ]
    if unheard:
        # Holders that never told us whether they have a copy: facts said again without their claim make them say so.
        repair.asked.update(dict.fromkeys(unheard))
        send(state, unheard, msg.Told(job.id, facts_of(state, job)))
        wake(state, repair, now + state.limits.ask_wait_ms)
        return
    target = _target(state, repair)
    if target is None:
        _try_later(state, repair)
        return
    if not _may_send(state, body_size(job)):
        wake(state, repair, now + _BUSY_MS)
        return
    add_holders(state, job, (target,))
    repair.tried[target] = None
    body = job.body
    assert body is not None, f"{job.id!r} is live without a body"
    send(
        state, (target,), msg.ReplJob(job.id, job.live_spec, job.ctime, body, facts_of(state, job))
    )
    wake(state, repair, now + _SILENCE_MS)


def _leaders(state: State, job: Job) -> list[NodeId]:
    """Who may lead: this node, and those with a copy that can be reached (C of B3.5)."""
    others = [
        node
        for node, claim in job.claims.items()
        if node in state.up_set and is_counted(state, node, claim)
    ]
    return [state.self_id, *others]


def _close(state: State, repair: Repair) -> None:
    state.agenda.cancel(repair)
    state.repairs.pop(repair.job.id, None)


def _try_later(state: State, repair: Repair) -> None:
    """Who refused or was silent may take a copy later; with nobody else there a change of the view begins anew."""
    job = repair.job
    has_copy = _has_copy(state, job)
    members = state.view.members
    if any([node not in has_copy and not members[node].is_leaving for node in state.up]):
        repair.tried.clear()
        wake(state, repair, state.now_ms + state.limits.refused_for_ms)
    else:
        _close(state, repair)


def _has_copy(state: State, job: Job) -> set[NodeId]:
    return {n for n, claim in job.claims.items() if is_counted(state, n, claim)}


def _target(state: State, repair: Repair) -> NodeId | None:
    """Who gets the copy: in salted order, those that aren't holders, then holders without a copy (B3.6)."""
    job = repair.job
    willing = [
        node for node in state.up if node not in repair.tried and is_willing(state, node, job.queue)
    ]
    has_copy = _has_copy(state, job)
    held = members_of(state, job.holders)
    fresh: list[NodeId] = []
    if len(held) < job.live_spec.replicate + _HOLDERS_BEYOND:
        fresh = [node for node in willing if node not in held]
    again = [node for node in willing if node in held and node not in has_copy]
    for candidates in (fresh, again):
        if candidates:
            return salted(job.id, candidates)[0]
    return None


def _may_send(state: State, size: int) -> bool:
    """A token bucket of bytes: a repair never starves the living (B3.8)."""
    repairer, now = state.repairer, state.now_ms
    gained = (now - repairer.filled_at) * _BYTES_A_SECOND // 1000
    repairer.tokens = min(_BYTES_A_SECOND, repairer.tokens + gained)
    repairer.filled_at = now
    if repairer.tokens <= 0:
        return False
    repairer.tokens -= size  # one large body may overdraw
    return True


def copy_arrived(state: State, peer: NodeId, job: JobId) -> None:
    """A node stored a copy, or refused one: look at its repair again, and let those hear that wait to step in."""
    if job not in state.under_replicated:
        return
    repair = state.repairs.get(job)
    if repair is not None:
        wake(state, repair, state.now_ms)
        others = [node for node in repair.job.holders if node != peer]
        send(state, others, msg.Told(job, facts_of(state, repair.job)))
    elif not is_short(state, state.jobs[job]):
        del state.under_replicated[job]
