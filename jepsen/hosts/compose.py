"""Compose: the containers of docker-compose.yml, as users get them, broken from outside.

Cuts and loss are nft verdicts on what a container hears, put into its namespace by `nsenter`; crashes and pauses are
docker's. A container that is dead has no network, so its links carry nothing until it is started, and each start may
give it another address: verdicts are made anew then, before its server listens. Clients use the published ports on
loopback. Needs root, docker, compose, and `nft`.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from jepsen.hosts import base, cleaning, disks, namespaces, nft, talking
from jepsen.hosts.base import HostOptions, HostsError, Link, UnsupportedError
from jepsen.hosts.commands import run
from jepsen.hosts.processes import resident_bytes
from jepsen.hosts.tracing import Tracers, failing, slow

ROOT: Final = Path(__file__).resolve().parents[2]
COUNT: Final = 3  # of docker-compose.yml
_PORTS_FROM: Final = 7711
_BUS_OFFSET: Final = 10_000
_BUILD_S: Final = 600.0
_VERB_S: Final = 60.0
_LOOK_EVERY_S: Final = 0.02


@attrs.frozen
class Container:
    """One container while it runs."""

    pid: int
    address: str
    data: Path  # where its volume lies on this machine


def service(node: str) -> str:
    """The name of a node in docker-compose.yml: disque-1 for n1."""
    return f"disque-{node.removeprefix('n')}"


def overrides(options: HostOptions) -> dict[str, Any]:
    """What docker-compose.yml is told on top: settings of this run, and that a crash stays one."""
    settings = {
        "DISQUE_CLUSTER_NODE_TIMEOUT": str(options.node_timeout_ms),
        "DISQUE_APPENDONLY": "yes" if options.appendonly else "no",
        "DISQUE_APPENDFSYNC": options.appendfsync,
        **options.environment,
    }
    services = {
        service(node): {
            "restart": "no",
            "environment": settings,
            "command": ["--dir", "/data", *options.flags, *options.node_flags.get(node, ())],
        }
        for node in options.nodes
    }
    return {"services": services}


def container_of(told: Mapping[str, Any]) -> Container | None:
    """What `docker inspect` tells of a container; None if it doesn't run."""
    if not told["State"]["Running"]:
        return None
    (network,) = told["NetworkSettings"]["Networks"].values()
    mounts = {each["Destination"]: Path(each["Source"]) for each in told["Mounts"]}
    return Container(told["State"]["Pid"], network["IPAddress"], mounts["/data"])


def volume_of(told: str, prefix: str) -> tuple[Path, Path]:
    """Data and folder of a volume, as docker tells its name and source; HostsError if it isn't this run's."""
    name, _, source = told.strip().partition(" ")
    folder = Path(source).parent
    if not name.startswith(f"{prefix}_") or folder.name != name:
        raise HostsError(f"no volume of {prefix} is {told.strip()!r}")
    return Path(source), folder


