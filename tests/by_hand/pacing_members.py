"""`python -m tests.by_hand.pacing_members [--jobs N] [--only NAME]`: how long others wait when members come and go.

As `pacing`, with three nodes, of which the first two have a copy of each of very many jobs; the first is pinged.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.by_hand.pacing import PATIENCE_S, PING_MS_MAX, fill, use_file
from tests.system import floods
from tests.system.nodes import Cluster, Node, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

NODE_TIMEOUT_MS = 5_000
LOOK_S = 20.0  # at what goes on for longer than that


def main() -> int:
    """The exit status: 1 if somebody had to wait too long."""
    parser = argparse.ArgumentParser(prog="python -m tests.by_hand.pacing_members")
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--only", default="", help="rows whose name has one of these, NAME|NAME")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "disque.conf"
        config.write_text(
            "maxmemory 0\nslowlog-log-slower-than -1\nappendonly yes\nrepair-after 5\n"
        )
        cluster = Cluster(Path(folder), 3, "--cluster-node-timeout", str(NODE_TIMEOUT_MS))
        for node in cluster.nodes:
            use_file(node, config)
        with cluster:
            return measure(cluster.nodes, options.jobs, options.only)


def measure(nodes: list[Node], count: int, only: str) -> int:
    """All rows, one after the other."""
    node, peer, third = nodes
    node.call("CLUSTER", "MEET", "127.0.0.1", peer.port)
    wait_reached(node, 1)
    fill(node, count, replicate=2)
    print(f"{count} jobs, {floods.resident(node) >> 20} MiB")

    def meet(other: Node, reached: int) -> None:
        node.call("CLUSTER", "MEET", "127.0.0.1", other.port)
        wait_reached(node, reached)
        time.sleep(LOOK_S)

    def die(other: Node, reached: int) -> None:
        other.kill()
        wait_reached(node, reached)
        time.sleep(LOOK_S)

    def come_back(other: Node, reached: int) -> None:
        other.start()
        wait_reached(node, reached)
        time.sleep(LOOK_S)

    def forget(*words: str) -> None:
        peer.kill()
        wait_reached(node, 1)
        node.call("CLUSTER", "FORGET", peer_id, *words)
        time.sleep(LOOK_S)

    rows: dict[str, Callable[[], object]] = {
        "MEET of an empty third": lambda: meet(third, 2),
        "a peer dies, copies are repaired": lambda: die(peer, 1),
        "it is back": lambda: come_back(peer, 2),
        "a peer restarts": lambda: (peer.kill(), come_back(peer, 2)),
        "FORGET ALL of a peer that is down": lambda: forget("ALL"),
        "RESET of another": lambda: (third.call("CLUSTER", "RESET"), time.sleep(LOOK_S)),
        "RESET": lambda: (node.call("CLUSTER", "RESET"), time.sleep(LOOK_S)),
        "RESET HARD": lambda: (node.call("CLUSTER", "RESET", "HARD"), time.sleep(LOOK_S)),
        "SHUTDOWN": node.terminate,
    }
    alone = ("RESET HARD", "SHUTDOWN")  # whose jobs are gone by then
    peer_id = peer.call("CLUSTER", "MYID").decode()
    worst = 0.0
    for name, act in rows.items():
        if not any([part in name for part in only.split("|")]):
            continue
        if name in alone:
            fill(node, count)
        started = time.perf_counter()
        with floods.pulse(node) as pulse:
            act()
        worst = max(worst, pulse.worst_ms)
        took_s = time.perf_counter() - started
        print(f"{name:32} {took_s:7.2f} s   longest PING {pulse.worst_ms:6.1f} ms", flush=True)
    return 0 if worst <= PING_MS_MAX else 1


def wait_reached(node: Node, count: int) -> None:
    """Until it can reach so many."""
    wait_until(
        f"{count} can be reached",
        lambda: node.info("cluster")["cluster_reachable_nodes"] == str(count),
        within_s=PATIENCE_S,
    )


if __name__ == "__main__":
    sys.exit(main())
