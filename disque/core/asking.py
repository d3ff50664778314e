"""Commands about the whole cluster: lengths, outcomes, purges, and commands passed on to a holder.

A member that can't be reached, or is silent, never makes an error of it: the reply says how many spoke, so both sides
of a partition go on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cluster.nodeid import NodeId
from disque.core import commands as cmd
from disque.core import messages as msg
from disque.core.acks import (
    cancel_here,
    outcome_of,
    purge_here,
    purge_step,
    remember_unknown,
)
from disque.core.handling import (
    WORKING_ACKED,
    WORKING_DONE,
    WORKING_TOO_LATE,
    WORKING_UNKNOWN,
    dequeue_here,
    enqueue_here,
    nack_here,
    revive_here,
    working_here,
)
from disque.core.inquiries import (
    close_inquiry,
    hold,
    members,
    open_inquiry,
    silence,
    strike_unreachable,
    take_answer,
)
from disque.core.introspection import length_of, queue_fields, status_of
from disque.core.job import JobState, Reason
from disque.core.jobid import JobId
from disque.core.outcomes import OUTCOME_NAMES, PENDING, joined_outcome
from disque.core.ready import ClientId, NilArray, Reply
from disque.core.returning import RETURNED, answer_returned, finish_returned
from disque.core.state import Inquiry, Purge, State, fail, reply, salted, send, wake

# Kinds of questions on the wire, RETURNED beside them; never reuse a number.
LENGTH, STATUS, HOLDERS, CANCEL, PURGE, OUTCOMES, NACK, ENQUEUE, DEQUEUE, WORKING, REVIVE = range(
    1, 12
)
ATTENDING = 13

_WAIT_FIRST_MS = 20  # a WAITJOB asks again after this, doubling
_WAIT_MAX_MS = 1_000


def _ask_all(
    state: State,
    client: ClientId | None,
    kind: int,
    timeout_ms: int | None,
    *,
    queue: bytes = b"",
    ids: tuple[JobId, ...] = (),
    numbers: tuple[int, ...] = (),
) -> Inquiry:
    if timeout_ms == 0:
        deadline = None
    else:
        deadline = state.now_ms + (
            state.limits.ask_cluster_ms if timeout_ms is None else timeout_ms
        )
    shares = dict.fromkeys(members(state), ids)
    return open_inquiry(
        state, client, kind, shares=shares, deadline=deadline, ids=ids, queue=queue, numbers=numbers
    )


def _end_if_done(state: State, inquiry: Inquiry) -> None:
    if not (inquiry.pending or inquiry.is_busy):
        _end(state, inquiry)


def _end(state: State, inquiry: Inquiry) -> None:
    close_inquiry(state, inquiry)
    _FINISH[inquiry.kind](state, inquiry)


def on_answer(state: State, peer: NodeId, said: msg.Answer) -> None:
    """One member has answered; the last one ends the question."""
    inquiry = take_answer(state, peer, said)
    if inquiry is not None:
        _end_if_done(state, inquiry)


def inquiry_due(state: State, inquiry: Inquiry) -> None:
    """Time is up for a question; or a WAITJOB asks again."""
    if inquiry.is_busy:
        silence(inquiry)
        return
    if not inquiry.is_resting:
        _end(state, inquiry)
        return
    close_inquiry(state, inquiry)
    deadline = inquiry.wait_deadline
    if deadline is not None and state.now_ms >= deadline:
        _reply_outcomes(state, inquiry)
    else:
        _ask_outcomes(state, inquiry)


def inquiries_review(state: State) -> None:
    """The view changed: who can't be reached is silent, and a resting WAITJOB asks again."""
    for inquiry in strike_unreachable(state):
        _end_if_done(state, inquiry)
    for inquiry in state.inquiries.values():
        if inquiry.is_resting:
            wake(state, inquiry, state.now_ms)


def on_question(state: State, peer: NodeId, said: msg.Question) -> None:
    """Answer what a peer's client wants to know, or do what it wants done; an unknown kind is a later version's."""
    answer = _ANSWER.get(said.kind)
    if answer is not None:
        send(state, (peer,), msg.Answer(said.number, answer(state, peer, said)))


