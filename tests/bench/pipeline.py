"""A load generator: many connections, each a pipeline of one request said again and again.

`python -m tests.bench.pipeline PORT CLIENTS DEPTH JOBS` prints the ADDJOBs a second. One thread, plain sockets, replies
are counted by their lines and not read: on a machine of two cores it keeps a C server busy. Each connection sends DEPTH
requests in one write and waits for their replies before the next.
"""

from __future__ import annotations

import selectors
import socket
import sys
import time

import attrs

from tests.system.nodes import command_bytes

STALL_S = 30.0  # no reply at all for so long: give up
BODY = b"x" * 100
ADD = command_bytes("ADDJOB", "bench", BODY, 0, "REPLICATE", 1)


@attrs.frozen
class Load:
    """What each connection says: one request, the lines of its reply, and how an error begins."""

    request: bytes
    lines: int = 1
    error: bytes = b"-"


def run(
    port: int,
    clients: int,
    depth: int,
    count: int,
    load: Load | None = None,
    *,
    host: str = "127.0.0.1",
    others: tuple[int, ...] = (),
) -> float:
    """Send at least `count` requests, shared out over `port` and `others` of a host; requests a second.

    Raises RuntimeError for an error reply, a closed connection or a stall.
    """
    load = load or Load(ADD)
    batch, lines = load.request * depth, load.lines * depth
    ports = (port, *others)
    selector = selectors.DefaultSelector()
    pending: dict[int, int] = {}
    try:
        for number in range(clients):
            connection = socket.create_connection((host, ports[number % len(ports)]))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            selector.register(connection, selectors.EVENT_READ)
        start = time.perf_counter()
        for key in selector.get_map().values():
            key.fileobj.sendall(batch)  # type: ignore[union-attr]
            pending[key.fd] = lines
        done, wanted = 0, count * load.lines
        while done < wanted:
            events = selector.select(STALL_S)
            if not events:
                raise RuntimeError(f"no reply within {STALL_S} s after {done} of {wanted} lines")
            for key, _ in events:
                raw = key.fileobj.recv(1 << 18)  # type: ignore[union-attr]
                if not raw or raw.startswith(load.error) or b"\n" + load.error in raw:
                    raise RuntimeError(f"the server said {raw[:200]!r}")
                came = raw.count(b"\n")
                done += came
                pending[key.fd] -= came
                if pending[key.fd] == 0:
                    key.fileobj.sendall(batch)  # type: ignore[union-attr]
                    pending[key.fd] = lines
        return done / load.lines / (time.perf_counter() - start)
    finally:
        for key in list(selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        selector.close()


if __name__ == "__main__":
    print(run(*map(int, sys.argv[1:5])))
