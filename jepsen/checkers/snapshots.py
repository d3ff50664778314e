"""Snapshots: what observers saw of each node, and rounds of them that cover the whole cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from jepsen.history import Op


@attrs.define(eq=False)
class Snapshot:
    """One look at one node; times in ns. `ids`: un-acked jobs there, None if there were too many to ask."""

    node: str
    asked_at: int
    at: int
    phase: str
    value: Mapping[str, Any]
    ids: frozenset[str] | None

    @classmethod
    def of(cls, invoke: Op | None, done: Op) -> Snapshot:
        """The snapshot of an observation that came back."""
        ids = done.value.get("ids")
        phase = str(done.value.get("phase") or (invoke.value.get("phase") if invoke else "") or "")
        asked_at = done.time if invoke is None else invoke.time
        held = None if ids is None else frozenset(ids)
        return cls(done.node, asked_at, done.time, phase, done.value, held)

    def count(self, name: str) -> int | None:
        """A counter (registered, queued, acked, bytes ...), None if it wasn't asked."""
        value = self.value.get(name)
        return None if value is None else int(value)


@attrs.define(eq=False)
class Round:
    """Looks at different nodes that belong together; not at one instant, but between `begun_at` and `ended_at`."""

    looks: dict[str, Snapshot]
    # when the first node was asked, and when the last one had answered
    begun_at: int
    ended_at: int

    @classmethod
    def of(cls, looks: dict[str, Snapshot]) -> Round:
        """The round of these looks, one at least."""
        begun_at = min(look.asked_at for look in looks.values())
        return cls(looks, begun_at, max(look.at for look in looks.values()))

    def is_full(self, nodes: Iterable[str]) -> bool:
        """Every one of these nodes told all its ids."""
        return all(node in self.looks and self.looks[node].ids is not None for node in nodes)

    def holders(self, job: str) -> list[str]:
        """The nodes that told this id."""
        return [node for node, look in self.looks.items() if look.ids and job in look.ids]


def rounds_of(snapshots: list[Snapshot]) -> list[Round]:
    """Snapshots, in order of time, as rounds: a round ends where a node comes again or the phase changes."""
    rounds: list[Round] = []
    looks: dict[str, Snapshot] = {}
    phase = ""
    for snapshot in snapshots:
        if looks and (snapshot.node in looks or snapshot.phase != phase):
            rounds.append(Round.of(looks))
            looks = {}
        looks[snapshot.node] = snapshot
        phase = snapshot.phase
    if looks:
        rounds.append(Round.of(looks))
    return rounds
