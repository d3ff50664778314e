"""Fates: workloads about jobs that end without an ack: they wait, expire, are purged or cancelled, or die."""

# Shapes are shared: not every one of a kind needs all that it is given.
# ruff: noqa: ARG002

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import attrs

from jepsen.history import OK
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

DEAD = "jx-dead"
REMEMBERED_MAX = 500
PURGE_EVERY_S = 8.0


@attrs.define(eq=False)
class DelayTtl(Workload):
    """DELAY 0-4 s, and a TTL that runs out on some before anybody asks."""

    params: Params
    adder: Adder
    name: str = "delay-ttl"

    @property
    def retry_max_s(self) -> int:
        """The longest RETRY or DELAY in use."""
        return max(4, self.adder.retry_max_s)

    def next(self, dice: Dice, view: View) -> Intent:
        """An add with a delay, a short TTL, both or none; or a get."""
        if dice.random() < 0.4:
            delay = dice.choice((0, 1, 1, 2, 4))
            ttl = dice.choice((0, 0, delay + 2, delay + 5))
            return self.adder.add(dice, view, delay=delay, ttl=ttl or self.params.ttl_s)
        return get(dice, view, self.queues)

    def heard(self, dice: Dice, view: View, intent: Intent, done: Completed) -> list[Planned]:
        """Mostly acked; the rest comes back until its TTL is over."""
        if not done.jobs or dice.random() < 0.15:
            return []
        return [Planned(order("ack", ack_node(dice, self.params, intent, 0.2), done.jobs))]


@attrs.define(eq=False)
class PurgeCancel(Workload):
    """Beside a queue's traffic: CANCELJOB of known ids, DELJOB, and a QPURGE of a queue of its own now and then.

    Few ask for that one, and purges are far apart: jobs have to lie there long enough to be met by a purge for sure.
    """

    params: Params
    adder: Adder
    name: str = "purge-cancel"
    queues: tuple[str, ...] = (QUEUE, "jx-purged")
    _known: deque[Mapping[str, object]] = attrs.field(
        factory=lambda: deque(maxlen=REMEMBERED_MAX), init=False
    )
    _purge_at_s: float = attrs.field(default=PURGE_EVERY_S, init=False)

    def next(self, dice: Dice, view: View) -> Intent:
        """An add to one of two queues, a get, a cancel, a purge."""
        drawn = dice.random()
        if view.now_s >= self._purge_at_s:
            self._purge_at_s = view.now_s + PURGE_EVERY_S
            return Intent("purge", view.node, {"queue": self.queues[1]})
        if drawn < 0.10 and self._known:
            known = self._known[dice.randrange(len(self._known))]
            return order("cancel" if dice.random() < 0.8 else "deljob", view.node, [known])
        if drawn < 0.55:
            return self.adder.add(dice, view, queue=self.queues[dice.random() < 0.4])
        queues = self.queues if dice.random() < 0.1 else self.queues[:1]
        return get(dice, view, queues, count_max=2)

    def heard(self, dice: Dice, view: View, intent: Intent, done: Completed) -> list[Planned]:
        """Ids are remembered for a later cancel; deliveries are acked."""
        if intent.f == "add" and done.type == OK:
            self._known.append({"id": done.value["id"], "v": intent.value["v"]})
        if not done.jobs or dice.random() < 0.1:
            return []
        return [Planned(order("ack", ack_node(dice, self.params, intent, 0.2), done.jobs))]


@attrs.define(eq=False)
class DeadLetter(Workload):
    """Delivery limits of 1-3; half of the deliveries are nacked or left, so that letters die, are read, and revived."""

    params: Params
    adder: Adder
    name: str = "dead-letter"
    queues: tuple[str, ...] = (QUEUE, DEAD)

    def next(self, dice: Dice, view: View) -> Intent:
        """An add with a limit, a get from either queue."""
        drawn = dice.random()
        if drawn < 0.35:
            return self.adder.add(dice, view, limit=dice.choice((1, 2, 3)), dead=DEAD)
        return get(dice, view, (QUEUE,) if drawn < 0.8 else (DEAD,), count_max=2)

    def heard(self, dice: Dice, view: View, intent: Intent, done: Completed) -> list[Planned]:
        """From its own queue: nack, ack or nothing. A dead letter: ack, at times revive."""
        if not done.jobs:
            return []
        node, drawn = ack_node(dice, self.params, intent, 0.2), dice.random()
        if intent.value["queues"] == [DEAD]:
            return [Planned(order("revive" if drawn < 0.15 else "ack", node, done.jobs))]
        if drawn < 0.4:
            return [Planned(order("nack", node, done.jobs, delay=dice.choice((0, 0, 1))))]
        return [Planned(order("ack", node, done.jobs))] if drawn < 0.9 else []
