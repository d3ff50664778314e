"""What a job costs, counted, not timed: messages of a life, frames and writes of a turn, bytes of a job that waits."""

from __future__ import annotations

import os
import sys
import tracemalloc
from collections import Counter

import pytest

from disque.core import commands as cmd
from disque.core import messages as msg
from disque.core.parsing import parse
from disque.core.ready import Delivery, Reply, Status
from tests.unit.cluster.test_bus import Node, running, wait_until
from tests.world import World

JOBS = 5_000
BODY = b"x" * 100


def add(world: World, node: str, *, copies: int) -> bytes:
    """ADDJOB, and what it answered once the copies were there."""
    world.answers.clear()
    world.command(node, cmd.AddJob(b"q", BODY, 0, replicate=copies))
    world.settle()
    (answer,) = world.answers
    assert isinstance(answer.reply, Status)
    return answer.reply.text


def test_messages_of_a_job_with_three_copies_from_add_to_ack() -> None:
    world = World("abc")
    world.settle()
    counts: Counter[str] = Counter()
    arrive = world.arrive

    def counted(packet: object) -> bool:
        counts.update(type(each).__name__ for each in packet.messages)  # type: ignore[attr-defined]
        return arrive(packet)  # type: ignore[arg-type]

    world.arrive = counted  # type: ignore[method-assign]
    id_ = add(world, "a", copies=3)
    world.command("a", cmd.GetJob((b"q",)))
    world.settle()
    world.command("a", cmd.AckJob((id_,)))
    world.settle()
    # To each of two peers: the copy, the end, and that all know of it; back: that the first two are stored. The lease
    # is told only when it must be (B1.1).
    assert counts == {
        "ReplJob": 2, "GotJob": 2, "SetAck": 2, "GotAck": 2, "DelJob": 2,
    }  # fmt: skip
    assert not any(node.state.jobs for node in world.alive)


def test_frames_of_many_jobs_in_a_turn_are_one_a_peer() -> None:
    world = World("abc")
    engine = world.nodes["a"].engine
    assert engine is not None
    engine.take_ready()
    for _ in range(100):
        client = world.new_client()
        engine.command(client, cmd.AddJob(b"q", BODY, 0, replicate=3))
    batches = engine.take_ready().messages
    ((peers, statements),) = batches
    assert len(peers) == 2
    assert len(statements) == 100
    # Jobs that are alike say the same of themselves, so that it becomes bytes once
    assert len({id(each.facts) for each in statements if isinstance(each, msg.ReplJob)}) == 1


async def test_frames_of_a_turn_are_one_write_a_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    one, *peers = (Node(number) for number in (1, 2, 3))
    async with running(one, *peers):
        for peer in peers:
            one.meet(peer)
        await wait_until(lambda: one.reaches(*peers))
        for _ in range(100):
            assert all(one.membership.send(peer.id, b"payload") for peer in peers)
        writes: list[int] = []
        write = os.write

        def counted(fd: int, data: bytes) -> int:
            writes.append(fd)
            return write(fd, data)

        monkeypatch.setattr(os, "write", counted)
        one.turn()
        monkeypatch.undo()
        assert len(writes) == len({*writes}) == len(peers)
        await wait_until(lambda: all(len(peer.payloads) == 100 for peer in peers))


def test_bytes_of_a_job_that_waits() -> None:
    world = World("a")
    engine = world.nodes["a"].engine
    assert engine is not None
    engine.set_logged(False)

    def fill() -> None:
        for number in range(JOBS):
            engine.command(world.new_client(), cmd.AddJob(b"q", BODY + b"%d" % number, 0))
            engine.take_ready()

    fill()
    tracemalloc.start()
    fill()
    bytes_a_job = tracemalloc.get_traced_memory()[0] / JOBS
    tracemalloc.stop()
    # 100 of them are the body. C Disque takes 515 of resident memory.
    assert 300 < bytes_a_job < 700


def test_calls_of_a_command_on_one_node() -> None:
    world = World("a")
    engine = world.nodes["a"].engine
    assert engine is not None
    engine.set_logged(False)

    def run(words: bytes) -> Reply:
        name, *args = words.split()
        client = world.new_client()
        assert engine.command(client, parse(name, args))
        return engine.take_reply(client)

    def calls(words: bytes) -> int:
        """How many functions written in Python the command calls."""
        count = 0

        def hear(_frame: object, event: str, _arg: object) -> None:
            nonlocal count
            count += event == "call"

        sys.setprofile(hear)
        try:
            run(words)
        finally:
            sys.setprofile(None)
        return count

    add, get = b"addjob q body 0 REPLICATE 1", b"getjob FROM q"
    for _ in range(4):
        run(add)
    jobs = run(b"getjob COUNT 2 FROM q")
    assert isinstance(jobs, list)
    first, second = [job.id for job in jobs if isinstance(job, Delivery)]
    run(b"ackjob " + first)
    # What is added here slows down each job: a call takes some 100 ns with what is in it
    assert calls(add) <= 55
    assert calls(get) <= 44
    assert calls(b"ackjob " + second) <= 54
