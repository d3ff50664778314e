"""`python -m tests.by_hand.floods [--scale F] [--rounds N]`: each flood at full scale against one node that has a peer.

Prints for each flood the longest PING of another client while it stood (100 ms at most is what we want), accounted
memory before and after (within 1 %), resident memory after each round (the last at most 1.1 times the first), and peers
that it still has. Takes minutes, some of it waiting for what has to live for a minute; needs 12,000 descriptors.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from tests.certificates import Authority
from tests.system import floods
from tests.system.nodes import Cluster, Node, free_port

FILES = 12_000
PING_MS_MAX = 100.0
GROWTH_MAX = 1.1
SETTLE_S = 3.0  # for memory to be given back when no more is freed
FORGET_S = 150.0  # the minute in a dummy's id, and what it outlives that
GIVE_BACK_S = 3.0  # a node gives memory back once nothing more goes (disque.server.heap)

Flood = Callable[[Node], AbstractContextManager[object]]


def done(act: Callable[[Node, int], None], count: int) -> Flood:
    """A flood that is over when it has been said."""

    def flood(node: Node) -> AbstractContextManager[object]:
        act(node, count)
        return nullcontext()

    return flood


def all_floods(scale: float, ports: Mapping[str, int]) -> dict[str, Flood]:
    """By name, each as large as `scale` says; `ports` by what is spoken there."""

    def loris(kind: str) -> Flood:
        return lambda _: floods.slow_loris(ports[kind], int(1_000 * scale), floods.unfinished(kind))

    return {
        "10,000 idle clients": lambda node: floods.idle_clients(node, int(10_000 * scale)),
        "1,000 that never read": lambda node: floods.never_readers(node, int(1_000 * scale)),
        "1,000 half-open links": lambda _: floods.connections(ports["bus"], int(1_000 * scale)),
        **{f"slow-loris, {kind.upper()}": loris(kind) for kind in ports},
        "64 files for 200 clients": lambda node: floods.few_files(node, 64, 200),
        "200,000 acks of nothing": done(floods.dummy_acks, int(200_000 * scale)),
        "1,000,000 names of queues": done(floods.queue_names, int(1_000_000 * scale)),
        "1,000,000 topics": done(floods.topics, int(1_000_000 * scale)),
        "200,000 jobs, acked": done(floods.acked_jobs, int(200_000 * scale)),
        "200,000 jobs, expired": done(floods.expired_jobs, int(200_000 * scale)),
        "200,000 jobs, purged": done(floods.purged_jobs, int(200_000 * scale)),
    }


def main() -> int:
    """The exit status: 1 if something wasn't as it should be."""
    parser = argparse.ArgumentParser(prog="python -m tests.by_hand.floods")
    parser.add_argument("--scale", type=float, default=1.0, help="of all counts (1)")
    parser.add_argument("--rounds", type=int, default=5, help="of each flood (5)")
    parser.add_argument("--only", default="", help="floods whose name has this")
    options = parser.parse_args()
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    )
    is_well = True
    with (
        tempfile.TemporaryDirectory() as folder,
        Cluster(Path(folder), 2, "--cluster-node-timeout", "5000") as cluster,
    ):
        first = cluster.nodes[0]
        ports = {"stomp": free_port(), "http": free_port(), "tls": free_port()}
        own = Authority(Path(folder)).issue("node")
        said = {
            "maxclients": 11_000,
            # Longer than all names take: each round has as many at a time
            "queue-max-idle": 30,
            "tls-cert-file": own.cert,
            "tls-key-file": own.key,
            "tls-auth-clients": "no",
            **{f"{kind}-port": port for kind, port in ports.items()},
        }
        first.kill()
        first.flags = (
            *first.flags,
            *(word for name, text in said.items() for word in (f"--{name}", str(text))),
        )
        first.start()
        cluster.join()
        ports |= {"resp": first.port, "bus": first.port + 10_000}
        for name, flood in all_floods(options.scale, ports).items():
            if options.only in name:
                is_well &= watch(cluster, name, flood, options.rounds)
    return 0 if is_well else 1


def watch(cluster: Cluster, name: str, flood: Flood, rounds: int) -> bool:
    """Some rounds of a flood; True if the node bore it."""
    first = cluster.nodes[0]
    base = [floods.used_memory(each) for each in cluster.nodes]
    worst, sizes = 0.0, []
    for _ in range(rounds):
        with floods.pulse(first) as pulse, flood(first):
            time.sleep(1)
        worst = max(worst, pulse.worst_ms)
        floods.wait_base(cluster.nodes, base, within_s=FORGET_S)
        time.sleep(GIVE_BACK_S)
        time.sleep(SETTLE_S)
        sizes.append(floods.resident(first))
    after = floods.used_memory(first)
    peers = first.info("cluster")["cluster_reachable_nodes"]
    growth = sizes[-1] / sizes[0]
    print(
        f"{name:28} longest PING {worst:6.1f} ms   memory {base[0] >> 10} -> {after >> 10} KiB   "
        f"RSS {' '.join(str(each >> 20) for each in sizes)} MiB ({growth:.2f})   peers {peers}",
        flush=True,
    )
    return worst <= PING_MS_MAX and growth <= GROWTH_MAX and peers == "1"


if __name__ == "__main__":
    sys.exit(main())
