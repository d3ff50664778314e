"""History: a simulated run as the checkers of real runs read it (jepsen.history), and their verdict on it.

Clients, faults and observers write the same events as in a real run; what a whisper or a message of the nemesis orders
in a client's place is written as a client's order. All faults are proven: nothing here is by chance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from disque.core import commands as cmd
from disque.core.ready import Delivery, Failure, Reply, Status
from jepsen.checkers.base import Meta, Result, Run
from jepsen.checkers.judge import check
from jepsen.history import FAIL, INFO, INVOKE, NEMESIS, OBSERVER, OK, History, Op
from tests.sim import adapter
from tests.sim.ledger import value_of

if TYPE_CHECKING:
    from disque.core.ready import NilArray
    from tests.sim.clients import Operation
    from tests.sim.node import Node
    from tests.sim.world import World

NS = 1_000_000  # in a ms
PATIENCE_MS = 6000  # an operation without a time-out of its own is given up after this
_UNKNOWN = "NOREPL"  # an error after which the job may live


class Recorder:
    """Writes the history of one run. `note_*` are called by whoever does the thing."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.history = History()
        self.is_drained: bool | None = None
        self.tracebacks: list[str] = []
        profile = world.profile
        # Peers that are full, or paused, refuse copies: a REPLICATE that was left out promises one copy then (M25)
        kinds = {fault.kind for fault in profile.faults}
        self._is_full = "maxmemory_bytes" in profile.limits
        are_refusals_likely = self._is_full or "pause" in kinds
        self._is_lame = self._is_full or not kinds.isdisjoint(("slow", "disk", "leave"))
        self._default_copies = 1 if are_refusals_likely else 3
        self.concurrency = profile.clients + 2 * (profile.nodes + profile.spares) + 1
        self._processes: dict[str, int] = {}
        self._faults: dict[int, dict[str, Any]] = {}  # open ones by id
        self._faults_made = 0
        self._early: dict[str, None] = {}  # ids no client had heard of that a whisper ended
        self._heard: dict[str, None] = {}

    def _add(
        self,
        process: int,
        kind: str,
        f: str,
        value: Mapping[str, Any],
        node: str = "",
        error: str = "",
    ) -> None:
        now = self.world.now * NS
        self.history.append(Op(len(self.history), now, process, kind, f, value, node, error))

    # Clients

    def _process(self, name: str) -> int:
        return self._processes.setdefault(name, len(self._processes))

    def invoked(self, operation: Operation) -> None:
        """A client sends a command."""
        shape = _SHAPES.get(type(operation.command))
        if shape is not None:
            f, show = shape
            process = self._process(operation.client.name)
            self._add(process, INVOKE, f, show(operation.command), operation.node.name)

    def answered(self, operation: Operation, reply: Reply) -> None:
        """The reply reaches the client."""
        shape = _SHAPES.get(type(operation.command))
        if shape is None:
            return
        f, name, node = shape[0], operation.client.name, operation.node.name
        process = self._process(name)
        if isinstance(reply, Failure):
            is_unknown = f == "add" and reply.code == _UNKNOWN
            error = f"{reply.code} {reply.text}"
            if f == "add" and self._had_to_fail(operation, reply.code):
                # as if nobody had waited: it says nothing against the node
                error = "cancelled"
            self._add(process, INFO if is_unknown else FAIL, f, {}, node, error)
            if is_unknown:
                self._retire(name)
            return
        outcome = _outcome(f, reply)
        if f == "add" and self._is_worked_on(outcome["id"]):
            # any work on it is a success of a waiting ADDJOB (B7.3); to the checkers its outcome is unknown
            self._add(process, INFO, f, {}, node, "cancelled")
            self._retire(name)
        else:
            self._add(process, OK, f, outcome, node)
            if f == "add":
                self._heard[outcome["id"]] = None

    def _is_worked_on(self, job: str) -> bool:
        """Somebody ended it, was given it, or lost a copy of it, before its ADDJOB was answered."""
        life = self.world.watch.ledger.by_id.get(job.encode())
        if life is None or life.ok_at is None or job in self._early:
            return True
        if any(at <= life.ok_at for at in life.wiped.values()):
            return True
        return bool(life.deliveries) and life.deliveries[0][0] < life.ok_at

    def _had_to_fail(self, operation: Operation, code: str) -> bool:
        """By right: a full or paused queue, its own dead letters; NOREPL, if more copies than nodes were asked for, or
        peers are full, paused or slow on purpose, and copies of theirs are needed.
        """
        command = operation.command
        assert isinstance(command, cmd.AddJob)
        if code != _UNKNOWN:
            return code in ("MAXLEN", "PAUSED") or command.dead_queue == command.queue
        if command.replicate == 1:
            return False
        alive = sum(node.is_alive for node in self.world.nodes)
        is_too_many = command.replicate is not None and command.replicate > alive
        return is_too_many or self._is_lame or self._default_copies == 1

    def whispered_end(self, node: Node, job: str) -> None:
        """A peer tells a node of an end that nobody ordered: as if a client had cancelled it there.

        Nobody can order anything about an id that no client has heard of: then its ADDJOB tells of it.
        """
        life = self.world.watch.ledger.by_id.get(job.encode())
        if life is not None and job not in self._heard:
            self._early[job] = None
        else:
            self.ordered("cancel", node, {"ids": [job]})

    def broken(self, operation: Operation, error: str) -> None:
        """The client will never hear how it ended."""
        shape = _SHAPES.get(type(operation.command))
        if shape is not None:
            name = operation.client.name
            self._add(self._process(name), INFO, shape[0], {}, operation.node.name, error)
            self._retire(name)

    def _retire(self, name: str) -> None:
        self._processes[name] += self.concurrency

    def ordered(self, f: str, node: Node, value: Mapping[str, Any]) -> None:
        """The simulator does something in a client's place, and it is done at once."""
        process = self._process("simulator")
        self._add(process, INVOKE, f, value, node.name)
        count = len(value.get("ids", ())) or 1
        self._add(process, OK, f, {"count": count}, node.name)

    # Faults

    def began(
        self,
        kind: str,
        nodes: list[str],
        links: list[tuple[str, str]] | None = None,
        wipes: list[str] | None = None,
    ) -> int:
        """A fault acts from now on; returns the number with which it ends."""
        self._faults_made += 1
        number = self._faults_made
        value: dict[str, Any] = {"id": number, "kind": kind, "nodes": nodes, "links": links or []}
        value |= {"params": {}, "proven": True}
        if wipes is not None:
            value["wipes"] = wipes
        self._faults[number] = value
        self._add(NEMESIS, INFO, "start", value)
        return number

    def ended(self, number: int, wiped: Sequence[str] = ()) -> None:
        """A fault is over, and nodes have lost something by it; a second time changes nothing."""
        value = self._faults.pop(number, None)
        if value is not None:
            stop = {"id": number, "kind": value["kind"], "proven": True}
            if wiped:
                stop["wipes"] = list(wiped)
            self._add(NEMESIS, INFO, "stop", stop)

    def all_ended(self, *, but: str = "") -> None:
        """Everything is healed, but a kind of which something may be left."""
        for number, fault in list(self._faults.items()):
            if fault["kind"] != but:
                self.ended(number)

    def member(self, f: str, node: Node, *, wipes: bool, is_begun: bool = False) -> None:
        """A node leaves, is forgotten or joins: it begins to, or has done so."""
        value: dict[str, Any] = {"target": node.name, "wipes": [node.name] if wipes else []}
        if not is_begun:
            value["proven"] = True
        self._add(NEMESIS, INFO, f, value)

    def phase(self, name: str) -> None:
        """The next part of the run begins."""
        self._add(NEMESIS, INFO, "phase", {"name": name})

    # Observers

    def observe(self, phase: str) -> None:
        """Look at all nodes that were ever there."""
        for node in self.world.nodes:
            if node.life:
                self._add(OBSERVER, INVOKE, "observe", {"phase": phase}, node.name)
                is_gone = node.index in self.world.nemesis.forgotten
                if node.is_alive or is_gone:
                    # who is gone for good has nothing any more
                    seen = {"ids": []} if is_gone else adapter.observe(self.world, node)
                    value = {"phase": phase, **seen}
                    self._add(OBSERVER, OK, "observe", value, node.name)
                else:
                    self._add(OBSERVER, INFO, "observe", {}, node.name, "refused")

    # Verdict

    def meta(self) -> Meta:
        """The run for the checkers, with the bounds that hold for these limits and this weather."""
        world, profile = self.world, self.world.profile
        limits = profile.limits
        # A connection that was over a cut may die this late, and is dialed again then
        views_ms = 6 * profile.node_timeout_ms + 3000
        facts_ms = views_ms + limits["heal_gap_max_ms"] + limits["setack_max_ms"]
        names = [node.name for node in world.nodes if node.life]
        return Meta(
            name=f"sim-{profile.seed}",
            workload="sim",
            nemesis="sim" if profile.faults else "none",
            nodes=tuple(names),
            concurrency=self.concurrency,
            seed=profile.seed,
            log=bool(profile.log),
            fsync=profile.log,
            bounds={
                "node_timeout_ms": profile.node_timeout_ms,
                "views_ms": views_ms,
                "facts_ms": facts_ms,
                # A full node gives REPLICATE 1 to a peer, and waits for it: no measure of a node that is alone
                "available_percent": 0 if self._is_full else 99,
                "default_copies": self._default_copies,
                "ttl_slack_ms": 2 * limits["link_wait_max_ms"] + 1000,
            },
            drained=self.is_drained,
            tracebacks=tuple(self.tracebacks),
            abandoned=tuple([world.nodes[index].name for index in world.nemesis.forgotten]),
            is_external=self._is_full,
            is_simulated=True,
        )

    def judge(self) -> list[Result]:
        """What the checkers of real runs say."""
        return check(Run(self.meta(), self.history))