# GLOBALQLEN


def global_queue_length(state: State, client: ClientId, command: cmd.GlobalQLen) -> None:
    """GLOBALQLEN: the sum over the members that answer."""
    inquiry = _ask_all(state, client, LENGTH, command.timeout_ms, queue=command.queue)
    inquiry.with_nodes = command.with_nodes
    _end_if_done(state, inquiry)


def _answer_length(state: State, _peer: NodeId, said: msg.Question) -> tuple[int, ...]:
    return (length_of(state, said.queue),)


def _finish_length(state: State, inquiry: Inquiry) -> None:
    length = length_of(state, inquiry.queue) + _sum_first(inquiry)
    if inquiry.with_nodes:
        reply(state, inquiry.client, [length, 1 + len(inquiry.answers), inquiry.silent])
    else:
        reply(state, inquiry.client, length)


def _sum_first(inquiry: Inquiry) -> int:
    return sum([numbers[0] for numbers in inquiry.answers.values() if numbers])


# QSTAT GLOBAL


def global_queue_status(state: State, client: ClientId, command: cmd.QStat) -> None:
    """QSTAT GLOBAL: one queue as the members that answer see it together."""
    _end_if_done(state, _ask_all(state, client, STATUS, command.timeout_ms, queue=command.queue))


def _answer_status(state: State, _peer: NodeId, said: msg.Question) -> tuple[int, ...]:
    return status_of(state, said.queue)


def _finish_status(state: State, inquiry: Inquiry) -> None:
    own = status_of(state, inquiry.queue)
    rows = [own, *[n for n in inquiry.answers.values() if len(n) >= len(own)]]
    if not any([row[0] for row in rows]):
        reply(state, inquiry.client, NilArray())
        return
    spoke: list[Reply] = [b"nodes-answered", 1 + len(inquiry.answers)]
    silent: list[Reply] = [b"nodes-silent", inquiry.silent]
    reply(state, inquiry.client, [*queue_fields(inquiry.queue, rows), *spoke, *silent])


# Subscriptions of a queue


def count_attending(state: State, client: ClientId, command: cmd.CountAttending) -> None:
    """The sum over the members that answer."""
    _end_if_done(state, _ask_all(state, client, ATTENDING, None, queue=command.queue))


def _answer_attending(state: State, _peer: NodeId, said: msg.Question) -> tuple[int, ...]:
    return (state.topics.attending.get(said.queue, 0),)


def _finish_attending(state: State, inquiry: Inquiry) -> None:
    own = state.topics.attending.get(inquiry.queue, 0)
    reply(state, inquiry.client, own + _sum_first(inquiry))


# QPURGE, CANCELJOB


def purge_queue(state: State, client: ClientId, command: cmd.QPurge) -> None:
    """QPURGE: a one-time order to the members that can be reached (M19, B9.4).

    Answered when what lay in the queue here is gone, however long that takes; others answer when they have begun.
    """
    state.purges_made += 1
    queue, order, is_final = command.queue, (state.boot, state.purges_made), command.is_final
    numbers = (*order, 1) if is_final else order
    inquiry = _ask_all(state, client, PURGE, command.timeout_ms, queue=queue, numbers=numbers)
    inquiry.done_here = purge_here(
        state, queue, state.self_id, *order, is_final=is_final, asked=inquiry
    )
    _end_if_done(state, inquiry)


def purge_due(state: State, purge: Purge) -> None:
    """The next step of a purge, and the answer for who waits for it."""
    purge_step(state, purge)
    inquiry = purge.asked
    if inquiry is not None and not inquiry.is_busy:
        purge.asked = None
        if inquiry.number in state.inquiries:
            _end_if_done(state, inquiry)


def _answer_purge(state: State, peer: NodeId, said: msg.Question) -> tuple[int, ...]:
    if len(said.numbers) < 2:
        return (0,)
    boot, seq, *final = said.numbers
    return (purge_here(state, said.queue, peer, boot, seq, is_final=final == [1]),)


