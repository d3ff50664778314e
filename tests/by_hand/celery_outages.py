"""Celery through a bad day: workers are killed and ended, nodes are killed and come back, and every task runs.

`python -m tests.by_hand.celery_outages [TASKS [SEED]]`: three nodes with logs, three workers, so many tasks (1000), and
20 with a countdown of 20 s, four times the RETRY. Prints how many ran, and how often.
"""

from __future__ import annotations

import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.system.celery_farm import Farm, Worker, farm
from tests.system.nodes import Cluster, wait_until

RETRY_S, COUNTDOWN_S, DELAYED = 5, 20, 20
PATIENCE_S = 180.0


def main(tasks: int, seed: int) -> int:
    """0 if every task ran, and the delayed ones once and in time."""
    dice = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        flags = ("--cluster-node-timeout", "2000", "--appendonly", "yes")
        options = {"visibility_timeout": RETRY_S}
        with Cluster(folder, 3, *flags) as cluster, farm(cluster.join(), folder, options) as made:
            made.hire("w0", "w1", "w2")
            due_at = time.time() + COUNTDOWN_S
            for number in range(DELAYED):
                made.send("timed", number, due_at, countdown=COUNTDOWN_S)
            for number in range(tasks):
                made.send("note", number)
                if number % (tasks // 8) == tasks // 16:
                    disturb(made, dice)
            return report(made, tasks)


def disturb(made: Farm, dice: random.Random) -> None:
    """One worker ends or dies, and another begins; one node dies, and is back."""
    index = dice.randrange(len(made.workers))
    number = dice.choice([signal.SIGTERM, signal.SIGKILL])
    worker = made.workers[index]
    print(f"{worker.name}: {number.name}", flush=True)
    worker.end(number)
    made.workers[index] = Worker(made, f"{worker.name}x")
    node = dice.choice(made.cluster.nodes)
    print(f"node {node.port}: killed and started", flush=True)
    node.kill()
    time.sleep(dice.uniform(0, 3))
    node.start()


def report(made: Farm, tasks: int) -> int:
    """Wait for the last task, and count."""
    wait_until(
        "every task has run",
        lambda: len({words[0] for words in made.runs("note")}) == tasks,
        within_s=PATIENCE_S,
    )
    wait_until("the delayed ones", lambda: len(made.runs("timed")) >= DELAYED, within_s=PATIENCE_S)
    time.sleep(2 * RETRY_S)
    often = Counter(Counter(words[0] for words in made.runs("note")).values())
    delayed = made.runs("timed")
    late_s = [float(words[1]) for words in delayed]
    print(f"tasks run so often: {dict(often)}")
    print(
        f"delayed: {len(delayed)} runs of {DELAYED}, {min(late_s):.2f} to {max(late_s):.2f} s late"
    )
    left = [node.info("jobs")["registered_jobs"] for node in made.cluster.nodes]
    print(f"jobs left on the nodes (one is a binding): {left}")
    return 0 if len(delayed) == DELAYED and min(late_s) >= 0 else 1


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:3]]
    sys.exit(main(*given, *(1_000, 1)[len(given) :]))
