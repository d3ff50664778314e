"""Watch: sees every input and every batch of every node, keeps the ledger and the trace, and asks the checks.

Only what a turn touched is looked at: the ids in its messages, commands and replies. The first violation ends the run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from cluster import messages as bus
from cluster.ready import Note
from disque.broker import Batch
from disque.core import commands as cmd
from disque.core import messages as msg
from disque.core import wire
from disque.core.messages import Message
from disque.core.ready import ClientId, Delivery, Failure, Record, Reply, Status
from tests.sim import adapter, checks, story
from tests.sim.checks import Copy, Found, Violation
from tests.sim.durability import Durability
from tests.sim.ledger import Ledger, Life, Repairing

if TYPE_CHECKING:
    from cluster.nodeid import NodeId
    from tests.sim.clients import Operation
    from tests.sim.node import Node
    from tests.sim.world import World

CHECK_EVERY = 16  # turns of all nodes between two full checks of the engine that has its turn
ANSWER_SLACK_MS = 3000
EXPIRY_SLACK_MS = 15_000  # what link waits may add on a job's path
PURGE_SLACK_MS = 5_000  # an order to purge may be so long on its way
AT_ONCE_MS = 1_000
CACHE_MAX = 4000
_CANCELLED = 2  # the reason of an end
ASK_STEP_MS = 50  # holders ask so far apart; on a slower network two of them may get leave at once
_CLAIMS: Mapping[type[Message], tuple[str, ...]] = {
    msg.GotJob: ("job",),
    msg.GotAck: ("done", "settled"),
    msg.DelJob: ("settled",),
    msg.Move: ("move",),
}


class FailedError(Exception):
    """The run broke a rule."""

    def __init__(self, violation: Violation) -> None:
        super().__init__(f"{violation.rule}: {violation.text}")
        self.violation = violation


class Watch:
    """The judge of one run."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.ledger = Ledger()
        self.durability = Durability(self)
        # message type x state of the receiver's copy
        self.matrix: Counter[tuple[str, str]] = Counter()
        self.messages = 0
        self.late_deliveries = 0  # legal ones: after an ack that a fault kept from the holder
        self.crashes: list[tuple[int, int]] = []  # (at, node)
        self.is_healed = False
        self.is_lenient = False  # note what breaks a rule, and go on
        self.purges: dict[bytes, list[int]] = {}  # queue -> when it was purged
        self.touched: dict[bytes, None] = {}
        nodes = range(world.profile.nodes + world.profile.spares)
        self._seen: list[dict[bytes, Copy]] = [{} for _ in nodes]
        self._counters: list[tuple[int, ...]] = [() for _ in nodes]
        self._aside: list[list[bytes]] = [[] for _ in nodes]  # in quarantine
        self._forgotten: list[frozenset[NodeId]] = [frozenset() for _ in nodes]
        self._indices: dict[str, int] = {}  # node id -> index
        self._stored: list[dict[bytes, set[str]]] = [{} for _ in nodes]
        self._payloads: dict[bytes, tuple[Message, ...]] = {}
        self._adds: dict[ClientId, Life] = {}  # ADDJOBs under way
        self._at_once = 0  # repairs of one job by two holders that knew of each other

    # What happens

    def started(self, node: Node) -> None:
        """A process begins with nothing."""
        self._indices[node.id] = node.index
        self._seen[node.index] = {}
        self._aside[node.index] = []
        if node.log is None:
            self._stored[node.index] = {}
        self._forgotten[node.index] = frozenset()

    def crashing(self, node: Node, *, was_safe: bool = False) -> None:
        """A process is about to lose its memory: note what only it had; nothing, if it said that it is safe to stop."""
        now, state = self.world.now, adapter.state_of(node)
        self.crashes.append((now, node.index))
        self.trace("crash", node.name)
        for life in self.ledger.lives():
            life.done_at.pop(node.index, None)
        aside = dict.fromkeys(adapter.aside_ids(state))
        for job in [*adapter.known_ids(state), *aside]:
            life = self.ledger.by_id.get(job)
            if life is None:
                continue
            life.wiped[node.index] = now
            copy = adapter.snapshot(state, job)
            if (copy.is_live or job in aside) and not self.live_at(job, but=node):
                if copy.kind != "moving":
                    self._found(checks.q8_safe_means_safe(job, copy, node.name, was_safe=was_safe))
                life.lost_at = now

    def came_back(self, node: Node) -> None:
        """A forgotten node is another one from now on; what it delivers at most once it has thrown away."""
        now, state = self.world.now, adapter.state_of(node)
        self._indices[node.id] = node.index
        self.crashes.append((now, node.index))
        aside = adapter.aside_ids(state)
        seen, self._seen[node.index] = self._seen[node.index], {}
        live = [job for job in adapter.live_ids(state) if job in seen and job not in aside]
        self._found(checks.b28_comes_back_empty(live))
        for job, copy in seen.items():
            life = self.ledger.by_id.get(job)
            if life is None or not copy.is_live or job in aside:
                continue
            life.wiped[node.index] = now
            if not self.live_at(job, but=node):
                life.lost_at = now

    def commanded(self, operation: Operation) -> None:
        """A node takes a command."""
        command, now = operation.command, self.world.now
        ids: tuple[bytes, ...] = ()
        if isinstance(command, cmd.AddJob):
            self._adds[operation.connection] = self.ledger.add(command, operation.node.index, now)
        elif isinstance(command, cmd.Working | cmd.Show):
            ids = (command.id,)
        else:
            ids = getattr(command, "ids", ())
        if isinstance(command, cmd.QPurge):
            self.purged(command.queue)
        for job in ids:
            self._meets(operation.node, job)
            life = self.ledger.by_id.get(job)
            if life is not None:
                life.orders.append((now, operation.kind, operation.node.index))
                if isinstance(command, cmd.Nack):
                    life.nack_delay_ms = max(life.nack_delay_ms, command.delay_ms)
        text = f"> {operation.node.name} {operation.kind.upper()}"
        if isinstance(command, cmd.AddJob):
            text += f" {story.show_add(command)}"
        self.trace("command", operation.client.name, ids, text)

    def purged(self, queue: bytes) -> None:
        """Somebody orders a purge."""
        self.purges.setdefault(queue, []).append(self.world.now)

    def whispered_end(self, node: Node, job: bytes) -> None:
        """A peer will tell a node of an end that nobody ordered."""
        life = self.ledger.learn(job, adapter.body_of(node, job))
        if life is not None:
            life.orders.append((self.world.now, "whisper", node.index))

    def refused(self, operation: Operation) -> None:
        """The shell refuses a command before the broker sees it; memory was evicted to avoid that."""
        self._adds.pop(operation.connection, None)

    def received(self, node: Node, message: Message) -> None:
        """A node is about to handle a message."""
        job = getattr(message, "id", None)
        kind = "-" if job is None else self._meets(node, job)
        self.matrix[type(message).__name__, kind] += 1

    def _meets(self, node: Node, job: bytes) -> str:
        """An input is about a job: the kind of copy that it finds; one that went by itself is no longer compared."""
        self.touched[job] = None
        kind = self._copy(node, job).kind
        if kind == "none":
            self._seen[node.index].pop(job, None)
        return kind

    def framed(self, node: Node, body: bytes) -> None:
        """A frame arrives."""
        messages = self._decode(body)
        if messages:
            self.trace("got", node.name, _ids(messages), messages)

    def lost(self, source: Node, target: Node, body: bytes, why: str) -> None:
        """The network lost a frame."""
        messages = self._decode(body)
        if messages:
            self.trace(
                "lost", f"{source.name}>{target.name}", _ids(messages), (f"[{why}]", *messages)
            )

    def noted(self, node: Node, note: Note) -> None:
        """The node logs something."""
        if note.level != "debug":
            self.trace(
                "note", node.name, (), f"{note.level} {note.event} {dict(note.facts)!r:.200}"
            )

    def trace(self, kind: str, who: str, ids: tuple[bytes, ...] = (), data: object = None) -> None:
        """Add a row to the story."""
        self.world.story.add(self.world.now, kind, who, ids, data)

    # A turn

    def turned(self, node: Node, batch: Batch) -> None:
        """A node has handled its inputs; nothing of the batch has left yet."""
        if node.log is None:
            self.note_stored(node, batch.records)
        for conn, body in batch.frames:
            self._sending(node, conn, body)
        for connection, reply in batch.replies:
            self._replying(node, connection, reply)
        self._see_timers(node)
        self._see_aside(node)
        self._see_forgotten(node)
        touched, self.touched = self.touched, {}
        if node.storing is not None and (unsafe := node.storing.unsafe_ids()):
            node.storing.look_later({job: None for job in touched if job in unsafe})
            touched = {job: None for job in touched if job not in unsafe}
        for job in touched:
            self._look(node, job)
        for connection, reply in batch.replies:
            self._judge_reply(node, connection, reply)
        if self.world.turns % CHECK_EVERY == 0:
            node.broker.engine.check()

    def note_stored(self, node: Node, records: Sequence[Record]) -> None:
        """These may be claimed from now on."""
        stored = self._stored[node.index]
        for record in records:
            if record.fields and isinstance(record.fields[0], bytes):
                stored.setdefault(record.fields[0], set()).add(record.kind)

    def _see_timers(self, node: Node) -> None:
        """Add the ids of what changed its state by time alone."""
        state = adapter.state_of(node)
        counters = adapter.counters(state)
        if counters != self._counters[node.index]:
            self._counters[node.index] = counters
            for job in adapter.changed_ids(state, self._seen[node.index]):
                if self._copy(node, job).kind == "none":
                    # it went by itself: whatever comes now is new
                    self._seen[node.index].pop(job, None)
                else:
                    self.touched[job] = None

    def _see_aside(self, node: Node) -> None:
        """Add the ids of what has left quarantine."""
        before, after = self._aside[node.index], adapter.aside_ids(adapter.state_of(node))
        if before or after:
            self.touched |= dict.fromkeys(job for job in before if job not in after)
            self._aside[node.index] = after

    def _see_forgotten(self, node: Node) -> None:
        after, before = adapter.state_of(node).view.forgotten, self._forgotten[node.index]
        if after is not before:
            self._forgotten[node.index] = after
            self._found(checks.s12_forgotten_stay(before, after))

    def _sending(self, node: Node, conn: object, body: bytes) -> None:
        messages = self._decode(body)
        # one that was closed while the log was written takes nothing any more
        if not messages or conn not in node.ends:
            return
        self.messages += len(messages)
        connection, end = node.ends[conn]  # type: ignore[index]
        target = connection.other(end).node
        self.trace("send", f"{node.name}>{target.name}", _ids(messages), messages)
        state = adapter.state_of(node)
        for message in messages:
            if type(message).__name__ == node.snare:
                node.effects_left = 0
            job = getattr(message, "id", None)
            if job is None:
                continue
            self.touched[job] = None
            needed = _CLAIMS.get(type(message))
            if needed is not None:
                self._stored_before(node, job, type(message).__name__, needed)
            if isinstance(message, msg.ReplJob | msg.YourJobs):
                self.ledger.learn(job, message.body)
                known = adapter.snapshot(state, job)
                holders = known.holders if known.kind != "none" else message.facts.holders
                if isinstance(message, msg.ReplJob) and known.kind != "waiting":
                    self._repairing(node, target, job)
                self._found(
                    checks.s4_receiver_is_holder(job, holders, (target.id,), type(message).__name__)
                )

    def _repairing(self, source: Node, target: Node, job: bytes) -> None:
        """A holder makes a missing copy: not beside another holder that it knows of.

        What it knew when it decided is seen at the end of its turn only: so one time alone proves nothing.
        """
        life, now = self.ledger.by_id.get(job), self.world.now
        if life is None:
            return
        mine = Repairing(now, source, target, adapter.repair_rivals(source, job))
        for other in life.repairs:
            is_rival = other.source is not source and other.target is not target
            if is_rival and now - other.at <= AT_ONCE_MS:
                leader, _ = adapter.salted(job, source, other.source)
                late = other if leader is source else mine
                waited = late.rivals.get(leader.id)
                if waited is not None and waited < checks.STEP_IN_MS:
                    self._at_once += 1
                    self._found(
                        checks.b3_one_leads(job, leader.name, late.source.name, self._at_once)
                    )
        life.repairs.append(mine)

    def _stored_before(self, node: Node, job: bytes, claim: str, needed: tuple[str, ...]) -> None:
        stored = self._stored[node.index].get(job, ())
        self._found(checks.s15_claims_are_stored(job, claim, stored, needed))

    def _replying(self, node: Node, connection: ClientId, reply: Reply) -> None:
        """Learn ids and count deliveries, before copies are looked at."""
        operation = self.world.operation_of(connection)
        who = operation.client.name if operation is not None else f"#{connection}"
        life = self._adds.pop(connection, None)
        if life is not None and isinstance(reply, Status):
            life.id = reply.text
            self.ledger.by_id[reply.text] = life
            self.touched[reply.text] = None
            self._stored_before(node, reply.text, "ADDJOB's reply", ("job",))
            self.trace("reply", node.name, (reply.text,), f"> {who} ok v{life.value}")
        elif isinstance(reply, list):
            for each in reply:
                if isinstance(each, Delivery):
                    self._delivering(node, who, each)
        elif isinstance(reply, Failure):
            ids = () if life is None or life.id is None else (life.id,)
            self.trace("reply", node.name, ids, f"> {who} {reply.code} {reply.text}")

    def _delivering(self, node: Node, who: str, delivery: Delivery) -> None:
        now, job = self.world.now, delivery.id
        self.touched[job] = None
        life = self.ledger.learn(job, delivery.body)
        if life is None or life.id != job:
            self._found(
                Violation("BODY", job, f"delivered with a body of nobody: {delivery.body!r:.40}")
            )
            return
        before = life.deliveries[-1][0] if life.deliveries else None
        life.deliveries.append((now, node.index))
        if not life.retry_ms:
            self._stored_before(node, job, "a delivery at most once", ("dispatch",))
        calm_since = self.world.nemesis.calm_since
        if calm_since is not None and life.added_at > calm_since:
            if 2 * self.world.profile.latency_ms[1] < ASK_STEP_MS:
                self._found(checks.calm_delivered_once(job, before, now, life))
            if not self.is_healed:
                self._found(checks.q10_no_late_delivery(life, now, self.world.grace_ms))
        self.trace(
            "deliver",
            node.name,
            (job,),
            f"> {who} v{life.value} from {delivery.queue!r} for the {len(life.deliveries)}. time",
        )
        self._found(checks.s5_at_most_once(job, life.retry_ms, len(life.deliveries)))
        self._found(checks.s10_not_early(job, life, now))
        self._found(checks.s10_not_late(job, life, now, EXPIRY_SLACK_MS))
        excused = self._is_excused(life)
        self._found(
            checks.s3_settled_is_over(
                job, life.settled_at, f"{node.name} delivers it", is_excused=excused
            )
        )
        self.late_deliveries += bool(life.knew)
        if self.is_healed:
            self._found(checks.q10_no_late_delivery(life, now, self.world.grace_ms))

    def _judge_reply(self, node: Node, connection: ClientId, reply: Reply) -> None:
        """Judge the answer to an ADDJOB, when the copies have been looked at."""
        operation = self.world.operation_of(connection)
        if operation is None or not isinstance(operation.command, cmd.AddJob):
            return
        life = self.ledger.by_value.get(adapter.value_of(operation.command.body))
        if life is None:
            return
        if isinstance(reply, Failure) and reply.code == "NOREPL":
            self.world.outcomes["NOREPL"] += 1
            life.is_norepl = True
            self._found(checks.s8_no_contradiction(life.id or b"", life.ok_at, is_norepl=True))
        elif isinstance(reply, Status):
            self.world.outcomes["added"] += 1
            life.ok_at = self.world.now
            promised = 1 if operation.command.is_async else operation.command.replicate or 1
            if life.knew or life.deliveries:
                return  # somebody has worked on it: a success, whatever the number of copies (B7.3)
            holding = [
                n.name
                for n in self.world.nodes
                if n.is_alive and self._copy(n, reply.text).kind != "none"
            ]
            holding += [self.world.nodes[n].name for n in self.durability.knows_at(reply.text)]
            wiped = [self.world.nodes[index].name for index in life.wiped]
            self._found(checks.s7_copies_at_reply(reply.text, promised, holding, wiped))

    # Copies

    def _look(self, node: Node, job: bytes) -> None:
        """Compare a node's copy with what was seen there before."""
        after = self._copy(node, job)
        seen = self._seen[node.index]
        before = seen.get(job, checks.NONE)
        if after.kind == "none":
            seen.pop(job, None)
            return
        seen[job] = after
        found = self._found
        found(checks.s1_done_stays_done(job, before, after))
        found(checks.s12_facts_rise(job, before, after))
        found(checks.s11_expiry_falls(job, before, after))
        found(checks.s9_may_be_queued(job, after, node.local_ms))
        found(checks.s14_done_frees_body(job, after))
        life = self.ledger.learn(job, adapter.body_of(node, job))
        delay = 0 if life is None else life.nack_delay_ms
        found(checks.s11_lease_is_bounded(job, after, node.local_ms, delay))
        if life is not None:
            self._note(node, life, job, before, after)

    def _note(self, node: Node, life: Life, job: bytes, before: Copy, after: Copy) -> None:
        now, index = self.world.now, node.index
        if before.kind != after.kind:
            self.trace("state", node.name, (job,), f"{before.kind} -> {after.kind}")
            if after.kind in ("waiting", "moving", "dummy"):
                self.world.nemesis.tempt(node, job)
        if after.is_live:
            self._judge_live(node, life, after)
            life.held_by.setdefault(index, now)
            if not life.retry_ms:
                copies = {n.name: self._copy(n, job) for n in self.world.nodes if n.is_alive}
                self._found(checks.s5_one_owner(job, copies))
            if life.settled_at is not None and after.may_be_offered:
                excused = self._is_excused(life)
                text = f"{node.name} has it {after.kind}"
                self._found(
                    checks.s3_settled_is_over(job, life.settled_at, text, is_excused=excused)
                )
            return
        life.knew.setdefault(index, now)
        life.done_at.setdefault(index, now)
        self._found(checks.s8_no_contradiction(job, life.ok_at, is_norepl=after.reason == 1))
        if after.reason == _CANCELLED and before.reason != _CANCELLED:
            queues = (life.command.queue, life.command.dead_queue or b"")
            purged_at = [at for queue in queues for at in self.purges.get(queue, ())]
            self._found(checks.m19_cancelled_by_order(life, purged_at, PURGE_SLACK_MS))
            if purged_at and not life.is_cancel_told:
                life.is_cancel_told = True
                self.world.history.whispered_end(node, job.decode())
        if after.told != before.told:
            self._judge_told(life, job, after)
        if after.kind == "tombstone" and life.settled_at is None:
            life.settled_at = now
            copies = {n.name: self._copy(n, job) for n in self.world.nodes if n.is_alive}
            live = [name for name, copy in copies.items() if copy.may_be_offered]
            if live:
                text = f"{live} has it live"
                self._found(
                    checks.s3_settled_is_over(job, now, text, is_excused=self._is_excused(life))
                )

    def _judge_live(self, node: Node, life: Life, copy: Copy) -> None:
        assert life.id is not None
        if not self.world.profile.chaos.double and not self.durability.is_ahead(node):
            # an order that is passed on twice may count twice
            nacks = sum(kind == "nack" for _, kind, _ in life.orders)
            self._found(checks.q9_counters_are_true(life.id, copy, len(life.deliveries), nacks))
        off = node.local_ms - self.world.now
        timed = attrs.evolve(copy, expires_at=copy.expires_at - off)
        self._found(
            checks.s11_expiry_is_kept(life.id, timed, life, self.world.now, EXPIRY_SLACK_MS)
        )

    def _judge_told(self, life: Life, job: bytes, copy: Copy) -> None:
        knew = []
        for told in copy.told:
            index = self._indices.get(told)
            if index is None:
                continue
            there = self.world.nodes[index]
            # one that expired while its log was written is gone before it is looked at
            has_stored = "done" in self._stored[index].get(job, ())
            if (
                index in life.knew
                or has_stored
                or (there.is_alive and self._copy(there, job).is_ended)
            ):
                knew.append(told)
        wiped = [self.world.nodes[index].id for at, index in self.crashes if at >= life.added_at]
        self._found(checks.s2_told_is_true(job, copy.told, knew, wiped))

    def _is_excused(self, life: Life) -> bool:
        """A wipe or FORGET since the job was added, or tight memory: S3 and S13 promise nothing."""
        return (
            any(at >= life.added_at for at, _ in self.crashes)
            or bool(self.world.nemesis.forgotten_ids)
            or "maxmemory_bytes" in self.world.profile.limits
        )

    def _copy(self, node: Node, job: bytes) -> Copy:
        return adapter.snapshot(adapter.state_of(node), job)

    def live_at(self, job: bytes, but: Node) -> list[str]:
        """Other nodes with a live copy."""
        nodes = [node for node in self.world.nodes if node.is_alive and node is not but]
        return [node.name for node in nodes if self._copy(node, job).is_live]

    # Now and then

    def expect_answer(self, operation: Operation) -> None:
        """Look at an operation again when its time-out and some slack are over."""

        def look() -> None:
            node = operation.node
            still = self.world.operation_of(operation.connection) is operation and operation.is_open
            if still and node.is_alive and node.life == operation.life:
                waited = self.world.now - since
                slack = ANSWER_SLACK_MS - 1
                self._found(
                    checks.answered_in_time(
                        None, operation.kind, waited, operation.timeout_ms, slack
                    )
                )

        since = self.world.now
        self.world.at(since + operation.timeout_ms + ANSWER_SLACK_MS, look)

    def survey(self) -> None:
        """Look at all jobs of all nodes (S6)."""
        live: dict[bytes, list[str]] = {}
        for node in self.world.nodes:
            if node.is_alive:
                for job in adapter.live_ids(adapter.state_of(node)):
                    live.setdefault(job, []).append(node.name)
        under_way = self.durability.under_way()
        for life in self.ledger.lives():
            if life.id is None or life.id in under_way:
                continue
            if not self.durability.live_at(life.id):
                self._found(
                    checks.s6_some_copy_lives(
                        life, live.get(life.id, ()), self.world.now, EXPIRY_SLACK_MS
                    )
                )

    def copies(self) -> dict[bytes, dict[str, Copy]]:
        """Every copy of every job, by id and node name."""
        found: dict[bytes, dict[str, Copy]] = {}
        for node in self.world.nodes:
            if node.is_alive:
                state = adapter.state_of(node)
                for job in adapter.known_ids(state):
                    found.setdefault(job, {})[node.name] = adapter.snapshot(state, job)
        return found

    def found(self, violation: Found) -> None:
        """A check of somebody else found this."""
        self._found(violation)

    def _found(self, violation: Found) -> None:
        if violation is not None:
            self.trace(
                "VIOLATED",
                violation.rule,
                () if violation.job is None else (violation.job,),
                violation.text,
            )
            if not self.is_lenient:
                raise FailedError(violation)

    def _decode(self, body: bytes) -> tuple[Message, ...]:
        if not adapter.is_payload(body):
            return ()
        messages = self._payloads.get(body)
        if messages is None:
            if len(self._payloads) > CACHE_MAX:
                self._payloads.clear()
            payload = bus.decode(body)
            assert isinstance(payload, bus.Payload)
            messages = self._payloads[body] = tuple(wire.decode(payload.data))
        return messages


def _ids(messages: tuple[Message, ...]) -> tuple[bytes, ...]:
    return tuple([job for message in messages if (job := getattr(message, "id", None)) is not None])
