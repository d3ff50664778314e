"""The joins: how two views of one fact become one. Commutative, associative, idempotent (S16).

Each function takes ours and theirs and returns the join, *the very object `ours` if theirs says nothing new*: callers
see news by identity (M22); of numbers and of tuples of a fixed length, which compiled code unpacks, by value. Times are
instants here; on the wire they are remaining durations, so a late arrival changes nothing but its latency.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from cluster.nodeid import NodeId
from disque.core.job import Burials, Claim, Lease, Reason

NODES_MAX = 4_096  # nodes of one fact of a job, far more than a cluster and those it has forgotten
_Value = TypeVar("_Value")


def union(ours: tuple[NodeId, ...], theirs: Iterable[NodeId]) -> tuple[NodeId, ...]:
    """Holders (M2) and told (M5): sorted ids, neither ever shrinks."""
    new = {*theirs}.difference(ours)
    return tuple(sorted(new.union(ours))) if new else ours


def heard(ours: tuple[NodeId, ...], theirs: Iterable[NodeId]) -> tuple[NodeId, ...]:
    """The same of what a peer says: no set grows beyond NODES_MAX by words of others, which only lies do."""
    if theirs == ours:
        return ours
    both = union(ours, theirs)
    return both if len(both) <= NODES_MAX else ours


def fitting(
    ours: Mapping[NodeId, _Value], theirs: Mapping[NodeId, _Value]
) -> Mapping[NodeId, _Value]:
    """Of what a peer says of nodes that which may be joined: above NODES_MAX only of those that are there."""
    if len(ours) + len(theirs) <= NODES_MAX:
        return theirs
    return {node: said for node, said in theirs.items() if node in ours}


def maxima(ours: Mapping[NodeId, int], theirs: Mapping[NodeId, int]) -> Mapping[NodeId, int]:
    """Counters (M7) and covered stamps (M9): the maximum a node."""
    if not theirs:
        return ours
    new = {node: n for node, n in theirs.items() if n > ours.get(node, -1)}
    return {**ours, **new} if new else ours


def claims(ours: Mapping[NodeId, Claim], theirs: Mapping[NodeId, Claim]) -> Mapping[NodeId, Claim]:
    """Who has a copy (M3): a node's claim with the larger (boot, clock) wins; only that node makes one."""
    if not ours:
        return theirs or ours
    new = {node: claim for node, claim in theirs.items() if node not in ours or claim > ours[node]}
    return {**ours, **new} if new else ours


def leases(ours: Mapping[NodeId, Lease], theirs: Mapping[NodeId, Lease]) -> Mapping[NodeId, Lease]:
    """Leases (M8): a node's larger stamp wins; of the same stamp the smaller end."""
    new = {
        node: lease
        for node, lease in theirs.items()
        if node not in ours or _beats(lease, ours[node])
    }
    return {**ours, **new} if new else ours


def _beats(theirs: Lease, ours: Lease) -> bool:
    return theirs[0] > ours[0] or (theirs[0] == ours[0] and theirs[1] < ours[1])


def is_lease_news(ours: Mapping[NodeId, Lease], theirs: Mapping[NodeId, Lease]) -> bool:
    """True if theirs knows a later stamp; an end that only shifted is no news."""
    return any(node not in ours or stamp > ours[node][0] for node, (stamp, _) in theirs.items())


def reason(ours: Reason | None, theirs: Reason | None) -> Reason | None:
    """Done (M4): absorbing; of two reasons the one of higher rank."""
    if theirs is None or (ours is not None and ours >= theirs):
        return ours
    return theirs


def burials(ours: Burials | None, theirs: Burials | None) -> Burials | None:
    """Dead letters (M13): the larger counter wins; equal: smaller reason, larger base, smaller end."""
    if theirs is None:
        return ours
    if ours is None:
        return theirs
    if _burial_rank(theirs) > _burial_rank(ours):
        return theirs
    return ours


def _burial_rank(burials: Burials) -> tuple[int, int, int, int]:
    return (burials.count, -burials.reason, burials.base, -burials.expires_at)


def earlier(ours: int, theirs: int) -> int:
    """Expiry (M12) and the end of DELAY (M11), in ms: the smaller instant."""
    return min(ours, theirs)


def pause(
    ours: tuple[int, NodeId, int], theirs: tuple[int, NodeId, int]
) -> tuple[int, NodeId, int]:
    """Pause flags of a queue (M18) as (stamp, node, flags): the later writer wins; cleared is a value, too."""
    return theirs if theirs > ours else ours
