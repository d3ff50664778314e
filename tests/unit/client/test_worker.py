"""Worker: what can be said without a node: registering handlers, finding them, and places that are kept or freed."""

from __future__ import annotations

import pathlib
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from disque.client.results import Job
from disque.client.running import (
    HandlerError,
    ProcessRunner,
    TaskRunner,
    ThreadRunner,
    place_of,
)
from disque.client.worker import Worker, is_async, load, worker_for
from tests.system import handlers

URL = "disque://127.0.0.1:1"
JOB = Job("id", "q", b"x")


def handler(job: Job) -> None:
    """Does nothing."""


async def async_handler(job: Job) -> None:
    """Does nothing."""


def _of_two(to: str, subject: str) -> None:
    """Has the arguments of a Celery task."""


def _of_none() -> None:
    """Wants no job."""


def _yielding(job: Job) -> Iterator[Job]:
    yield job


async def _yielding_later(job: Job) -> AsyncIterator[Job]:
    yield job


BAD: list[tuple[Callable[[], object], str]] = [
    (lambda: Worker(URL, concurrency=0), "concurrency must be above 0, got 0"),
    (lambda: Worker(URL, max_deliveries=0), "max_deliveries must be above 0, got 0"),
    (lambda: Worker("redis://x"), "disque://host:port"),
    (lambda: Worker(URL).job(), "job needs a queue"),
    (lambda: Worker(URL).job("q", timeout=0), "timeout must be above 0, got 0"),
    (lambda: Worker(URL).job("q", "q")(handler), "the queue 'q' has a handler"),
    (
        lambda: Worker(URL, max_deliveries=3).job("dead-letters")(handler),
        "'dead-letters' is for this worker's own dead letters",
    ),
    (lambda: Worker(URL).job("q", in_process=True)(async_handler), "can't run in processes"),
    (lambda: Worker(URL, concurrency="4"), "concurrency must be above 0, got '4'"),  # type: ignore[arg-type]
    (lambda: Worker(URL, grace=-1), "grace must be seconds, 0 or more, got -1"),
    (lambda: Worker(URL).job("q", timeout="5"), "timeout must be above 0, got '5'"),  # type: ignore[arg-type]
    (lambda: Worker(URL).job(""), "a queue's name can't be empty"),
    (lambda: Worker(URL).job("q")(7), "a handler is a function of one job, got 7"),  # type: ignore[type-var]
    (
        lambda: Worker(URL).job("q")(_of_two),
        "called with one job, _of_two(to: 'str', subject: 'str') can't",
    ),  # type: ignore[type-var]
    (lambda: Worker(URL).job("q")(_of_none), "called with one job, _of_none() "),  # type: ignore[type-var]
    (lambda: Worker(URL).job("q")(_yielding), "_yielding has a yield"),
    (lambda: Worker(URL).job("q")(_yielding_later), "_yielding_later has a yield"),
    (lambda: Worker(URL).run(), "a worker needs a handler"),
    (lambda: ProcessRunner(lambda job: None), "<lambda> can't run in a process"),
]


