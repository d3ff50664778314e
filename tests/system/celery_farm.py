"""A farm: a cluster, a Celery app that uses it, and real `celery worker` processes with their pools."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
from celery import Celery
from celery.result import AsyncResult

import disque.kombu_transport
from tests.system.nodes import ROOT, WAIT_S, Cluster, wait_until

disque.kombu_transport.register()


class Worker:
    """One `celery worker` process with its pool, in a process group of its own."""

    def __init__(self, farm: Farm, name: str, *flags: str) -> None:
        self.name = name
        words = ("-m", "celery", "-A", "tests.system.celery_app", "worker", "-n", f"{name}@test")
        with (farm.folder / f"{name}.log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, *words, "-c", "2", "-l", "INFO", *flags],
                cwd=ROOT,
                env={**os.environ, **farm.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def end(self, number: signal.Signals) -> int:
        """Signal it (SIGKILL: the pool, too), and wait."""
        if self.process.poll() is None:
            if number is signal.SIGKILL:
                os.killpg(self.process.pid, number)
            else:
                self.process.send_signal(number)
        return self.process.wait(WAIT_S)


@attrs.define
class Farm:
    """A cluster, the app that uses it, and its workers."""

    cluster: Cluster
    folder: Path
    environment: dict[str, str]
    app: Celery
    workers: list[Worker] = attrs.Factory(list)

    def hire(self, *names: str) -> list[Worker]:
        """Start workers, and wait until they answer."""
        hired = [Worker(self, name) for name in names]
        self.workers += hired
        wanted = {f"{name}@test" for name in names}
        wait_until(f"{wanted} are ready", lambda: wanted <= self.answering(), within_s=3 * WAIT_S)
        return hired

    def answering(self) -> set[str]:
        """The workers that answer a ping."""
        answers = self.app.control.ping(timeout=0.5)
        return {name for answer in answers for name in answer}

    def send(self, name: str, *args: Any, **options: Any) -> AsyncResult[Any]:
        """Send a task of celery_app.py."""
        return self.app.send_task(f"tests.system.celery_app.{name}", args, **options)

    def runs(self, kind: str) -> list[list[str]]:
        """The lines that tasks have left, in words, without the kind."""
        path = Path(self.environment["TEST_RUNS"])
        lines = path.read_text().splitlines() if path.exists() else []
        return [line.split()[1:] for line in lines if line.split()[0] == kind]

    def queues(self) -> set[str]:
        """Queues on any node that runs."""
        running = [node for node in self.cluster.nodes if node.process is not None]
        return {name.decode() for node in running for name in node.call("QSCAN")[1]}


@contextmanager
def farm(cluster: Cluster, folder: Path, options: Mapping[str, Any]) -> Iterator[Farm]:
    """Over these nodes, with these options of the transport, and no worker yet; whoever still works is killed."""
    url = ";".join([f"disque://127.0.0.1:{node.port}" for node in cluster.nodes])
    environment = {
        "TEST_BROKER": url,
        "TEST_RUNS": str(folder / "runs"),
        "TEST_OPTIONS": json.dumps(options),
    }
    app = Celery("sender", broker=url, backend="rpc://", set_as_current=False)
    app.conf.broker_transport_options = options
    made = Farm(cluster, folder, environment, app)
    yield made
    for worker in made.workers:
        worker.end(signal.SIGKILL)
    app.close()
