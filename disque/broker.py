"""Engine and membership as one pure object: what the server and the simulator drive.

It decides nothing: payloads that membership hands up become messages for the engine, the engine's messages become
payloads, a new view goes from one to the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import attrs

try:
    from cluster.membership import Dice, Membership, MembershipConfig, StoredNodes
except ImportError as error:
    raise ImportError(
        "disque-broker brings a package `cluster`, which another distribution of that name has overwritten: "
        "install disque-broker into a virtual environment of its own"
    ) from error
from cluster.errors import RemoteProtocolError
from cluster.nodeid import NodeId, node_id_from_bytes
from cluster.ready import ConnId, Dial, DialId, Identity, Note, OnceAMinute
from disque.core import wire
from disque.core.commands import Command
from disque.core.engine import Engine
from disque.core.flushing import inherit
from disque.core.job import JobState
from disque.core.limits import Limits
from disque.core.messages import WITH_BODY, Message, Refused, ReplJob, YourJobs
from disque.core.ready import ClientId, Delivery, NilArray, Paged, Ready, Record, Reply


@attrs.frozen
class BrokerSettings:
    """What configuration decides about the pure part."""

    limits: Limits = attrs.Factory(Limits)
    membership: MembershipConfig = attrs.Factory(MembershipConfig)


@attrs.define
class Batch:
    """Effects of a turn, in this order: store records, save nodes_file, dial, send frames, reply, close."""

    records: list[Record]
    nodes_file: str | None
    dials: list[Dial]
    frames: list[tuple[ConnId, bytes]]
    closes: list[ConnId]
    replies: list[tuple[ClientId, Reply]]
    notes: list[Note]


class Broker:
    """One node without its I/O."""

    def __init__(
        self,
        *,
        settings: BrokerSettings,
        identity: Identity,
        stored: StoredNodes,
        dice: Dice,
        now_ms: int,
        bodies: Callable[[Paged], bytes | None] | None = None,
    ) -> None:
        """`bodies` reads what lies in the log alone; None for what can't be read any more."""
        self.bodies = bodies
        self.settings = settings
        self.membership = Membership(
            identity=identity, config=settings.membership, stored=stored, dice=dice, now_ms=now_ms
        )
        self._identity = identity
        self._dice = dice
        self._now_ms = now_ms
        self.engine = self._new_engine()
        # Takes a peer's statement in; the simulator listens
        self.hear: Callable[[NodeId, int, Message], None] = self.engine.receive
        self._notes: list[Note] = []
        self._noted = OnceAMinute()
        self._frozen_at_ms: int | None = None  # not None: only membership lives
        self._returning: Iterator[None] | None = None  # what is left of `come_back`; the same then

    def _new_engine(self) -> Engine:
        self._view = self.membership.view()
        return Engine(
            view=self._view,
            boot=self._identity.boot,
            since=self._identity.since,
            limits=self.settings.limits,
            dice=self._dice,
            now_ms=self._now_ms,
        )

    # Time

    def advance(self, now_ms: int) -> None:
        """Time has come to now_ms; fires what is due."""
        self.tell_time(now_ms)
        if self._returning is not None:
            self._go_on_returning()
        elif self._frozen_at_ms is None:
            self.engine.advance(self._now_ms)

    def tell_time(self, now_ms: int) -> None:
        """The same before an input: jobs' timers, which may be very many, wait for the next `advance`."""
        self._now_ms = max(self._now_ms, now_ms)
        self.membership.advance(self._now_ms)
        if self._returning is None and self._frozen_at_ms is None:
            self.engine.tell_time(self._now_ms)

    def next_wakeup_ms(self) -> int | None:
        """ms at which `advance` should be called again; None: not before another input."""
        times = [self.membership.next_wakeup_ms()]
        if self._returning is not None:
            times.append(self._now_ms)
        elif self._frozen_at_ms is None:
            times.append(self.engine.next_wakeup_ms())
        return min([at for at in times if at is not None], default=None)

    def freeze(self) -> None:
        """Records can't be stored: until `thaw` the engine has no time and hears no peer, and its effects stay inside.

        Only replies come out. Commands that read are allowed, and `disconnect`; peers see a member that answers nothing
        but that it takes no copies.
        """
        self._frozen_at_ms = self._now_ms

    def thaw(self) -> None:
        """Records can be stored again. Messages that waited longer than a link lets them are as lost on the way.

        What peers said meanwhile is: both say again what they know.
        """
        if self._frozen_at_ms is None:
            return
        if self._now_ms - self._frozen_at_ms > self.settings.limits.link_wait_max_ms:
            self.engine.drop_messages()
        self._frozen_at_ms = None
        self._pass_view_on()
        if self._returning is None:  # else it will be met anew
            self.engine.heal()

    # Clients

    def command(self, client: ClientId, command: Command) -> bool:
        """Carry out a client's command; True if the next batch has its reply.

        While `is_returning` it should come later: it would have to wait for the rest, and everybody with it.
        """
        if self._returning is not None:
            self._finish_returning()
        return self.engine.command(client, command)

    def take_reply(self, client: ClientId) -> Reply:
        """The reply to a command of which `command` said True, out of the next batch: it leaves no earlier."""
        reply = self.engine.take_reply(client)
        return reply if self.bodies is None else self._body_of(reply)

    def disconnect(self, client: ClientId) -> None:
        """A client has gone."""
        self.engine.disconnect(client)

    # Connections of the bus; see Membership

    def dialed(
        self, dial: DialId, conn: ConnId, peer: Identity, own_host: str, remote_host: str
    ) -> None:
        """A connection that was asked for is up, hands shaken."""
        self.membership.dialed(dial, conn, peer, own_host, remote_host)

    def dial_failed(self, dial: DialId, reason: str) -> None:
        """A connection that was asked for can't be had."""
        self.membership.dial_failed(dial, reason)

    def admits(self, peer: Identity, expected: NodeId | None, is_meet: bool) -> str | None:
        """None if a peer that proved who it is may connect, else the reason why not."""
        return self.membership.admits(peer, expected, is_meet)

    def accepted(
        self, conn: ConnId, peer: Identity, is_meet: bool, own_host: str, remote_host: str
    ) -> None:
        """A peer has connected, hands shaken and admitted."""
        self.membership.accepted(conn, peer, is_meet, own_host, remote_host)

    def frame(self, conn: ConnId, body: bytes) -> None:
        """A frame has come over a connection; its payloads are handled at once."""
        self.membership.frame(conn, body)
        for peer, boot, payload in self.membership.take_payloads():
            if self._returning is not None:
                continue
            if self._frozen_at_ms is None:
                self._payload(peer, boot, payload)
            else:
                self._decline(peer, payload)

    def _payload(self, peer: NodeId, boot: int, payload: bytes) -> None:
        statements = self._statements(peer, payload)
        self._pass_view_on()
        for statement in statements:
            self.hear(peer, boot, statement)

    def _statements(self, peer: NodeId, payload: bytes) -> list[Message]:
        refused: list[str] = []
        statements: list[Message] = []
        try:
            statements = wire.decode(payload, refused)
        except RemoteProtocolError as error:
            refused = [str(error)]
        if refused:
            self._complain(peer, refused)
        return statements

    def _decline(self, peer: NodeId, payload: bytes) -> None:
        """Frozen: no copy can be stored. Whoever asks for one hears that, lest every ADDJOB waits for us (M25).

        Of a job that this node may have had in its queue, or handed out, nothing is said.
        """
        jobs = self.engine.state.jobs
        refusals: list[Message] = []
        for said in self._statements(peer, payload):
            if isinstance(said, ReplJob | YourJobs):
                job = jobs.get(said.id)
                if job is None or (job.state is JobState.ACTIVE and not job.leases):
                    refusals.append(Refused(said.id, is_queue_only=False))
        if refusals:
            self.membership.send(peer, wire.encode(refusals))

    def _complain(self, peer: NodeId, refused: list[str]) -> None:
        """A peer said what no node of ours would: counted, and noted at most once a minute."""
        self.engine.state.counts.bad_payloads += 1
        if self._noted.allows("bad-payload", peer, self._now_ms):
            facts = (("peer", peer), ("error", refused[0]), ("statements", len(refused)))
            self._notes.append(Note("warning", "bad-payload", facts))

    def closed(self, conn: ConnId) -> None:
        """A connection has ended."""
        self.membership.closed(conn)

    # Administration

    def meet(self, host: str, bus_port: int, *, is_sticky: bool = False) -> None:
        """CLUSTER MEET, or (sticky: tried until it joins) cluster-join.

        Made by hand at a node that its cluster has forgotten, it takes the machine back under a new id (B2.8).
        """
        if not is_sticky and self.membership.statistics().forgotten_by:
            self._come_back()
        self.membership.meet(host, bus_port, is_sticky=is_sticky)

    def _come_back(self) -> None:
        self._finish_returning()
        self.membership.come_back(node_id_from_bytes(self._dice.randbytes(20)))
        self._view = self.membership.view()
        self._returning = self.engine.come_back(self._view)
        self._go_on_returning()

    @property
    def is_returning(self) -> bool:
        """True while the jobs of a node that was forgotten are put aside, step by step with the time (B2.8)."""
        return self._returning is not None

    def _go_on_returning(self) -> None:
        if self._returning is not None and next(self._returning, True):
            self._returning = None

    def _finish_returning(self) -> None:
        while self._returning is not None:
            self._go_on_returning()

    def forget(self, node: NodeId, *, everywhere: bool = False) -> None:
        """CLUSTER FORGET; LocalProtocolError for an unknown node or this one."""
        self.membership.forget(node, everywhere=everywhere)
        self._pass_view_on()

    def set_limits(self, limits: Limits) -> None:
        """Bounds and timers of the core, changed at run time."""
        self.settings = attrs.evolve(self.settings, limits=limits)
        self.engine.set_limits(limits)

    def set_node_timeout(self, ms: int) -> None:
        """CONFIG SET cluster-node-timeout."""
        self.membership.set_node_timeout(ms)

    def set_announce(self, host: str, port: int, bus_port: int, tls_port: int) -> None:
        """What peers and clients are told of this node's address."""
        self.membership.set_announce(host, port, bus_port, tls_port)

    def reset(self, *, new_id: NodeId | None) -> None:
        """CLUSTER RESET: forget all jobs, queues and peers; with new_id become another node."""
        self._finish_returning()
        self.engine.reset()
        self.membership.reset(new_id=new_id)
        if new_id is not None:
            old = self.engine
            self.engine = self._new_engine()
            self.hear = self.engine.receive
            self.engine.set_logged(old.state.is_logged)
            self.engine.state.ready = old.take_ready()
            self.engine.adopt_topics(old)
            inherit(self.engine.state, old.state.trash)
        self._pass_view_on()

    def set_leaving(self, leaving: bool) -> None:
        """CLUSTER LEAVING."""
        self.membership.set_leaving(leaving)
        self._pass_view_on()

    def is_safe_to_stop(self) -> bool:
        """True if this node leaves, nobody needs anything from it, and all who can be reached know that."""
        return self.engine.is_safe_to_stop() and self.membership.is_left_told

    def restored(self, *, since: int, boot: int, queued: Iterable[bytes] = ()) -> None:
        """The log has been replayed; see Engine.restored. Before the first peer is met."""
        for _ in self.finish_restoring(since=since, boot=boot, queued=queued):
            pass

    def finish_restoring(
        self, *, since: int, boot: int, queued: Iterable[bytes] = ()
    ) -> Iterator[None]:
        """The same in bounded steps; nothing else may happen to the broker in between."""
        self._identity = attrs.evolve(self._identity, since=since, boot=boot)
        self.membership.set_boot(boot, since=since)
        yield from self.engine.finish_restoring(since=since, boot=boot, queued=queued)

    # Output

    def _pass_view_on(self) -> None:
        if self.membership.is_called_back:
            self._come_back()
        view = self.membership.view()
        if view is not self._view and self._frozen_at_ms is None and self._returning is None:
            if view != self._view:
                self.engine.view_changed(view)
            self._view = view

    def take_ready(self) -> Batch:
        """All effects since the last call; turn them into bytes before the next input."""
        self._pass_view_on()
        engine = self._take_engine_ready()
        limits = self.settings.limits
        for peers, spoken in engine.messages:
            statements = self._with_bodies(spoken)
            for part in wire.split(
                statements,
                entries_max=limits.message_entries_max,
                bytes_max=limits.message_bytes_max,
            ):
                payload = wire.encode(part)
                for peer in peers:
                    self.membership.send(peer, payload)
        if not self._view.is_leaving:
            self.membership.set_left(False)
        elif self.engine.is_safe_to_stop():
            # From now on it may hear an ack, but never keeps a copy again.
            self.membership.set_left(True)
        cluster = self.membership.take_ready()
        replies = self._readable(engine.replies)
        notes, self._notes = [*self._notes, *cluster.notes], []
        return Batch(
            records=engine.records,
            nodes_file=cluster.nodes_file,
            dials=cluster.dials,
            frames=cluster.frames,
            closes=cluster.closes,
            replies=replies,
            notes=notes,
        )

    def _take_engine_ready(self) -> Ready:
        if self._frozen_at_ms is None:
            return self.engine.take_ready()
        ready = self.engine.state.ready
        replies, ready.replies = ready.replies, []
        return Ready(replies=replies)

    # Bodies that lie in the log alone

    def _with_bodies(self, spoken: list[Message]) -> list[Message]:
        """The same statements with their bodies; without those whose body can't be read: as if lost on the way."""
        if self.bodies is None:
            return spoken
        statements: list[Message] = []
        for each in spoken:
            if isinstance(each, WITH_BODY) and isinstance(each.body, Paged):
                body = self._read(each.id, each.body)
                if body is None:
                    continue
                each = attrs.evolve(each, body=body)
            statements.append(each)
        return statements

    def _readable(self, replies: list[tuple[ClientId, Reply]]) -> list[tuple[ClientId, Reply]]:
        if self.bodies is None:
            return replies
        return [(client, self._body_of(reply)) for client, reply in replies]

    def _body_of(self, reply: Reply) -> Reply:
        """A reply without handles; a delivery that can't be read is left out, its job comes back after RETRY."""
        if not isinstance(reply, list):
            return self._read(b"", reply) if isinstance(reply, Paged) else reply
        shown: list[Reply] = []
        for each in reply:
            if isinstance(each, Delivery) and isinstance(each.body, Paged):
                body = self._read(each.id, each.body)
                if body is not None:
                    shown.append(attrs.evolve(each, body=body))
            else:
                shown.append(self._body_of(each))
        return shown if shown or not reply else NilArray()

    def _read(self, job: bytes, place: Paged) -> bytes | None:
        assert self.bodies is not None
        body = self.bodies(place)
        if body is None:
            facts = (("job", job.decode()), ("segment", place.segment), ("offset", place.offset))
            self._notes.append(Note("warning", "body-unreadable", facts))
        return body
