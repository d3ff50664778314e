"""Servers: what is measured side by side, each with the words in which it is asked for the same thing."""

from __future__ import annotations

import contextlib
import os
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from tests.bench.pipeline import BODY, Load
from tests.bench.report import YARDSTICK
from tests.system.nodes import Node, Resp, command_bytes, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

QUEUE = "bench"
OURS, COMPILED = "disque-broker", "compiled"
DRAINED = 1_000  # jobs that one GETJOB takes from a server that isn't ours to end


class Server(Node):
    """Ours; the others differ in the words."""

    host = "127.0.0.1"

    def add(self, copies: int = 1, *options: str | int) -> Load:
        """One job more."""
        return Load(command_bytes("ADDJOB", QUEUE, BODY, 0, "REPLICATE", copies, *options))

    def get(self) -> Load:
        """The next job: an array of one of three. Waits where there is none: ask for fewer than there are."""
        return Load(command_bytes("GETJOB", "FROM", QUEUE), lines=8)

    def rss_bytes(self) -> int:
        """Resident memory of the process."""
        assert self.process is not None
        words = Path(f"/proc/{self.process.pid}/statm").read_text().split()
        return int(words[1]) * os.sysconf("SC_PAGE_SIZE")

    def cpu_s(self) -> float:
        """Processor time that it has used."""
        assert self.process is not None
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class CDisque(Server):
    """C Disque, built by hand; its binary is named by the user."""

    def __init__(self, binary: str, folder: Path, *flags: str) -> None:
        super().__init__(folder, *flags)
        self.binary = binary

    def command_line(self) -> list[str]:
        """As Node."""
        return [self.binary, "--port", str(self.port), "--dir", str(self.folder), *self.flags]


class Endpoint(Server):
    """A server that runs already and speaks Disque's commands; queue `bench` is used, and emptied at the end."""

    def __init__(self, host: str, port: int, folder: Path, *flags: str) -> None:
        assert not flags, "it runs already"
        super().__init__(folder, port=port)
        self.host = host

    def connect(self) -> Resp:
        """As Node."""
        return Resp(self.port, self.host)

    def start(self, **environment: str) -> Node:
        """It must answer."""
        self.call("PING")
        return self

    def kill(self) -> None:
        """Acknowledge what is left in the queue; a server that doesn't answer any more keeps it."""
        with contextlib.suppress(OSError, EOFError), self.connect() as client:
            while jobs := client.call("GETJOB", "NOHANG", "COUNT", DRAINED, "FROM", QUEUE):
                client.call("FASTACK", *[job[1] for job in jobs])


class Redis(Server):
    """A list: what people use for want of a queue. Nothing is acknowledged, nothing has a second copy."""

    def command_line(self) -> list[str]:
        """As Node."""
        words = ["redis-server", "--port", str(self.port), "--dir", str(self.folder), "--save", ""]
        return [*words, *self.flags]

    def add(self, copies: int = 1, *options: str | int) -> Load:
        """LPUSH."""
        assert (copies, options) == (1, ()), "a Redis list has one copy"
        return Load(command_bytes("LPUSH", QUEUE, BODY))

    def get(self) -> Load:
        """RPOP."""
        return Load(command_bytes("RPOP", QUEUE), lines=2)


class Beanstalkd(Server):
    """beanstalkd, tube `default`; a reserved job is deleted when its connection says so, here never."""

    def command_line(self) -> list[str]:
        """As Node."""
        return ["beanstalkd", "-l", "127.0.0.1", "-p", str(self.port)]

    def answers(self) -> bool:
        """As Node, by a word of its own protocol."""
        assert self.process is not None
        with self.connect() as client:
            client.sock.sendall(b"list-tubes\r\n")
            return client.sock.recv(100).startswith(b"OK")

    def add(self, copies: int = 1, *options: str | int) -> Load:
        """put."""
        assert (copies, options) == (1, ()), "beanstalkd has one copy"
        return Load(b"put 1024 0 60 %d\r\n%b\r\n" % (len(BODY), BODY), error=b"OUT_OF_MEMORY")

    def get(self) -> Load:
        """reserve."""
        return Load(b"reserve-with-timeout 1\r\n", lines=2, error=b"TIMED_OUT")


@attrs.frozen
class Kind:
    """A server to measure: `make` takes a folder and flags. Who isn't started here has one node and no flags."""

    title: str
    make: Callable[..., Server]
    is_disque: bool = True
    is_started_here: bool = True


def kinds(
    binary: str = "", endpoints: tuple[str, ...] = (), compiled: Path | None = None
) -> list[Kind]:
    """Ours, its compiled build if there is one, then all to compare them with.

    C Disque if its binary is named, those by address, what is installed here.
    """
    found = [Kind(OURS, Server)]
    if compiled:
        found.append(Kind(COMPILED, partial(Server, root=compiled)))
    if binary:
        found.append(Kind(YARDSTICK, partial(CDisque, binary)))
    found += [endpoint(each) for each in endpoints]
    if shutil.which("redis-server"):
        found.append(Kind("Redis list", Redis, is_disque=False))
    if shutil.which("beanstalkd"):
        found.append(Kind("beanstalkd", Beanstalkd, is_disque=False))
    return found


def endpoint(text: str) -> Kind:
    """[TITLE=]HOST:PORT of a server that speaks Disque's commands; ValueError for anything else."""
    title, _, address = text.rpartition("=")
    host, colon, port = address.rpartition(":")
    if not (host and colon and port.isdecimal()):
        raise ValueError(f"expected [TITLE=]HOST:PORT, got {text!r}")
    return Kind(title or address, partial(Endpoint, host, int(port)), is_started_here=False)


def join(nodes: list[Server]) -> None:
    """Let the first meet the others, and wait until each has had a word of each: both Disques show it by HELLO."""
    for node in nodes[1:]:
        nodes[0].call("CLUSTER", "MEET", "127.0.0.1", node.port)

    def is_whole() -> bool:
        return all(len(node.call("HELLO")) == 2 + len(nodes) for node in nodes)

    wait_until("the cluster is one", is_whole)
    wait_until("three copies can be had", lambda: _takes_copies(nodes[0], len(nodes)), every_s=0.2)


def _takes_copies(node: Server, copies: int) -> bool:
    with node.connect() as client:
        client.send("ADDJOB", "warm", "x", 500, "REPLICATE", copies, "TTL", 1)
        return isinstance(client.read(), str)
