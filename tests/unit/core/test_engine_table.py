"""Every bus message x every job state x every kind of sender is harmless (W-3, W-4, field report U51).

Harmless: no exception, the invariants of `Engine.check` hold, what the engine then says can be read, time may pass,
and a RETRY 0 job is handed out at most once. Whether the answer is the right one is said by the tests of the modules.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import pytest

from cluster.nodeid import NodeId
from disque.core import commands as cmd
from disque.core import messages as msg
from disque.core import wire
from disque.core.job import Burials, Job, JobSpec, Reason
from disque.core.jobid import JobId
from tests.unit.core.builders import (
    BOOT,
    CTIME,
    DAY_MS,
    ONCE,
    OTHER,
    STATES,
    STRANGER,
    A,
    B,
    C,
    D,
    Node,
    facts,
    node_with,
    spec,
    state_name,
    view,
)

LIE = 2**61  # the end of what the codec takes for counters and stamps
VIEW = view(up=(B, C), forgotten=(D,))

FACTS = (
    facts(A, B),
    facts(A, B, C, is_queued=True, dispatches={B: 1}, leases={B: (LIE, 5_000)}),
    facts(
        STRANGER, expires_in=LIE, due_in=LIE, is_queued=True, claims={A: (LIE, LIE, False), D: (BOOT, 1, True)},
        dispatches={A: LIE}, nacks={A: LIE, B: LIE}, leases={A: (LIE, LIE)}, covered={A: LIE, C: LIE},
        burials=Burials(LIE, LIE, LIE, LIE),
    ),
    facts(expires_in=0, burials=Burials(1, 1, 0, 0)),
)  # fmt: skip
ENDS: tuple[tuple[Reason, tuple[NodeId, ...], tuple[NodeId, ...]], ...] = (
    (Reason.ACKED, (A, B), (B,)),
    (Reason.NOREPL, (), ()),
    (Reason.CANCELLED, (B, C), (B, C)),
    (Reason.FAST_ACKED, (STRANGER,), (A, STRANGER)),
)
SPECS = (
    spec(),
    spec(retry_ms=0, replicate=1),
    spec(queue=b"", retry_ms=LIE, delay_ms=LIE, ttl_ms=LIE),
)


def statements(kind: type[Any], node: Node, id_: JobId) -> list[msg.Message]:
    """Some statements of a type about an id: an ordinary one first, then contradictions and lies."""
    if kind in (msg.ReplJob, msg.YourJobs, msg.Move):
        return list(with_body(kind, node, id_))
    if hasattr(kind, "__attrs_attrs__") and kind.__attrs_attrs__[0].name == "id":
        return list(about_a_job(kind, id_))
    return list(about_no_job(kind, id_))


def with_body(kind: type[Any], node: Node, id_: JobId) -> Iterator[msg.Message]:
    """Copies and moves, with the job's own spec and with others."""
    job = node.state.jobs.get(id_)
    specs: list[JobSpec] = [*SPECS] if job is None or job.spec is None else [job.spec, *SPECS]
    if kind is not msg.Move:
        yield from [
            kind(id_, one, at, b"other", f) for one in specs for at in (CTIME, LIE) for f in FACTS
        ]
        return
    numbers = [
        (BOOT, BOOT, 1, 1),
        (LIE, BOOT, LIE, LIE),
        (BOOT, BOOT - 1, 1, 1),
        (0, BOOT + 1, 0, 0),
    ]
    yield from [
        msg.Move(*number, id_, one, CTIME, b"other", expires_in, due_in)
        for one in reversed(specs)
        for number in numbers
        for expires_in, due_in in ((DAY_MS, 0), (0, 0), (LIE, LIE))
    ]


def about_a_job(kind: type[Any], id_: JobId) -> Iterator[msg.Message]:
    if kind in (msg.SetAck, msg.GotAck):
        yield from [kind(id_, *end, expires_in) for end in ENDS for expires_in in (DAY_MS, 0, LIE)]
    elif kind is msg.DelJob:
        yield from [msg.DelJob(id_, *end) for end in ENDS]
    elif kind in (msg.GotJob, msg.Unknown, msg.Kept):
        yield from [kind(id_, boot, clock) for boot in (BOOT, 0, LIE) for clock in (0, LIE)]
    elif kind is msg.Refused:
        yield from [msg.Refused(id_, is_queue_only) for is_queue_only in (True, False)]
    elif kind is msg.Waiting:
        yield from [msg.Waiting(id_, ms) for ms in (500, 0, LIE)]
    elif kind is msg.KeepDummy:
        yield from [msg.KeepDummy(id_, reason) for reason in (Reason.ACKED, Reason.NOREPL)]
    else:
        assert kind in (msg.WillQueue, msg.Have, msg.Queued, msg.Leased, msg.Told, msg.Keep)
        yield from [kind(id_, f) for f in FACTS]


