"""Excuses: the only ways in which an acknowledged job may be gone. No excuse is a failure.

Eviction is none: it takes only jobs that were acked or handed out. A job that was never acknowledged isn't asked about.
"""

from __future__ import annotations

from jepsen.checkers.base import MS
from jepsen.checkers.faults import FOREVER
from jepsen.checkers.lives import Index, Life
from jepsen.history import ENDING, FAIL

LOST_ANSWER = "E9"
# of all acknowledged jobs; with more of them excused by faults a run shows nothing
EXCUSED_PERCENT = 20
TITLES = {
    "E1": "at most once, and a fault that can take its only copy came before it had to be handed out",
    "E2": "its TTL ran out",
    "E3": "as many nodes lost their data as it had copies",
    "E6": "deleted, acknowledged, cancelled or purged by a client",
    LOST_ANSWER: "at most once, and the answer of a GETJOB that may have had it was lost",
    "E10": "at most once, and kept in doubt: a fault came on its way to another node",
}


def excuse(index: Index, life: Life, *, is_delivered: bool = False) -> str:
    """The code of the first excuse that holds for a job that is gone, "" if none does.

    `is_delivered`: it was handed out, and never came back.
    """
    if index.ended_at > life.begun_at + life.ttl:
        return "E2"
    if not is_delivered and _is_ended(index, life):
        return "E6"
    if not life.retry:
        return _excuse_once(index, life)
    return "E3" if _is_wiped(index, life, FOREVER if is_delivered else _had_by(index, life)) else ""


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
    facts = _facts(index)
    return [
        purge.begun_at
        for purge in index.purges
        if purge.queue in (life.queue, life.dead)
        and purge.type != FAIL
        and life.begun_at <= purge.ended_at + facts
    ]


def _had_by(index: Index, life: Life) -> int:
    """When somebody must have had it, was it still there: twice in a calm each node had nothing; then no wipe counts.

    Twice, as it may be on its way between two nodes; and a lost answer may have taken it for one more RETRY.
    """
    due = max(life.ended_at, life.begun_at + life.delay) + life.retry
    first = index.all_were_empty(life.queue, index.faults.calm_from(due) + _facts(index))
    second = index.all_were_empty(life.queue, first)
    return FOREVER if index.may_be_taken(life, life.begun_at, second) else second


def _is_wiped(index: Index, life: Life, until: int) -> bool:
    wiped = index.faults.wiped_since(life.begun_at, life.ended_at, until)
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


def _excuse_once(index: Index, life: Life) -> str:
    """RETRY 0: its only copy was lost, its hand-out was, or it is kept undelivered (B6); all before `_offered_by`.

    A cut alone takes no copy: what is on its way then is asked about, and stays with its source.
    """
    since, until = life.begun_at - _facts(index), _offered_by(index, life)
    if index.faults.may_lose(since, until):
        return "E1"
    is_kept = any(look.ids is None or life.job in look.ids for look in index.last_looks.values())
    if is_kept and index.faults.windows.touch(since, until):
        return "E10"
    return LOST_ANSWER if index.may_be_taken(life, life.begun_at, until) else ""


def _offered_by(index: Index, life: Life) -> int:
    """When it surely had been handed out, was it still there: after a calm, each node had nothing in its queue."""
    due = max(life.ended_at, life.begun_at + life.delay)
    return index.all_were_empty(life.queue, index.faults.calm_from(due) + _facts(index))


def _facts(index: Index) -> int:
    return index.bounds.facts_ms * MS
