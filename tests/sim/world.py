"""World: virtual time, the nodes, the network, the clients and the faults of one seed.

One heap of (ms, order, call). No wall clock, no order that depends on hashing: a seed is a run.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable

from disque.core import commands as cmd
from disque.core.ready import ClientId, Failure, Reply
from tests.sim import adapter
from tests.sim.clients import Client, Operation
from tests.sim.faults import Nemesis
from tests.sim.history import Recorder
from tests.sim.network import Network
from tests.sim.node import Node
from tests.sim.plan import Profile
from tests.sim.story import Story
from tests.sim.streams import Streams
from tests.sim.watch import Watch

EVENTS_MAX = 2_000_000  # a run with more is stuck in a loop
EVENTS_OVER = 40  # a short run with so many times the wanted number, too


class StuckError(Exception):
    """The run makes no progress: too many events for its simulated time."""


class World:
    """Everything of one run."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.streams = Streams(profile.seed)
        self.story = Story()
        self.now = 0
        self.events = 0
        self.turns = 0
        self.operations: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._order = 0
        self._values = 0
        self._last_client = 0
        self._open: dict[
            ClientId, Operation | None
        ] = {}  # connections -> the operation that waits there
        self.nodes: list[Node] = []
        self.network = Network(
            profile, self.streams, self.story, self.nodes, self.at, adapter.is_payload
        )
        self.history = Recorder(self)
        self.watch = Watch(self)
        self.nodes.extend(Node(self, index) for index in range(profile.nodes + profile.spares))
        self.clients = [Client(self, index) for index in range(profile.clients)]
        self.nemesis = Nemesis(self)
        self.is_reset_at_heal = False

    @property
    def grace_ms(self) -> int:
        """When all is healed: how long after the end of a job was stored somewhere it may still be handed out."""
        return 1000 + 10 * self.profile.latency_ms[1]

    # Time

    def at(self, at: int, action: Callable[[], None]) -> None:
        """Call `action` at this time; calls of the same ms run in the order in which they were booked."""
        self._order += 1
        heapq.heappush(self._heap, (max(at, self.now), self._order, action))

    def run_until(self, end: int) -> None:
        """Handle all events up to this time; raises StuckError over EVENTS_MAX in a run."""
        heap = self._heap
        most = EVENTS_OVER * self.profile.events_wanted or EVENTS_MAX
        while heap and heap[0][0] <= end:
            self.now, _, action = heapq.heappop(heap)
            self.network.now = self.now
            self.events += 1
            if self.events > most:
                raise StuckError(f"{self.events} events by {self.now} ms")
            action()
        self.now = self.network.now = end

    # Clients

    def next_value(self) -> int:
        """A number for the next ADDJOB's body, never used twice."""
        self._values += 1
        return self._values

    def new_client(self, client: Client | None, node: Node) -> ClientId:
        """A connection of a client to a node."""
        self._last_client += 1
        connection = ClientId(self._last_client)
        self._open[connection] = None
        return connection

    def deliver(self, operation: Operation) -> None:
        """A command reaches its node."""
        operation.node.turn_with(lambda: self._take(operation))

    def _take(self, operation: Operation) -> None:
        if not operation.is_open or operation.connection not in self._open:
            return
        node = operation.node
        if node.is_held:
            self.refuse_held(operation)
            return
        operation.life = node.life
        self._open[operation.connection] = operation
        self.operations[operation.kind] += 1
        self.watch.commanded(operation)
        if isinstance(operation.command, cmd.AddJob) and node.broker.engine.is_out_of_memory():
            self.outcomes["OOM"] += 1
            self.watch.refused(operation)
            self.reply(node, operation.connection, Failure("OOM", "as the server says it"))
            return
        node.broker.command(operation.connection, operation.command)
        if operation.timeout_ms and isinstance(operation.command, cmd.AddJob | cmd.GetJob):
            self.watch.expect_answer(operation)

    def reply(self, node: Node, connection: ClientId, reply: Reply) -> None:
        """A reply leaves a node; it reaches the client if the connection still stands."""
        operation = self._open.get(connection)
        if operation is None:
            return
        self._open[connection] = None
        wait = self.streams["replies"].randrange(0, 3)
        self.at(self.now + wait, lambda: operation.client.answered(operation, reply))

    def refuse_held(self, operation: Operation) -> None:
        """The shell of a node that can't write its log refuses every command."""
        self._open[operation.connection] = operation
        self.outcomes["MISCONF"] += 1
        self.reply(
            operation.node, operation.connection, Failure("MISCONF", "as the server says it")
        )

    def fail_waiting(self, node: Node, answered: list[ClientId]) -> None:
        """Whoever waits for a node that can't write its log waits no longer, but for those whose reply is held."""
        waiting = [
            operation
            for connection, operation in self._open.items()
            if operation and operation.node is node and connection not in answered
        ]
        for operation in waiting:
            operation.client.give_up(operation, "MISCONF")

    def operation_of(self, connection: ClientId) -> Operation | None:
        """What waits on a connection."""
        return self._open.get(connection)

    def disconnect(self, operation: Operation, why: str) -> None:
        """A client closes a connection; its node hears of it soon."""
        connection, node, life = operation.connection, operation.node, operation.life
        self.story.add(self.now, "client", operation.client.name, (), f"leaves {node.name} ({why})")
        self.outcomes["gave up"] += 1

        def gone() -> None:
            self._open.pop(connection, None)
            if node.is_alive and (node.life == life or not life):
                node.broker.disconnect(connection)

        self.at(self.now + 1, lambda: node.turn_with(gone))

    def clients_lose(self, node: Node) -> None:
        """A process has ended: whoever talked to it sees the connection break."""
        gone = [
            connection
            for connection, operation in self._open.items()
            if operation and operation.node is node
        ]
        for connection in gone:
            del self._open[connection]
        for client in self.clients:
            self.at(self.now + 1, lambda client=client: client.lost(node))