@attrs.define(eq=False)
class ComposeHosts:
    """Hosts that are containers."""

    options: HostOptions
    name: str = attrs.field(default="compose", init=False)
    password: str = attrs.field(init=False)
    _secret: str = attrs.field(init=False)
    _folder: Path = attrs.field(init=False)
    _compose: list[str] = attrs.field(factory=list, init=False)
    _ids: dict[str, str] = attrs.field(factory=dict, init=False)
    _running: dict[str, Container] = attrs.field(factory=dict, init=False)
    _tracers: Tracers = attrs.field(init=False)
    _prober: namespaces.Prober = attrs.field(factory=namespaces.Prober, init=False)
    _silent: frozenset[Link] = attrs.field(default=frozenset(), init=False)
    _lossy: frozenset[Link] = attrs.field(default=frozenset(), init=False)
    _loss: float = attrs.field(default=0.0, init=False)

    def __attrs_post_init__(self) -> None:
        options = self.options
        if options.count != COUNT:
            raise HostsError(f"docker-compose.yml has {COUNT} nodes, asked for are {options.count}")
        if options.command != HostOptions().command:
            raise HostsError("containers run what is in the image, not a command of their own")
        self.password = options.password or secrets.token_hex(8)
        self._secret = options.secret or secrets.token_hex(16)
        self._folder = (options.folder or cleaning.scratch_folder(options.prefix)).resolve()
        self._tracers = Tracers(options.prefix)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of all nodes."""
        return self.options.nodes

    @property
    def capabilities(self) -> frozenset[str]:
        """No delay, no clock, no small disk: the image has none of it."""
        found = {base.CUT, base.ONE_WAY, base.LOSS, base.KILL, base.PAUSE, base.WIPE, base.JOIN}
        tools = {base.RESET: "ss", base.FSYNC: "strace"}
        return frozenset(found | {name for name, tool in tools.items() if shutil.which(tool)})

    # Life

    async def setup(self) -> None:
        """Build the image, start the containers, wait for one full view; dead runs go before: they hold our ports."""
        await trio.to_thread.run_sync(cleaning.clean)
        cleaning.guard(self.options.prefix, with_docker=True)
        try:
            self._compose = [*await compose_command(), *self._files()]
            await self._do("build", timeout_s=_BUILD_S)
            await self._do("up", "-d", "--no-build")
            for node in self.nodes:
                self._ids[node] = (await self._do("ps", "-q", service(node))).strip()
                await self._look_at(node)
            await talking.wait_full_view(self, self.nodes, self.options.patience_s)
            await self._judge()
        except BaseException:
            with trio.CancelScope(shield=True):
                await self.teardown()
            raise

    async def teardown(self) -> None:
        """Keep the logs, then remove containers, network and volumes; the image stays."""
        for node in self.nodes:
            self._prober.close(node)
            await self.mend_fsync(node)
            log = self.folder(node) / "server.log"
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text(self.log_text(node))
        if self._compose:
            await self._do("down", "--volumes", "--timeout", "0")
            self._compose = []
        cleaning.remove_run(self.options.prefix, with_docker=True)
        cleaning.release(self.options.prefix)
        self._ids.clear()
        self._running.clear()

    def _files(self) -> list[str]:
        """Which files compose reads, and the project's name."""
        self._folder.mkdir(parents=True, exist_ok=True)
        more = self._folder / "compose.json"
        more.write_text(json.dumps(overrides(self.options), indent=1))
        main = ROOT / "docker-compose.yml"
        return ["-f", str(main), "-f", str(more), "-p", self.options.prefix]

    async def _do(self, *words: str, timeout_s: float = _VERB_S) -> str:
        secrets_of = {"DISQUE_PASSWORD": self.password, "CLUSTER_SECRET": self._secret}
        return await run(
            *self._compose,
            *words,
            timeout_s=timeout_s,
            folder=ROOT,
            environment={**os.environ, **secrets_of},
        )

    async def _look_at(self, node: str) -> None:
        """Learn where a container that was just started is, and give its namespace a table and a prober."""
        (told,) = json.loads(await run("docker", "inspect", self._ids[node]))
        found = container_of(told)
        if found is None:
            raise HostsError(f"{node} doesn't run: {self.log_text(node)[-2_000:].strip()}")
        self._running[node] = found
        await self._nft(node, nft.table(nft.FAMILY_INET))
        self._prober.open(node, Path(f"/proc/{found.pid}/ns/net"), found.address)

    # The network

    def address(self, node: str) -> tuple[str, int]:
        """The published port."""
        return "127.0.0.1", _PORTS_FROM + self.nodes.index(node)

    async def open(self, node: str) -> trio.SocketStream:
        """A plain connection."""
        return await trio.open_tcp_stream(*self.address(node))

    async def cut(self, links: Collection[Link]) -> None:
        """Silence exactly these links, each where it is heard."""
        self._silent = frozenset(links)
        await self._judge()

    async def shape(
        self,
        links: Collection[Link],
        *,
        delay_ms: float = 0,
        jitter_ms: float = 0,
        loss: float = 0.0,
    ) -> None:
        """Thin out exactly these links; UnsupportedError for a delay."""
        if links and (delay_ms or jitter_ms):
            raise UnsupportedError("containers delay nothing, only the proxy does")
        self._lossy, self._loss = frozenset(links), loss
        await self._judge()

    async def lost(self) -> int:
        """As the filters of all live containers count."""
        listing = nft.listing(nft.FAMILY_INET)
        return sum([nft.lost(await self._nft(node, listing)) for node in self._running])

    async def reset(self, links: Collection[Link]) -> None:
        """Kill the sockets that these nodes have open to each other."""
        for source, target in sorted(links):
            if source in self._running and target in self._running:
                host = self._running[target].address
                await self._inside(source, "ss", "--kill", "--tcp", "--no-header", "dst", host)

    async def probe(self) -> frozenset[Link]:
        """Links between live containers that carry datagrams."""
        return await self._prober.probe()

    async def times_ms(self) -> dict[Link, float]:
        """UnsupportedError: no link is slow."""
        raise UnsupportedError("containers delay nothing, so they time nothing")

    async def _judge(self) -> None:
        """Each live container drops what it may not hear."""
        async with trio.open_nursery() as nursery:
            for node in self._running:
                nursery.start_soon(self._judge_at, node)

    async def _judge_at(self, node: str) -> None:
        silent, lossy = self._heard_by(node, self._silent), self._heard_by(node, self._lossy)
        await self._nft(node, nft.verdicts(nft.FAMILY_INET, silent, lossy, self._loss))

    def _heard_by(self, node: str, links: Collection[Link]) -> list[nft.Addresses]:
        return [
            (self._running[source].address, self._running[target].address)
            for source, target in links
            if target == node and source in self._running
        ]

    async def _inside(self, node: str, *command: str, text: str = "") -> str:
        target = ["nsenter", "--target", str(self._running[node].pid), "--net", "--"]
        return await run(*target, *command, text=text)

    async def _nft(self, node: str, script: str) -> str:
        return await self._inside(node, "nft", "-f", "-", text=script)

    # Containers

    async def kill(self, node: str) -> None:
        """`docker kill`, and wait for the end."""
        if node not in self._running:
            return
        self._prober.close(node)
        await self.mend_fsync(node)
        if self.is_alive(node):
            await run("docker", "kill", "--signal", "KILL", self._ids[node])
        await run("docker", "wait", self._ids[node])
        del self._running[node]

    async def start(self, node: str) -> None:
        """`docker start`, the verdicts again, and wait for the first answer."""
        if not self.is_alive(node):
            await self.kill(node)
            await run("docker", "start", self._ids[node])
            await self._look_at(node)
            await self._judge()
        with trio.move_on_after(self.options.patience_s):
            while not await talking.is_answering(self, node):
                if not self.is_alive(node):
                    raise HostsError(f"{node} ended: {self.log_text(node)[-2_000:].strip()}")
                await trio.sleep(_LOOK_EVERY_S)
            return
        raise HostsError(f"{node} doesn't answer within {self.options.patience_s:g} s")

    async def pause(self, node: str) -> None:
        """`docker pause`."""
        await run("docker", "pause", self._ids[node])

    async def resume(self, node: str) -> None:
        """`docker unpause`."""
        state = await run("docker", "inspect", "-f", "{{.State.Paused}}", self._ids[node])
        if state.strip() == "true":
            await run("docker", "unpause", self._ids[node])

    async def wipe(self, node: str) -> None:
        """Empty the volume of a dead container."""
        if self.is_alive(node):
            raise HostsError(f"{node} runs; kill it before its data goes")
        template = (
            '{{range .Mounts}}{{if eq .Destination "/data"}}{{.Name}} {{.Source}}{{end}}{{end}}'
        )
        found = await run("docker", "inspect", "-f", template, self._ids[node])
        disks.wipe(*volume_of(found, self.options.prefix))

    async def join(self, node: str, through: str) -> None:
        """CLUSTER MEET by the service's name; nodes also join by themselves, from docker-compose.yml."""
        port = self.address(node)[1]
        await talking.meet(self, through, (service(node), port), port + _BUS_OFFSET)

    # Clock and disk

    async def jump_clock(self, node: str, seconds: float) -> None:
        """UnsupportedError."""
        raise UnsupportedError(f"{node}'s clock is the machine's, {seconds} s can't be added")

    async def fill_disk(self, node: str) -> None:
        """UnsupportedError."""
        raise UnsupportedError(f"{node} has no disk of its own")

    async def free_disk(self, node: str) -> None:
        """Nothing was filled."""

    async def slow_fsync(self, node: str, delay_ms: float) -> None:
        """Hold the server with strace, from outside."""
        await self._tracers.hold(node, self._running[node].pid, slow(delay_ms))

    async def fail_fsync(self, node: str) -> None:
        """Hold the server with strace, from outside."""
        await self._tracers.hold(node, self._running[node].pid, failing())

    async def mend_fsync(self, node: str) -> None:
        """Let strace go."""
        await self._tracers.release(node)

    # What it is like

    def is_alive(self, node: str) -> bool:
        """The container's first process, the server, is there."""
        container = self._running.get(node)
        return container is not None and Path(f"/proc/{container.pid}/root").exists()

    def log_text(self, node: str) -> str:
        """`docker logs`, both streams."""
        if node not in self._ids:
            return ""
        done = subprocess.run(
            ["docker", "logs", self._ids[node]],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        return done.stdout.decode(errors="replace")

    def rss_bytes(self, node: str) -> int:
        """Resident memory of the server."""
        if not self.is_alive(node):
            return 0
        return resident_bytes(self._running[node].pid)

    def folder(self, node: str) -> Path:
        """Of the log, once the run is over."""
        return self._folder / node


async def compose_command() -> list[str]:
    """Compose v2 if docker has it, else docker-compose."""
    try:
        await run("docker", "compose", "version")
    except HostsError:
        return ["docker-compose"]
    return ["docker", "compose"]
