"""Django-Q2 over two real nodes: a whole site in a process of its own, and its broker's answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.nodes import ROOT, Cluster

pytestmark = pytest.mark.system

TASKS = 12
PATIENCE_S = 60.0
# The broker alone, in a process of its own as Django's settings can be made but once.
SESSION = """
import os
from tests.system import django_q_site
django_q_site.configure()
from django_q.brokers import get_broker

broker = get_broker(list_key="mine")
assert broker.ping() is True
assert broker.dequeue() == []
broker.enqueue("first"), broker.enqueue("second")
assert (broker.queue_size(), broker.lock_size()) == (2, 0)
((one, package), (two, _)) = sorted(broker.dequeue(), key=lambda task: task[1])
assert package == "first"
assert (broker.queue_size(), broker.lock_size()) == (0, 2)
broker.acknowledge(one)
broker.acknowledge(one)
broker.fail(two)
assert (broker.queue_size(), broker.lock_size()) == (0, 0)
broker.enqueue("third"), broker.enqueue("fourth")
assert broker.purge_queue() == 2
assert broker.delete_queue() == 0
assert get_broker("other").connection is broker.connection
child = os.fork()
if child == 0:
    broker.enqueue("of the child")
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert [package for _, package in broker.dequeue()] == ["of the child"]
broker.purge_queue()
"""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two nodes that know each other."""
    with Cluster(tmp_path_factory.mktemp("pair"), 2) as cluster:
        yield cluster.join()
        for node in cluster.nodes:
            assert "Traceback" not in node.log(), node.log()


def run(pair: Cluster, folder: Path, *words: str) -> str:
    """What a Python program prints; AssertionError with its complaints if it fails."""
    url = ";".join([f"disque://127.0.0.1:{node.port}" for node in pair.nodes])
    done = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env={**os.environ, "TEST_BROKER": url, "TEST_DATABASE": str(folder / "site.sqlite3")},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_site_s_tasks_run_and_leave_nothing(pair: Cluster, tmp_path: Path) -> None:
    told = json.loads(run(pair, tmp_path, "-m", "tests.system.django_q_site", str(TASKS)))
    assert told.pop("info").startswith("Disque ")
    assert told == {
        "waiting": TASKS + 1,
        "results": [float(number) for number in range(TASKS)],
        "failures": 1,
        "left": [0, 0],
    }
    pair.wait_drained()


def test_the_broker_does_what_django_q_asks(pair: Cluster, tmp_path: Path) -> None:
    run(pair, tmp_path, "-c", SESSION)
    pair.wait_drained()
