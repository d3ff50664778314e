"""Logged: what tests of nodes with a log share: their segments, waiting, taking jobs, a bound on their files."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

from tests.system.nodes import Node, ReplyError, Resp, wait_until

if TYPE_CHECKING:
    from pathlib import Path

LOG = ("--appendonly", "yes")
GONE = (OSError, EOFError)


def segments(node: Node) -> list[Path]:
    """The log's files, the oldest first."""
    return sorted((node.folder / "disque.aof").glob("*.log"))


def wait_ready(node: Node) -> None:
    """Wait until the log is loaded."""
    wait_until(f"{node.port} has loaded", lambda: node.info("persistence")["loading"] == "0")


def start_again(node: Node) -> Node:
    """After a kill or a stop: until it serves."""
    node.start()
    wait_ready(node)
    return node


def jobs_of(node: Node, queue: str) -> list[bytes]:
    """Take all jobs of a queue, ack them, return their bodies."""
    bodies = []
    with node.connect() as client:
        while found := client.call("GETJOB", "TIMEOUT", 200, "COUNT", 100, "FROM", queue):
            bodies += [body for _, _, body in found]
            client.call("ACKJOB", *[id_ for _, id_, _ in found])
    return bodies


def client_reply(client: Resp, *words: str | bytes | int) -> object:
    """One reply, None for an error: nodes that start or stop refuse."""
    client.send(*words)
    reply = client.read()
    return None if isinstance(reply, ReplyError) else reply


def limit(node: Node, bytes_more: int) -> None:
    """No file of this process may grow beyond its log's present size and so much more; -1: as it likes."""
    assert node.process is not None
    size = sum(path.stat().st_size for path in segments(node)) + bytes_more
    most = resource.RLIM_INFINITY if bytes_more < 0 else size
    resource.prlimit(node.process.pid, resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
