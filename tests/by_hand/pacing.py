"""`python -m tests.by_hand.pacing [--jobs N] [--only NAME]`: what is about very many jobs, and how long others wait.

Prints for each how long it took and the longest PING of another client, which should stay below 50 ms on a machine that
has nothing else to do. Of two nodes, so that there is somebody to heal with; each has a log.
"""

from __future__ import annotations

import argparse
import resource
import signal
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import urlopen

from tests.system import floods
from tests.system.nodes import Cluster, Node, Resp, command_bytes, free_port, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BATCH = 1_000
PATIENCE_S = 600.0
PING_MS_MAX = 50.0
HEALED = 100_000
CHURNED = 300_000  # enough for the collector to look at everything
LISTENERS = 10_000
TOPICS = 100_000
FILES = 12_000
PIPELINED = 20_000
QUEUES = 990_000  # there are others, and a limit


def main() -> int:
    """The exit status: 1 if somebody had to wait too long."""
    parser = argparse.ArgumentParser(prog="python -m tests.by_hand.pacing")
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--only", default="", help="rows whose name has one of these, NAME|NAME")
    options = parser.parse_args()
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    )
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "disque.conf"
        config.write_text(
            "maxclients 11000\nmaxmemory 0\nslowlog-log-slower-than -1\nappendonly yes\n"
        )
        cluster = Cluster(Path(folder), 2, "--cluster-node-timeout", "5000")
        for node in cluster.nodes:
            node.flags = (*node.flags, "--http-port", str(free_port()))
            use_file(node, config)
        with cluster:
            cluster.join()
            return measure(cluster, options.jobs, options.only)


def use_file(node: Node, config: Path) -> None:
    """Start it with a configuration file, of which each has its own."""
    own = node.folder / config.name
    own.write_text(config.read_text())
    words = node.command_line()
    words.insert(3, str(own))
    node.command_line = lambda: words  # type: ignore[method-assign]


