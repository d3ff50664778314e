"""Client: for programs that wait by blocking; threads may share one.

    with Client("disque://localhost:7711;localhost:7712") as client:
        job_id = client.add_job("mail", b"hello")
        job = client.get_job("mail", timeout=5)
        if job:
            client.ack_job(job)

Its methods are the commands of `disque.client.commands`, where arguments, results and errors are described. What
happens when nodes fail is `disque.client.session`'s business. Each call takes a connection for itself, one that is at
hand or a new one, so that a GETJOB which waits in one thread is in nobody's way. After a fork the child makes its own.
"""

from __future__ import annotations

import contextlib
import functools
import socket
import ssl
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from disque.client import commands
from disque.client.connection import Connection, encode
from disque.client.errors import ReplyError
from disque.client.pipeline import Pipeline
from disque.client.session import Session, read
from disque.client.subscription import Listener
from disque.client.transport import READ_BYTES, keep_alive, run
from disque.client.url import Endpoint

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from types import TracebackType
    from typing import Self

    from disque.client.commands import Name, Request
    from disque.client.results import Job, Message
    from disque.client.url import Address

_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

P = ParamSpec("P")
T = TypeVar("T")


class SocketStream:
    """A `transport.Stream` of a blocking socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    async def send_some(self, data: memoryview, deadline: float | None) -> int:
        """Block until a part is sent."""
        self._sock.settimeout(_left(deadline))
        try:
            return self._sock.send(data)
        except _NOT_NOW:
            raise TimeoutError from None

    async def receive_some(self, deadline: float | None) -> bytes:
        """Block until something comes."""
        self._sock.settimeout(_left(deadline))
        try:
            return self._sock.recv(READ_BYTES)
        except _NOT_NOW:
            raise TimeoutError from None

    def is_stale(self) -> bool:
        """Look without waiting."""
        self._sock.settimeout(0)
        try:
            # under TLS something may be there that isn't for us
            self._sock.recv(1)
        except _NOT_NOW:
            return False
        except OSError:
            return True
        return True

    def fileno(self) -> int:
        """The socket's."""
        return self._sock.fileno()

    def finish(self) -> None:
        """Half-close the socket; one under TLS still has to understand what comes, so not by its own shutdown()."""
        socket.socket.shutdown(self._sock, socket.SHUT_WR)

    def close(self) -> None:
        """Close the socket."""
        self._sock.close()


class SocketTransport:
    """A `transport.Transport` of blocking sockets, under TLS if there is a context for it."""

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        self._tls = tls

    async def connect(self, address: Address, deadline: float) -> SocketStream:
        """Block until there is a connection."""
        try:
            sock = socket.create_connection((address.host, address.port), _left(deadline))
        except UnicodeError:
            raise OSError(f"{address.host!r} can't be a host's name") from None
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            keep_alive(sock)
            if self._tls is not None:
                sock.settimeout(_left(deadline))
                sock = self._tls.wrap_socket(sock, server_hostname=address.host)
        except BaseException:
            sock.close()
            raise
        return SocketStream(sock)

    async def sleep(self, seconds: float) -> None:
        """Block for a while."""
        time.sleep(seconds)

    def shielded(self, _seconds: float, /) -> AbstractContextManager[object]:
        """Nothing interrupts a thread."""
        return contextlib.nullcontext()

    def now(self) -> float:
        """The monotonic clock."""
        return time.monotonic()


def _left(deadline: float | None) -> float | None:
    """Seconds until then, 0 if it has passed: what can be done without waiting is done."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def _method(build: Callable[P, Request[T]]) -> Callable[Concatenate[Client, P], T]:
    """A command as a method."""

    @functools.wraps(build)
    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.call(build(*args, **kwargs))

    commands.as_method(method)
    return method


class Client:
    """A cluster, as if it were one server; see the module."""

    def __init__(self, url: str | Endpoint, **options: Any) -> None:
        """Connects when it is first needed. `options` are those that a URL may have, and win over them."""
        endpoint = Endpoint.of(url, options)
        tls = None if endpoint.tls is None else endpoint.tls.context()
        self.session = Session(SocketTransport(tls), endpoint)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the connections; those in use by other threads end with their calls."""
        self.session.close()

    def call(self, request: Request[T]) -> T:
        """Carry out a command as `commands` makes them. Raises a DisqueError."""
        return run(self.session.call(request))

    def get_jobs(self, *queues: Name, timeout: float | None = None, count: int = 1) -> list[Job]:
        """GETJOB: see `commands.get_jobs`; waits on one node after the other if they fail meanwhile."""
        return run(self.session.get_jobs(*queues, timeout=timeout, count=count))

    def get_job(self, *queues: Name, timeout: float | None = None) -> Job | None:
        """GETJOB of one job; None if there is none in `timeout` seconds."""
        if not queues:
            raise ValueError("get_job needs a queue")
        return next(iter(self.get_jobs(*queues, timeout=timeout)), None)

    def at(self, address: Address | str) -> Client:
        """A client for this node alone, with the same credentials; close it by itself."""
        return Client(self.session.endpoint.at(address))

    def pipeline(self) -> Pipeline[list[Any]]:
        """Collect commands, send them together."""
        return Pipeline(lambda requests: run(self.session.carry_out(requests)))

    def subscribe(self, *channels: Name, patterns: tuple[Name, ...] = ()) -> Subscription:
        """Hear what is published to channels, and to those that begin as a pattern `prefix*` says."""
        return Subscription(Listener(self.session, channels, patterns))

    def dedicated(self) -> DedicatedConnection:
        """A connection to the node for consuming, for event loops. Raises UnreachableError."""
        return DedicatedConnection(self.session, *run(self.session.open()))

    add_job = _method(commands.add_job)
    ack_job = _method(commands.ack_job)
    fast_ack = _method(commands.fast_ack)
    nack_job = _method(commands.nack_job)
    working = _method(commands.working)
    enqueue = _method(commands.enqueue)
    dequeue = _method(commands.dequeue)
    delete_job = _method(commands.delete_job)
    cancel_job = _method(commands.cancel_job)
    revive = _method(commands.revive)
    wait_jobs = _method(commands.wait_jobs)
    show = _method(commands.show)
    qlen = _method(commands.qlen)
    global_qlen = _method(commands.global_qlen)
    qstat = _method(commands.qstat)
    global_qstat = _method(commands.global_qstat)
    qpeek = _method(commands.qpeek)
    qpurge = _method(commands.qpurge)
    pause = _method(commands.pause)
    qscan = _method(commands.qscan)
    qscan_stats = _method(commands.qscan_stats)
    jscan = _method(commands.jscan)
    publish = _method(commands.publish)
    numsub = _method(commands.numsub)
    hello = _method(commands.hello)
    info = _method(commands.info)
    cluster_info = _method(commands.cluster_info)
    ping = _method(commands.ping)
    execute = _method(commands.execute)


