"""Promises: what must hold in a whole world of engines after every step (merge-rules.md C), checked as it runs.

Ids of the rules stand in the messages. A node that lost its memory excuses what the rules excuse; nothing else does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from disque.core import commands as cmd
from disque.core.job import JobState
from disque.core.jobid import JobId
from disque.core.ready import ClientId, Delivery, Failure, Reply, Status

if TYPE_CHECKING:
    from tests.world import Node, World


@attrs.define(eq=False)
class Life:
    """One job as its producer and its consumers saw it."""

    job: JobId
    command: cmd.AddJob
    origin: str
    added_at: int
    answer: str | None = None  # ok, the code of an error, None: none yet
    deliveries: int = 0
    own_deliveries: int = 0  # of them, from its own queue: those that the limit counts
    revivals: int = 0  # REVIVE commands that named it
    is_brought_forward: bool = False  # ENQUEUE: DELAY no longer holds
    is_dropped: bool = False  # DELJOB: copies may be missing
    is_over: bool = False  # some node has stored its end
    stored: dict[str, int] = attrs.Factory(dict)  # node -> boot in which it last had a copy


class Promises:
    """Told by the world of everything that happens; AssertionError for what must not be."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.lives: dict[JobId, Life] = {}
        self.flight_ms = 0  # longest time that a message was on its way
        self.lost_memory: set[str] = set()
        self._asked: dict[ClientId, Life] = {}
        self._settled: set[JobId] = set()
        self._ended: set[tuple[str, JobId]] = set()  # (node, job) that stored the end, ever
        self._had_ended: dict[tuple[str, int, JobId], None] = {}  # after the last step, by boot

    # What happens

    def wiped(self, node: Node) -> None:
        """A node lost its jobs, or is forgotten."""
        self.lost_memory.add(node.name)

    def adding(self, node: Node, client: ClientId, job: JobId, command: cmd.AddJob) -> None:
        """An ADDJOB has made a job."""
        life = Life(job, command, node.name, self.world.now)
        self.lives[job] = self._asked[client] = life

    def commanded(self, command: cmd.Command) -> None:
        """Any other command."""
        if isinstance(command, cmd.Enqueue | cmd.DelJob | cmd.Revive):
            for life in [self.lives[job] for job in command.ids if job in self.lives]:
                life.is_brought_forward |= isinstance(command, cmd.Enqueue)
                life.is_dropped |= isinstance(command, cmd.DelJob)
                life.revivals += isinstance(command, cmd.Revive)

    def answered(self, node: Node, client: ClientId, reply: Reply) -> None:
        """A reply has left."""
        life = self._asked.pop(client, None)
        if life is not None:
            self._add_answered(life, reply)
        for each in reply if isinstance(reply, list) else ():
            if isinstance(each, Delivery):
                self._delivered(JobId(each.id), each.queue)

    def _add_answered(self, life: Life, reply: Reply) -> None:
        assert life.answer is None, f"{life.job!r} is answered twice"
        if isinstance(reply, Failure):
            life.answer = reply.code
            return
        assert reply == Status(life.job), f"ADDJOB of {life.job!r} is answered {reply!r}"
        life.answer = "ok"
        wanted = 1 if life.command.is_async else life.command.replicate or 1
        if not (life.is_over or life.deliveries or self.lost_memory or life.is_dropped):
            copies = len(life.stored)
            assert copies >= wanted, f"S7: {life.job!r} has {copies} copies of {wanted}"

    def _delivered(self, job: JobId, queue: bytes) -> None:
        life = self.lives[job]
        world = self.world
        life.deliveries += 1
        command = life.command
        assert command.retry_ms != 0 or life.deliveries == 1, f"S5: RETRY 0 {job!r} twice"
        age = world.now - life.added_at
        assert age >= command.delay_ms or life.is_brought_forward, f"S10: {job!r} after {age} ms"
        assert age <= command.ttl_ms + self.flight_ms, f"S10: {job!r} after its expiry: {age} ms"
        assert job not in self._settled or self.lost_memory, f"S3: {job!r} delivered though settled"
        life.own_deliveries += queue == command.queue
        # Each component may use the limit for itself, at worst each node; and again after each REVIVE.
        most = (command.max_deliveries or 0) * len(world.nodes) * (1 + life.revivals)
        is_over_limit = 0 < most < life.own_deliveries and not self.lost_memory
        assert not is_over_limit, f"S13: {job!r} handed out {life.own_deliveries} times of {most}"

    # What is

    def stepped(self) -> None:
        """Look at everything."""
        now_ended: dict[tuple[str, int, JobId], None] = {}
        live: dict[JobId, list[str]] = {}
        for node in self.world.alive:
            assert node.engine is not None
            node.engine.check()
            state = node.state
            for job in [*state.tombstones, *state.long_tombstones]:
                self._settled.add(job)
                now_ended[node.name, node.boot, job] = None
            for job, entry in state.jobs.items():
                if entry.is_done:
                    now_ended[node.name, node.boot, job] = None
                    continue
                assert (node.name, node.boot, job) not in self._had_ended, f"S1: {job!r} is back"
                life = self.lives.get(job)
                if life is not None:
                    life.stored[node.name] = node.boot
                if entry.state is not JobState.MOVING and not entry.is_kept_out:
                    live.setdefault(job, []).append(node.name)
        self._had_ended = now_ended
        for name, _, job in now_ended:
            self._ended.add((name, job))
            if job in self.lives:
                self.lives[job].is_over = True
        self._check_told()
        self._check_lives(live)

    def _check_told(self) -> None:
        names = {node.id: node.name for node in self.world.nodes.values()}
        for node in self.world.alive:
            for job, entry in node.state.jobs.items():
                for told in entry.told:
                    name = names[told]
                    is_known = (name, job) in self._ended or name in self.lost_memory
                    assert is_known, f"S2: {node.name} thinks that {name} stored the end of {job!r}"

    def _check_lives(self, live: dict[JobId, list[str]]) -> None:
        for job, life in self.lives.items():
            if self.lost_memory:
                continue
            where = live.get(job, [])
            assert job not in self._settled or not where, f"S3: {job!r} settled, live at {where}"
            age = self.world.now - life.added_at
            is_kept = life.answer == "ok" and life.command.retry_ms != 0
            if is_kept and not (life.is_over or life.is_dropped) and age < life.command.ttl_ms:
                assert where, f"S6: {job!r} is lost"
        if self.lost_memory:
            return
        for node in self.world.alive:  # S8; a node that lost its memory may call NOREPL what is ok
            for job, entry in node.state.jobs.items():
                is_norepl = entry.is_done and entry.reason == 1
                life_or_none = self.lives.get(job)
                if is_norepl and life_or_none is not None:
                    assert life_or_none.answer != "ok", f"S8: {job!r} is ok and NOREPL"