def _outcome(f: str, reply: Reply | NilArray) -> dict[str, Any]:
    if f == "add":
        assert isinstance(reply, Status)
        return {"id": reply.text.decode()}
    if f == "get":
        jobs = reply if isinstance(reply, list) else []
        return {"jobs": [_job(each) for each in jobs if isinstance(each, Delivery)]}
    if f == "working":
        return {"seconds": reply}
    return {"count": reply[0] if isinstance(reply, list) else reply}


def _job(delivery: Delivery) -> dict[str, Any]:
    body = delivery.body
    # a Paged body is read before a reply leaves the broker
    assert isinstance(body, bytes)
    job = {
        "v": value_of(body),
        "id": delivery.id.decode(),
        "queue": delivery.queue.decode(),
        "nacks": delivery.nacks,
        "extra": delivery.additional,
    }
    return job if job["v"] != -1 else {**job, "raw": repr(body[:80])}


def _add_value(command: cmd.AddJob) -> dict[str, Any]:
    return {
        "v": value_of(command.body),
        "queue": command.queue.decode(),
        "retry": -1 if command.retry_ms is None else command.retry_ms / 1000,
        "replicate": command.replicate or 0,
        "delay": command.delay_ms / 1000,
        "ttl": command.ttl_ms / 1000,
        "async": command.is_async,
        "timeout": command.timeout_ms,
        "limit": command.max_deliveries or 0,
        "dead": (command.dead_queue or b"").decode(),
        "size": len(command.body),
        "priority": command.priority,
    }


