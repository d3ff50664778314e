"""Worker: takes jobs of some queues and runs a handler for each, so many at a time.

    worker = Worker("disque://localhost:7711")

    @worker.job("mail", timeout=60)
    def send(job):
        deliver(job.body)

    worker.run()

A job whose handler returns is acknowledged. If the handler raises, or takes longer than its time-out, the job is given
back with a delay that grows with each attempt (`Backoff`). While a handler runs, WORKING keeps the job from being
offered to others. No job is taken before there is a place to run it. SIGTERM and SIGINT stop the taking; handlers have
`grace` seconds to end, then their jobs are given back; a second signal gives them back at once.

Async functions run as tasks of trio, others in threads, or in processes if told so (`running`). Handlers must bear
that a job is run twice: a worker can die between the end of a handler and the acknowledgement.

Each job is one line of the logger `disque.worker`: `job id=... queue=... outcome=acked attempt=1 took=0.012`; a failure
is a warning and has `error=`, and `at=file:line` of the raise; the traceback follows at DEBUG. The facts are also the
record's attribute `disque`. Outcomes: acked; failed and timeout, given back with `delay`; dead, moved to the dead
letter queue; returned, given back unfinished when the worker ends; unsettled, what was to be said reached no node, and
the job comes back after its RETRY.

A node that can't be reached is one warning of the logger `disque.client`, until it answers again.
"""

from __future__ import annotations

import importlib
import inspect
import json
import logging
import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import attrs
import trio

from disque.client.asynchronous import AsyncClient
from disque.client.backoff import Backoff
from disque.client.errors import (
    AuthenticationError,
    JobDoneError,
    NotPermittedError,
    TooLateError,
)
from disque.client.results import Job
from disque.client.running import ProcessRunner, Runner, TaskRunner, ThreadRunner, place_of
from disque.client.url import Endpoint
from disque.errors import DisqueError

F = TypeVar("F", bound=Callable[[Job], Any])

# RETRY is at least a second: the first WORKING comes well within it, and its reply tells how long it is.
FIRST_BEAT_S: Final = 0.3
BEATS_A_LEASE: Final = 3
DOUBT_MOST_S: Final = 10.0
# After no node could be asked.
AGAIN_S: Final = 1.0
DEAD_LETTER_TTL_S: Final = 30 * 86_400
ERROR_CHARS_MAX: Final = 1_000
# What may still be said about a job when the worker should have ended.
SETTLE_S: Final = 15.0
# Of the environment: the URL of a Worker that is given none.
URL_NAME: Final = "DISQUE_URL"

# Time doesn't mend these.
_HOPELESS: Final = (AuthenticationError, NotPermittedError)

_log = logging.getLogger("disque.worker")


class JobTimeoutError(Exception):
    """A handler took longer than its time-out."""


class TooManyDeliveriesError(Exception):
    """A job was handed out more often than the worker allows, and never came to an end."""


@attrs.frozen
class Handler:
    """A function for the jobs of some queues."""

    function: Callable[[Job], Any]
    timeout: float | None
    in_process: bool

    def runner(self) -> Runner:
        """How it runs. ValueError if it can't run in processes as it should."""
        if self.in_process:
            return ProcessRunner(self.function)
        if is_async(self.function):
            return TaskRunner(self.function)
        return ThreadRunner(self.function)


def is_async(function: Callable[[Job], Any]) -> bool:
    """True for an async function, or an object that is called like one."""
    call = getattr(function, "__call__", None)  # noqa: B004 - its kind matters
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


@attrs.define(eq=False)
class _Task:
    """A job that was taken; `error` None: it is done. `delay` is that of its NACK."""

    job: Job
    handler: Handler
    runner: Runner
    started_at: float
    outcome: str = "returned"
    error: BaseException | None = None
    delay: float = 0.0


