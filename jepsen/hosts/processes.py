"""Processes: server processes of this machine behind a network, started by command line, broken by signals and files.

Each node has a folder with `server.log`, all that its processes wrote, and `data/`, which `wipe` empties and which may
be a small disk of its own. Servers are in sessions of their own, so that Ctrl-C reaches the harness only, and die with
it.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

import attrs
import trio

from jepsen.hosts import base, cleaning, clocks, disks, probing, talking
from jepsen.hosts.base import HostOptions, HostsError, Link, Network, UnsupportedError
from jepsen.hosts.tracing import Tracers, failing, slow

ROOT: Final = Path(__file__).resolve().parents[2]
_LOOK_EVERY_S: Final = 0.005
_GONE_S: Final = 10.0
_LOG_TAIL: Final = 2_000
_ALWAYS: Final = frozenset({base.KILL, base.PAUSE, base.WIPE, base.JOIN})


@attrs.define(eq=False)
class ProcessHosts:
    """Hosts whose servers are processes here; `network` says where each runs and what lies between."""

    name: str
    options: HostOptions
    network: Network
    _processes: dict[str, subprocess.Popen[bytes]] = attrs.field(factory=dict, init=False)
    _tracers: Tracers = attrs.field(init=False)
    _folder: Path = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        options = self.options
        self._folder = (options.folder or cleaning.scratch_folder(options.prefix)).resolve()
        self._tracers = Tracers(options.prefix)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of all nodes."""
        return self.options.nodes

    @property
    def capabilities(self) -> frozenset[str]:
        """The network's, signals, and what the machine's tools allow."""
        tools = {
            base.CLOCK: probing.can_fake_clock,
            base.DISK_FULL: probing.can_mount,
            base.FSYNC: probing.can_trace,
        }
        found = {name for name, probe in tools.items() if probe().is_there}
        return self.network.capabilities | _ALWAYS | found

    @property
    def password(self) -> str:
        """What clients say with AUTH."""
        return self.network.password

    # Life

    async def setup(self) -> None:
        """Build everything up to one full view; what was built goes if that fails."""
        await trio.to_thread.run_sync(cleaning.sweep)
        cleaning.guard(self.options.prefix)
        try:
            await self.network.setup()
            for node in self.nodes:
                self._make_disk(node)
                self._spawn(node)
            async with trio.open_nursery() as nursery:
                for node in self.nodes:
                    nursery.start_soon(self._wait_answer, node)
            for node in self.nodes[1:]:
                await self.join(node, self.nodes[0])
            await talking.wait_full_view(self, self.nodes, self.options.patience_s)
            await self.network.verify()
        except BaseException:
            with trio.CancelScope(shield=True):
                await self.teardown()
            raise

    async def teardown(self) -> None:
        """Kill the servers, take the network away, unmount; the folder stays if the caller named it."""
        for node in self.nodes:
            await self.kill(node)
            disks.unmount(self._data(node))
        await self.network.teardown()
        cleaning.remove_run(self.options.prefix)
        cleaning.release(self.options.prefix)

    def _make_disk(self, node: str) -> None:
        data = self._data(node)
        data.mkdir(parents=True, exist_ok=True)
        if self.options.disk_bytes:
            disks.mount(data, self.options.disk_bytes, self.options.prefix)

    def _spawn(self, node: str) -> None:
        """Start the process and don't wait. From the main thread: servers die with the thread that starts them."""
        command = self.network.wrap(node, self._server_command(node))
        if shutil.which("setpriv"):
            command = ["setpriv", "--pdeathsig", "KILL", *command]
        with self._log(node).open("ab") as log:
            self._processes[node] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._data(node),
                env=self._environment(node),
                start_new_session=True,
            )

    def _server_command(self, node: str) -> list[str]:
        options = self.options
        host, port = self.network.address(node)
        bus_host, bus_port = self.network.bus_address(node)
        settings = {
            "bind": host,
            "port": port,
            "cluster-port": bus_port,
            "http-port": 0,
            "cluster-announce-host": bus_host,
            "cluster-node-timeout": options.node_timeout_ms,
            "dir": self._data(node),
            "appendonly": "yes" if options.appendonly else "no",
            "appendfsync": options.appendfsync,
        }
        words = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
        return [*options.command, *words, *options.flags, *options.node_flags.get(node, ())]

    def _environment(self, node: str) -> dict[str, str]:
        """Ours without the user's settings of servers; secrets stand here, not in the command line."""
        kept = {name: text for name, text in os.environ.items() if not name.startswith("DISQUE_")}
        path = os.pathsep.join(filter(None, (str(ROOT), kept.get("PYTHONPATH"))))
        secrets = {
            "DISQUE_REQUIREPASS": self.network.password,
            "DISQUE_CLUSTER_SECRET": self.network.secret,
        }
        clock: Mapping[str, str] = {}
        if self.options.is_clock_faked and (library := clocks.find_library()):
            clocks.set_offset(self._clock(node), 0)
            clock = clocks.environment(library, self._clock(node))
        return {
            **kept,
            **{name: text for name, text in secrets.items() if text},
            "PYTHONPATH": path,
            cleaning.MARK: self.options.prefix,
            **self.network.environment(node),
            **clock,
            **self.options.environment,
        }

    async def _wait_answer(self, node: str) -> None:
        with trio.move_on_after(self.options.patience_s):
            while not await talking.is_answering(self, node):
                if not self.is_alive(node):
                    status = self._processes[node].returncode
                    raise HostsError(f"{node} ended, exit {status}: {self._last_words(node)}")
                await trio.sleep(_LOOK_EVERY_S)
            return
        text = f"{node} doesn't answer within {self.options.patience_s:g} s"
        raise HostsError(f"{text}: {self._last_words(node)}")

    # The network's

    def address(self, node: str) -> tuple[str, int]:
        """Where clients connect."""
        return self.network.address(node)

    async def open(self, node: str) -> trio.SocketStream:
        """A new client connection."""
        return await self.network.open(node)

    async def cut(self, links: Collection[Link]) -> None:
        """Silence exactly these links."""
        await self.network.cut(links)

    async def shape(
        self,
        links: Collection[Link],
        *,
        delay_ms: float = 0,
        jitter_ms: float = 0,
        loss: float = 0.0,
    ) -> None:
        """Slow or thin out exactly these links."""
        await self.network.shape(links, delay_ms=delay_ms, jitter_ms=jitter_ms, loss=loss)

    async def lost(self) -> int:
        """As the network counts."""
        return await self.network.lost()

    async def reset(self, links: Collection[Link]) -> None:
        """Abort what is open on these links."""
        await self.network.reset(links)

    async def probe(self) -> frozenset[Link]:
        """Links that carry bytes now."""
        return await self.network.probe()

    async def times_ms(self) -> dict[Link, float]:
        """As the network measures."""
        return await self.network.times_ms()

    # Processes

    async def kill(self, node: str) -> None:
        """SIGKILL, and wait for the end."""
        process = self._processes.pop(node, None)
        if process is None:
            return
        process.kill()
        with trio.CancelScope(shield=True):
            await self._wait_end(node, process)
            await self.mend_fsync(node)

    async def _wait_end(self, node: str, process: subprocess.Popen[bytes]) -> None:
        with trio.move_on_after(_GONE_S):
            while process.poll() is None:
                await trio.sleep(_LOOK_EVERY_S)
            return
        raise HostsError(f"{node} (pid {process.pid}) outlives SIGKILL by {_GONE_S:g} s")

    async def start(self, node: str) -> None:
        """Start a node that is down, and wait for its answer."""
        if not self.is_alive(node):
            self._spawn(node)
        await self._wait_answer(node)

    async def pause(self, node: str) -> None:
        """SIGSTOP; returns once the kernel has stopped it."""
        self._running(node).send_signal(signal.SIGSTOP)
        with trio.move_on_after(_GONE_S):
            while self.is_alive(node) and _state(self._running(node).pid) not in "Tt":
                await trio.sleep(_LOOK_EVERY_S)

    async def resume(self, node: str) -> None:
        """SIGCONT."""
        if self.is_alive(node):
            self._running(node).send_signal(signal.SIGCONT)

    async def wipe(self, node: str) -> None:
        """Empty the data folder of a dead node."""
        if self.is_alive(node):
            raise HostsError(f"{node} runs; kill it before its data goes")
        disks.wipe(self._data(node), self._folder)

    async def join(self, node: str, through: str) -> None:
        """CLUSTER MEET."""
        bus_port = self.network.bus_address(node)[1]
        await talking.meet(self, through, self.address(node), bus_port)

    def _running(self, node: str) -> subprocess.Popen[bytes]:
        if not self.is_alive(node):
            raise HostsError(f"{node} doesn't run")
        return self._processes[node]

    # Clock and disk

    async def jump_clock(self, node: str, seconds: float) -> None:
        """Set the wall clock off."""
        if not self.options.is_clock_faked or clocks.find_library() is None:
            raise UnsupportedError("clocks are true here: is_clock_faked is off, or no libfaketime")
        clocks.set_offset(self._clock(node), seconds)

    async def fill_disk(self, node: str) -> None:
        """Write ballast until no byte is free."""
        await trio.to_thread.run_sync(disks.fill, self._data(node))

    async def free_disk(self, node: str) -> None:
        """Remove the ballast."""
        disks.free(self._data(node))

    async def slow_fsync(self, node: str, delay_ms: float) -> None:
        """Hold the process with strace; one injection at a time."""
        await self._tracers.hold(node, self._running(node).pid, slow(delay_ms))

    async def fail_fsync(self, node: str) -> None:
        """Hold the process with strace; one injection at a time."""
        await self._tracers.hold(node, self._running(node).pid, failing())

    async def mend_fsync(self, node: str) -> None:
        """Let strace go."""
        await self._tracers.release(node)

    # What it is like

    def is_alive(self, node: str) -> bool:
        """Its process runs, if paused."""
        process = self._processes.get(node)
        return process is not None and process.poll() is None

    def log_text(self, node: str) -> str:
        """All that it wrote."""
        log = self._log(node)
        return log.read_text(errors="replace") if log.exists() else ""

    def rss_bytes(self, node: str) -> int:
        """Resident memory."""
        if not self.is_alive(node):
            return 0
        return resident_bytes(self._processes[node].pid)

    def folder(self, node: str) -> Path:
        """Of log and data."""
        return self._folder / node

    def _data(self, node: str) -> Path:
        return self.folder(node) / "data"

    def _log(self, node: str) -> Path:
        return self.folder(node) / "server.log"

    def _clock(self, node: str) -> Path:
        return self.folder(node) / "clock"

    def _last_words(self, node: str) -> str:
        return self.log_text(node)[-_LOG_TAIL:].strip() or "it wrote nothing"


def _state(pid: int) -> str:
    """The letter that the kernel gives a process's state; Z if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "Z"


def resident_bytes(pid: int) -> int:
    """Memory that a process has; 0 if it is about to end."""
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * resource.getpagesize() if len(fields) > 1 else 0
