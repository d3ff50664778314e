"""Run: one seed from the first process to the last tombstone, and what came of it.

Phases: form (start, meet, full mesh), work (clients and faults), heal (all faults taken back; views must agree),
settle, drain (get and ack till silent), age (ends, tombstones and marks go). Each phase has a published bound.
"""

from __future__ import annotations

import time
import traceback
from collections import Counter

import attrs

from cluster.errors import ClusterError
from disque.aof.disk import LogError
from disque.errors import DisqueError
from tests.sim import adapter, checks
from tests.sim.checks import Violation
from tests.sim.drain import Drain
from tests.sim.history import PATIENCE_MS
from tests.sim.plan import Profile, draw, with_log
from tests.sim.watch import FailedError
from tests.sim.world import StuckError, World

FORM_MS = 15_000  # a fresh cluster is a full mesh within this
SURVEY_MS = 2000
_PHASES = {"form": "setup", "work": "main", "heal": "final"}
WORK_SHARE = 0.55  # of the events of a short run; the rest is for what follows
REPAIR_MS = 7000  # a rank steps in 5 s after the one before; a target is given 2 s


@attrs.define
class Result:
    """What a seed gave; plain data, so that it travels between processes."""

    seed: int
    violation: Violation | None = None
    story: str = ""  # the biography, if a rule was broken
    digest: str = ""
    events: int = 0
    turns: int = 0
    simulated_ms: int = 0
    cpu_s: float = 0.0
    frames: int = 0
    messages: int = 0
    deliveries: int = 0
    late_deliveries: int = 0
    duplicates: int = 0
    lost: int = 0
    operations: Counter[str] = attrs.Factory(Counter)
    outcomes: Counter[str] = attrs.Factory(Counter)
    faults: Counter[str] = attrs.Factory(Counter)
    matrix: Counter[tuple[str, str]] = attrs.Factory(Counter)


def run_seed(
    seed: int, *, events_wanted: int = 0, has_log: bool = False, wants_digest: bool = False
) -> Result:
    """Run a seed, a short one if so many events are wanted at most, to its end or to its first violation."""
    profile = draw(seed, events_wanted)
    return run_profile(with_log(profile) if has_log else profile, wants_digest=wants_digest)[0]


def run_profile(
    profile: Profile, *, wants_digest: bool = False, is_black_box: bool = False
) -> tuple[Result, World]:
    """Run a plan; also gives the world, for those who want to read the trace.

    Black box: only what clients and observers see is judged, by the checkers of real runs, no rule inside.
    """
    begun = time.process_time()
    world = World(profile)
    world.watch.is_lenient = is_black_box
    result = Result(profile.seed)
    try:
        phases(world)
    except FailedError as failure:
        result.violation = failure.violation
    except StuckError as error:
        result.violation = Violation("STUCK", None, str(error))
    except (
        AssertionError,
        ArithmeticError,
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        ClusterError,
        DisqueError,
        LogError,
    ) as error:
        if not is_black_box:
            result.violation = _crashed(world, error)
        world.history.tracebacks.append(traceback.format_exc(limit=-3))
    if result.violation is None:
        result.violation = _judge(world)
    if result.violation is not None:
        result.story = tell(world, result.violation)
    _fill(result, world)
    result.cpu_s = time.process_time() - begun
    if wants_digest:
        result.digest = world.story.digest()
    return result, world


def _judge(world: World) -> Violation | None:
    """What the checkers of real runs find, the first of it; one that broke is a finding, too."""
    for answer in world.history.judge():
        if answer.findings:
            found = answer.findings[0]
            text = f"{found.kind}: {found.text}"
            return Violation(answer.checker, found.job.encode() or None, text)
        if (
            answer.valid is None
            and answer.notes
            and answer.notes[0].startswith("the checker broke")
        ):
            return Violation(answer.checker, None, answer.notes[0])
    return None


def _crashed(world: World, error: Exception) -> Violation:
    """The code raised: our bug, whatever a client or peer did."""
    text = "".join(traceback.format_exception(error))
    job = next(iter(world.watch.touched), None)
    return Violation("RAISED", job, f"{error!r:.300}\n{text}")


def tell(world: World, violation: Violation) -> str:
    """How to run it again, the plan, and the biography of the job."""
    wanted = world.profile.events_wanted
    events = f" --events {wanted}" if wanted else ""
    events += " --log" if world.profile.log else ""
    lines = [
        f"FAIL {violation.rule} at {world.now / 1000:.3f} s: {violation.text}",
        f"  reproduce: python -m tests.sim --seed {world.profile.seed}{events} [--trace]",
        world.profile.describe(),
    ]
    lines += [
        f"  {node.name} is {node.id[:8]} ({node.life} starts)" for node in world.nodes if node.life
    ]
    if violation.job is not None:
        lines.append(f"biography of {violation.job!r}:")
        lines += list(world.story.biography(violation.job))
    else:
        lines.append("the last rows:")
        lines += list(world.story.text())[-40:]
    return "\n".join(lines)


