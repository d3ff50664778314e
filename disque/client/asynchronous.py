"""AsyncClient: for programs on trio; tasks may share one.

    async with AsyncClient("disque://localhost:7711") as client:
        job_id = await client.add_job("mail", b"hello")

The same methods as `blocking.Client`, to be awaited. A call that is cancelled leaves nothing behind but the doubt
whether it was carried out. Programs on asyncio use the blocking client in threads.
"""

from __future__ import annotations

import functools
import math
import os
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import trio

from disque.client import commands
from disque.client.pipeline import Pipeline
from disque.client.session import Session
from disque.client.subscription import Listener
from disque.client.transport import READ_BYTES, keep_alive
from disque.client.url import Endpoint

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Coroutine, Iterator
    from contextlib import AbstractContextManager
    from types import TracebackType
    from typing import Self

    from disque.client.commands import Name, Request
    from disque.client.results import Job, Message
    from disque.client.url import Address

    Tls = trio.SSLStream[trio.SocketStream]

# For what is there already, when the time is over.
READABLE_S = 0.05

P = ParamSpec("P")
T = TypeVar("T")


class TrioStream:
    """A `transport.Stream` of a socket of trio's, and of the TLS over it if there is some."""

    def __init__(self, sock: trio.socket.SocketType, tls: Tls | None) -> None:
        self._sock = sock
        self._tls = tls

    async def send_some(self, data: memoryview, deadline: float | None) -> int:
        """Wait until a part is sent; under TLS, all of it."""
        with _until(deadline):
            if self._tls is None:
                return await self._sock.send(data)
            await self._tls.send_all(data)
            return len(data)

    async def receive_some(self, deadline: float | None) -> bytes:
        """Wait until something comes."""
        if deadline is not None and self._sock.is_readable():
            deadline = max(deadline, trio.current_time() + READABLE_S)
        with _until(deadline):
            if self._tls is None:
                return await self._sock.recv(READ_BYTES)
            return bytes(await self._tls.receive_some(READ_BYTES))

    def is_stale(self) -> bool:
        """Look without waiting."""
        return self._sock.is_readable()

    def fileno(self) -> int:
        """The socket's."""
        return self._sock.fileno()

    def finish(self) -> None:
        """Half-close the socket."""
        self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close the socket."""
        self._sock.close()


class TrioTransport:
    """A `transport.Transport` of trio, under TLS if there is a context for it."""

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        self._tls = tls

    async def connect(self, address: Address, deadline: float) -> TrioStream:
        """Wait until there is a connection."""
        with _until(deadline):
            try:
                stream = await trio.open_tcp_stream(address.host, address.port)
            except UnicodeError:
                raise OSError(f"{address.host!r} can't be a host's name") from None
            except OSError as error:
                raise _plain(error) from None
        keep_alive(stream.socket)
        if self._tls is None:
            return TrioStream(stream.socket, None)
        # as the other end does, a connection may end without the farewell of TLS
        tls = trio.SSLStream(stream, self._tls, server_hostname=address.host, https_compatible=True)
        try:
            with _until(deadline):
                await tls.do_handshake()
        except BaseException:
            stream.socket.close()
            raise
        return TrioStream(stream.socket, tls)

    async def sleep(self, seconds: float) -> None:
        """Let others run for a while."""
        await trio.sleep(seconds)

    def shielded(self, seconds: float, /) -> AbstractContextManager[object]:
        """Not even a cancelled task is interrupted for so long."""
        return trio.move_on_after(seconds, shield=True)

    def now(self) -> float:
        """trio's clock. RuntimeError outside of trio."""
        try:
            return trio.current_time()
        except RuntimeError:
            raise RuntimeError(
                "AsyncClient is for trio; from asyncio use Client, by asyncio.to_thread"
            ) from None


