"""Hosts: machines to run nodes on, and what can be done to them from outside; here only what all kinds share.

A host kind starts servers by a command line, carries their links, breaks both and mends both. It knows processes and
packets, and nothing of jobs. Links are directed: ("n1", "n2") is what n1 says to n2, whoever dialed. Every kind is a
set of servers (processes or containers) behind a `Network`; what it can do stands in `capabilities`, and each fault
that it claims to make can be measured with `probe`. `choosing.make_hosts(kind, options)` makes one.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

import attrs
import trio

Link = tuple[str, str]  # (who says, who hears)

NAME_PREFIX: Final = "dqj"
NODES_MAX: Final = 31

# What a host may be able to do.
CUT: Final = "cut"
ONE_WAY: Final = "one-way"
DELAY: Final = "delay"
LOSS: Final = "loss"
RESET: Final = "reset"
KILL: Final = "kill"
PAUSE: Final = "pause"
CLOCK: Final = "clock"
DISK_FULL: Final = "disk-full"
FSYNC: Final = "fsync"
WIPE: Final = "wipe"
JOIN: Final = "join"


class HostsError(Exception):
    """The machine, or a server on it, didn't do what the harness asked for; the text says what and why."""


class UnsupportedError(HostsError):
    """This kind of host can't do that: its name is not in `capabilities`."""


def make_prefix() -> str:
    """A name for all that one run creates: it tells the process that made it, so that only dead runs are swept."""
    return f"{NAME_PREFIX}-{os.getpid()}-{pid_space()}{secrets.token_hex(2)}"


def pid_space() -> str:
    """In whose pids this process counts: containers may share docker and folders, and have pids of their own."""
    return f"{Path('/proc/self/ns/pid').stat().st_ino & 0xFFFF:04x}"


@attrs.define(kw_only=True)
class HostOptions:
    """How a cluster is built. Directive names and values are the server's own."""

    count: int = attrs.field(
        default=5, validator=[attrs.validators.ge(1), attrs.validators.le(NODES_MAX)]
    )
    command: Sequence[str] = (sys.executable, "-m", "disque.server.main")
    # For every node, and for some: command-line words such as ("--maxmemory", "64mb").
    flags: Sequence[str] = ()
    node_flags: Mapping[str, Sequence[str]] = attrs.Factory(dict)
    environment: Mapping[str, str] = attrs.Factory(dict)
    node_timeout_ms: int = 1_000
    # Outside loopback an empty one is replaced by a random one; Hosts.password tells it.
    password: str = ""
    secret: str = ""
    prefix: str = attrs.Factory(make_prefix)
    # Where each node has a folder; None: below the system's folder for temporary files, gone at teardown.
    folder: Path | None = None
    appendonly: bool = False
    appendfsync: str = "everysec"
    # Ask for what costs something while it isn't used: libfaketime in each server, a small disk (bytes; 0: none).
    is_clock_faked: bool = False
    disk_bytes: int = 0
    # How long a server may take to its first answer, and the cluster to one view.
    patience_s: float = 30.0

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names, "n1" and so on."""
        return tuple(f"n{number}" for number in range(1, self.count + 1))


def all_links(nodes: Sequence[str]) -> frozenset[Link]:
    """Every directed link between two of these nodes."""
    return frozenset((source, target) for source in nodes for target in nodes if source != target)


class Hosts(Protocol):
    """A cluster on some machines. Everything waits until it is done, and may be called again when it is so already.

    OSError and HostsError mean that the harness failed, not the cluster; UnsupportedError that this kind can't.
    """

    name: str

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of all nodes, up or down."""
        ...

    @property
    def capabilities(self) -> frozenset[str]:
        """What this machine can do with this kind, known before `setup`.

        CLOCK and DISK_FULL also need `is_clock_faked` and `disk_bytes` in the options.
        """
        ...

    @property
    def password(self) -> str:
        """What clients say with AUTH; empty: nothing. Known before `setup`."""
        ...

    async def setup(self) -> None:
        """Network, folders, servers, and one view that has all nodes."""
        ...

    async def teardown(self) -> None:
        """Nothing is left but the folder that the caller named."""
        ...

    def address(self, node: str) -> tuple[str, int]:
        """Where clients connect, as the nodes themselves name it."""
        ...

    async def open(self, node: str) -> trio.SocketStream:
        """A new client connection; never cut by `cut`. OSError if there is none within the patience of the caller."""
        ...

    async def cut(self, links: Collection[Link]) -> None:
        """From now on exactly these links are silent; () heals all. Nobody is told: packets just don't arrive."""
        ...

    async def shape(
        self,
        links: Collection[Link],
        *,
        delay_ms: float = 0,
        jitter_ms: float = 0,
        loss: float = 0.0,
    ) -> None:
        """From now on exactly these links are slow or lossy (`loss`: 0..1); () ends it."""
        ...

    async def lost(self) -> int:
        """Packets that the loss which is on now has taken so far."""
        ...

    async def reset(self, links: Collection[Link]) -> None:
        """Abort what nodes have open on these links now; new connections are welcome."""
        ...

    async def probe(self) -> frozenset[Link]:
        """Links that carry bytes right now, as measured, whether servers are up or not."""
        ...

    async def times_ms(self) -> dict[Link, float]:
        """How long a few bytes take now on each link that carries them; UnsupportedError without DELAY."""
        ...

    async def kill(self, node: str) -> None:
        """SIGKILL; the node is down when this returns."""
        ...

    async def start(self, node: str) -> None:
        """Start a node that is down; it answers PING when this returns. HostsError with its last words if it ends."""
        ...

    async def pause(self, node: str) -> None:
        """SIGSTOP: sockets stay open, nothing answers."""
        ...

    async def resume(self, node: str) -> None:
        """Let a paused node go on."""
        ...

    async def wipe(self, node: str) -> None:
        """Take a dead node's data, its node table too; HostsError if it lives."""
        ...

    async def join(self, node: str, through: str) -> None:
        """Let `through` meet `node`: after a wipe, or a FORGET."""
        ...

    async def jump_clock(self, node: str, seconds: float) -> None:
        """From now on the node's wall clock is off by so much, monotonic time is not; 0 mends it."""
        ...

    async def fill_disk(self, node: str) -> None:
        """Leave no byte free where the node keeps its data."""
        ...

    async def free_disk(self, node: str) -> None:
        """Take back what `fill_disk` wrote."""
        ...

    async def slow_fsync(self, node: str, delay_ms: float) -> None:
        """Each fsync of the running process takes so much longer."""
        ...

    async def fail_fsync(self, node: str) -> None:
        """Each fsync of the running process fails with EIO."""
        ...

    async def mend_fsync(self, node: str) -> None:
        """Let fsync be as it was."""
        ...

    def is_alive(self, node: str) -> bool:
        """Its process runs, if paused."""
        ...

    def log_text(self, node: str) -> str:
        """All that the node wrote, over all its lives; "" before the first."""
        ...

    def rss_bytes(self, node: str) -> int:
        """Memory that the process has now; 0 for none."""
        ...

    def folder(self, node: str) -> Path:
        """Where its log (server.log) and its data (data/) are."""
        ...


