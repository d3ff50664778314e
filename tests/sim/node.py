"""Node: one simulated process around a real Broker. It does what the server's loop does, in virtual time.

Inputs collect in an inbox; a turn handles all of them, takes the batch and carries out its effects in the contract's
order, one at a time, so that a crash may fall between any two. What survives a crash is the nodes file and the log, if
the plan gives it one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cluster.ready import ConnId, Identity
from disque.broker import Batch, Broker
from tests.sim import adapter
from tests.sim.logs import Crash, SimLog
from tests.sim.network import Connection, End
from tests.sim.storing import Storing

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
        # what this machine's wall clock is off the true one
        self.wall_off = world.profile.skew_ms[index]
        self.disk: str | None = None  # nodes.conf
        self.log = SimLog(world, self) if world.profile.log else None
        self.storing: Storing | None = None  # of this life, if there is a log
        self.is_alive = False
        self.life = 0  # counts starts
        self.slow_ms = 0
        self.effects_left: int | None = None  # a crash waits in the middle of a batch
        self.back_after_ms = 1  # after such a crash
        self.is_power = False  # the whole machine goes down with it
        self.snare = ""  # a type of message: the process crashes when it is about to send one
        self.ends: dict[ConnId, tuple[Connection, End]] = {}
        self.broker: Broker
        self._clock_off = 0
        self._inbox: list[Callable[[], None]] = []
        self._is_turn_booked = False
        self._wake_at: int | None = None

    # Life

    def start(self) -> None:
        """Begin a process with what the disk holds; its boot number is larger than any before."""
        assert not self.is_alive
        self.life += 1
        self._clock_off = EPOCH_MS + self.wall_off
        self.is_alive = True
        self._inbox.clear()
        self._is_turn_booked = False
        self._wake_at = None
        self.effects_left = None
        self.is_power = False
        self.snare = ""
        self.broker = adapter.make_broker(self.world, self, self.local_ms)
        self.world.watch.started(self)
        if self.log is not None:
            self._read_log(self.log)
        self.turn_with(_nothing)

    def _read_log(self, log: SimLog) -> None:
        self.storing = Storing(self, log)
        found = log.boot(self.broker, adapter.stored_boot(self))
        own = self.identity
        is_intact = own.since != own.boot
        self.world.watch.durability.restarted(self, found, is_intact=is_intact)

    @property
    def identity(self) -> Identity:
        """Who the process is: a new one once it was called back from exile."""
        return self.broker.membership.identity

    @property
    def is_held(self) -> bool:
        """True while the log can't be written: then only membership lives."""
        return self.storing is not None and self.storing.is_held

    def crash(self, *, is_silent: bool, was_safe: bool = False) -> None:
        """End the process, silently if the whole machine goes down; without a log every job is lost.

        `was_safe`: it had left the cluster and said that nobody needs anything from it any more.
        """
        assert self.is_alive
        if self.log is None:
            self.world.watch.crashing(self, was_safe=was_safe)
        else:
            self.world.watch.trace("crash", self.name)
            self.world.watch.durability.crashing(self, is_power=is_silent)
            self.log.crash(is_power=is_silent)
        self.storing = None
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
        if self.id != self.identity.id:
            self.id = self.identity.id
            self.world.nemesis.called_back(self)
        self.world.turns += 1
        if self.storing is not None:
            self.storing.take(batch)
        else:
            self.world.watch.turned(self, batch)
            self.carry_out(batch)
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

    def carry_out(self, batch: Batch) -> None:
        """Let everything leave, one effect after the other."""
        world = self.world
        if batch.nodes_file is not None:
            self.disk = batch.nodes_file
        for dial in batch.dials:
            world.network.dial(self, dial)
        for conn, body in batch.frames:
            if self.is_torn():
                return
            world.network.send(self, conn, body)
        for conn in batch.closes:
            world.network.close(self, conn)
        for client, reply in batch.replies:
            if self.is_torn():
                return
            world.reply(self, client, reply)
        for note in batch.notes:
            world.watch.noted(self, note)

    def is_torn(self) -> bool:
        """True, and it has crashed, if a torn crash is due here."""
        if self.effects_left is None:
            return False
        self.effects_left -= 1
        if self.effects_left >= 0:
            return False
        self.world.story.add(
            self.world.now, "fault", self.name, (), "crash between two effects of one turn"
        )
        self._die()
        return True

    def in_disk(self, action: Callable[[], None]) -> None:
        """Do something with the log; the process may crash in the middle of it."""
        try:
            action()
        except Crash:
            self.world.story.add(self.world.now, "fault", self.name, (), "crash in a disk's change")
            self._die()

    def _die(self) -> None:
        self.crash(is_silent=self.is_power)
        self.world.nemesis.torn(self)

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
