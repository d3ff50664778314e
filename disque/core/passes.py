"""Passes: work over very many things that is done in bounded steps; where a pass stands, and when it goes on."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Reversible
from typing import Any

import attrs

from cluster.nodeid import NodeId
from disque.core.jobid import JobId
from disque.core.sleeper import Sleeper

SEEN_SETS = 64


@attrs.define(eq=False)
class Trash(Sleeper):
    """What was forgotten all at once; its bookings are cancelled and its memory is given back in bounded steps."""

    pools: list[dict[Any, Any]] = attrs.Factory(list)


@attrs.define(eq=False)
class Chore(Sleeper):
    """The same for each of very many things that were there when it began, in order; any may have gone meanwhile."""

    key: Hashable
    do: Callable[[Any, Any], None]  # with the state and one of them
    things: Reversible[Any]  # a dict or a view of one: what is in it changes
    left: list[Any]  # the next one last
    is_due_again: bool = False  # asked for once more while under way


@attrs.define(eq=False)
class Pager(Sleeper):
    """A bounded pass over all jobs whose bodies should leave memory."""

    ids: list[JobId] = attrs.Factory(list)
    left_bytes: int = 0  # of bodies, that the last pass looked at and left


@attrs.define(eq=False)
class Walk(Sleeper):
    """A walk over the jobs shared with one peer, a batch at a time (B4.4)."""

    peer: NodeId
    # What is to be looked at, ends first; None: looked up when it begins
    ids: list[JobId] | None = None
    ends: int = 0  # how many of them, first, were done entries
    position: int = 0
    batch_end: int = 0  # position after the batch under way
    seq: int = 0  # of the batch under way, 0: none
    has_begun: bool = False
    is_due_again: bool = False  # asked for once more while under way


@attrs.define(eq=False)
class Sweep(Sleeper):
    """A bounded pass over all jobs after a node was lost or forgotten (B1.5, B2.7)."""

    lost: frozenset[NodeId]
    ids: list[JobId] | None = None  # that were here when it began; None: not yet
    position: int = 0


@attrs.define(eq=False)
class Returning(Sleeper):
    """A node that came back under a new id asks for its quarantined copies, in rounds (B2.8)."""

    since: int
    round_at: int = 0
    ids: list[JobId] = attrs.Factory(list)  # still to be asked about in this round


@attrs.define(eq=False)
class Repairer(Sleeper):
    """When to look through all jobs for missing copies, and how far that is."""

    times: list[int] = attrs.Factory(list)
    ids: list[JobId] = attrs.Factory(list)
    tokens: int = 0  # bytes that repairs may send now
    filled_at: int = 0


@attrs.define(eq=False)
class Leaver(Sleeper):
    """A node that leaves hands its jobs over, in passes over all of them (B5)."""

    begins_at: int
    ids: list[JobId] = attrs.Factory(list)
    kept: dict[JobId, dict[NodeId, None]] = attrs.Factory(dict)  # who promised to keep a copy
    asked: dict[JobId, int] = attrs.Factory(dict)  # ms; when something was last asked about a job
    # ends that a peer that stays carries on: they are kept, too, but nobody needs them here (B5.6)
    carried: dict[JobId, NodeId] = attrs.Factory(dict)


@attrs.define(eq=False)
class Scan:
    """The names that an unfinished QSCAN or JSCAN walks over."""

    kind: str
    names: list[bytes] | list[JobId]
    doubles_from: int  # position behind which names may stand that stood before
    # Of those before it, if any stand behind, by hash: one set of a million would grow in one go
    seen: list[set[bytes]] = attrs.Factory(lambda: [set() for _ in range(SEEN_SETS)])
