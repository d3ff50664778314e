"""Durability: what a node's log must bring back after a crash, and what it may not.

A crash of the process takes what was not yet written, of which nobody has heard; a power loss what no sync covered.
Of every other job the restarted node must know what it knew before. While a node is down its copies count as there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

from disque.core.ready import Record
from tests.sim import adapter, checks
from tests.sim.checks import NONE, Copy

if TYPE_CHECKING:
    from disque.aof.replay import Findings
    from tests.sim.node import Node
    from tests.sim.watch import Watch

HEAD_BYTES = 1000  # of a segment's head: who the node is, pauses, numbers of moves
COMPARE_EVERY = 97  # writes of all nodes between two comparisons of a log with its node's memory


@attrs.frozen(eq=False)
class Before:
    """A node as it was when it crashed; ids in `exposed` may have lost their newest records."""

    at: int
    copies: dict[bytes, Copy]
    exposed: dict[bytes, None]
    under_way: dict[bytes, None]  # of which the node knew more than it had told
    is_lossy: bool  # facts that others have heard of may be gone


class Durability:
    """Judges restarts."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.down: dict[int, Before] = {}
        self._writes = 0
        self._crashes = 0

    def crashing(self, node: Node, *, is_power: bool) -> None:
        """A process with a log ends; its disk is still as the process left it."""
        assert node.log is not None
        assert node.storing is not None
        self._crashes += 1
        state = adapter.state_of(node)
        copies = {job: adapter.snapshot(state, job) for job in adapter.known_ids(state)}
        exposed = node.storing.unwritten_ids() | node.log.exposed(is_power=is_power)
        is_lossy = is_power and node.log.policy != "always"
        now, under_way = self.watch.world.now, exposed | node.storing.touched_ids()
        self.down[node.index] = Before(now, copies, exposed, under_way, is_lossy)

    def live_at(self, job: bytes) -> list[int]:
        """Nodes that are down, but have a live copy in their log, or may have."""
        return [
            n
            for n, was in self.down.items()
            if was.copies.get(job, NONE).is_live or job in was.under_way
        ]

    def under_way(self) -> dict[bytes, None]:
        """Jobs of which some node knows more than the world has been told."""
        found: dict[bytes, None] = {}
        for node in self.watch.world.nodes:
            if node.storing is not None:
                found |= node.storing.touched_ids()
        return found

    def knows_at(self, job: bytes) -> list[int]:
        """Nodes that are down, but whose log knows the job."""
        return [n for n, was in self.down.items() if job in was.copies]

    def is_ahead(self, node: Node) -> bool:
        """True if a node may know of deliveries that never left, or haven't yet."""
        return node.storing is not None and (node.storing.is_behind or self._crashes > 0)

    def stored(self, node: Node, records: Sequence[Record]) -> None:
        """Records were written: from now on they may be claimed."""
        self.watch.note_stored(node, records)
        self._writes += 1
        if self._writes % COMPARE_EVERY == 0:
            self.compare(node)

    def compare(self, node: Node) -> None:
        """Q7: a copy of the log, replayed, says what memory says of every id whose records are written."""
        assert node.log is not None
        assert node.storing is not None
        unwritten = node.storing.unwritten_ids()
        again = adapter.replayed(self.watch.world, node)
        state = adapter.state_of(node)
        for job in adapter.known_ids(state):
            if job not in unwritten:
                was, now = adapter.snapshot(state, job), adapter.snapshot(again, job)
                self.watch.found(checks.q7_log_is_memory(job, was, now, node.local_ms))

    def judge(self, node: Node) -> None:
        """Q7 for all that a node knows, and its log isn't too large; when everything is quiet."""
        assert node.log is not None
        self.compare(node)
        store = node.log.store
        live = node.broker.engine.live_bytes()
        heads = HEAD_BYTES * len(store.sizes)
        self.watch.found(
            checks.q7_log_is_small(node.name, store.total_bytes, live, store.segment_bytes, heads)
        )

    def restarted(self, node: Node, found: Findings, *, is_intact: bool) -> None:
        """A node has read its log: what it says against what was known before."""
        was = self.down.pop(node.index, None)
        if was is None:
            return
        watch, state = self.watch, adapter.state_of(node)
        if not was.is_lossy:
            watch.found(checks.q7_is_intact(node.name, found.why_not_intact, is_intact=is_intact))
        else:
            watch.crashes.append((was.at, node.index))
        for job, before in was.copies.items():
            after = adapter.snapshot(state, job)
            wrong = checks.q7_log_is_memory(job, before, after, node.local_ms)
            is_dropped = not before.retry_ms and before.is_live and not is_intact
            is_excused = is_dropped or job in was.exposed
            if wrong is not None and not is_excused:
                watch.found(wrong)
            self._note(node, was, job, before, after)

    def _note(self, node: Node, was: Before, job: bytes, before: Copy, after: Copy) -> None:
        life = self.watch.ledger.by_id.get(job)
        if life is None:
            return
        if after.is_ended:
            life.knew.setdefault(node.index, was.at)
            life.done_at.setdefault(node.index, was.at)
        else:
            life.done_at.pop(node.index, None)
        is_spent = not life.retry_ms and not after.may_be_offered
        is_less = before.is_live != after.is_live or before.is_ended != after.is_ended
        if is_spent or (was.is_lossy and is_less):
            life.wiped[node.index] = was.at
        # an end that wasn't written was that of a live copy
        is_gone = was.is_lossy and not after.is_live and not after.is_ended
        if is_gone and not self.live_at(job) and not self.watch.live_at(job, but=node):
            life.lost_at = self.watch.world.now
