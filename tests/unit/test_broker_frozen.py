"""A frozen broker: the log can't be written, so nothing that speaks of a record leaves; only membership lives."""

from __future__ import annotations

import random

from cluster import messages
from cluster.membership import MembershipConfig
from cluster.nodeid import NodeId
from cluster.nodesfile import StoredNodes
from cluster.ready import ConnId, Identity
from disque.broker import Broker, BrokerSettings
from disque.core import commands as cmd
from disque.core import messages as msg
from disque.core import wire
from disque.core.jobid import JobId
from disque.core.limits import Limits
from disque.core.ready import ClientId, NilArray
from tests.unit.core.builders import facts, job_id, spec

ME, OTHER = ClientId(1), ClientId(2)
PEER = NodeId("b" * 40)
NOW = 1_000_000


def make() -> Broker:
    broker = Broker(
        settings=BrokerSettings(limits=Limits(), membership=MembershipConfig()),
        identity=Identity(NodeId("a" * 40), 7, 7, "", 7711, 17711),
        stored=StoredNodes(),
        dice=random.Random(0),
        now_ms=NOW,
    )
    broker.take_ready()
    return broker


def test_timers_of_jobs_stand_still_and_reads_are_answered() -> None:
    broker = make()
    assert not broker.command(ME, cmd.GetJob((b"q",), timeout_ms=50))
    broker.take_ready()
    broker.freeze()
    broker.advance(NOW + 1000)
    assert broker.take_ready().replies == []
    broker.command(OTHER, cmd.QLen(b"q"))
    assert broker.take_ready().replies == [(OTHER, 0)]
    broker.thaw()
    broker.advance(NOW + 1001)
    assert broker.take_ready().replies == [(ME, NilArray())]


def test_records_stay_inside_until_they_can_be_stored() -> None:
    broker = make()
    broker.command(ME, cmd.AddJob(b"q", b"body", 0, replicate=1))
    broker.take_ready()
    broker.freeze()
    broker.engine.reset()
    assert broker.take_ready().records == []
    broker.thaw()
    assert "flush" in [record.kind for record in broker.take_ready().records]


def test_messages_older_than_a_link_lets_them_wait_are_dropped() -> None:
    for frozen_ms, is_kept in ((14_000, True), (16_000, False)):
        broker = make()
        broker.freeze()
        said: list[msg.Message] = [msg.Unknown(JobId(b"D-x"), 1, 1)]
        broker.engine.state.ready.messages.append(((PEER,), said))
        broker.take_ready()
        broker.advance(NOW + frozen_ms)
        broker.thaw()
        assert bool(broker.engine.state.ready.messages) is is_kept


def test_what_peers_said_meanwhile_is_asked_for_again() -> None:
    """Links stood, so nothing else would heal what was lost: a pause, a job given to us to queue."""
    broker = make()
    frozen = broker.engine.state
    frozen.up, frozen.up_set = (PEER,), frozenset((PEER,))
    broker.freeze()
    broker.advance(NOW + 1_000)
    broker.thaw()
    said = [each for to, batch in frozen.ready.messages for each in batch if to == (PEER,)]
    assert msg.Heal(7, 1) in said


def linked() -> Broker:
    """Linked both ways with PEER: its connection is 2."""
    broker = make()
    broker.meet("10.0.0.2", 17711)
    (dial,) = broker.take_ready().dials
    peer = Identity(PEER, 7, 7, "", 7711, 17711)
    broker.dialed(dial.dial, ConnId(1), peer, "10.0.0.1", "10.0.0.2")
    broker.accepted(ConnId(2), peer, False, "10.0.0.1", "10.0.0.2")
    broker.take_ready()
    return broker


def answers(broker: Broker, *said: msg.Message) -> list[msg.Message]:
    """What the peer that says this is told."""
    broker.frame(ConnId(2), messages.encode(messages.Payload(7, wire.encode(list(said)))))
    told = [messages.decode(body) for _, body in broker.take_ready().frames]
    return [
        each
        for body in told
        if isinstance(body, messages.Payload)
        for each in wire.decode(body.data)
    ]


def a_copy(number: int) -> msg.ReplJob:
    return msg.ReplJob(job_id(number), spec(), NOW * 1_000_000, b"body", facts(PEER))


def test_whoever_asks_for_a_copy_hears_that_there_will_be_none() -> None:
    broker = linked()
    (kept,) = answers(broker, a_copy(1))
    assert isinstance(kept, msg.GotJob)
    broker.freeze()
    assert answers(broker, a_copy(1), a_copy(2), msg.Unknown(job_id(3), 1, 1)) == [
        msg.Refused(job_id(1), is_queue_only=False),
        msg.Refused(job_id(2), is_queue_only=False),
    ]


def test_of_a_job_in_its_queue_or_handed_out_nothing_is_said() -> None:
    broker = linked()
    answers(broker, a_copy(1))
    broker.command(ME, cmd.Enqueue((job_id(1),)))
    broker.take_ready()
    broker.freeze()
    assert answers(broker, a_copy(1)) == []
    broker.thaw()
    broker.command(ME, cmd.GetJob((b"q",)))
    broker.take_ready()
    broker.freeze()
    assert answers(broker, a_copy(1)) == []


def test_what_no_peer_would_say_is_borne() -> None:
    broker = linked()
    broker.freeze()
    broker.frame(ConnId(2), messages.encode(messages.Payload(7, b"?")))
    assert broker.take_ready().frames == []
    assert broker.engine.state.counts.bad_payloads == 1
