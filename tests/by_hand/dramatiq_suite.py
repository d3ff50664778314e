"""Dramatiq's own tests over our broker, in place of the one that its tests are written for.

`python -m tests.by_hand.dramatiq_suite CHECKOUT [WORDS FOR PYTEST]` takes a checkout of Dramatiq of about the installed
version (only its `tests/` is used, from a copy), makes its fixture `stub_broker` ours, on a node of its own, and runs
what uses that fixture. Other brokers and back ends aren't needed: their tests are skipped. pytest prints the counts.
Four can't pass, for they look into the stub's own lists;
some want ten retries within 200 ms, which a busy machine doesn't do.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from tests.by_hand.foreign import run
from tests.system.nodes import ROOT, Node

# The stub's own tests, and those that need the driver of another broker.
ELSEWHERE = ("test_stub_broker.py", "test_broker.py")
COMMON = """
from contextlib import contextmanager

import pytest

from dramatiq import Worker

RABBITMQ_CREDENTIALS = None


@contextmanager
def worker(*args, **kwargs):
    made = Worker(*args, **kwargs)
    made.start()
    try:
        yield made
    finally:
        made.stop()


def mark(*_, **__):
    return lambda function: function


skip_in_ci = skip_on_windows = skip_on_pypy = skip_with_gevent = mark()
skip_without_gevent = pytest.mark.skip(reason="no gevent")
skip_unless_rabbit_mq = pytest.mark.skip(reason="no RabbitMQ")
"""
CONFTEST = """
import os
import uuid

import dramatiq
import pytest
from dramatiq import Worker
from dramatiq.rate_limits.backends import StubBackend as StubLimits
from dramatiq.results.backends import StubBackend as StubResults

from disque.integrations.dramatiq import DisqueBroker


class Remember(dramatiq.Middleware):
    def __init__(self):
        self.failures = []

    def before_nack(self, broker, message):
        error = message._exception
        self.failures.append((type(error), error.args))


class Rebound(DisqueBroker):
    # The stub's join raises what a message has failed with.
    def join(self, queue_name, *, timeout=None, fail_fast=True):
        super().join(queue_name, timeout=timeout)
        (memory,) = [each for each in self.middleware if isinstance(each, Remember)]
        if fail_fast and memory.failures:
            kind, args = memory.failures[0]
            raise kind(*args)


@pytest.fixture
def stub_broker():
    broker = Rebound(os.environ["TEST_BROKER"], namespace=uuid.uuid4().hex)
    broker.add_middleware(Remember())
    broker.emit_after("process_boot")
    dramatiq.set_broker(broker)
    yield broker
    broker.flush_all()
    broker.close()


@pytest.fixture
def stub_worker(stub_broker):
    worker = Worker(stub_broker, worker_timeout=100, worker_threads=32)
    worker.start()
    yield worker
    worker.stop()


@pytest.fixture
def info_logging():
    yield


@pytest.fixture(params=["stub"])
def result_backend(request):
    return StubResults()


@pytest.fixture
def stub_rate_limiter_backend():
    return StubLimits()


@pytest.fixture(params=["stub"])
def rate_limiter_backend(request):
    return StubLimits()


def absent(name):
    @pytest.fixture(name=name)
    def fixture():
        pytest.skip(f"no {name}")

    return fixture


redis_broker, redis_worker = absent("redis_broker"), absent("redis_worker")
rabbitmq_broker, rabbitmq_worker = absent("rabbitmq_broker"), absent("rabbitmq_worker")
redis_result_backend, start_cli = absent("redis_result_backend"), absent("start_cli")
redis_rate_limiter_backend = absent("redis_rate_limiter_backend")
"""


def main(checkout: Path, words: list[str]) -> int:
    """Run the suite; pytest's exit status."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(checkout / "tests", folder / "tests")
        (folder / "tests" / "conftest.py").write_text(CONFTEST)
        (folder / "tests" / "common.py").write_text(COMMON)
        using = [
            str(path.relative_to(folder))
            for path in sorted((folder / "tests").rglob("test_*.py"))
            if "stub_broker" in path.read_text() and path.name not in ELSEWHERE
        ]
        node = Node(folder / "node").start()
        try:
            return run(
                *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short"),
                *(words or using),
                folder=folder,
                PYTHONPATH=f"{ROOT}:{folder}",
                TEST_BROKER=f"disque://127.0.0.1:{node.port}",
            )
        finally:
            node.kill()


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
