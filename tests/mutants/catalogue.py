"""Catalogue: every bug of the bank, who must find it, and the runs in which that happens.

`finds` are rules inside the simulator (S7, Q3 ...) of which one must be the first to break. `sees` are checkers of real
runs: with no look inside a node, one of them must be the first to find it. The seeds of both runs are recorded in
seeds.json; `python -m tests.mutants --search` looks for them anew when plans have changed. Bugs with `real` are also to
be found by a real run of five minutes at most.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import attrs

from tests.mutants import bugs, log_bugs
from tests.mutants.surgery import Patch
from tests.sim.plan import Chaos, Fault, Profile, with_log

SEEDS_FILE = Path(__file__).with_name("seeds.json")
BASE_BYTES = 1 << 20  # accounted memory of a node without jobs


def _as_drawn(profile: Profile) -> Profile:
    return profile


def _tight(profile: Profile) -> Profile:
    """Few jobs fit into a node, and more come than go."""
    limits = {**profile.limits, "maxmemory_bytes": (BASE_BYTES + 24_000) * 100 // 95}
    return attrs.evolve(
        profile, limits=limits, ops={**profile.ops, "add": 120.0, "get": 15.0}, think_ms=60
    )


def _alone(profile: Profile) -> Profile:
    """One client at one node: first in, first out."""
    return attrs.evolve(
        profile,
        nodes=1,
        spares=0,
        clients=1,
        queues=1,
        faults=(),
        limits={k: v for k, v in profile.limits.items() if k != "maxmemory_bytes"},
        ops={"add": 50.0, "get": 50.0},
        uses={"ack": 1.0},
        think_ms=250,
        is_plain=True,
    )


def _nacking(profile: Profile) -> Profile:
    """Three nodes, and what is handed out is given back, mostly elsewhere."""
    return attrs.evolve(
        profile,
        nodes=3,
        spares=0,
        faults=(),
        chaos=Chaos(),
        ops={"add": 40.0, "get": 40.0, "nack": 20.0},
        uses={"nack": 50.0, "ack-late": 20.0},
    )


def _nacking_in_calm(profile: Profile) -> Profile:
    """The same, with few jobs and for so long that it is seen what never comes back."""
    return attrs.evolve(
        _nacking(profile),
        node_timeout_ms=1000,
        length_ms=40_000,
        events_wanted=0,
        clients=3,
        think_ms=600,
        ops={"add": 20.0, "get": 60.0},
        ttls_ms=(3_600_000,),
    )


def _acking_elsewhere(profile: Profile) -> Profile:
    """Three nodes in calm weather, acks mostly at nodes that may have no copy."""
    return attrs.evolve(
        profile,
        nodes=3,
        spares=0,
        faults=(),
        chaos=Chaos(),
        ops={"add": 40.0, "get": 40.0},
        uses={"ack": 1.0, "ack-elsewhere": 60.0},
    )


def _losing_copies(profile: Profile) -> Profile:
    """Five nodes, two of which crash one after the other; copies are made again soon."""
    first = Fault(at=2000, kind="crash", nodes=(1,), span=1500, mode="process")
    second = attrs.evolve(first, at=5000, nodes=(2,))
    limits = {**profile.limits, "repair_after_ms": 1000}
    limits.pop("maxmemory_bytes", None)
    return attrs.evolve(
        profile,
        nodes=5,
        spares=0,
        length_ms=12_000,
        events_wanted=0,
        skew_ms=(0,) * 7,
        faults=(first, second),
        limits=limits,
        ops={"add": 60.0, "get": 20.0},
        ttls_ms=(3_600_000,),
    )


def _one_leaves(profile: Profile) -> Profile:
    """Three nodes, one leaves and stops when it says that it may."""
    leave = Fault(at=2000, kind="leave", nodes=(1,), span=3000, n=1)
    return attrs.evolve(profile, nodes=3, spares=0, faults=(leave,))


def _one_in_exile(profile: Profile) -> Profile:
    """Three nodes, one is forgotten alive and met again."""
    exile = Fault(at=2000, kind="exile", nodes=(1,), span=2000)
    return attrs.evolve(profile, nodes=3, spares=0, faults=(exile,))


def _purging(profile: Profile) -> Profile:
    return attrs.evolve(profile, ops={**profile.ops, "qpurge": 4.0})


def _purging_in_calm(profile: Profile) -> Profile:
    """Three nodes; jobs lie in a queue for long, and it is purged now and then."""
    return attrs.evolve(
        profile,
        nodes=3,
        spares=0,
        queues=1,
        length_ms=60_000,
        events_wanted=0,
        faults=(),
        chaos=Chaos(),
        ops={"add": 10.0, "qpurge": 1.0},
        think_ms=2000,
        ttls_ms=(3_600_000,),
    )


def _short_lives(profile: Profile) -> Profile:
    return attrs.evolve(profile, ttls_ms=(5000,), retries_ms=(1000,))


@attrs.frozen
class Bug:
    """One wrong rule."""

    what: str
    patches: tuple[Patch, ...]
    finds: tuple[str, ...]
    sees: tuple[str, ...] = ()
    shape: Callable[[Profile], Profile] = _as_drawn
    # workload x nemesis of a real run, "" for none, and who may see it there beside `sees`
    real: str = ""
    seen_really: tuple[str, ...] = ()
    # instead of `patches`, where a process isn't as a simulated node
    in_server: tuple[Patch, ...] = ()


@attrs.frozen
class Recorded:
    """A run that kills: its seed, and how many events it is to have (0: full length)."""

    seed: int
    events: int

    @property
    def command(self) -> str:
        """The arguments of `python -m tests.sim`, beside --mutant."""
        return f"--seed {self.seed}" + (f" --events {self.events}" if self.events else "")


def recorded() -> dict[str, Recorded]:
    """The runs of seeds.json, by bug and, for the black box, "bug/seen"."""
    return {name: Recorded(*pair) for name, pair in json.loads(SEEDS_FILE.read_text()).items()}


def _core(name: str, replacement: object) -> Patch:
    return Patch(f"disque.core.{name}", replacement)


_ADDING: Mapping[str, Bug] = {
    "reply-before-replication": Bug(
        "ADDJOB is answered at once, whatever REPLICATE",
        (_core("replication.wanted_copies", bugs.reply_before_replication),),
        ("S7",),
        ("replication",),
        real="replication x partition-halves",
    ),
    "self-counts-twice": Bug(
        "a node counts itself twice for REPLICATE",
        (_core("state.copy_count", bugs.self_counts_twice),),
        ("S7",),
        ("replication",),
        real="replication x partition-halves",
    ),
    "ack-during-replication": Bug(
        "an ack while ADDJOB waits breaks it (Disque 73)",
        (_core("ending.finish", bugs.ack_during_replication),),
        ("RAISED",),
        ("health",),
    ),
    "id-repeats": Bug(
        "job ids repeat after a restart",
        (Patch("disque.broker.Broker._new_engine", bugs.same_dice),),
        ("S1", "S3", "S12", "BODY", "S9", "S11", "Q9"),
        ("unique-ids",),
    ),
    "needs-majority": Bug(
        "no jobs are taken without a majority",
        (_core("replication._refusal", bugs.only_with_a_majority),),
        ("availability",),
        ("availability",),
    ),
    "evicts-the-living": Bug(
        "memory is short: jobs that nobody was given go",
        (_core("memory._evict", bugs.evict_the_living),),
        ("S6", "Q6"),
        ("loss",),
        shape=_tight,
    ),
}
_ONCE: Mapping[str, Bug] = {
    "move-drops-job": Bug(
        "a moved RETRY 0 job is dropped (Disque 100)",
        (_core("moves._own", bugs.moved_job_is_dropped),),
        ("Q6", "S6"),
        ("at-most-once",),
        real="at-most-once x none",
    ),
    "put-back": Bug(
        "RETRY 0 is put back when a client's connection dies",
        (
            _core("delivery._spend", bugs.keep_body),
            _core("engine.Engine.disconnect", bugs.put_back),
        ),
        ("S5",),
        ("at-most-once",),
    ),
}
_ENDS: Mapping[str, Bug] = {
    "first-gotack-settles": Bug(
        "the first GOTACK ends the collection",
        (_core("ending.is_settled", bugs.first_got_ack_settles),),
        ("S3", "S1", "Q10"),
    ),
    "no-dummy": Bug(
        "an ack of an unknown id is lost",
        (_core("acks.remember_unknown", bugs.no_dummy),),
        ("ack-respected", "convergence"),
        ("ack-respected", "convergence"),
        shape=_acking_elsewhere,
        real="ack-race x partition-halves",
    ),
    "ack-not-said-again": Bug(
        "a holder that is back hears no acks (back-off not reset)",
        (_core("healing._say_again", bugs.ends_not_said_again),),
        ("Q1",),
        ("drain-to-zero",),
        real="queue x partition-halves",
    ),
    "no-confirmation-table": Bug(
        "GOTACK before the first collection crashes (Disque 97)",
        (_core("acks.on_got_ack", bugs.no_confirmation_table),),
        ("RAISED",),
        ("health",),
        real="queue x partition-halves",
    ),
    "second-ack-crashes": Bug(
        "ACKJOB of a deleted job crashes (Disque 113)",
        (_core("acks._end", bugs.second_ack_crashes),),
        ("RAISED",),
        ("health",),
        real="ack-race x none",
    ),
    "replays-what-is-over": Bug(
        "settled jobs come back at a heal",
        (
            _core("ending.finish", bugs.keep_what_is_over),
            _core("healing._peer_back", bugs.replay_what_is_over),
        ),
        ("S3", "S1", "Q10", "Q3"),
        ("no-resurrection",),
    ),
    "ttl-starts-again": Bug(
        "a copy that arrives has a whole TTL before it",
        (_core("arrivals.store_copy", bugs.ttl_starts_again),),
        ("S11",),
    ),
    "never-expires": Bug(
        "a job at its end gets as much life again",
        (_core("engine._expire", bugs.never_expire),),
        ("S10", "S11"),
        ("ttl",),
        shape=_short_lives,
    ),
}
_QUEUEING: Mapping[str, Bug] = {
    "asks-nobody": Bug(
        "a copy that is due asks nobody before it queues itself",
        (_core("requeue._ask", bugs.ask_nobody),),
        ("Q3", "CALM"),
        ("retry-lease",),
        real="queue x none",
    ),
    "retry-by-wall-clock": Bug(
        "RETRY and all deadlines follow the wall clock",
        (Patch("tests.sim.node.Node.local_ms", property(bugs.simulated_wall_clock)),),
        ("Q6", "S10", "CALM", "STUCK", "S6"),
        real="queue x clock",
        seen_really=("availability", "drain-to-zero", "retry-lease", "ttl"),
        in_server=(Patch("disque.server.clock.Clock.now_ms", bugs.wall_clock),),
    ),
    "nack-queues-nothing": Bug(
        "NACK forgets to queue",
        (_core("handling.nack_here", bugs.nack_queues_nothing),),
        ("Q3", "retry-lease"),
        ("retry-lease",),
        shape=_nacking_in_calm,
    ),
    "nack-everywhere": Bug(
        "NACK at a node without a copy goes to all holders",
        (_core("asking._finish_holders", bugs.nack_at_all_holders),),
        ("Q9",),
        shape=_nacking,
    ),
    "delay-is-nothing": Bug(
        "DELAY is kept and ignored",
        (_core("delivery.may_queue", bugs.delay_is_nothing),),
        ("S9", "S10", "RAISED"),
        ("delay",),
    ),
    "last-in-first-out": Bug(
        "the newest job of a queue goes first",
        (_core("delivery.next_job", bugs.last_in_first_out),),
        ("order",),
        ("order",),
        shape=_alone,
        real="fifo x none",
    ),
    "no-limit": Bug(
        "MAXDELIVERIES is never looked at",
        (_core("delivery.is_spent_out", bugs.no_limit),),
        ("S13", "dead-letter"),
        ("dead-letter",),
    ),
    "two-letters": Bug(
        "a dead letter is a new job, one a node that buries",
        (_core("delivery._bury_letter", bugs.two_letters),),
        ("BODY",),
        ("accounting",),
    ),
}
_CLUSTER: Mapping[str, Bug] = {
    "leaving-drops-last-copy": Bug(
        "a leaving node drops what only it has",
        (_core("leaving._hand_over_copy", bugs.drop_when_leaving),),
        ("S6", "Q8"),
        ("leaving",),
        shape=_one_leaves,
    ),
    "forgotten-comes-back-full": Bug(
        "a forgotten node returns with its old jobs",
        (_core("returning.come_back", bugs.no_quarantine),),
        ("B2.8",),
        shape=_one_in_exile,
        # what was acked in its absence must not have come due before it is back
        real="ack-race x forget --retry 20",
        seen_really=("ack-respected", "no-resurrection"),
    ),
    "gossip-undoes-forget": Bug(
        "FORGET is undone by gossip",
        (Patch("cluster.membership.Membership._learn", bugs.gossip_brings_back),),
        ("S12",),
        shape=_one_in_exile,
    ),
    "links-stay-down": Bug(
        "a broken link isn't dialed again",
        (Patch("cluster.peer.Backoff.fail", bugs.never_redial),),
        ("VIEWS",),
        ("convergence",),
        real="queue x partition-halves",
    ),
    "lost-once": Bug(
        "a peer that was away gets no copies any more",
        (
            _core("willing.is_willing", bugs.lost_once_is_lost),
            _core("willing.willing_peers", bugs.all_but_the_lost),
        ),
        ("latency", "Q4", "availability"),
        ("latency",),
    ),
    "purges-nothing": Bug(
        "a purge is answered and cancels nothing",
        (_core("acks.purge_here", bugs.purge_nothing),),
        ("ack-respected",),
        ("ack-respected",),
        shape=_purging_in_calm,
    ),
    "purge-again": Bug(
        "a purge is repeated at a heal",
        (
            _core("acks.purge_here", bugs.remember_purge),
            _core("healing._peer_back", bugs.purge_again),
        ),
        ("M19",),
        shape=_purging,
    ),
    "all-repair": Bug(
        "every holder makes the missing copies",
        (
            _core("repair._leaders", bugs.lead_all),
            _core("repair._target", bugs.target_of_mine),
        ),
        ("B3",),
        shape=_losing_copies,
    ),
}
_LOG: Mapping[str, Bug] = {
    "log-after-reply": Bug(
        "a turn's effects leave before its records are stored",
        (Patch("tests.sim.storing.Storing.store", log_bugs.log_after_reply),),
        ("S15",),
        shape=with_log,
    ),
    "reload-requeues": Bug(
        "RETRY 0 that was handed out is queued again by a restart",
        (_core("restoring._dispatch", log_bugs.reload_requeues),),
        ("Q7", "S5"),
        shape=with_log,
    ),
    "torn-tail-stops": Bug(
        "a torn tail of the log stops the start",
        (Patch("disque.aof.replay.Replay._tear", log_bugs.torn_tail_stops),),
        ("RAISED",),
        shape=with_log,
    ),
    "torn-record-accepted": Bug(
        "the CRC of a record isn't looked at",
        (Patch("disque.aof.format.walk", log_bugs.torn_record_accepted),),
        ("Q7", "RAISED", "accounting"),
        shape=with_log,
    ),
    "deleted-before-sync": Bug(
        "a compacted segment is deleted before the copies are synced",
        (Patch("disque.aof.store.Store.retire", log_bugs.deleted_before_sync),),
        ("Q7",),
        shape=with_log,
    ),
}
BUGS: Mapping[str, Bug] = MappingProxyType(
    {**_ADDING, **_ONCE, **_ENDS, **_QUEUEING, **_CLUSTER, **_LOG}
)