class Network(Protocol):
    """What lies between nodes of a host kind: how they reach each other, and how that is broken."""

    password: str
    secret: str

    @property
    def capabilities(self) -> frozenset[str]:
        """Of CUT, ONE_WAY, DELAY, LOSS, RESET."""
        ...

    async def setup(self) -> None:
        """Make it; HostsError if this machine can't."""
        ...

    async def teardown(self) -> None:
        """End it."""
        ...

    async def verify(self) -> None:
        """HostsError unless, now that all nodes see each other, every link goes through this network."""
        ...

    def address(self, node: str) -> tuple[str, int]:
        """Host and client port of a node."""
        ...

    def bus_address(self, node: str) -> tuple[str, int]:
        """Host and bus port that a node announces."""
        ...

    def wrap(self, node: str, command: Sequence[str]) -> list[str]:
        """The command line that runs `command` where this node is; it becomes the command, with its pid."""
        ...

    def environment(self, node: str) -> Mapping[str, str]:
        """What its server must find in the environment."""
        ...

    async def open(self, node: str) -> trio.SocketStream:
        """As Hosts.open."""
        ...

    async def cut(self, links: Collection[Link]) -> None:
        """As Hosts.cut."""
        ...

    async def shape(
        self, links: Collection[Link], *, delay_ms: float, jitter_ms: float, loss: float
    ) -> None:
        """As Hosts.shape."""
        ...

    async def lost(self) -> int:
        """As Hosts.lost."""
        ...

    async def reset(self, links: Collection[Link]) -> None:
        """As Hosts.reset."""
        ...

    async def probe(self) -> frozenset[Link]:
        """As Hosts.probe."""
        ...

    async def times_ms(self) -> dict[Link, float]:
        """As Hosts.times_ms."""
        ...
