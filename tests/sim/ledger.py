"""Ledger: what the world knows of every job that a client tried to add. One `Life` a value, found by value or id.

It is the judge's memory, not any node's: who ever held a copy, who stored its end, what was answered and handed out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import attrs

from disque.core.commands import AddJob

if TYPE_CHECKING:
    from tests.sim.node import Node


@attrs.frozen(eq=False)
class Repairing:
    """A holder sent a missing copy to a node. `rivals`: holders that it knew -> ms that it had waited for them."""

    at: int
    source: Node
    target: Node
    rivals: Mapping[str, int]


@attrs.define(eq=False)
class Life:
    """One ADDJOB and all that became of it. Times in ms of simulated time; nodes are indices."""

    value: int
    command: AddJob
    node: int  # where it was added
    added_at: int  # when that node took the command
    id: bytes | None = None
    ok_at: int | None = None
    is_norepl: bool = False
    held_by: dict[int, int] = attrs.Factory(dict)  # node -> first seen with a live copy
    knew: dict[int, int] = attrs.Factory(dict)  # node -> first seen with its end, ever
    # the same, without those whose process ended since
    done_at: dict[int, int] = attrs.Factory(dict)
    settled_at: int | None = None  # first tombstone anywhere
    # nodes that lost a live copy or an end in a crash -> last time
    wiped: dict[int, int] = attrs.Factory(dict)
    lost_at: int | None = None  # a crash took the last live copy
    deliveries: list[tuple[int, int]] = attrs.Factory(list)  # (at, node)
    own_deliveries: int = 0  # of those, from its own queue, not as a dead letter
    repairs: list[Repairing] = attrs.Factory(list)
    is_cancel_told: bool = False  # the history has the purge that met it as a cancel
    nack_delay_ms: int = 0  # the longest DELAY of a NACK
    # (at, command, node): acks, ENQUEUE, DELJOB ...
    orders: list[tuple[int, str, int]] = attrs.Factory(list)

    @property
    def retry_ms(self) -> int:
        """RETRY as the client gave it; the simulator's clients always do."""
        return self.command.retry_ms or 0

    def ordered(self, *kinds: str) -> bool:
        """True if a client gave one of these commands about it."""
        return any(kind in kinds for _, kind, _ in self.orders)


class Ledger:
    """All lives."""

    def __init__(self) -> None:
        self.by_value: dict[int, Life] = {}
        self.by_id: dict[bytes, Life] = {}

    def add(self, command: AddJob, node: int, at: int) -> Life:
        """A client's ADDJOB reached a node."""
        value = value_of(command.body)
        life = self.by_value[value] = Life(value, command, node, at)
        return life

    def learn(self, job: bytes, body: bytes | None) -> Life | None:
        """The life of an id, by its body where the id is new; None if its body was never seen."""
        life = self.by_id.get(job)
        if life is None and body is not None:
            life = self.by_value.get(value_of(body))
            if life is not None and life.id is None:
                life.id = job
                self.by_id[job] = life
        return life

    def lives(self) -> Iterable[Life]:
        """In order of their coming."""
        return self.by_value.values()


def body_of(value: int, filler: int) -> bytes:
    """The body that stands for a value."""
    return b"%d:" % value + b"x" * filler


def value_of(body: bytes) -> int:
    """The value of a body; -1 for one that no client of ours made."""
    head, colon, _ = body.partition(b":")
    return int(head) if colon and head.isdigit() else -1
