"""Races: workloads about the end of a delivery: acked twice, late, elsewhere, by nobody; nacked, postponed; once."""

# Shapes are shared: not every one of a kind needs all that it is given.
# ruff: noqa: ARG002

from __future__ import annotations

import attrs

from jepsen.workloads.base import (
    Adder,
    Completed,
    Dice,
    Intent,
    Params,
    Planned,
    View,
    Workload,
    ack_node,
    elsewhere,
    get,
    order,
)

ID_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


@attrs.define(eq=False)
class AtMostOnce(Workload):
    """RETRY 0 REPLICATE 1: each job is delivered once or never."""

    params: Params
    adder: Adder
    name: str = "at-most-once"
    retry_max_s: int = 1

    def next(self, dice: Dice, view: View) -> Intent:
        """An add with RETRY 0, or a get."""
        if dice.random() < 0.45:
            return self.adder.add(dice, view, retry=0, replicate=1, ttl=self.params.ttl_s or 300)
        return get(dice, view, self.queues)

    def heard(self, dice: Dice, view: View, intent: Intent, done: Completed) -> list[Planned]:
        """Acked here or elsewhere, at times not at all: it may not come back."""
        if not done.jobs or dice.random() < 0.1:
            return []
        return [Planned(order("ack", ack_node(dice, self.params, intent, 0.3), done.jobs))]


@attrs.define(eq=False)
class AckRace(Workload):
    """Acks at another node, at two nodes at once, twice, late, and of ids that nobody has."""

    params: Params
    adder: Adder
    name: str = "ack-race"

    def next(self, dice: Dice, view: View) -> Intent:
        """An add, a get, or at times an ack out of the blue."""
        drawn = dice.random()
        if drawn < 0.03:
            return order("ack", view.node, [{"id": _unknown_id(dice), "v": -1}])
        return self.adder.add(dice, view) if drawn < 0.45 else get(dice, view, self.queues)

    def heard(self, dice: Dice, view: View, intent: Intent, done: Completed) -> list[Planned]:
        """One way of acking each batch."""
        jobs = done.jobs
        if not jobs:
            return []
        here, other = intent.node, elsewhere(dice, self.params.nodes, intent.node)
        way = dice.choice(("here", "elsewhere", "elsewhere", "twice", "both", "late", "split"))
        if way == "here":
            return [Planned(order("ack", here, jobs))]
        if way == "elsewhere":
            return [Planned(order("ack", other, jobs))]
        if way == "twice":
            again = dice.choice((0.0, 0.05, 1.0))
            return [Planned(order("ack", here, jobs)), Planned(order("ack", here, jobs), again)]
        if way == "both":
            return [Planned(order("ack", here, jobs), 0.001), Planned(order("ack", other, jobs))]
        if way == "late":
            late_s = self.retry_max_s * dice.uniform(0.8, 1.6)
            return [Planned(order("ack", dice.choice((here, other)), jobs), late_s)]
        return [Planned(order("ack", dice.choice(self.params.nodes), [job])) for job in jobs]


@attrs.define(eq=False)
class NackWorking(Workload):
    """Deliveries are nacked (at once or with a delay), postponed by WORKING and acked later, or acked."""

    params: Params
    adder: Adder
    name: str = "nack-working"

    def next(self, dice: Dice, view: View) -> Intent:
        """An add or a get of one."""
        if dice.random() < 0.35:
            return self.adder.add(dice, view)
        return get(dice, view, self.queues, count_max=2)

    def heard(self, dice: Dice, view: View, intent: Intent, done: Completed) -> list[Planned]:
        """A nack needs no more; WORKING is said once or twice before the ack."""
        if not done.jobs:
            return []
        node, drawn = ack_node(dice, self.params, intent, 0.2), dice.random()
        if drawn < 0.25:
            return [Planned(order("nack", node, done.jobs, delay=dice.choice((0, 0, 1))))]
        if drawn < 0.5:
            first = [Planned(order("working", node, [job]), 0.3) for job in done.jobs]
            return [*first, Planned(order("ack", node, done.jobs), dice.uniform(0.9, 1.6))]
        return [Planned(order("ack", node, done.jobs))]


def _unknown_id(dice: Dice) -> str:
    """A well-formed id that no node made; its last part is a TTL of 2 minutes."""
    node = "".join(dice.choices("0123456789abcdef", k=8))
    return f"D-{node}-{''.join(dice.choices(ID_LETTERS, k=24))}-0003"
