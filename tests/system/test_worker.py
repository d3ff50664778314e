"""Workers against real nodes: from the hand-out of a job to its end, whatever the handler does."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio

from disque.client import AuthenticationError, Client, Job
from disque.client.backoff import Backoff
from disque.client.worker import Worker
from tests.system import handlers
from tests.system.nodes import ROOT, Cluster, Node, wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

pytestmark = pytest.mark.system

SOON = Backoff(first=0.2, jitter=0.0)
WAIT_S = 15.0


@pytest.fixture
def url(lone: Node) -> str:
    """The shared node, which forgets all jobs first."""
    lone.call("DEBUG", "FLUSHALL")
    return f"disque://127.0.0.1:{lone.port}"


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with Client(url) as made:
        yield made


@pytest.fixture(autouse=True)
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "disque.worker")
    return caplog


def told(log: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """The facts of all jobs so far."""
    return [record.disque for record in log.records if hasattr(record, "disque")]


def outcomes(log: pytest.LogCaptureFixture) -> list[tuple[str, int]]:
    return [(facts["outcome"], facts["attempt"]) for facts in told(log)]


async def until(what: str, probe: Callable[[], object]) -> None:
    """Let the worker go on until this is true."""
    with trio.move_on_after(WAIT_S):
        while not probe():
            await trio.sleep(0.01)
        return
    raise AssertionError(f"not in {WAIT_S} s: {what}")


@asynccontextmanager
async def at_work(worker: Worker) -> AsyncIterator[None]:
    """The worker serves inside, and is stopped at the end."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.serve)
        yield
        worker.stop()


def add(client: Client, body: bytes = b"x", **options: Any) -> str:
    return client.add_job("q", body, replicate=1, **options)


async def test_a_job_whose_handler_returns_is_acknowledged_and_told_in_one_line(
    url: str, client: Client, log: pytest.LogCaptureFixture
) -> None:
    worker, seen = Worker(url), list[Job]()

    @worker.job("q")
    async def task(job: Job) -> None:
        seen.append(job)

    @worker.job("threads", "more threads")
    def thread(job: Job) -> None:
        assert threading.current_thread() is not threading.main_thread()
        seen.append(job)

    ids = [add(client), client.add_job("more threads", b"y", replicate=1)]
    async with at_work(worker):
        await until("both are done", lambda: len(told(log)) == 2)
    assert client.wait_jobs(*ids, timeout=1) == dict.fromkeys(ids, "acked")
    assert {job.id for job in seen} == set(ids)
    line = next(r.getMessage() for r in log.records if ids[0] in r.getMessage())
    took = told(log)[[facts["id"] for facts in told(log)].index(ids[0])]["took"]
    assert line == f"job id={ids[0]} queue=q outcome=acked attempt=1 took={took}"


async def test_a_job_whose_handler_raises_comes_back_after_a_delay_that_grows(
    url: str, client: Client, log: pytest.LogCaptureFixture
) -> None:
    worker, times = Worker(url, backoff=SOON), list[float]()

    @worker.job("q")
    async def fail_twice(job: Job) -> None:
        times.append(time.monotonic())
        if job.attempt < 3:
            raise LookupError("no such thing")

    job_id = add(client)
    async with at_work(worker):
        await until("it is done", lambda: len(told(log)) == 3)
    assert outcomes(log) == [("failed", 1), ("failed", 2), ("acked", 3)]
    assert [facts.get("delay") for facts in told(log)] == [0.2, 0.4, None]
    assert times[1] - times[0] >= 0.19
    assert times[2] - times[1] >= 0.39
    assert {facts["id"] for facts in told(log)} == {job_id}
    assert told(log)[0]["error"] == "LookupError: no such thing"
    assert 'error="LookupError: no such thing"' in log.text


async def test_an_exit_or_a_group_of_errors_is_a_failure_like_any_other(
    url: str, client: Client, log: pytest.LogCaptureFixture
) -> None:
    worker = Worker(url, backoff=SOON)

    @worker.job("q")
    def leave(job: Job) -> None:
        if job.attempt == 1:
            sys.exit("out")
        if job.attempt == 2:
            raise ExceptionGroup("two", [ValueError("a"), KeyError("b")])

    add(client)
    async with at_work(worker):
        await until("it is done", lambda: len(told(log)) == 3)
    assert [facts.get("error") for facts in told(log)] == [
        "SystemExit: out",
        "ExceptionGroup: two (2 sub-exceptions)",
        None,
    ]


