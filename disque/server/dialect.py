"""Dialect: what one protocol of clients brings to the connections, which know none.

RESP and STOMP are two of them; `clients.Clients` reads, runs and writes for both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import attrs

if TYPE_CHECKING:
    import socket

    from disque.errors import ProtocolError
    from disque.server.connection import Client, Input


class Dialect(Protocol):
    """One protocol; a request is what its decoder makes of bytes."""

    name: str
    tells_end: bool  # who has become a stranger, by a new password, is told so and ended by it

    def decoder(self) -> Input:
        """For the bytes of one new connection."""
        ...

    def limit(self, client: Client) -> None:
        """The configuration's limits are other ones now."""
        ...

    def refusal(self, code: str, text: str) -> bytes:
        """What a connection is told that isn't served."""
        ...

    def begin(self, client: Client) -> None:
        """A connection is there."""
        ...

    def execute(self, client: Client, request: Any) -> None:
        """Carry a request out: it leaves an answer, or what will lead to one."""
        ...

    def overtakes(self, request: Any) -> bool:
        """True if this request may run while those before it wait."""
        ...

    def broken(self, client: Client, error: ProtocolError) -> None:
        """The bytes make no sense any more: say so and close."""
        ...

    def resume(self, client: Client) -> None:
        """Carry out what replies of the broker have led to."""
        ...

    def part(self, client: Client) -> None:
        """The connection ends: take back what waits, and give back what it has."""
        ...


@attrs.frozen
class Door:
    """A listener and who is behind it."""

    listener: socket.socket  # non-blocking
    dialect: Dialect | None = None  # None: RESP's
    is_tls: bool = False
