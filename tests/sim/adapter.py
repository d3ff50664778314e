"""Adapter: the one place of the simulator that knows the broker's constructor and the engine's state.

`snapshot` turns a node's entry for a job into a `checks.Copy`, a plain value.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import attrs

from cluster import nodesfile
from cluster.membership import MembershipConfig
from cluster.nodeid import NodeId, node_id_from_bytes
from cluster.ready import Identity
from disque.broker import Broker, BrokerSettings
from disque.core.job import Job, JobState, Paged
from disque.core.jobid import JobId
from disque.core.limits import Limits
from disque.core.messages import Message
from disque.core.state import State, is_counted
from disque.core.state import salted as core_salted
from tests.sim.checks import NONE, Copy
from tests.sim.ledger import value_of
from tests.sim.logs import replay_into
from tests.sim.streams import fresh_stream

if TYPE_CHECKING:
    from tests.sim.node import Node
    from tests.sim.world import World

__all__ = ["value_of"]

PORT = 7711
_PAYLOAD_HEAD = b"\x94\x01\x04"  # msgpack [1, PAYLOAD, boot, data]
_KINDS = {
    JobState.WAITING: "waiting",
    JobState.ACTIVE: "active",
    JobState.QUEUED: "queued",
    JobState.MOVING: "moving",
}


def node_id(dice: random.Random) -> NodeId:
    """A node id from a stream."""
    return node_id_from_bytes(dice.randbytes(20))


def is_payload(body: bytes) -> bool:
    """True for a frame that carries job messages."""
    return body.startswith(_PAYLOAD_HEAD)


def make_broker(world: World, node: Node, now_ms: int) -> Broker:
    """A broker as the server's main makes one: boot above any before, since = boot as there is no log."""
    profile = world.profile
    stored = nodesfile.StoredNodes() if node.disk is None else nodesfile.parse(node.disk)
    boot = max(stored.boot + 1, now_ms)
    host = node.host if profile.announces_host else ""
    identity = Identity(node.id, boot, boot, host, PORT, node.bus_port)
    settings = BrokerSettings(
        limits=attrs.evolve(Limits(), **profile.limits),  # type: ignore[arg-type]
        membership=MembershipConfig(profile.node_timeout_ms, host, PORT, node.bus_port),
    )
    dice = fresh_stream(profile.seed, f"dice {node.index} {node.life}")
    broker = Broker(settings=settings, identity=identity, stored=stored, dice=dice, now_ms=now_ms)
    receive = broker.engine.receive

    def hear(peer: NodeId, boot: int, message: Message) -> None:
        """The watch sees each message just before it is handled."""
        known = broker.engine.state.peers.get(peer)
        if node.is_held:
            return
        if known is None or boot >= known.boot:
            world.watch.received(node, message)
        receive(peer, boot, message)

    broker.hear = hear
    return broker


def stored_boot(node: Node) -> int:
    """The newest boot number that nodes.conf tells of, 0 for none."""
    return 0 if node.disk is None else nodesfile.parse(node.disk).boot


def replayed(world: World, node: Node) -> State:
    """What the node would know if it were restarted now with its log; nothing is changed."""
    assert node.log is not None
    own = node.broker.membership.identity
    stored = nodesfile.StoredNodes() if node.disk is None else nodesfile.parse(node.disk)
    dice = fresh_stream(world.profile.seed, f"replayed {node.index}")
    broker = Broker(
        settings=node.broker.settings,
        identity=own,
        stored=stored,
        dice=dice,
        now_ms=node.local_ms,
    )
    replay_into(broker, node.log.disk.copy(), f"kernel {node.log.kernel}", 0)
    # another boot than the one since which all is there: as a start with its log whole
    broker.restored(since=own.boot, boot=own.boot + 1)
    return broker.engine.state


def state_of(node: Node) -> State:
    """The engine's state of a living node."""
    return node.broker.engine.state


def snapshot(state: State, job: bytes) -> Copy:
    """What this node knows of a job now."""
    entry = state.jobs.get(JobId(job))
    if entry is None:
        grave = state.tombstones.get(JobId(job)) or state.long_tombstones.get(JobId(job))
        if grave is None:
            return NONE
        return Copy(
            "tombstone", grave.holders, grave.told, int(grave.reason), expires_at=grave.expires_at
        )
    return _copy_of(entry)


def _kind_of(entry: Job) -> str:
    if entry.state is JobState.DONE:
        return "done" if entry.holders else "dummy"
    return _KINDS[entry.state]


def _copy_of(entry: Job) -> Copy:
    return Copy(
        kind=_kind_of(entry),
        holders=entry.holders,
        told=entry.told,
        reason=int(entry.reason or 0),
        dispatches=entry.dispatches,
        nacks=entry.nacks,
        burials=entry.burials.count if entry.burials is not None else 0,
        expires_at=entry.expires_at,
        not_before=entry.not_before,
        lease_end=entry.lease_end(),
        retry_ms=entry.spec.retry_ms if entry.spec is not None else 0,
        replicate=entry.spec.replicate if entry.spec is not None else 0,
        has_body=entry.body is not None,
        is_spent=entry.is_kept_out or _is_dequeued(entry),
    )


def _is_dequeued(entry: Job) -> bool:
    """RETRY 0 and taken out of its queue by DEQUEUE: only ENQUEUE brings it back."""
    spec = entry.spec
    is_active = entry.state is JobState.ACTIVE
    return is_active and spec is not None and not spec.retry_ms and entry.ask_at >= entry.expires_at


def body_of(node: Node, job: bytes) -> bytes | None:
    """The body of a live copy, read from the log if it lies there alone; None if it can't be read."""
    entry = state_of(node).jobs.get(JobId(job))
    body = None if entry is None else entry.body
    if not isinstance(body, Paged):
        return body
    assert node.broker.bodies is not None
    return node.broker.bodies(body)