async def test_a_task_that_takes_too_long_is_cancelled_and_comes_back(
    url: str, client: Client, log: pytest.LogCaptureFixture
) -> None:
    worker, cleaned = Worker(url, backoff=SOON), list[int]()

    @worker.job("q", timeout=0.1)
    async def hang_once(job: Job) -> None:
        if job.attempt == 1:
            try:
                await trio.sleep_forever()
            finally:
                cleaned.append(job.attempt)

    add(client)
    async with at_work(worker):
        await until("it is done", lambda: len(told(log)) == 2)
    assert outcomes(log) == [("timeout", 1), ("acked", 2)]
    assert told(log)[0]["error"] == "JobTimeoutError: took longer than 0.1 s"
    assert cleaned == [1]


async def test_a_thread_that_takes_too_long_keeps_its_place_but_not_its_job(
    url: str, client: Client, log: pytest.LogCaptureFixture
) -> None:
    worker, go_on = Worker(url, concurrency=1, backoff=SOON), threading.Event()

    @worker.job("q", timeout=0.1)
    def hang_once(job: Job) -> None:
        if job.attempt == 1 and job.body == b"first":
            go_on.wait(WAIT_S)

    first = add(client, b"first")
    async with at_work(worker):
        second = add(client, b"second")
        await until("the first is given back", lambda: outcomes(log) == [("timeout", 1)])
        await until("it is offered again, and nobody takes it", lambda: client.qlen("q") == 2)
        go_on.set()
        await until("all is done", lambda: len(told(log)) == 3)
    assert client.wait_jobs(first, second, timeout=1) == {first: "acked", second: "acked"}


async def test_a_job_that_takes_longer_than_its_retry_is_not_offered_meanwhile(
    url: str, client: Client, log: pytest.LogCaptureFixture
) -> None:
    worker = Worker(url)

    @worker.job("q")
    async def slow(job: Job) -> None:
        await trio.sleep(2.5)

    add(client, retry=1)
    async with at_work(worker):
        await until("it is taken", lambda: client.qlen("q") == 0)
        others = await trio.to_thread.run_sync(lambda: client.get_jobs("q", timeout=2.2))
        assert others == []
        await until("it is done", lambda: told(log) != [])
    assert outcomes(log) == [("acked", 1)]


async def test_a_job_that_fails_too_often_goes_to_the_dead_letters(
    url: str, client: Client, log: pytest.LogCaptureFixture
) -> None:
    worker = Worker(url, backoff=SOON, max_deliveries=2, dead_letter="graves")

    @worker.job("q")
    async def fail(job: Job) -> None:
        raise ValueError

    job_id = add(client, b"poison")
    async with at_work(worker):
        await until("it is dead", lambda: len(told(log)) == 2)
    assert outcomes(log) == [("failed", 1), ("dead", 2)]
    (letter,) = client.get_jobs("graves", timeout=1, count=2)
    assert letter.body == b"poison"
    shown = client.show(letter)
    assert shown is not None
    story = {"id": job_id.encode(), "queue": b"q", "error": b"ValueError()"}
    assert shown.headers == story
    assert client.wait_jobs(job_id, timeout=1) == {job_id: "acked"}


async def test_a_job_that_ends_its_workers_is_not_run_once_more_than_allowed(
    url: str, client: Client, log: pytest.LogCaptureFixture
) -> None:
    worker, ran = Worker(url, max_deliveries=2), list[Job]()

    @worker.job("q")
    async def run(job: Job) -> None:
        ran.append(job)

    add(client, b"deadly")
    for _ in range(2):
        client.enqueue(*client.get_jobs("q", timeout=1))
    async with at_work(worker):
        await until("it is dead", lambda: told(log) != [])
    assert (outcomes(log), ran) == ([("dead", 3)], [])
    assert client.qpeek("dead-letters")[0].body == b"deadly"


async def test_the_brokers_own_limit_buries_the_same_job(
    url: str, client: Client, log: pytest.LogCaptureFixture
) -> None:
    worker = Worker(url, backoff=SOON)

    @worker.job("q")
    async def fail(job: Job) -> None:
        raise ValueError

    job_id = add(client, max_deliveries=1)
    async with at_work(worker):
        await until("it is dead", lambda: client.qlen("dead-letters") == 1)
    assert client.qpeek("dead-letters")[0].id == job_id


async def test_no_job_is_taken_before_there_is_a_place_to_run_it(
    url: str, client: Client, log: pytest.LogCaptureFixture
) -> None:
    worker, running, go_on = Worker(url, concurrency=2), list[Job](), trio.Event()

    @worker.job("q")
    async def wait(job: Job) -> None:
        running.append(job)
        await go_on.wait()

    for _ in range(5):
        add(client)
    async with at_work(worker):
        await until("two run", lambda: len(running) == 2)
        assert client.qlen("q") == 3
        go_on.set()
        await until("all are done", lambda: len(told(log)) == 5)


