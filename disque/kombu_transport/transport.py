"""Transport: Kombu's connection to a cluster.

Three kinds of connection, each opened when it is first needed, each moving to another node by itself when its node is
lost: commands (`Client`), one GETJOB a consuming channel (`Fetch`), one for topics (`Ear`). Celery's event loop watches
them; without it, `drain_events` waits for all of them together, so that no channel starves another. An error reaches
Kombu only if no node can be asked; then its own retries begin.
"""

from __future__ import annotations

# mypy: disallow-untyped-calls=False
# ruff: noqa: ARG002 -- the signatures are Kombu's
import os
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kombu.transport import virtual
from kombu.utils.eventio import ERR, READ, poll

from disque.client import (
    Address,
    AuthenticationError,
    Client,
    DiskError,
    LeavingError,
    LoadingError,
    NotReplicatedError,
    OutcomeUnknownError,
    OutOfMemoryError,
    QueuePausedError,
    ReplyError,
    UnreachableError,
)
from disque.client.leases import Leases
from disque.client.url import DEFAULT_PORT
from disque.errors import DisqueError
from disque.kombu_transport.bindings import Bindings
from disque.kombu_transport.channel import Channel
from disque.kombu_transport.ear import Ear
from disque.kombu_transport.endpoint import check_options, endpoint_of

if TYPE_CHECKING:
    from disque.kombu_transport.channel import Declared

T = TypeVar("T")

# How long one GETJOB waits at a node. One that has fallen silent is left after this and the client's reply_timeout.
POLL_S: Final = 3.0
# A channel that is full is looked at again so soon: an ack may come from another thread.
FULL_S: Final = 0.1
# How long the answer to a GETJOB may come after its time.
GRACE_S: Final = 1.0
# How long the node that a connection names may take to answer before another is looked for.
ANSWER_S: Final = 1.0


