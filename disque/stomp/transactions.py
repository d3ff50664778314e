"""Transactions: what was said between BEGIN and COMMIT, kept within limits.

It is forgotten at ABORT, and with the connection.
"""

from __future__ import annotations

import attrs

from disque.core.commands import AddJob, Publish
from disque.core.jobid import JobId
from disque.errors import CommandError
from disque.stomp.frames import Frame, shown

TRANSACTIONS_MAX = 16  # open ones of a connection
FRAMES_MAX = 1_000  # of one transaction
BYTES_MAX = 16 << 20  # bodies and headers in all transactions of a connection


@attrs.define
class Transaction:
    """What COMMIT will do: the sends, then what is acknowledged and what is given back."""

    sends: list[AddJob | Publish] = attrs.Factory(list)
    acks: dict[JobId, None] = attrs.Factory(dict)
    nacks: dict[JobId, None] = attrs.Factory(dict)
    frames: int = 0
    size: int = 0  # bytes


class Transactions:
    """The open ones of a connection, by name. All methods raise CommandError for what the client got wrong."""

    def __init__(self) -> None:
        self._open: dict[bytes, Transaction] = {}

    @property
    def size(self) -> int:
        """Bytes of all that are open."""
        return sum([each.size for each in self._open.values()])

    def begin(self, name: bytes) -> None:
        """BEGIN."""
        if name in self._open:
            raise CommandError(f"transaction {shown(name)} has begun already")
        if len(self._open) >= TRANSACTIONS_MAX:
            raise CommandError(f"too many open transactions, the limit is {TRANSACTIONS_MAX}")
        self._open[name] = Transaction()

    def take(self, name: bytes) -> Transaction:
        """COMMIT or ABORT: it is open no longer."""
        if name not in self._open:
            raise CommandError(f"there is no transaction {shown(name)}")
        return self._open.pop(name)

    def add_send(self, frame: Frame, command: AddJob | Publish) -> None:
        """A SEND of a transaction."""
        self._grown(frame).sends.append(command)

    def add_ack(self, frame: Frame, ids: list[JobId], *, is_nack: bool) -> None:
        """An ACK or NACK of a transaction; the last word about a job counts."""
        transaction = self._grown(frame)
        for id_ in ids:
            transaction.acks.pop(id_, None)
            transaction.nacks.pop(id_, None)
            (transaction.nacks if is_nack else transaction.acks)[id_] = None

    def clear(self) -> None:
        """The connection has ended."""
        self._open.clear()

    def _grown(self, frame: Frame) -> Transaction:
        """The frame's transaction, charged with it."""
        name = frame.headers[b"transaction"]
        transaction = self._open.get(name)
        if transaction is None:
            raise CommandError(f"there is no transaction {shown(name)}")
        size = len(frame.body) + sum([len(k) + len(v) for k, v in frame.headers.items()])
        if transaction.frames >= FRAMES_MAX:
            raise CommandError(f"a transaction takes at most {FRAMES_MAX} frames")
        if self.size + size > BYTES_MAX:
            raise CommandError(f"open transactions take at most {BYTES_MAX} bytes")
        transaction.frames += 1
        transaction.size += size
        return transaction
