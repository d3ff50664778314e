"""Clients: seeded workers that add, get, ack and disturb, one operation at a time each, at any node.

A client knows what a client can know: the ids that it was given or was told. It has a connection to each node that it
talks to; one that breaks or is given up gets a new ClientId.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import attrs

from disque.core import commands as cmd
from disque.core.jobid import JobId, make_job_id
from disque.core.ready import ClientId, Delivery, Failure, Reply, Status
from tests.sim.history import PATIENCE_MS
from tests.sim.ledger import body_of

if TYPE_CHECKING:
    from tests.sim.node import Node
    from tests.sim.world import World

KNOWN_MAX = 60
DEAD_QUEUE = b"dead"


@attrs.define(eq=False)
class Operation:
    """One command on its way, waiting, or answered."""

    client: Client
    kind: str
    command: cmd.Command
    node: Node
    connection: ClientId
    timeout_ms: int  # 0: no time-out of its own
    is_open: bool = True
    life: int = 0  # of the process that took it


class Client:
    """One worker."""

    def __init__(self, world: World, index: int) -> None:
        self.world = world
        self.index = index
        self.name = f"c{index}"
        self.dice = world.streams[f"client {index}"]
        self.home = self.dice.randrange(world.profile.nodes)
        self.operation: Operation | None = None
        self.is_stopped = False
        self.known: list[JobId] = []
        self._connections: dict[int, ClientId] = {}
        self._todo: list[
            tuple[int, int, str, JobId, int]
        ] = []  # follow-ups: (at, order, kind, id, node)
        self._order = 0
        self._issued = 0
        self._muted = frozenset(world.profile.muted)
        self._is_booked = False
        kinds = world.profile.ops
        self._kinds, self._weights = list(kinds), list(kinds.values())
        self._uses, self._use_weights = list(world.profile.uses), list(world.profile.uses.values())

    def begin(self) -> None:
        """Start working."""
        self._book(self.dice.randrange(self.world.profile.think_ms))

    # Choosing

    def _book(self, wait: int) -> None:
        if not self._is_booked:
            self._is_booked = True
            self.world.at(self.world.now + wait, self._act)

    def _think(self) -> None:
        mean = self.world.profile.think_ms
        wait = min(int(self.dice.expovariate(1 / mean)), 4 * mean)
        if self._todo:
            wait = max(0, min(wait, self._todo[0][0] - self.world.now))
        self._book(wait)

    def _act(self) -> None:
        self._is_booked = False
        if self.is_stopped or self.operation is not None:
            return
        if self._todo and self._todo[0][0] <= self.world.now:
            _, _, kind, job, node = heapq.heappop(self._todo)
            self._issue(kind, self._command(kind, job), self.world.nodes[node])
            return
        kind = self.dice.choices(self._kinds, self._weights)[0]
        node = self.home if self.dice.random() < 0.6 else self.dice.randrange(len(self.world.nodes))
        self._issue(kind, self._command(kind, None), self.world.nodes[node])

    def _command(self, kind: str, job: JobId | None) -> cmd.Command:
        dice = self.dice
        if kind == "add":
            return self._add()
        if kind == "get":
            return self._get()
        if kind in ("qlen", "ask", "qpurge"):
            return self._about_queue(kind)
        ids = (job,) if job is not None else self._some_ids()
        match kind:
            case "working":
                return cmd.Working(ids[0])
            case "show":
                return cmd.Show(ids[0])
            case "ack":
                return cmd.AckJob(ids)
            case "nack":
                return cmd.Nack(ids, delay_ms=dice.choice((0, 0, 0, 400, 1500)))
            case "cancel":
                return cmd.CancelJob(ids)
            case "revive":
                return cmd.Revive(ids)
            case "waitjob":
                return cmd.WaitJob(ids, timeout_ms=dice.choice((1, 300, 2000)))
            case "fastack":
                return cmd.FastAck(ids)
            case "deljob":
                return cmd.DelJob(ids)
            case "enqueue":
                return cmd.Enqueue(ids)
            case _:
                assert kind == "dequeue", kind
                return cmd.Dequeue(ids if dice.random() < 0.9 else ids * 2)

    def _about_queue(self, kind: str) -> cmd.Command:
        queue = self._queue()
        if kind == "qlen":
            return cmd.QLen(queue)
        if kind == "qpurge":
            return cmd.QPurge(queue)
        asks: tuple[cmd.Command, ...] = (
            cmd.GlobalQLen(queue, with_nodes=True),
            cmd.QStat(queue, is_global=True),
            cmd.QStat(queue),
            cmd.QPeek(queue, self.dice.choice((3, -3))),
            cmd.JScan(0, 100, queue),
        )
        return self.dice.choice(asks)

    def _some_ids(self) -> tuple[JobId, ...]:
        """Ids that this client has met; now and then one that nobody has."""
        dice = self.dice
        if not self.known or dice.random() < 0.03:
            node = self.world.nodes[dice.randrange(len(self.world.nodes))]
            retried = dice.random() < 0.7
            return (make_job_id(node.id, dice.randbytes(18), ttl_ms=60_000, is_retried=retried),)
        count = 1 if dice.random() < 0.8 else min(3, len(self.known))
        return tuple(dict.fromkeys(dice.choice(self.known) for _ in range(count)))

    def _queue(self) -> bytes:
        if self.dice.random() < 0.02:
            return DEAD_QUEUE
        return b"q%d" % self.dice.randrange(self.world.profile.queues)

    def _add(self) -> cmd.AddJob:
        dice, profile = self.dice, self.world.profile
        is_retried = dice.random() < 0.8
        retry_ms = dice.choice(profile.retries_ms) if is_retried else 0
        replicate = dice.choice((None, 1, 1, 2, 2, 3)) if is_retried else 1
        ttl_ms = dice.choice(profile.ttls_ms)
        return cmd.AddJob(
            queue=self._queue(),
            body=body_of(self.world.next_value(), dice.choice((0, 10, 300))),
            timeout_ms=dice.choice((200, 500, 1000, 3000, 0)),
            replicate=replicate,
            retry_ms=retry_ms,
            delay_ms=dice.choice((0, 0, 0, 0, 300, 1000, 2500)),
            ttl_ms=ttl_ms,
            maxlen=5 if dice.random() < 0.03 else None,
            is_async=dice.random() < 0.1,
            priority=4 if dice.random() < 0.8 or profile.is_plain else dice.randrange(10),
            max_deliveries=dice.choice((0, 0, 0, 2, 3)) if is_retried else 0,
            dead_queue=DEAD_QUEUE,
        )

    def _get(self) -> cmd.GetJob:
        dice = self.dice
        queues = tuple(dict.fromkeys(self._queue() for _ in range(dice.choice((1, 1, 2)))))
        is_nohang = dice.random() < 0.25
        return cmd.GetJob(
            queues=queues,
            timeout_ms=0 if is_nohang else dice.choice((100, 500, 1500, 0)),
            count=dice.choice((1, 1, 3, 10)),
            is_nohang=is_nohang,
            with_counters=dice.random() < 0.2,
        )

    # Doing

    def _issue(self, kind: str, command: cmd.Command, node: Node) -> None:
        self._issued += 1
        timeout = command.timeout_ms if isinstance(command, cmd.AddJob | cmd.GetJob) else 0
        if not node.is_alive:
            self._think()
            return
        on_its_way = self.dice.randrange(0, 3)
        leaves_after = None
        if timeout and self.dice.random() < 0.02:
            leaves_after = self.dice.randrange(timeout)
        if self._is_muted(kind):
            self._think()
            return
        connection = self._connections.get(node.index)
        if connection is None:
            connection = self._connections[node.index] = self.world.new_client(self, node)
        operation = Operation(self, kind, command, node, connection, timeout)
        self.operation = operation
        self.world.history.invoked(operation)
        self.world.at(self.world.now + on_its_way, lambda: self.world.deliver(operation))
        if self.world.profile.is_plain:
            return
        if leaves_after is not None:
            self._give_up_after(leaves_after, operation, "left")
        elif not timeout:
            self._give_up_after(PATIENCE_MS, operation, "no patience")

    def done_names(self) -> list[str]:
        """The names of all operations that it has issued, muted ones included."""
        return [f"{self.name}#{number}" for number in range(1, self._issued + 1)]

    def _give_up_after(self, wait: int, operation: Operation, why: str) -> None:
        self.world.at(self.world.now + wait, lambda: self.give_up(operation, why))

    def _is_muted(self, kind: str) -> bool:
        muted = self._muted
        return bool(muted) and (
            kind in muted or self.name in muted or f"{self.name}#{self._issued}" in muted
        )

    def give_up(self, operation: Operation | None, why: str) -> None:
        """Disconnect while an operation waits: its outcome stays unknown to us."""
        if operation is None or not operation.is_open:
            return
        operation.is_open = False
        self.operation = None
        self.world.history.broken(operation, "cancelled")
        del self._connections[operation.node.index]
        self.world.disconnect(operation, why)
        self._think()

    def lost(self, node: Node) -> None:
        """The process at the other end is gone."""
        self._connections.pop(node.index, None)
        operation = self.operation
        if operation is not None and operation.node is node:
            operation.is_open = False
            self.operation = None
            self.world.history.broken(operation, "reset")
            self.home = self.dice.randrange(len(self.world.nodes))
            self._think()

    def answered(self, operation: Operation, reply: Reply) -> None:
        """The reply arrives."""
        if not operation.is_open:
            return
        operation.is_open = False
        self.operation = None
        self.world.history.answered(operation, reply)
        if isinstance(reply, Status) and operation.kind == "add":
            self._know(JobId(reply.text))
        elif isinstance(reply, list):
            for each in reply:
                if isinstance(each, Delivery):
                    self._know(JobId(each.id))
                    self._use(JobId(each.id), operation.node.index)
        elif isinstance(reply, Failure) and reply.code == "LEAVING":
            self.home = self.dice.randrange(len(self.world.nodes))
        self._think()

    def _know(self, job: JobId) -> None:
        self.known.append(job)
        del self.known[:-KNOWN_MAX]

    def _use(self, job: JobId, node: int) -> None:
        """Decide what becomes of a job that we were given."""
        dice = self.dice
        kind = dice.choices(self._uses, self._use_weights)[0]
        other = dice.randrange(len(self.world.nodes))
        soon, late = dice.randrange(100), dice.randrange(500, 4000)
        match kind:
            case "ack" | "fastack":
                self._do(soon, kind, job, node)
            case "nack" | "enqueue":
                self._do(soon, kind, job, node if dice.random() < 0.7 else other)
            case "ack-late":
                self._do(late, "ack", job, node)
            case "ack-twice":
                self._do(soon, "ack", job, node)
                self._do(late, "ack", job, other)
            case "ack-elsewhere":
                self._do(soon, "ack", job, other)
            case "working-ack":
                self._do(late // 2, "working", job, node)
                self._do(late, "ack", job, node)
            case _:
                assert kind == "forget", kind

    def _do(self, wait: int, kind: str, job: JobId, node: int) -> None:
        self._order += 1
        heapq.heappush(self._todo, (self.world.now + wait, self._order, kind, job, node))
