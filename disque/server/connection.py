"""Client: one connection of a client, as the turn loop sees it: slots for replies, kept input,
bytes to be sent.

It knows nothing of commands, and it never waits: `send` is a non-blocking write, what doesn't fit
is kept until the writer task (clients.py) finds room. The idea: a reply has a *slot* from the
moment its command runs, so that replies keep the order of their commands though some are answered
at once and some turns later.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from disque.core.ready import ClientId
    from disque.resp.decoder import Decoder
    from disque.resp.encoder import Protocol

KEPT_INPUT_MAX = 1 << 20  # bytes read ahead of a waiting command; beyond it the socket isn't read
OUT_PAUSE_BYTES = 64 << 20  # no further command of a client runs while so much is unsent
OUT_CAP_BYTES = 1 << 30  # the built-in client-output-buffer-limit


class Client:
    """State of one connection. `is_waiting`: a reply is still to come, no later command may run."""

    __slots__ = (
        "address",
        "backlog",
        "backlog_bytes",
        "connected_at_ms",
        "decoder",
        "flushed",
        "holes",
        "id",
        "idle_since_ms",
        "is_authenticated",
        "is_closing",
        "is_dead",
        "is_local",
        "is_waiting",
        "is_writing",
        "last_command",
        "library",
        "local_host",
        "name",
        "out_limit_bytes",
        "over_soft_since_ms",
        "owed_bytes",
        "pending",
        "proto",
        "room",
        "scope",
        "sent_bytes",
        "slots",
        "sock",
        "wants_writer",
    )

    def __init__(
        self,
        client_id: ClientId,
        sock: socket.socket,
        decoder: Decoder,
        *,
        now_ms: int,
        wants_writer: Callable[[Client], None],
    ) -> None:
        self.id = client_id
        self.sock = sock  # non-blocking
        self.decoder = decoder
        self.wants_writer = wants_writer  # called when a write was short and no writer task runs
        self.address = ""
        self.local_host = ""
        self.is_local = False  # loopback or unix socket
        self.connected_at_ms = now_ms
        self.idle_since_ms = now_ms
        self.name = b""
        self.library = b""
        self.proto: Protocol = 2
        self.last_command = "NULL"
        self.is_authenticated = False
        self.is_waiting = False
        self.is_closing = False  # nothing more is read or run; closed once its replies are sent
        self.is_dead = False  # nothing more can be sent
        self.is_writing = False  # a writer task runs
        self.pending: deque[list[bytes]] = deque()  # decoded, not yet run
        self.slots: list[bytes] = []  # replies in order; b"" at a hole
        self.holes: deque[tuple[int, Protocol]] = (
            deque()
        )  # (index in slots, protocol when its command ran)
        self.backlog: deque[memoryview] = deque()
        self.backlog_bytes = 0
        self.out_limit_bytes = OUT_CAP_BYTES
        self.over_soft_since_ms: int | None = None
        self.owed_bytes = 0  # taken from the slots, not yet given to send
        self.sent_bytes = 0
        self.flushed = trio.Event()  # set at `is_flushed`, once the connection is closing
        self.scope = trio.CancelScope()
        self.room: trio.Event | None = None  # set while the reader waits for `is_full` to end

    # Replies in order

    def answer(self, reply: bytes) -> None:
        """Reply at once to the command that runs."""
        self.slots.append(reply)

    def open_slot(self) -> None:
        """Reserve the place of a reply that comes later; `fill` closes the oldest such place."""
        self.holes.append((len(self.slots), self.proto))
        self.slots.append(b"")

    @property
    def next_proto(self) -> Protocol:
        """The protocol in which the oldest open slot wants its reply."""
        return self.holes[0][1]

    def fill(self, reply: bytes) -> None:
        """Put a reply into the oldest open slot."""
        index, _ = self.holes.popleft()
        self.slots[index] = reply
        if not self.holes:
            self.is_waiting = False
            self.made_room()

    def take_finished(self) -> bytes:
        """Hand over, joined, the replies up to the first open slot; give them to `send`, in this order."""
        slots = self.slots
        if not slots:
            return b""
        if self.holes:
            first = self.holes[0][0]
            self.slots = slots[first:]
            self.holes = deque((index - first, proto) for index, proto in self.holes)
            slots = slots[:first]
        else:
            self.slots = []
        data = slots[0] if len(slots) == 1 else b"".join(slots)
        self.owed_bytes += len(data)
        return data

    def give_up_waiting(self) -> None:
        """Forget the replies that are still to come: nobody waits for them any more."""
        if self.holes:
            del self.slots[self.holes[0][0] :]
            self.holes.clear()
        self.is_waiting = False

    @property
    def is_flushed(self) -> bool:
        """True if nothing is left to be sent."""
        return not (self.slots or self.owed_bytes or self.backlog)

    # Input that must wait

    @property
    def has_input(self) -> bool:
        """True if something was read that hasn't run (half a command counts: trying is cheap)."""
        decoder = self.decoder
        return bool(self.pending) or decoder.pending_bytes > 0 or decoder.error is not None

    @property
    def is_runnable(self) -> bool:
        """True if a kept command may run now."""
        return self.has_input and not (
            self.is_waiting
            or self.is_closing
            or self.is_dead
            or self.backlog_bytes > OUT_PAUSE_BYTES
        )

    @property
    def is_full(self) -> bool:
        """True while the socket must not be read: too much kept input, or too much unsent."""
        if self.backlog_bytes > OUT_PAUSE_BYTES:
            return True
        return self.is_waiting and self.decoder.pending_bytes > KEPT_INPUT_MAX

    def made_room(self) -> None:
        """Wake the reader if it stopped because of `is_full`."""
        if self.room is not None:
            self.room.set()

    # Output

    def send(self, data: bytes) -> None:
        """Write now what the socket takes and keep the rest; over the limit the connection is dropped."""
        if not data:
            return
        self.owed_bytes -= len(data)
        if self.is_dead:
            return
        sent = 0 if self.backlog else self._write(data)
        if sent < len(data) and not self.is_dead:
            self.backlog.append(memoryview(data)[sent:])
            self.backlog_bytes += len(data) - sent
            if self.backlog_bytes > self.out_limit_bytes:
                self.die()
            elif not self.is_writing:
                self.is_writing = True
                self.wants_writer(self)
        self._mind_flushed()

    def push(self) -> None:
        """Write kept bytes until the socket is full; the writer task calls it whenever there is room."""
        while self.backlog and not self.is_dead:
            head = self.backlog[0]
            sent = self._write(head)
            self.backlog_bytes -= sent
            if sent < len(head):
                if not self.is_dead:
                    self.backlog[0] = head[sent:]
                break
            self.backlog.popleft()
        if self.backlog_bytes <= OUT_PAUSE_BYTES:
            self.made_room()
        self._mind_flushed()

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
        if self.is_closing and self.is_flushed:
            self.flushed.set()

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
        self.holes.clear()
        self.backlog.clear()
        self.backlog_bytes = 0
        self.flushed.set()
        self.made_room()
        self.scope.cancel()
