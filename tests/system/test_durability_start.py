"""The log of real nodes: damaged files, start and stop, switched and rewritten at run time."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import pytest

from tests.system.logged import (
    GONE,
    LOG,
    jobs_of,
    segments,
    start_again,
    wait_ready,
)
from tests.system.nodes import WAIT_S, Node, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.system


# Damaged files


def stopped_with_jobs(node: Node, count: int) -> Path:
    """Add jobs with the bodies "0", "1" ..., kill; returns the segment they lie in."""
    for number in range(count):
        node.call("ADDJOB", "q", f"body-{number:04}", 0)
    node.kill()
    return segments(node)[-1]


@pytest.mark.parametrize("cut", [1, 2, 5, 17, 60])
def test_torn_tail_is_cut_and_named(logging: Node, cut: int) -> None:
    path = stopped_with_jobs(logging, 20)
    data = path.read_bytes()
    path.write_bytes(data[:-cut])
    start_again(logging)
    found = logging.info("persistence")
    assert int(found["aof_torn_bytes"]) > 0
    assert (found["aof_damaged_bytes"], found["aof_intact"]) == ("0", "1")
    assert "log-cut" in logging.log()
    bodies = wait_until("they come", lambda: jobs_of(logging, "q"))
    assert {f"body-{number:04}".encode() for number in range(19)} <= {*bodies}


def test_torn_tail_isnt_cut_unless_that_is_allowed(logging: Node) -> None:
    path = stopped_with_jobs(logging, 5)
    path.write_bytes(path.read_bytes()[:-3])
    logging.flags = (*LOG, "--aof-load-truncated", "no")
    logging.spawn()
    assert logging.process is not None
    assert logging.process.wait(WAIT_S) == 1
    assert "aof-load-truncated yes" in logging.complaints()
    logging.process = None


def test_flipped_bit_costs_one_job_is_told_and_kept_aside(logging: Node) -> None:
    path = stopped_with_jobs(logging, 20)
    data = bytearray(path.read_bytes())
    data[data.index(b"body-0007") + 2] ^= 4
    path.write_bytes(data)
    start_again(logging)
    found = logging.info("persistence")
    assert int(found["aof_damaged_bytes"]) > 0
    assert (found["aof_damaged_records"], found["aof_files_set_aside"]) == ("1", "1")
    assert found["aof_lost_jobs"] == "1"
    assert found["aof_intact"] == "0"
    assert [path for path in (logging.folder / "disque.aof").iterdir() if "damaged" in path.name]
    # Who isn't sure of its own past asks first; alone there is nobody to ask.
    bodies: list[bytes] = []

    def are_there() -> bool:
        bodies.extend(jobs_of(logging, "q"))
        return len(bodies) >= 19

    wait_until("they come", are_there)
    assert {*bodies} == {f"body-{number:04}".encode() for number in range(20)} - {b"body-0007"}
    logging.kill()
    start_again(logging)
    assert logging.info("persistence")["aof_damaged_bytes"] == "0"


def test_log_of_c_disque_is_a_clear_error(make_node: Callable[..., Node]) -> None:
    node = make_node(*LOG)
    (node.folder / "disque.aof").write_text("*2\r\n$7\r\nLOADJOB\r\n")
    node.spawn()
    assert node.process is not None
    assert node.process.wait(WAIT_S) == 1
    assert "as C Disque writes it" in node.complaints()
    node.process = None


# Start, stop, switching


def test_while_it_loads_clients_are_told_and_info_shows_how_far_it_is(logging: Node) -> None:
    with logging.connect() as client:
        for _ in range(20):
            for _ in range(1000):
                client.send("ADDJOB", "q", "x" * 100, 0)
            for _ in range(1000):
                client.read()
    logging.kill()
    logging.spawn()
    seen: list[str] = []
    wait_until("it answers", logging.answers, every_s=0.001)
    with logging.connect() as client:
        while True:
            client.send("PING")
            refusal = client.read()
            if refusal == "PONG":
                break
            assert str(refusal) == "LOADING Disque is loading the dataset in memory"
            seen.append(client.call("INFO", "persistence").decode())
    assert "loading:1" in seen[0]
    assert "loading_loaded_perc" in seen[0]
    wait_ready(logging)
    assert logging.info("jobs")["registered_jobs"] == "20000"


def test_sigterm_while_it_loads_ends_it_in_order(logging: Node) -> None:
    with logging.connect() as client:
        for _ in range(20_000):
            client.send("ADDJOB", "q", "x" * 100, 0, "ASYNC")
        for _ in range(20_000):
            client.read()
    logging.kill()
    logging.spawn()
    wait_until("it answers", logging.answers, every_s=0.001)
    is_loading = logging.info("persistence")["loading"] == "1"
    assert logging.terminate() == 0
    start_again(logging)
    assert is_loading
    assert logging.info("jobs")["registered_jobs"] == "20000"
    assert logging.info("persistence")["aof_intact"] == "1", logging.log()


@pytest.mark.parametrize("how", ["SIGTERM", "SHUTDOWN"])
def test_stop_loses_nothing(logging: Node, how: str) -> None:
    for number in range(200):
        logging.call("ADDJOB", "q", number, 0)
    taken = logging.call("GETJOB", "COUNT", 5, "FROM", "q")
    logging.call("ACKJOB", *[id_ for _, id_, _ in taken])
    if how == "SHUTDOWN":
        with logging.connect() as client, contextlib.suppress(*GONE):
            client.send("SHUTDOWN")
            client.read()
        assert logging.process is not None
        assert logging.process.wait(WAIT_S) == 0
        logging.process = None
    else:
        assert logging.terminate() == 0
    start_again(logging)
    assert logging.info("jobs")["registered_jobs"] == "195"
    assert logging.info("persistence")["aof_intact"] == "1"


@pytest.mark.parametrize("appendonly", ["yes", "no"])
def test_queues_come_back_as_they_were_once(
    make_node: Callable[..., Node], appendonly: str
) -> None:
    node = make_node()
    path = node.folder / "node.conf"
    path.write_text(f"appendonly {appendonly}\nport {node.port}\ndir {node.folder}\n")
    words = node.command_line()[:3]
    node.command_line = lambda: [*words, str(path)]  # type: ignore[method-assign]
    node.start()
    for number in range(5):
        node.call("ADDJOB", "q", f"many-{number}", 0)
        node.call("ADDJOB", "q", f"once-{number}", 0, "RETRY", 0)
    before = node.call("QPEEK", "q", 100)
    node.call("CONFIG", "SET", "aof-enqueue-jobs-once", "yes")
    node.call("CONFIG", "REWRITE")
    with node.connect() as client, contextlib.suppress(*GONE):
        client.send("SHUTDOWN", "REWRITE-AOF")
        client.read()
    assert node.process is not None
    assert node.process.wait(WAIT_S) == 0
    node.process = None
    start_again(node)
    assert node.call("QPEEK", "q", 100) == before
    assert node.call("CONFIG", "GET", "aof-enqueue-jobs-once")[1] == b"no"
    assert "aof-enqueue-jobs-once no" in path.read_text()
    found = node.call("GETJOB", "COUNT", 10, "WITHCOUNTERS", "FROM", "q")
    assert [each[2] for each in found] == [each[2] for each in before]
    assert {tuple(each[3:]) for each in found} == {(b"nacks", 0, b"additional-deliveries", 0)}


def wait_on(node: Node) -> None:
    """Wait until a log that was switched on has said all."""
    wait_until("the log is complete", lambda: node.info("persistence")["aof_state"] == "on")


def test_log_is_switched_on_and_off_at_run_time(node: Node) -> None:
    for number in range(50):
        node.call("ADDJOB", "q", number, 0)
    assert node.info("persistence")["aof_state"] == "off"
    assert node.call("CONFIG", "SET", "appendonly", "yes") == "OK"
    wait_on(node)
    node.call("ADDJOB", "q", "later", 0)
    assert node.call("CONFIG", "SET", "appendonly", "no") == "OK"
    assert node.info("persistence")["aof_state"] == "off"
    node.call("ADDJOB", "q", "unlogged", 0)
    assert node.call("CONFIG", "SET", "appendonly", "yes") == "OK"
    wait_on(node)
    node.kill()
    node.flags = LOG
    start_again(node)
    assert node.info("jobs")["registered_jobs"] == "52"
    assert node.info("persistence")["aof_intact"] == "1"


def test_life_without_the_log_is_noticed(logging: Node) -> None:
    logging.call("ADDJOB", "q", "seen", 0)
    assert logging.call("CONFIG", "SET", "appendonly", "no") == "OK"
    logging.call("ADDJOB", "q", "unlogged", 0)
    logging.kill()
    start_again(logging)
    assert logging.info("jobs")["registered_jobs"] == "1"
    assert logging.info("persistence")["aof_intact"] == "0"


def test_folder_that_cant_be_made_refuses_the_switch(node: Node) -> None:
    (node.folder / "disque.aof").write_text("in the way")
    refusal = "ERR Unable to turn on AOF. Check server logs."
    assert node.call_error("CONFIG", "SET", "appendonly", "yes") == refusal
    assert node.call("CONFIG", "GET", "appendonly") == [b"appendonly", b"no"]
    assert node.call("ADDJOB", "q", "b", 0)


@pytest.mark.parametrize("flags", [LOG, ()])
def test_rewrite_keeps_what_lives_and_forgets_the_rest(
    make_node: Callable[..., Node], flags: tuple[str, ...]
) -> None:
    node = make_node(*flags).start()
    with node.connect() as client:
        ids = [client.call("ADDJOB", "q", "x" * 1000, 0) for _ in range(500)]
        client.call("ACKJOB", *ids[:490])
    assert node.call("BGREWRITEAOF") == "Background append only file rewriting started"
    wait_until("it is done", lambda: "log-rewritten" in node.log())
    wait_until("it rests", lambda: node.info("persistence")["aof_rewrite_in_progress"] == "0")
    assert sum(path.stat().st_size for path in segments(node)) < 100_000
    assert int(node.info("persistence")["aof_last_rewrite_time_sec"]) >= 0
    node.kill()
    node.flags = LOG
    start_again(node)
    assert node.info("jobs")["registered_jobs"] == "10"


@pytest.mark.parametrize("how", ["RESTART", "CRASH-AND-RECOVER"])
def test_restart_on_purpose_keeps_the_jobs(logging: Node, how: str) -> None:
    logging.call("ADDJOB", "q", "body", 0)
    run = logging.info("server")["run_id"]
    with logging.connect() as client, contextlib.suppress(*GONE):
        client.send("DEBUG", how)
        client.read()
    wait_until("it is back", lambda: logging.info("server")["run_id"] != run)
    wait_ready(logging)
    assert wait_until("it comes", lambda: jobs_of(logging, "q")) == [b"body"]


def test_loadaof_proves_the_log_and_changes_nothing(logging: Node) -> None:
    logging.call("ADDJOB", "q", "body", 0)
    assert logging.call("DEBUG", "LOADAOF") == "OK"
    assert logging.call("QLEN", "q") == 1
    path = segments(logging)[-1]
    path.write_bytes(path.read_bytes().replace(b"body", b"bodi"))
    assert logging.call_error("DEBUG", "LOADAOF").startswith("ERR The log is damaged")
    assert logging.call("QLEN", "q") == 1


def test_flushed_node_comes_back_empty(logging: Node) -> None:
    logging.call("ADDJOB", "q", "body", 0)
    assert logging.call("DEBUG", "FLUSHALL") == "OK"
    logging.kill()
    start_again(logging)
    assert logging.info("jobs")["registered_jobs"] == "0"


def test_node_that_became_another_logs_under_its_new_id(logging: Node) -> None:
    logging.call("ADDJOB", "q", "old", 0)
    assert logging.call("CLUSTER", "RESET", "HARD") == "OK"
    time.sleep(0.5)
    logging.call("ADDJOB", "q", "new", 0, "RETRY", 0)
    logging.kill()
    start_again(logging)
    assert logging.info("persistence")["aof_intact"] == "1"
    assert wait_until("it comes", lambda: jobs_of(logging, "q")) == [b"new"]


def test_stop_while_the_log_isnt_complete_yet_loses_nothing(node: Node) -> None:
    with node.connect() as client:
        for _ in range(20_000):
            client.send("ADDJOB", "q", "x" * 100, 0)
        for _ in range(20_000):
            client.read()
    node.call("CONFIG", "SET", "appendonly", "yes")
    is_complete = node.info("persistence")["aof_state"] == "on"
    assert node.terminate() == 0
    node.flags = LOG
    start_again(node)
    assert not is_complete
    assert node.info("jobs")["registered_jobs"] == "20000"
    assert node.info("persistence")["aof_intact"] == "1"
