"""Builders of the core's tests: views, one engine with a clock that jumps, jobs, and a small world of engines.

Everything is real code. Each step of a Node ends with `Engine.check`, and everything that an engine says passes
through the codec, so that a test also fails on what no peer could read.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import attrs

from cluster.nodeid import NodeId
from cluster.view import ClusterView, MemberView
from disque.core import commands as cmd
from disque.core import messages as msg
from disque.core import wire
from disque.core.engine import Engine
from disque.core.job import Burials, Claim, Job, JobSpec, JobState, Lease, Reason
from disque.core.jobid import JobId, make_job_id
from disque.core.limits import Limits
from disque.core.ready import ClientId, Delivery, NilArray, Ready, Record, Reply, Status
from disque.core.state import OpenMove, State, peer_of, salted

A, B, C, D, E = (NodeId(letter * 40) for letter in "abcde")
STRANGER = NodeId("9" * 40)  # in nobody's view
NOW = 1_700_000_000_000
CTIME = NOW * 1_000_000
BOOT = 7  # of every node, if nothing else is said
NODE_TIMEOUT_MS = 15_000
DAY_MS = 86_400_000
RETRY_MS = 10_000
ME = ClientId(1)
OTHER = ClientId(2)

M = TypeVar("M")


def member(
    node: NodeId,
    *,
    boot: int = BOOT,
    since: int | None = None,
    is_reachable: bool = True,
    is_suspect: bool = False,
    is_leaving: bool = False,
) -> MemberView:
    """One line of a view; `since` is the boot unless given: a store that every start empties."""
    return MemberView(
        id=node,
        host="127.0.0.1",
        port=7711,
        bus_port=17711,
        boot=boot,
        since=boot if since is None else since,
        is_reachable=is_reachable,
        is_suspect=is_suspect,
        is_failed=False,
        is_leaving=is_leaving,
    )


def view(
    self_id: NodeId = A,
    *,
    up: Iterable[NodeId] = (),
    cut: Iterable[NodeId] = (),
    suspect: Iterable[NodeId] = (),
    leaving: Iterable[NodeId] = (),
    forgotten: Iterable[NodeId] = (),
    drained: Iterable[NodeId] = (),
    boots: Mapping[NodeId, int] = {},
    sinces: Mapping[NodeId, int] = {},
    is_forgotten: bool = False,
    has_unmet: bool = False,
) -> ClusterView:
    """A view: `up` can be reached, `cut` just lost its link, `suspect` is silent for long."""
    is_suspect, is_leaving = list(suspect), list(leaving)
    known = sorted(dict.fromkeys([self_id, *up, *cut, *is_suspect]))
    reachable = [self_id, *up]
    return ClusterView(
        self_id=self_id,
        members={
            node: member(
                node,
                boot=boots.get(node, BOOT),
                since=sinces.get(node),
                is_reachable=node in reachable,
                is_suspect=node in is_suspect,
                is_leaving=node in is_leaving,
            )
            for node in known
        },
        forgotten=frozenset(forgotten),
        node_timeout_ms=NODE_TIMEOUT_MS,
        drained=frozenset(drained),
        is_forgotten=is_forgotten,
        has_unmet=has_unmet,
    )


def spec(
    *,
    queue: bytes = b"q",
    retry_ms: int = RETRY_MS,
    replicate: int = 3,
    delay_ms: int = 0,
    ttl_ms: int = DAY_MS,
    priority: int = 4,
    max_deliveries: int = 0,
) -> JobSpec:
    """What a producer on another node fixed."""
    return JobSpec(
        queue=queue,
        retry_ms=retry_ms,
        replicate=replicate,
        is_explicit=True,
        delay_ms=delay_ms,
        ttl_ms=ttl_ms,
        priority=priority,
        max_deliveries=max_deliveries,
        dead_queue=b"dead-letters",
        headers={},
    )


def job_id(n: int = 0, *, node: NodeId = B, is_retried: bool = True) -> JobId:
    """The n-th id of a node, the same in every run."""
    entropy = b"%018d" % n
    return make_job_id(node, entropy, ttl_ms=DAY_MS, is_retried=is_retried)


def salted_id(nodes: Iterable[NodeId], *, first: NodeId, node: NodeId = B) -> JobId:
    """An id for which `first` is first of these nodes in salted order."""
    for n in range(1_000):
        id_ = job_id(n, node=node)
        if salted(id_, nodes)[0] == first:
            return id_
    raise AssertionError(f"no id puts {first} first")


def facts(
    *holders: NodeId,
    expires_in: int = DAY_MS,
    due_in: int = 0,
    is_queued: bool = False,
    claims: Mapping[NodeId, Claim] = {},
    dispatches: Mapping[NodeId, int] = {},
    nacks: Mapping[NodeId, int] = {},
    leases: Mapping[NodeId, Lease] = {},
    covered: Mapping[NodeId, int] = {},
    burials: Burials | None = None,
) -> msg.Facts:
    """Facts on the wire; leases are (stamp, remaining ms)."""
    return msg.Facts(
        holders=tuple(sorted(holders)),
        expires_in=expires_in,
        due_in=due_in,
        is_queued=is_queued,
        claims=claims,
        dispatches=dispatches,
        nacks=nacks,
        leases=leases,
        covered=covered,
        burials=burials,
    )


def copy(id_: JobId, *holders: NodeId, **changes: Any) -> msg.ReplJob:
    """REPLJOB of an ordinary job."""
    said = msg.ReplJob(id_, spec(), CTIME, b"body", facts(*holders))
    return attrs.evolve(said, **changes)


def reread(messages: list[msg.Message]) -> list[msg.Message]:
    """What a peer reads of them."""
    parts = wire.split(messages, entries_max=500, bytes_max=1 << 20)
    return [said for part in parts for said in wire.decode(wire.encode(part))]


class Node:
    """One engine, its clock, and all it said since the last `clear`."""

    def __init__(
        self,
        seen: ClusterView | None = None,
        *,
        boot: int = BOOT,
        since: int | None = None,
        limits: Limits | None = None,
        now_ms: int = NOW,
        seed: int = 0,
    ) -> None:
        self.view = view() if seen is None else seen
        self.now_ms = now_ms
        self.engine = Engine(
            view=self.view,
            boot=boot,
            since=boot if since is None else since,
            limits=Limits() if limits is None else limits,
            dice=random.Random(seed),
            now_ms=now_ms,
        )
        self.boot = boot
        self.records: list[Record] = []
        self.said: list[tuple[NodeId, msg.Message]] = []
        self.replies: list[tuple[ClientId, Reply]] = []
        self._take()
        self.clear()

    @property
    def id(self) -> NodeId:
        """Its own node id."""
        return self.view.self_id

    @property
    def state(self) -> State:
        """The engine's state, to look at."""
        return self.engine.state

    def job(self, id_: JobId) -> Job:
        """The copy or done entry of this id; KeyError if there is none."""
        return self.state.jobs[id_]

    def clear(self) -> None:
        """Forget what was said, stored and replied until now."""
        self.records.clear()
        self.said.clear()
        self.replies.clear()

    def _take(self) -> Ready:
        ready = self.engine.take_ready()
        self.records += ready.records
        for peers, statements in ready.messages:
            read = reread(statements)
            self.said += [(peer, each) for peer in peers for each in read]
        self.replies += ready.replies
        self.engine.check()
        return ready

    def advance(self, ms: int) -> None:
        """Let time pass, as the shell would: at each wake-up, then to the end."""
        end = self.now_ms + ms
        turns = 0
        while (at := self.engine.next_wakeup_ms()) is not None and at <= end:
            self.now_ms = max(self.now_ms, at)
            self.engine.advance(self.now_ms)
            self._take()
            turns += 1
            assert turns < 100_000, f"{turns} wake-ups in {ms} ms: something spins at {at}"
        self.now_ms = end
        self.engine.advance(end)
        self._take()

    def leap(self, ms: int) -> None:
        """Let time pass with a single call, as on a machine that was suspended."""
        self.now_ms += ms
        self.engine.advance(self.now_ms)
        self._take()

    def do(self, command: cmd.Command, *, client: ClientId = ME) -> list[Reply]:
        """A client's command; what that client is answered at once."""
        before = len(self.replies)
        is_answered = self.engine.command(client, command)
        self._take()
        answers = [reply for to, reply in self.replies[before:] if to == client]
        assert bool(answers) == is_answered, f"{command}: {answers!r}"
        return answers

    def ask(self, command: cmd.Command, *, client: ClientId = ME) -> list[Reply]:
        """A command that may ask silent members first; what the client is answered in the end."""
        before = len(self.replies)
        self.do(command, client=client)
        self.advance(self.state.limits.ask_cluster_ms)
        return [reply for to, reply in self.replies[before:] if to == client]

    def hear(self, peer: NodeId, *messages: msg.Message, boot: int | None = None) -> None:
        """Statements of a peer, at its boot in the view unless another is given."""
        for message in messages:
            known = self.view.members.get(peer)
            its_boot = known.boot if boot is None and known is not None else boot or BOOT
            self.engine.receive(peer, its_boot, reread([message])[0])
            self._take()

    def hear_many(self, peer: NodeId, messages: Iterable[msg.Message]) -> None:
        """Thousands of statements, checked once at the end."""
        for message in messages:
            self.engine.receive(peer, self.view.members[peer].boot, message)
        self._take()

    def see(self, seen: ClusterView) -> None:
        """Membership's view changes."""
        self.view = seen
        self.engine.view_changed(seen)
        self._take()

    def disconnect(self, client: ClientId = ME) -> None:
        """A client's connection ends."""
        self.engine.disconnect(client)
        self._take()

    def told(self, kind: type[M], *, to: NodeId | None = None) -> list[M]:
        """What was said of one type, to one peer or to all."""
        return [each for peer, each in self.said if isinstance(each, kind) and to in (None, peer)]

    def told_to(self, kind: type[M]) -> list[NodeId]:
        """Who was told statements of one type, in order."""
        return [peer for peer, each in self.said if isinstance(each, kind)]

    def answers(self, client: ClientId = ME) -> list[Reply]:
        """What a client was answered since the last `clear`."""
        return [reply for to, reply in self.replies if to == client]

    # Commands in short

    def add(self, body: bytes = b"body", *, queue: bytes = b"q", **options: Any) -> JobId:
        """ADDJOB that is answered at once; its id."""
        command = attrs.evolve(add_command(body, queue=queue), **options)
        (answer,) = self.do(command, client=ClientId(99))
        assert isinstance(answer, Status), f"{command}: {answer!r}"
        return JobId(answer.text)

    def get(self, *queues: bytes, count: int = 1) -> list[Delivery]:
        """GETJOB NOHANG; the jobs that were had."""
        (answer,) = self.do(
            cmd.GetJob(queues or (b"q",), count=count, is_nohang=True), client=ClientId(98)
        )
        if isinstance(answer, NilArray):
            return []
        assert isinstance(answer, list), answer
        return [each for each in answer if isinstance(each, Delivery)]

    def shown(self, id_: JobId) -> dict[bytes, Reply]:
        """SHOW as a mapping."""
        (answer,) = self.do(cmd.Show(id_), client=ClientId(97))
        assert isinstance(answer, list), answer
        keys = [each for each in answer[::2] if isinstance(each, bytes)]
        return dict(zip(keys, answer[1::2], strict=True))


