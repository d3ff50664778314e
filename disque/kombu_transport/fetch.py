"""Fetch: one GETJOB at a time, asked and answered without waiting, on a connection of its own.

A consumer asks for as many jobs as it has room for, and no more: the rest stays with the broker. When it stops, or
listens to other queues, the jobs that are on their way at that moment still come (`stop`): none is left to its RETRY.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from disque.client import ReplyError
from disque.client.commands import get_jobs

if TYPE_CHECKING:
    from disque.client import Client, DedicatedConnection, Job

# How long a node may take to say what was on its way.
STOP_S: Final = 1.0


class Fetch:
    """The GETJOB of one consumer. One thread at a time."""

    def __init__(self, client: Client, is_moving: Callable[[int], Any]) -> None:
        """`is_moving` is called with the file descriptor before it may change."""
        self._client = client
        self._is_moving = is_moving
        self._line: DedicatedConnection | None = None
        # Known here, for a connection that was lost doesn't know it any more.
        self._fd = -1
        self._queues: frozenset[str] = frozenset()
        self._count = 0
        self._late_at = 0.0
        self._refusals = 0

    @property
    def is_asking(self) -> bool:
        """True while a GETJOB waits for its answer."""
        return self._count > 0

    def ask(self, queues: Sequence[str], count: int, timeout: float) -> list[Job]:
        """See that there is a GETJOB of at most `count` jobs of these queues; one that waits already goes on.

        Returns jobs that were on their way if it had to be stopped. UnreachableError if no node can be asked.
        """
        if self.is_asking and time.monotonic() > self._late_at:
            self._lose()
        found: list[Job] = []
        if self.is_asking and (self._queues != frozenset(queues) or count < self._count):
            found = self.stop()
            count -= len(found)
        if self.is_asking or not queues or count < 1:
            return found
        session = self._client.session
        if self._line is not None and self._line.address != session.next_address("consume"):
            # The jobs are made elsewhere, or nothing comes here.
            self.close()
        if self._line is None:
            self._line = self._client.dedicated()
            self._fd = self._line.fileno()
        try:
            self._line.send(get_jobs(*queues, timeout=timeout, count=count))
        except ConnectionError:
            self._lose()
            return found
        self._queues, self._count = frozenset(queues), count
        self._late_at = time.monotonic() + timeout + session.options.reply_timeout
        return found

    def fileno(self) -> int:
        """Where the answer comes, -1 while there is no connection."""
        return self._fd

    def take(self) -> list[Job]:
        """The jobs that have come; none if the node is lost: the next `ask` goes to another one.

        Raises the ReplyError with which all nodes refuse.
        """
        if self._line is None:
            return []
        if not self.is_asking:
            # nothing was asked: what can be read is the end
            self._lose()
            return []
        try:
            jobs: list[Job] = self._line.receive(timeout=0)
        except TimeoutError:
            return []
        except ConnectionError:
            self._lose()
            return []
        except ReplyError:
            # it leaves, or loads: another node
            self._refusals += 1
            self._lose()
            if self._refusals <= len(self._client.session.addresses):
                return []
            self._refusals = 0
            raise
        self._count = self._refusals = 0
        self._client.session.note(jobs)
        return jobs

    def stop(self) -> list[Job]:
        """End the GETJOB; returns the jobs that were on their way."""
        found: list[Job] = []
        if self._line is not None and self.is_asking:
            self._is_moving(self._fd)
            answers = self._line.finish(STOP_S)
            found = [job for jobs in answers if not isinstance(jobs, ReplyError) for job in jobs]
        self.close()
        return found

    def close(self) -> None:
        """Let go of the connection, whatever may come on it."""
        if self._line is not None:
            self._is_moving(self._fd)
            self._line.close()
            self._line, self._fd = None, -1
        self._count = 0

    def _lose(self) -> None:
        if self._line is not None:
            self._client.session.lost(self._line.address)
        self.close()
