"""The seam between the client's one logic and the two ways of waiting: threads that block, and trio's tasks.

`Session` is written once, as coroutines over these protocols. Where they are made of blocking sockets no coroutine ever
suspends, and `run` carries one out like a plain call; where they are made of trio's, trio does.
"""

from __future__ import annotations

import socket
from collections.abc import Coroutine
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from disque.client.url import Address

T = TypeVar("T")

READ_BYTES = 64 << 10
# After so many idle seconds the kernel probes whether the other machine is there; so often, so many times.
KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}


class Stream(Protocol):
    """One TCP connection. `deadline` is in the transport's time: TimeoutError when it has passed; OSError for trouble.

    What can be done without waiting is done though the deadline has passed.
    """

    async def send_some(self, data: memoryview, deadline: float | None) -> int:
        """Send a part; returns how many bytes."""
        ...

    async def receive_some(self, deadline: float | None) -> bytes:
        """What has come, at least a byte; empty at the end of the stream."""
        ...

    def is_stale(self) -> bool:
        """True if an idle connection has ended, or has something to read that nobody asked for."""
        ...

    def fileno(self) -> int:
        """The socket's."""
        ...

    def finish(self) -> None:
        """Say that nothing more will be sent; what the other end sends can still be received. OSError for trouble."""
        ...

    def close(self) -> None:
        """End it; never waits, may be called twice."""
        ...


class Transport(Protocol):
    """Connections, and time."""

    async def connect(self, address: Address, deadline: float) -> Stream:
        """Open a connection; OSError if that fails."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        ...

    def shielded(self, seconds: float, /) -> AbstractContextManager[object]:
        """What is done inside isn't cancelled; it is given up after so many seconds."""
        ...

    def now(self) -> float:
        """Seconds of a clock that never goes back."""
        ...


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Carry out a coroutine over a transport that blocks."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    coroutine.close()
    raise AssertionError("a blocking transport doesn't suspend")


def keep_alive(sock: Any) -> None:
    """Have the kernel find out that the other machine has gone; `sock` may be trio's."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        # not on every system
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