def add_command(body: bytes = b"body", *, queue: bytes = b"q") -> cmd.AddJob:
    """ADDJOB of one copy; RETRY 10 s, TTL one day."""
    return cmd.AddJob(queue, body, 0, replicate=1, retry_ms=RETRY_MS)


@attrs.define(eq=False)
class World:
    """Some nodes and a network without latency; frames pass through the codec, cuts drop them."""

    nodes: dict[NodeId, Node]
    cuts: dict[tuple[NodeId, NodeId], None] = attrs.Factory(dict)
    lose: Callable[[NodeId, NodeId, msg.Message], bool] | None = None
    sent: list[tuple[NodeId, NodeId, msg.Message]] = attrs.Factory(list)
    heard: dict[NodeId, int] = attrs.Factory(dict)  # how much of its `said` each node has sent

    @classmethod
    def of(cls, *ids: NodeId, limits: Limits | None = None) -> World:
        """Nodes that all see each other."""
        nodes = {
            node: Node(view(node, up=[n for n in ids if n != node]), limits=limits, seed=number)
            for number, node in enumerate(ids)
        }
        return cls(nodes)

    def settle(self) -> None:
        """Carry every frame until nobody says anything more."""
        for _ in range(10_000):
            pending: deque[tuple[NodeId, NodeId, msg.Message]] = deque()
            for node in self.nodes.values():
                pending += [(node.id, to, each) for to, each in node.said]
                node.said.clear()
            if not pending:
                return
            for sender, to, each in pending:
                self.sent.append((sender, to, each))
                is_lost = self.lose is not None and self.lose(sender, to, each)
                if (sender, to) not in self.cuts and not is_lost:
                    self.nodes[to].hear(sender, each, boot=self.nodes[sender].boot)
        raise AssertionError("the nodes never fall silent")

    def advance(self, ms: int, *, step_ms: int = 50) -> None:
        """Let time pass everywhere, in steps."""
        self.settle()
        for _ in range(0, ms, step_ms):
            for node in self.nodes.values():
                node.advance(step_ms)
            self.settle()

    def split(self, *sides: Iterable[NodeId], is_suspected: bool = False) -> None:
        """Cut the world into sides; each node sees only its own."""
        groups = [list(side) for side in sides]
        self.cuts = {
            (one, two): None
            for here in groups
            for there in groups
            if here is not there
            for one in here
            for two in there
        }
        for group in groups:
            for node in group:
                away = [n for n in self.nodes if n not in group]
                self.nodes[node].see(
                    view(
                        node,
                        up=[n for n in group if n != node],
                        cut=() if is_suspected else away,
                        suspect=away if is_suspected else (),
                    )
                )
        self.settle()

    def heal(self) -> None:
        """Everybody sees everybody again."""
        self.cuts = {}
        for node in self.nodes.values():
            node.see(view(node.id, up=[n for n in self.nodes if n != node.id]))
        self.settle()

    def registered(self) -> list[int]:
        """How many jobs each node knows."""
        return [len(node.state.jobs) for node in self.nodes.values()]