def measure(cluster: Cluster, count: int, only: str) -> int:
    """All rows, one after the other."""
    node, peer = cluster.nodes
    ids = fill(node, count)
    print(f"{count} jobs, {floods.resident(node) >> 20} MiB")
    many = ids[: count // 5]

    def command(*words: str | bytes | int) -> Callable[[], None]:
        def call() -> None:
            with node.connect() as client:
                client.sock.settimeout(PATIENCE_S)
                client.call(*words)

        return call

    rows: dict[str, Callable[[], None]] = {
        "INFO all": command("INFO", "all"),
        "CONFIG REWRITE": command("CONFIG", "REWRITE"),
        "CLUSTER SAVECONFIG": command("CLUSTER", "SAVECONFIG"),
        "QSCAN BUSYLOOP": command("QSCAN", "BUSYLOOP"),
        "JSCAN": command("JSCAN"),
        "JSCAN BUSYLOOP": command("JSCAN", "BUSYLOOP"),
        "JSCAN COUNT 1000000": command("JSCAN", "COUNT", 1_000_000),
        "QPEEK 1000000": command("QPEEK", "q0", 1_000_000),
        "GETJOB COUNT 100000": command("GETJOB", "COUNT", 100_000, "FROM", "q1"),
        "ENQUEUE of a fifth": command("ENQUEUE", *many),
        "WORKING, pipelined": lambda: pipeline(node, "WORKING", many[:PIPELINED]),
        "NACK of a fifth": command("NACK", *many),
        "DEQUEUE of a fifth": command("DEQUEUE", *many),
        "WAITJOB": command("WAITJOB", *many[:1_000], "TIMEOUT", 1),
        "SHOW, pipelined": lambda: pipeline(node, "SHOW", many[:PIPELINED]),
        "DELJOB of a tenth": command("DELJOB", *many[::2]),
        "CANCELJOB of a tenth": command("CANCELJOB", *many[1::2]),
        "ACKJOB of a fifth": command("ACKJOB", *ids[count // 5 : 2 * count // 5]),
        "FASTACK of a fifth": command("FASTACK", *ids[2 * count // 5 : 3 * count // 5]),
        "PAUSE BCAST": command("PAUSE", "q0", "all", "BCAST"),
        "PAUSE none": command("PAUSE", "q0", "none", "BCAST"),
        "QSTAT GLOBAL": command("QSTAT", "q0", "GLOBAL"),
        "DEBUG LOADAOF": command("DEBUG", "LOADAOF"),
        "CONFIG SET maxmemory": command("CONFIG", "SET", "maxmemory", "200mb"),
        "CONFIG SET maxmemory 0": command("CONFIG", "SET", "maxmemory", "0"),
        "CONFIG SET appendonly no": command("CONFIG", "SET", "appendonly", "no"),
        "CONFIG SET appendonly yes": command("CONFIG", "SET", "appendonly", "yes"),
        "MONITOR that isn't read": lambda: fill_before_monitor(node),
        "compaction": lambda: compact(node),
        "churn (collector)": lambda: churn(node),
        f"heal of {HEALED}": lambda: heal(node, peer),
        f"PUBLISH to {LISTENERS}": lambda: publish(node),
        f"SUBSCRIBE to {TOPICS}": lambda: subscribe(node, "SUBSCRIBE", "UNSUBSCRIBE"),
        f"PSUBSCRIBE to {TOPICS}": lambda: subscribe(node, "PSUBSCRIBE", "PUNSUBSCRIBE"),
        f"ADDJOB, {PIPELINED} in a row": lambda: add_in_a_row(node),
        f"ADDJOB, {PIPELINED} in MULTI": lambda: add_in_a_row(node, "MULTI", "EXEC"),
        f"SIGHUP, {LISTENERS} clients": lambda: hang_up(node),
        f"requirepass, {LISTENERS} clients": lambda: need_password(node),
        f"CLIENT KILL of {LISTENERS}": lambda: end_clients(node),
        "page /": lambda: fetch(node, "/"),
        "page /metrics": lambda: fetch(node, "/metrics"),
        "QSCAN REPLY all": lambda: scan_queues(node),
        "QPURGE": command("QPURGE", "q0"),
        "CLUSTER LEAVING": lambda: leave(node),
        "DEBUG FLUSHALL": command("DEBUG", "FLUSHALL"),
    }
    worst = 0.0
    for name, act in rows.items():
        if not any([part in name for part in only.split("|")]):
            continue
        started = time.perf_counter()
        with floods.pulse(node) as pulse:
            act()
            took_s = time.perf_counter() - started
            # what it leaves to do
            time.sleep(2)
        worst = max(worst, pulse.worst_ms)
        print(f"{name:24} {took_s:7.2f} s   longest PING {pulse.worst_ms:6.1f} ms", flush=True)
    return 0 if worst <= PING_MS_MAX else 1


def fill(node: Node, count: int, queue: str = "q", replicate: int = 1) -> list[bytes]:
    """So many jobs, half of them in one queue."""
    ids: list[bytes] = []
    options = ("RETRY", 600, "REPLICATE", replicate)
    with node.connect() as client:
        for first in range(0, count, BATCH):
            client.sock.sendall(
                b"".join(
                    command_bytes(
                        "ADDJOB", f"{queue}{n % 2 and n % 1_000}", "body", 5_000, *options
                    )
                    for n in range(first, first + BATCH)
                )
            )
            ids += [client.read() for _ in range(BATCH)]
    return ids


def pipeline(node: Node, command: str, ids: list[bytes]) -> None:
    """One command for each, all at once."""
    with node.connect() as client:
        client.sock.settimeout(PATIENCE_S)
        client.sock.sendall(b"".join([command_bytes(command, id_) for id_ in ids]))
        for _ in ids:
            client.read()


def fill_before_monitor(node: Node) -> None:
    """Jobs come while somebody wants to hear of each and doesn't listen."""
    with node.connect() as monitor:
        monitor.call("MONITOR")
        fill(node, 20_000, "monitored")


def compact(node: Node) -> None:
    """Write the log anew, to the end."""
    wait_rewritten(node)
    with node.connect() as client:
        client.call("BGREWRITEAOF")
    wait_rewritten(node)


def wait_rewritten(node: Node) -> None:
    wait_until(
        "the log is written anew",
        lambda: node.info("persistence")["aof_rewrite_in_progress"] == "0",
        within_s=PATIENCE_S,
    )


def churn(node: Node) -> None:
    """Jobs come and go, so that the collector of garbage has something to look for."""
    for _ in range(0, CHURNED, 10 * BATCH):
        ids = fill(node, 10 * BATCH, "churned")
        with node.connect() as client:
            for first in range(0, len(ids), BATCH):
                client.call("ACKJOB", *ids[first : first + BATCH])


def heal(node: Node, peer: Node) -> None:
    """A peer with copies was away, and is told of each."""
    fill(node, HEALED, "healed", replicate=2)
    peer.kill()
    peer.start()
    wait_until(
        "it is back",
        lambda: node.info("cluster")["cluster_reachable_nodes"] == "1",
        within_s=PATIENCE_S,
    )
    # the walk's pace
    time.sleep(10)


def leave(node: Node) -> None:
    """All jobs are handed over, or some of them."""
    with node.connect() as client:
        client.call("CLUSTER", "LEAVING", "yes")
        time.sleep(20)
        client.call("CLUSTER", "LEAVING", "no")


def publish(node: Node) -> None:
    """Many hear each message."""
    said = command_bytes("SUBSCRIBE", "news")
    with floods.connections(node.port, LISTENERS, said), node.connect() as client:
        wait_until("all hear", lambda: client.call("PUBLISH", "news", "?") == LISTENERS)
        for _ in range(10):
            client.call("PUBLISH", "news", bytes(1_000))
            time.sleep(0.5)


def subscribe(node: Node, begin: str, end: str) -> None:
    """One client wants very much, then nothing, then it goes while it wants it again."""
    with node.connect() as client:
        client.sock.settimeout(PATIENCE_S)
        for command, *names in (
            (begin, *[f"topic-{n}" for n in range(TOPICS)]),
            (end, *[f"topic-{n}" for n in range(TOPICS)]),
            (begin, *[f"topic-{n}" for n in range(TOPICS)]),
            (end,),
            (begin, *[f"topic-{n}" for n in range(TOPICS)]),
        ):
            client.send(command, *names)
            for _ in range(TOPICS):
                client.read()


def add_in_a_row(node: Node, *around: str) -> None:
    """All are sent at once."""
    with node.connect() as client:
        client.sock.settimeout(PATIENCE_S)
        added = command_bytes("ADDJOB", "piped", "body", 5_000, "REPLICATE", 1) * PIPELINED
        first, last = [command_bytes(word) for word in around] or (b"", b"")
        client.sock.sendall(first + added + last)
        for _ in range(PIPELINED + len(around)):
            client.read()


@contextmanager
def crowded(node: Node) -> Iterator[Resp]:
    """Very many others are connected to it, too."""
    with node.connect() as client, floods.idle_clients(node, LISTENERS):
        client.sock.settimeout(PATIENCE_S)
        yield client


def hang_up(node: Node) -> None:
    """Files are read again."""
    assert node.process is not None
    with crowded(node):
        node.process.send_signal(signal.SIGHUP)
        time.sleep(2)


def need_password(node: Node) -> None:
    """Those who are there haven't given it."""
    with crowded(node) as client:
        # who pings has come first, and is to stay
        client.call("CONFIG", "SET", "unauthenticated-max", 2 * LISTENERS)
        client.call("CONFIG", "SET", "requirepass", "secret")
        time.sleep(2)
        client.call("AUTH", "secret")
        client.call("CONFIG", "SET", "requirepass", "")


def end_clients(node: Node) -> None:
    """All but one."""
    with crowded(node) as client:
        client.call("CLIENT", "KILL", "SKIPME", "yes", "TYPE", "normal")
        time.sleep(2)


def fetch(node: Node, path: str) -> None:
    """The page's process asks the node for all of its queues."""
    port = node.flags[node.flags.index("--http-port") + 1]
    floods.queue_names(node, TOPICS)
    with urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE_S) as said:
        said.read()


def scan_queues(node: Node) -> None:
    """All is told of each of very many queues."""
    floods.queue_names(node, QUEUES)
    with node.connect() as client:
        client.sock.settimeout(PATIENCE_S)
        client.call("QSCAN", "BUSYLOOP", "REPLY", "all")


if __name__ == "__main__":
    sys.exit(main())
