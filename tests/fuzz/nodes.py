"""Nodes: one that runs in this process hears anything from a client; another client must not notice, and nothing stays.

The loop, the connections and the engine are the real ones, over a socket pair.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any
from unittest import mock

import trio

from disque.server import clients
from disque.server.config import Config
from disque.server.stomp import Stomp
from tests.fuzz import seeds
from tests.unit.server.world import Peer, World, running

SOON_S = 10.0
# What stops or holds up the node on purpose isn't asked of it
_NEVER = (b"debug", b"shutdown", b"pause", b"kill", b"config", b"reset", b"leaving", b"forget")
_LAST_REPLIES_S = 0.05  # patience with what waits of a client that has gone


def run_resp(data: bytes) -> None:
    """Whatever a RESP client says."""
    if not any(word in data.lower() for word in _NEVER):
        trio.run(_disturb, data, None)


def run_stomp(data: bytes) -> None:
    """Whatever a STOMP client says, once it is connected."""
    trio.run(_disturb, seeds.CONNECTS[len(data) % 3] + data, Stomp)


async def _disturb(data: bytes, dialect: Callable[[Any], Stomp] | None) -> None:
    patience = mock.patch.object(clients, "LAST_REPLIES_S", _LAST_REPLIES_S)
    async with running() as world:
        spoken = None if dialect is None else dialect(world.shell)
        witness = world.connect()
        ours, theirs = socket.socketpair()
        world.clients.admit(ours, "", spoken)
        odd = Peer(trio.SocketStream(trio.socket.from_stdlib_socket(theirs)))
        world.peers.append(odd)
        with patience, trio.fail_after(SOON_S):
            await _say(odd, data)
            await witness.ask(b"PING\r\n", b"+PONG\r\n")
            await odd.stream.aclose()
            while len(world.clients.by_id) > 1:
                await trio.sleep(0)
            await witness.ask(b"PING\r\n", b"+PONG\r\n")
        check_nothing_stays(world)


async def _say(odd: Peer, data: bytes) -> None:
    """In two pieces, and whatever is answered is read away."""
    try:
        middle = len(data) // 2
        await odd.stream.send_all(data[:middle])
        with trio.move_on_after(0):
            await odd.stream.receive_some(1 << 20)
        await odd.stream.send_all(data[middle:])
    except trio.BrokenResourceError:
        pass


def check_nothing_stays(world: World, **settings: str) -> None:
    """No wait, no subscription and no bytes of anybody, and the settings are the defaults but for these."""
    engine = world.broker.engine
    engine.check()
    state = engine.state
    assert not world.clients._slots
    assert not world.clients._hearers
    assert [*state.getting, *state.adding_of, *state.inquiry_of] == []
    assert state.topics.size == 0
    assert world.clients.buffered_bytes() == 0
    assert world.config.get("*") == Config(**settings).get("*")
