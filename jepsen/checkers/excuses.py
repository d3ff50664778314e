"""Excuses: the only ways in which an acknowledged job may be gone. No excuse is a failure (E1-E8 of the brief).

E7 (eviction) takes only jobs that were acked or handed out, so it never explains a missing one; E8 (never
acknowledged) is outside of what anybody asks here.
"""

from __future__ import annotations

from jepsen.checkers.base import MS
from jepsen.checkers.lives import Index, Life
from jepsen.history import ENDING, FAIL

TITLES = {
    "E1": "at most once, and a fault or an unanswered GETJOB lay in its life",
    "E2": "its TTL ran out",
    "E3": "as many nodes lost their data as it had copies",
    "E6": "deleted, acknowledged, cancelled or purged by a client",
}


def excuse(index: Index, life: Life, *, is_delivered: bool = False) -> str:
    """The code of the first excuse that holds for a job that is gone, "" if none does.

    `is_delivered`: it was handed out, and never came back.
    """
    if index.ended_at > life.begun_at + life.ttl:
        return "E2"
    if not is_delivered and _is_ended(index, life):
        return "E6"
    if _is_wiped(index, life):
        return "E3"
    if not life.retry and _is_in_doubt(index, life):
        return "E1"
    return ""


def copies_promised(index: Index, life: Life) -> int:
    """W: as many copies as its ADDJOB promised; left out, as many as could surely be had, `default_copies` at most.

    A node that leaves keeps no copy, not even of what is added there.
    """
    if life.replicate:
        return life.replicate
    start, end = life.begun_at - index.bounds.views_ms * MS, life.ended_at
    least = index.faults.reach_least(life.add.node, start, end)
    leaving = [node for node in index.meta.nodes if index.faults.has_left(node, start, end)]
    return max(1, min(index.bounds.default_copies, least - len(leaving)))


def _is_ended(index: Index, life: Life) -> bool:
    """A client ordered its end, or may have; DEQUEUE ends what has no RETRY."""
    if life.ordered(ENDING) or (not life.retry and life.ordered(frozenset({"dequeue"}))):
        return True
    return is_purged(index, life)


def is_purged(index: Index, life: Life) -> bool:
    """Its queue was purged when it may have been there."""
    return bool(purged_from(index, life))


def purged_from(index: Index, life: Life) -> list[int]:
    """When purges that may have met it began: added before the purge ended, and frames take their time."""
    facts = index.bounds.facts_ms * MS
    return [
        purge.begun_at
        for purge in index.purges
        if purge.queue in (life.queue, life.dead)
        and purge.type != FAIL
        and life.begun_at <= purge.ended_at + facts
    ]


def _is_wiped(index: Index, life: Life) -> bool:
    wiped = index.faults.wiped_since(life.begun_at, life.ended_at)
    if not wiped or not _may_leave_its_node(index, life, wiped):
        return False
    if len(wiped) >= min(copies_promised(index, life), _stayed_least(index, life)):
        return True
    return not life.replicate and _were_all_holders(index, life, wiped)


def _stayed_least(index: Index, life: Life) -> int:
    """How many nodes were members when data was lost, at the worst: who leaves hands its copies to those who stay."""
    faults = index.faults
    lost_at = [wipe.ended_at for wipe in faults.wipes if wipe.ended_at >= life.begun_at]
    out = max((len(faults.outsiders(instant)) for instant in lost_at), default=0)
    return max(1, len(index.meta.nodes) - out)


def _may_leave_its_node(index: Index, life: Life, wiped: list[str]) -> bool:
    """The node that took it has a copy till it is wiped or leaves, or if peers hold jobs for a node that is full.

    One that left and joined again has given its copy away all the same.
    """
    if life.add.node in wiped or index.meta.is_external:
        return True
    return index.faults.has_left(life.add.node, life.begun_at, index.ended_at)


def _were_all_holders(index: Index, life: Life, wiped: list[str]) -> bool:
    """The last round that shows it at all shows it on nodes alone that lost their data later."""
    for each in reversed(index.full_rounds):
        if holders := each.holders(life.job):
            gone = [node for node in wiped if lost_since(index, node, each.begun_at)]
            return set(holders) <= set(gone)
    return False


def lost_since(index: Index, node: str, since: int) -> bool:
    """The node may have lost since then what it had: wiped, forgotten, or dead for ever."""
    return node in index.meta.abandoned or index.faults.is_wiped(node, since, index.ended_at)


def _is_in_doubt(index: Index, life: Life) -> bool:
    """RETRY 0: an answer with it may have been lost, or a fault caught it on its way."""
    settle = index.bounds.facts_ms * MS
    if index.may_be_taken(life, life.begun_at):
        return True
    return index.faults.windows.touch(life.begun_at - settle, index.ended_at)
