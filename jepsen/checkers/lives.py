"""Lives: one pass over the events of a run that makes everything which checkers share.

A `Life` is one value: its add, its hand-outs, and what clients ordered about it. Times are ns since the run began.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import cached_property

import attrs

from jepsen.checkers.base import MS, Meta, Run, S
from jepsen.checkers.bounds import Bounds
from jepsen.checkers.faults import FOREVER, Faults
from jepsen.checkers.snapshots import Round, Snapshot, rounds_of
from jepsen.history import FAIL, INFO, INVOKE, NEMESIS, OBSERVER, OK, ORDERS, Op

TTL_DEFAULT_S = 86_400
RETRY_DEFAULT_MAX_S = 300
DEAD_DEFAULT = "dead-letters"
SETTLING = frozenset({"ack", "fastack", "cancel"})  # what ends a job everywhere


@attrs.define(eq=False)
class Ask:
    """One GETJOB; `type` INFO and `ended_at` FOREVER if nothing came back."""

    invoke: Op
    ended_at: int = FOREVER
    type: str = INFO
    got: int = 0
    error: str = ""


@attrs.define(eq=False)
class Delivery:
    """One job handed out, seen by a client at `at`; it was handed out between `asked_at` and `at`."""

    v: int
    job: str
    queue: str
    node: str
    process: int
    asked_at: int
    at: int
    rank: int = 0  # its place in the answer
    raw: str = ""


@attrs.define(eq=False)
class Order:
    """What a client ordered about one job, by id."""

    f: str
    node: str
    begun_at: int
    delay: int = 0  # ns, of NACK
    ended_at: int = FOREVER
    type: str = INFO
    had_all: bool = False  # its node had every job that it named, not over yet, as its count says


@attrs.define(eq=False)
class Purge:
    """One QPURGE."""

    queue: str
    begun_at: int
    ended_at: int = FOREVER
    type: str = INFO


@attrs.define(eq=False)
class Life:
    """One value from its ADDJOB to the end; retry, delay and ttl in ns with defaults filled in."""

    v: int
    add: Op
    queue: str
    retry: int
    delay: int
    ttl: int
    replicate: int  # copies at the answer; 0: left out
    asked: int  # REPLICATE as the client said it; 0: left out
    limit: int
    dead: str
    priority: int = 0  # higher ones go first; 0 where nobody says any
    reply: Op | None = None
    job: str = ""
    deliveries: list[Delivery] = attrs.Factory(list)
    orders: list[Order] = attrs.Factory(list)

    @property
    def begun_at(self) -> int:
        """When ADDJOB was sent."""
        return self.add.time

    @property
    def ended_at(self) -> int:
        """When it was answered; FOREVER if never."""
        return FOREVER if self.reply is None else self.reply.time

    @property
    def is_ok(self) -> bool:
        """Acknowledged: in K."""
        return self.reply is not None and self.reply.type == OK

    @property
    def is_refused(self) -> bool:
        """Surely not added: in F."""
        return self.reply is not None and self.reply.type == FAIL

    def ordered(self, kinds: frozenset[str]) -> bool:
        """One of these was ordered, and may have happened."""
        return any(order.f in kinds and order.type != FAIL for order in self.orders)

    def ends(self) -> list[Order]:
        """The orders that ended it for sure, in order of their sending.

        RETRY 0: only at the node that had it, as its count says, or that had handed it out before. Others remember no
        ack of such a job, even if it moves to them later.
        """
        found = [order for order in self.orders if order.type == OK and order.f in SETTLING]
        if found and not self.retry:
            return [order for order in found if order.had_all or self._was_handed_out_before(order)]
        return found

    def _was_handed_out_before(self, order: Order) -> bool:
        return any(
            each.node == order.node and each.at <= order.begun_at for each in self.deliveries
        )

    @property
    def orders_before_delivery(self) -> bool:
        """Somebody ordered something about it before it was handed out for the first time."""
        return bool(self.orders) and self.orders[0].begun_at < self.deliveries[0].at

    @property
    def own(self) -> list[Delivery]:
        """Hand-outs from its own queue, not as a dead letter."""
        return [each for each in self.deliveries if each.queue == self.queue]


class Index:
    """Everything of a run, found by value, by id, by queue, by time."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.bounds = Bounds.of(run.meta, run.ops)
        self.ended_at = run.ops[-1].time if run.ops else 0
        self.lives: dict[int, Life] = {}
        self.by_id: dict[str, Life] = {}
        self.asks: list[Ask] = []
        self.purges: list[Purge] = []
        self.snapshots: list[Snapshot] = []
        self.looked: dict[tuple[str, str], None] = {}  # (phase, node): asked, answered or not
        self.strays: list[Delivery] = []  # what nobody added, or isn't ours
        self.tried: dict[str, None] = {}  # f of every call
        self.oks: dict[tuple[str, str], int] = {}  # (f, node) -> completions
        self._opened: dict[int, tuple[Op, list[Order] | Ask | Purge | Life | None]] = {}
        self._looking: dict[str, Op] = {}
        self._read(run.ops)
        # a run of a simulator, or an old one, may not say which nodes it has
        nodes = run.meta.nodes or tuple(sorted({op.node for op in run.ops if op.node}))
        self.meta: Meta = attrs.evolve(run.meta, nodes=nodes)
        self.faults = Faults(self.meta, run.ops, self.bounds)

    # The pass

    def _read(self, ops: list[Op]) -> None:
        for op in ops:
            process = op.process
            if process == NEMESIS:
                continue
            if process == OBSERVER:
                self._observed(op)
            elif op.type == INVOKE:
                self._opened[process] = (op, self._invoked(op))
            elif (opened := self._opened.pop(process, None)) is not None:
                self._completed(opened[0], opened[1], op)

    def _observed(self, op: Op) -> None:
        if op.type == INVOKE:
            self._looking[op.node] = op
            self.looked[str(op.value.get("phase", "")), op.node] = None
            return
        invoke = self._looking.pop(op.node, None)
        if op.type == OK:
            self.snapshots.append(Snapshot.of(invoke, op))

    def _invoked(self, op: Op) -> list[Order] | Ask | Purge | Life | None:
        f, value = op.f, op.value
        self.tried[f] = None
        if f == "add":
            life = self.lives[value["v"]] = _life(op)
            return life
        if f == "get":
            ask = Ask(op)
            self.asks.append(ask)
            return ask
        if f in ORDERS:
            delay = int(float(value.get("delay") or 0) * S) if f == "nack" else 0
            orders = []
            for job in value["ids"]:
                order = Order(f, op.node, op.time, delay)
                if (known := self.by_id.get(job)) is not None:
                    known.orders.append(order)
                    orders.append(order)
            return orders
        if f == "purge":
            purge = Purge(value["queue"], op.time)
            self.purges.append(purge)
            return purge
        return None

    def _completed(
        self, invoke: Op, opened: list[Order] | Ask | Purge | Life | None, op: Op
    ) -> None:
        if op.type == OK:
            key = (op.f, op.node)
            self.oks[key] = self.oks.get(key, 0) + 1
        if isinstance(opened, Life):
            opened.reply = op
            if op.type == OK:
                self._named(opened, str(op.value["id"]))
        elif isinstance(opened, Ask):
            opened.ended_at, opened.type, opened.error = op.time, op.type, op.error
            if op.type == OK and (jobs := op.value.get("jobs")):
                opened.got = len(jobs)
                for rank, job in enumerate(jobs):
                    self._delivered(invoke, op, job, rank)
        elif isinstance(opened, Purge):
            opened.ended_at, opened.type = op.time, op.type
        elif opened is not None:
            had_all = op.value.get("count") == len(invoke.value["ids"])
            for order in opened:
                order.ended_at, order.type, order.had_all = op.time, op.type, had_all

    def _named(self, life: Life, job: str) -> None:
        life.job = life.job or job
        self.by_id.setdefault(job, life)

    def _delivered(self, invoke: Op, op: Op, job: dict[str, object], rank: int) -> None:
        v = job["v"]
        assert isinstance(v, int)
        delivery = Delivery(
            v, str(job["id"]), str(job["queue"]), op.node, op.process, invoke.time, op.time, rank
        )
        life = self.lives.get(v)
        if life is None:
            delivery.raw = str(job.get("raw", ""))
            self.strays.append(delivery)
            return
        life.deliveries.append(delivery)
        if delivery.job not in self.by_id:
            self._named(life, delivery.job)

    # What several checkers ask

    @cached_property
    def rounds(self) -> list[Round]:
        """All rounds of snapshots, in order of time."""
        return rounds_of(self.snapshots)

    @cached_property
    def full_rounds(self) -> list[Round]:
        """Those in which every node told its ids."""
        return [each for each in self.rounds if each.is_full(self.meta.nodes)]

    @cached_property
    def full_starts(self) -> list[int]:
        """When the full rounds began."""
        return [each.begun_at for each in self.full_rounds]

    @cached_property
    def last_looks(self) -> dict[str, Snapshot]:
        """The last snapshot of each node."""
        return {snapshot.node: snapshot for snapshot in self.snapshots}

    @cached_property
    def sightings(self) -> list[tuple[Life, Snapshot]]:
        """Un-acked copies that a node had, asked after the job's end was confirmed somewhere."""
        found = []
        for snapshot in self.snapshots:
            for job in sorted(snapshot.ids or ()):
                life = self.by_id.get(job)
                if life is not None and life.orders:
                    ends = life.ends()
                    if ends and min(end.ended_at for end in ends) < snapshot.asked_at:
                        found.append((life, snapshot))
        return found

    @cached_property
    def unanswered(self) -> dict[str, list[tuple[int, int]]]:
        """By queue: spans of GETJOBs whose answer was lost; it may have carried jobs.

        A node that stood still reads it when it goes on again, and its client is gone.
        """
        found: dict[str, list[tuple[int, int]]] = {}
        for ask in self.asks:
            if ask.type == INFO:
                start, end = ask.invoke.time, ask.ended_at
                if not self.faults.is_calm(start, end):
                    end = self.faults.unquiet.first_after(end) + self.bounds.facts_ms * MS
                for queue in ask.invoke.value["queues"]:
                    found.setdefault(queue, []).append((start, end))
        return found

    def may_be_taken(self, life: Life, since: int, until: int = FOREVER) -> bool:
        """A GETJOB of its queues whose answer was lost went on at some time of this span."""
        return any(
            end >= since and start <= until
            for queue in (life.queue, life.dead)
            for start, end in self.unanswered.get(queue, ())
        )

    def all_were_empty(self, queue: str, since: int) -> int:
        """By when each node had answered a GETJOB, sent after `since`, with nothing; FOREVER if one never did."""
        ends = []
        for node in self.meta.nodes:
            asks = self._empty_asks.get((queue, node), ())
            at = bisect_right(asks, since, key=lambda ask: ask.invoke.time)
            ends.append(asks[at].ended_at if at < len(asks) else FOREVER)
        return max(ends, default=FOREVER)

    @cached_property
    def _empty_asks(self) -> dict[tuple[str, str], list[Ask]]:
        found: dict[tuple[str, str], list[Ask]] = {}
        for ask in self.asks:
            if ask.type == OK and not ask.got:
                for queue in ask.invoke.value["queues"]:
                    found.setdefault((queue, ask.invoke.node), []).append(ask)
        return found

    def settled_by(self, life: Life, until: int) -> int:
        """The instant by which everyone must have heard that a job is over; FOREVER if that can't be said.

        An end counts unless the node that took it may have been wiped before `until`, or it is a FASTACK under faults.
        """
        faults, facts = self.faults, self.bounds.facts_ms * 1_000_000
        best = FOREVER
        for end in life.ends():
            deadline = faults.calm_from(end.ended_at) + facts
            is_lost = faults.is_wiped(end.node, end.begun_at, min(deadline, until))
            is_loose = end.f == "fastack" and not faults.is_calm(end.begun_at, until)
            if not is_lost and not is_loose:
                best = min(best, deadline)
        return best


def _life(op: Op) -> Life:
    value = op.value
    ttl = float(value.get("ttl") or TTL_DEFAULT_S)
    retry = float(value.get("retry", -1))
    if retry < 0:
        retry = min(ttl / 10, RETRY_DEFAULT_MAX_S)
    asked = int(value.get("replicate") or 0)
    if not retry:
        # what has RETRY 0 has one copy, said or not
        asked = 1
    replicate = 1 if value.get("async") else asked
    return Life(
        value["v"],
        op,
        value["queue"],
        int(retry * S),
        int(float(value.get("delay") or 0) * S),
        int(ttl * S),
        replicate,
        asked,
        int(value.get("limit") or 0),
        str(value.get("dead") or (DEAD_DEFAULT if value.get("limit") else "")),
        int(value.get("priority") or 0),
    )
