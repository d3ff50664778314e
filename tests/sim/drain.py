"""Drain: get and ack everything till nothing comes any more, then watch the last traces of all jobs go."""

from __future__ import annotations

from typing import TYPE_CHECKING

from disque.core import commands as cmd
from disque.core.jobid import JobId
from disque.core.ready import ClientId, Delivery
from tests.sim import adapter, checks
from tests.sim.checks import Violation
from tests.sim.clients import DEAD_QUEUE, Client, Operation

if TYPE_CHECKING:
    from disque.core.ready import Reply
    from tests.sim.node import Node
    from tests.sim.world import World

CAP_MS = 120_000  # a drain that takes longer has failed
STEP_MS = 200
QUIET_WINDOW_MS = 3000


class Drainer(Client):
    """A client that does one thing: GETJOB at its node, ACKJOB what comes."""

    def __init__(self, world: World, node: Node) -> None:
        super().__init__(world, node.index)
        self.name = f"drain{node.index}"
        self.node = node
        self.dice = world.streams[f"drain {node.index}"]
        self.last_delivery = world.now
        self.acks: list[JobId] = []

    def _act(self) -> None:
        self._is_booked = False
        if self.is_stopped or self.operation is not None or not self.node.is_alive:
            return
        if self.acks:
            ids, self.acks = tuple(self.acks), []
            self._issue("ack", cmd.AckJob(ids), self._somewhere())
            return
        queues = (*(b"q%d" % i for i in range(self.world.profile.queues)), DEAD_QUEUE)
        self._issue(
            "get", cmd.GetJob(queues, timeout_ms=self.dice.choice((200, 500)), count=20), self.node
        )

    def done_names(self) -> list[str]:
        """Nothing of it can be left out."""
        return []

    def _is_muted(self, kind: str) -> bool:
        """The drain belongs to every run."""
        return False

    def _somewhere(self) -> Node:
        """Mostly this node; an ack may go to any."""
        if self.dice.random() < 0.8:
            return self.node
        return self.dice.choice([node for node in self.world.nodes if node.is_alive])

    def answered(self, operation: Operation, reply: Reply) -> None:
        """Ack what came, then ask again."""
        operation.is_open = False
        self.operation = None
        self.world.history.answered(operation, reply)
        if isinstance(reply, list):
            self.last_delivery = self.world.now
            self.acks += [JobId(each.id) for each in reply if isinstance(each, Delivery)]
        self._book(1)

    def begin(self) -> None:
        """Start getting."""
        self._book(1)


class Drain:
    """The last phases of a run."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.limits = world.profile.limits
        self.nodes = [node for node in world.nodes if node.is_alive]

    def run(self) -> None:
        """Drain, judge losses, collect, age."""
        self._get_all()
        self._judge_losses()
        self._ack_the_rest()
        self._wait_for_ends()
        self._age()

    def _get_all(self) -> None:
        world = self.world
        world.story.add(world.now, "phase", "drain")
        world.history.phase("drain")
        drainers = [Drainer(world, node) for node in self.nodes]
        world.clients.extend(drainers)
        for drainer in drainers:
            drainer.begin()
        quiet = max(world.profile.retries_ms) + 3500  # RETRY, the longest DELAY, a second
        end = world.now + CAP_MS
        while world.now - max(d.last_delivery for d in drainers) < quiet:
            if world.now > end:
                world.watch.found(Violation("DRAIN", None, f"jobs still come after {CAP_MS} ms"))
                break
            world.run_until(world.now + STEP_MS)
        for drainer in drainers:
            drainer.is_stopped = True
        world.run_until(world.now + 1000)
        world.history.is_drained = world.now <= end + quiet
        world.history.observe("drain")

    def _judge_losses(self) -> None:
        world = self.world
        doubtful = [
            job for node in self.nodes for job in adapter.moving_ids(adapter.state_of(node))
        ]
        for life in world.watch.ledger.lives():
            in_doubt = life.id in doubtful
            world.watch.found(checks.q6_not_lost(life, world.now, is_in_doubt=in_doubt))
        for node in self.nodes:
            state = adapter.state_of(node)
            for job in adapter.live_ids(state):
                copy = adapter.snapshot(state, JobId(job))
                if not copy.is_spent and copy.kind != "moving":
                    text = f"{node.name} still has it {copy.kind}, it was not offered in the drain"
                    world.watch.found(Violation("Q3", job, text))
                if copy.kind == "moving" and not adapter.is_in_doubt(world, node, job):
                    world.watch.found(Violation("Q3", job, f"{node.name} still moves it"))

    def _ack_the_rest(self) -> None:
        """What was handed out or dequeued at most once, and never acked, stays till its expiry: ack it."""
        for node in self.nodes:
            spent = [JobId(job) for job in adapter.live_ids(adapter.state_of(node))]
            spent = [
                job
                for job in spent
                if adapter.snapshot(adapter.state_of(node), job).kind != "moving"
            ]
            if spent:
                connection = self.world.new_client(None, node)
                node.turn_with(
                    lambda node=node, c=connection, ids=spent: self._ack(node, c, tuple(ids))
                )

    def _ack(self, node: Node, connection: ClientId, ids: tuple[JobId, ...]) -> None:
        for job in ids:
            self.world.watch.touched[job] = None
        self.world.history.ordered("ack", node, {"ids": [job.decode() for job in ids]})
        node.broker.command(connection, cmd.AckJob(ids))

    def _wait_for_ends(self) -> None:
        world = self.world
        world.story.add(world.now, "phase", "collect")
        bound = 2 * self.limits["setack_max_ms"] + 5000
        end = world.now + bound
        while left := self._unfinished():
            if world.now > end:
                name, ids = next(iter(left.items()))
                world.watch.found(
                    Violation("Q1", ids[0], f"{name} still has {len(ids)} jobs after {bound} ms")
                )
                break
            world.run_until(world.now + STEP_MS)

    def _unfinished(self) -> dict[str, list[bytes]]:
        left = {}
        for node in self.nodes:
            state = adapter.state_of(node)
            ids = [job for job in adapter.job_ids(state) if not self._may_stay(node, job)]
            if ids:
                left[node.name] = ids
        return left

    def _may_stay(self, node: Node, job: bytes) -> bool:
        """A move in doubt stays till its expiry, a dummy once there was a FORGET (M14), if it has tried enough."""
        kind = adapter.snapshot(adapter.state_of(node), JobId(job)).kind
        if kind == "dummy":
            return bool(self.world.nemesis.forgotten_ids)
        return kind == "moving" and adapter.is_in_doubt(self.world, node, job)

    def _age(self) -> None:
        """Tombstones and marks go in their time; nothing is said meanwhile."""
        world, profile = self.world, self.world.profile
        world.story.add(world.now, "phase", "age")
        short = 3 * profile.node_timeout_ms + self.limits["link_wait_max_ms"] + 2000
        if profile.is_ageing:
            # a dummy's: TTL minutes rounded up and 60 s
            short = max(short, max(profile.ttls_ms) + 190_000)
        world.run_until(world.now + max(0, short - QUIET_WINDOW_MS))
        before = world.watch.messages
        world.run_until(world.now + QUIET_WINDOW_MS)
        said = world.watch.messages - before
        world.history.observe("end")
        world.watch.found(checks.q5_quiet(said, 4 * len(self.nodes) ** 2, QUIET_WINDOW_MS))
        for node in self.nodes:
            node.broker.engine.check()
            left = adapter.leftovers(world, node, with_long=profile.is_ageing)
            for violation in checks.q1_over_is_forgotten(node.name, left):
                world.watch.found(violation)
