"""Options: what a test is, as the command line gives it; checked once, then plain values."""

from __future__ import annotations

import random
import secrets
import sys
from pathlib import Path
from typing import Any, Final

import attrs

from jepsen.hosts import choosing, clocks
from jepsen.hosts.base import HostOptions
from jepsen.nemesis.packages import ALL, KINDS, NONE
from jepsen.workloads import DEFAULT_NEMESIS, WORKLOADS

FINALS: Final = ("heal", "core")
AOF: Final = ("no", "everysec", "always")
DISK_BYTES: Final = 64 << 20
NODES: Final = (2, 9)
SERVER_COMMAND: Final = (sys.executable, "-m", "disque.server.main")


class OptionError(Exception):
    """A value that can't be used; the text names it."""


@attrs.frozen(kw_only=True)
class Options:
    """One test. Times in seconds unless the name says ms; 0 or -1 where the workload draws."""

    workload: str = "queue"
    nemesis: str = ""
    hosts: str = choosing.AUTO
    nodes: int = 5
    concurrency: int = 0  # clients; 0: three a node
    rate: float = 60.0  # operations begun a second by all clients, acks not counted
    replicate: int = 0
    retry: int = -1
    ttl: int = 0
    aof: str = "no"
    time_limit: float = 60.0
    nemesis_interval: float = 10.0
    nemesis_stable_period: float = 12.0
    node_timeout_ms: int = 1_000
    final: str = "heal"
    final_time_limit: float = 300.0
    seed: int = attrs.Factory(lambda: secrets.randbits(32))
    test_count: int = 1
    leave_running: bool = False
    server_command: tuple[str, ...] = ()
    json: bool = False
    store: Path = Path("store")

    def __attrs_post_init__(self) -> None:
        choices: tuple[tuple[str, str, tuple[str, ...]], ...] = (
            ("workload", self.workload, tuple(WORKLOADS)),
            ("hosts", self.hosts, choosing.KINDS),
            ("aof", self.aof, AOF),
            ("final", self.final, FINALS),
        )
        for name, value, known in choices:
            if value not in known:
                raise OptionError(f"--{name} {value}: there are {', '.join(known)}")
        least, most = NODES
        if not least <= self.nodes <= most:
            raise OptionError(f"--nodes {self.nodes}: between {least} and {most}")
        for word in self.nemesis_name.split(","):
            if word not in {NONE, *ALL, *KINDS}:
                names = ", ".join((NONE, *sorted(ALL), *KINDS))
                raise OptionError(f"--nemesis {word}: there are {names}")
        positive = (
            ("rate", self.rate),
            ("time-limit", self.time_limit),
            ("interval", self.nemesis_interval),
            ("test-count", self.test_count),
        )
        for name, number in positive:
            if number <= 0:
                raise OptionError(f"--{name} {number:g}: must be above 0")
        if self.replicate > self.nodes:
            raise OptionError(f"--replicate {self.replicate}: there are {self.nodes} nodes")

    @property
    def nemesis_name(self) -> str:
        """The nemesis, or the workload's own if none is named."""
        return self.nemesis or DEFAULT_NEMESIS.get(self.workload, "partition-halves")

    @property
    def name(self) -> str:
        """The name of the test, and of its folder in the store."""
        return f"{self.workload}-{self.nemesis_name.replace(',', '+')}"

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return self.concurrency or 3 * self.nodes

    @property
    def is_logged(self) -> bool:
        """True if nodes keep their jobs over a kill."""
        return self.aof != "no"

    def host_options(self, flags: tuple[str, ...], folder: Path | None = None) -> HostOptions:
        """How the cluster is built; what costs something is asked for only if the nemesis needs it."""
        words = set(self.nemesis_name.split(","))
        is_any = bool(words & ALL)
        is_clock_faked = (is_any or "clock" in words) and clocks.find_library() is not None
        is_small_disk = self.is_logged and (is_any or "disk-full" in words)
        return HostOptions(
            count=self.nodes,
            flags=flags,
            node_timeout_ms=self.node_timeout_ms,
            folder=folder,
            appendonly=self.is_logged,
            appendfsync=self.aof if self.is_logged else "everysec",
            is_clock_faked=is_clock_faked,
            disk_bytes=DISK_BYTES if is_small_disk else 0,
            command=self.server_command or SERVER_COMMAND,
        )

    def dice(self, name: str) -> random.Random:
        """A stream of dice of its own for each part, so that one more throw here changes nothing there."""
        return random.Random(f"{self.seed} {name}")

    def as_json(self) -> dict[str, Any]:
        """All options, JSON-able."""
        return {**attrs.asdict(self), "nemesis": self.nemesis_name, "store": str(self.store)}
