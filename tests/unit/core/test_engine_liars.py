"""A member that lies, in the midst of an honest life: Hypothesis chooses words, senders and what happens in between.

`test_engine_hostile.py` has one word at a time; here are rows of them, with FORGET, LEAVING, restarts and time in
between, about ids of every kind. After each step `Engine.check` holds. Besides: no word has more answers than its
parts account for, time alone makes no storm, jobs that no lie names are kept, and what is left at the end, when all
have ended, costs nothing.
"""

from __future__ import annotations

import os
from contextlib import suppress
from itertools import product
from typing import Any

import attrs
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cluster.errors import RemoteProtocolError
from cluster.nodeid import NodeId
from disque.core import commands as cmd
from disque.core import messages as msg
from disque.core import wire
from disque.core.job import Burials, JobSpec, Reason
from disque.core.jobid import JobId, is_endless
from disque.core.limits import Limits
from disque.core.memory import BASE_BYTES, used_memory
from disque.core.ready import ClientId
from tests.unit.core.builders import (
    BOOT,
    CTIME,
    DAY_MS,
    STRANGER,
    A,
    B,
    C,
    D,
    E,
    Node,
    World,
    copy,
    job_id,
    spec,
    view,
)

ANSWERS_MAX = 40  # statements to one word
EXCHANGED_MAX = 50  # between two honest nodes, because of one word
HOUR_MS = 3_600_000
EXAMPLES = int(os.environ.get("LIARS") or 0)

_nodes = st.sampled_from([A, B, C, D, E, STRANGER])
_many = tuple(NodeId(f"{n:040x}") for n in range(300))
_sets = st.one_of(
    st.just(()),
    st.sampled_from([(A,), (B,), (A, B), (A, B, C), (C,), (STRANGER,)]),
    st.sets(_nodes).map(lambda found: tuple(sorted(found))),
    st.just(_many),
)
_ints = st.sampled_from([0, 1, 2, 3, 500, 60_000, DAY_MS, 2**31, 2**61, 2**62])
_rising = st.sampled_from([0, 1, 2, BOOT - 1, BOOT, BOOT + 1, CTIME, 2**60, 2**61 - 1, 2**61])
_ahead = st.sampled_from([0] * 20 + [-1, -BOOT, 1, 2**61])  # of a sender's boot
_senders = st.sampled_from([B, B, B, C, D, STRANGER, A])
_times = st.sampled_from([1, 1, 1, 2])
_queues = st.sampled_from([b"q", b"q", b"q", b"other", b"", b"dead-letters"])
_flags = st.booleans()


def _by_node(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.dictionaries(_nodes, values, max_size=4)


_facts = st.builds(
    msg.Facts,
    holders=_sets,
    expires_in=_ints,
    due_in=_ints,
    is_queued=_flags,
    claims=_by_node(st.tuples(_rising, _rising, _flags)),
    dispatches=_by_node(_rising),
    nacks=_by_node(_rising),
    leases=_by_node(st.tuples(_rising, _ints)),
    covered=_by_node(_rising),
    burials=st.none() | st.builds(Burials, _rising, st.sampled_from([0, 1, 2, 9]), _ints, _ints),
    queued_at=st.none() | _nodes,
)
_specs = st.one_of(
    st.sampled_from([spec(), spec(retry_ms=0, replicate=1), spec(max_deliveries=1), spec(delay_ms=5_000)]),
    st.builds(
        JobSpec,
        queue=_queues,
        retry_ms=_ints,
        replicate=_ints,
        is_explicit=_flags,
        delay_ms=_ints,
        ttl_ms=_ints,
        priority=_ints,
        max_deliveries=_ints,
        dead_queue=_queues,
        headers=st.dictionaries(st.binary(max_size=3), st.binary(max_size=3), max_size=2),
    ),
)  # fmt: skip
_ACTS = (
    cmd.AckJob,
    cmd.FastAck,
    cmd.Nack,
    cmd.Enqueue,
    cmd.Dequeue,
    cmd.CancelJob,
    cmd.Revive,
    cmd.DelJob,
)
_MADE_UP = (
    *[
        job_id(n, node=node, is_retried=is_retried)
        for n, node, is_retried in product((1, 2), (A, B, STRANGER), (True, False))
    ],
    *[
        JobId(b"D-zzzzzzzz-%b-%b" % (b"A" * 24, end))
        for end in (b"0000", b"0001", b"fffe", b"ffff", b"zzzz")
    ],
)
_KNOWN_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "spec": _specs, "body": st.sampled_from([b"", b"body", b"x" * 3_000]), "facts": _facts,
    "reason": st.sampled_from(list(Reason)), "holders": _sets, "told": _sets, "queue": _queues,
    "node": _nodes, "boot": _rising, "source_boot": _rising, "clock": _rising, "stamp": _rising,
    "n": _ints, "settled": _ints, "ctime": st.sampled_from([0, CTIME, 2**62]),
    "kind": st.integers(0, 12), "flags": st.integers(0, 4), "number": st.integers(0, 9),
    "channel": _queues, "name": _queues, "headers": st.just({}),
    **dict.fromkeys(("is_taken", "is_queue_only", "has_waiting", "is_anew"), _flags),
}  # fmt: skip


