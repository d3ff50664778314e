"""Clients: accepts connections, reads them, runs their commands, and sees that none costs more than it may.

It knows connections, not commands: `execute` (dispatch.py) does those. Reading, running and answering happen in one
synchronous stretch; a task is only woken for what must wait. While a command of a client waits, only ADDJOBs behind
ADDJOBs run (`overtakes`), so that a pipeline of them is replicated together; beyond a limit the rest isn't even read.

*The end of the stream.* A client that ends its side (`printf ... | nc`, shutdown) may still read, and TCP doesn't tell
that from one that has gone. So commands that were sent are run, and those that wait get LAST_REPLIES_S to be answered:
what a producer has said counts. A GETJOB or WAITJOB that waits ends at once, as in Redis: a job given to somebody who
has gone would be lost till its RETRY. A connection that is reset, or that can't be written to, has gone for certain:
all that waits is taken back at once. When the server ends, all is as if the clients had ended their sides.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import trio

from disque.core.ready import ClientId, Failure
from disque.errors import LimitError, ProtocolError
from disque.resp import encoder
from disque.resp.decoder import BufferLimitError, Decoder
from disque.server.addresses import is_loopback, socket_host, socket_name
from disque.server.connection import ANSWERED_MAX_BYTES, KEPT_INPUT_MAX, Client
from disque.server.crowd import Crowd, weight_of
from disque.server.heap import LARGE_BYTES
from disque.server.polling import Poller, Pusher
from disque.server.render import render
from disque.server.reviews import Reviews
from disque.server.sockets import drain, has_hung_up, keep_alive, send_at_once
from disque.server.tls import Handshakes, TlsSocket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import TypeAlias

    from disque.core.ready import Reply
    from disque.server.connection import Slot, Spelled
    from disque.server.crowd import ClientLimits, Weight
    from disque.server.dialect import Dialect, Door
    from disque.server.eventlog import EventLog
    from disque.server.info import Figures
    from disque.server.loop import Turns

    # Returns whom the reply concerns; None: whoever hears it has still to answer
    Hearer: TypeAlias = Callable[[ClientId, Reply], Client | None]

COMMANDS_A_RUN = 500  # commands of one client in a row, before others have their turn
RUN_NS = 2_000_000  # the same in time
INSPECTED_A_PASS = 500  # connections that are looked at in a row, once a second
PARTINGS_A_PASS = 20  # connections whose end is looked after between two looks at the others
UNSENT_BYTES = 128 << 10  # that the kernel takes of who reads nothing; else some 4 MiB
READ_BYTES = LARGE_BYTES >> 1  # to have a larger block takes system calls each time
READ_BYTES_LARGE = 1 << 20  # while a large body arrives
ACCEPTS_A_TURN = 5  # what newcomers say must fit into a row, or others wait
FAREWELLS_MAX = 10  # refused connections that are closed politely, and hold a file, at a time
LINGER_S = 1.0  # how long a closed connection's input is drained, lest a reset loses the reply
FAREWELL_ANSWERS_S = 1.0  # for what waits when the server ends
FAREWELL_LINGER_S = 0.1  # the same when the server ends
LAST_REPLIES_S = 10.0  # for what waits of a client that has ended its side
STALL_S = 10.0  # a closing connection that takes no byte for so long is dropped
CRON_S = 1.0
_OUT_OF_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
UNWRITTEN = "Errors writing to the AOF file"  # Disque's text
UNKNOWN_OUTCOME = "; whether the job was added isn't known"


class Clients:
    """All connections of clients. `by_id` is in the order of their coming."""

    def __init__(
        self, turns: Turns, *, limits: ClientLimits, figures: Figures, events: EventLog
    ) -> None:
        self.turns = turns
        self.limits = limits
        self.by_id: dict[ClientId, Client] = {}
        # Set by whoever wires the server. Of a command: carry it out, from an ns of perf_counter on, and say when it
        # ended; may it run while ADDJOBs before it wait?
        self.execute: Callable[[Client, list[bytes], int], int]
        self.overtakes: Callable[[list[bytes]], bool]
        self.handshakes = Handshakes(figures, events)
        self.crowd = Crowd(limits, figures, events, self._end)
        self.reviews = Reviews(self.crowd, self.by_id, turns.clock, events)
        self._slots: dict[ClientId, Slot] = {}  # open ones of all connections
        self._last_slot = 0
        # Whoever wants the replies of an id that no slot waits for
        self._hearers: dict[ClientId, Hearer] = {}
        self.is_paused = False  # CLIENT PAUSE: no command runs
        self._paused_until = 0.0  # in trio's time
        self._figures = figures
        self._events = events
        self._nursery: trio.Nursery | None = None
        self._last_id = 0
        self._farewells = 0
        self._linger_s, self._answers_s = LINGER_S, LAST_REPLIES_S
        self._is_complaining = False  # about a lack of file descriptors
        self._accepting = trio.CancelScope()
        self._poller = Poller(turns, self._take_in)
        self._pusher = Pusher(self._push)
        self._parting: deque[Client] = deque()
        self._has_parting = trio.Event()

    # disque.server.loop.Replies

    def place(self, replies: Iterable[tuple[ClientId, Reply]]) -> list[Client]:
        """Encode replies into their slots; one whose client has gone is passed over."""
        touched: dict[ClientId, Client] = {}
        for slot_id, reply in replies:
            slot = self._slots.pop(slot_id, None)
            if slot is not None:
                slot.client.fill(slot, render(reply, slot.proto))
                slot.client.has_written |= not slot.is_read
                touched[slot.client.id] = slot.client
            elif (hearer := self._hearers.get(slot_id)) is not None:
                client = hearer(slot_id, reply)
                if client is not None:
                    client.has_written = True
                    touched[client.id] = client
        return list(touched.values())

    def new_id(self) -> ClientId:
        """An id for the broker that nobody had before."""
        self._last_slot += 1
        return ClientId(self._last_slot)

    def listen_to(self, id_: ClientId, hearer: Hearer) -> None:
        """Give all replies of this id to `hearer` until `forget`."""
        self._hearers[id_] = hearer

    def forget(self, id_: ClientId) -> None:
        """Nobody wants the replies of this id any more."""
        self._hearers.pop(id_, None)

    def open_slot(self, client: Client, id_: ClientId) -> Slot:
        """A place for a reply that comes later, under an id that is new."""
        slot = self._slots[id_] = client.open_slot(id_)
        return slot

    def fill(self, slot: Slot, reply: Spelled) -> None:
        """Answer a command that the shell itself kept waiting; nothing if its client has gone."""
        if self._slots.pop(slot.id, None) is None:
            return
        client = slot.client
        client.fill(slot, reply)
        client.has_written |= not slot.is_read
        self.turns.end(client)
        if client.has_input:
            self.turns.resume(client)

    def fail_waiting(self, reason: str) -> None:
        """The log can't be written: who waits for the broker waits no longer."""
        broker = self.turns.broker
        for slot in list(self._slots.values()):
            if slot.is_waiting and not slot.is_shells:
                broker.disconnect(slot.id)
                doubt = "" if slot.is_alone else UNKNOWN_OUTCOME
                self.fill(slot, encoder.error("MISCONF", f"{UNWRITTEN}: {reason}{doubt}"))
        failure = Failure("MISCONF", f"{UNWRITTEN}: {reason}")
        for id_, hearer in list(self._hearers.items()):
            if broker.engine.is_waiting(id_):
                broker.disconnect(id_)
                if (client := hearer(id_, failure)) is not None:
                    self.turns.end(client)

    def run(self, client: Client) -> bool:
        """Run what a client has sent until a command must wait; True if there may be more."""
        dialect = client.dialect
        overtakes = self.overtakes if dialect is None else dialect.overtakes
        execute = self.execute
        if dialect is not None:
            dialect.resume(client)
        left = 0 if self.is_paused else COMMANDS_A_RUN
        now_ns = time.perf_counter_ns()
        until_ns = now_ns + RUN_NS
        pending, waited = client.pending, client.waits
        while left and client.is_runnable:
            if not pending:
                if not self._decode(client, 1 if client.is_stranger else left):
                    if client.decoder.has_more:
                        left = 0
                    break
                now_ns = time.perf_counter_ns()
            if client.waits and not overtakes(pending[0]):
                break
            left -= 1
            if dialect is None:
                now_ns = execute(client, pending.popleft(), now_ns)
            else:
                dialect.execute(client, pending.popleft())
                now_ns = time.perf_counter_ns()
            if now_ns > until_ns:
                left = 0
        if client.waits >= client.waits_max > waited and client.has_input:
            self._figures.pipelines_paused += 1
        if client.answered_bytes > ANSWERED_MAX_BYTES:
            self.turns.resume(client)
        self.turns.end(client)
        return not (left or self.is_paused) and client.has_input

    def pause(self, seconds: float) -> None:
        """Run no command of anybody for so long; a later end counts."""
        assert self._nursery is not None
        self._paused_until = max(self._paused_until, trio.current_time() + seconds)
        if not self.is_paused:
            self.is_paused = True
            self._nursery.start_soon(self._end_pause)

    async def _end_pause(self) -> None:
        while trio.current_time() < self._paused_until:
            await trio.sleep_until(self._paused_until)
        self.is_paused = False
        for client in self.by_id.values():
            client.made_room()
            if client.has_input:
                self.turns.resume(client)

    def _decode(self, client: Client, count_max: int) -> bool:
        """Make commands of the bytes at hand; False if there are none or they are none."""
        try:
            client.pending.extend(client.decoder.take(count_max))
        except BufferLimitError as error:
            self._drop(client, error)
        except ProtocolError as fault:
            self._figures.requests_over_limit += isinstance(fault, LimitError)
            if fault.event:
                self._events.seldom("warning", fault.event, addr=client.address, reason=fault)
            if client.dialect is not None:
                client.dialect.broken(client, fault)
            else:
                client.tell(encoder.error(fault.code, str(fault)))
                client.close_soon()
        return bool(client.pending)

    # Tasks

    async def serve(self, doors: Sequence[Door]) -> None:
        """Accept and serve until cancelled; the listeners are closed at the end."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._cron)
            nursery.start_soon(self._poller.run)
            nursery.start_soon(self._pusher.run)
            nursery.start_soon(self._part_all)
            nursery.start_soon(self.reviews.run)
            try:
                async with trio.open_nursery() as accepting:
                    self._accepting = accepting.cancel_scope
                    for door in doors:
                        accepting.start_soon(self._accept, door)
            finally:
                for door in doors:
                    door.listener.close()
            await trio.sleep_forever()

    async def farewell(self, patience_s: float) -> None:
        """Accept nobody more, run and answer what has come, then close all."""
        self._accepting.cancel()
        self._linger_s, self._answers_s = FAREWELL_LINGER_S, FAREWELL_ANSWERS_S
        for client in list(self.by_id.values()):
            if client.has_ended or self._is_full(client):
                client.close_soon()
                continue
            self._take_in(client)
            client.say_last()
            self._see_off(client)
        with trio.move_on_after(patience_s):
            while self.by_id:
                await trio.sleep(0.01)

    async def _accept(self, door: Door) -> None:
        while True:
            await trio.lowlevel.wait_readable(door.listener)
            for _ in range(ACCEPTS_A_TURN):
                try:
                    sock, address = door.listener.accept()
                except BlockingIOError:
                    break
                except OSError as error:
                    if error.errno in _OUT_OF_FILES:
                        await self._bear_lack_of_files(error)
                    break
                self._is_complaining = False
                if not door.is_tls:
                    self.admit(sock, address, door.dialect)
                elif self._nursery is not None:
                    self._nursery.start_soon(self._admit_tls, sock, address, door.dialect)

    async def _admit_tls(self, sock: socket.socket, address: Any, dialect: Dialect | None) -> None:
        sock.setblocking(False)
        secured = await self.handshakes.shake(sock, socket_host(address))
        if secured is not None:
            self.admit(secured, address, dialect)

    async def _bear_lack_of_files(self, error: OSError) -> None:
        """Say it once and breathe: the waiting connection keeps the listener readable."""
        if not self._is_complaining:
            self._is_complaining = True
            self._events.event("warning", "accept-failed", reason=error.strerror)
        await trio.sleep(0.1)

    def admit(
        self,
        sock: socket.socket,
        address: Any,
        dialect: Dialect | None = None,
        *,
        is_secured: bool = False,
        is_own: bool = False,
    ) -> None:
        """Serve a new connection, or say why not; `address` is judged by protected mode; is_secured: TLS is seen to.

        is_own: our page asks, over few at a time; for these there is always room.
        """
        assert self._nursery is not None
        if self._accepting.cancel_called:
            sock.close()  # its handshake took till after the farewell, or it comes by the page
            return
        sock.setblocking(False)
        self._figures.connections_received += 1
        host = socket_host(address)
        is_local = not isinstance(address, tuple) or is_loopback(host)
        is_tls = is_secured or isinstance(sock, TlsSocket)
        objection = self.crowd.objection(host, is_local=is_local, is_tls=is_tls)
        if objection is not None and not is_own:
            self._refuse(sock, *objection, dialect)
            return
        try:
            own = sock.getsockname()
            if sock.family != socket.AF_UNIX:
                send_at_once(sock, unsent_bytes=UNSENT_BYTES)
                keep_alive(sock, self.limits.keepalive_s)
        except OSError:
            sock.close()  # it has gone already
            return
        self._last_id += 1
        client = Client(
            ClientId(self._last_id),
            sock,
            Decoder() if dialect is None else dialect.decoder(),
            now_ms=self.turns.clock.now_ms(),
            wants_writer=self._pusher.watch,
        )
        client.is_local, client.is_tls = is_local, is_tls
        client.host, client.local_host = host, socket_host(own)
        client.address = socket_name(address, own if isinstance(own, str) else "")
        self.by_id[client.id] = client
        self.crowd.add(client, client.connected_at_ms, is_own=is_own)
        if dialect is not None:
            client.dialect = dialect
            dialect.begin(client)
        self._nursery.start_soon(self._serve_client, client)

    def _refuse(self, sock: socket.socket, code: str, text: str, dialect: Dialect | None) -> None:
        self._figures.connections_rejected += 1
        refuse = encoder.error if dialect is None else dialect.refusal
        with contextlib.suppress(OSError):  # it has gone already
            sock.send(refuse(code, text))
        if self._farewells >= FAREWELLS_MAX or self._nursery is None:
            sock.close()
            return
        self._farewells += 1
        self._nursery.start_soon(self._say_goodbye, sock)

    async def _say_goodbye(self, sock: socket.socket) -> None:
        try:
            await drain(sock, self._linger_s)
        except OSError:
            pass
        finally:
            self._farewells -= 1
            sock.close()

    async def _serve_client(self, client: Client) -> None:
        sock = client.sock
        try:
            with client.scope:
                await self._read(client)
            self._part(client)
            await self._flush(client)
            if not client.is_dead:
                await drain(sock, self._linger_s)
        except OSError:
            pass  # the other side has gone; nothing is left to be done for it
        finally:
            self._figures.net_output_bytes += client.sent_bytes
            self.by_id.pop(client.id, None)
            self.crowd.forget(client)
            client.die()
            self._pusher.unwatch(client)
            trio.lowlevel.notify_closing(sock)
            sock.close()

    async def _read(self, client: Client) -> None:
        """Read and run until the end of the stream, or until the connection is to be closed.

        The poller does so as long as reading goes on at once; what must wait is done here.
        """
        try:
            while not client.has_ended:
                client.attention = trio.Event()
                self._poller.watch(client)
                await client.attention.wait()
                while self.run(client):
                    await trio.lowlevel.checkpoint()
                self._figures.reads_paused += client.is_full
                while self._is_full(client) and not (client.has_ended or client.is_closing):
                    await self._wait_change(client)
            if client.waits or client.has_input:
                with trio.move_on_after(self._answers_s):
                    await self._see_out(client)
        finally:
            self._poller.unwatch(client)

    def _take_in(self, client: Client) -> None:
        """Read what has come and run it; call the client's task for what can't be done at once."""
        if client.is_closing:
            self._poller.unwatch(client)
            return
        is_large = client.decoder.pending_bytes > READ_BYTES and not client.waits
        try:
            data = client.sock.recv(READ_BYTES_LARGE if is_large else READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            client.is_closing = True
            self._see_off(client)
            return
        if data:
            self._figures.net_input_bytes += len(data)
            client.idle_since_ms = self.turns.row_ms
            try:
                client.decoder.feed(data)
            except BufferLimitError as error:
                self._drop(client, error)
                return
            if not (self.run(client) or self._is_full(client)):
                return
            self._poller.unwatch(client)
            client.attention.set()
        else:
            client.has_ended = True
            self._see_off(client)

    def _see_off(self, client: Client) -> None:
        """Its end is looked after in time: ten thousand may end at once, and others want to be served meanwhile."""
        self._poller.unwatch(client)
        self._parting.append(client)
        self._has_parting.set()

    def _end(self, client: Client) -> None:
        """Give it up: from now on nothing is said or run, and the rest is done in time."""
        client.is_dead = client.is_closing = True
        client.pending.clear()
        self._see_off(client)

    async def _part_all(self) -> None:
        while True:
            await self._has_parting.wait()
            for _ in range(min(PARTINGS_A_PASS, len(self._parting))):
                client = self._parting.popleft()
                if client.is_dead:
                    client.die()
                elif client.is_closing:
                    client.close_soon()
                client.attention.set()
            if not self._parting:
                self._has_parting = trio.Event()
            await trio.lowlevel.checkpoint()

    def _is_full(self, client: Client) -> bool:
        return client.is_full or (self.is_paused and client.decoder.pending_bytes > KEPT_INPUT_MAX)

    async def _wait_change(self, client: Client) -> None:
        """Wait until a reply came or bytes went out, then run what may run now."""
        client.room = trio.Event()
        await client.room.wait()
        client.room = None
        while self.run(client):
            await trio.lowlevel.checkpoint()

    async def _see_out(self, client: Client) -> None:
        """The client says no more: run what it has said, wait for what it is owed."""
        while not (client.is_closing or client.is_abandonable):
            had_waits = client.waits > 0
            while self.run(client):
                await trio.lowlevel.checkpoint()
            is_stuck = client.has_input and (self.is_paused or not client.is_runnable)
            if client.waits or is_stuck:
                await self._wait_change(client)
            elif had_waits or client.pending:
                # Replies came or left while it ran, and what waited for that may run now
                await trio.lowlevel.checkpoint()
            else:
                return

    def _drop(self, client: Client, error: BufferLimitError) -> None:
        self._events.event("warning", "client-dropped", addr=client.address, reason=error)
        client.die()

    def _part(self, client: Client) -> None:
        """The client reads or writes no more: what it waited for is taken back."""
        client.is_closing = True
        client.pending.clear()
        self.turns.open()
        for slot_id in client.give_up_waiting():
            slot = self._slots.pop(slot_id)
            if slot.scope is not None:
                slot.scope.cancel()
            self.turns.broker.disconnect(slot_id)
        if client.subscriber is not None:
            self.forget(client.subscriber)
            self.turns.broker.disconnect(client.subscriber)
        if client.dialect is not None:
            client.dialect.part(client)
        self.turns.end(client)

    async def _flush(self, client: Client) -> None:
        """Wait until what is owed is sent, as long as the other side takes some."""
        while not (client.is_flushed or client.is_dead):
            sent_bytes = client.sent_bytes
            with trio.move_on_after(STALL_S):
                await client.flushed.wait()
            if client.sent_bytes == sent_bytes and not client.is_flushed:
                client.die()

    def _push(self, client: Client) -> None:
        """Send what didn't fit at once."""
        client.push()
        if client.room is None and client.is_runnable:
            self.turns.resume(client)

    # Once a second

    async def _cron(self) -> None:
        while True:
            await trio.sleep(CRON_S)
            now_ms = self.turns.clock.now_ms()
            weights: list[Weight] = []
            # No connection that ends meanwhile is kept: ten thousand would be freed in a row
            for number, id_ in enumerate(list(self.by_id)):
                if number % INSPECTED_A_PASS == 0:
                    await trio.lowlevel.checkpoint()
                client = self.by_id.get(id_)
                if client is not None:
                    self._inspect(client, now_ms)
                    weights.append(weight_of(client))
            self.crowd.drop_strangers(now_ms)
            for number, _ in enumerate(self.crowd.drop_largest(weights, self.by_id), 1):
                if number % PARTINGS_A_PASS == 0:
                    await trio.lowlevel.checkpoint()
            self._figures.sample(now_ms, self.sent_bytes())
            held_bytes = self.crowd.held_bytes(weights) + self._link_bytes()
            self.turns.broker.engine.set_shell_bytes(held_bytes + self.crowd.own_bytes)

    def buffered_bytes(self) -> int:
        """Bytes that connections hold: input that hasn't run, output that isn't sent; those of peers, too."""
        return self._link_bytes() + self.crowd.held_bytes(map(weight_of, self.by_id.values()))

    def used_bytes(self) -> int:
        """The same, and what connections cost that hold nothing."""
        return self.buffered_bytes() + self.crowd.own_bytes

    def _link_bytes(self) -> int:
        return 0 if self.turns.bus is None else self.turns.bus.held_bytes

    def sent_bytes(self) -> int:
        """Bytes sent to clients since start, those of present connections included."""
        return self._figures.net_output_bytes + sum(each.sent_bytes for each in self.by_id.values())

    def _inspect(self, client: Client, now_ms: int) -> None:
        """Drop a connection that is idle, slow, or gone without our having looked."""
        limits = self.limits
        idle_s = (now_ms - client.idle_since_ms) / 1000
        is_quiet = not (client.is_waiting or client.is_listening)
        if limits.idle_max_s and idle_s > limits.idle_max_s and is_quiet:
            client.close_soon()
        self.crowd.drop_if_slow(client, now_ms)
        if (
            client.room is not None
            and client.waits
            and has_hung_up(client.sock, counts_end=client.is_abandonable)
        ):
            client.die()