def job_ids(state: State) -> list[bytes]:
    """Live copies, done entries and dummies."""
    return list(state.jobs)


def changed_ids(state: State, seen: Mapping[bytes, Copy]) -> list[bytes]:
    """Jobs of another kind than was seen: what timers and orders did without naming an id."""
    jobs = state.jobs
    changed = [
        job for job, entry in jobs.items() if job not in seen or seen[job].kind != _kind_of(entry)
    ]
    for job, copy in seen.items():
        if job not in jobs and (copy.kind != "tombstone" or not _is_buried(state, job)):
            changed.append(job)
    return changed


def _is_buried(state: State, job: bytes) -> bool:
    return job in state.tombstones or job in state.long_tombstones


def counters(state: State) -> tuple[int, ...]:
    """How many jobs are in each state, and how many graves there are: equal before and after if nothing changed."""
    return (
        *attrs.astuple(state.by_state),
        len(state.dummies),
        len(state.tombstones),
        len(state.long_tombstones),
    )


def live_ids(state: State) -> list[bytes]:
    """Live copies, those in quarantine included."""
    live: list[bytes] = [job for job, entry in state.jobs.items() if not entry.is_done]
    return [*live, *state.quarantine] if state.quarantine else live


def aside_ids(state: State) -> list[bytes]:
    """Copies in quarantine: they wait till the cluster has spoken (B2.8)."""
    return list(state.quarantine)


def salted(job: bytes, one: Node, two: Node) -> tuple[Node, Node]:
    """Two nodes in the salted order of a job."""
    first, _ = core_salted(JobId(job), (one.id, two.id))
    return (one, two) if first == one.id else (two, one)


def repair_rivals(node: Node, job: bytes) -> dict[str, int]:
    """Other nodes that this one knows to have a copy and can reach, and the ms that its repair has waited for them."""
    state = state_of(node)
    repair, entry = state.repairs.get(JobId(job)), state.jobs.get(JobId(job))
    if repair is None or entry is None or state.view.is_leaving:
        return {}
    waited = state.now_ms - repair.started_at
    return {
        peer: waited
        for peer, claim in entry.claims.items()
        if peer in state.up_set and is_counted(state, peer, claim)
    }


def moving_ids(state: State) -> list[bytes]:
    """RETRY 0 jobs handed to a peer that hasn't confirmed."""
    return [job for job, entry in state.jobs.items() if entry.state is JobState.MOVING]


def known_ids(state: State) -> Iterable[bytes]:
    """Everything with an entry or a tombstone."""
    return [*state.jobs, *state.tombstones, *state.long_tombstones]


def observe(world: World, node: Node) -> dict[str, object]:
    """What an observer of a real node asks for: members, counters, un-acked ids; times in ms."""
    state = state_of(node)
    members = state.view.members
    # While somebody is forgotten a dummy stays till its TTL (M14): it counts for nothing here
    dummies = len(state.dummies)
    acked = len(state.undone) + (0 if world.nemesis.forgotten_ids else dummies)
    return {
        "members": sorted([n for n, m in members.items() if m.is_reachable or n == node.id]),
        "failing": sorted([n for n, m in members.items() if m.is_suspect]),
        "registered": len(state.jobs) - len(state.undone) - dummies + acked,
        "queued": state.by_state.queued,
        "acked": acked,
        "bytes": state.body_bytes,
        # RETRY 0 and handed out: it waits for nothing but its expiry
        "ids": [j.decode() for j, e in state.jobs.items() if not e.is_done and not e.is_kept_out],
    }


def is_in_doubt(world: World, node: Node, job: bytes) -> bool:
    """True if the receiver of a move has restarted since, or is gone: nobody can answer any more (B6.6)."""
    present = {n.id: n.identity.boot for n in world.nodes if n.is_alive}
    for peer in state_of(node).peers.values():
        for move in peer.moves.values():
            if move.job.id == job:
                return present.get(peer.id) != move.boot
    return True


def disagreement(world: World) -> str | None:
    """Why the views of the living nodes aren't one full mesh yet; None if they are."""
    alive = {node.id: node for node in world.nodes if node.is_alive}
    for node in alive.values():
        view = node.broker.membership.view()
        if state_of(node).quarantine:
            return f"{node.name} has {len(state_of(node).quarantine)} jobs in quarantine"
        if view.members.keys() != alive.keys():
            return f"{node.name} lists {[m[:4] for m in view.members]}, alive are {[i[:4] for i in alive]}"
        for member in view.members.values():
            there = alive[member.id]
            if not member.is_reachable or member.is_suspect:
                return f"{node.name} can't reach {there.name}"
            if member.boot != there.identity.boot:
                return f"{node.name} takes {there.name} for boot {member.boot}, it is {there.identity.boot}"
            if member.is_leaving:
                return f"{node.name} takes {there.name} for leaving"
    return None


def leftovers(world: World, node: Node, *, with_long: bool) -> dict[str, list[bytes]]:
    """What is still there by kind; long tombstones and what FORGET keeps count only if everything had its time."""
    state = state_of(node)
    has_forgotten = bool(world.nemesis.forgotten_ids)
    left: dict[str, list[bytes]] = {
        "short tombstones": list(state.tombstones),
        "marks": list(state.marks),
        "undone entries": list(state.undone),
        "asks": list(state.asks),
        "waiting ADDJOBs": list(state.adding),
    }
    if with_long or not has_forgotten:
        left["dummies"] = list(state.dummies)
    if with_long:
        left["long tombstones"] = list(state.long_tombstones)
        left["jobs"] = list(state.jobs)
    return left
