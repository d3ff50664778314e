"""Turns: the loop that drives the broker; each turn stores, then sends, then replies.

It knows neither commands nor sockets. Whoever feeds the broker (a reader, the bus) calls `open`
before and `end`, `finish` or `wake` after. All inputs between two turns share one write a peer
and one write a client. The *fast path*: an input whose effects are nothing but frames and replies
has them from `finish`, without a turn, unless one is due or under way: what comes in one row of
reads leaves in one write.

When the log can't be written, what a turn wants to say is *held* until it can: see `_hold`.

Nothing here catches an unexpected exception: it is our bug, it ends the process (app.py), never
an unknown state.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol

import attrs
import trio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from cluster.bus import BusFigures
    from cluster.nodeid import NodeId
    from cluster.ready import ConnId, Dial, DialId, Identity, Note
    from disque.broker import Broker
    from disque.core.ready import ClientId, Record, Reply
    from disque.server.clock import Clock
    from disque.server.connection import Client, Spelled
    from disque.server.latency import Latency

RETRY_FIRST_S = 0.1  # between tries to write the log
RETRY_MAX_S = 1.0
# Who hear a topic's message at once; beyond that all do as others run what they kept
LISTENERS_A_ROW = 250
FIRE_MS = 50  # from one look at the timers to the next while no turn is taken
RESUME_S = 0.005  # kept commands run for so long in a row, before others have their turn


class Log(Protocol):
    """Where records are stored before anything of their turn leaves."""

    @property
    def stores(self) -> bool:
        """False if `write` does nothing: then records don't keep an input from the fast path."""
        ...

    @property
    def is_unsafe(self) -> bool:
        """True if no turn may end before `wait_safe` did: what was written may not reach the disk."""
        ...

    def write(self, records: Sequence[Record]) -> bool:
        """Hand records to the operating system; True if their turn must `wait_safe`.

        OSError: none of them counts as written, say them again.
        """
        ...

    async def wait_safe(self) -> None:
        """Return when all that was written is on the disk; OSError: it isn't, ask again."""
        ...


class NullLog:
    """No persistence: memory only."""

    stores = False
    is_unsafe = False

    def write(self, records: Sequence[Record]) -> bool:  # noqa: ARG002
        """Forget them."""
        return False

    async def wait_safe(self) -> None:
        """There is nothing to be made safe."""


class Frames(Protocol):
    """The part of cluster.bus.Bus that a turn needs."""

    figures: BusFigures

    @property
    def held_bytes(self) -> int:
        """Bytes that links hold: unsent, or of frames that aren't whole."""
        ...

    def apply(
        self,
        dials: Sequence[Dial],
        frames: Sequence[tuple[ConnId, bytes]],
        closes: Sequence[ConnId],
    ) -> None:
        """Dial, write once a link, close."""
        ...


class Replies(Protocol):
    """The part of clients.Clients that a turn needs."""

    def place(self, replies: Iterable[tuple[ClientId, Reply]]) -> list[Client]:
        """Encode replies into their clients' slots; returns the clients, each once."""
        ...

    def fail_waiting(self, reason: str) -> None:
        """Answer MISCONF to all who wait for the broker."""
        ...

    def run(self, client: Client) -> bool:
        """Run what a client has kept, `end` included; True if there may be more."""
        ...


@attrs.define
class _Effects:
    """What inputs since the last turn want done. `clients` may hold finished replies."""

    records: list[Record] = attrs.Factory(list)
    nodes_file: str | None = None
    dials: list[Dial] = attrs.Factory(list)
    frames: list[tuple[ConnId, bytes]] = attrs.Factory(list)
    closes: list[ConnId] = attrs.Factory(list)
    clients: dict[ClientId, Client] = attrs.Factory(dict)
    # What was taken from `clients`, and whether it may speak of what isn't stored
    outgoing: list[tuple[Client, Spelled, bool]] = attrs.Factory(list)

    def absorb(self, later: _Effects) -> None:
        """Let the effects of later inputs leave together with these."""
        self.records += later.records
        self.nodes_file = self.nodes_file if later.nodes_file is None else later.nodes_file
        self.dials += later.dials
        self.frames += later.frames
        self.closes += later.closes
        self.outgoing += later.outgoing

    def split_membership(self) -> _Effects:
        """Take out what the log has no say in."""
        taken = _Effects(nodes_file=self.nodes_file, dials=self.dials, closes=self.closes)
        self.nodes_file, self.dials, self.closes = None, [], []
        return taken