async def test_a_worker_that_stops_lets_handlers_end_and_takes_nothing_new(
    url: str, client: Client, log: pytest.LogCaptureFixture
) -> None:
    worker, started = Worker(url), trio.Event()

    @worker.job("q")
    async def slow(job: Job) -> None:
        started.set()
        await trio.sleep(0.3)

    add(client)
    async with at_work(worker):
        await started.wait()
        worker.stop()
        add(client, b"too late")
    assert outcomes(log) == [("acked", 1)]
    assert client.qpeek("q")[0].body == b"too late"


async def test_what_has_not_ended_when_the_grace_is_over_is_given_back_at_once(
    url: str, client: Client, log: pytest.LogCaptureFixture
) -> None:
    worker, stuck, taken = Worker(url, grace=0.1), threading.Event(), list[str]()

    @worker.job("q")
    async def hang(job: Job) -> None:
        taken.append(job.id)
        await trio.sleep_forever()

    @worker.job("threads")
    def hang_in_thread(job: Job) -> None:
        taken.append(job.id)
        stuck.wait(WAIT_S)

    ids = {add(client, retry=300), client.add_job("threads", b"x", replicate=1, retry=300)}
    async with at_work(worker):
        await until("both are taken", lambda: {*taken} == ids)
    assert outcomes(log) == [("returned", 1), ("returned", 1)]
    assert {job.id for job in client.get_jobs("q", "threads", timeout=1, count=2)} == ids
    stuck.set()


async def test_a_worker_that_waits_for_jobs_stops_at_once_and_leaves_nobody_waiting(
    url: str, lone: Node
) -> None:
    worker = Worker(url)
    worker.job("q")(handlers.note)
    async with at_work(worker):
        await until("it waits", lambda: lone.info("clients")["blocked_clients"] == "1")
    wait_until("nobody waits", lambda: lone.info("clients")["blocked_clients"] == "0")


