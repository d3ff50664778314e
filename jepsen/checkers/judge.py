"""Judge: all checkers over one run. The list is here; each checker says itself where it applies."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from jepsen.checkers import (
    accounting,
    acks,
    at_most_once,
    availability,
    convergence,
    dead_letters,
    delay,
    draining,
    health,
    ids,
    latency,
    lease,
    leaving,
    loss,
    order,
    replication,
    resurrection,
    stats,
    ttl,
)
from jepsen.checkers.base import Result, Run
from jepsen.checkers.lives import Index

CHECKERS: tuple[ModuleType, ...] = (
    accounting,
    loss,
    at_most_once,
    acks,
    resurrection,
    convergence,
    draining,
    replication,
    delay,
    lease,
    ttl,
    dead_letters,
    ids,
    leaving,
    availability,
    latency,
    order,
    health,
    stats,
)
CLAIMS: dict[str, str] = {each.NAME: each.CLAIM for each in CHECKERS}


def check(run: Run) -> list[Result]:
    """What every checker that applies to this run says, in a fixed order.

    A checker that breaks is unknown, with the error as its note: it must not hide what others found.
    """
    index = Index(run)
    results = [_ask(each.NAME, each.CLAIM, each.check, index) for each in CHECKERS]
    return [result for result in results if result is not None]


def _ask(
    name: str, claim: str, checker: Callable[[Index], Result | None], index: Index
) -> Result | None:
    try:
        return checker(index)
    except Exception as error:  # noqa: BLE001 - whatever it is, the other checkers go on
        return Result(name, None, claim, notes=(f"the checker broke: {error!r}",))
