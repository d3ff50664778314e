"""Celery itself: real workers on three nodes, remote control, and tasks that outlive workers and a node."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system import celery_farm
from tests.system.celery_farm import Farm
from tests.system.nodes import WAIT_S, Cluster, wait_until

pytestmark = pytest.mark.system

TASKS = 500
DELAYED = 20
# Seconds; the delayed ones wait for longer than the RETRY.
RETRY, COUNTDOWN = 2, 5
OPTIONS = {"visibility_timeout": RETRY, "max_deliveries": 4, "dead_letters": "dead"}


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes that know each other."""
    with Cluster(tmp_path_factory.mktemp("three"), 3, "--cluster-node-timeout", "2000") as cluster:
        yield cluster.join()
        for node in cluster.nodes:
            assert "Traceback" not in node.log(), node.log()


@pytest.fixture
def farm(nodes: Cluster, tmp_path: Path) -> Iterator[Farm]:
    """The three nodes, and no worker yet."""
    with celery_farm.farm(nodes, tmp_path, OPTIONS) as made:
        yield made


def test_control_reaches_all_workers_and_a_warm_shutdown_loses_nothing(farm: Farm) -> None:
    first, second = farm.hire("w1", "w2")
    assert farm.answering() == {"w1@test", "w2@test"}
    inspect = farm.app.control.inspect(timeout=0.5)
    assert set(inspect.active_queues()) == {"w1@test", "w2@test"}

    assert farm.send("echo", "hear me").get(timeout=WAIT_S) == "hear me"

    farm.send("fussy", 1)
    wait_until("delivered twice", lambda: len(farm.runs("fussy")) == 2)
    assert farm.runs("fussy") == [["1", "False"], ["1", "True"]]

    for number in range(6):
        farm.send("slow", number, 1.25 * RETRY)
    wait_until("both work", lambda: len(farm.runs("begun")) >= 4)
    # It ends what it has begun, longer than the RETRY, and gives back what it hasn't.
    assert first.end(signal.SIGTERM) == 0
    wait_until("all have run", lambda: len(farm.runs("ended")) == 6, within_s=3 * WAIT_S)
    assert Counter(words[0] for words in farm.runs("begun")) == Counter(map(str, range(6)))
    assert second.end(signal.SIGTERM) == 0
    farm.cluster.nodes[0].call("QPURGE", "_kombu.bindings.celery")
    farm.cluster.wait_drained()
    assert not {name for name in farm.queues() if "pidbox" in name or "celeryev" in name}


def test_tasks_outlive_a_worker_and_a_node(farm: Farm) -> None:
    first, _second = farm.hire("w1", "w2")
    marker = farm.folder / "cured"
    due_at = time.time() + COUNTDOWN
    for number in range(DELAYED):
        farm.send("timed", number, due_at, countdown=COUNTDOWN)
    farm.send("kill_worker", 0, str(marker))
    for number in range(TASKS):
        farm.send("note", number)
        if number == TASKS // 4:
            first.end(signal.SIGKILL)
        if number == TASKS // 2:
            farm.cluster.nodes[2].kill()
    everything = {str(number) for number in range(TASKS)}
    wait_until(
        "every task has run",
        lambda: {words[0] for words in farm.runs("note")} == everything,
        within_s=4 * WAIT_S,
    )
    wait_until("the delayed ones have run", lambda: len(farm.runs("timed")) >= DELAYED)
    delayed = farm.runs("timed")
    assert Counter(words[0] for words in delayed) == Counter(map(str, range(DELAYED)))
    assert min(float(words[1]) for words in delayed) >= 0

    # What ends its worker each time lies among the dead, and can be sent again.
    node = farm.cluster.nodes[0]
    wait_until("one dead letter", lambda: node.call("GLOBALQLEN", "dead") == 1, within_s=2 * WAIT_S)
    assert len(farm.runs("fatal")) <= OPTIONS["max_deliveries"]  # type: ignore[operator]