def _lie(data: st.DataObject, known: list[JobId]) -> msg.Message:
    """Any word, most often about a job that there is."""
    kind = data.draw(st.sampled_from(wire.MESSAGE_TYPES))
    ids = st.sampled_from([*known, *known, *_MADE_UP])
    fields = {
        **_KNOWN_FIELDS,
        "id": ids,
        "ids": st.lists(ids, max_size=4).map(tuple),
        "numbers": st.lists(_ints, max_size=4).map(tuple),
    }
    drawn = {each.name: fields.get(each.name, _ints) for each in attrs.fields(kind)}
    said: msg.Message = data.draw(st.builds(kind, **drawn))
    return said


def _reply(said: msg.Message, peer: NodeId, boot: int, *, is_taking: bool) -> msg.Message | None:
    """What an honest peer answers that takes what it is given, or has nothing."""
    match said:
        case msg.ReplJob(id=id_) | msg.Keep(id=id_):
            return msg.GotJob(id_, boot, 5) if is_taking else msg.Refused(id_, False)
        case msg.YourJobs(id=id_):
            return msg.GotJob(id_, boot, 5)
        case msg.WillQueue(id=id_, facts=told):
            return msg.Have(id_, told) if is_taking else msg.Unknown(id_, boot, 9)
        case msg.SetAck(id=id_, reason=reason, holders=holders, told=told, expires_in=expires_in):
            holders = tuple(sorted({*holders, peer}))
            return msg.GotAck(id_, reason, holders, tuple(sorted({*told, peer})), expires_in)
        case (
            msg.Move(source_boot=source, boot=to, n=n)
            | msg.AskMove(source_boot=source, boot=to, n=n)
        ):
            return msg.GotMove(source, to, n, is_taking)
        case msg.Heal(boot=source, n=n):
            return msg.Heal(source, n)
        case msg.Walk(seq=seq):
            return msg.Walked(seq)
        case msg.Question(number=number, numbers=numbers):
            return msg.Answer(number, numbers)
    return None


