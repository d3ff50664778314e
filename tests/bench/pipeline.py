"""A load generator where redis-benchmark isn't there: many connections, each a pipeline of ADDJOBs.

`python -m tests.bench.pipeline PORT CLIENTS DEPTH JOBS` prints the jobs a second. A process of its
own, one thread, plain sockets: its time isn't the server's. Each connection sends DEPTH commands in
one write and waits for their replies before the next.
"""

from __future__ import annotations

import selectors
import socket
import sys
import time

from tests.system.nodes import command_bytes

STALL_S = 30.0  # no reply at all for so long: give up


def run(port: int, clients: int, depth: int, jobs: int) -> float:
    """Add at least `jobs` jobs, at REPLICATE 1 and with bodies of 100 bytes; jobs a second.

    Raises RuntimeError for an error reply, a closed connection or a stall.
    """
    batch = command_bytes("ADDJOB", "bench", b"x" * 100, 0, "REPLICATE", 1) * depth
    selector = selectors.DefaultSelector()
    for _ in range(clients):
        connection = socket.create_connection(("127.0.0.1", port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        selector.register(connection, selectors.EVENT_READ)
    pending: dict[int, int] = {}
    start = time.perf_counter()
    for key in selector.get_map().values():
        key.fileobj.sendall(batch)  # type: ignore[union-attr]
        pending[key.fd] = depth
    done = 0
    while done < jobs:
        events = selector.select(STALL_S)
        if not events:
            raise RuntimeError(f"no reply within {STALL_S} s after {done} of {jobs} jobs")
        for key, _ in events:
            raw = key.fileobj.recv(1 << 16)  # type: ignore[union-attr]
            if not raw or raw.startswith(b"-") or b"\n-" in raw:
                raise RuntimeError(f"the server said {raw[:200]!r}")
            replies = raw.count(b"\n")
            done += replies
            pending[key.fd] -= replies
            if pending[key.fd] == 0:
                key.fileobj.sendall(batch)  # type: ignore[union-attr]
                pending[key.fd] = depth
    return done / (time.perf_counter() - start)


if __name__ == "__main__":
    print(run(*map(int, sys.argv[1:5])))
