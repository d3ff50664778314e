"""Queue: adds, gets and acks in equal measure; some acks at another node, some deliveries never acked the first time.

Its variants change one thing: `leave-join` only the default nemesis, `federation` who adds and who gets, `bigmem` the
size of bodies and of the memory, `async-fastack` the promise asked for.
"""

# Shapes are shared: not every one of a kind needs all that it is given.
# ruff: noqa: ARG002

from __future__ import annotations

from collections.abc import Mapping

import attrs

from jepsen.workloads.base import (
    QUEUE,
    Adder,
    Completed,
    Dice,
    Intent,
    Params,
    Planned,
    View,
    Workload,
    ack_node,
    get,
    order,
)


@attrs.define(eq=False)
class Queue(Workload):
    """See the module. `adds` is the share of adds, `elsewhere` that of acks at another node, `forgotten` of none."""

    params: Params
    adder: Adder
    name: str = "queue"
    adds: float = 0.45
    elsewhere: float = 0.2
    forgotten: float = 0.02

    def next(self, dice: Dice, view: View) -> Intent:
        """An add or a get."""
        if dice.random() < self.adds:
            return self.adder.add(dice, view)
        return get(dice, view, self.queues)

    def heard(self, dice: Dice, view: View, intent: Intent, done: Completed) -> list[Planned]:
        """Deliveries are acked in one command, here or at another node."""
        if not done.jobs or dice.random() < self.forgotten:
            return []
        return [
            Planned(order("ack", ack_node(dice, self.params, intent, self.elsewhere), done.jobs))
        ]


@attrs.define(eq=False)
class Federation(Workload):
    """Producers at the first half of the nodes, consumers at the rest: each job has to travel."""

    params: Params
    adder: Adder
    name: str = "federation"
    demands: Mapping[str, int] = attrs.Factory(lambda: {"deliveries_in_faults": 100})

    def next(self, dice: Dice, view: View) -> Intent:
        """An add at a producer's node, a get elsewhere."""
        nodes = self.params.nodes
        if nodes.index(view.node) < max(1, len(nodes) // 2):
            return self.adder.add(dice, view)
        return get(dice, view, self.queues, timeout_ms=500)

    def heard(self, dice: Dice, view: View, intent: Intent, done: Completed) -> list[Planned]:
        """Acked where they were got."""
        return [Planned(order("ack", intent.node, done.jobs))] if done.jobs else []


@attrs.define(eq=False)
class AsyncFastack(Workload):
    """ASYNC adds and FASTACKs: weaker promises, so fewer rules hold; nothing may crash, leak or appear from nowhere."""

    params: Params
    adder: Adder
    name: str = "async-fastack"
    demands: Mapping[str, int] = attrs.Factory(lambda: {"deliveries_in_faults": 100})

    def next(self, dice: Dice, view: View) -> Intent:
        """An add, mostly ASYNC, or a get."""
        if dice.random() < 0.45:
            return self.adder.add(dice, view, **{"async": dice.random() < 0.7})
        return get(dice, view, self.queues)

    def heard(self, dice: Dice, view: View, intent: Intent, done: Completed) -> list[Planned]:
        """Mostly FASTACK, at times at another node."""
        if not done.jobs:
            return []
        f = "fastack" if dice.random() < 0.8 else "ack"
        return [Planned(order(f, ack_node(dice, self.params, intent, 0.2), done.jobs))]


@attrs.define(eq=False)
class BigMem(Workload):
    """Bodies of some 20 KB against a small `maxmemory`, in waves: producers fill it up, then consumers empty it."""

    params: Params
    adder: Adder
    name: str = "bigmem"
    flags: tuple[str, ...] = ("--maxmemory", "4000000")
    demands: Mapping[str, int] = attrs.Factory(lambda: {"refused_full": 1, "acks_elsewhere": 20})
    wave_s: float = 12.0

    def next(self, dice: Dice, view: View) -> Intent:
        """Mostly adds in the first half of a wave, mostly gets in the second."""
        is_filling = view.now_s % self.wave_s < self.wave_s / 2
        if dice.random() < (0.9 if is_filling else 0.15):
            return self.adder.add(dice, view, size=dice.randint(5_000, 40_000))
        return get(dice, view, self.queues)

    def heard(self, dice: Dice, view: View, intent: Intent, done: Completed) -> list[Planned]:
        """Acked where they were got, or elsewhere."""
        node = ack_node(dice, self.params, intent, 0.2)
        return [Planned(order("ack", node, done.jobs))] if done.jobs else []


@attrs.define(eq=False)
class Fifo(Workload):
    """Each node has a queue of its own, added to and asked for there alone: jobs stay there, in their order."""

    params: Params
    adder: Adder
    name: str = "fifo"
    demands: Mapping[str, int] = attrs.Factory(lambda: {"judged_in_order": 200})
    queues: tuple[str, ...] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.queues = tuple(f"{QUEUE}-{node}" for node in self.params.nodes)

    def next(self, dice: Dice, view: View) -> Intent:
        """As many adds as gets can take, so that the queue is mostly neither long nor empty."""
        queue = f"{QUEUE}-{view.node}"
        if dice.random() < 0.6:
            return self.adder.add(dice, view, queue=queue)
        return get(dice, view, (queue,), count_max=2)

    def heard(self, dice: Dice, view: View, intent: Intent, done: Completed) -> list[Planned]:
        """Acked where they were got."""
        return [Planned(order("ack", intent.node, done.jobs))] if done.jobs else []


@attrs.define(eq=False)
class Replication(Workload):
    """Adds without consumers: the snapshots of all nodes show who holds what; the drain gets everything at the end."""

    params: Params
    adder: Adder
    name: str = "replication"
    demands: Mapping[str, int] = attrs.Factory(lambda: {"copies_counted": 50})

    def next(self, dice: Dice, view: View) -> Intent:
        """Always an add."""
        return self.adder.add(dice, view)

    def heard(self, dice: Dice, view: View, intent: Intent, done: Completed) -> list[Planned]:
        """Nothing follows."""
        return []