async def test_handlers_in_processes_run_there_die_there_and_are_killed_there(
    url: str, client: Client, log: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    worker = Worker(url, concurrency=1, backoff=SOON, max_deliveries=2)
    worker.job("good", in_process=True)(handlers.note)
    worker.job("deadly", in_process=True)(handlers.note_and_die)
    worker.job("endless", timeout=2, in_process=True)(handlers.note_and_sleep)
    paths = {queue: tmp_path / queue for queue in ("good", "deadly", "endless")}
    for path in paths.values():
        path.touch()

    def lines(queue: str) -> list[list[str]]:
        return [line.split() for line in paths[queue].read_text().splitlines()]

    def put(queue: str) -> None:
        client.add_job(queue, str(paths[queue]), replicate=1)

    async with at_work(worker):
        for _ in range(2):
            put("good")
        await until("two are done", lambda: len(told(log)) == 2)
        put("deadly")
        await until("it is done", lambda: len(told(log)) == 4)
        put("endless")
        await until("it was killed", lambda: len(told(log)) == 5)
    (first, _), (second, _) = lines("good")
    assert first == second != str(os.getpid())
    assert [attempt for _, attempt in lines("deadly")] == ["1", "2"]
    assert outcomes(log)[2:] == [("failed", 1), ("acked", 2), ("timeout", 1)]
    assert told(log)[2]["error"] == "HandlerError: the process ended with 9"
    killed = int(lines("endless")[0][0])
    with pytest.raises(ProcessLookupError):
        os.kill(killed, 0)


async def test_a_worker_waits_for_nodes_that_are_not_there_yet(
    make_node: Callable[..., Node], log: pytest.LogCaptureFixture
) -> None:
    node = make_node()
    url = f"disque://127.0.0.1:{node.port}"
    worker = Worker(url, failover_timeout=0.1)
    worker.job("q")(lambda job: None)
    log.set_level(logging.INFO, "disque.client")
    lost = f'cannot reach node=127.0.0.1:{node.port} error="Connection refused"'
    async with at_work(worker):
        await until("it complains", lambda: "worker can't take jobs" in log.text)
        warnings = [each.getMessage() for each in log.records if each.levelname == "WARNING"]
        assert warnings[0] == lost
        assert warnings.count(lost) == 1
        await trio.to_thread.run_sync(node.start)
        with Client(url) as client:
            add(client)
        await until("it is done", lambda: outcomes(log) == [("acked", 1)])


async def test_a_job_that_is_cancelled_meanwhile_is_told_and_ends_well(
    url: str, client: Client, log: pytest.LogCaptureFixture
) -> None:
    worker, go_on = Worker(url), trio.Event()

    @worker.job("q")
    async def wait(job: Job) -> None:
        await go_on.wait()

    job_id = add(client, retry=1)
    async with at_work(worker):
        await until("it is taken", lambda: client.qlen("q") == 0)
        assert client.cancel_job(job_id) == 1
        await until("it is told", lambda: "lease ends" in log.text)
        go_on.set()
        await until("it is done", lambda: outcomes(log) == [("acked", 1)])
    assert client.wait_jobs(job_id, timeout=1) == {job_id: "cancelled"}


async def test_an_outcome_that_no_node_can_be_told_is_left_to_the_retry(
    make_node: Callable[..., Node], log: pytest.LogCaptureFixture
) -> None:
    node = make_node().start()
    url = f"disque://127.0.0.1:{node.port}"
    worker, go_on = Worker(url, failover_timeout=0.1), trio.Event()

    @worker.job("q")
    async def wait(job: Job) -> None:
        await go_on.wait()

    with Client(url) as client:
        add(client)
        async with at_work(worker):
            await until("it is taken", lambda: client.qlen("q") == 0)
            node.kill()
            go_on.set()
            await until("it is told", lambda: outcomes(log) == [("unsettled", 1)])


async def test_a_wrong_password_ends_a_worker_with_that_error(
    make_node: Callable[..., Node],
) -> None:
    node = make_node("--requirepass", "right").start()
    worker = Worker(f"disque://wrong@127.0.0.1:{node.port}")
    worker.job("q")(handlers.note)
    with pytest.raises(AuthenticationError, match="invalid password"):
        await worker.serve()


async def test_a_worker_goes_on_when_its_node_is_killed(
    three: Cluster, log: pytest.LogCaptureFixture
) -> None:
    a, b, _ = three.nodes
    worker = Worker(f"disque://127.0.0.1:{a.port}", connect_timeout=1.0)

    @worker.job("q")
    async def slow(job: Job) -> None:
        await trio.sleep(0.2)

    with Client(f"disque://127.0.0.1:{b.port}") as client:
        ids = [client.add_job("q", b"%d" % number, retry=2, replicate=3) for number in range(12)]
        async with at_work(worker):
            await until("some are done", lambda: len(told(log)) >= 3)
            await trio.to_thread.run_sync(a.kill)
            ids += [client.add_job("q", b"%d" % number, replicate=2) for number in range(5)]
            await until(
                "all are done",
                lambda: {f["id"] for f in told(log) if f["outcome"] == "acked"} >= set(ids),
            )


# As a program

PROGRAM = (
    "import logging, sys; from disque.client.worker import worker_for;"
    "logging.basicConfig(level=logging.INFO, format='%(message)s');"
    "worker_for(sys.argv[1], sys.argv[2], 'q', grace=float(sys.argv[3])).run()"
)


@pytest.fixture
def start(url: str) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a worker as a process of its own: a handler, a grace; killed at the end if it still runs."""
    started: list[subprocess.Popen[str]] = []

    def begin(target: str, grace: float) -> subprocess.Popen[str]:
        command = [
            sys.executable,
            "-c",
            PROGRAM,
            f"tests.system.handlers:{target}",
            url,
            str(grace),
        ]
        started.append(
            subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT, bufsize=1)
        )
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def test_sigterm_lets_the_handler_end_and_the_program_ends_well(
    client: Client, start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    path = tmp_path / "noted"
    path.touch()
    process = start("note_slowly", 30)
    job_id = add(client, str(path).encode())
    wait_until("the handler runs", lambda: path.read_text() != "")
    process.send_signal(signal.SIGTERM)
    _, text = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, text
    assert len(path.read_text().splitlines()) == 2
    assert client.wait_jobs(job_id, timeout=1) == {job_id: "acked"}
    assert [line.split()[0:2] for line in text.splitlines()] == [
        ["worker", "started"],
        ["worker", "stopping"],
        ["job", f"id={job_id}"],
        ["worker", "stopped"],
    ]


def test_a_second_signal_gives_the_job_back_at_once(
    client: Client, start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    path = tmp_path / "noted"
    path.touch()
    process = start("note_and_sleep", 60)
    job_id = add(client, str(path).encode(), retry=300)
    wait_until("the handler runs", lambda: path.read_text() != "")
    process.send_signal(signal.SIGTERM)
    assert process.stderr is not None
    while "stopping" not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGINT)
    _, text = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, text
    assert "outcome=returned" in text
    job = client.get_job("q", timeout=1)
    assert job is not None
    assert (job.id, job.attempt) == (job_id, 2)


def test_a_worker_that_is_killed_loses_nothing(
    client: Client, start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    path = tmp_path / "noted"
    path.touch()
    process = start("note_and_sleep", 60)
    job_id = add(client, str(path).encode(), retry=1)
    wait_until("the handler runs", lambda: path.read_text() != "")
    process.kill()
    job = client.get_job("q", timeout=WAIT_S)
    assert job is not None
    assert (job.id, job.additional_deliveries) == (job_id, 1)
