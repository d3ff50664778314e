"""Faults of C Disque (reference 9.1) that belong to no single module here; the others stand with their modules.

W-27, W-28 and W-29 are about its log and come with ours; W-36 is about byte order in C.
"""

from __future__ import annotations

import base64
import random

import pytest

from disque.core import commands as cmd
from disque.core import messages as msg
from disque.core.job import Reason
from disque.core.jobid import make_job_id
from disque.core.ready import ClientId, NilArray
from tests.unit.core.builders import (
    DAY_MS,
    NOW,
    RETRY_MS,
    A,
    B,
    C,
    Node,
    copy,
    job_id,
    view,
)


def test_w11_queueing_again_without_a_hand_out_is_no_delivery() -> None:
    """ENQUEUE, DEQUEUE and requeueing counted as additional deliveries."""
    node = Node()
    i = node.add(retry_ms=RETRY_MS)
    for _ in range(3):
        node.do(cmd.Dequeue((i,)))
        node.do(cmd.Enqueue((i,)))
    assert node.shown(i)[b"additional-deliveries"] == 0
    node.get()
    node.advance(RETRY_MS + 1_000)
    assert node.shown(i)[b"additional-deliveries"] == 0, "queued again, not yet handed out again"
    (again,) = node.get()
    assert (again.id, node.shown(i)[b"additional-deliveries"]) == (i, 1)


def test_w11_counters_do_not_wrap_at_16_bits() -> None:
    node = Node()
    i = node.add(retry_ms=RETRY_MS)
    node.job(i).nacks = {A: 70_000}
    assert node.shown(i)[b"nacks"] == 70_000


def test_w33_a_job_handed_to_a_client_that_died_comes_back_after_retry() -> None:
    node = Node()
    node.do(cmd.GetJob((b"q",)), client=ClientId(5))
    i = node.add(retry_ms=RETRY_MS)
    node.disconnect(ClientId(5))
    assert node.get() == []
    node.advance(RETRY_MS + 1)
    assert [each.id for each in node.get()] == [i]


def test_w35_all_144_bits_of_an_id_are_free() -> None:
    """C's encoder repeated bits: of characters 4k+3 and 4k+4 four agreed."""
    dice = random.Random(7)
    entropies = [dice.randbytes(18) for _ in range(200)]
    ids = [make_job_id(A, each, ttl_ms=DAY_MS, is_retried=True) for each in entropies]
    assert [base64.b64decode(each[11:35]) for each in ids] == entropies


def test_w41_time_outs_of_many_blocked_clients_are_exact_to_the_ms() -> None:
    node = Node()
    for n in range(1, 501):
        node.engine.command(ClientId(n), cmd.GetJob((b"q",), timeout_ms=n))
    node.advance(250)
    answered = [int(client) for client, reply in node.replies if isinstance(reply, NilArray)]
    assert answered == list(range(1, 251))


@pytest.mark.parametrize("step_ms", [-86_400_000, 86_400_000])
def test_w42_no_time_on_the_wire_depends_on_the_sender_s_clock(step_ms: int) -> None:
    """Two nodes a day apart: a copy expires, and is due, by remaining time alone."""
    far = Node(view(B, up=(A,)), now_ms=NOW + step_ms)
    near = Node(view(A, up=(B,)))
    far.do(cmd.AddJob(b"q", b"x", 0, 2, retry_ms=RETRY_MS, ttl_ms=60_000))
    (said,) = far.told(msg.ReplJob, to=A)
    near.hear(B, said)
    assert near.job(said.id).expires_at == near.now_ms + 60_000
    assert near.job(said.id).ask_at == near.now_ms + RETRY_MS


def test_w43_a_node_that_lost_its_copy_counts_as_told_only_once_it_has_stored_the_end() -> None:
    i = job_id(1)
    node = Node(view(up=(B, C)))  # restarted empty: it is a holder, and knows nothing
    node.hear(B, msg.SetAck(i, Reason.ACKED, (A, B, C), (B,), DAY_MS))
    (got,) = node.told(msg.GotAck, to=B)
    assert got.told == (A, B)
    node.clear()
    node.hear(C, copy(i, A, B, C))  # a copy that was still on its way meets the stored end
    assert node.told(msg.GotJob) == []
    assert [each.id for each in node.told(msg.SetAck, to=C)] == [i]
    assert node.job(i).is_done
