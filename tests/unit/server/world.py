"""World: a server's parts around a real broker, with socket pairs in place of the network."""

from __future__ import annotations

import random
import socket
from contextlib import asynccontextmanager, closing
from functools import partial
from typing import TYPE_CHECKING

import attrs
import trio
import trio.testing

from cluster.bus import Bus
from cluster.membership import MembershipConfig, StoredNodes
from cluster.nodeid import NodeId
from cluster.ready import Identity
from disque.broker import Broker, BrokerSettings
from disque.core.limits import Limits
from disque.server import dispatch
from disque.server.access import Access
from disque.server.clients import Clients
from disque.server.clock import Clock
from disque.server.config import Config
from disque.server.eventlog import EventLog
from disque.server.info import Figures
from disque.server.loop import Log, NullLog, Turns
from disque.server.persistence import Persistence
from disque.server.settings import Settings
from disque.server.shell import Shell

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from cluster.ready import Note

SOON_S = 5.0
OWN_ID = NodeId("a" * 40)


@attrs.define
class Peer:
    """The other end of a client's connection."""

    stream: trio.SocketStream

    async def send(self, data: bytes) -> None:
        """Send bytes."""
        with trio.fail_after(SOON_S):
            await self.stream.send_all(data)

    async def read(self, count: int) -> bytes:
        """So many bytes, fewer at the end of the stream."""
        data = b""
        with trio.fail_after(SOON_S):
            while len(data) < count and (more := await self.stream.receive_some(count - len(data))):
                data += more
        return data

    async def ask(self, data: bytes, reply: bytes) -> None:
        """Send bytes; what comes back must be `reply`."""
        await self.send(data)
        await self.expect(reply)

    async def expect(self, reply: bytes) -> None:
        """The next bytes must be these."""
        got = await self.read(len(reply))
        assert got == reply, f"{got!r} came, not {reply!r}"

    async def read_line(self) -> bytes:
        """Bytes up to a line's end."""
        line = b""
        while not line.endswith(b"\r\n"):
            more = await self.read(1)
            assert more, f"the stream ended after {line!r}"
            line += more
        return line

    async def expect_end(self) -> None:
        """Nothing more may come."""
        got = await self.read(1)
        assert got == b"", f"{got!r} came, not the end"


class World:
    """One node; `connect` gives clients of it."""

    def __init__(self, nursery: trio.Nursery, log: Log) -> None:
        self.nursery = nursery
        self.config = Config()
        self.events = EventLog(path="/dev/null")
        self.peers: list[Peer] = []
        self.notes: list[Note] = []
        self.saved: list[str] = []
        clock, figures = Clock(), Figures()
        now_ms = clock.now_ms()
        identity = Identity(OWN_ID, boot=1, since=1, host="", port=7711, bus_port=17711)
        self.broker = Broker(
            settings=BrokerSettings(
                membership=MembershipConfig(),
                limits=Limits(queue_sweep_ms=3_600_000),  # no turn but for what the test does
            ),
            identity=identity,
            stored=StoredNodes(),
            dice=random.Random(7),
            now_ms=now_ms,
        )
        self.turns = Turns(
            self.broker, clock=clock, log=log, save_nodes=self._save, note=self.notes.append
        )
        self.settings = Settings(self.config, self.events)
        self.limits = self.settings.client_limits
        self.clients = Clients(
            self.turns,
            limits=self.limits,
            figures=figures,
            events=self.events,
        )
        self.turns.clients = self.clients
        self.shell = Shell(
            config=self.config,
            access=Access(self.config, figures, self.events),
            turns=self.turns,
            clients=self.clients,
            clock=clock,
            figures=figures,
            events=self.events,
            nursery=nursery,
            persistence=Persistence(self.config, self.events, self.turns),
            run_id="0" * 40,
            apply_setting=self.settings.apply,
        )
        self.clients.execute = partial(dispatch.execute, self.shell)
        self.clients.overtakes = partial(dispatch.overtakes, self.shell)
        self.turns.broker.engine.set_logged(self.turns.log.stores)
        self.settings.start(self.shell, Bus(self.turns))

    async def _save(self) -> None:
        assert self.turns.nodes_text is not None
        self.saved.append(self.turns.nodes_text)

    def connect(self, address: object = "", *, is_secured: bool = False) -> Peer:
        """A new client; `address` as accept gives it."""
        ours, theirs = tcp_pair() if isinstance(address, tuple) else socket.socketpair()
        self.clients.admit(ours, address, is_secured=is_secured)
        peer = Peer(trio.SocketStream(trio.socket.from_stdlib_socket(theirs)))
        self.peers.append(peer)
        return peer

    def close(self) -> None:
        """Close what the test opened."""
        self.events.close()
        for peer in self.peers:
            peer.stream.socket.close()


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a connection over loopback, the second one non-blocking."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        theirs = socket.create_connection(listener.getsockname())
        ours, _ = listener.accept()
    theirs.setblocking(False)
    return ours, theirs


@asynccontextmanager
async def running(log: Log | None = None) -> AsyncIterator[World]:
    """A node that runs while the context lasts."""
    async with trio.open_nursery() as nursery:
        with closing(World(nursery, log or NullLog())) as world:
            nursery.start_soon(world.clients.serve, [])
            nursery.start_soon(world.turns.run)
            await trio.testing.wait_all_tasks_blocked()
            yield world
            nursery.cancel_scope.cancel()
