"""Netns: a network namespace for each node and one for the clients, joined by a bridge in a namespace of its own.

The bridge isn't in the root namespace, so no firewall of the machine rules it, and deleting namespaces cleans up. Cuts
and loss are verdicts on forwarded frames by (source, destination); addresses are of the range for tests of networks
(RFC 2544) and have no way out. Needs root, `ip` and `nft`; `ss` for resets.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs
import trio

from jepsen.hosts import base, namespaces, nft
from jepsen.hosts.base import HostOptions, HostsError, Link, all_links
from jepsen.hosts.commands import run

PORT: Final = 7711
BUS_PORT: Final = 17711
CLIENTS: Final = "clients"
_SWITCH: Final = "switch"
_NETWORK: Final = "198.18.7"
_NODES_FROM: Final = 11


def plan_addresses(nodes: Sequence[str]) -> dict[str, str]:
    """IPv4 address of each node, and of the clients."""
    addresses = {node: f"{_NETWORK}.{_NODES_FROM + at}" for at, node in enumerate(nodes)}
    return {**addresses, CLIENTS: f"{_NETWORK}.2"}


def switch_batch(prefix: str, members: Sequence[str]) -> str:
    """What `ip -batch` does in the switch's namespace: the bridge, and one cable to each member."""
    lines = ["link add br0 type bridge stp_state 0 forward_delay 0", "link set br0 up"]
    for member in members:
        lines += [
            f"link add {member} type veth peer name eth0 netns {prefix}-{member}",
            f"link set {member} master br0 up",
        ]
    return "\n".join(lines) + "\n"


def member_batch(address: str) -> str:
    """What `ip -batch` does in a member's namespace."""
    return f"link set lo up\naddress add {address}/24 dev eth0\nlink set eth0 up\n"


@attrs.define(eq=False)
class NamespaceNetwork:
    """Namespaces, cables, one switch with verdicts."""

    options: HostOptions
    password: str = attrs.field(init=False)
    secret: str = attrs.field(init=False)
    _addresses: dict[str, str] = attrs.field(init=False)
    _prober: namespaces.Prober = attrs.field(factory=namespaces.Prober, init=False)
    _silent: frozenset[Link] = attrs.field(default=frozenset(), init=False)
    _lossy: frozenset[Link] = attrs.field(default=frozenset(), init=False)
    _loss: float = attrs.field(default=0.0, init=False)

    def __attrs_post_init__(self) -> None:
        self.password = self.options.password or secrets.token_hex(8)
        self.secret = self.options.secret or secrets.token_hex(16)
        self._addresses = plan_addresses(self.options.nodes)

    @property
    def capabilities(self) -> frozenset[str]:
        """Cuts of each direction and loss; resets where `ss` is."""
        found = {base.CUT, base.ONE_WAY, base.LOSS}
        return frozenset(found | ({base.RESET} if shutil.which("ss") else set()))

    async def setup(self) -> None:
        """Make the namespaces, the bridge and the table."""
        prefix, members = self.options.prefix, list(self._addresses)
        await run(
            "ip",
            "-batch",
            "-",
            text="".join(f"netns add {prefix}-{name}\n" for name in (_SWITCH, *members)),
        )
        await self._ip(_SWITCH, switch_batch(prefix, members))
        for member, address in self._addresses.items():
            await self._ip(member, member_batch(address))
        await self._nft(nft.table(nft.FAMILY_BRIDGE))
        for node in self.options.nodes:
            self._prober.open(node, self._handle(node), self._addresses[node])

    async def teardown(self) -> None:
        """Delete the namespaces, and with them all that is in them."""
        for node in self.options.nodes:
            self._prober.close(node)
        for name in (*self._addresses, _SWITCH):
            if self._handle(name).exists():
                await run("ip", "netns", "delete", f"{self.options.prefix}-{name}")

    async def verify(self) -> None:
        """HostsError unless a datagram gets through on every link."""
        missing = all_links(self.options.nodes) - await self.probe()
        if missing:
            raise HostsError(f"links that never worked: {sorted(missing)}")

    def address(self, node: str) -> tuple[str, int]:
        """Host and client port, the same port on each node."""
        return self._addresses[node], PORT

    def bus_address(self, node: str) -> tuple[str, int]:
        """Host and bus port."""
        return self._addresses[node], BUS_PORT

    def wrap(self, node: str, command: Sequence[str]) -> list[str]:
        """Enter the node's namespace, then become the command."""
        return ["nsenter", f"--net={self._handle(node)}", "--", *command]

    def environment(self, node: str) -> Mapping[str, str]:  # noqa: ARG002 - the network's shape
        """Nothing."""
        return {}

    async def open(self, node: str) -> trio.SocketStream:
        """A connection from the clients' namespace."""
        return await namespaces.connect(self._handle(CLIENTS), *self.address(node))

    async def cut(self, links: Collection[Link]) -> None:
        """Replace the set of silent links, in one transaction."""
        self._silent = frozenset(links)
        await self._judge()

    async def shape(
        self, links: Collection[Link], *, delay_ms: float, jitter_ms: float, loss: float
    ) -> None:
        """Replace the set of lossy links; UnsupportedError for a delay: this needs netem, which kernels may lack."""
        if links and (delay_ms or jitter_ms):
            raise base.UnsupportedError("namespaces delay nothing, only the proxy does")
        self._lossy, self._loss = frozenset(links), loss
        await self._judge()

    async def lost(self) -> int:
        """As the bridge's filter counts."""
        return nft.lost(await self._nft(nft.listing(nft.FAMILY_BRIDGE)))

    async def reset(self, links: Collection[Link]) -> None:
        """Kill the sockets that these nodes have open to each other; both ends learn of it."""
        for source, target in sorted(links):
            host = self._addresses[target]
            await run(*self.wrap(source, ["ss", "--kill", "--tcp", "--no-header", "dst", host]))

    async def probe(self) -> frozenset[Link]:
        """Links that carry datagrams."""
        return await self._prober.probe()

    async def times_ms(self) -> dict[Link, float]:
        """UnsupportedError: no link is slow."""
        raise base.UnsupportedError("namespaces delay nothing, so they time nothing")

    async def _judge(self) -> None:
        silent, lossy = self._pairs(self._silent), self._pairs(self._lossy)
        await self._nft(nft.verdicts(nft.FAMILY_BRIDGE, silent, lossy, self._loss))

    def _pairs(self, links: Collection[Link]) -> list[nft.Addresses]:
        return [(self._addresses[source], self._addresses[target]) for source, target in links]

    def _handle(self, name: str) -> Path:
        return namespaces.named(f"{self.options.prefix}-{name}")

    async def _ip(self, name: str, batch: str) -> None:
        await run("ip", "-n", f"{self.options.prefix}-{name}", "-batch", "-", text=batch)

    async def _nft(self, script: str) -> str:
        return await run(*self.wrap(_SWITCH, ["nft", "-f", "-"]), text=script)
