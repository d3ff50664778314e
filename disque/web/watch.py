"""Watch: looks at every node of the cluster while somebody looks at the page, and remembers the last minutes.

Each node has a task of its own, so that a silent one holds nobody up: its last trouble is what is shown of it. Nobody
is asked while nobody looks. It knows nodes and time, and nothing of pages.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

import attrs
import trio

from disque.web import picture
from disque.web.node import UnreachableError
from disque.web.picture import QueueRow, Sample, Totals
from disque.web.replies import Failure

if TYPE_CHECKING:
    from collections.abc import Callable

    from disque.web.node import Node
    from disque.web.replies import Reply

PERIOD_S = 1.0
LOOKED_S = 60.0  # so long after the last look the nodes are still asked
HISTORY_MAX = 300  # ticks that are remembered: five minutes
FIRST_LOOK_S = 1.5  # for all nodes to have been asked once, before a first page shows what there is
QUEUES_A_CALL = 500
QUEUES_MAX = 2_000  # queues of a node that are looked at, a tick
CALLS_MAX = 100  # for the queues of a node, a tick: each looks at ten times as many as it may give
WATCHED_QUEUES_MAX = 32  # queues whose own history is kept
DEAD_QUEUE_DEFAULT = b"dead-letters"


@attrs.define(eq=False)
class Member:
    """One node as it was seen last; `sample` None or `trouble` not empty: it doesn't answer, or not in full."""

    id: str
    host: str
    port: int
    node: Node
    is_own: bool = False
    before: Sample | None = None  # the sample before the last
    sample: Sample | None = None
    trouble: str = ""
    was_asked: bool = False
    scope: trio.CancelScope = attrs.Factory(trio.CancelScope)

    @property
    def is_up(self) -> bool:
        """True if its last answer counts."""
        return self.sample is not None and not self.trouble

    def take(self, sample: Sample) -> None:
        """A new answer; rates need two in a row."""
        self.before, self.sample = (self.sample if self.is_up else None), sample
        self.trouble = ""


@attrs.define(eq=False)
class QueueWatch:
    """One queue in the whole cluster, as QSTAT … GLOBAL tells, with its last minutes."""

    looked_at: float
    row: QueueRow | None = None
    answered: int = 0
    silent: int = 0
    trouble: str = ""
    asked_at: float = 0.0
    # length, jobs/s in, jobs/s out
    history: deque[tuple[int, float, float]] = attrs.field(
        factory=lambda: deque(maxlen=HISTORY_MAX)
    )

    def take(self, reply: Reply, now: float) -> None:
        """The next answer of QSTAT."""
        if isinstance(reply, Failure):
            self.trouble = reply.text
            return
        said = picture.pairs(reply)
        before, self.row = self.row, picture.queue_row(reply)
        self.answered = picture.number_of(said.get("nodes-answered"))
        self.silent = picture.number_of(said.get("nodes-silent"))
        self.trouble = ""
        row, seconds = self.row or QueueRow(b""), now - self.asked_at
        came = went = 0.0
        if before is not None:
            came = picture.rate(before.jobs_in, row.jobs_in, seconds)
            went = picture.rate(before.jobs_out, row.jobs_out, seconds)
        self.asked_at = now
        self.history.append((row.length, came, went))


