"""Telling: messages, replies and states in the few words of a transcript.

Nodes are letters, jobs j1, j2 ... in order of ADDJOB. Of a message's facts only those that aren't empty are told: H
holders, T told, n hand-outs, nacks, leases with what is left of them, a DELAY, whether the sender has it queued. Times
are remaining durations, as on the wire. Claims, covered stamps, boots and expiry aren't told.
"""

from __future__ import annotations

from collections.abc import Iterable

from cluster.nodeid import NodeId
from disque.core import asking
from disque.core import messages as msg
from disque.core.job import JobState, Reason
from disque.core.jobid import JobId
from disque.core.ready import Delivery, Failure, NilArray, Reply, Status
from disque.core.state import State
from tests.world import World

REASONS = {
    Reason.NOREPL: "norepl",
    Reason.CANCELLED: "cancelled",
    Reason.FAST_ACKED: "fast-acked",
    Reason.DEAD_ACKED: "dead-acked",
    Reason.ACKED: "acked",
}
QUESTIONS = {
    asking.LENGTH: "length", asking.STATUS: "status", asking.HOLDERS: "holders", asking.CANCEL: "cancel",
    asking.PURGE: "purge", asking.OUTCOMES: "outcomes", asking.NACK: "nack", asking.ENQUEUE: "enqueue",
    asking.DEQUEUE: "dequeue", asking.WORKING: "working", asking.REVIVE: "revive",
}  # fmt: skip
UNTOLD = (msg.Walk, msg.Walked)  # the pacing of a walk


def duration(ms: int) -> str:
    """500ms, 1.5s, 2m, 1h, 1d: the largest unit that needs no more than one decimal."""
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if ms >= size and not ms * 10 % size:
            return f"{ms / size:g}{unit}"
    return f"{ms}ms"


def letters(nodes: Iterable[NodeId]) -> str:
    """The names of these nodes, run together."""
    return "".join(node[0] for node in nodes)


def job_name(world: World, job: bytes) -> str:
    """j1 and so on; an id that no ADDJOB of this world made stands for itself."""
    return next((name for name, id_ in world.jobs.items() if id_ == job), job.decode())


def tell_message(world: World, message: msg.Message) -> str | None:
    """A message in short, None if it isn't worth a word."""
    if isinstance(message, UNTOLD):
        return None
    words = [type(message).__name__.upper()]
    match message:
        case msg.NeedJobs() | msg.Pause():
            words += [message.queue.decode()]
        case msg.Move():
            words += [job_name(world, message.id), f"#{message.n}"]
        case msg.GotMove():
            words += [f"#{message.n}", "yes" if message.is_taken else "no"]
        case msg.Question():
            words += [QUESTIONS.get(message.kind, f"kind {message.kind}"), message.queue.decode()]
            words += [job_name(world, job) for job in message.ids]
        case msg.Answer():
            words += [str(number) for number in message.numbers]
        case msg.AskMove():
            words += [f"#{message.n}"]
        case msg.Heal():
            pass
        case _:
            words += [job_name(world, getattr(message, "id", b"?"))]
    match message:
        case msg.Waiting():
            words.append(duration(message.wait_ms))
        case msg.NeedJobs():
            words += [str(message.count), "waiting" if message.has_waiting else ""]
        case msg.Pause():
            words.append(str(message.flags))
        case msg.SetAck() | msg.GotAck() | msg.DelJob():
            words.append(REASONS[message.reason])
            words += [f"H={letters(message.holders) or '-'}", f"T={letters(message.told) or '-'}"]
    facts: msg.Facts | None = getattr(message, "facts", None)
    if facts is not None:
        words += _tell_facts(facts, has_queue=isinstance(message, msg.Told))
    return " ".join(filter(None, words))


def _tell_facts(facts: msg.Facts, *, has_queue: bool) -> list[str]:
    words = [f"H={letters(facts.holders)}"]
    if facts.dispatches:
        words.append(f"n={sum(facts.dispatches.values())}")
    if facts.nacks:
        words.append(f"nacks={sum(facts.nacks.values())}")
    for node, (stamp, rest) in facts.leases.items():
        if stamp > facts.covered.get(node, -1):
            words.append(f"lease={node[0]}:{duration(rest)}")
    if facts.due_in:
        words.append(f"delay={duration(facts.due_in)}")
    if has_queue and facts.is_queued:
        words.append("queued")
    return words


def tell_reply(world: World, reply: Reply) -> str:
    """A reply as a client would see it."""
    match reply:
        case Status():
            return job_name(world, reply.text)
        case Failure():
            return f"{reply.code} {reply.text}"
        case NilArray() | None:
            return "nil"
        case Delivery():
            words = [reply.queue.decode(), job_name(world, reply.id), reply.body.decode()]
            if reply.nacks is not None:
                words += [f"nacks={reply.nacks}", f"additional={reply.additional}"]
            return "[" + " ".join(words) + "]"
        case list() if reply and reply[0] == b"id":
            return _tell_shown(dict(zip(reply[::2], reply[1::2], strict=True)))
        case list():
            return " ".join(tell_reply(world, each) for each in reply)
        case bytes():
            return job_name(world, reply)
        case _:
            return tell_plain(reply)


def _tell_shown(shown: dict[Reply, Reply]) -> str:
    """What SHOW says that transcripts want to know."""
    fields = (b"state", b"repl", b"nacks", b"additional-deliveries", b"next-requeue-within")
    words = [f"{field.decode()}={tell_plain(shown[field])}" for field in fields]
    for word, field in (("H", b"nodes-delivered"), ("C", b"nodes-confirmed")):
        nodes = shown[field]
        assert isinstance(nodes, list)
        words.append(f"{word}={''.join(tell_plain(node)[0] for node in nodes)}")
    return " ".join(words)


def tell_plain(reply: Reply) -> str:
    """A value without a name of its own."""
    if reply is None:
        return "nil"
    return reply.decode() if isinstance(reply, bytes) else str(reply)


def standing(state: State, job: JobId) -> str:
    """Where a job stands at a node, in a word; empty if the node knows nothing of it."""
    entry = state.jobs.get(job)
    if entry is None:
        if job in state.tombstones:
            return "buried"
        if job in state.long_tombstones:
            return "buried for long"
        return "marked" if job in state.marks else ""
    if entry.reason is not None:
        return ("dummy-" if entry.is_dummy else "") + REASONS[entry.reason]
    if entry.state is not JobState.ACTIVE:
        words = {JobState.WAITING: "waits for copies of", JobState.QUEUED: "queued"}
        return words.get(entry.state, "moves")
    if entry.is_kept_out:
        return "spent"
    if entry.lease_end() > state.now_ms:
        return "leased"
    return "delayed" if entry.not_before > state.now_ms else "active"


def change(before: str, after: str) -> str | None:
    """What to say of a job that stood at one place and now stands at another; None: nothing."""
    if not after:
        return "forgot"
    if not before:
        return "stored" if after == "active" else after
    if after == "active":
        return "dequeued" if before == "queued" else None  # a lease or DELAY that ran out
    return after
