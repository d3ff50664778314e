"""What jobs have in common, kept once: sets of holders, specs, claims.

A million jobs of one queue then cost a million references, and what follows from one of them serves for all. Nothing
shared is ever changed in place. The tables are bounded: over that they begin anew, and jobs share less for a while.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from cluster.nodeid import NodeId
from disque.core import merge
from disque.core.job import Claim, Claims, JobSpec
from disque.core.state import Join, SpecKey, State

_SHARED_MAX = 10_000  # entries of a table

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


def _share(table: dict[_Key, _Value], key: _Key, value: _Value) -> _Value:
    if len(table) > _SHARED_MAX:
        table.clear()
    return table.setdefault(key, value)


def intern_nodes(state: State, nodes: Iterable[NodeId]) -> tuple[NodeId, ...]:
    """The sorted tuple of these ids, shared by all jobs that have the same."""
    key = tuple(nodes)
    known = state.shared_nodes.get(key)
    if known is not None:
        return known
    key = tuple(sorted(key))
    return _share(state.shared_nodes, key, key)


def only_self(state: State) -> tuple[NodeId, ...]:
    """This node alone: who holds most new jobs, and was told of most ends."""
    if not state.own_nodes:
        state.own_nodes = intern_nodes(state, (state.self_id,))
    return state.own_nodes


def shared_spec(state: State, key: SpecKey, headers: Mapping[bytes, bytes]) -> JobSpec:
    """The spec of these fields, shared by all jobs that have an equal one; one with headers is its job's own."""
    if not headers:
        spec = state.shared_specs.get(key)
        if spec is not None:
            return spec
    return intern_spec(state, JobSpec(*key, headers))


def intern_spec(state: State, spec: JobSpec) -> JobSpec:
    """The same spec, shared by all jobs that have an equal one; one with headers is its job's own."""
    if spec.headers:
        return spec
    key: SpecKey = (
        spec.queue, spec.retry_ms, spec.replicate, spec.is_explicit, spec.delay_ms, spec.ttl_ms, spec.priority,
        spec.max_deliveries, spec.dead_queue,
    )  # fmt: skip
    return _share(state.shared_specs, key, spec)


def intern_claims(state: State, claims: Claims) -> Claims:
    """The same mapping, shared by all jobs that have an equal one."""
    return _share(state.shared_claims, tuple(claims.items()), claims)


def join_claim(state: State, claims: Claims, node: NodeId, claim: Claim) -> Claims:
    """These claims and one more (M3), shared by all jobs that come to the same: most jobs take the same few steps."""
    last = state.last_join
    if last is not None and last.claims is claims and last.node == node and last.claim == claim:
        return last.joined
    step = (id(claims), node, claim)
    known = state.joined.get(step)
    # a mapping that is kept here keeps its identity from being another's
    if known is None:
        joined = intern_claims(state, merge.claims(claims, {node: claim}))
        known = _share(state.joined, step, (claims, joined))
    state.last_join = Join(claims, node, claim, known[1])
    return known[1]
