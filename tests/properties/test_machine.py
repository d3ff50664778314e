"""A state machine over a small world of engines: Hypothesis chooses which message goes next, and everything else.

Two to four nodes, up to three jobs. After every step all promises of tests/promises.py hold; at the end the world heals
and everything drains. Without more the run is the same each time, and a failure is shown as it was found. By hand, with
`python -m pytest --timeout 0 tests/properties/test_machine.py`: MACHINE=shrink makes that failure small, MACHINE=3000
draws so many new, longer runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from itertools import permutations

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from disque.core import commands as cmd
from disque.core.job import JobState
from disque.core.jobid import JobId
from disque.core.ready import ClientId, Delivery
from tests.world import Node, World

JOBS_MAX = 3
FLYING_MAX = 60  # the oldest beyond this are lost, as by a link whose buffer is full
QUEUE = b"q"
DEAD_QUEUE = b"dead-letters"
QUIET_MS = 140_000  # repair-after, ranks and one more try: what Q3 and Q4 need to come true
DRAIN_ROUNDS = 60
DRAIN_STEP_MS = 5_000

INDEX = st.integers(0, 11)  # taken modulo the number of what there is
RARE: tuple[Callable[[JobId], cmd.Command], ...] = (
    lambda job: cmd.Nack((job,)),
    lambda job: cmd.Nack((job,), 5_000),
    lambda job: cmd.Revive((job,)),
    lambda job: cmd.CancelJob((job,)),
    lambda job: cmd.Enqueue((job,)),
    lambda job: cmd.Working(job),
    lambda job: cmd.Dequeue((job,)),
    lambda job: cmd.FastAck((job,)),
    lambda job: cmd.DelJob((job,)),
)
ADD = {
    "at": INDEX,
    "replicate": st.sampled_from([None, 1, 2, 3]),
    "retry_ms": st.sampled_from([1_000, 10_000, 0]),
    "delay_ms": st.sampled_from([0, 0, 3_000]),
    "timeout_ms": st.sampled_from([0, 300, 5_000]),
    "is_async": st.booleans(),
    "max_deliveries": st.sampled_from([None, None, 1, 2]),
}
PASSED_MS = st.sampled_from([1, 60, 500, 1_000, 2_000, 5_000, 11_000, 20_000])


class Machine(RuleBasedStateMachine):
    """Rules are inputs of the world; nothing is delivered but by a rule."""

    def __init__(self) -> None:
        super().__init__()
        self.world: World
        self.waiting: list[tuple[str, ClientId]] = []
        self.delivered: dict[JobId, str] = {}  # where each job was last handed out

    # Helpers

    def node(self, index: int) -> str | None:
        """A node that runs, if there is one."""
        alive = self.world.alive
        return alive[index % len(alive)].name if alive else None

    def job(self, index: int) -> JobId:
        """One of the jobs; needs at least one."""
        jobs = list(self.world.jobs.values())
        return jobs[index % len(jobs)]

    def has_jobs(self) -> bool:
        """True once an ADDJOB was taken."""
        return bool(self.world.jobs)

    def is_flying(self) -> bool:
        """True if a message is on its way."""
        return bool(self.world.flying)

    def hear(self) -> None:
        """Take the answers; bound what flies."""
        answers, self.world.answers = self.world.answers, []
        for answer in answers:
            self.waiting = [wait for wait in self.waiting if wait[1] != answer.client]
            for each in answer.reply if isinstance(answer.reply, list) else ():
                if isinstance(each, Delivery):
                    self.delivered[JobId(each.id)] = answer.node
        oldest = self.world.now - self.world.limits.link_wait_max_ms
        self.world.flying = [p for p in self.world.flying[-FLYING_MAX:] if p.sent_at >= oldest]

    def say(self, index: int, command: cmd.Command, *, may_wait: bool = False) -> None:
        """A command at a node."""
        name = self.node(index)
        if name is None:
            return
        client = self.world.command(name, command)
        if may_wait:
            self.waiting.append((name, client))
        self.hear()

    # Rules

    @initialize(
        count=st.integers(2, 4),
        skew=st.sampled_from([0, 1, -1]),
        may_crash=st.sampled_from([False, False, True]),
        may_leave=st.sampled_from([False, False, True]),
        is_quiet=st.sampled_from([False, False, False, False, True]),
        first=st.fixed_dictionaries(ADD),
    )
    def begin(self, count, skew, may_crash, may_leave, is_quiet, first) -> None:
        self.world = World("abcd"[:count], offsets_ms={"b": skew * 86_400_000})
        self.world.order = None
        self.may_crash = may_crash  # a lost memory excuses much: most runs go without
        self.may_leave = may_leave
        # at the end nobody consumes for a while, so that Q3 and Q4 can be looked at
        self.is_quiet = is_quiet
        self.world.settle()
        self.add(**first)

    @precondition(lambda self: len(self.world.jobs) < JOBS_MAX)
    @rule(**ADD)
    def add(self, at, replicate, retry_ms, delay_ms, timeout_ms, is_async, max_deliveries) -> None:
        if replicate is not None:
            replicate = min(replicate, len(self.world.nodes)) if retry_ms else 1
        command = cmd.AddJob(
            queue=QUEUE,
            body=b"x",
            timeout_ms=timeout_ms,
            replicate=replicate,
            delay_ms=delay_ms,
            retry_ms=retry_ms,
            is_async=is_async,
            max_deliveries=max_deliveries if retry_ms else None,
        )
        self.say(at, command, may_wait=True)

    @rule(
        at=INDEX,
        queues=st.sampled_from([(QUEUE,), (QUEUE,), (QUEUE, DEAD_QUEUE)]),
        is_nohang=st.booleans(),
        timeout_ms=st.sampled_from([0, 1_000]),
    )
    def get(self, at, queues, is_nohang, timeout_ms) -> None:
        command = cmd.GetJob(queues, timeout_ms, 1, is_nohang, with_counters=True)
        self.say(at, command, may_wait=True)

    @precondition(has_jobs)
    @rule(at=INDEX, job=INDEX)
    def ack(self, at, job) -> None:
        self.say(at, cmd.AckJob((self.job(job),)))

    @precondition(has_jobs)
    @rule(at=INDEX, job=INDEX, make=st.sampled_from(RARE))
    def meddle(self, at, job, make) -> None:
        self.say(at, make(self.job(job)))

    @precondition(has_jobs)
    @rule(at=INDEX, job=INDEX, timeout_ms=st.sampled_from([0, 1_000]))
    def wait_for_outcome(self, at, job, timeout_ms) -> None:
        self.say(at, cmd.WaitJob((self.job(job),), timeout_ms), may_wait=True)

    @rule(at=INDEX, flags=st.sampled_from([0, 0, 1, 2, 3]), is_cluster=st.booleans())
    def pause(self, at, flags, is_cluster) -> None:
        self.say(at, cmd.Pause(QUEUE, flags, is_cluster))

    @precondition(has_jobs)
    @rule(at=INDEX, queue=st.sampled_from([QUEUE, QUEUE, DEAD_QUEUE]), is_wanted=INDEX)
    def purge(self, at, queue, is_wanted) -> None:
        if is_wanted < 2:  # or hardly a job would live long
            self.say(at, cmd.QPurge(queue))

    @precondition(is_flying)
    @rule(k=st.integers(0, FLYING_MAX))
    def deliver(self, k) -> None:
        flying = self.world.flying
        self.world.arrive(flying.pop(k % len(flying)))
        self.hear()

    @precondition(is_flying)
    @rule()
    def deliver_all(self) -> None:
        self.world.settle()
        self.hear()

    @precondition(is_flying)
    @rule(k=st.integers(0, FLYING_MAX))
    def drop(self, k) -> None:
        flying = self.world.flying
        flying.pop(k % len(flying))

    @precondition(is_flying)
    @rule(k=st.integers(0, FLYING_MAX))
    def double(self, k) -> None:
        flying = self.world.flying
        flying.append(flying[k % len(flying)])

    @rule(link=INDEX, is_both_ways=st.booleans())
    def cut(self, link, is_both_ways) -> None:
        links = list(permutations(self.world.nodes, 2))
        source, target = links[link % len(links)]
        self.world.cut(source, target)
        if is_both_ways:
            self.world.cut(target, source)
        self.hear()

    @precondition(lambda self: self.may_leave and len(self.world.nodes) > 2)
    @rule()
    def leave(self) -> None:
        self.may_leave = False
        self.world.leave(min(self.world.nodes))
        self.hear()

    @precondition(lambda self: self.world.cuts)
    @rule()
    def heal(self) -> None:
        self.world.heal()
        self.hear()

    @precondition(lambda self: self.may_crash)
    @rule(at=INDEX, is_back_at_once=st.booleans())
    def crash(self, at, is_back_at_once) -> None:
        name = self.node(at)
        if name is not None:
            self.world.crash(name)
            self.waiting = [wait for wait in self.waiting if wait[0] != name]
            if is_back_at_once:
                self.world.restart(name)
            self.hear()

    def down(self) -> list[str]:
        """Nodes that don't run and may come back."""
        forgotten = self.world.forgotten
        return [
            n.name
            for n in self.world.nodes.values()
            if n.engine is None and n.name not in forgotten
        ]

    @precondition(lambda self: self.down())
    @rule()
    def restart(self) -> None:
        for name in self.down():
            self.world.restart(name)
        self.hear()

    @precondition(lambda self: self.down() and len(self.world.alive) > 1)
    @rule()
    def forget(self) -> None:
        self.world.forget(self.down()[0])
        self.hear()

    @rule(ms=PASSED_MS)
    def wait(self, ms) -> None:
        for _ in self.world.run(ms):
            self.hear()

    @rule(ms=PASSED_MS)
    def wait_undisturbed(self, ms) -> None:
        for _ in self.world.run(ms):
            self.world.settle()
            self.hear()

    @precondition(lambda self: self.waiting)
    @rule(k=INDEX)
    def disconnect(self, k) -> None:
        name, client = self.waiting.pop(k % len(self.waiting))
        self.world.disconnect(name, client)
        self.hear()

    @invariant()
    def promises_hold(self) -> None:
        if hasattr(self, "world"):
            self.world.promises.stepped()

    # The end

    def teardown(self) -> None:
        if not hasattr(self, "world") or sys.exc_info()[0] is not None:
            return  # nothing to drain, or a rule has failed already
        world = self.world
        self.restart()
        self.heal()
        for name, client in self.waiting:
            world.disconnect(name, client)
        for node in world.alive:
            world.command(node.name, cmd.Pause(QUEUE, 0))
            world.command(node.name, cmd.Pause(QUEUE, 0, is_cluster=True))
        if self.is_quiet:
            for source, target in permutations(world.nodes, 2):
                world.cut(source, target)
            world.heal()  # as links do that lost a message: nothing but a view change makes peers speak again
            if self.may_leave and len(world.alive) > 2:
                self.leave_with_jobs()
            self.wait_undisturbed(QUIET_MS)
            self.all_is_in_order()
            self.who_leaves_may_stop()
            self.wear_out()
            self.wait_undisturbed(30_000)
            self.all_is_in_order()
        for _ in range(DRAIN_ROUNDS):
            self.wait_undisturbed(DRAIN_STEP_MS)
            self.consume()
            if not any(self.left_at(node) for node in world.alive):
                break
        self.wait_undisturbed(70_000)  # two node timeouts, the longest wait in a link, and a bit
        self.nothing_is_left()

    def left_at(self, node: Node) -> list[str]:
        """Jobs that a node should have forgotten by now.

        A machine that was forgotten may come back, so dummies stay (M14); a lost memory leaves moves in doubt (B6.6).
        """
        world = self.world
        has_lost = bool(world.promises.lost_memory)
        return [
            f"{job.state.name} {id_!r} H={job.holders} T={job.told}"
            for id_, job in node.state.jobs.items()
            if not (has_lost and job.state is JobState.MOVING)
            and not (world.forgotten and job.is_dummy)
        ]

    def all_is_in_order(self) -> None:
        """Q2, Q3, Q4 and S13's one letter, once nothing has happened for long."""
        alive = self.world.alive
        willing = [node for node in alive if not node.is_leaving]
        for id_ in self.world.jobs.values():
            copies = {n.name: n.state.jobs[id_] for n in alive if id_ in n.state.jobs}
            live = {name: job for name, job in copies.items() if not job.is_done and job.retry_ms}
            if not live:
                continue
            assert len(live) == len(copies), f"Q2: {id_!r} is done at some, live at {list(live)}"
            burials = {None if job.burials is None else job.burials.count for job in live.values()}
            assert len(burials) == 1, f"Q2: {id_!r} has {burials}"
            queued = [name for name, job in live.items() if job.state is JobState.QUEUED]
            assert len(queued) == 1, f"Q3: {id_!r} is queued at {queued}"
            spec = next(iter(live.values())).live_spec
            wanted = min(spec.replicate, len(willing))
            lasting = [node.name for node in willing if node.name in live]
            assert len(lasting) >= wanted, f"Q4: {id_!r} at {lasting}, {wanted} wanted"

    def leave_with_jobs(self) -> None:
        """A node leaves that has the only copies of two new jobs."""
        name = self.world.alive[0].name
        for retry_ms in (10_000, 0):
            command = cmd.AddJob(QUEUE, b"x", 0, replicate=1, retry_ms=retry_ms)
            self.world.command(name, command)
            self.world.settle()
            self.hear()
        self.world.leave(name)

    def who_leaves_may_stop(self) -> None:
        """Q8: it has handed over all that somebody may need; a lost memory leaves moves in doubt, which don't block."""
        alive = self.world.alive
        for node in alive:
            if node.is_leaving and not all([each.is_leaving for each in alive]):
                assert node.engine is not None
                assert node.engine.is_safe_to_stop(), f"Q8: {node.name} still has {node.state.jobs}"

    def wear_out(self) -> None:
        """S13: in a whole cluster, a job whose every worker gives it back is handed out as often as it may be."""
        world = self.world
        before = {id_: life.own_deliveries for id_, life in world.promises.lives.items()}
        taken = self.delivered  # those are acked in the end
        for _ in range(4):
            for node in world.alive:
                self.delivered = {}
                world.command(node.name, cmd.GetJob((QUEUE,), 0, 10, is_nohang=True))
                world.settle()
                self.hear()
                for job, name in self.delivered.items():
                    world.command(name, cmd.Nack((job,)))
                    world.settle()
                taken |= self.delivered
        self.delivered = taken
        for id_, life in world.promises.lives.items():
            most, given = life.command.max_deliveries, life.own_deliveries - before[id_]
            assert not most or given <= most, f"S13: {id_!r} handed out {given} times of {most}"

    def consume(self) -> None:
        """Get and ack everything, everywhere; what was taken out of its queue for good is put back."""
        for node in self.world.alive:
            for job, entry in list(node.state.jobs.items()):
                if entry.state is JobState.ACTIVE and not entry.retry_ms:
                    self.world.command(node.name, cmd.Enqueue((job,)))
            queues = (QUEUE, DEAD_QUEUE)
            self.world.command(node.name, cmd.GetJob(queues, 0, 10, is_nohang=True))
            self.world.settle()
            self.hear()
            for job, name in list(self.delivered.items()):
                if self.world.nodes[name].engine is not None:
                    self.world.command(name, cmd.AckJob((job,)))
                del self.delivered[job]
            self.world.settle()
            self.hear()

    def nothing_is_left(self) -> None:
        """Q1, Q3, Q6: no entry, no timer that could speak, no byte; but what a lost memory leaves in doubt."""
        world = self.world
        has_lost = bool(world.promises.lost_memory)
        assert not world.flying, f"still speaking: {[p.messages for p in world.flying]}"
        for node in world.alive:
            state = node.state
            left = self.left_at(node)
            assert not left, f"{node.name} still has {left}"
            assert not state.tombstones, f"{node.name}: {state.tombstones}"
            assert not state.marks, f"{node.name}: {state.marks}"
            assert not state.asks
            assert not state.adding
            assert not state.getting
            assert has_lost or not state.long_tombstones, f"{node.name}: {state.long_tombstones}"
            assert has_lost or not state.body_bytes
        for life in world.promises.lives.values():
            is_kept = life.answer == "ok" and not (has_lost or life.is_dropped or life.is_over)
            assert not is_kept or life.deliveries, f"Q6: {life.job!r} was never delivered"


MODE = os.environ.get("MACHINE", "")
IS_LONG = MODE.isdigit()
TestMachine = Machine.TestCase
TestMachine.settings = settings(
    max_examples=int(MODE) if IS_LONG else 350,
    stateful_step_count=80 if IS_LONG else 40,
    deadline=None,
    report_multiple_bugs=False,
    derandomize=not IS_LONG,
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink)
    if MODE
    else (Phase.generate,),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
