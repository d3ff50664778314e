"""Plan: what a seed draws before anything runs. The profile (swarm: each seed its own rates) and the timed faults.

Everything here is plain data; `describe` prints it, `to_json` writes it. Times are ms of simulated time from the start
of the workload.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any

import attrs

from tests.sim.streams import Streams, fresh_stream

CUTS = ("split", "oneway", "link", "flap")
FAULTS = (
    *CUTS,
    *("reset", "crash", "torn", "leave", "clock", "slow", "forget", "join", "gone"),
    *("pause", "purge", "whisper", "exile"),
)
# Messages at whose sending a node may crash instead
SNARES = (
    "GotMove",
    "Move",
    "GotJob",
    "GotAck",
    "SetAck",
    "YourJobs",
    "Kept",
    "Unknown",
)
# With a log only
POLICIES = ("always", "always", "everysec", "no")
LOG_FAULTS = ("crash", "torn", "disk")
# full: ENOSPC after n bytes; cut: it fails to write and to cut back; sync: fsync fails; crash: the process ends in the
# middle of the n-th change; rewrite: BGREWRITEAOF
DISK_FAULTS = ("full", "cut", "sync", "crash", "rewrite")
NEVER_WITH_A_LOG = ("forget", "exile", "leave")
CUT_MODES = ("vanish", "stall", "reset")

OPS: Mapping[str, float] = {
    "add": 40.0,
    "get": 40.0,
    "ack": 2.0,  # of any id that the client has ever seen, or of one that nobody has
    "nack": 1.0,
    "working": 1.0,
    "enqueue": 2.0,
    "dequeue": 2.0,
    "fastack": 1.0,
    "deljob": 0.3,
    "show": 1.0,
    "qlen": 0.5,
    "cancel": 0.5,
    "revive": 0.5,
    "waitjob": 0.5,
    "ask": 1.0,  # GLOBALQLEN, QSTAT GLOBAL, QPEEK, JSCAN: they change nothing
    "qpurge": 0.05,
}
# What a client does with a job that it was given; follow-ups come later, here or at another node.
USES: Mapping[str, float] = {
    "ack": 60.0,
    "ack-late": 8.0,
    "ack-twice": 8.0,
    "ack-elsewhere": 12.0,
    "working-ack": 5.0,
    "nack": 8.0,
    "fastack": 3.0,
    "enqueue": 2.0,
    "forget": 5.0,
}


@attrs.frozen
class Chaos:
    """What happens to single payload frames; probabilities."""

    drop: float = 0.0
    double: float = 0.0
    late: float = 0.0  # out of order by up to late_max_ms
    late_max_ms: int = 0

    @property
    def is_any(self) -> bool:
        """True if anything may happen to a frame."""
        return bool(self.drop or self.double or self.late)


@attrs.frozen
class Fault:
    """One fault. `nodes` are indices; `span` is how long it lasts; `mode` and `n` mean what the kind says."""

    at: int
    kind: str
    nodes: tuple[int, ...]
    span: int = 0
    mode: str = ""
    n: int = 0


@attrs.frozen
class Profile:
    """One seed's draw."""

    seed: int
    nodes: int
    node_timeout_ms: int
    latency_ms: tuple[int, int]
    chaos: Chaos
    length_ms: int
    clients: int
    think_ms: int  # mean pause of a client between operations
    queues: int
    ops: Mapping[str, float]
    uses: Mapping[str, float]
    retries_ms: tuple[int, ...]
    ttls_ms: tuple[int, ...]
    limits: Mapping[str, int]
    spares: int  # nodes that join later
    announces_host: bool
    skew_ms: tuple[int, ...]  # wall clock of each node, spares too, off the true one
    is_ageing: bool  # run on till every TTL is over
    faults: tuple[Fault, ...]
    # What is drawn, but not done: kinds of operations ("nack"), clients ("c3"), single operations ("c3#17")
    muted: tuple[str, ...] = ()
    is_plain: bool = False  # every job has the middle priority, and clients wait for every answer
    # a short run: the workload ends early when the whole would go beyond; 0: no matter
    events_wanted: int = 0
    log: str = ""  # appendfsync of all nodes; "": they keep no log
    segment_bytes: int = 0

    def describe(self) -> str:
        """A few lines for people."""
        chaos = self.chaos
        low, high = self.latency_ms
        rates = f"dropped {chaos.drop:.0%} doubled {chaos.double:.0%} late {chaos.late:.0%}"
        lines = [
            f"seed {self.seed}: {self.nodes} nodes, node timeout {self.node_timeout_ms} ms, latency {low}..{high} ms",
            f"  payloads {rates} up to {chaos.late_max_ms} ms; {self.clients} clients, {self.length_ms / 1000:.0f} s",
            f"  RETRY {self.retries_ms} TTL {self.ttls_ms} limits {dict(self.limits)}",
        ]
        if self.log:
            lines.append(f"  a log, appendfsync {self.log}, segments of {self.segment_bytes} bytes")
        lines += [
            f"  {f.at / 1000:7.3f} {f.kind} {f.nodes} {f.span} ms {f.mode} {f.n or ''}".rstrip()
            for f in self.faults
        ]
        return "\n".join(lines)

    def to_json(self) -> str:
        """The plan as a file has it."""
        return json.dumps(attrs.asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Profile:
        """The plan that `to_json` wrote. Raises ValueError or TypeError for what is no plan."""
        fields: dict[str, Any] = json.loads(text)
        fields["chaos"] = Chaos(**fields["chaos"])
        fields["faults"] = tuple(
            Fault(**{**fault, "nodes": tuple(fault["nodes"])}) for fault in fields["faults"]
        )
        for name in ("latency_ms", "retries_ms", "ttls_ms", "skew_ms", "muted"):
            fields[name] = tuple(fields[name])
        return cls(**fields)


def draw(seed: int, events_wanted: int = 0) -> Profile:
    """The plan of a seed; a short one, of so many events at most, if that is wanted."""
    streams = Streams(seed)
    dice = streams["profile"]
    nodes = dice.choices((1, 2, 3, 4, 5, 6, 7), (4, 16, 54, 11, 11, 2, 2))[0]
    node_timeout = dice.choice((1000, 1500, 2000, 3000))
    length = dice.randrange(40_000, 80_000)
    clients = dice.randrange(3, 9)
    link_wait = dice.choice((1000, 2000, 3000))
    retries = dice.choice(((1000,), (1000, 2000), (1000, 3000), (1000, 2000, 3000), (2000,)))
    ops_wanted = dice.randrange(250, 700)
    is_ageing = dice.random() < 0.1
    faults = _draw_faults(streams["faults"], nodes, node_timeout, length, retries)
    profile = Profile(
        seed=seed,
        nodes=nodes,
        node_timeout_ms=node_timeout,
        latency_ms=dice.choice(((0, 1), (0, 3), (1, 5), (2, 20), (5, 60))),
        chaos=_draw_chaos(dice, link_wait),
        length_ms=length,
        clients=clients,
        think_ms=max(50, length * clients // ops_wanted),
        queues=dice.randrange(1, 5),
        ops=_swarm(dice, OPS, keep=("add", "get")),
        uses=_swarm(dice, USES, keep=("ack",)),
        retries_ms=retries,
        ttls_ms=dice.choice(((20_000, 60_000), (60_000,))) if is_ageing else _draw_ttls(dice),
        limits=_draw_limits(dice, link_wait),
        spares=sum(fault.kind == "join" for fault in faults),
        announces_host=dice.random() < 0.5,
        skew_ms=tuple(dice.randrange(-400_000, 400_000) for _ in range(nodes + 2)),
        is_ageing=is_ageing,
        faults=faults,
    )
    return _shorten(profile, events_wanted) if events_wanted else profile


def with_log(profile: Profile) -> Profile:
    """The same plan for nodes with a log: more crashes, and disks that fail.

    Its draws are its own, so that the plan without a log stays as it is. Wall clocks don't jump: times in the log are
    those of the wall clock.
    """
    dice = fresh_stream(profile.seed, "log")
    policy = dice.choice(POLICIES)
    faults = [fault for fault in profile.faults if fault.kind not in ("clock", *NEVER_WITH_A_LOG)]
    kinds = [kind for kind in LOG_FAULTS if dice.random() < 0.7] or ["crash"]
    for _ in range(dice.randrange(1, 5 if profile.events_wanted else 9)):
        at = dice.randrange(0, max(1, profile.length_ms - 1500))
        span = int(profile.node_timeout_ms * dice.choice((0.1, 0.5, 1.1, 2.0)))
        faults.append(_draw_log_fault(dice, dice.choice(kinds), at, span, profile.nodes))
    return attrs.evolve(
        profile,
        log=policy,
        segment_bytes=dice.choice((1500, 6000, 30_000)),
        faults=tuple(sorted(faults, key=_when)),
    )


def _draw_log_fault(dice: random.Random, kind: str, at: int, span: int, nodes: int) -> Fault:
    node = (dice.randrange(nodes),)
    mode, n = "", dice.randrange(1, 6)
    if kind == "crash":
        mode = dice.choice(("process", "power"))
    elif kind == "disk":
        mode = dice.choice(DISK_FAULTS)
        span = min(span, 1500)
        n = dice.choice((0, 100, 400)) if mode == "full" else n
    return Fault(at=at, kind=kind, nodes=node, span=span, mode=mode, n=n)


def _shorten(profile: Profile, events_wanted: int) -> Profile:
    """The same weather in a small world: few nodes, gossip and back-offs that cost little, everything sooner."""
    dice = fresh_stream(profile.seed, "short")
    nodes = min(profile.nodes, dice.choice((2, 3, 3, 3, 3)))
    length = dice.randrange(5_000, 12_000)
    faults = [fault for fault in profile.faults if max(fault.nodes) < nodes]
    chosen = sorted(dice.sample(faults, min(len(faults), dice.randrange(1, 6))), key=_when)
    squeezed = [attrs.evolve(f, at=f.at * length // profile.length_ms) for f in chosen]
    limits = {**profile.limits, "setack_max_ms": 2000, "heal_gap_max_ms": 2000}
    spares = min(1, sum(fault.kind == "join" for fault in squeezed))
    limits["repair_after_ms"] = dice.choice((0, 0, 0 if spares else 1000))
    return attrs.evolve(
        profile,
        nodes=nodes,
        node_timeout_ms=max(2000, profile.node_timeout_ms),
        length_ms=length,
        clients=min(profile.clients, 5),
        think_ms=dice.choice((100, 200, 400)),
        ttls_ms=(3_600_000, 10_000) if profile.is_ageing else profile.ttls_ms,
        limits=limits,
        spares=spares,
        is_ageing=False,
        faults=tuple(squeezed),
        events_wanted=events_wanted,
    )


def _when(fault: Fault) -> tuple[int, str, tuple[int, ...]]:
    return fault.at, fault.kind, fault.nodes


def _draw_chaos(dice: random.Random, link_wait: int) -> Chaos:
    if dice.random() < 0.4:
        return Chaos()
    rate = dice.choice((0.01, 0.05, 0.15))
    return Chaos(
        drop=rate * dice.choice((0, 1)),
        double=rate * dice.choice((0, 1)),
        late=rate * dice.choice((0, 1, 2)),
        late_max_ms=dice.choice((50, 500, link_wait)),
    )


def _draw_ttls(dice: random.Random) -> tuple[int, ...]:
    return dice.choice(
        ((3_600_000,), (3_600_000, 600_000), (3_600_000, 10_000), (86_400_000, 30_000, 5_000))
    )


def _draw_limits(dice: random.Random, link_wait: int) -> Mapping[str, int]:
    limits = {"link_wait_max_ms": link_wait, "setack_max_ms": dice.choice((4000, 8000))}
    limits |= {"heal_gap_max_ms": 4000, "move_ask_max_ms": 4000, "refused_for_ms": 3000}
    limits["repair_after_ms"] = dice.choice((0, 1000, 5000))
    if dice.random() < 0.1:  # memory is tight
        used = (1 << 20) + 1000 * dice.choice((10, 40))
        # new jobs go to peers beyond it, or are refused and acks evicted
        limits["maxmemory_bytes"] = used * dice.choice((133, 108)) // 100
    choices: tuple[tuple[str, tuple[int, ...]], ...] = (
        ("message_entries_max", (1, 3, 500)),
        ("message_bytes_max", (200, 1 << 20)),
        ("heal_batch", (1, 5, 500)),
        ("moves_open_max", (1, 64)),
        ("wakeups_a_turn", (1, 20, 2000)),
        ("ask_wait_ms", (200, 500)),
        ("responder_ms", (500, 5000)),
        ("needjobs_count_min", (1, 5)),
        ("needjobs_count_max", (5, 100)),
    )
    for name, values in choices:
        if dice.random() < 0.3:
            limits[name] = dice.choice(values)
    return limits


def _swarm(
    dice: random.Random, weights: Mapping[str, float], keep: tuple[str, ...]
) -> Mapping[str, float]:
    """Leave out some kinds, make others more or less frequent."""
    drawn = {}
    for name, weight in weights.items():
        if name in keep or dice.random() < 0.75:
            drawn[name] = weight * dice.choice((0.5, 1.0, 1.0, 3.0))
    return drawn


def _draw_faults(
    dice: random.Random, nodes: int, node_timeout: int, length: int, retries: tuple[int, ...]
) -> tuple[Fault, ...]:
    kinds = _draw_kinds(dice, nodes)
    count = dice.randrange(4, 17) if kinds else 0
    faults = []
    left = {"forget": 1, "join": 2, "exile": 1}  # of these kinds no more
    for _ in range(count):
        kind = dice.choice(kinds)
        if kind in left:
            left[kind] -= 1
            if left[kind] < 0:
                continue
        at = dice.randrange(0, max(1, length - 2000))
        unit = dice.choice((node_timeout, retries[0]))
        span = int(unit * dice.choice((0.3, 0.9, 1.1, 2.0, 3.0)))
        faults.append(_draw_fault(dice, kind, at, span, nodes))
    return tuple(sorted(faults, key=_when))


def _draw_kinds(dice: random.Random, nodes: int) -> list[str]:
    alone = [kind for kind in FAULTS if kind in ("crash", "torn", "clock", "slow", "gone")]
    can = list(FAULTS) if nodes > 1 else alone
    # without a log, each crash is a loss: half the seeds do without, and are judged harder
    if dice.random() < 0.5:
        can = [kind for kind in can if kind not in ("crash", "torn", "leave", "forget")]
    if nodes < 3 or dice.random() < 0.7:
        can = [kind for kind in can if kind not in ("forget", "exile")]
    if dice.random() < 0.6:  # these disturb what clients do: most seeds do without
        can = [kind for kind in can if kind not in ("pause", "purge", "whisper")]
    kinds = [kind for kind in can if dice.random() < 0.6]
    return kinds or can


def _draw_fault(dice: random.Random, kind: str, at: int, span: int, nodes: int) -> Fault:
    order = dice.sample(range(nodes), nodes)
    mode = dice.choice(CUT_MODES)
    n = 0
    if kind == "split":
        chosen = tuple(order[: dice.randrange(1, nodes)])
    elif kind in ("oneway", "link", "flap", "reset"):
        chosen = tuple(order[:2])
    else:
        chosen = tuple(order[:1])
    if kind == "flap":
        n = dice.choice((50, 200, 600))  # half period, ms
    elif kind == "torn":
        n = dice.randrange(1, 4)  # effects of the next busy turn that still leave
        mode = dice.choice(("", *SNARES))
    elif kind == "clock":
        n = dice.choice((-86_400_000, -5000, 5000, 86_400_000))
    elif kind == "slow":
        n = dice.choice((20, 100, 400))  # each turn so late, ms
    elif kind == "pause":
        n = dice.choice((1, 2, 3))  # in, out, both
    elif kind == "leave":
        n = dice.choice((0, 1))  # 1: never stops before it is safe
    elif kind == "whisper":
        n = dice.choice((30, 150))
    elif kind == "crash":
        mode = dice.choice(("process", "power"))
    return Fault(at=at, kind=kind, nodes=chosen, span=span, mode=mode, n=n)
