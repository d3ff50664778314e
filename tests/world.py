"""World: a few engines in one process, under the caller's control.

Virtual time, hand-made cluster views, the real codec on every hop. Nothing moves by itself: the caller says which
message arrives next, which link is cut, how far time goes. Scenarios and the state machine drive it; the simulator has
a world of its own, with whole brokers and chance. It knows nothing of transcripts and judges nothing but by `Promises`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from hashlib import blake2b

import attrs

from cluster.nodeid import NodeId
from cluster.view import ClusterView, MemberView
from disque.core import commands as cmd
from disque.core import messages as msg
from disque.core import wire
from disque.core.engine import Engine
from disque.core.jobid import JobId, make_job_id
from disque.core.limits import Limits
from disque.core.ready import ClientId, Ready, Reply
from disque.core.state import State, salted
from tests.promises import Promises

EPOCH_MS = 1_700_000_000_000  # the wall clock of a node with offset 0 when the world begins
NODE_TIMEOUT_MS = 15_000
STEPS_MAX = 100_000  # timers and messages of one run; more is a loop


class LoopError(AssertionError):
    """The nodes never come to rest."""


class Dice:
    """Chance of one engine: what the world prepared for the next job id, else a seeded stream."""

    def __init__(self, seed: str) -> None:
        self.prepared: bytes | None = None
        self._random = random.Random(seed)

    @property
    def is_spent(self) -> bool:
        """True if what was prepared has been drawn."""
        return self.prepared is None

    def randbytes(self, n: int, /) -> bytes:
        """The prepared bytes, once."""
        prepared, self.prepared = self.prepared, None
        return self._random.randbytes(n) if prepared is None else prepared

    def randrange(self, stop: int, /) -> int:
        """A number from 0 to stop - 1."""
        return self._random.randrange(stop)


@attrs.define(eq=False)
class Node:
    """A machine: its process is `engine`, None while it is down. There is no log: a restart is empty."""

    name: str
    id: NodeId
    offset_ms: int  # of its wall clock at the start
    dice: Dice
    boot: int = 0
    engine: Engine | None = None
    is_leaving: bool = False

    @property
    def state(self) -> State:
        """The state of the running engine."""
        assert self.engine is not None, f"{self.name} is down"
        return self.engine.state


@attrs.frozen(eq=False)
class Packet:
    """One payload on its way."""

    source: Node
    target: Node
    boot: int  # the source's
    sent_at: int
    payload: bytes

    @property
    def link(self) -> tuple[str, str]:
        """From, to."""
        return self.source.name, self.target.name

    @property
    def messages(self) -> list[msg.Message]:
        """What it says."""
        return wire.decode(self.payload)


@attrs.frozen
class Answer:
    """A reply that a client got."""

    node: str
    client: ClientId
    reply: Reply


class World:
    """Names are one hexadecimal letter; a node's id is that letter forty times."""

    def __init__(
        self, names: str, *, limits: Limits | None = None, offsets_ms: dict[str, int] | None = None
    ) -> None:
        self.now = 0
        self.limits = limits or Limits()
        offsets = offsets_ms or {}
        self.nodes = {
            name: Node(name, NodeId(name * 40), offsets.get(name, 0), Dice(name)) for name in names
        }
        self.order: str | None = names  # salted order of the next jobs, None: as it comes
        self.cuts: set[tuple[str, str]] = set()
        self.forgotten: set[str] = set()
        self.flying: list[Packet] = []  # sent, not yet arrived, in order
        self.answers: list[Answer] = []  # taken by the caller
        self.jobs: dict[str, JobId] = {}  # j1, j2 ... in order of ADDJOB
        self.promises = Promises(self)
        self._apart_since: dict[tuple[str, str], int] = {}
        self._shape: object = None  # of all views, when they were last made
        self._boots = 0
        self._last_client = 0
        self._salt = 0
        for node in self.nodes.values():
            self._boots += 1
            node.boot = self._boots
        for node in self.nodes.values():
            self._start(node)
        self._views_may_have_changed()

    # Nodes

    @property
    def alive(self) -> list[Node]:
        """Nodes with a process, in order of name."""
        return [node for node in self.nodes.values() if node.engine is not None]

    def local_ms(self, node: Node) -> int:
        """What a node takes for the time."""
        return EPOCH_MS + node.offset_ms + self.now

    def crash(self, name: str) -> None:
        """End a process: its jobs are lost, and with it what is on its way to it."""
        node = self.nodes[name]
        node.engine = None
        self.flying = [packet for packet in self.flying if packet.target is not node]
        self.promises.wiped(node)
        self._views_may_have_changed()

    def restart(self, name: str) -> None:
        """Begin a new, empty process under the same id, with a larger boot number."""
        node = self.nodes[name]
        assert node.engine is None, f"{name} runs"
        self._boots += 1
        node.boot = self._boots
        self._start(node)
        self._views_may_have_changed()

    def _start(self, node: Node) -> None:
        node.engine = Engine(
            view=self.view_of(node),
            boot=node.boot,
            since=node.boot,
            limits=self.limits,
            dice=node.dice,
            now_ms=self.local_ms(node),
        )
        self.flush(node)

    def leave(self, name: str) -> None:
        """CLUSTER LEAVING yes, heard by all at once."""
        self.nodes[name].is_leaving = True
        self._views_may_have_changed()

    def forget(self, name: str) -> None:
        """CLUSTER FORGET of a node that is down, heard by all at once."""
        assert self.nodes[name].engine is None, f"{name} runs"
        self.forgotten.add(name)
        self.promises.wiped(self.nodes[name])
        self._views_may_have_changed()

    # Links and views

    def cut(self, source: str, target: str) -> None:
        """Nothing passes from source to target any more; both see it at once."""
        self.cuts.add((source, target))
        self.flying = [packet for packet in self.flying if packet.link != (source, target)]
        self._views_may_have_changed()

    def heal(self) -> None:
        """All links are whole; who is down stays so."""
        self.cuts.clear()
        self._views_may_have_changed()

    def is_up(self, one: str, two: str) -> bool:
        """True if both run and frames pass both ways."""
        both_run = self.nodes[one].engine is not None and self.nodes[two].engine is not None
        return both_run and (one, two) not in self.cuts and (two, one) not in self.cuts

    def view_of(self, node: Node) -> ClusterView:
        """What membership would tell this node now."""
        members = {}
        for other in self.nodes.values():
            if other.name in self.forgotten:
                continue
            apart_since = self._apart_since.get((node.name, other.name))
            is_suspect = apart_since is not None and self._is_long_since(apart_since)
            members[other.id] = MemberView(
                id=other.id,
                host="",
                port=0,
                bus_port=0,
                boot=other.boot,
                since=other.boot,
                is_reachable=other is node or self.is_up(node.name, other.name),
                is_suspect=is_suspect,
                is_failed=is_suspect,
                is_leaving=other.is_leaving,
            )
        forgotten = frozenset(self.nodes[name].id for name in self.forgotten)
        return ClusterView(node.id, members, forgotten, NODE_TIMEOUT_MS)

    def _is_long_since(self, apart_since: int) -> bool:
        return self.now - apart_since >= NODE_TIMEOUT_MS

    def _views_may_have_changed(self) -> None:
        for one in self.nodes:
            for two in self.nodes:
                if one == two or self.is_up(one, two):
                    self._apart_since.pop((one, two), None)
                else:
                    self._apart_since.setdefault((one, two), self.now)
        suspected = [key for key, since in self._apart_since.items() if self._is_long_since(since)]
        shape = (
            [(node.name, node.boot, node.engine is None) for node in self.nodes.values()],
            [node.is_leaving for node in self.nodes.values()],
            sorted(self._apart_since),
            sorted(suspected),
            sorted(self.forgotten),
        )
        if shape == self._shape:
            return
        self._shape = shape
        for node in self.alive:
            view = self.view_of(node)
            if view != node.state.view:
                self._input(node).view_changed(view)
                self.flush(node)

    # Inputs

    def _input(self, node: Node) -> Engine:
        assert node.engine is not None, f"{node.name} is down"
        node.engine.advance(self.local_ms(node))
        return node.engine

    def new_client(self) -> ClientId:
        """A connection, unique in this world."""
        self._last_client += 1
        return ClientId(self._last_client)

    def command(self, name: str, command: cmd.Command, client: ClientId | None = None) -> ClientId:
        """A client's command at a node, on a connection of its own if none is given."""
        node = self.nodes[name]
        client = client or self.new_client()
        engine = self._input(node)
        if isinstance(command, cmd.AddJob):
            entropy, job = self._next_id(node, command)
            node.dice.prepared = entropy
            engine.command(client, command)
            if node.dice.is_spent:  # the engine has made the job
                self.jobs[f"j{len(self.jobs) + 1}"] = job
                self.promises.adding(node, client, job, command)
        else:
            self.promises.commanded(command)
            engine.command(client, command)
        self.flush(node)
        return client

    def _next_id(self, node: Node, command: cmd.AddJob) -> tuple[bytes, JobId]:
        """Entropy that gives the next job's id the salted order that is asked for."""
        is_retried = command.retry_ms != 0
        while True:
            self._salt += 1
            entropy = blake2b(b"%d" % self._salt, digest_size=18).digest()
            job = make_job_id(node.id, entropy, ttl_ms=command.ttl_ms, is_retried=is_retried)
            if self.order is None:
                return entropy, job
            ids = [self.nodes[name].id for name in self.order]
            if salted(job, ids) == ids:
                return entropy, job

    def disconnect(self, name: str, client: ClientId) -> None:
        """A client goes without waiting for its answer."""
        node = self.nodes[name]
        self._input(node).disconnect(client)
        self.flush(node)

    def tell(self, source: str, target: str, message: msg.Message) -> None:
        """Let a node say something that its engine wouldn't say by itself."""
        one, two = self.nodes[source], self.nodes[target]
        self.flying.append(Packet(one, two, one.boot, self.now, wire.encode([message])))

    def arrive(self, packet: Packet) -> bool:
        """A packet reaches its target; False if there is nobody, or no link. The caller has taken it from `flying`."""
        node = packet.target
        if node.engine is None or packet.link in self.cuts:
            return False
        self.promises.flight_ms = max(self.promises.flight_ms, self.now - packet.sent_at)
        engine = self._input(node)
        for message in packet.messages:
            engine.receive(packet.source.id, packet.boot, message)
        self.flush(node)
        return True

    def flush(self, node: Node) -> None:
        """Carry out what a node's engine wants: messages fly, replies are noted; then look at all promises."""
        assert node.engine is not None
        ready: Ready = node.engine.take_ready()
        by_id = {other.id: other for other in self.nodes.values()}
        for peers, statements in ready.messages:
            parts = wire.split(
                statements,
                entries_max=self.limits.message_entries_max,
                bytes_max=self.limits.message_bytes_max,
            )
            for part in parts:
                payload = wire.encode(part)
                for peer in peers:
                    packet = Packet(node, by_id[peer], node.boot, self.now, payload)
                    self.flying.append(packet)
        if ready.messages or ready.records or ready.replies:
            self.promises.stepped()
        for client, reply in ready.replies:
            self.promises.answered(node, client, reply)
            self.answers.append(Answer(node.name, client, reply))

    # Time

    def next_event(self) -> int | None:
        """ms of this world at which a timer or a suspicion is due."""
        times = [
            since + NODE_TIMEOUT_MS
            for since in self._apart_since.values()
            if since + NODE_TIMEOUT_MS > self.now
        ]
        for node in self.alive:
            assert node.engine is not None
            at = node.engine.next_wakeup_ms()
            if at is not None:
                times.append(max(self.now, at - self.local_ms(node) + self.now))
        return min(times, default=None)

    def tick(self, at: int) -> None:
        """Time has come to `at`: what is due fires at every node."""
        self.now = max(self.now, at)
        self._views_may_have_changed()
        for node in self.alive:
            self._input(node)
            self.flush(node)

    def run(self, ms: int) -> Iterator[None]:
        """Let time pass; yields after each moment at which something was due. The caller delivers what flies."""
        end = self.now + ms
        for _ in range(STEPS_MAX):
            at = self.next_event()
            if at is None or at > end:
                self.tick(end)
                yield
                return
            self.tick(at)
            yield
        raise LoopError(f"more than {STEPS_MAX} moments in {ms} ms")

    def settle(self) -> None:
        """Deliver everything in order, until nothing flies; cut links lose."""
        for _ in range(STEPS_MAX):
            if not self.flying:
                return
            self.arrive(self.flying.pop(0))
        raise LoopError(f"more than {STEPS_MAX} messages without rest: {self.flying[0].messages}")
