"""Local: nodes on loopback, whose links go through a proxy process of ours; needs no root.

A node reaches another through the listener of its pair, by the server's dial map (DISQUE_DIAL_MAP); what nodes announce
and clients use are the true addresses.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import socket
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from jepsen.hosts import base
from jepsen.hosts.base import HostOptions, HostsError, Link, all_links
from jepsen.hosts.cleaning import MARK

HOST: Final = "127.0.0.1"
DIAL_MAP: Final = "DISQUE_DIAL_MAP"
ROOT: Final = Path(__file__).resolve().parents[2]
# Below the range that the system gives to outgoing connections, and none that the system tests use.
_PORTS: Final = range(12_000, 14_000)
_BUS_OFFSET: Final = 10_000
_ANSWER_S: Final = 30.0


def free_ports(count: int, dice: random.Random) -> list[int]:
    """Ports that are free together with those 10,000 above."""
    found: list[int] = []
    for port in dice.sample(_PORTS, len(_PORTS)):
        if len(found) == count:
            break
        try:
            for each in (port, port + _BUS_OFFSET):
                with socket.socket() as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind((HOST, each))
        except OSError:
            continue
        found.append(port)
    if len(found) < count:
        raise HostsError(f"only {len(found)} of {count} pairs of ports are free in {_PORTS}")
    return found


def dial_map(ways: Mapping[str, tuple[str, int]], buses: Mapping[str, tuple[str, int]]) -> str:
    """DISQUE_DIAL_MAP's text: each bus is reached by its way."""
    pairs = (f"{_joined(buses[target])}={_joined(way)}" for target, way in ways.items())
    return ",".join(pairs)


def _joined(address: tuple[str, int]) -> str:
    return f"{address[0]}:{address[1]}"


@attrs.define(eq=False)
class ProxyNetwork:
    """Loopback and the proxy."""

    options: HostOptions
    password: str = attrs.field(init=False)
    secret: str = attrs.field(init=False)
    _ports: dict[str, int] = attrs.field(factory=dict, init=False)
    _ways: dict[Link, int] = attrs.field(factory=dict, init=False)
    _process: trio.Process | None = attrs.field(default=None, init=False)
    _turn: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _ids: itertools.count[int] = attrs.field(factory=itertools.count, init=False)
    _heard: bytearray = attrs.field(factory=bytearray, init=False)

    def __attrs_post_init__(self) -> None:
        self.password, self.secret = self.options.password, self.options.secret

    @property
    def capabilities(self) -> frozenset[str]:
        """All but loss: a proxy carries bytes, not packets."""
        return frozenset({base.CUT, base.ONE_WAY, base.DELAY, base.RESET})

    async def setup(self) -> None:
        """Start the proxy and let it listen for each pair."""
        nodes = self.options.nodes
        ports = free_ports(len(nodes), random.Random())
        self._ports = dict(zip(nodes, ports, strict=True))
        self._process = await trio.lowlevel.open_process(
            [sys.executable, "-m", "jepsen.hosts.proxy"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, MARK: self.options.prefix},
            start_new_session=True,
        )
        answer = await self._order("listen", buses={n: self.bus_address(n) for n in nodes})
        self._ways = {(source, target): port for source, target, port in answer["ports"]}

    async def teardown(self) -> None:
        """End the proxy."""
        process, self._process = self._process, None
        if process is not None:
            with trio.CancelScope(shield=True):
                process.kill()
                await process.wait()
                for pipe in (process.stdin, process.stdout):
                    if pipe is not None:
                        await pipe.aclose()

    async def verify(self) -> None:
        """HostsError if a link carried nothing: the servers don't heed the dial map."""
        answer = await self._order("carried")
        idle = [(source, target) for source, target, count in answer["bytes"] if not count]
        if idle:
            raise HostsError(f"nothing went through the proxy on {idle}: is {DIAL_MAP} heeded?")

    def address(self, node: str) -> tuple[str, int]:
        """Loopback, and a port of the node's own."""
        return HOST, self._ports[node]

    def bus_address(self, node: str) -> tuple[str, int]:
        """What the node announces, not where others dial."""
        return HOST, self._ports[node] + _BUS_OFFSET

    def wrap(self, node: str, command: Sequence[str]) -> list[str]:  # noqa: ARG002 - the network's shape
        """As it is: all nodes are on this machine."""
        return list(command)

    def environment(self, node: str) -> Mapping[str, str]:
        """The way to each other node."""
        ways = {
            target: (HOST, port) for (source, target), port in self._ways.items() if source == node
        }
        return {DIAL_MAP: dial_map(ways, {target: self.bus_address(target) for target in ways})}

    async def open(self, node: str) -> trio.SocketStream:
        """A plain connection; clients don't go through the proxy."""
        return await trio.open_tcp_stream(*self.address(node))

    async def cut(self, links: Collection[Link]) -> None:
        """Shut these gates and open all others."""
        await self._order("cut", links=sorted(links))

    async def shape(
        self, links: Collection[Link], *, delay_ms: float, jitter_ms: float, loss: float
    ) -> None:
        """Delay these links; UnsupportedError for a loss."""
        if links and loss:
            raise base.UnsupportedError("the proxy loses nothing: it carries bytes, not packets")
        await self._order("shape", links=sorted(links), delay_ms=delay_ms, jitter_ms=jitter_ms)

    async def lost(self) -> int:
        """None: a proxy loses nothing."""
        return 0

    async def reset(self, links: Collection[Link]) -> None:
        """RST on every connection between these pairs."""
        await self._order("reset", links=sorted(links))

    async def probe(self) -> frozenset[Link]:
        """Links whose gate lets bytes of the proxy's own through, or where nodes' bytes moved meanwhile."""
        answer = await self._order("probe")
        return frozenset((source, target) for source, target in answer["links"]) & all_links(
            self.options.nodes
        )

    async def times_ms(self) -> dict[Link, float]:
        """As Hosts.times_ms."""
        answer = await self._order("time")
        return {(source, target): ms for source, target, ms in answer["ms"]}

    async def _order(self, what: str, **more: Any) -> dict[str, Any]:
        """The proxy's answer to one order; HostsError if it is gone."""
        process, number = self._process, next(self._ids)
        if process is None or process.stdin is None or process.stdout is None:
            raise HostsError("the proxy isn't running")
        line = json.dumps({"id": number, "do": what, **more}).encode() + b"\n"
        try:
            with trio.fail_after(_ANSWER_S):
                async with self._turn:
                    await process.stdin.send_all(line)
                    return await self._answer(process.stdout, number)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise HostsError(f"the proxy ended: exit {process.returncode}") from error
        except trio.TooSlowError as error:
            raise HostsError(f"the proxy didn't {what} within {_ANSWER_S:g} s") from error

    async def _answer(self, source: trio.abc.ReceiveStream, number: int) -> dict[str, Any]:
        """The answer with this number; older ones were for orders that were cancelled."""
        while True:
            while b"\n" not in self._heard:
                chunk = await source.receive_some()
                if not chunk:
                    raise trio.BrokenResourceError
                self._heard += chunk
            line, _, rest = self._heard.partition(b"\n")
            self._heard = bytearray(rest)
            answer: dict[str, Any] = json.loads(line)
            if answer["id"] == number:
                return answer