# A copy in each state, for the table of messages x states

STATES = (
    "none", "dummy", "waiting", "active", "leased", "queued", "moving", "done", "tombstone", "mark", "spent",
)  # fmt: skip
ONCE = ("moving", "spent")  # states that only RETRY 0 has


def node_with(kind: str, seen: ClusterView, **options: Any) -> tuple[Node, JobId]:
    """A node A, in a view with B and C, that has one job in the state of this name."""
    node = Node(seen, **options)
    id_ = _put(node, kind)
    node.clear()
    return node, id_


def _put(node: Node, kind: str) -> JobId:
    foreign = job_id(1)
    if kind == "waiting":
        command = cmd.AddJob(b"q", b"body", 60_000, replicate=2, retry_ms=RETRY_MS)
        node.do(command)
        return next(iter(node.state.adding))
    if kind in ONCE:
        id_ = node.add(retry_ms=0)
        if kind == "moving":
            node.hear(B, msg.NeedJobs(b"q", 1, True))
        else:
            assert [each.id for each in node.get()] == [id_]
        return id_
    if kind in ("active", "done", "tombstone"):
        node.hear(B, copy(foreign, A, B))
        if kind != "active":
            node.do(cmd.AckJob((foreign,)))
        if kind == "tombstone":
            node.hear(B, msg.GotAck(foreign, Reason.ACKED, (A, B), (A, B), DAY_MS))
        return foreign
    if kind == "leased":
        node.hear(B, msg.YourJobs(foreign, spec(), CTIME, b"body", facts(A, B)))
        assert [each.id for each in node.get()] == [foreign]
        return foreign
    if kind == "queued":
        node.hear(B, msg.YourJobs(foreign, spec(), CTIME, b"body", facts(A, B)))
    elif kind == "dummy":
        node.do(cmd.AckJob((foreign,)))
    elif kind == "mark":
        node.hear(B, msg.SetAck(foreign, Reason.ACKED, (B, C), (B,), DAY_MS))
    return foreign


def state_name(node: Node, id_: JobId) -> str:
    """Which of STATES the id is in at this node."""
    job = node.state.jobs.get(id_)
    if job is None:
        if id_ in node.state.tombstones or id_ in node.state.long_tombstones:
            return "tombstone"
        return "mark" if id_ in node.state.marks else "none"
    if job.is_dummy:
        return "dummy"
    if id_ in node.state.spent:
        return "spent"
    if job.state is JobState.ACTIVE and job.lease_end() > node.now_ms:
        return "leased"
    return job.state.name.lower()


def open_move(node: Node, peer: NodeId) -> OpenMove:
    """The one open move to this peer."""
    (move,) = peer_of(node.state, peer).moves.values()
    return move