def _fill(result: Result, world: World) -> None:
    result.events, result.turns, result.simulated_ms = world.events, world.turns, world.now
    result.frames, result.messages = world.network.frames_sent, world.watch.messages
    result.operations, result.outcomes = world.operations, world.outcomes
    result.faults, result.matrix = world.nemesis.counts, world.watch.matrix
    for life in world.watch.ledger.lives():
        result.deliveries += len(life.deliveries)
        result.duplicates += max(0, len(life.deliveries) - 1)
        result.lost += life.lost_at is not None
    result.late_deliveries = world.watch.late_deliveries


def phases(world: World) -> None:
    """All phases in order; FailedError at the first violation."""
    form(world)
    work(world)
    heal(world)
    settle(world)
    Drain(world).run()


def form(world: World) -> None:
    """Start the nodes, let the first meet the others, wait for the full mesh."""
    _phase(world, "form")
    members = world.nodes[: world.profile.nodes]
    for node in members:
        node.start()
    first = members[0]
    for node in members[1:]:
        node.turn_with(lambda node=node: node.broker.meet(first.host, first.bus_port))
    _wait_for_views(world, FORM_MS)
    world.history.observe("start")


def work(world: World) -> None:
    """Clients work while faults strike."""
    _phase(world, "work")
    end = world.now + world.profile.length_ms
    for client in world.clients:
        client.begin()
    world.nemesis.begin()
    events_max = world.profile.events_wanted * WORK_SHARE
    while world.now < end and not 0 < events_max < world.events:
        world.run_until(min(end, world.now + SURVEY_MS))
        world.watch.survey()
        world.history.observe("work")
    for client in world.clients:
        client.is_stopped = True
    if world.profile.is_plain:
        world.run_until(world.now + PATIENCE_MS)
    for client in world.clients:
        client.give_up(client.operation, "end of work")


def heal(world: World) -> None:
    """Take back all faults; views must agree within a bound."""
    _phase(world, "heal")
    world.nemesis.finish()
    dice = world.streams["heal"]
    world.is_reset_at_heal = dice.random() < 0.5
    if world.is_reset_at_heal:  # every link breaks once, so that every pair heals
        world.run_until(world.now + 100)
        for a in range(len(world.nodes)):
            for b in range(a):
                world.network.reset_between(a, b)
        world.run_until(world.now + 100)
        world.history.all_ended()
    world.run_until(world.now + 50)
    world.nemesis.tell_forget_again()
    _wait_for_views(world, 8 * world.profile.node_timeout_ms + 8000)
    world.history.observe("healed")


def settle(world: World) -> None:
    """Give acks and healing the time of their longest back-off; then holders agree."""
    _phase(world, "settle")
    limits, nodes = world.profile.limits, sum(node.is_alive for node in world.nodes)
    world.run_until(world.now + limits["setack_max_ms"] + max(world.profile.retries_ms) + 3000)
    # after these copies are made again whatever `repair-after` says (B3.4)
    is_repaired_anyway = bool(world.nemesis.forgotten_ids) or bool(world.nemesis.counts["leave"])
    if limits["repair_after_ms"] or is_repaired_anyway:
        world.run_until(world.now + limits["repair_after_ms"] + REPAIR_MS * nodes)
    world.watch.survey()
    # else some refuse for good
    has_repair = limits["repair_after_ms"] and "maxmemory_bytes" not in limits
    copies_of = world.watch.copies()
    for job, copies in copies_of.items():
        life = world.watch.ledger.by_id.get(job)
        if has_repair and life is not None and not life.knew:
            last_ms = 2 * world.profile.node_timeout_ms
            world.watch.found(checks.q4_copies_made_again(life, world.now, nodes, copies, last_ms))
    if world.is_reset_at_heal:
        for job, copies in copies_of.items():
            world.watch.found(checks.q2_holders_agree(job, copies))
            world.watch.found(checks.q3_one_queued(job, copies))
    for node in world.nodes:
        if node.log is not None and node.is_alive:
            world.watch.durability.judge(node)
    world.watch.is_healed = True
    world.history.observe("settled")


def _phase(world: World, name: str) -> None:
    world.story.add(world.now, "phase", name)
    if name in _PHASES:
        world.history.phase(_PHASES[name])


def _wait_for_views(world: World, bound_ms: int) -> None:
    end = world.now + bound_ms
    while (wrong := adapter.disagreement(world)) is not None:
        if world.now >= end:
            world.watch.found(
                Violation("VIEWS", None, f"no agreement within {bound_ms} ms: {wrong}")
            )
            return
        world.run_until(world.now + 100)