class Watch:
    """The cluster as it was at the last tick. `members` is in the order of their addresses."""

    def __init__(self, own: Node, make_peer: Callable[[str, int], Node]) -> None:
        """`make_peer`: host and client port of another node to a Node."""
        self.own = own
        self.members: dict[str, Member] = {}
        self.own_trouble = ""  # why the own node doesn't tell who is there
        self.dead_queue = DEAD_QUEUE_DEFAULT
        self.history: deque[Totals] = deque(maxlen=HISTORY_MAX)
        self.queues: dict[bytes, QueueWatch] = {}
        self._make_peer = make_peer
        self._looked_at = -math.inf
        self._looked = trio.Event()
        self._ticked = trio.Event()

    # For pages

    async def look(self) -> None:
        """Somebody wants to see: wait, not for long, until there is something."""
        self._look()
        with trio.move_on_after(FIRST_LOOK_S):
            while not self._is_settled:
                await self._wait_tick()

    async def look_at_queue(self, name: bytes) -> QueueWatch:
        """The same for one queue; at the first look it is asked for at once."""
        self._look()
        now = trio.current_time()
        watched = self.queues.get(name)
        if watched is None or now - watched.looked_at > LOOKED_S:
            while len(self.queues) >= WATCHED_QUEUES_MAX:
                oldest = min(self.queues, key=lambda each: self.queues[each].looked_at)
                del self.queues[oldest]
            watched = self.queues[name] = QueueWatch(now)
            await self._ask_queue(name, watched)
        watched.looked_at = now
        return watched

    async def look_again(self, name: bytes) -> None:
        """Something was done to a queue: what is known of it is old."""
        if name in self.queues:
            await self._ask_queue(name, self.queues[name])

    async def wait_tick(self) -> None:
        """Until there is something new to be seen; counts as a look."""
        self._look()
        await self._wait_tick()
        self._look()

    @property
    def up(self) -> list[Member]:
        """The nodes that answer."""
        return [member for member in self.members.values() if member.is_up]

    @property
    def steps(self) -> list[tuple[Sample | None, Sample]]:
        """The last two samples of each node that answers."""
        return [(each.before, each.sample) for each in self.up if each.sample is not None]

    @property
    def now(self) -> Totals:
        """The sums of this moment."""
        return picture.totals(self.steps, self.dead_queue)

    @property
    def _is_settled(self) -> bool:
        return bool(self.own_trouble) or (
            bool(self.members) and all(each.was_asked for each in self.members.values())
        )

    def _look(self) -> None:
        now = trio.current_time()
        if now - self._looked_at > LOOKED_S:  # what is remembered is too old to be shown again
            self.history.clear()
            for member in self.members.values():
                member.was_asked = False
                member.before = member.sample = None
        self._looked_at = now
        self._looked.set()

    async def _wait_tick(self) -> None:
        await self._ticked.wait()

    # Tasks

    async def run(self) -> None:
        """Look whenever somebody looks at us, for ever."""
        async with trio.open_nursery() as nursery:
            while True:
                await self._wait_wanted()
                await self._see_members(nursery)
                await self._see_queues()
                if self.steps and all(before is not None for before, _ in self.steps):
                    self.history.append(self.now)
                self._tick()
                await trio.sleep(PERIOD_S)

    async def _wait_wanted(self) -> None:
        """Return once somebody looks, or has just looked."""
        while trio.current_time() - self._looked_at > LOOKED_S:
            if self._looked.is_set():
                self._looked = trio.Event()
            await self._looked.wait()

    def _tick(self) -> None:
        ticked, self._ticked = self._ticked, trio.Event()
        ticked.set()

    async def _see_members(self, nursery: trio.Nursery) -> None:
        """Who belongs to the cluster, by the own node's HELLO."""
        try:
            hello, dead = await self.own.ask(("HELLO",), ("CONFIG", "GET", "default-deadletter"))
        except UnreachableError as error:
            self.own_trouble = str(error)
            return
        self.own_trouble = picture.trouble_of(hello) or ""
        letters = picture.pairs(dead).get("default-deadletter")
        if isinstance(letters, bytes):
            self.dead_queue = letters
        if not isinstance(hello, list) or len(hello) < 3:
            return
        before, self.members = self.members, self._members_of(hello)
        for member in self.members.values():
            if before.get(member.id) is not member:
                nursery.start_soon(self._follow, member)
        for member in before.values():
            if self.members.get(member.id) is not member:
                await self._part(member)

    def _members_of(self, hello: list[Reply]) -> dict[str, Member]:
        """HELLO's nodes by address; those that were known, and are still there, as they are."""
        members: list[Member] = []
        own_id = picture.text_of(hello[1])
        for entry in hello[2:]:
            if not isinstance(entry, list) or len(entry) < 3:
                continue
            id_, host, port = [picture.text_of(each) for each in entry[:3]]
            known = self.members.get(id_)
            if known is not None and (known.host, known.port) == (host, int(port)):
                members.append(known)
            else:
                is_own = id_ == own_id
                node = self.own if is_own else self._make_peer(host, int(port))
                members.append(Member(id_, host, int(port), node, is_own))
        members.sort(key=lambda each: (each.host, each.port))
        return {member.id: member for member in members}

    async def _part(self, member: Member) -> None:
        member.scope.cancel()
        if not member.is_own:
            await member.node.close()

    async def _follow(self, member: Member) -> None:
        """Ask one node again and again, until it leaves the cluster."""
        with member.scope:
            while True:
                try:
                    member.take(await sample_of(member.node, member.id))
                except UnreachableError as error:
                    member.trouble = str(error)
                is_first, member.was_asked = not member.was_asked, True
                if is_first:
                    self._tick()
                await trio.sleep(PERIOD_S)
                await self._wait_wanted()

    async def _see_queues(self) -> None:
        now = trio.current_time()
        for name, watched in list(self.queues.items()):
            if now - watched.looked_at > LOOKED_S:
                del self.queues[name]
        async with trio.open_nursery() as nursery:
            for name, watched in self.queues.items():
                nursery.start_soon(self._ask_queue, name, watched)

    async def _ask_queue(self, name: bytes, watched: QueueWatch) -> None:
        try:
            (reply,) = await self.own.ask(("QSTAT", name, "GLOBAL"))
        except UnreachableError as error:
            watched.trouble = str(error)
        else:
            watched.take(reply, trio.current_time())