def _finish_purge(state: State, inquiry: Inquiry) -> None:
    jobs = inquiry.done_here + _sum_first(inquiry)
    reply(state, inquiry.client, [jobs, 1 + len(inquiry.answers), inquiry.silent])


def cancel_jobs(state: State, client: ClientId, command: cmd.CancelJob) -> None:
    """CANCELJOB: `:n` ids that an answerer held and had not acked (B9.1)."""
    ids = tuple(dict.fromkeys(command.ids))
    inquiry = _ask_all(state, client, CANCEL, command.timeout_ms, ids=ids)
    inquiry.numbers = tuple([int(cancel_here(state, id_)) for id_ in ids])
    _end_if_done(state, inquiry)


def _answer_cancel(state: State, _peer: NodeId, said: msg.Question) -> tuple[int, ...]:
    return tuple([int(cancel_here(state, id_)) for id_ in said.ids])


def _finish_cancel(state: State, inquiry: Inquiry) -> None:
    rows = [inquiry.numbers, *[n for n in inquiry.answers.values() if len(n) == len(inquiry.ids)]]
    count = 0
    for id_, *held in zip(inquiry.ids, *rows, strict=True):
        if any(held):
            count += 1
        else:
            remember_unknown(state, id_, Reason.CANCELLED)  # it may live where nobody was asked
    reply(state, inquiry.client, count)


# WAITJOB


def wait_for_jobs(state: State, client: ClientId, command: cmd.WaitJob) -> None:
    """WAITJOB: until no id is pending, or time is up; one `[id, outcome]` an id."""
    inquiry = Inquiry(
        number=0,
        client=client,
        kind=OUTCOMES,
        queue=b"",
        ids=command.ids,
        numbers=(),
        deadline=None,
        pending={},
        wait_deadline=state.now_ms + command.timeout_ms if command.timeout_ms else None,
        wait_ms=_WAIT_FIRST_MS,
    )
    _ask_outcomes(state, inquiry)


def _ask_outcomes(state: State, waiting: Inquiry) -> None:
    timeout_ms = state.limits.ask_cluster_ms
    if waiting.wait_deadline is not None:
        timeout_ms = max(1, min(timeout_ms, waiting.wait_deadline - state.now_ms))
    inquiry = _ask_all(state, waiting.client, OUTCOMES, timeout_ms, ids=waiting.ids)
    inquiry.wait_deadline, inquiry.wait_ms = waiting.wait_deadline, waiting.wait_ms
    _end_if_done(state, inquiry)


def _answer_outcomes(state: State, _peer: NodeId, said: msg.Question) -> tuple[int, ...]:
    return tuple([outcome_of(state, id_) for id_ in said.ids])


def _finish_outcomes(state: State, inquiry: Inquiry) -> None:
    rows = [n for n in inquiry.answers.values() if len(n) == len(inquiry.ids)]
    outcomes: list[int] = []
    for at, id_ in enumerate(inquiry.ids):
        said = [outcome_of(state, id_), *[row[at] for row in rows]]
        outcomes.append(joined_outcome(said, is_complete=not inquiry.silent))
    inquiry.numbers = tuple(outcomes)
    deadline, now = inquiry.wait_deadline, state.now_ms
    if PENDING in outcomes and (deadline is None or now < deadline):
        _rest(state, inquiry)
    else:
        _reply_outcomes(state, inquiry)


def _reply_outcomes(state: State, inquiry: Inquiry) -> None:
    """Give the outcomes of the last round."""
    said = zip(inquiry.ids, inquiry.numbers, strict=True)
    reply(state, inquiry.client, [[id_, OUTCOME_NAMES[outcome]] for id_, outcome in said])


def _rest(state: State, inquiry: Inquiry) -> None:
    """Ask again in a while; meanwhile the inquiry stays with its client."""
    inquiry.is_resting = True
    hold(state, inquiry)
    at = state.now_ms + inquiry.wait_ms
    if inquiry.wait_deadline is not None:
        at = min(at, inquiry.wait_deadline)
    inquiry.wait_ms = min(inquiry.wait_ms * 2, _WAIT_MAX_MS)
    wake(state, inquiry, at)


