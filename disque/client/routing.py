"""Routes: which node is asked next. Pure: time and dice come from outside.

A client keeps to one node for producing and one for consuming (its *homes*) while they can be used. A node that was
lost is avoided for a while that doubles; one that leaves or is suspected comes last; among equals chance decides, so
that many clients spread. Consumers *drift*: if most of the jobs they get were made by another node (an id begins with
its node's), that node becomes their home, and the cluster carries fewer jobs around. The idea is Disque's. Consumers
that get nothing *wander*: their node may be cut off from the jobs, or the queue be paused there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import attrs

from disque.client.commands import Home
from disque.client.results import Hello
from disque.client.url import Address

if TYPE_CHECKING:
    from random import Random

AVOID_FIRST_S: Final = 0.5
AVOID_MOST_S: Final = 30.0
# How long a node is avoided that says it can't serve: it still loads, its disk or its memory is full.
AVOID_REFUSING_S: Final = 1.0
PRIORITY_GOOD: Final = 1
PRIORITY_SUSPECT: Final = 10
PRIORITY_AWAY: Final = 100
# Jobs that are looked at before a consumer moves, and how many of them must be of the other node.
DRIFT_WINDOW: Final = 50
DRIFT_SHARE: Final = 0.6
_PREFIX: Final = slice(2, 10)


@attrs.define(eq=False)
class Route:
    """A node as this client knows it; `id` None until it has said HELLO."""

    address: Address
    id: str | None = None
    is_seed: bool = False
    priority: int = PRIORITY_GOOD
    failures: int = 0
    avoid_until: float = 0.0


class Routes:
    """The nodes and what is known of them. Not safe for threads: its owner locks."""

    def __init__(self, seeds: Sequence[Address], dice: Random) -> None:
        self._dice = dice
        self._routes = [Route(address, is_seed=True) for address in seeds]
        dice.shuffle(self._routes)
        self._homes: dict[Home, Route] = {}
        self._seen: dict[str, int] = {}

    @property
    def addresses(self) -> list[Address]:
        """All nodes that may be asked."""
        return [route.address for route in self._routes]

    def order(self, home: Home, now: float) -> list[Route]:
        """All nodes, the one to ask first in front."""
        # until it has its own, the home for something else is as good
        mine = self._homes.get(home) or next(iter(self._homes.values()), None)
        self._dice.shuffle(self._routes)

        def badness(route: Route) -> tuple[float, bool, bool, int]:
            is_away = route.priority >= PRIORITY_AWAY
            wait = max(0.0, route.avoid_until - now)
            return (wait, is_away, route is not mine, route.priority)

        return sorted(self._routes, key=badness)

    def served(self, route: Route, home: Home, now: float) -> None:
        """A node has answered: it becomes the home if there is none, or none that can be used."""
        route.failures, route.avoid_until = 0, 0.0
        mine = self._homes.get(home)
        if mine is None or not self._is_usable(mine, now):
            self._homes[home] = route

    def lost(self, route: Route, now: float) -> None:
        """A node couldn't be reached, or its connection broke."""
        wait = min(AVOID_FIRST_S * 2.0 ** min(route.failures, 16), AVOID_MOST_S)
        route.failures += 1
        route.avoid_until = now + wait

    def refused(self, route: Route, code: str, now: float) -> None:
        """A node gave an error reply that concerns itself."""
        if code == "LEAVING":
            route.priority = PRIORITY_AWAY
        elif code in ("LOADING", "OOM", "MISCONF"):
            route.avoid_until = now + AVOID_REFUSING_S

    def learn(self, route: Route, hello: Hello) -> None:
        """A node has said HELLO: its own id, and the others with their addresses.

        What the caller named stays, under the name that was given; of the rest only those stay that this node knows.
        """
        for told in hello.nodes:
            same = [each for each in self._routes if each.id == told.id]
            if told.host:
                same = self._at(Address(told.host, told.port), same)
            for each in same:
                each.id, each.priority = told.id, told.priority
        route.id = hello.id
        ids = {told.id: told.priority for told in hello.nodes}
        route.priority = ids.get(hello.id, PRIORITY_GOOD)
        self._routes = [each for each in self._routes if each.is_seed or each.id in ids]

    def wander(self, now: float) -> None:
        """Nothing came for a while: consume at another node, if one is as good."""
        mine = self._homes.get("consume")
        others = [
            each
            for each in self._routes
            if each is not mine and each.priority < PRIORITY_SUSPECT and self._is_usable(each, now)
        ]
        if mine is not None and others:
            self._homes["consume"] = self._dice.choice(others)

    def _at(self, address: Address, same: list[Route]) -> list[Route]:
        """The routes of a node that is said to be at `address`; `same` are those that have its id."""
        if any([each.is_seed for each in same]):
            return same
        found = [each for each in self._routes if each.address == address]
        if not found and same:
            same[0].address = address
            return same
        if not found:
            found = [Route(address)]
            self._routes += found
        return found

    def note_jobs(self, ids: Iterable[str], now: float) -> None:
        """Jobs came: perhaps the home for consuming should be where they are made."""
        for job in ids:
            prefix = job[_PREFIX]
            self._seen[prefix] = self._seen.get(prefix, 0) + 1
        total = sum(self._seen.values())
        if total < DRIFT_WINDOW:
            return
        prefix = max(self._seen, key=self._seen.__getitem__)
        if self._seen[prefix] >= DRIFT_SHARE * total:
            for route in self._routes:
                if route.id and route.id.startswith(prefix) and self._is_usable(route, now):
                    self._homes["consume"] = route
        self._seen.clear()

    def _is_usable(self, route: Route, now: float) -> bool:
        return route in self._routes and route.avoid_until <= now and route.priority < PRIORITY_AWAY