def about_no_job(kind: type[Any], id_: JobId) -> Iterator[msg.Message]:
    if kind in (msg.GotMove, msg.AskMove):
        more: list[tuple[bool, ...]] = [(True,), (False,)] if kind is msg.GotMove else [()]
        boots = [(BOOT, BOOT), (BOOT, 0), (LIE, BOOT)]
        yield from [kind(*both, n, *m) for m in more for both in boots for n in (1, 0, LIE)]
    elif kind is msg.NeedJobs:
        yield from [msg.NeedJobs(queue, n, True) for queue in (b"q", b"other") for n in (1, 0, LIE)]
    elif kind is msg.Heal:
        yield from [msg.Heal(boot, n) for boot in (BOOT, 0, LIE) for n in (1, 0, LIE)]
    elif kind in (msg.Walk, msg.Walked):
        yield from [kind(n) for n in (1, 0, LIE)]
    elif kind is msg.Pause:
        yield from [msg.Pause(b"q", stamp, who, 255) for stamp in (0, LIE) for who in (B, STRANGER)]
    elif kind is msg.Purge:
        yield from [msg.Purge(who, LIE, n, b"q") for who in (B, STRANGER) for n in (1, 0)]
    elif kind is msg.Question:
        yield from [
            msg.Question(1, word, b"q", ids, numbers)
            for word in (*range(1, 14), 0, LIE)
            for ids, numbers in (((id_,), (500,)), ((id_, id_), (LIE, 1)), ((), ()))
        ]
    elif kind is msg.Publish:
        yield from [msg.Publish(name, {b"k": b"v"}, b"") for name in (b"q", b"", b"x" * 2_000)]
    elif kind is msg.Subscribed:
        yield from [
            msg.Subscribed(word, b"q", count, is_anew)
            for word in (0, 1, 2, LIE)
            for count in (1, LIE, 0)
            for is_anew in (True, False)
        ]
    else:
        assert kind is msg.Answer, f"no statements for {kind.__name__}"
        yield from [
            msg.Answer(n, numbers) for n in (1, 2, 0) for numbers in ((1,), (LIE,) * 11, ())
        ]


def cells() -> list[Any]:
    return [
        pytest.param(
            kind,
            state,
            id=f"{kind.__name__}-{state}",
        )
        for kind in wire.MESSAGE_TYPES
        for state in STATES
    ]


def live_on(node: Node, id_: JobId) -> int:
    """Let clients and time do what they do; how often the id was handed out."""
    handed_out = 0
    for ms in (0, 600, 25_000):
        node.advance(ms)
        handed_out += sum(each.id == id_ for each in node.get(b"q", b"", b"dead-letters", count=9))
    node.do(cmd.Show(id_), client=OTHER)
    return handed_out


@pytest.mark.parametrize(("kind", "state"), cells())
def test_a_known_sender_is_harmless_whatever_it_says(kind: type[Any], state: str) -> None:
    for sender in (B, C):
        sample, sample_id = node_with(state, VIEW)
        for number, _ in enumerate(statements(kind, sample, sample_id)):
            node, id_ = node_with(state, VIEW)
            assert id_ == sample_id
            statement = statements(kind, node, id_)[number]
            node.hear(sender, statement, statement)  # and once more
            handed_out = live_on(node, id_)
            if state in ONCE or (state == "none" and kind is msg.Move):
                assert handed_out + (state == "spent") <= 1, f"{statement}: twice"
            node.hear(sender, statement)
            node.advance(1_000)


def _fields(job: Job) -> dict[str, object]:
    """What it says, without its neighbours in the agenda."""
    return attrs.asdict(
        job, filter=lambda field, _: field.name not in ("bucket", "ahead", "behind")
    )


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("sender", [D, STRANGER, A], ids=["forgotten", "unknown", "itself"])
def test_a_sender_that_is_no_other_member_changes_nothing(state: str, sender: NodeId) -> None:
    for kind in wire.MESSAGE_TYPES:
        node, id_ = node_with(state, VIEW)
        before = _fields(node.state.jobs[id_]) if id_ in node.state.jobs else None
        node.hear(sender, *statements(kind, node, id_))
        assert (node.said, node.records, node.replies) == ([], [], [])
        assert state_name(node, id_) == state
        if before is not None:
            assert _fields(node.state.jobs[id_]) == before


@pytest.mark.parametrize("state", STATES)
def test_a_statement_of_an_earlier_boot_changes_nothing(state: str) -> None:
    """M17: a connection of a process that is gone."""
    for kind in wire.MESSAGE_TYPES:
        node, id_ = node_with(state, VIEW)
        node.hear(B, *statements(kind, node, id_), boot=BOOT - 1)
        assert (node.said, node.records, node.replies) == ([], [], [])
        assert state_name(node, id_) == state


@pytest.mark.parametrize("state", STATES)
def test_a_leaving_node_takes_everything_without_harm(state: str) -> None:
    for kind in wire.MESSAGE_TYPES:
        node, id_ = node_with(state, VIEW)
        node.see(view(up=(B, C), forgotten=(D,), leaving=(A,)))
        node.hear(B, *statements(kind, node, id_))
        live_on(node, id_)


@pytest.mark.parametrize("kind", wire.MESSAGE_TYPES, ids=lambda kind: kind.__name__)
def test_an_answer_to_an_answer_dies_out(kind: type[Any]) -> None:
    """S17: two nodes that answer each other fall silent, whatever one of them began with."""
    for state in STATES:
        one, id_ = node_with(state, VIEW)
        first = statements(kind, one, id_)[0]
        two, _ = node_with(
            "queued" if state in ("none", "active") else "active", view(B, up=(A, C))
        )
        one.hear(B, first)
        for _ in range(12):
            said, one.said = [each for to, each in one.said if to == B], []
            two.hear(A, *said)
            back, two.said = [each for to, each in two.said if to == A], []
            one.hear(B, *back)
            if not said and not back:
                break
        else:
            raise AssertionError(f"{state}: still talking, {said} {back}")
