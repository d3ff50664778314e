"""Leases: keeps jobs from being offered again while blocking code works on them, from a thread of its own.

A job that a program holds longer than its RETRY goes to somebody else. `Leases` says WORKING for each that is held, a
third of its RETRY apart, as long as the process lives; when it dies, its jobs come back after at most RETRY. Jobs done
within FIRST_S cost nothing. After a fork the child holds nothing.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from disque.client.errors import JobDoneError, TooLateError
from disque.errors import DisqueError

if TYPE_CHECKING:
    from disque.client.blocking import Client

# RETRY is at least a second: the first WORKING comes well within it, and tells how long it is.
FIRST_S: Final = 0.4
# After a node didn't do it: it may be another's turn soon.
AGAIN_S: Final = 1.0

_log = logging.getLogger(__name__)


class Leases:
    """The jobs that this process holds. For any number of threads."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._start()

    def _start(self) -> None:
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._due: dict[str, float] = {}
        self._renewing: frozenset[str] = frozenset()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._due

    def hold(self, job_id: str) -> None:
        """From now on this job's lease is renewed."""
        if self._pid != os.getpid():
            self._start()
        with self._changed:
            self._due[job_id] = time.monotonic() + FIRST_S
            if self._thread is None and not self._is_closed:
                self._thread = threading.Thread(target=self._run, name="disque-leases", daemon=True)
                self._thread.start()
            elif len(self._due) == 1:
                self._changed.notify_all()

    def drop(self, job_id: str) -> None:
        """This job is done. No error if it isn't held."""
        self._due.pop(job_id, None)

    def release(self, *job_ids: str) -> None:
        """These jobs are about to be given back. A WORKING on its way would take them again: waits for its answer."""
        with self._changed:
            for job_id in job_ids:
                self._due.pop(job_id, None)
            self._changed.wait_for(lambda: self._renewing.isdisjoint(job_ids))

    def close(self) -> None:
        """Drop all; the thread ends by itself, within the call that it may be in."""
        if self._pid == os.getpid():
            with self._changed:
                self._is_closed = True
                self._due.clear()
                self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._due and not self._is_closed:
                    self._changed.wait()
                self._changed.wait(FIRST_S / 2)
                if self._is_closed:
                    return
                now = time.monotonic()
                due = [job_id for job_id, at in self._due.items() if at <= now]
                self._renewing = frozenset(due)
            if due:
                self._renew(due)

    def _renew(self, job_ids: list[str]) -> None:
        pipe = self._client.pipeline()
        for job_id in job_ids:
            pipe.working(job_id)
        answers: list[Any] = []
        # RuntimeError: the client was closed meanwhile
        with contextlib.suppress(RuntimeError):
            answers = pipe.execute()
        now = time.monotonic()
        with self._changed:
            self._renewing = frozenset()
            self._changed.notify_all()
            for job_id, answer in zip(job_ids, answers, strict=False):
                wait_s = until_next(job_id, answer)
                if wait_s is None:
                    self._due.pop(job_id, None)
                elif job_id in self._due:
                    self._due[job_id] = now + wait_s


def until_next(job_id: str, answer: Any) -> float | None:
    """Seconds until WORKING is said again, by what it was answered; None: never again."""
    if isinstance(answer, DisqueError):
        if isinstance(answer, JobDoneError):
            return None
        _log.warning("lease-not-renewed id=%s error=%s", job_id, answer)
        return None if isinstance(answer, TooLateError) else AGAIN_S
    # RETRY 0: it is never offered again anyway
    return float(answer) / 3 if answer else None