# NACK, ENQUEUE, DEQUEUE, REVIVE, WORKING: here, or passed on to one holder


def nack_jobs(state: State, client: ClientId, command: cmd.Nack) -> None:
    """NACK: `:n` jobs given back."""
    delay_ms = command.delay_ms
    done = sum([nack_here(state, id_, delay_ms) for id_ in dict.fromkeys(command.ids)])
    _pass_on(state, client, NACK, command.ids, done_here=done, numbers=(delay_ms,))


def enqueue_jobs(state: State, client: ClientId, command: cmd.Enqueue) -> None:
    """ENQUEUE: `:n` active jobs queued at once."""
    done = sum([enqueue_here(state, id_) for id_ in command.ids])
    _pass_on(state, client, ENQUEUE, command.ids, done_here=done)


def dequeue_jobs(state: State, client: ClientId, command: cmd.Dequeue) -> None:
    """DEQUEUE: `:n` jobs taken out of their queues."""
    done = sum([dequeue_here(state, id_) for id_ in command.ids])
    _pass_on(state, client, DEQUEUE, command.ids, done_here=done)


def revive_jobs(state: State, client: ClientId, command: cmd.Revive) -> None:
    """REVIVE: `:n` dead letters put back."""
    done = sum([revive_here(state, id_) for id_ in command.ids])
    _pass_on(state, client, REVIVE, command.ids, done_here=done)


def working(state: State, client: ClientId, command: cmd.Working) -> None:
    """WORKING: `:retry` seconds, the time by which the next delivery is put off."""
    code = working_here(state, command.id)
    if code == WORKING_UNKNOWN and state.view.size > 1:
        _pass_on(state, client, WORKING, (command.id,), done_here=0)
    else:
        _reply_working(state, client, code, answered=1, silent=0)