async def sample_of(node: Node, id_: str = "") -> Sample:
    """What a node says of itself now; UnreachableError also if it refuses to say, or isn't the one of this id."""
    info, own_id, cluster, nodes, leaving, memory, first = await node.ask(
        ("INFO",),
        ("CLUSTER", "MYID"),
        ("CLUSTER", "INFO"),
        ("CLUSTER", "NODES"),
        ("CLUSTER", "LEAVING"),
        ("CONFIG", "GET", "maxmemory"),
        _queue_words("0"),
    )
    trouble = picture.trouble_of(info)
    if trouble is not None:
        raise UnreachableError(trouble)
    if id_ and isinstance(own_id, bytes) and own_id != id_.encode():
        raise UnreachableError(f"another node answers there: {picture.text_of(own_id)[:8]}")
    queues: dict[bytes, QueueRow] = {}
    cursor = _add_queues(queues, first)
    for _ in range(CALLS_MAX):
        if cursor == "0" or len(queues) >= QUEUES_MAX:
            break
        (reply,) = await node.ask(_queue_words(cursor))
        cursor = _add_queues(queues, reply)
    return Sample(
        at_s=trio.current_time(),
        info=picture.fields(info),
        cluster=picture.fields(cluster),
        links=picture.links(nodes),
        queues=queues,
        is_complete=cursor == "0",
        memory_max=picture.number_in(picture.text_of(picture.pairs(memory).get("maxmemory"))),
        is_leaving=leaving == "yes",
    )


def _queue_words(cursor: str) -> tuple[str, ...]:
    return ("QSCAN", cursor, "COUNT", str(QUEUES_A_CALL), "REPLY", "ALL")


def _add_queues(queues: dict[bytes, QueueRow], reply: Reply) -> str:
    """Take a page of QSCAN; returns the cursor of the next one, "0" after the last."""
    if not (isinstance(reply, list) and len(reply) == 2 and isinstance(reply[1], list)):
        return "0"
    for each in reply[1]:
        row = picture.queue_row(each)
        if row is not None:
            queues[row.name] = row
    return picture.text_of(reply[0])
