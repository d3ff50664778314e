"""The mechanism of questions to the cluster: one message to each member, one answer each, within a time.

What a kind of question means, and what its end brings, is `asking`'s business: functions here hand an ended inquiry
back.
"""

from __future__ import annotations

from collections.abc import Mapping

from cluster.nodeid import NodeId
from disque.core import messages as msg
from disque.core.jobid import JobId
from disque.core.ready import ClientId
from disque.core.state import Inquiry, State, send, wake


def members(state: State) -> tuple[NodeId, ...]:
    """All known members but this one, sorted."""
    return tuple([node for node in state.view.members if node != state.self_id])


def open_inquiry(
    state: State,
    client: ClientId | None,
    kind: int,
    *,
    shares: Mapping[NodeId, tuple[JobId, ...]],
    deadline: int | None,
    ids: tuple[JobId, ...] = (),
    queue: bytes = b"",
    numbers: tuple[int, ...] = (),
) -> Inquiry:
    """Ask each node of `shares` about its ids; those that can't be reached are silent at once.

    `deadline` in ms, None: until each has answered or failed. The caller looks whether it has ended already.
    """
    state.inquiries_made += 1
    reached = [node for node in shares if node in state.up_set]
    inquiry = Inquiry(
        number=state.inquiries_made,
        client=client,
        kind=kind,
        queue=queue,
        ids=ids,
        numbers=numbers,
        deadline=deadline,
        pending=dict.fromkeys(reached),
        silent=len(shares) - len(reached),
    )
    hold(state, inquiry)
    for node in reached:
        send(state, (node,), msg.Question(inquiry.number, kind, queue, shares[node], numbers))
    if deadline is not None:
        wake(state, inquiry, deadline)
    return inquiry


def take_answer(state: State, peer: NodeId, said: msg.Answer) -> Inquiry | None:
    """Keep a member's answer; the inquiry if that was the last one."""
    inquiry = state.inquiries.get(said.number)
    if inquiry is None or peer not in inquiry.pending:
        return None
    del inquiry.pending[peer]
    inquiry.answers[peer] = said.numbers
    return None if inquiry.pending else inquiry


def hold(state: State, inquiry: Inquiry) -> None:
    """It waits from now on, and its client with it."""
    state.inquiries[inquiry.number] = inquiry
    state.asked_ids += len(inquiry.ids)
    if inquiry.client is not None:
        state.inquiry_of[inquiry.client] = inquiry.number


def close_inquiry(state: State, inquiry: Inquiry) -> None:
    """Wait no longer."""
    if state.inquiries.pop(inquiry.number, None) is not None:
        state.asked_ids -= len(inquiry.ids)
    state.agenda.cancel(inquiry)
    if inquiry.client is not None:
        state.inquiry_of.pop(inquiry.client, None)
    silence(inquiry)


def silence(inquiry: Inquiry) -> None:
    """Whoever hasn't answered is silent."""
    inquiry.silent += len(inquiry.pending)
    inquiry.pending.clear()


def strike_unreachable(state: State) -> list[Inquiry]:
    """The view changed: members that can't be reached any more are silent; those inquiries that this ends."""
    ended: list[Inquiry] = []
    for inquiry in state.inquiries.values():
        lost = [node for node in inquiry.pending if node not in state.up_set]
        for node in lost:
            del inquiry.pending[node]
        inquiry.silent += len(lost)
        if lost and not inquiry.pending:
            ended.append(inquiry)
    return ended


def drop_of_client(state: State, client: ClientId) -> None:
    """The client has gone: nobody waits for its question any more."""
    number = state.inquiry_of.get(client)
    if number is not None:
        close_inquiry(state, state.inquiries[number])
