"""Running: one job in its handler: as a task of trio, in a thread, or in a process that can be killed.

A runner calls `release` once, when the handler has really ended: a thread whose job has timed out can't be stopped, and
keeps its place until it returns. Processes run one job at a time and stay for the next one; one that times out, or that
is interrupted, is killed. They are spawned, so a handler for processes must be importable by its module and name.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import multiprocessing
import pickle
import signal
import traceback
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

import trio

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from disque.client.results import Job

Release = Callable[[], None]


class Runner(Protocol):
    """How a handler runs."""

    async def run(self, job: Job, release: Release) -> None:
        """Carry the handler out; raises what it raises. May be cancelled."""
        ...

    def close(self) -> None:
        """No more jobs come, none is running."""
        ...


class HandlerError(Exception):
    """What a handler in another process raised, or how that process ended: str() is its traceback's last line.

    `at` is where it was raised, `file:line`; empty if unknown.
    """

    def __init__(self, text: str, at: str = "") -> None:
        super().__init__(text)
        self.at = at


def place_of(error: BaseException) -> str:
    """Where an exception was raised, `file:line`; empty if it has not been."""
    if isinstance(error, HandlerError):
        return error.at
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def check_result(result: object) -> None:
    """TypeError if a function that was taken for a plain one has only begun its work."""
    if inspect.iscoroutine(result):
        result.close()
        raise TypeError("the handler gave a coroutine: declare it with async def")


class TaskRunner:
    """An async function, as a task of trio."""

    def __init__(self, function: Callable[[Job], Awaitable[object]]) -> None:
        self._function = function

    async def run(self, job: Job, release: Release) -> None:
        """Await it."""
        try:
            await self._function(job)
        finally:
            release()

    def close(self) -> None:
        """Nothing is left."""


class ThreadRunner:
    """A function that blocks, in a thread."""

    def __init__(self, function: Callable[[Job], object]) -> None:
        self._function = function
        # the worker's places are the limit
        self._limiter = trio.CapacityLimiter(math.inf)

    async def run(self, job: Job, release: Release) -> None:
        """Wait for the thread; if cancelled, leave it alone."""
        try:
            await trio.lowlevel.checkpoint_if_cancelled()
        except trio.Cancelled:
            # no thread is started any more
            release()
            raise
        token = trio.lowlevel.current_trio_token()

        def work() -> None:
            try:
                check_result(self._function(job))
            finally:
                # the worker may have ended without us
                with contextlib.suppress(trio.RunFinishedError):
                    token.run_sync_soon(release)

        await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._limiter)

    def close(self) -> None:
        """Threads that were left alone end with the program."""


class ProcessRunner:
    """A function that blocks, or computes, in processes."""

    def __init__(self, function: Callable[[Job], object]) -> None:
        """ValueError if other processes can't import the function."""
        try:
            pickle.dumps(function)
        except (pickle.PicklingError, AttributeError) as error:
            name = getattr(function, "__qualname__", repr(function))
            raise ValueError(f"{name} can't run in a process: {error}") from None
        self._function = function
        self._limiter = trio.CapacityLimiter(math.inf)
        self._idle: list[_Child] = []

    async def run(self, job: Job, release: Release) -> None:
        """Wait for the process; if cancelled, kill it. HandlerError if it failed or died."""
        child = self._idle.pop() if self._idle else None
        try:
            if child is None:
                child = await trio.to_thread.run_sync(_Child, limiter=self._limiter)
            work = functools.partial(child.work, self._function, job)
            failure = await trio.to_thread.run_sync(
                work, abandon_on_cancel=True, limiter=self._limiter
            )
        except BaseException:
            if child is not None:
                child.kill()
            raise
        finally:
            release()
        self._idle.append(child)
        if failure is not None:
            raise HandlerError(*failure)

    def close(self) -> None:
        """End the processes."""
        while self._idle:
            self._idle.pop().kill()


class _Child:
    """A process for one job at a time."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    def work(self, function: Callable[[Job], object], job: Job) -> tuple[str, str] | None:
        """Block until the job is done; None, or what went wrong and where. HandlerError if the process died."""
        try:
            self._pipe.send((function, job))
            return self._pipe.recv()  # type: ignore[no-any-return]
        except (EOFError, OSError):
            self._process.join()
            raise HandlerError(f"the process ended with {self._process.exitcode}") from None

    def kill(self) -> None:
        """End it, whatever it does."""
        self._process.kill()
        self._process.join()


def _work(pipe: Connection) -> None:
    """A child's whole life: jobs come in, what went wrong goes out, until the parent has gone."""
    # signals are the parent's affair
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            function, job = pipe.recv()
            failure = None
            try:
                check_result(function(job))
            except (Exception, SystemExit) as error:  # noqa: BLE001 - a handler may raise anything
                text = traceback.format_exception_only(error)[-1].strip()
                failure = (text, place_of(error))
            pipe.send(failure)