@pytest.mark.parametrize(("act", "complaint"), BAD)
def test_what_cannot_work_is_refused_at_once(act: Callable[[], object], complaint: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        act()
    assert complaint in str(caught.value)


@pytest.mark.parametrize("queue", [handler, b"q"])
def test_a_queue_s_name_is_text_and_no_function_that_was_decorated_without_one(queue: Any) -> None:
    with pytest.raises(TypeError, match=r"say @worker.job\(queue\)"):
        Worker(URL).job(queue)


def test_a_back_off_that_is_none_is_refused_before_the_first_failure() -> None:
    with pytest.raises(TypeError, match="backoff is a Backoff, got 3"):
        Worker(URL, backoff=3)  # type: ignore[arg-type]


class AsyncObject:
    """Is called like an async function."""

    async def __call__(self, job: Job) -> None:
        """Does nothing."""


def test_what_is_called_like_an_async_function_is_one() -> None:
    kinds = [is_async(each) for each in (async_handler, AsyncObject(), partial(async_handler))]
    assert kinds == [True, True, True]
    assert not any(is_async(each) for each in (handler, print, lambda job: async_handler(job)))


async def test_a_coroutine_that_nobody_awaits_is_a_failure_not_a_success() -> None:
    with pytest.raises(TypeError, match="declare it with async def"):
        await ThreadRunner(lambda job: async_handler(job)).run(JOB, lambda: None)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module in the working directory that isn't on the path."""
    (tmp_path / "handlers_of_this_test.py").write_text(
        "from disque.client.worker import Worker\n"
        f"worker = Worker({URL!r})\n"
        "free = Worker(concurrency=2)\n"
        "class Group:\n    @staticmethod\n    def run(job): ...\n"
        "number = 1\n"
    )
    (tmp_path / "broken_of_this_test.py").write_text("import nosuchmodule\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return "handlers_of_this_test"


def test_a_target_is_a_worker_or_a_function_of_a_module_in_the_working_directory(
    module: str,
) -> None:
    worker = worker_for(f"{module}:worker", URL)
    assert worker is load(f"{module}:worker")
    assert isinstance(worker_for(f"{module}:Group.run", URL, "q", concurrency=3), Worker)


@pytest.mark.parametrize(
    ("target", "complaint"),
    [
        ("nosuchmodule:run", "no module 'nosuchmodule'"),
        ("nosuchmodule.py:run", "no module 'nosuchmodule.py': leave .py out"),
        ("./{}:run", "a module is named as import does it, package.module, got './"),
        ("{}", "module:name is wanted"),
        ("{}:", "module:name is wanted"),
        ("{}:nothing", "no 'nothing' in the module"),
        ("{}:number", "is neither a Worker nor a function"),
        ("{}:Group.run", "say whose jobs it handles with --queue"),
    ],
)
def test_a_target_that_is_none_is_named(module: str, target: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        worker_for(target.format(module), URL)
    assert complaint in str(caught.value)


def test_a_worker_with_settings_of_its_own_takes_no_others(module: str) -> None:
    with pytest.raises(ValueError, match="leave the options out"):
        worker_for(f"{module}:worker", URL, "q")


def test_a_worker_without_a_url_takes_the_one_it_is_told_or_that_of_the_environment(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DISQUE_URL", raising=False)
    told = worker_for(f"{module}:free", "disque://a:1")
    assert [str(each) for each in told.client.session.addresses] == ["a:1"]
    worker = Worker()
    worker.job("q")(handler)
    with pytest.raises(ValueError, match="a worker needs a URL"):
        worker.run()
    monkeypatch.setenv("DISQUE_URL", "disque://b:2")
    assert [str(each) for each in worker.client.session.addresses] == ["b:2"]


def test_a_module_that_cannot_import_something_says_what(module: str) -> None:
    with pytest.raises(ModuleNotFoundError, match="No module named 'nosuchmodule'"):
        load("broken_of_this_test:run")


async def test_a_task_frees_its_place_when_it_ends_or_is_cancelled() -> None:
    freed: list[None] = []

    async def forever(job: Job) -> None:
        await trio.sleep_forever()

    await TaskRunner(async_handler).run(JOB, lambda: freed.append(None))
    assert len(freed) == 1
    with trio.move_on_after(0.01):
        await TaskRunner(forever).run(JOB, lambda: freed.append(None))
    assert len(freed) == 2


async def test_a_thread_that_is_left_alone_frees_its_place_when_it_really_ends() -> None:
    go_on, freed = threading.Event(), trio.Event()
    runner = ThreadRunner(lambda job: go_on.wait(10))
    with trio.move_on_after(0.05) as scope:
        await runner.run(JOB, freed.set)
    assert scope.cancelled_caught
    assert not freed.is_set()
    go_on.set()
    with trio.fail_after(10):
        await freed.wait()


async def test_a_thread_that_was_never_started_frees_its_place() -> None:
    freed: list[None] = []
    with trio.CancelScope() as scope:
        scope.cancel()
        await ThreadRunner(handler).run(JOB, lambda: freed.append(None))
    assert len(freed) == 1


async def test_a_thread_frees_its_place_once_and_its_error_comes_out() -> None:
    freed: list[None] = []

    def fail(job: Job) -> None:
        raise LookupError("nothing")

    with pytest.raises(LookupError, match="nothing"):
        await ThreadRunner(fail).run(JOB, lambda: freed.append(None))
    await trio.testing.wait_all_tasks_blocked()
    assert len(freed) == 1


async def test_a_process_tells_what_was_raised_and_where(tmp_path: Path) -> None:
    runner = ProcessRunner(handlers.note)
    job = Job("id", "q", str(tmp_path / "nosuch" / "file").encode())
    try:
        with pytest.raises(HandlerError, match=r"^FileNotFoundError: ") as caught:
            await runner.run(job, lambda: None)
    finally:
        runner.close()
    assert place_of(caught.value).startswith(f"{pathlib.__file__}:")
