"""Storing: turns of a node with a log, in the order of disque/server/loop.py: store, then let everything leave.

One turn at a time is stored; those that come meanwhile are taken together by the next. When the log can't be written,
the engine is frozen and all is held till it can.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from disque.broker import Batch
from tests.sim import adapter

if TYPE_CHECKING:
    from disque.core.ready import Record
    from tests.sim.logs import SimLog
    from tests.sim.node import Node

RETRY_FIRST_MS = 100  # between tries to write the log
RETRY_MAX_MS = 1000


@attrs.define(eq=False)
class _Part:
    """What one take_ready gave, and the jobs that its inputs were about."""

    batch: Batch
    touched: dict[bytes, None]


@attrs.define(eq=False)
class Turn:
    """What is stored together."""

    parts: list[_Part]
    unwritten: list[Record]
    must_wait: bool = False
    retry_ms: int = RETRY_FIRST_MS


class Storing:
    """The turns of one life."""

    def __init__(self, node: Node, log: SimLog) -> None:
        self.node = node
        self.log = log
        self.is_held = False
        self._life = node.life
        self._held_since_ms = 0
        self._turn: Turn | None = None  # is being stored
        self._taken: list[_Part] = []  # by inputs since
        self._unlooked: dict[bytes, None] = {}

    def take(self, batch: Batch) -> None:
        """A turn's effects, nothing of which has left yet."""
        watch = self.node.world.watch
        self.log.book_tick()
        part = _Part(batch, watch.touched | self._unlooked)
        watch.touched, self._unlooked = {}, {}
        if self.is_held:
            self._release_part(part)
            return
        self._taken.append(part)
        if self._turn is None:
            self._next()

    def unwritten_ids(self) -> dict[bytes, None]:
        """What the log doesn't hold yet."""
        turns = [] if self._turn is None else self._turn.unwritten
        parts = [record for part in self._taken for record in part.batch.records]
        records = [*turns, *parts, *adapter.state_of(self.node).ready.records]
        return {record.id: None for record in records if record.id is not None}

    def unsafe_ids(self) -> dict[bytes, None]:
        """What a crash may still undo: not written, or, while a sync fails, written for nothing."""
        parts = self._turn.parts if self._turn is not None and self.is_held else []
        records = [record for part in parts for record in part.batch.records]
        written = {record.id: None for record in records if record.id is not None}
        return self.unwritten_ids() | written

    def look_later(self, jobs: dict[bytes, None]) -> None:
        """A crash may undo what memory says of these: look at them after another turn."""
        self._unlooked |= jobs

    def touched_ids(self) -> dict[bytes, None]:
        """Jobs of which something was done that hasn't left."""
        parts = [*([] if self._turn is None else self._turn.parts), *self._taken]
        return {job: None for part in parts for job in part.touched}

    @property
    def is_behind(self) -> bool:
        """True if something that was done hasn't left."""
        return self._turn is not None or bool(self._taken)

    def _next(self) -> None:
        if self._taken:
            parts, self._taken = self._taken, []
            records = [record for part in parts for record in part.batch.records]
            turn = self._turn = Turn(parts, records)
            self.node.in_disk(lambda: self.store(turn))

    def store(self, turn: Turn) -> None:
        """Write and wait as the policy says, then release; held and tried again if that fails."""
        node, log = self.node, self.log
        if not node.is_alive or node.life != self._life:
            return
        if (turn.unwritten or log.is_unsafe) and node.is_torn():
            return
        try:
            if turn.unwritten:
                turn.must_wait |= log.write(turn.unwritten)
                written, turn.unwritten = turn.unwritten, []
                node.world.watch.durability.stored(node, written)
                if node.is_torn():
                    return
        except OSError:
            self._hold(turn)
            return
        if turn.must_wait or log.is_unsafe:
            log.when_safe(lambda is_safe: self._waited(turn, is_safe=is_safe))
        else:
            self._done(turn)

    def _waited(self, turn: Turn, *, is_safe: bool) -> None:
        if is_safe:
            self._done(turn)
        else:
            self._hold(turn)

    def _done(self, turn: Turn) -> None:
        if self.is_held:
            self._let_go(turn)
        for part in turn.parts:
            self._release_part(part)
            if not self.node.is_alive:
                return
        self._turn = None
        self._next()

    def _release_part(self, part: _Part) -> None:
        watch = self.node.world.watch
        watch.touched = part.touched
        watch.turned(self.node, part.batch)
        self.node.carry_out(part.batch)

    # While the log can't be written

    def _hold(self, turn: Turn) -> None:
        node, world = self.node, self.node.world
        if not self.is_held:
            world.story.add(world.now, "held", node.name, (), "the log can't be written")
            self.is_held = True
            self._held_since_ms = world.now
            turn.unwritten += [r for part in self._taken for r in part.batch.records]
            turn.parts += self._taken
            self._taken = []
            node.broker.freeze()
            for part in turn.parts:
                node.carry_out(_membership_of(part.batch))
                part.batch = attrs.evolve(part.batch, nodes_file=None, dials=[], closes=[])
            answered = [client for part in turn.parts for client, _ in part.batch.replies]
            world.fail_waiting(node, answered)
        wait, turn.retry_ms = turn.retry_ms, min(2 * turn.retry_ms, RETRY_MAX_MS)
        world.at(world.now + wait, lambda: node.in_disk(lambda: self.store(turn)))

    def _let_go(self, turn: Turn) -> None:
        """Frames that waited longer than a link lets them are as lost on the wire."""
        node = self.node
        held_ms = node.world.now - self._held_since_ms
        if held_ms > node.broker.settings.limits.link_wait_max_ms:
            for part in turn.parts:
                part.batch = attrs.evolve(part.batch, frames=[])
        self.is_held = False
        node.broker.thaw()
        node.turn_with(lambda: None)


def _membership_of(batch: Batch) -> Batch:
    return Batch([], batch.nodes_file, batch.dials, [], batch.closes, [], [])
