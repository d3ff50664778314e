"""`python -m tests.by_hand.pacing [--jobs N]`: commands about a million jobs, and how long others wait meanwhile.

Prints for each command how long it took and the longest PING of another client, which should stay below 50 ms on a
machine that has nothing else to do.
"""

from __future__ import annotations

import argparse
import socket
import sys
import tempfile
import time
from pathlib import Path

from tests.system import floods
from tests.system.nodes import Node, command_bytes

BATCH = 1_000
PATIENCE_S = 600.0
PING_MS_MAX = 50.0


def main() -> int:
    """The exit status: 1 if somebody had to wait too long."""
    parser = argparse.ArgumentParser(prog="python -m tests.by_hand.pacing")
    parser.add_argument("--jobs", type=int, default=1_000_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "disque.conf"
        config.write_text("maxmemory 0\nslowlog-log-slower-than -1\n")
        node = Node(Path(folder) / "node")
        words = node.command_line()
        words.insert(3, str(config))
        node.command_line = lambda: words  # type: ignore[method-assign]
        node.start()
        try:
            return measure(node, options.jobs)
        finally:
            node.kill()


def measure(node: Node, count: int) -> int:
    """All commands, one after the other."""
    ids = fill(node, count)
    print(f"{count} jobs, {floods.resident(node) >> 20} MiB")
    many = ids[: count // 5]
    commands: list[tuple[str, tuple[str | bytes | int, ...]]] = [
        ("INFO all", ("INFO", "all")),
        ("CONFIG REWRITE", ("CONFIG", "REWRITE")),
        ("QSCAN BUSYLOOP", ("QSCAN", "BUSYLOOP")),
        ("JSCAN BUSYLOOP", ("JSCAN", "BUSYLOOP")),
        ("JSCAN COUNT 1000000", ("JSCAN", "COUNT", 1_000_000)),
        ("QPEEK 1000000", ("QPEEK", "q0", 1_000_000)),
        ("GETJOB COUNT 100000", ("GETJOB", "COUNT", 100_000, "FROM", "q1")),
        ("NACK of a fifth", ("NACK", *many)),
        ("ACKJOB of a fifth", ("ACKJOB", *many)),
        ("QPURGE", ("QPURGE", "q0")),
        ("DEBUG FLUSHALL", ("DEBUG", "FLUSHALL")),
    ]
    worst = 0.0
    for name, words in commands:
        started = time.perf_counter()
        with floods.pulse(node) as pulse, node.connect() as client:
            client.sock.settimeout(PATIENCE_S)
            client.call(*words)
            took_s = time.perf_counter() - started
            # what it leaves to do
            time.sleep(2)
        worst = max(worst, pulse.worst_ms)
        print(f"{name:22} {took_s:7.2f} s   longest PING {pulse.worst_ms:6.1f} ms", flush=True)
    return 0 if worst <= PING_MS_MAX else 1


def fill(node: Node, count: int) -> list[bytes]:
    """So many jobs, half of them in one queue."""
    ids: list[bytes] = []
    with socket.create_connection(("127.0.0.1", node.port)) as sock:
        file = sock.makefile("rb")
        for first in range(0, count, BATCH):
            sock.sendall(
                b"".join(
                    command_bytes("ADDJOB", f"q{n % 2 and n % 1_000}", "body", 0, "RETRY", 600)
                    for n in range(first, first + BATCH)
                )
            )
            ids += [file.readline()[1:-2] for _ in range(BATCH)]
        file.close()
    return ids


if __name__ == "__main__":
    sys.exit(main())