class Worker:
    """Handlers and how they are run; see the module. Times are seconds."""

    def __init__(
        self,
        url: str | Endpoint | None = None,
        *,
        concurrency: int = 8,
        grace: float = 30.0,
        backoff: Backoff = Backoff(),  # noqa: B008 - a value
        max_deliveries: int | None = None,
        dead_letter: str = "dead-letters",
        **options: Any,
    ) -> None:
        """`concurrency` handlers at a time, over all queues. `options` are those of `url.Options`.

        Without a URL it is that of the environment, DISQUE_URL, when the worker begins; or the one that
        `disque worker` is told.

        A job that was handed out `max_deliveries` times and failed is added to the queue `dead_letter` and
        acknowledged. Where producers set the limit (`add_job(max_deliveries=...)`), the broker does that better: the
        job keeps its id, and no copy can be made twice.
        """
        _check_above_0("concurrency", concurrency)
        if max_deliveries is not None:
            _check_above_0("max_deliveries", max_deliveries)
        if not (_is_number(grace) and grace >= 0):
            raise ValueError(f"grace must be seconds, 0 or more, got {grace!r}")
        if not isinstance(backoff, Backoff):
            raise TypeError(f"backoff is a Backoff, got {backoff!r}")
        self.concurrency = concurrency
        self.grace = grace
        self.backoff = backoff
        self.max_deliveries = max_deliveries
        self.dead_letter = dead_letter
        self._options = options
        self._client: AsyncClient | None = None
        if url is not None:
            self.connect(url)
        self._handlers: dict[str, Handler] = {}
        self._dice = random.Random()
        self._fetching = trio.CancelScope()
        self._handling = trio.CancelScope()
        self._is_stopping = False

    @property
    def has_url(self) -> bool:
        """True if it is said whose jobs these are."""
        return self._client is not None

    def connect(self, url: str | Endpoint) -> None:
        """Say whose jobs these are, before the worker begins. ValueError for a bad URL."""
        self._client = AsyncClient(url, **self._options)
        self._client.session.loss_level = logging.WARNING

    @property
    def client(self) -> AsyncClient:
        """The worker's own. ValueError if there is no URL."""
        if self._client is None:
            url = os.environ.get(URL_NAME)
            if not url:
                raise ValueError(f"a worker needs a URL: Worker(url), or ${URL_NAME}")
            self.connect(url)
        assert self._client is not None, "it is connected"
        return self._client

    def job(
        self, *queues: str, timeout: float | None = None, in_process: bool = False
    ) -> Callable[[F], F]:
        """Decorator: a function of one Job handles these queues' jobs; the leftmost queue is served first."""
        if not queues:
            raise ValueError("job needs a queue")
        for queue in queues:
            if not isinstance(queue, str):
                raise TypeError(f"a queue's name is str, got {queue!r}: say @worker.job(queue)")
            if not queue:
                raise ValueError(f"a queue's name can't be empty, got {queue!r}")
        if timeout is not None:
            _check_above_0("timeout", timeout)

        def register(function: F) -> F:
            _check_handler(function)
            if in_process and is_async(function):
                raise ValueError("an async function can't run in processes")
            for queue in queues:
                if queue in self._handlers:
                    raise ValueError(f"the queue {queue!r} has a handler")
                if self.max_deliveries is not None and queue == self.dead_letter:
                    raise ValueError(f"the queue {queue!r} is for this worker's own dead letters")
                self._handlers[queue] = Handler(function, timeout, in_process)
            return function

        return register

    def run(self) -> None:
        """Work until SIGTERM or SIGINT; for the main thread of a program.

        A node that doesn't let the worker in, or not to its queues, ends the program: SystemExit, with a line that
        says so. ValueError as `serve` has it.
        """
        try:
            trio.run(self._run)
        except _HOPELESS as error:
            raise SystemExit(f"worker ends: {error}") from None

    async def _run(self) -> None:
        failure: Exception | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._obey_signals)
            try:
                await self.serve()
            except (*_HOPELESS, ValueError) as error:
                failure = error
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _obey_signals(self) -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for _ in signals:
                if self._is_stopping:
                    self._handling.cancel()
                self.stop()

    def stop(self) -> None:
        """Take no more jobs; `serve` returns when those at hand have ended, after `grace` seconds at most."""
        if not self._is_stopping:
            self._is_stopping = True
            _log.info("worker stopping grace=%g", self.grace)
            self._handling.deadline = trio.current_time() + self.grace
            self._fetching.cancel()

    async def serve(self) -> None:
        """Work until `stop`; for programs on trio. A worker serves once.

        Nodes that can't be reached are tried for ever. Raises AuthenticationError or NotPermittedError, or ValueError
        for a handler that can't run as it should.
        """
        if not self._handlers:
            raise ValueError("a worker needs a handler: @worker.job(queue)")
        client = self.client
        runners = {handler: handler.runner() for handler in self._handlers.values()}
        queues = ",".join(self._handlers)
        _log.info("worker started queues=%s concurrency=%d", queues, self.concurrency)
        failure: DisqueError | None = None
        try:
            with self._handling:
                async with trio.open_nursery() as nursery:
                    with self._fetching:
                        try:
                            await self._fetch(nursery, runners)
                        except _HOPELESS as error:
                            failure = error
        finally:
            for runner in runners.values():
                runner.close()
            client.close()
        if failure is not None:
            raise failure
        _log.info("worker stopped")

    async def _fetch(self, nursery: trio.Nursery, runners: dict[Handler, Runner]) -> None:
        places = trio.Semaphore(self.concurrency)
        queues = tuple(self._handlers)
        trouble: type[DisqueError] | None = None
        while True:
            await places.acquire()
            jobs: list[Job] = []
            try:
                jobs = await self.client.get_jobs(*queues, count=1 + places.value)
                trouble = None
            except _HOPELESS:
                raise
            except DisqueError as error:
                # told once: what is tried again and again fails again and again
                if type(error) is not trouble:
                    _log.warning("worker can't take jobs error=%s", _spell(str(error)))
                trouble = type(error)
                await trio.sleep(AGAIN_S)
            if not jobs:
                places.release()
            for index, job in enumerate(jobs):
                if index:
                    places.acquire_nowait()
                handler = self._handlers[job.queue]
                task = _Task(job, handler, runners[handler], trio.current_time())
                nursery.start_soon(self._handle, task, places.release)

    # One job

    async def _handle(self, task: _Task, release: Callable[[], None]) -> None:
        """From the hand-out to its end, whatever happens on the way."""
        try:
            await self._attempt(task, release)
        finally:
            with trio.move_on_after(SETTLE_S, shield=True) as scope:
                await self._settle(task)
            if scope.cancelled_caught:
                task.outcome = "unsettled"
            self._tell(task)

    async def _attempt(self, task: _Task, release: Callable[[], None]) -> None:
        """Run the handler; the outcome stands in `task`, and stays `returned` if this is cancelled."""
        job, timeout = task.job, task.handler.timeout
        if self.max_deliveries is not None and job.attempt > self.max_deliveries:
            task.outcome = "failed"
            task.error = TooManyDeliveriesError(f"handed out {job.attempt} times")
            release()
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._beat, job)
            with trio.move_on_after(float("inf") if timeout is None else timeout) as scope:
                try:
                    await task.runner.run(job, release)
                    task.outcome = "acked"
                # a handler may raise anything, also beside a cancellation
                except* (Exception, SystemExit) as group:  # noqa: BLE001
                    task.outcome, task.error = "failed", group
                    if len(group.exceptions) == 1:
                        task.error = group.exceptions[0]
            if scope.cancelled_caught:
                task.outcome = "timeout"
                task.error = JobTimeoutError(f"took longer than {timeout:g} s")
            nursery.cancel_scope.cancel()

    async def _beat(self, job: Job) -> None:
        """Renew the job's lease while its handler runs."""
        pause = FIRST_BEAT_S
        while True:
            await trio.sleep(pause)
            try:
                retry = await self.client.working(job)
            except (JobDoneError, TooLateError) as error:
                _log.warning("job id=%s lease ends error=%s", job.id, _spell(str(error)))
                return
            except DisqueError as error:
                _log.warning("job id=%s lease in doubt error=%s", job.id, _spell(str(error)))
                pause = min(2 * pause, DOUBT_MOST_S)
                continue
            if not retry:
                # at most once: nobody else will get it
                return
            pause = max(FIRST_BEAT_S, retry / BEATS_A_LEASE)

    async def _settle(self, task: _Task) -> None:
        """Tell the broker how it ended; what can't be said is left to the job's RETRY."""
        job = task.job
        try:
            if task.outcome == "acked":
                await self.client.ack_job(job)
            elif task.outcome == "returned":
                await self.client.nack_job(job)
            elif self.max_deliveries is not None and job.attempt >= self.max_deliveries:
                await self._bury(task)
                task.outcome = "dead"
            else:
                task.delay = self.backoff.delay(job.attempt, self._dice)
                await self.client.nack_job(job, delay=task.delay)
        except DisqueError as error:
            _log.warning("job id=%s unsettled error=%s", job.id, _spell(str(error)))
            task.outcome = "unsettled"

    async def _bury(self, task: _Task) -> None:
        """A dead letter with the same body, and headers that tell its story; only then the job is done."""
        job = task.job
        story = {"id": job.id, "queue": job.queue, "error": repr(task.error)[:ERROR_CHARS_MAX]}
        await self.client.add_job(
            self.dead_letter, job.body, ttl=DEAD_LETTER_TTL_S, headers=story, may_repeat=True
        )
        await self.client.ack_job(job)

    def _tell(self, task: _Task) -> None:
        """The job's line."""
        job, error = task.job, task.error
        facts: dict[str, Any] = {
            "id": job.id,
            "queue": job.queue,
            "outcome": task.outcome,
            "attempt": job.attempt,
            "took": round(trio.current_time() - task.started_at, 3),
        }
        if task.delay:
            facts["delay"] = round(task.delay, 3)
        if error is not None:
            facts["error"] = f"{type(error).__name__}: {error}"
            if place := place_of(error):
                facts["at"] = place
        line = " ".join([f"{name}={_spell(value)}" for name, value in facts.items()])
        is_well = task.outcome in ("acked", "returned")
        level = logging.INFO if is_well else logging.WARNING
        _log.log(level, "job %s", line, extra={"disque": facts})
        if error is not None:
            _log.debug("job id=%s traceback", job.id, exc_info=error)