class Liars(RuleBasedStateMachine):
    """Node A with members B and C; who lies is drawn anew each time."""

    def __init__(self) -> None:
        super().__init__()
        bounds = dict.fromkeys(
            ("tombstones_max", "dummies_max", "marks_max", "absences_max", "pauses_max"), 20
        )
        self.node = Node(
            view(up=(B, C), forgotten=(D,)), limits=Limits(queue_idle_max_ms=1_000, **bounds)
        )
        self.own: list[JobId] = []
        self.may_give = False  # told to give its jobs away
        self.clients = 1_000
        self.boots = {B: BOOT, C: BOOT}
        self.honest = [job_id(700 + n, node=C) for n in range(2)]
        for each in self.honest:
            said = copy(each, A, C, spec=spec(queue=b"honest"))
            self.node.hear(C, said)
        self.alone = [
            self.node.add(b"mine", queue=b"honest"),
            self.node.add(b"mine", queue=b"honest", retry_ms=0),
        ]
        self.node.clear()

    # Words

    @rule(data=st.data(), sender=_senders, count=st.integers(1, 6), times=_times)
    def hear(self, data: st.DataObject, sender: NodeId, count: int, times: int) -> None:
        for _ in range(count):
            said = _lie(data, self.own)
            boot = self.boots.get(sender, BOOT) + data.draw(_ahead)
            for _ in range(times):
                self.heard(sender, said, boot)

    def heard(self, sender: NodeId, said: msg.Message, boot: int) -> None:
        """One word, and no more answers than there may be."""
        before = len(self.node.said)
        with suppress(RemoteProtocolError):
            self.node.hear(sender, said, boot=boot)
        more = self.node.said[before:]
        assert len(more) <= ANSWERS_MAX, (said, more)

    @rule(is_taking=_flags)
    def answer(self, is_taking: bool) -> None:
        """Peers say what they should to all that they were told."""
        heard, self.node.said = self.node.said[-60:], []
        for peer, said in heard:
            if peer in self.boots and (
                reply := _reply(said, peer, self.boots[peer], is_taking=is_taking)
            ):
                self.heard(peer, reply, self.boots[peer])

    @rule(data=st.data(), sender=st.sampled_from([B, C]))
    def answer_wrongly(self, data: st.DataObject, sender: NodeId) -> None:
        """What the node has just said comes back, as if the peer had said it."""
        if self.node.said:
            _, said = data.draw(st.sampled_from(self.node.said[-50:]))
            self.heard(sender, said, self.boots[sender])

    # An honest life

    @rule(
        queue=st.sampled_from([b"q", b"other"]),
        retry_ms=st.sampled_from([0, 1_000, 10_000]),
        replicate=st.sampled_from([1, 2, 3]),
        delay_ms=st.sampled_from([0, 5_000]),
        max_deliveries=st.sampled_from([None, 1]),
        is_async=_flags,
    )
    def add(
        self,
        queue: bytes,
        retry_ms: int,
        replicate: int,
        delay_ms: int,
        max_deliveries: int | None,
        is_async: bool,
    ) -> None:
        if len(self.own) >= 6:
            return
        self.clients += 1
        before = set(self.node.state.jobs)
        command = cmd.AddJob(
            queue, b"body", 0, replicate=replicate if retry_ms else 1, retry_ms=retry_ms, delay_ms=delay_ms,
            is_async=is_async, max_deliveries=max_deliveries if retry_ms else None,
        )  # fmt: skip
        self.node.do(command, client=ClientId(self.clients))
        self.own += [each for each in self.node.state.jobs if each not in before]

    @rule(is_nohang=_flags)
    def get(self, is_nohang: bool) -> None:
        self.clients += 1
        self.node.do(
            cmd.GetJob((b"q", b"other"), count=2, is_nohang=is_nohang, timeout_ms=5_000),
            client=ClientId(self.clients),
        )

    @rule(
        data=st.data(),
        kind=st.sampled_from(_ACTS),
    )
    def act(self, data: st.DataObject, kind: Any) -> None:
        self.clients += 1
        id_ = data.draw(st.sampled_from([*self.own, *_MADE_UP]))
        self.node.do(kind((id_,)), client=ClientId(self.clients))

    @rule(ms=st.sampled_from([1, 60, 600, 3_000, 12_000, 61_000]))
    def wait(self, ms: int) -> None:
        self.node.clear()
        self.node.advance(ms)
        said = len(self.node.said)
        most = (len(self.node.state.jobs) + 10) * (4 + ms // 100)
        assert said <= most, f"{said} statements in {ms} ms"

    @rule(
        change=st.sampled_from(
            [
                "forget",
                "cut",
                "suspect",
                "back",
                "leaving",
                "self-leaving",
                "restart",
                "called forgotten",
                "drained",
            ]
        ),
        who=st.sampled_from([B, C]),
    )
    def see(self, change: str, who: NodeId) -> None:
        others = [each for each in (B, C) if each != who]
        seen: dict[str, Any] = {"up": (B, C), "forgotten": (D,)}
        self.may_give |= change in ("self-leaving", "called forgotten")
        match change:
            case "forget":
                seen |= {"up": others, "forgotten": (D, who)}
            case "cut" | "suspect":
                seen |= {"up": others, change: (who,)}
            case "leaving":
                seen |= {"leaving": (who,)}
            case "self-leaving":
                seen |= {"leaving": (A,)}
            case "restart":
                self.boots[who] += 1
            case "called forgotten":
                seen |= {"is_forgotten": True}
            case "drained":
                seen |= {"up": others, "forgotten": (D, who), "drained": (who,)}
        self.node.see(view(**seen, boots=self.boots))

    @invariant()
    def jobs_that_no_lie_names_are_kept(self) -> None:
        jobs = self.node.state.jobs
        for each in [*self.alone, *self.honest] if not self.may_give else ():
            assert each in jobs, each
            assert not jobs[each].is_done

    def teardown(self) -> None:
        """All that there is ends, and everybody else is gone: nothing is left that costs."""
        node = self.node
        node.see(view(forgotten=(B, C, D, E, STRANGER)))
        for client in range(1_000, self.clients + 1):
            node.disconnect(ClientId(client))
        for each in list(node.state.jobs):
            node.do(cmd.CancelJob((each,)), client=ClientId(1))
        for _ in range(24 * 60):
            node.leap(HOUR_MS)
            if not (any(not is_endless(each) for each in node.state.jobs) or node.state.queues):
                break
        left = used_memory(node.state) - BASE_BYTES
        graves = 20 * 8 * 400
        kept = [each for each in node.state.jobs if not is_endless(each)]
        assert not kept
        assert left <= graves + len(node.state.jobs) * 2_000, left


class LiarBetween(RuleBasedStateMachine):
    """A and C are honest and tell each other what they should; B tells both whatever it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World.of(A, B, C)
        self.world.cuts = dict.fromkeys([(A, B), (C, B), (B, A), (B, C)])
        self.own: list[JobId] = []
        self.clients = 1_000
        self.unnamed: list[JobId] = []
        for node in (A, C):
            self._add(node, b"honest", 10_000, 2)
        self.unnamed, self.own = self.own, []

    def _add(self, at: NodeId, queue: bytes, retry_ms: int, replicate: int) -> None:
        self.clients += 1
        node = self.world.nodes[at]
        before = set(node.state.jobs)
        command = cmd.AddJob(queue, b"body", 0, replicate=replicate, retry_ms=retry_ms)
        node.do(command, client=ClientId(self.clients))
        self.own += [each for each in node.state.jobs if each not in before]
        self.settle()

    def settle(self) -> None:
        """Nothing that is said goes round and round."""
        self.world.sent.clear()
        self.world.settle()
        assert len(self.world.sent) <= EXCHANGED_MAX, self.world.sent[-20:]

    @rule(data=st.data(), at=st.sampled_from([A, C]), count=st.integers(1, 4))
    def lie(self, data: st.DataObject, at: NodeId, count: int) -> None:
        for _ in range(count):
            said = _lie(data, self.own)
            with suppress(RemoteProtocolError):
                self.world.nodes[at].hear(B, said)
            self.settle()

    @rule(
        at=st.sampled_from([A, C]), retry_ms=st.sampled_from([0, 1_000, 10_000]), is_copied=_flags
    )
    def add(self, at: NodeId, retry_ms: int, is_copied: bool) -> None:
        if len(self.own) < 4:
            self._add(at, b"q", retry_ms, 2 if is_copied and retry_ms else 1)

    @rule(at=st.sampled_from([A, C]), is_nohang=_flags)
    def get(self, at: NodeId, is_nohang: bool) -> None:
        self.clients += 1
        command = cmd.GetJob((b"q",), count=1, is_nohang=is_nohang, timeout_ms=5_000)
        self.world.nodes[at].do(command, client=ClientId(self.clients))
        self.settle()

    @rule(data=st.data(), at=st.sampled_from([A, C]), kind=st.sampled_from(_ACTS))
    def act(self, data: st.DataObject, at: NodeId, kind: Any) -> None:
        self.clients += 1
        id_ = data.draw(st.sampled_from([*self.own, *_MADE_UP]))
        self.world.nodes[at].do(kind((id_,)), client=ClientId(self.clients))
        self.settle()

    @rule(ms=st.sampled_from([100, 1_000, 11_000]))
    def wait(self, ms: int) -> None:
        self.world.sent.clear()
        self.world.advance(ms, step_ms=max(ms // 10, 50))
        jobs = sum(self.world.registered())
        assert len(self.world.sent) <= (jobs + 10) * (4 + ms // 100), len(self.world.sent)

    def teardown(self) -> None:
        """B is forgotten: what no lie has named is there, and is handed out."""
        for node in (A, C):
            other = C if node == A else A
            self.world.nodes[node].see(view(node, up=(other,), forgotten=(B,)))
        self.settle()
        self.world.advance(61_000, step_ms=1_000)
        got = [job.id for node in (A, C) for job in self.world.nodes[node].get(b"honest", count=9)]
        assert sorted(got) == sorted(self.unnamed)


_SETTINGS = settings(
    max_examples=EXAMPLES or 50,
    stateful_step_count=30,
    deadline=None,
    derandomize=not EXAMPLES,
    database=None,
    phases=[Phase.generate, Phase.shrink] if EXAMPLES else [Phase.generate],
    suppress_health_check=list(HealthCheck),
)
Liars.TestCase.settings = LiarBetween.TestCase.settings = _SETTINGS
TestLiars = Liars.TestCase
TestLiarBetween = LiarBetween.TestCase
