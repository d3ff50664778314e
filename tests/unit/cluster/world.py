"""A tiny world: Memberships joined by an in-memory network with real handshakes, and a clock that jumps.

Everything is delivered at once and in order; cuts and kills are made by hand. Only the seed is
chance.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from typing import TYPE_CHECKING

import attrs

from cluster import handshake, nodesfile
from cluster.handshake import AcceptorHandshake, DialerHandshake, HandshakeError
from cluster.membership import Membership, MembershipConfig
from cluster.nodeid import NodeId, node_id_from_bytes
from cluster.nodesfile import StoredNodes
from cluster.ready import ConnId, Dial, Identity, Note

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

START_MS = 1_700_000_000_000
BUS_PORT = 17711


@attrs.define(eq=False)
class Node:
    """One process, and what it leaves on disk."""

    name: str
    host: str
    id: NodeId
    boot: int
    secret: bytes
    membership: Membership
    is_up: bool = True
    disk: str = ""
    saves: int = 0
    payloads: list[tuple[NodeId, int, bytes]] = attrs.Factory(list)
    notes: list[Note] = attrs.Factory(list)
    dials: list[Dial] = attrs.Factory(list)

    def events(self, event: str) -> list[dict[str, object]]:
        """The facts of all notes of one name."""
        return [dict(note.facts) for note in self.notes if note.event == event]


@attrs.define(eq=False)
class Wire:
    """A connection: dialer's end and acceptor's end."""

    dialer: Node
    dialer_conn: ConnId
    acceptor: Node
    acceptor_conn: ConnId


class World:
    """Nodes by name; hosts are 10.0.0.<n> unless said otherwise."""

    def __init__(self, seed: int = 1, node_timeout_ms: int = 3_000) -> None:
        self.random = random.Random(seed)
        self.node_timeout_ms = node_timeout_ms
        self.now_ms = START_MS
        self.nodes: dict[str, Node] = {}
        self.wires: dict[tuple[str, ConnId], Wire] = {}
        self.cuts: set[tuple[str, str]] = set()  # (from, to)
        self._conns = 0
        self._work: deque[Callable[[], None]] = deque()

    def add(
        self, name: str, *, secret: bytes = b"", host: str | None = None, announce: str = ""
    ) -> Node:
        """Start a new node."""
        host = host or f"10.0.0.{len(self.nodes) + 1}"
        own = node_id_from_bytes(self.random.randbytes(20))
        membership = self._membership(own, 1, StoredNodes(), announce)
        node = Node(name, host, own, 1, secret, membership)
        self.nodes[name] = node
        self.settle()
        return node

    def _membership(
        self, own: NodeId, boot: int, stored: StoredNodes, announce: str = ""
    ) -> Membership:
        return Membership(
            identity=Identity(id=own, boot=boot, since=boot, host="", port=7711, bus_port=BUS_PORT),
            config=MembershipConfig(
                node_timeout_ms=self.node_timeout_ms, host=announce, port=7711, bus_port=BUS_PORT
            ),
            stored=stored,
            dice=random.Random(self.random.random()),
            now_ms=self.now_ms,
        )

    def mesh(self, count: int) -> list[Node]:
        """So many nodes that all reach each other."""
        nodes = [self.add(f"n{index}") for index in range(count)]
        for left, right in itertools.pairwise(nodes):
            self.meet(left, right)
        self.run_until(lambda: self.is_mesh(nodes), 10_000)
        return nodes

    def meet(self, left: Node, right: Node) -> None:
        left.membership.meet(right.host, BUS_PORT)
        self.settle()

    def is_mesh(self, nodes: Iterable[Node]) -> bool:
        """True if each of the nodes reaches each other one, and knows nobody else."""
        ids = {node.membership.identity.id for node in nodes}
        return all(
            {m.id for m in node.membership.view().members.values() if m.is_reachable} == ids
            and len(node.membership.view().members) == len(ids)
            for node in nodes
        )

    def flags(self, node: Node) -> dict[str, str]:
        """What CLUSTER NODES of a node says about each other one, by name."""
        names = {other.membership.identity.id: other.name for other in self.nodes.values()}
        lines = [line.split(" ") for line in node.membership.nodes_text().splitlines()]
        return {names.get(NodeId(w[0]), w[0]): w[2] for w in lines if "myself" not in w[2]}

    # Faults

    def kill(self, node: Node) -> None:
        """kill -9: connections break, others see it at once."""
        node.is_up = False
        for (name, _), wire in list(self.wires.items()):
            if name == node.name:
                self._break(wire)
        self.settle()

    def restart(self, node: Node, *, host: str | None = None, boot: int | None = None) -> None:
        """Start again with what is on disk, perhaps at another address."""
        stored = nodesfile.parse(node.disk)
        assert stored.id == node.id
        node.host = host or node.host
        node.boot = stored.boot + 1 if boot is None else boot
        node.membership = self._membership(node.id, node.boot, stored)
        node.is_up = True
        self.settle()

    def cut(self, left: Node, right: Node) -> None:
        """Frames vanish both ways, links seem to stand."""
        self.cuts |= {(left.name, right.name), (right.name, left.name)}

    def heal(self) -> None:
        self.cuts.clear()
        self.settle()

    # Time

    def run(self, ms: int) -> None:
        """Let time pass."""
        self.run_until(lambda: False, ms)

    def run_until(self, is_done: Callable[[], bool], ms: int) -> int:
        """Let time pass until something holds, at most so long; returns how long it took."""
        start, end = self.now_ms, self.now_ms + ms
        self.settle()
        while not is_done():
            due = min((w for n in self._up() if (w := n.membership.next_wakeup_ms())), default=end)
            self.now_ms = min(max(due, self.now_ms + 1), end)
            for node in self._up():
                node.membership.advance(self.now_ms)
            self.settle()
            if self.now_ms >= end:
                break
        return self.now_ms - start

    def settle(self) -> None:
        """Deliver until nothing moves; time stands."""
        steps = 0
        while True:
            for node in self._up():
                self._take(node)
            if not self._work:
                return
            while self._work:
                self._work.popleft()()
                steps += 1
                assert steps < 200_000, "the world doesn't come to rest"

    def _up(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.is_up]

    def _take(self, node: Node) -> None:
        node.membership.advance(self.now_ms)
        ready = node.membership.take_ready()
        if ready.nodes_file is not None:
            node.disk = ready.nodes_file
            node.saves += 1
        node.notes += ready.notes
        node.payloads += ready.payloads
        node.dials += ready.dials
        for dial in ready.dials:
            self._work.append(lambda dial=dial: self._dial(node, dial))
        for conn, body in ready.frames:
            self._work.append(lambda conn=conn, body=body: self._deliver(node, conn, body))
        for conn in ready.closes:
            self._work.append(lambda conn=conn: self._close(node, conn))

    def _dial(self, node: Node, dial: Dial) -> None:
        if not node.is_up:
            return
        acceptor = next(
            (n for n in self._up() if n.host == dial.host and dial.bus_port == BUS_PORT), None
        )
        if acceptor is None or (node.name, acceptor.name) in self.cuts:
            node.membership.dial_failed(dial.dial, f"{handshake.UNREACHED}Connection refused")
            return
        own = node.membership.identity
        left = DialerHandshake(
            own=own,
            secret=node.secret,
            nonce=self.random.randbytes(32),
            expected=dial.expected,
            is_meet=dial.is_meet,
        )
        right = AcceptorHandshake(
            own=acceptor.membership.identity,
            secret=acceptor.secret,
            nonce=self.random.randbytes(32),
        )
        try:
            challenge = right.receive(left.start())
            assert challenge is not None
            proof = left.receive(challenge)
            assert proof is not None
            right.receive(proof)
            assert right.peer is not None
            reason = acceptor.membership.admits(right.peer, right.expected, right.is_meet)
            left.receive(right.accept() if reason is None else right.refuse(reason))
        except HandshakeError as error:
            node.membership.dial_failed(dial.dial, str(error))
            return
        assert left.peer is not None
        self._conns += 2
        wire = Wire(node, ConnId(self._conns - 1), acceptor, ConnId(self._conns))
        self.wires[(node.name, wire.dialer_conn)] = wire
        self.wires[(acceptor.name, wire.acceptor_conn)] = wire
        acceptor.membership.accepted(
            wire.acceptor_conn, right.peer, right.is_meet, acceptor.host, node.host
        )
        node.membership.dialed(dial.dial, wire.dialer_conn, left.peer, node.host, acceptor.host)

    def _deliver(self, node: Node, conn: ConnId, body: bytes) -> None:
        wire = self.wires.get((node.name, conn))
        if wire is None:
            return
        is_dialer = node is wire.dialer
        other = wire.acceptor if is_dialer else wire.dialer
        if (node.name, other.name) not in self.cuts and other.is_up:
            other.membership.frame(wire.acceptor_conn if is_dialer else wire.dialer_conn, body)

    def _close(self, node: Node, conn: ConnId) -> None:
        wire = self.wires.get((node.name, conn))
        if wire is not None:
            self._break(wire, by=node)

    def _break(self, wire: Wire, by: Node | None = None) -> None:
        self.wires.pop((wire.dialer.name, wire.dialer_conn), None)
        self.wires.pop((wire.acceptor.name, wire.acceptor_conn), None)
        for node, conn in ((wire.dialer, wire.dialer_conn), (wire.acceptor, wire.acceptor_conn)):
            if node is not by and node.is_up:
                node.membership.closed(conn)