@contextmanager
def _until(deadline: float | None) -> Iterator[None]:
    """A limit; what trio raises at it, and for a socket that is gone, as the seam wants it."""
    try:
        with trio.fail_at(math.inf if deadline is None else deadline):
            yield
    except trio.TooSlowError:
        raise TimeoutError from None
    except trio.ClosedResourceError:
        raise ConnectionAbortedError("closed by this program") from None
    except trio.BrokenResourceError as error:
        raise ConnectionError(str(error.__cause__ or error)) from error


def _plain(error: OSError) -> OSError:
    """Why no connection could be made: of trio's errors only the cause has it, here that of the last place it tried."""
    cause = getattr(error.__cause__, "exceptions", [error.__cause__])[-1]
    if not isinstance(cause, OSError) or not cause.errno:
        return error
    return OSError(cause.errno, os.strerror(cause.errno))


def _method(
    build: Callable[P, Request[T]],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    """A command as a method."""

    @functools.wraps(build)
    async def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.call(build(*args, **kwargs))

    commands.as_method(method)
    return method


class AsyncClient:
    """A cluster, as if it were one server; see the module."""

    def __init__(self, url: str | Endpoint, **options: Any) -> None:
        """Connects when it is first needed. `options` are those that a URL may have, and win over them."""
        endpoint = Endpoint.of(url, options)
        tls = None if endpoint.tls is None else endpoint.tls.context()
        self.session = Session(TrioTransport(tls), endpoint)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the connections; those in use by other tasks end with their calls. Never waits."""
        self.session.close()

    async def call(self, request: Request[T]) -> T:
        """Carry out a command as `commands` makes them. Raises a DisqueError."""
        return await self.session.call(request)

    async def get_jobs(
        self, *queues: Name, timeout: float | None = None, count: int = 1
    ) -> list[Job]:
        """GETJOB: see `commands.get_jobs`; waits on one node after the other if they fail meanwhile."""
        return await self.session.get_jobs(*queues, timeout=timeout, count=count)

    async def get_job(self, *queues: Name, timeout: float | None = None) -> Job | None:
        """GETJOB of one job; None if there is none in `timeout` seconds."""
        if not queues:
            raise ValueError("get_job needs a queue")
        return next(iter(await self.get_jobs(*queues, timeout=timeout)), None)

    def at(self, address: Address | str) -> AsyncClient:
        """A client for this node alone, with the same credentials; close it by itself."""
        return AsyncClient(self.session.endpoint.at(address))

    def pipeline(self) -> Pipeline[Coroutine[Any, Any, list[Any]]]:
        """Collect commands, send them together."""
        return Pipeline(self.session.carry_out)

    async def subscribe(
        self, *channels: Name, patterns: tuple[Name, ...] = ()
    ) -> AsyncSubscription:
        """Hear what is published to channels, and to those that begin as a pattern `prefix*` says."""
        listener = Listener(self.session, channels, patterns)
        await listener.connect()
        return AsyncSubscription(listener)

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


class AsyncSubscription:
    """What is published from now on. It finds another node by itself; what is said meanwhile is missed.

    async with await client.subscribe("news") as subscription:
        async for message in subscription: ...
    """

    def __init__(self, listener: Listener) -> None:
        """Made by `AsyncClient.subscribe`."""
        self._listener = listener

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        message = await self.receive()
        assert message is not None, "without a time-out it waits"
        return message

    async def receive(self, timeout: float | None = None) -> Message | None:
        """The next message; None after `timeout` seconds. 0 doesn't wait."""
        return await self._listener.receive(timeout)

    async def subscribe(self, *channels: Name, patterns: tuple[Name, ...] = ()) -> None:
        """Hear more."""
        await self._listener.subscribe(channels, patterns)

    async def unsubscribe(self, *channels: Name, patterns: tuple[Name, ...] = ()) -> None:
        """Hear less."""
        await self._listener.unsubscribe(channels, patterns)

    def close(self) -> None:
        """Hear no more."""
        self._listener.close()
