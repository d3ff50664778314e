"""Node: one simulated process around a real Broker. It does what the server's loop does, in virtual time.

Inputs collect in an inbox; a turn handles all of them, takes the batch and carries out its effects in the contract's
order, one at a time, so that a crash may fall between any two. What survives a crash is the nodes file alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cluster.ready import ConnId, Identity
from disque.broker import Batch, Broker
from tests.sim import adapter
from tests.sim.network import Connection, End

if TYPE_CHECKING:
    from tests.sim.world import World

EPOCH_MS = 1_700_000_000_000  # the true wall clock when a run begins
PORT = 7711
BUS_PORT = 17711


class Node:
    """One machine: its disk, its wall clock, and the process on it while it is alive."""

    def __init__(self, world: World, index: int) -> None:
        self.world = world
        self.index = index
        self.name = f"n{index}"
        self.host = f"host-{index}"
        self.bus_port = BUS_PORT
        self.id = adapter.node_id(world.streams[f"id {index}"])
        self.wall_off = world.profile.skew_ms[
            index
        ]  # what this machine's wall clock is off the true one
        self.disk: str | None = None  # nodes.conf
        self.is_alive = False
        self.life = 0  # counts starts
        self.born_at = 0
        self.slow_ms = 0
        self.effects_left: int | None = None  # a crash waits in the middle of a batch
        self.back_after_ms = 1  # after such a crash
        self.snare = ""  # a type of message: the process crashes when it is about to send one
        self.ends: dict[ConnId, tuple[Connection, End]] = {}
        self.broker: Broker
        self.identity: Identity
        self._clock_off = 0
        self._inbox: list[Callable[[], None]] = []
        self._is_turn_booked = False
        self._wake_at: int | None = None

    # Life

    def start(self) -> None:
        """Begin a process with what the disk holds; its boot number is larger than any before."""
        assert not self.is_alive
        self.life += 1
        self.born_at = self.world.now
        self._clock_off = EPOCH_MS + self.wall_off
        self.is_alive = True
        self._inbox.clear()
        self._is_turn_booked = False
        self._wake_at = None
        self.effects_left = None
        self.snare = ""
        self.broker, self.identity = adapter.make_broker(self.world, self, self.local_ms)
        self.world.watch.started(self)
        self.turn_with(_nothing)

    def crash(self, *, is_silent: bool, was_safe: bool = False) -> None:
        """End the process; memory is lost, and with it, as there is no log, every job.

        `was_safe`: it had left the cluster and said that nobody needs anything from it any more.
        """
        assert self.is_alive
        self.world.watch.crashing(self, was_safe=was_safe)
        self.is_alive = False
        self._inbox.clear()
        self.world.network.crash(self, is_silent=is_silent)
        self.world.clients_lose(self)

    @property
    def local_ms(self) -> int:
        """What the process takes for the time: its wall clock at start, then monotonic."""
        return self.world.now + self._clock_off

    # Turns

    def turn_with(self, action: Callable[[], None]) -> None:
        """Give the process an input: a call into the broker. Nothing happens to a dead one."""
        if not self.is_alive:
            return
        self._inbox.append(action)
        if not self._is_turn_booked:
            self._is_turn_booked = True
            life = self.life
            self.world.at(self.world.now + self.slow_ms, lambda: self._turn_of(life))

    def _turn_of(self, life: int) -> None:
        if self.is_alive and self.life == life:
            self._turn()

    def _wake(self, life: int, at: int) -> None:
        if self.is_alive and self.life == life and self._wake_at == at:
            self._wake_at = None
            self.turn_with(_nothing)

    def _turn(self) -> None:
        self._is_turn_booked = False
        inbox, self._inbox = self._inbox, []
        broker = self.broker
        broker.advance(self.local_ms)
        for action in inbox:
            action()
        batch = broker.take_ready()
        self.world.turns += 1
        self.world.watch.turned(self, batch)
        self._carry_out(batch)
        if self.is_alive:
            self._book_wakeup()

    def _book_wakeup(self) -> None:
        at = self.broker.next_wakeup_ms()
        if at is None:
            self._wake_at = None
            return
        at = max(at - self._clock_off, self.world.now + (0 if at > self.local_ms else 1))
        if at != self._wake_at:
            self._wake_at = at
            life = self.life
            self.world.at(at, lambda: self._wake(life, at))

    # Effects

    def _carry_out(self, batch: Batch) -> None:
        world = self.world
        if batch.nodes_file is not None:
            self.disk = batch.nodes_file
        for dial in batch.dials:
            world.network.dial(self, dial)
        for conn, body in batch.frames:
            if self._is_torn():
                return
            world.network.send(self, conn, body)
        for conn in batch.closes:
            world.network.close(self, conn)
        for client, reply in batch.replies:
            if self._is_torn():
                return
            world.reply(self, client, reply)
        for note in batch.notes:
            world.watch.noted(self, note)

    def _is_torn(self) -> bool:
        """Crash here if a torn crash is due."""
        if self.effects_left is None:
            return False
        self.effects_left -= 1
        if self.effects_left >= 0:
            return False
        self.world.story.add(
            self.world.now, "fault", self.name, (), "crash between two effects of one turn"
        )
        self.crash(is_silent=False)
        self.world.nemesis.torn(self)
        return True

    def take_frame(self, conn: ConnId, body: bytes, sent_at: int) -> None:
        """A frame arrives, unless this side has closed the connection meanwhile."""
        if conn in self.ends:
            self.world.watch.framed(self, body)
            self.broker.frame(conn, body)

    def watch_lost(self, target: int, body: bytes, why: str) -> None:
        """The network lost a frame of ours."""
        self.world.watch.lost(self, self.world.nodes[target], body, why)


def _nothing() -> None:
    """The input of a turn that only looks at the time."""