def _pass_on(
    state: State,
    client: ClientId,
    word: int,
    ids: tuple[JobId, ...],
    *,
    done_here: int,
    numbers: tuple[int, ...] = (),
) -> None:
    """Find a holder of each id that has no copy here; never all of them, that would queue the job several times."""
    unknown = tuple([id_ for id_ in dict.fromkeys(ids) if id_ not in state.jobs])
    if not unknown or state.view.size < 2:
        reply(state, client, done_here)
        return
    # Half of the time to find the holders, so that one silent member leaves time for the order itself.
    half_ms = max(1, state.limits.ask_cluster_ms // 2)
    inquiry = _ask_all(state, client, HOLDERS, half_ms, ids=unknown, numbers=numbers)
    inquiry.done_here = done_here
    inquiry.word = word
    _end_if_done(state, inquiry)


def _answer_holders(state: State, _peer: NodeId, said: msg.Question) -> tuple[int, ...]:
    return tuple([_holding(state, id_) for id_ in said.ids])


_DONE_THERE, _HELD_THERE, _DELIVERED_THERE, _QUEUED_THERE = 1, 2, 3, 2**61


def _holding(state: State, id_: JobId) -> int:
    job = state.jobs.get(id_)
    if job is None:
        is_buried = id_ in state.tombstones or id_ in state.long_tombstones
        return _DONE_THERE if is_buried else 0
    if job.is_done:
        return _DONE_THERE
    if job.state is JobState.QUEUED:
        return _QUEUED_THERE
    stamp, _ = job.leases.get(state.self_id, (0, 0))
    return _DELIVERED_THERE + stamp if stamp else _HELD_THERE


def _finish_holders(state: State, inquiry: Inquiry) -> None:
    """Choose one holder an id: who has it queued, else who handed it out last, else the first in salted order."""
    rows = {n: row for n, row in inquiry.answers.items() if len(row) == len(inquiry.ids)}
    shares: dict[NodeId, tuple[JobId, ...]] = {}
    is_acked = False
    for at, id_ in enumerate(inquiry.ids):
        best = max([row[at] for row in rows.values()], default=0)
        is_acked |= best == _DONE_THERE
        if best >= _HELD_THERE:
            node = salted(id_, [n for n, row in rows.items() if row[at] == best])[0]
            shares[node] = (*shares.get(node, ()), id_)
    if not shares:
        _reply_passed_on(
            state, inquiry, inquiry, code=WORKING_ACKED if is_acked else WORKING_UNKNOWN
        )
        return
    part = open_inquiry(
        state,
        inquiry.client,
        inquiry.word,
        shares=shares,
        deadline=state.now_ms + max(1, state.limits.ask_cluster_ms // 2),
        numbers=inquiry.numbers,
    )
    part.word, part.done_here, part.asked = inquiry.word, inquiry.done_here, inquiry
    _end_if_done(state, part)


def _finish_passed_on(state: State, part: Inquiry) -> None:
    state.counts.forward_timeouts += bool(part.silent)
    code = max([row[0] for row in part.answers.values() if row], default=WORKING_UNKNOWN)
    _reply_passed_on(state, part, part.asked or part, code=code)


def _reply_passed_on(state: State, part: Inquiry, asked: Inquiry, *, code: int) -> None:
    if part.word == WORKING:
        silent = asked.silent + (part.silent if part is not asked else 0)
        answered = 1 + len(asked.answers) + (asked.silent - silent)
        _reply_working(state, part.client, code, answered=answered, silent=silent)
        return
    passed_on = 0 if part is asked else sum([sum(row) for row in part.answers.values()])
    reply(state, part.client, part.done_here + passed_on)


def _reply_working(
    state: State, client: ClientId | None, code: int, *, answered: int, silent: int
) -> None:
    if code >= WORKING_DONE:
        reply(state, client, code - WORKING_DONE)
    elif code == WORKING_ACKED:
        fail(state, client, "ACKED", "Job already acknowledged.")
    elif code == WORKING_TOO_LATE:
        text = "Half of job TTL already elapsed, you are no longer allowed to postpone the next delivery."
        fail(state, client, "TOOLATE", text)
    elif silent:
        text = (
            f"Job not known to {answered} of {answered + silent} nodes, the others did not answer."
        )
        fail(state, client, "NOJOB", text)
    else:
        fail(state, client, "NOJOB", "Job not known in the context of this node.")


def _answer_each(
    do: Callable[[State, JobId], int],
) -> Callable[[State, NodeId, msg.Question], tuple[int, ...]]:
    return lambda state, _peer, said: tuple([int(do(state, id_)) for id_ in said.ids])


def _answer_nack(state: State, _peer: NodeId, said: msg.Question) -> tuple[int, ...]:
    delay_ms = said.numbers[0] if said.numbers else 0
    return tuple([int(nack_here(state, id_, delay_ms)) for id_ in said.ids])


_ANSWER: Mapping[int, Callable[[State, NodeId, msg.Question], tuple[int, ...]]] = {
    LENGTH: _answer_length,
    STATUS: _answer_status,
    HOLDERS: _answer_holders,
    CANCEL: _answer_cancel,
    PURGE: _answer_purge,
    OUTCOMES: _answer_outcomes,
    NACK: _answer_nack,
    ENQUEUE: _answer_each(enqueue_here),
    DEQUEUE: _answer_each(dequeue_here),
    WORKING: _answer_each(working_here),
    REVIVE: _answer_each(revive_here),
    RETURNED: answer_returned,
    ATTENDING: _answer_attending,
}
_FINISH: Mapping[int, Callable[[State, Inquiry], None]] = {
    LENGTH: _finish_length,
    STATUS: _finish_status,
    HOLDERS: _finish_holders,
    CANCEL: _finish_cancel,
    PURGE: _finish_purge,
    OUTCOMES: _finish_outcomes,
    RETURNED: finish_returned,
    ATTENDING: _finish_attending,
    **dict.fromkeys((NACK, ENQUEUE, DEQUEUE, WORKING, REVIVE), _finish_passed_on),
}
