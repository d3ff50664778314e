"""Client: one connection of a client, as the turn loop sees it: slots for replies, kept input, bytes to be sent.

It knows nothing of commands, and it never waits: `send` is a non-blocking write, what doesn't fit
is kept until the pusher (polling.py) finds room. The idea: a reply has a *slot* from the
moment its command runs, so that replies keep the order of their commands though some are answered
at once and some turns later. Each slot has an id of its own, under which the broker knows the
command, so several commands of one connection may be under way.
"""

from __future__ import annotations

import contextlib
import socket
from collections import deque
from itertools import chain, groupby, islice
from typing import TYPE_CHECKING, Any, Protocol

import attrs
import trio

from disque.server.render import Whole
from disque.server.shelf import SHELVED_MIN_BYTES, Shelf, is_shelved

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from disque.core.ready import ClientId
    from disque.errors import ProtocolError
    from disque.resp.encoder import Protocol as RespVersion
    from disque.server.acl import User
    from disque.server.dialect import Dialect

    Spelled: TypeAlias = bytes | Whole  # of replies

KEPT_INPUT_MAX = 1 << 20  # bytes read ahead of a waiting command; beyond it the socket isn't read
OPEN_ADDS_MAX = 1_000  # ADDJOBs of one connection that wait for their copies at a time
OUT_PAUSE_BYTES = 256 << 10  # no further command of a client runs while so much is unsent
ANSWERED_MAX_BYTES = 64 << 10  # the same of replies that were given in one run
OUT_CAP_BYTES = 1 << 30  # the built-in client-output-buffer-limit
HEARD_CHUNK_BYTES = 64 << 10  # of topics' messages, put together for the socket; more isn't copied
# Of the backlog, with which messages begin: of a row of them one part is large
_BEGUN_VIEWS_MAX = 4


class Input(Protocol):
    """What makes requests of a client's bytes: resp.decoder.Decoder, stomp.frames.Decoder."""

    error: ProtocolError | None

    @property
    def has_more(self) -> bool:
        """True if `take` gave nothing though it has work left: others have their turn first."""
        ...

    @property
    def pending_bytes(self) -> int:
        """Bytes that were fed and haven't come out as requests."""
        ...

    def feed(self, data: bytes) -> None:
        """Add what was read."""
        ...

    def take(self, count_max: int) -> list[Any]:
        """The next complete requests."""
        ...


def _is_large(part: bytes) -> bool:
    return len(part) >= HEARD_CHUNK_BYTES


@attrs.define(eq=False)
class Slot:
    """The place of a reply that comes in a later batch."""

    id: ClientId
    client: Client
    proto: RespVersion  # when its command ran
    is_mute: bool  # CLIENT REPLY OFF or SKIP: the reply is dropped
    is_waiting: bool = False  # not answered by the batch of its command
    is_shells: bool = False  # the shell finds the answer, not the broker
    is_read: bool = False  # its command changes nothing
    is_alone: bool = False  # no later command of its connection may run before it is answered
    # Set if what the shell does for the answer ends with the client
    scope: trio.CancelScope | None = None
    data: Spelled | None = None


