"""Broker: bodies that lie in the log alone are read before anything leaves the pure part."""

from __future__ import annotations

import random

import pytest

from cluster.nodeid import NodeId
from cluster.nodesfile import StoredNodes
from cluster.ready import Identity
from disque.broker import Broker, BrokerSettings
from disque.core import commands as cmd
from disque.core import messages as msg
from disque.core import wire
from disque.core.jobid import JobId
from disque.core.limits import Limits
from disque.core.memory import BASE_BYTES
from disque.core.ready import ClientId, Delivery, NilArray, Paged, Reply

ME = ClientId(1)
NOW = 1_000_000


class Disk:
    """Where bodies lie; `lost` are places that can't be read any more."""

    def __init__(self) -> None:
        self.bodies: dict[int, bytes] = {}  # by offset
        self.lost: list[Paged] = []

    def read(self, place: Paged) -> bytes | None:
        return None if place in self.lost else self.bodies[place.offset]


def make(disk: Disk) -> Broker:
    return Broker(
        settings=BrokerSettings(limits=Limits(maxmemory_bytes=BASE_BYTES + 2_000)),
        identity=Identity(NodeId("a" * 40), 7, 7, "", 7711, 17711),
        stored=StoredNodes(),
        dice=random.Random(0),
        now_ms=NOW,
        bodies=disk.read,
    )


def ask(broker: Broker, command: cmd.Command) -> Reply:
    broker.command(ME, command)
    ((_, answer),) = broker.take_ready().replies
    return answer


def add(broker: Broker, disk: Disk, body: bytes, *, retry_ms: int = 10_000) -> bytes:
    """A job whose body has left memory."""
    broker.command(ME, cmd.AddJob(b"q", body, 0, replicate=1, retry_ms=retry_ms))
    batch = broker.take_ready()
    id_ = batch.records[0].fields[0]
    assert isinstance(id_, bytes)
    place = Paged(1, 100 * len(disk.bodies), 400)
    disk.bodies[place.offset] = body
    broker.engine.placed(id_, place.segment, place.offset, place.size)
    assert broker.engine.state.jobs[JobId(id_)].body == place
    return id_


@pytest.mark.parametrize("retry_ms", [10_000, 0])
def test_a_delivery_brings_the_body_from_the_log(retry_ms: int) -> None:
    disk = Disk()
    broker = make(disk)
    ids = [add(broker, disk, bytes([65 + n]) * 300, retry_ms=retry_ms) for n in range(2)]
    answer = ask(broker, cmd.GetJob((b"q",), count=2))
    assert isinstance(answer, list)
    assert [(d.id, d.body) for d in answer if isinstance(d, Delivery)] == [
        (ids[0], b"A" * 300),
        (ids[1], b"B" * 300),
    ]


def test_show_and_peek_read_it_too() -> None:
    disk = Disk()
    broker = make(disk)
    id_ = add(broker, disk, b"x" * 300)
    shown = ask(broker, cmd.Show(JobId(id_)))
    assert isinstance(shown, list)
    assert b"x" * 300 in shown
    assert ask(broker, cmd.QPeek(b"q", 1)) == [[b"q", id_, b"x" * 300]]


def test_what_cant_be_read_isnt_delivered_and_is_told() -> None:
    disk = Disk()
    broker = make(disk)
    lost, whole = add(broker, disk, b"x" * 300), add(broker, disk, b"y" * 300)
    disk.lost.append(Paged(1, 0, 400))
    answer = ask(broker, cmd.GetJob((b"q",), count=2))
    assert isinstance(answer, list)
    assert [each.id for each in answer if isinstance(each, Delivery)] == [whole]
    assert JobId(lost) in broker.engine.state.jobs, "another holder may still have it"

    broker = make(disk)
    add(broker, disk := Disk(), b"x" * 300)
    disk.lost.append(Paged(1, 0, 400))
    broker.bodies = disk.read
    broker.command(ME, cmd.GetJob((b"q",), count=1))
    batch = broker.take_ready()
    assert batch.replies == [(ME, NilArray())]
    assert [note.event for note in batch.notes if note.level == "warning"] == ["body-unreadable"]


def test_statements_leave_with_their_bodies_and_without_what_cant_be_read() -> None:
    disk = Disk()
    broker = make(disk)
    ids = [add(broker, disk, b"x" * 300), add(broker, disk, b"y" * 300)]
    disk.lost.append(Paged(1, 100, 400))
    state = broker.engine.state
    jobs = [state.jobs[JobId(id_)] for id_ in ids]
    spoken: list[msg.Message] = []
    for job in jobs:
        assert job.body is not None
        spoken.append(msg.ReplJob(job.id, job.live_spec, job.ctime, job.body, msg.Facts((), 1)))
    said = broker._with_bodies(spoken)
    assert [(each.id, each.body) for each in said if isinstance(each, msg.ReplJob)] == [
        (ids[0], b"x" * 300)
    ]


def test_who_has_left_has_left_although_acks_still_reach_it() -> None:
    """Found by the soak: a node that is safe to stop hears one more ack, and is stopped at that moment."""
    broker = make(Disk())
    broker.set_leaving(True)
    broker.advance(NOW + 60_000)
    broker.take_ready()
    assert broker.is_safe_to_stop()
    assert broker.membership.is_left_told
    broker.command(ME, cmd.AddJob(b"q", b"x", 0, replicate=1, retry_ms=10_000))
    broker.take_ready()
    assert broker.membership.is_left_told
    broker.set_leaving(False)
    broker.take_ready()
    assert not broker.membership.is_left_told


def test_a_bad_statement_spares_the_others_and_is_noted_once_a_minute() -> None:
    broker, peer = make(Disk()), NodeId("b" * 40)
    good, bad = msg.Heal(7, 1), msg.GotJob(JobId(b"no id"), 7, 1)
    heard: list[msg.Message] = []
    broker.hear = lambda _peer, _boot, said: heard.append(said)
    payload = wire.encode([bad, good, bad])
    for _ in range(3):
        broker._payload(peer, 7, payload)
    broker._payload(peer, 7, b"junk")
    assert heard == [good] * 3
    assert broker.engine.state.counts.bad_payloads == 4
    (note,) = broker.take_ready().notes
    error = "expected a job id, got b'no id'"
    assert note.facts == (("peer", peer), ("error", error), ("statements", 2))
    broker.advance(NOW + 60_000)
    broker._payload(peer, 7, b"junk")
    assert [each.event for each in broker.take_ready().notes] == ["bad-payload"]
