"""What decisions cost: the pure engine alone, and three of them with the codec between."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from disque.core import commands as cmd
from disque.core import wire
from disque.core.engine import Engine
from disque.core.jobid import JobId
from disque.core.limits import Limits
from disque.core.ready import ClientId, Status
from tests.bench.parts import COUNT, CPU, timed
from tests.bench.pipeline import BODY
from tests.unit.core.builders import BOOT, NOW, A, B, C, view

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

    from cluster.nodeid import NodeId

pytestmark = CPU

A_TURN = 50  # commands between two looks at Ready, as with fifty clients
NODES = (A, B, C)


def engine(node: NodeId = A, *others: NodeId) -> Engine:
    """A node without a log."""
    seen = view(node, up=others)
    made = Engine(
        view=seen, boot=BOOT, since=BOOT, limits=Limits(), dice=random.Random(1), now_ms=NOW
    )
    made.set_logged(False)
    return made


def add(node: Engine, copies: int, first: int = 0, count: int = COUNT) -> None:
    """ADDJOBs, each of a client of its own."""
    for number in range(first, first + count):
        node.command(ClientId(number), cmd.AddJob(b"q", BODY, 0, replicate=copies))


def turns(node: Engine, commands: list[cmd.Command]) -> None:
    """Carry them out, A_TURN at a time."""
    for at, command in enumerate(commands, 1):
        node.command(ClientId(at), command)
        if at % A_TURN == 0:
            node.take_ready()


def filled() -> tuple[Engine, list[JobId]]:
    """A node, and the ids of its jobs."""
    node = engine()
    add(node, 1)
    replies = [reply for _, reply in node.take_ready().replies]
    return node, [JobId(reply.text) for reply in replies if isinstance(reply, Status)]


def test_add(benchmark: BenchmarkFixture) -> None:
    adding: list[cmd.Command] = [cmd.AddJob(b"q", BODY, 0, replicate=1)] * COUNT
    what = "engine: ADDJOB REPLICATE 1"
    timed(benchmark, what, turns, lambda: (engine(), adding))


def test_get(benchmark: BenchmarkFixture) -> None:
    getting: list[cmd.Command] = [cmd.GetJob((b"q",))] * COUNT
    timed(benchmark, "engine: GETJOB", turns, lambda: (filled()[0], getting))


def test_ack(benchmark: BenchmarkFixture) -> None:
    def make() -> tuple[Engine, list[cmd.Command]]:
        node, ids = filled()
        return node, [cmd.AckJob((id_,)) for id_ in ids]

    timed(benchmark, "engine: ACKJOB of one", turns, make)


def converse(nodes: dict[NodeId, Engine]) -> list[JobId]:
    """Carry messages until nobody has anything to say; the ids that ADDJOBs were answered with."""
    ids: list[JobId] = []
    is_quiet = False
    while not is_quiet:
        is_quiet = True
        for source, node in nodes.items():
            ready = node.take_ready()
            ids += [JobId(each.text) for _, each in ready.replies if isinstance(each, Status)]
            for peers, said in ready.messages:
                is_quiet = False
                payload = wire.encode(said)
                for peer in peers:
                    for message in wire.decode(payload):
                        nodes[peer].receive(source, BOOT, message)
    return ids


def life(nodes: dict[NodeId, Engine]) -> None:
    """COUNT jobs from add to the last word about them."""
    first = nodes[A]
    for at in range(0, COUNT, A_TURN):
        add(first, 3, at, A_TURN)
        ids = converse(nodes)
        turns(first, [cmd.GetJob((b"q",))] * A_TURN)
        turns(first, [cmd.AckJob((id_,)) for id_ in ids])
        converse(nodes)


def test_life_with_three_copies(benchmark: BenchmarkFixture) -> None:
    def make() -> tuple[dict[NodeId, Engine]]:
        return ({node: engine(node, *[each for each in NODES if each != node]) for node in NODES},)

    what = "engine and codec: ADDJOB REPLICATE 3, GETJOB, ACKJOB, all three nodes"
    timed(benchmark, what, life, make)
