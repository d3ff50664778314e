"""Base: what a workload is: a pure object that is asked for the next operation and told what became of it.

It has no clock, no dice and no task of its own: the worker brings the time, the dice and its node, and carries out what
is answered. So a workload is tested by plain calls, and a simulator can run the same object.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Protocol

import attrs

from jepsen.history import OK

Dice = random.Random
QUEUE = "jx"
DEMANDS: Mapping[str, int] = {"deliveries_in_faults": 100, "acks_elsewhere": 20}


@attrs.frozen
class Params:
    """What the command line fixes; the rest is drawn. `retry_s` -1 and `replicate` 0 mean: the workload draws."""

    nodes: tuple[str, ...]
    replicate: int = 0
    retry_s: int = -1
    ttl_s: int = 0
    body_bytes: int = 0


@attrs.frozen
class View:
    """Who asks, and when: the worker's own node and seconds since the run began."""

    node: str
    now_s: float


@attrs.frozen
class Intent:
    """One operation to carry out at `node`; `value` as in jepsen.history."""

    f: str
    node: str
    value: Mapping[str, Any]


@attrs.frozen
class Completed:
    """What became of it: `type` OK, FAIL or INFO, `value` as in jepsen.history."""

    type: str
    value: Mapping[str, Any]
    error: str = ""

    @property
    def jobs(self) -> list[Mapping[str, Any]]:
        """The deliveries of an ok get, else none; those of a body that isn't ours are left out."""
        found = self.value.get("jobs", ()) if self.type == OK else ()
        return [job for job in found if job["v"] >= 0]


@attrs.frozen
class Planned:
    """An operation for later: `after_s` 0 is at once, by the same worker; else by any worker."""

    intent: Intent
    after_s: float = 0.0


@attrs.define(eq=False)
class Adder:
    """Makes the values of adds; `v` is never used twice. Counts what is out, so that a backlog stays bounded."""

    params: Params
    queue: str = QUEUE
    replicates: tuple[int, ...] = (1, 2, 2, 3)
    retries_s: tuple[int, ...] = (1, 2, 3)
    last_v: int = attrs.field(default=-1, init=False)

    def add(self, dice: Dice, view: View, **fixed: Any) -> Intent:
        """An add at the worker's node; `fixed` overrides single values."""
        self.last_v += 1
        replicate = self.params.replicate or dice.choice(self.replicates)
        value: dict[str, Any] = {
            "v": self.last_v,
            "queue": self.queue,
            "retry": self.params.retry_s
            if self.params.retry_s >= 0
            else dice.choice(self.retries_s),
            "replicate": min(replicate, len(self.params.nodes)),
            "delay": 0,
            "ttl": self.params.ttl_s,
            "async": False,
            "timeout": 1_000,
            "limit": 0,
            "dead": "",
            "size": self.params.body_bytes,
        }
        return Intent("add", view.node, value | fixed)

    @property
    def retry_max_s(self) -> int:
        """The longest RETRY that is drawn."""
        return self.params.retry_s if self.params.retry_s >= 0 else max(self.retries_s)


class Workload(Protocol):
    """One object a run. `queues` are what the drain asks for, `flags` are more flags for every server, `demands` the
    least counts without which a run is vacuous (see checkers.stats). What is said here holds where a workload says
    nothing else.
    """

    params: Params
    adder: Adder
    name: str
    queues: tuple[str, ...] = (QUEUE,)
    flags: tuple[str, ...] = ()
    demands: Mapping[str, int] = DEMANDS

    @property
    def retry_max_s(self) -> int:
        """The longest RETRY in use."""
        return self.adder.retry_max_s

    def next(self, dice: Dice, view: View) -> Intent:
        """The operation that a free worker should carry out."""
        ...

    def heard(self, dice: Dice, view: View, intent: Intent, done: Completed) -> list[Planned]:
        """What follows from a completion, such as the ack of a delivery."""
        ...


def get(
    dice: Dice, view: View, queues: tuple[str, ...], *, count_max: int = 4, timeout_ms: int = 200
) -> Intent:
    """A get of up to `count_max` jobs at the worker's node."""
    value = {"queues": list(queues), "count": dice.randint(1, count_max), "timeout": timeout_ms}
    return Intent("get", view.node, value)


def order(f: str, node: str, jobs: list[Mapping[str, Any]], **more: Any) -> Intent:
    """An order about delivered jobs: ack, nack, working ..."""
    return Intent(
        f, node, {"ids": [job["id"] for job in jobs], "vs": [job["v"] for job in jobs], **more}
    )


def elsewhere(dice: Dice, nodes: tuple[str, ...], node: str) -> str:
    """Another node than this one, if there is another."""
    others = [each for each in nodes if each != node]
    return dice.choice(others) if others else node


def ack_node(dice: Dice, params: Params, intent: Intent, share: float) -> str:
    """Where to ack what `intent` got: with the probability `share` at another node."""
    is_elsewhere = dice.random() < share
    return elsewhere(dice, params.nodes, intent.node) if is_elsewhere else intent.node