class Turns:
    """Owns the broker; also the bus's owner: what the bus sees goes straight into the broker."""

    def __init__(
        self,
        broker: Broker,
        *,
        clock: Clock,
        log: Log,
        save_nodes: Callable[[], Awaitable[None]],
        note: Callable[[Note], None],
    ) -> None:
        self.broker = broker
        self.clock = clock
        self.log = log
        self.bus: Frames | None = None  # None: a broker alone, for tests
        self.clients: Replies | None = None
        self.latency: Latency | None = None
        self.turns_taken = 0
        self.row_ms = clock.now_ms()  # when the row of inputs began that was the last to do so
        self.is_loading = False  # the log is being replayed: the broker isn't told the time
        self.trouble = ""  # why the log can't be written; "" if it can
        self._healed = trio.Event()  # set once the trouble is over
        self._held: list[Client] = []  # whose replies wait for the log
        self.nodes_text: str | None = None  # newest text of nodes.conf
        # Told why the log can't be written, "" once it can again; it may switch the log off
        self.on_trouble: Callable[[str], None] = lambda _: None
        self._save_nodes = save_nodes
        self._note = note
        self._effects = _Effects()
        self._resumable: OrderedDict[ClientId, Client] = OrderedDict()
        self.is_open = False  # the broker has been fed since its Ready was last taken
        self._is_row = False  # between `begin` and `finish`
        self._in_turn = False
        self._is_due = False
        self._sleep: trio.CancelScope | None = None
        self._sleeps_until_ms = math.inf
        self._held_since_ms = 0
        self._fired_at_ms = 0

    # For those who feed the broker

    def open(self) -> None:
        """Tell the broker the time; call it before each input (free from the second on).

        However many feed it in one pass of trio's loop: its timers fire in turns, and else once in FIRE_MS.
        """
        if not self.is_open and not self.is_loading:
            self.is_open = True
            now_ms = self.clock.now_ms()
            if now_ms < self._fired_at_ms + FIRE_MS:
                self.broker.tell_time(now_ms)
            else:
                self._advance()

    def end(self, client: Client) -> None:
        """After a client's inputs: answer at once if that is all there is to do, else take a turn."""
        self._effects.clients[client.id] = client
        if not self._is_row:
            self.finish()

    def begin(self) -> None:
        """The inputs of several clients follow in a row; they are looked at together by `finish`."""
        self._is_row = True
        self.row_ms = self.clock.now_ms()

    def finish(self) -> None:
        """After a row of inputs: as `end`, for all of them."""
        self._is_row = False
        if self.is_open:
            self._collect()
        effects = self._effects
        if self._in_turn or self._is_due or not self._is_plain(effects):
            self.wake()
            return
        clients, effects.clients = effects.clients, {}
        if effects.frames:
            frames, effects.frames = effects.frames, []
            if self.bus is not None:
                self.bus.apply((), frames, ())
        for each in clients.values():
            each.has_written = False
            each.send(each.take_finished())
        if self._resumable:
            self.wake()
        self._mind_deadline()

    def touch(self, client: Client) -> None:
        """A client was told something: send it with the next replies."""
        self._effects.clients[client.id] = client

    def wake(self) -> None:
        """See to a turn soon."""
        self._is_due = True
        if self._sleep is not None:
            self._sleep.cancel()

    def resume(self, client: Client) -> None:
        """Run what a client has kept at the end of the next turn."""
        self._resumable[client.id] = client
        self.wake()

    def refresh_nodes_text(self) -> None:
        """See to it that `nodes_text` is what the broker would say now."""
        self.open()
        self._collect()
        self.wake()

    async def wait_written(self) -> None:
        """Return when a reply leaves no earlier than what it speaks of is stored: if need be, when trouble is over."""
        while self.trouble:
            await self._healed.wait()

    def take_records(self) -> list[Record]:
        """What is still to be stored after the loop has ended."""
        self.open()
        self._collect()
        records, self._effects.records = self._effects.records, []
        return records

    # The loop

    async def run(self) -> None:
        """Take turns for ever."""
        while True:
            await self._wait_for_work()
            await self.turn()

    async def wait_rest(self, patience_s: float) -> None:
        """Wait until nothing is under way or due, at most so long."""
        with trio.move_on_after(patience_s):
            while (self._in_turn or self._is_due) and not self.trouble:
                await trio.sleep(0.005)

    async def turn(self) -> None:
        """One turn: store, save the node table, send, reply, then run what has waited."""
        self._in_turn = True
        effects = self._take()
        if effects.records or self.log.is_unsafe:
            await self._store(effects)
        await self._release(effects)
        self._in_turn = False
        self._run_resumable()

    def _take(self) -> _Effects:
        """All effects up to now, with the bytes that clients get; who is held keeps his."""
        self._is_due = False
        self.turns_taken += 1
        self._advance()
        self._collect()
        effects, self._effects = self._effects, _Effects()
        for client in effects.clients.values():
            if not client.is_held:
                effects.outgoing.append((client, client.take_finished(), client.has_written))
                client.has_written = False
        return effects

    def _advance(self) -> None:
        if self.is_loading:
            return
        started_ns = time.perf_counter_ns()
        self.broker.advance(self.clock.now_ms())
        self._fired_at_ms = self.clock.now_ms()
        if self.latency is not None and self.latency.threshold_ms:
            self.latency.add("jobs-processing", (time.perf_counter_ns() - started_ns) // 1_000_000)

    async def _release(self, effects: _Effects) -> None:
        """Records are stored: let all else leave."""
        if effects.nodes_file is not None:
            await self._save_nodes()
        if self.bus is not None and (effects.dials or effects.frames or effects.closes):
            self.bus.apply(effects.dials, effects.frames, effects.closes)
        for client, data, _ in effects.outgoing:
            client.send(data)

    def _run_resumable(self) -> None:
        if self._resumable and self.clients is not None:
            resumable, self._resumable = self._resumable, OrderedDict()
            until = time.perf_counter() + RESUME_S
            while resumable and time.perf_counter() < until:
                _, client = resumable.popitem(last=False)
                if self.clients.run(client):
                    self.resume(client)
            if resumable:
                # Who waits longest is the first next time
                resumable.update(self._resumable)
                self._resumable = resumable
                self.wake()

    async def _wait_for_work(self, until: float = math.inf) -> None:
        """Sleep until somebody wakes us, the broker's next timer is due, or trio's time is `until`."""
        due_at_ms = self.broker.next_wakeup_ms()
        if self._is_due or (due_at_ms is not None and due_at_ms <= self.clock.now_ms()):
            await trio.lowlevel.checkpoint()
            return
        with trio.CancelScope(deadline=until) as self._sleep:
            self._sleeps_until_ms = math.inf if due_at_ms is None else due_at_ms
            if due_at_ms is not None:
                self._sleep.deadline = min(until, self.clock.trio_deadline(due_at_ms))
            await trio.sleep_forever()
        self._sleep = None

    # Storing, and what goes on while the log can't be written

    async def _store(self, effects: _Effects) -> None:
        """Return when the records are stored as far as the policy says, however long that takes."""
        must_wait = False
        wait_s = RETRY_FIRST_S
        while True:
            try:
                if effects.records:
                    must_wait |= self.log.write(effects.records)
                    effects.records = []
                if must_wait or self.log.is_unsafe:
                    await self.log.wait_safe()
                break
            except OSError as error:
                self._hold(effects, error.strerror or str(error))
                if not self.log.stores:
                    continue
            await self._serve_held(wait_s)
            wait_s = min(wait_s * 2, RETRY_MAX_S)
        if self.trouble:
            self._let_go(effects)

    def _hold(self, effects: _Effects, reason: str) -> None:
        """The log can't be written: stop the engine, tell who waits; all that it did so far is held.

        What may speak of records that aren't stored must not leave: messages, and replies to all but reads. Reads are
        answered from memory, and the node stays a member: its peers would otherwise take it for dead.
        """
        if self.trouble:
            self.trouble = reason
            return
        self.on_trouble(reason)
        if not self.log.stores:
            return
        self.trouble, self._healed = reason, trio.Event()
        self._held_since_ms = self.clock.now_ms()
        effects.absorb(self._take())
        self.broker.freeze()
        self._effects = effects.split_membership()
        held = {
            client.id: client
            for client, data, is_claim in effects.outgoing
            # Behind an open slot there may be a reply that was given
            if is_claim and (data or client.slots)
        }
        self._held = list(held.values())
        for client in self._held:
            client.is_held = True
        for client, data, _ in effects.outgoing:
            if not client.is_held:
                client.send(data)
        effects.outgoing = [each for each in effects.outgoing if each[0].is_held]
        if self.clients is not None:
            self.clients.fail_waiting(reason)

    async def _serve_held(self, patience_s: float) -> None:
        """For so long: what membership wants is done, reads are answered, each client's replies in order."""
        until = trio.current_time() + patience_s
        while trio.current_time() < until:
            await self._wait_for_work(until)
            await self._release(self._take())
            self._run_resumable()

    def _let_go(self, effects: _Effects) -> None:
        """The log can be written again: what was held may leave.

        Frames that waited longer than a link lets them wait are as lost on the wire: ends of jobs count on that (M12).
        """
        held_ms = self.clock.now_ms() - self._held_since_ms
        if held_ms > self.broker.settings.limits.link_wait_max_ms:
            effects.frames = []
        self.broker.thaw()
        self.trouble = ""
        self._healed.set()
        self.on_trouble("")
        held, self._held = self._held, []
        for client in held:
            client.is_held = False
            client.made_room()
            self.resume(client)
            self.touch(client)

    def _mind_deadline(self) -> None:
        """After a fast path: a timer may now be due earlier than the loop means to sleep."""
        due_at_ms = self.broker.next_wakeup_ms()
        if due_at_ms is None or self._sleep is None or due_at_ms >= self._sleeps_until_ms:
            return
        self._sleeps_until_ms = float(due_at_ms)
        self._sleep.deadline = min(self._sleep.deadline, self.clock.trio_deadline(due_at_ms))

    def _collect(self) -> None:
        """Take the broker's Ready; replies become bytes now, before the next input."""
        self.is_open = False
        batch = self.broker.take_ready()
        effects = self._effects
        if self.log.stores:
            effects.records += batch.records
        effects.dials += batch.dials
        effects.frames += batch.frames
        effects.closes += batch.closes
        if batch.nodes_file is not None:
            effects.nodes_file = self.nodes_text = batch.nodes_file
        for note in batch.notes:
            self._note(note)
        if batch.replies and self.clients is not None:
            placed = self.clients.place(batch.replies)
            is_crowd = len(placed) > LISTENERS_A_ROW
            for client in placed:
                if is_crowd and client.heard and not client.slots:
                    self.resume(client)  # it hears a topic: thousands do so in several turns
                    continue
                effects.clients[client.id] = client
                if client.has_input:
                    self._resumable[client.id] = client

    def _is_plain(self, effects: _Effects) -> bool:
        """True if nothing is to be done but to send."""
        return not (
            effects.records
            or (effects.frames and self.log.is_unsafe)
            or effects.dials
            or effects.closes
            or effects.nodes_file is not None
        )

    # cluster.bus.BusOwner

    def identity(self) -> Identity:
        """Who this node is now."""
        return self.broker.membership.identity

    def dialed(
        self, dial: DialId, conn: ConnId, peer: Identity, own_host: str, remote_host: str
    ) -> None:
        """See Broker.dialed."""
        self.open()
        self.broker.dialed(dial, conn, peer, own_host, remote_host)
        self.wake()

    def dial_failed(self, dial: DialId, reason: str) -> None:
        """See Broker.dial_failed."""
        self.open()
        self.broker.dial_failed(dial, reason)
        self.wake()

    def admits(self, peer: Identity, expected: NodeId | None, is_meet: bool) -> str | None:
        """See Broker.admits."""
        self.open()
        return self.broker.admits(peer, expected, is_meet)

    def accepted(
        self, conn: ConnId, peer: Identity, is_meet: bool, own_host: str, remote_host: str
    ) -> None:
        """See Broker.accepted."""
        self.open()
        self.broker.accepted(conn, peer, is_meet, own_host, remote_host)
        self.wake()

    def frame(self, conn: ConnId, body: bytes) -> None:
        """See Broker.frame."""
        self.open()
        self.broker.frame(conn, body)

    def closed(self, conn: ConnId) -> None:
        """See Broker.closed."""
        self.open()
        self.broker.closed(conn)
        self.wake()

    def note(self, note: Note) -> None:
        """Log what the bus saw."""
        self._note(note)
