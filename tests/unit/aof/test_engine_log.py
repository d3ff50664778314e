"""The real engine over the store: what it logs, and what compaction says again, makes the same facts after a crash."""

from __future__ import annotations

import random

import pytest

from disque.aof.compaction import Compaction
from disque.aof.replay import Replay
from disque.aof.store import Life, Store
from disque.core import commands as cmd
from disque.core.ready import Paged, Record
from tests.disk import MemoryDisk
from tests.unit.aof.world import KERNEL
from tests.unit.core.builders import RETRY_MS, STATES, A, B, C, Node, node_with, state_name, view
from tests.unit.core.test_engine_restoring import assert_same_facts, replayed

UP = view(up=(B, C))


class Logged:
    """A node whose records go to a disk after each step."""

    def __init__(self, node: Node, segment_bytes: int = 2_000) -> None:
        self.node, self.disk = node, MemoryDisk()
        life = Life(A, 1, 1, KERNEL, "everysec")
        self.store = Store(
            self.disk,
            life,
            is_complete=True,
            node_records=node.engine.node_records,
            segment_bytes=segment_bytes,
        )
        self.compaction = Compaction(self.store, lambda: node.engine)

    def turn(self) -> None:
        for place in self.store.write(self.node.records):
            self.node.engine.placed(*place)
        self.node.records.clear()

    def sync(self) -> None:
        job = self.store.begin_sync()
        if job is not None:
            job.run(self.disk)
            self.store.synced(job)

    def compact(self) -> None:
        if self.compaction.wants(50, 0):
            self.compaction.begin()
        self.compaction.step(500)
        if self.store.needs_sync:
            self.sync()

    def rewrite(self) -> None:
        self.compaction.begin_rewrite()
        while self.compaction.is_running:
            self.compaction.step(300)
            self.sync()

    def replayed(self) -> Node:
        """What a start would have."""
        return replayed(self.node, self.stored())

    def stored(self) -> list[Record]:
        replay = Replay(self.disk, is_dry=True)
        return [placed[0] for batch in replay.run() for placed in batch]


@pytest.mark.parametrize("kind", [kind for kind in STATES if kind not in ("mark", "none")])
def test_every_state_survives_a_rewrite_and_a_crash(kind: str) -> None:
    node, id_ = node_with(kind, UP)
    log = Logged(node)
    log.turn()
    log.rewrite()
    after = log.replayed()
    assert_same_facts(node, after)
    assert state_name(after, id_) == {"waiting": "active", "queued": "active"}.get(kind, kind)


@pytest.mark.parametrize("seed", range(4))
def test_a_working_node_is_the_same_after_a_crash_whenever_it_comes(seed: int) -> None:
    dice = random.Random(seed)
    node = Node(UP)
    node.engine.set_logged(True)
    log = Logged(node)
    ids = []
    for step in range(300):
        roll = dice.random()
        if roll < 0.5:
            ids.append(node.add(replicate=1, retry_ms=dice.choice([0, RETRY_MS, RETRY_MS])))
        elif roll < 0.75:
            node.get()
        elif ids:
            node.do(cmd.AckJob((ids.pop(dice.randrange(len(ids))),)))
        node.advance(dice.randrange(50))
        log.turn()
        log.compact()
        if not step % 30:
            assert_same_facts(node, log.replayed())
    assert log.disk.segments()[0] > 1, "nothing was compacted"
    log.rewrite()
    assert_same_facts(node, log.replayed())


def test_paged_bodies_move_with_their_records() -> None:
    node = Node(UP)
    log = Logged(node)
    bodies = {node.add(b"body %d" % n * 40, replicate=1): b"body %d" % n * 40 for n in range(20)}
    for place in log.store.write(node.records):
        node.job(place[0]).body = Paged(*place[1:])
    node.records.clear()
    log.rewrite()
    after = log.replayed()
    assert {id_: after.job(id_).body for id_ in bodies} == bodies
    places = [node.job(id_).body for id_ in bodies]
    assert all(isinstance(place, Paged) and log.store.read(place) for place in places)


def test_pause_flags_of_the_node_outlive_their_segment() -> None:
    node = Node(UP)
    log = Logged(node)
    node.do(cmd.Pause(b"q", 1, is_cluster=True))
    log.turn()
    log.rewrite()
    assert log.replayed().state.pauses == node.state.pauses != {}