class Subscription:
    """What is published from now on. It finds another node by itself; what is said meanwhile is missed.

    with client.subscribe("news") as subscription:
        for message in subscription: ...
    """

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        run(listener.connect())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        message = self.receive()
        assert message is not None, "without a time-out it waits"
        return message

    def receive(self, timeout: float | None = None) -> Message | None:
        """The next message; None after `timeout` seconds. 0 doesn't wait."""
        return run(self._listener.receive(timeout))

    def subscribe(self, *channels: Name, patterns: tuple[Name, ...] = ()) -> None:
        """Hear more."""
        run(self._listener.subscribe(channels, patterns))

    def unsubscribe(self, *channels: Name, patterns: tuple[Name, ...] = ()) -> None:
        """Hear less."""
        run(self._listener.unsubscribe(channels, patterns))

    def fileno(self) -> int:
        """The socket's, for event loops; it changes when the node does, and is -1 until it is found again."""
        return self._listener.fileno()

    def close(self) -> None:
        """Hear no more."""
        self._listener.close()


class DedicatedConnection:
    """One connection to one node, for programs with an event loop: when `fileno` is readable, `receive`.

    Replies come in the order of the commands. Nothing is repeated and no other node is tried: ConnectionError says that
    the node is lost, and `Client.dedicated` gives a connection to another one.
    """

    def __init__(self, session: Session, connection: Connection, address: Address) -> None:
        self.address = address
        self._session = session
        self._connection = connection
        self._asked: deque[Request[Any]] = deque()

    @property
    def pending(self) -> int:
        """Commands whose replies have not been received."""
        return len(self._asked)

    def fileno(self) -> int:
        """The socket's."""
        return self._connection.stream.fileno()

    def send(self, *requests: Request[Any]) -> None:
        """Send commands. ConnectionError if the node is lost."""
        self._asked.extend(requests)
        data = b"".join([encode(request.words) for request in requests])
        deadline = time.monotonic() + self._session.options.reply_timeout
        try:
            run(self._connection.send(data, deadline))
        except OSError as error:
            raise self._lost(error) from error

    def receive(self, timeout: float | None = 0.0) -> Any:
        """The next command's result; TimeoutError if it hasn't come in `timeout` seconds (None: no limit).

        Raises the ReplyError that it is, or ConnectionError if the node is lost.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            reply = run(self._connection.receive(deadline))
        except TimeoutError:
            raise
        except OSError as error:
            raise self._lost(error) from error
        request = self._asked.popleft()
        if isinstance(reply, ReplyError):
            raise reply
        return read(request, reply)

    def finish(self, timeout: float) -> list[Any]:
        """End it, but take what was on its way: results, or ReplyErrors, that the node had sent for what is pending.

        A GETJOB that waits ends at once, without a result; so does this, as a rule, and after `timeout` seconds anyway.
        """
        found: list[Any] = []
        deadline = time.monotonic() + timeout
        with contextlib.suppress(OSError):
            self._connection.stream.finish()
            while self._asked:
                reply = run(self._connection.receive(deadline))
                request = self._asked.popleft()
                is_error = isinstance(reply, ReplyError)
                found.append(reply if is_error else read(request, reply))
        self._connection.close()
        return found

    def close(self) -> None:
        """End it; a job that was on its way comes back after its RETRY."""
        self._connection.close()

    def _lost(self, error: OSError) -> ConnectionError:
        self._connection.close()
        self._session.lost(self.address)
        return ConnectionError(f"{self.address}: {error or 'no answer'}")