class Client:
    """State of one connection."""

    __slots__ = (
        "address",
        "ahead",
        "answered_bytes",
        "attention",
        "backlog",
        "backlog_bytes",
        "begun",
        "connected_at_ms",
        "decoder",
        "dialect",
        "flushed",
        "has_ended",
        "has_written",
        "heard",
        "heard_bytes",
        "heard_shelved_bytes",
        "host",
        "id",
        "idle_since_ms",
        "is_abandonable",
        "is_alone",
        "is_closing",
        "is_dead",
        "is_discarding",
        "is_held",
        "is_listening",
        "is_local",
        "is_monitor",
        "is_mute",
        "is_off",
        "is_over",
        "is_skipping",
        "is_stranger",
        "is_tls",
        "kept_bytes",
        "last_command",
        "local_host",
        "name",
        "on_flushed",
        "open",
        "out_limit_bytes",
        "over_soft_since_ms",
        "owed_bytes",
        "pending",
        "proto",
        "room",
        "scope",
        "sent_bytes",
        "shelf",
        "slots",
        "sock",
        "subscriber",
        "user",
        "waits",
        "waits_max",
        "wants_writer",
    )

    def __init__(
        self,
        client_id: ClientId,
        sock: socket.socket,
        decoder: Input,
        *,
        now_ms: int,
        wants_writer: Callable[[Client], None],
    ) -> None:
        self.id = client_id
        self.sock = sock  # non-blocking
        self.decoder = decoder
        self.dialect: Dialect | None = None  # None: RESP's
        self.wants_writer = wants_writer  # called when a write was short and nothing waited before
        self.on_flushed: Callable[[], None] | None = None  # when nothing is left to be sent
        self.address = ""
        self.host = self.local_host = ""  # of the other side and of ours, "" for a unix socket
        self.is_local = self.is_tls = False  # by loopback or a unix socket; under TLS
        self.connected_at_ms = self.idle_since_ms = now_ms
        self.name = b""
        self.proto: RespVersion = 2
        self.last_command = "NULL"
        self.user: User | None = None  # None: nobody has logged in
        self.is_stranger = False  # a password is needed and wasn't given: see crowd
        self.is_monitor = self.is_discarding = False  # discarding: between MULTI and EXEC
        self.is_off = False  # CLIENT REPLY OFF
        self.is_skipping = False  # CLIENT REPLY SKIP: the next command isn't answered
        self.is_mute = False  # the command that runs isn't answered
        self.is_alone = False  # a command waits that nothing may overtake
        self.is_abandonable = False  # ... and that the end of the stream ends: GETJOB, WAITJOB
        self.has_ended = False  # the other side sends no more, or isn't read any more
        self.has_written = False  # a finished reply may speak of what the log doesn't hold yet
        self.is_closing = False  # nothing more is read or run; closed once its replies are sent
        self.is_dead = False  # nothing more can be sent
        self.is_listening = False  # it has subscribed to something: silence is no idleness
        self.is_held = False  # its replies wait until the log can be written: it runs nothing more
        self.waits = 0  # slots whose reply comes in a later batch
        self.waits_max = OPEN_ADDS_MAX
        self.pending: deque[Any] = deque()  # requests that were decoded, not yet run
        self.slots: deque[bytes | Slot] = deque()  # replies in order
        self.open: dict[ClientId, Slot] = {}  # those without a reply yet, in order
        self.ahead: list[bytes] = []  # lines that wait for no slot (MONITOR)
        self.subscriber: ClientId | None = None  # under which the broker knows its topics
        # Messages of topics, in parts, until the socket takes more: bodies are shared by all who hear them
        self.heard: deque[tuple[bytes, ...]] = deque()
        self.backlog: deque[memoryview] = deque()
        self.begun: list[bytes] = []  # parts on the shelf that the backlog begins with
        self.heard_bytes = self.heard_shelved_bytes = self.backlog_bytes = 0
        self.shelf = Shelf()  # that of all connections, once it is one of them
        self.kept_bytes = 0  # what its dialect keeps for it, or has gathered of a long answer
        self.out_limit_bytes = OUT_CAP_BYTES
        self.is_over = False  # it was dropped because it left more than that unread
        self.over_soft_since_ms: int | None = None
        self.answered_bytes = 0  # of replies that were given at once and aren't yet taken
        self.owed_bytes = 0  # taken from the slots, not yet given to send
        self.sent_bytes = 0
        self.flushed = trio.Event()  # set at `is_flushed`, once the connection is closing
        self.scope = trio.CancelScope()
        self.attention = trio.Event()  # its task is wanted: the stream ended, or reading must wait
        self.room: trio.Event | None = None  # set while the reader waits for `is_full` to end

    @property
    def held_bytes(self) -> int:
        """What this connection costs: input that hasn't run, output that isn't sent."""
        return (
            self.backlog_bytes
            + self.heard_bytes
            + self.owed_bytes
            + self.kept_bytes
            + self.decoder.pending_bytes
        )

    @property
    def shelved_bytes(self) -> int:
        """Of these what lies on the shelf, where others may keep it, too."""
        if not self.begun:
            return self.heard_shelved_bytes
        views = islice(self.backlog, _BEGUN_VIEWS_MAX)
        begun = [len(view) for view in views if any(view.obj is part for part in self.begun)]
        return self.heard_shelved_bytes + sum(begun)

    # Replies in order

    def begin(self) -> None:
        """A command is about to run: is it to be answered?"""
        self.is_mute = self.is_off or self.is_skipping
        self.is_skipping = False

    def answer(self, reply: bytes) -> None:
        """Reply at once to the command that runs."""
        if not self.is_mute:
            self.slots.append(reply)
            self.answered_bytes += len(reply)

    def tell(self, line: bytes) -> None:
        """Say something that no command asked for; it doesn't wait for open slots."""
        if self.open:
            self.ahead.append(line)
        else:
            self.slots.append(line)

    def hear(self, *message: bytes, bytes_max: int) -> int:
        """Keep a topic's message until the socket has taken what is before it; the oldest go over `bytes_max`.

        Returns how many went. A larger one is heard if nothing is before it.
        """
        self.heard.append(message)
        size = sum(map(len, message))
        self.heard_bytes += size
        for part in filter(is_shelved, message) if size >= SHELVED_MIN_BYTES else ():
            self.shelf.put(part)
            self.heard_shelved_bytes += len(part)
        if self.heard_bytes <= bytes_max:
            return 0
        if not (self.slots or self.owed_bytes or self.is_held):
            self._pump()
        dropped = 0
        while self.heard_bytes > bytes_max and self.heard:
            message = self.heard.popleft()
            self.heard_bytes -= sum(map(len, message))
            for part in filter(is_shelved, message):
                self.shelf.take(part)
                self.heard_shelved_bytes -= len(part)
            dropped += 1
        return dropped

    def open_slot(self, slot_id: ClientId) -> Slot:
        """Reserve the place of a reply that comes later."""
        slot = self.open[slot_id] = Slot(slot_id, self, self.proto, self.is_mute)
        self.slots.append(slot)
        return slot

    def wait_for(self, slot: Slot, *, is_alone: bool, is_abandonable: bool = False) -> None:
        """The reply of this slot comes in a later batch."""
        slot.is_waiting = True
        slot.is_alone = self.is_alone = is_alone
        self.is_abandonable = is_abandonable
        self.waits += 1

    def fill(self, slot: Slot, reply: Spelled) -> None:
        """Put a reply into its slot."""
        del self.open[slot.id]
        slot.data = b"" if slot.is_mute else reply
        if slot.is_waiting:
            self.waits -= 1
            if slot.is_alone:
                self.is_alone = self.is_abandonable = False
            self.made_room()

    def take_finished(self) -> Spelled:
        """Hand over, joined, the replies up to the first open slot; give them to `send`, in this order."""
        slots = self.slots
        if self.answered_bytes:
            self.answered_bytes = 0
            if self.room is not None:
                self.room.set()
        if not (slots or self.ahead):
            return b""
        parts, self.ahead = self.ahead, []
        long: list[bytes] = []
        while slots:
            head = slots[0]
            data = head.data if isinstance(head, Slot) else head
            if data is None:
                break
            if isinstance(data, Whole):
                long += (b"".join(parts), *data.parts)
                parts = []
            else:
                parts.append(data)
            slots.popleft()
        joined = parts[0] if len(parts) == 1 else b"".join(parts)
        taken = Whole([*long, joined]) if long else joined
        self.owed_bytes += len(taken)
        return taken

    def give_up_waiting(self) -> list[ClientId]:
        """Forget the replies that are still to come, and what is behind them; returns their ids."""
        given_up = list(self.open)
        if given_up:
            is_open = [isinstance(slot, Slot) and slot.data is None for slot in self.slots]
            while True in is_open[: len(self.slots)]:
                self.slots.pop()
            self.open.clear()
        self.waits = 0
        self.is_alone = self.is_abandonable = False
        return given_up

    @property
    def is_flushed(self) -> bool:
        """True if nothing is left to be sent."""
        return not (self.slots or self.ahead or self.owed_bytes or self.backlog or self.heard)

    # Input that must wait

    @property
    def is_waiting(self) -> bool:
        """True if a reply is to come in a later batch."""
        return self.waits > 0

    @property
    def has_input(self) -> bool:
        """True if something was read that hasn't run (half a command counts: trying is cheap)."""
        decoder = self.decoder
        return bool(self.pending) or decoder.pending_bytes > 0 or decoder.error is not None

    @property
    def is_runnable(self) -> bool:
        """True if a kept command may run now, provided that it may overtake what waits."""
        decoder = self.decoder
        return bool(self.pending or decoder.pending_bytes or decoder.error) and not (
            self.is_alone
            or self.is_closing
            or self.is_dead
            or self.is_held
            or self.waits >= self.waits_max
            or self.backlog_bytes > OUT_PAUSE_BYTES
            or self.answered_bytes > ANSWERED_MAX_BYTES
        )

    @property
    def is_full(self) -> bool:
        """True while the socket must not be read: too much kept input, or too much unsent."""
        if self.backlog_bytes > OUT_PAUSE_BYTES:
            return True
        return (self.waits > 0 or self.is_held) and self.decoder.pending_bytes > KEPT_INPUT_MAX

    def made_room(self) -> None:
        """Wake the reader if it waits for something to change here."""
        if self.room is not None:
            self.room.set()

    # Output

    def send(self, data: Spelled) -> None:
        """Write now what the socket takes and keep the rest; over the limit the connection is dropped."""
        self.owed_bytes -= len(data)
        if self.is_dead:
            return
        if isinstance(data, Whole):
            for part in filter(None, data.parts):
                if not self.is_dead:
                    self._put(part)
        elif data:
            self._put(data)
        if self.heard:
            self._pump()
        if self.is_closing or self.on_flushed is not None:
            self._mind_flushed()

    def _put(self, data: bytes) -> None:
        sent = 0 if self.backlog else self._write(data)
        if sent < len(data) and not self.is_dead:
            self.backlog.append(memoryview(data)[sent:])
            self.backlog_bytes += len(data) - sent
            if self.backlog_bytes > self.out_limit_bytes:
                self.is_over = True
                self.die()
            elif len(self.backlog) == 1:
                self.wants_writer(self)

    def _pump(self) -> None:
        """Give messages of topics to the socket while it takes all; no large part is copied."""
        heard = self.heard
        while heard and not (self.backlog or self.is_dead):
            parts: list[bytes] = []
            size = 0
            while heard and size < HEARD_CHUNK_BYTES:
                message = heard.popleft()
                size += sum(map(len, message))
                parts += message
            shelved = list(filter(is_shelved, parts)) if self.heard_shelved_bytes else []
            self.heard_bytes -= size
            self.heard_shelved_bytes -= sum(map(len, shelved))
            for _, run in groupby(parts, key=_is_large):
                if not self.is_dead:
                    self._put(b"".join(run))  # one alone isn't copied
            for part in shelved:
                if any(view.obj is part for view in self.backlog):
                    self.begun.append(part)
                else:
                    self.shelf.take(part)

    def push(self) -> None:
        """Write kept bytes until the socket is full; the pusher calls it whenever there is room."""
        while self.backlog and not self.is_dead:
            head = self.backlog[0]
            sent = self._write(head)
            self.backlog_bytes -= sent
            if sent < len(head):
                if not self.is_dead:
                    self.backlog[0] = head[sent:]
                break
            self.backlog.popleft()
        if not self.backlog:
            self._take_begun()
        self._pump()
        if self.backlog_bytes <= OUT_PAUSE_BYTES:
            self.made_room()
        self._mind_flushed()

    def _take_begun(self) -> None:
        """Nothing of what was begun is left to be sent."""
        while self.begun:
            self.shelf.take(self.begun.pop())

    def _write(self, data: bytes | memoryview) -> int:
        """Bytes that the socket took; an error of the socket ends the connection."""
        try:
            sent = self.sock.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            self.die()
            return 0
        self.sent_bytes += sent
        return sent

    def _mind_flushed(self) -> None:
        if not self.is_flushed:
            return
        if self.is_closing:
            self.flushed.set()
            if self.has_ended and self.dialect is None:
                self._finish()
        elif self.on_flushed is not None:
            self.on_flushed()

    def say_last(self) -> None:
        """Nothing more is read; the last reply and the end of the stream leave together, lest another command comes."""
        self.has_ended = True
        if hasattr(socket, "TCP_CORK"):
            # The reply would wake its caller, and we might not go on before it says more
            with contextlib.suppress(OSError):
                self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
        if self.dialect is None:
            self.on_flushed = self._finish
            self._mind_flushed()

    def _finish(self) -> None:
        if not self.has_input:
            with contextlib.suppress(OSError):
                self.sock.shutdown(socket.SHUT_WR)

    def close_soon(self) -> None:
        """Run nothing more; the connection closes when its replies are sent."""
        self.is_closing = True
        self.pending.clear()
        self.scope.cancel()

    def die(self) -> None:
        """Give the connection up: nothing more is sent, its tasks end."""
        self.is_dead = True
        self.is_closing = True
        self.pending.clear()
        self.slots.clear()
        self.ahead.clear()
        for part in filter(is_shelved, chain.from_iterable(self.heard)):
            self.shelf.take(part)
        self._take_begun()
        self.heard.clear()
        self.heard_bytes = self.heard_shelved_bytes = 0
        self.backlog.clear()
        self.backlog_bytes = 0
        self.flushed.set()
        self.made_room()
        self.scope.cancel()