def _is_number(given: object) -> bool:
    return isinstance(given, int | float)


def _check_above_0(name: str, given: float) -> None:
    if not (_is_number(given) and given > 0):
        raise ValueError(f"{name} must be above 0, got {given!r}")


def _check_handler(function: Callable[[Job], Any]) -> None:
    """ValueError for what would fail, or do nothing, with each job."""
    if not callable(function):
        raise ValueError(f"a handler is a function of one job, got {function!r}")
    name = getattr(function, "__qualname__", repr(function))
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ValueError(f"{name} has a yield, so a call of it does nothing: a handler returns")
    try:
        signature = inspect.signature(function)
    except ValueError:
        # of a function in C it isn't always known
        return
    try:
        signature.bind(object())
    except TypeError:
        shown = f"{name}{signature.replace(return_annotation=inspect.Signature.empty)}"
        raise ValueError(
            f"a handler is called with one job, {shown} can't be: what it needs stands in job.body"
        ) from None


def _spell(value: object) -> str:
    """A value in a line: quoted if it has blanks, quotes or control characters."""
    text = str(value)
    is_plain = text.isprintable() and not any([char in text for char in " =\"'"])
    return text if text and is_plain else json.dumps(text, ensure_ascii=False)


# For the command line


def load(target: str) -> Any:
    """What `module:name` names, a Worker or a function; modules of the working directory count. ValueError if none."""
    module_name, colon, name = target.partition(":")
    if not colon or not module_name or not name:
        raise ValueError(f"module:name is wanted, got {target!r}")
    if not all(part.isidentifier() for part in module_name.split(".")):
        raise ValueError(
            f"a module is named as import does it, package.module, got {module_name!r}"
        )
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        found = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and not f"{module_name}.".startswith(f"{error.name}."):
            raise
        hint = ": leave .py out" if module_name.endswith(".py") else f" here, in {folder}"
        raise ValueError(f"no module {module_name!r}{hint}") from None
    for part in name.split("."):
        if not hasattr(found, part):
            raise ValueError(f"no {name!r} in the module {module_name!r}")
        found = getattr(found, part)
    if not isinstance(found, Worker) and not callable(found):
        raise ValueError(f"{target} is neither a Worker nor a function")
    return found


def worker_for(
    target: str,
    url: str | Endpoint,
    *queues: str,
    timeout: float | None = None,
    in_process: bool = False,
    **settings: Any,
) -> Worker:
    """The worker that `disque worker module:name` runs: a Worker as it is, or one for a function and these queues.

    `url` is for a function, and for a Worker without one. `settings` are those of `Worker`. ValueError if the target
    can't be found, or what is given doesn't go together.
    """
    found = load(target)
    if isinstance(found, Worker):
        if queues or timeout is not None or in_process or settings:
            raise ValueError(
                f"{target} is a Worker with settings of its own: leave the options out"
            )
        if not found.has_url:
            found.connect(url)
        return found
    if not queues:
        raise ValueError(f"{target} is a function: say whose jobs it handles with --queue")
    worker = Worker(url, **settings)
    worker.job(*queues, timeout=timeout, in_process=in_process)(found)
    return worker