class Transport(virtual.Transport):
    """A connection of Kombu's, with its channels."""

    Channel = Channel
    default_port = DEFAULT_PORT  # type: ignore[assignment]
    polling_interval = None  # type: ignore[assignment]
    # Celery asks this to know whether there is real fanout (remote control, gossip, mingle) and a prefetch that it can
    # steer, and has a list of those that do.
    driver_type = "redis"
    driver_name = "disque"
    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(["direct", "topic", "fanout"])
    )
    connection_errors = (  # type: ignore[assignment]
        *virtual.Transport.connection_errors,
        OSError,
        UnreachableError,
        OutcomeUnknownError,
        LeavingError,
        LoadingError,
        QueuePausedError,
        NotReplicatedError,
        OutOfMemoryError,
        DiskError,
        AuthenticationError,
    )
    channel_errors = (*virtual.Transport.channel_errors, ReplyError)  # type: ignore[assignment]

    def __init__(self, client: Any, **kwargs: Any) -> None:
        """`client` is Kombu's Connection. ValueError if it can't be meant."""
        super().__init__(client, **kwargs)
        self.client: Any
        check_options(client.transport_options or (), Channel.from_transport_options)
        self.endpoint = endpoint_of(client)
        self.broker = Client(self.endpoint)
        self.leases = Leases(self.broker)
        self.bindings = Bindings(self.broker)
        self.ear = Ear(self.broker, self._unwatch)
        self.declared: dict[str, Declared] = {}
        self._loop: Any = None
        self._watched: set[int] = set()
        self._pid = os.getpid()
        self._is_closed = False

    def driver_version(self) -> str:
        """Of the node that answers."""
        return self.broker.info("server")["disque_version"]

    @property
    def is_inherited(self) -> bool:
        """True in a process that was forked since: connections and jobs are the parent's."""
        return self._pid != os.getpid()

    def establish_connection(self) -> Transport:
        """Find a node that answers, the one that is named or another. UnreachableError if there is none."""
        if not self._answers(self.endpoint.addresses[0]):
            line = self.broker.dedicated()
            line.close()
            # So that whoever looks is told the node that was found, as if Kombu itself had switched to it.
            self.client.hostname, self.client.port = line.address.host, line.address.port
        return super().establish_connection()  # type: ignore[no-any-return]

    def _answers(self, address: Address) -> bool:
        timeout_s = min(self.endpoint.options.connect_timeout, ANSWER_S)
        alone = self.endpoint.at(address)
        with Client(alone, connect_timeout=timeout_s, failover_timeout=timeout_s / 10) as client:
            try:
                client.ping()
            except DisqueError:
                return False
        return True

    def close_connection(self, connection: Any) -> None:
        """Give back what the channels hold, and end."""
        if self._loop is not None:
            self._loop.on_tick.discard(self._tick)
        try:
            super().close_connection(connection)
        finally:
            self._is_closed = True
            self.ear.close()
            self.bindings.close()
            self.leases.close()
            self.broker.close()

    def ask(self, command: Callable[[Client], T]) -> T:
        """Carry out a command; also after this connection was closed, when a task ends that outlived it."""
        if not self._is_closed:
            return command(self.broker)
        with Client(self.endpoint) as client:
            return command(client)

    # Waiting, without an event loop

    def drain_events(self, connection: Any, timeout: float | None = None, **_: Any) -> None:
        """Deliver what comes first, and what came with it. TimeoutError after `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        left = POLL_S if timeout is None else timeout
        self._ask(min(left, POLL_S))
        while not self._deliver_all():
            left = POLL_S if deadline is None else max(0.0, deadline - time.monotonic())
            if left:
                self._ask(min(left, POLL_S))
            if not left and not self._is_answer_due(deadline):
                raise TimeoutError("timed out")
            self._wait(left)

    def _is_answer_due(self, deadline: float | None) -> bool:
        """Is a GETJOB under way whose answer must still come? So none comes while nobody listens."""
        is_asking = any([channel.fetch.is_asking for channel in self.channels])
        return is_asking and deadline is not None and time.monotonic() < deadline + GRACE_S

    def _wait(self, seconds: float) -> None:
        is_full = any([channel.is_full for channel in self.channels])
        limit = min(seconds, FULL_S) if is_full else seconds
        poller = poll()
        try:
            for fd in self._filenos():
                poller.register(fd, READ | ERR)
            for fd, _ in poller.poll(limit or FULL_S) or ():
                self._take(fd)
        finally:
            poller.close()

    # Celery's event loop

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """From now on `loop` (Kombu's Hub) says when something can be read."""
        self._loop = loop
        loop.on_tick.add(self._tick)

    def _tick(self) -> None:
        """Before the loop waits: ask for what there is room for, watch what may be answered."""
        self._ask(POLL_S)
        self._deliver_all()
        for fd in self._filenos():
            if fd not in self._watched:
                self._loop.add_reader(fd, self._on_readable, fd)
                self._watched.add(fd)

    def _on_readable(self, fd: int) -> None:
        self._take(fd)
        self._deliver_all()

    def _unwatch(self, fd: int) -> None:
        """Something else may soon have this number: the loop is told. After a fork the loop is the parent's."""
        if fd in self._watched and not self.is_inherited:
            self._watched.discard(fd)
            self._loop.remove_reader(fd)

    # Both

    def _ask(self, timeout: float) -> None:
        for channel in list(self.channels):
            channel.fetch_more(timeout)
        if self.ear.fileno() < 0:
            self.ear.listen()
        self.bindings.renew()

    def _deliver_all(self) -> int:
        return sum([channel.deliver() for channel in list(self.channels)])

    def _filenos(self) -> Iterator[int]:
        lines = [channel.fetch.fileno() for channel in self.channels]
        return (fd for fd in (*lines, self.ear.fileno()) if fd >= 0)

    def _take(self, fd: int) -> None:
        if fd == self.ear.fileno():
            self.ear.listen()
        for channel in list(self.channels):
            if fd == channel.fetch.fileno():
                channel.take()
