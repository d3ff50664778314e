"""Bounds: every threshold that a checker uses, in ms, with its reason.

Servers publish what depends on their configuration (`bounds` of a snapshot), the harness may set any; the rest is
derived. Nothing here is edited to make a run pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import attrs

from jepsen.checkers.base import Meta
from jepsen.history import OK, Op


@attrs.frozen
class Bounds:
    """Times in ms; 0 in a field that says "derived" takes the value of its formula, see `of`."""

    node_timeout_ms: int = 1_000
    gossip_ms: int = 1_000  # period of gossip: how long a view may lag behind one more step
    # derived, 2 node timeouts + gossip: the cluster has one view again after a heal
    views_ms: int = 0
    # derived, views + 2 s: acks, leases and counters have met after a heal; the B of C5, C6, C7, C11
    facts_ms: int = 0
    drained_ms: int = 0  # derived, facts: nothing is left after the last ack of the drain
    # derived, facts + 5 s: a job that is due is offered, if somebody asks: asks of holders and federation
    redelivery_ms: int = 0
    # derived, 2 node timeouts + 1 s: what links may hold a job back on its way, while its life runs on
    ttl_slack_ms: int = 0
    lease_percent: int = 90  # of RETRY, before which nobody gets the job again
    # a WORKING so short before a hand-out may have crossed an ask (500 ms) of a holder
    race_ms: int = 1_000
    delay_slack_ms: int = 20  # clocks of client and server, rounding
    answer_ms: int = 1_000  # an available node answers an ADDJOB REPLICATE 1 within
    available_percent: int = 99  # of those calls
    # an ADDJOB without REPLICATE is promised so many copies at most, fewer where peers may refuse
    default_copies: int = 3
    cut_grace_ms: int = 300  # bytes that were past the cut when it was made
    fsync_ms: int = 2_000  # what appendfsync everysec may lose when the power goes

    @classmethod
    def of(cls, meta: Meta, ops: Iterable[Op] = ()) -> Bounds:
        """The bounds of a run: those of its meta, then those of its first snapshot that has any, then defaults."""
        given = dict(next(_published(ops), {}))
        given.update(meta.bounds)
        known = {each.name for each in attrs.fields(cls)}
        bounds = cls(**{name: int(value) for name, value in given.items() if name in known})
        views = bounds.views_ms or 2 * bounds.node_timeout_ms + bounds.gossip_ms
        facts = bounds.facts_ms or views + 2_000
        return attrs.evolve(
            bounds,
            views_ms=views,
            facts_ms=facts,
            drained_ms=bounds.drained_ms or facts,
            redelivery_ms=bounds.redelivery_ms or facts + 5_000,
            ttl_slack_ms=bounds.ttl_slack_ms or 2 * bounds.node_timeout_ms + 1_000,
        )


def _published(ops: Iterable[Op]) -> Iterator[dict[str, int]]:
    return (op.value["bounds"] for op in ops if op.type == OK and op.value.get("bounds"))
