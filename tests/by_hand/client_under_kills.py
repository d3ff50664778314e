"""The Python client and worker while nodes are killed and started again: what became of every job.

    python -m tests.by_hand.client_under_kills [--seconds 20] [--seed 1]

Three nodes with logs, two producers in threads, a worker with four places; every 3 s one node is killed with -9 and
started again. Prints counts: every job whose id was told must be handled (`missing` 0); handled twice is allowed, but
rare; an add takes no longer than it takes to find another node. Exits with 1 if a job is missing.
"""

from __future__ import annotations

import argparse
import collections
import random
import sys
import tempfile
import threading
import time
from pathlib import Path

import attrs
import trio

from disque.client import Client, DisqueError, Job, OutcomeUnknownError
from disque.client.worker import Worker
from tests.system.nodes import Cluster

KILL_S = 1.5
DRAIN_S = 60.0
PATIENCE = {"reply_timeout": 2.0, "connect_timeout": 1.0, "poll": 2.0}


@attrs.define(eq=False)
class Run:
    """What producers and the worker have seen."""

    url: str
    added: dict[str, None] = attrs.Factory(dict)
    handled: collections.Counter[str] = attrs.Factory(collections.Counter)
    troubles: collections.Counter[str] = attrs.Factory(collections.Counter)
    longest_s: float = 0.0
    is_over: bool = False

    def produce(self, name: str) -> None:
        """Add jobs until the run is over."""
        with Client(self.url, **PATIENCE) as client:
            number = 0
            while not self.is_over:
                number += 1
                started = time.monotonic()
                try:
                    job_id = client.add_job("q", f"{name} {number}", retry=3, timeout=2.0)
                    self.added[job_id] = None
                except OutcomeUnknownError:
                    self.troubles["unknown"] += 1
                except DisqueError as error:
                    self.troubles[type(error).__name__] += 1
                self.longest_s = max(self.longest_s, time.monotonic() - started)
                time.sleep(0.005)

    async def consume(self) -> None:
        """Handle jobs until the run is over and all are handled, or no time is left."""
        worker = Worker(self.url, concurrency=4, **PATIENCE)

        @worker.job("q")
        async def handle(job: Job) -> None:
            await trio.sleep(0.002)
            self.handled[job.id] += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.serve)
            while not self.is_over:
                await trio.sleep(0.2)
            with trio.move_on_after(DRAIN_S):
                while not self.added.keys() <= self.handled.keys():
                    await trio.sleep(0.2)
            worker.stop()


def main() -> int:
    """Run it and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    dice = random.Random(args.seed)
    flags = ("--cluster-node-timeout", "1500", "--appendonly", "yes")
    with tempfile.TemporaryDirectory() as folder, Cluster(Path(folder), 3, *flags) as cluster:
        cluster.join()
        run = Run(";".join([f"disque://127.0.0.1:{node.port}" for node in cluster.nodes]))
        threads = [
            *[threading.Thread(target=run.produce, args=(name,)) for name in "ab"],
            threading.Thread(target=trio.run, args=(run.consume,)),
        ]
        for thread in threads:
            thread.start()
        kills = 0
        until = time.monotonic() + args.seconds
        while time.monotonic() < until:
            node = dice.choice(cluster.nodes)
            time.sleep(KILL_S)
            node.kill()
            kills += 1
            time.sleep(KILL_S)
            node.start()
        run.is_over = True
        for thread in threads:
            thread.join()
    missing = len(run.added.keys() - run.handled.keys())
    twice = sum([count > 1 for count in run.handled.values()])
    print(f"kills {kills}, added {len(run.added)}, missing {missing}, handled twice {twice}")
    print(f"not added: {dict(run.troubles)}, longest add {run.longest_s:.2f} s")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
