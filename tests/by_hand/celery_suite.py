"""Celery's own integration tests over our transport: its t/integration, with Redis for the results.

`python -m tests.by_hand.celery_suite [redis|NODES] [WORDS FOR PYTEST]` takes them from the source distribution of the
installed version and runs test_tasks, test_inspect and test_canvas in a venv of their own, against a cluster of so many
nodes (1). With `redis` the broker is the Redis, too: what fails there is not ours. redis-server must be there. pytest
prints the counts; it takes half an hour. Two tests are left out: one looks for a task with an ETA in the worker, where
it is with any other broker, and ours keeps it till then; one is for RabbitMQ alone, and marked as failing with Redis.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import celery
import kombu

from tests.by_hand.foreign import cluster, make_venv, run, unpack_sdist
from tests.system.nodes import ROOT, free_port, wait_until

SUITES = ("test_tasks.py", "test_inspect.py", "test_canvas.py")
SUITE_S = 3_600.0
LEFT_OUT = (
    "t/integration/test_inspect.py::test_Inspect::test_scheduled",
    "t/integration/test_canvas.py::test_chain::test_chord_header_id_duplicated_on_rabbitmq_msg_duplication",
)
PLUGIN = "import disque.kombu_transport\n\ndisque.kombu_transport.register()\n"
PACKAGES = (
    f"celery[redis]=={celery.__version__}",
    f"kombu=={kombu.__version__}",
    *("attrs", "hiredis", "msgpack", "trio"),
    *(
        "pydantic",
        "pytest<9.1",
        "pytest-rerunfailures",
        "pytest-subtests",
        "pytest-timeout",
        "tblib",
    ),
)


@contextmanager
def redis_server(folder: Path) -> Iterator[int]:
    """A Redis on a free port, with nothing kept; the port."""
    port = free_port()
    process = subprocess.Popen(
        ["redis-server", "--port", str(port), "--save", "", "--dir", str(folder)],
        stdout=subprocess.DEVNULL,
    )
    try:
        wait_until("Redis answers", lambda: _is_open(port))
        yield port
    finally:
        process.terminate()
        process.wait()


def _is_open(port: int) -> bool:
    done = subprocess.run(["redis-cli", "-p", str(port), "PING"], capture_output=True, check=False)
    return done.stdout.strip() == b"PONG"


def main(broker: str, words: list[str]) -> int:
    """Run the suites; pytest's exit status."""
    is_ours = broker != "redis"
    with cluster(int(broker) if is_ours else 0) as (folder, nodes), redis_server(folder) as port:
        source = unpack_sdist(folder, f"celery=={celery.__version__}")
        python = make_venv(folder, *PACKAGES)
        shutil.copytree(source / "t", folder / "run" / "t")
        (folder / "run" / "over_disque.py").write_text(PLUGIN)
        redis = f"redis://127.0.0.1:{port}"
        ours = ";".join([f"disque://127.0.0.1:{node.port}" for node in nodes.nodes])
        status = 0
        for suite in [words] if words else [[f"t/integration/{name}"] for name in SUITES]:
            failed = run(
                *(str(python), "-m", "pytest", "-q", "-p", "over_disque", "-p", "no:cacheprovider"),
                *(
                    "-p",
                    "celery.contrib.pytest",
                    "-o",
                    "python_classes=test_*",
                    "-rfE",
                    "--tb=short",
                ),
                *suite,
                folder=folder / "run",
                limit_s=SUITE_S,
                PYTHONPATH=str(ROOT),
                TEST_BROKER=ours if is_ours else redis,
                TEST_BACKEND=redis,
                REDIS_PORT=str(port),
            )
            status = max(status, failed)
        for node in nodes.nodes:
            print(f"{node.port}: {node.info('jobs')}")
        return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "1", sys.argv[2:]))