def _get_value(command: cmd.GetJob) -> dict[str, Any]:
    queues = [queue.decode() for queue in command.queues]
    timeout = 0 if command.is_nohang else command.timeout_ms or PATIENCE_MS
    return {"queues": queues, "count": command.count, "timeout": timeout}


def _ids_value(command: Any) -> dict[str, Any]:
    value: dict[str, Any] = {"ids": [job.decode() for job in command.ids]}
    if isinstance(command, cmd.Nack):
        value["delay"] = command.delay_ms / 1000
    return value


_Shape = tuple[str, Callable[[Any], dict[str, Any]]]
_SHAPES: Mapping[type[Any], _Shape] = {
    cmd.AddJob: ("add", _add_value),
    cmd.GetJob: ("get", _get_value),
    cmd.AckJob: ("ack", _ids_value),
    cmd.FastAck: ("fastack", _ids_value),
    cmd.DelJob: ("deljob", _ids_value),
    cmd.CancelJob: ("cancel", _ids_value),
    cmd.Nack: ("nack", _ids_value),
    cmd.Enqueue: ("enqueue", _ids_value),
    cmd.Dequeue: ("dequeue", _ids_value),
    cmd.Revive: ("revive", _ids_value),
    cmd.Working: ("working", lambda command: {"ids": [command.id.decode()]}),
    cmd.QPurge: ("purge", lambda command: {"queue": command.queue.decode()}),
}
