"""Servers: what is measured side by side, each with the words in which it is asked for the same thing."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from tests.bench.pipeline import BODY, Load
from tests.system.nodes import Node, command_bytes, wait_until

if TYPE_CHECKING:
    from pathlib import Path

QUEUE = "bench"
ID_BYTES = 40


class Server(Node):
    """Ours; the others differ in the words."""

    title = "disque-broker"
    knows_replicate = True

    def add(self, copies: int = 1) -> Load:
        """One job more."""
        return Load(command_bytes("ADDJOB", QUEUE, BODY, 0, "REPLICATE", copies))

    def get(self) -> Load:
        """The next job: an array of one of three."""
        return Load(command_bytes("GETJOB", "FROM", QUEUE), lines=8)

    def empty(self) -> None:
        """No job is left."""
        self.call("DEBUG", "FLUSHALL")


class CDisque(Server):
    """C Disque, built by hand; its binary is named by the user."""

    title = "C Disque"

    def __init__(self, binary: str, folder: Path, *flags: str) -> None:
        super().__init__(folder, *flags)
        self.binary = binary

    def command_line(self) -> list[str]:
        """As Node."""
        return [self.binary, "--port", str(self.port), "--dir", str(self.folder), *self.flags]


class Redis(Server):
    """A list: what people use for want of a queue. Nothing is acknowledged, nothing has a second copy."""

    title = "Redis list"
    knows_replicate = False

    def command_line(self) -> list[str]:
        """As Node."""
        words = ["redis-server", "--port", str(self.port), "--dir", str(self.folder), "--save", ""]
        return [*words, *self.flags]

    def add(self, copies: int = 1) -> Load:
        """LPUSH."""
        assert copies == 1, "a Redis list has one copy"
        return Load(command_bytes("LPUSH", QUEUE, BODY))

    def get(self) -> Load:
        """RPOP."""
        return Load(command_bytes("RPOP", QUEUE), lines=2)

    def empty(self) -> None:
        """As Server."""
        self.call("FLUSHALL")


class Beanstalkd(Server):
    """beanstalkd, tube `default`; a reserved job is deleted when its connection says so, here never."""

    title = "beanstalkd"
    knows_replicate = False

    def command_line(self) -> list[str]:
        """As Node."""
        return ["beanstalkd", "-l", "127.0.0.1", "-p", str(self.port)]

    def answers(self) -> bool:
        """As Node, by a word of its own protocol."""
        assert self.process is not None
        with self.connect() as client:
            client.sock.sendall(b"list-tubes\r\n")
            return client.sock.recv(100).startswith(b"OK")

    def add(self, copies: int = 1) -> Load:
        """put."""
        assert copies == 1, "beanstalkd has one copy"
        return Load(b"put 1024 0 60 %d\r\n%b\r\n" % (len(BODY), BODY), error=b"OUT_OF_MEMORY")

    def get(self) -> Load:
        """reserve."""
        return Load(b"reserve-with-timeout 1\r\n", lines=2, error=b"TIMED_OUT")

    def empty(self) -> None:
        """It starts anew: without a log that leaves nothing."""
        self.kill()
        self.start()


def others(folder: Path, binary: str) -> list[Server]:
    """The servers to compare with that this machine has."""
    found: list[Server] = [CDisque(binary, folder / "c-disque")] if binary else []
    if shutil.which("redis-server"):
        found.append(Redis(folder / "redis"))
    if shutil.which("beanstalkd"):
        found.append(Beanstalkd(folder / "beanstalkd"))
    return found


def join(nodes: list[Server]) -> None:
    """Let the first meet the others, and wait until each has had a word of each: both Disques show it by HELLO."""
    for node in nodes[1:]:
        nodes[0].call("CLUSTER", "MEET", "127.0.0.1", node.port)

    def is_whole() -> bool:
        return all(len(node.call("HELLO")) == 2 + len(nodes) for node in nodes)

    wait_until("the cluster is one", is_whole)
    wait_until("three copies can be had", lambda: _takes_copies(nodes[0], len(nodes)), every_s=0.2)
    nodes[0].empty()


def _takes_copies(node: Server, copies: int) -> bool:
    with node.connect() as client:
        client.send("ADDJOB", "warm", "x", 500, "REPLICATE", copies)
        return isinstance(client.read(), str)
