"""Talking: the few words that hosts say to nodes themselves: PING, CLUSTER MEET, CLUSTER INFO."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from functools import partial
from typing import Final, Protocol

import trio

from jepsen.hosts.base import HostsError
from jepsen.resp import Client, ReplyError, Trouble, Word

_WORD_S: Final = 5.0
_LOOK_EVERY_S: Final = 0.02


class Reachable(Protocol):
    """The part of Hosts that talking needs."""

    @property
    def password(self) -> str:
        """What clients say with AUTH."""
        ...

    async def open(self, node: str) -> trio.SocketStream:
        """A new client connection."""
        ...


async def say(hosts: Reachable, node: str, *words: Word) -> object:
    """One command over a connection of its own; ReplyError or Trouble as of the client."""
    with closing(Client(opener=partial(hosts.open, node), password=hosts.password)) as client:
        return await client.call(*words, timeout_s=_WORD_S)


async def is_answering(hosts: Reachable, node: str) -> bool:
    """It answers PING, if with an error."""
    try:
        await say(hosts, node, "PING")
    except ReplyError:
        return True
    except Trouble:
        return False
    return True


async def meet(hosts: Reachable, through: str, address: tuple[str, int], bus_port: int) -> None:
    """Let one node meet the one at `address`; HostsError if it doesn't want to."""
    try:
        await say(hosts, through, "CLUSTER", "MEET", address[0], address[1], bus_port)
    except (ReplyError, Trouble) as error:
        raise HostsError(f"{through} didn't meet {address}: {error}") from error


async def view_sizes(hosts: Reachable, node: str) -> tuple[int, int] | None:
    """(nodes known, others reached) as a node tells; None without an answer."""
    try:
        reply = await say(hosts, node, "CLUSTER", "INFO")
    except (ReplyError, Trouble):
        return None
    if not isinstance(reply, bytes):
        return None
    lines = reply.decode(errors="replace").splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    try:
        return int(fields["cluster_known_nodes"]), int(fields["cluster_reachable_nodes"])
    except (KeyError, ValueError):
        return None


async def wait_full_view(hosts: Reachable, nodes: Sequence[str], patience_s: float) -> None:
    """Return once each of these nodes knows and reaches all of them; HostsError with who doesn't in time."""
    wanted = (len(nodes), len(nodes) - 1)
    seen: dict[str, tuple[int, int] | None] = {}
    with trio.move_on_after(patience_s):
        for node in nodes:
            while (view := await view_sizes(hosts, node)) != wanted:
                seen[node] = view
                await trio.sleep(_LOOK_EVERY_S)
            seen.pop(node, None)
        return
    raise HostsError(f"no full view {wanted} within {patience_s:g} s: {seen}")
