"""Views: what each page shows, as values for its template; the questions behind it, and nothing of HTTP or HTML.

A page is a function of the watch and of what the address says. Nodes that don't answer are named, never waited for
longer than a node's time limit, and never an error of the page.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import attrs
import trio

from disque.web import picture, text
from disque.web.node import UnreachableError
from disque.web.replies import size_of
from disque.web.spark import Spark, spark

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from disque.web.node import Node, Word
    from disque.web.picture import QueueRow, Totals
    from disque.web.replies import Reply
    from disque.web.watch import Member, Watch

ROWS_MAX = 200  # queues of an overview
PEEKED_MAX = 20  # jobs of a queue, a node
LETTERS_MAX = 50  # dead letters of a page
LISTED_BYTES = 256  # of a body in a list
WORK_MAX = 100  # jobs in work, a node
SCAN_CALLS_MAX = 50  # each looks at up to ten times as many copies as it may give
OUTCOME_MS = 200  # for the other nodes to say what became of a job
PAUSES = ("none", "in", "out", "all")

Context = dict[str, Any]


@attrs.frozen
class Tile:
    """A figure with its last minutes."""

    name: str
    value: str
    spark: Spark
    help: str = ""
    href: str = ""


@attrs.frozen
class Listed:
    """A queue in a list."""

    row: QueueRow
    rate_in: float
    rate_out: float


async def ask_all(
    members: Sequence[Member], *commands: tuple[Word, ...]
) -> list[tuple[Member, list[Reply] | str]]:
    """What each node says to the same questions, in order; in place of replies, why it says nothing."""
    answers: dict[str, list[Reply] | str] = {}

    async def ask(member: Member) -> None:
        try:
            answers[member.id] = await member.node.ask(*commands)
        except UnreachableError as error:
            answers[member.id] = str(error)

    async with trio.open_nursery() as nursery:
        for member in members:
            nursery.start_soon(ask, member)
    return [(member, answers[member.id]) for member in members]


def common(watch: Watch) -> Context:
    """What every page tells: how much of the cluster it shows."""
    return {
        "members": list(watch.members.values()),
        "up": watch.up,
        "down": [member for member in watch.members.values() if not member.is_up],
        "own_trouble": watch.own_trouble,
        "own_id": next((each.id for each in watch.members.values() if each.is_own), ""),
    }


# The overview


async def overview(watch: Watch, *, sort: str, find: str) -> Context:
    """Sums, nodes and queues of the whole cluster."""
    await watch.look()
    queues = picture.sum_queues([now for _, now in watch.steps])
    rates = picture.queue_rates(watch.steps)
    listed = [Listed(row, *rates.get(row.name, (0.0, 0.0))) for row in queues.values()]
    if find:
        listed = [each for each in listed if find.lower() in text.shown(each.row.name).lower()]
    sort = sort if sort in SORTS else "length"
    listed.sort(key=lambda each: (-SORTS[sort](each), each.row.name))
    return {
        **common(watch),
        "tiles": tiles(watch.history, watch.now),
        "queues": listed[:ROWS_MAX],
        "found": len(listed),
        "known": len(queues),
        "is_complete": all(now.is_complete for _, now in watch.steps),
        "sort": sort,
        "find": find,
    }


# By what queues can be sorted; the largest first
SORTS: Mapping[str, Callable[[Listed], float]] = {
    "length": lambda each: each.row.length,
    "oldest": lambda each: -1 if each.row.oldest_s is None else each.row.oldest_s,
    "in": lambda each: each.rate_in,
    "out": lambda each: each.rate_out,
    "name": lambda _: 0,
}


def tiles(history: Sequence[Totals], now: Totals) -> list[Tile]:
    """The sums, each with its line."""

    def tile(name: str, field: str, spell: Callable[[float], str], help_: str) -> Tile:
        numbers = [getattr(each, field) for each in history]
        href = "/dead" if field == "dead" else ""
        return Tile(name, spell(getattr(now, field)), spark(numbers), help_, href)

    return [
        tile("Waiting", "waiting", text.number, "queued, to be fetched"),
        tile("Delivered", "delivered", text.number, "fetched, not yet acknowledged"),
        tile("Delayed", "delayed", text.number, "not before their time"),
        tile("Dead letters", "dead", text.number, "in the default queue of dead letters"),
        tile("Added/s", "added_rate", text.speed, "accepted from producers"),
        tile("Delivered/s", "delivered_rate", text.speed, "handed out to workers"),
        tile("Acknowledged/s", "acked_rate", text.speed, "settled by workers"),
    ]


# A queue


async def queue(watch: Watch, name: bytes) -> Context:
    """One queue: its state in the cluster, its last minutes, the jobs that come next."""
    await watch.look()
    watched = await watch.look_at_queue(name)
    answers = await ask_all(watch.up, ("QPEEK", name, PEEKED_MAX))
    history = list(watched.history)
    lengths, came, went = ([each[at] for each in history] for at in range(3))
    return {
        **common(watch),
        "name": name,
        "row": watched.row,
        "answered": watched.answered,
        "silent": watched.silent,
        "trouble": watched.trouble,
        "tiles": [
            Tile("Waiting", text.number(_last(lengths)), spark(lengths)),
            Tile("In/s", text.speed(_last(came)), spark(came)),
            Tile("Out/s", text.speed(_last(went)), spark(went)),
        ],
        "waiting": [(member, _peeked(replies)) for member, replies in answers],
        "pauses": PAUSES,
    }


def _last(numbers: Sequence[float]) -> float:
    return numbers[-1] if numbers else 0


def _peeked(replies: list[Reply] | str) -> list[tuple[str, bytes, int]] | str:
    """QPEEK's jobs as (id, beginning of the body, size of the body), or what is wrong."""
    if isinstance(replies, str):
        return replies
    jobs = replies[0]
    if not isinstance(jobs, list):
        return picture.trouble_of(jobs) or ""
    return [
        (picture.text_of(job[1]), job[2][:LISTED_BYTES], size_of(job[2]))
        for job in jobs
        if isinstance(job, list) and len(job) >= 3 and isinstance(job[2], bytes)
    ]


def as_row(reply: Reply) -> Mapping[str, Reply]:
    """What SHOW tells of a job as far as a list shows it: of hundreds only the beginnings of bodies are kept."""
    facts = picture.facts(reply)
    body = facts.get("body")
    if isinstance(body, bytes):
        facts["body"] = body[:LISTED_BYTES]
    facts.pop("headers", None)
    return facts


# Jobs of a queue that don't wait in it


async def work(watch: Watch, name: bytes) -> Context:
    """The jobs of a queue that have been fetched and not settled, and those that wait for their time."""
    await watch.look()
    rows: list[tuple[Member, str, Mapping[str, Reply]]] = []
    troubles: list[tuple[Member, str]] = []
    is_complete = True

    async def look_at(member: Member) -> None:
        nonlocal is_complete
        for state in ("delivered", "delayed"):
            try:
                found, is_all = await _scan(member.node, name, state)
            except UnreachableError as error:
                troubles.append((member, str(error)))
                return
            rows.extend((member, state, facts) for facts in found)
            is_complete &= is_all

    async with trio.open_nursery() as nursery:
        for member in watch.up:
            nursery.start_soon(look_at, member)
    rows.sort(key=lambda row: picture.number_of(row[2].get("next-requeue-within")))
    return {
        **common(watch),
        "name": name,
        "rows": rows,
        "troubles": troubles,
        "is_complete": is_complete,
    }


async def _scan(node: Node, name: bytes, state: str) -> tuple[list[Mapping[str, Reply]], bool]:
    """Up to WORK_MAX jobs of a queue in this state, as SHOW tells them, and whether that is all of them."""
    found: list[Mapping[str, Reply]] = []
    cursor: Reply = b"0"
    for _ in range(SCAN_CALLS_MAX):
        words = (
            "JSCAN",
            picture.text_of(cursor),
            "COUNT",
            WORK_MAX,
            "QUEUE",
            name,
            "STATE",
            state,
            "REPLY",
            "ALL",
        )
        (reply,) = await node.ask(words)
        trouble = picture.trouble_of(reply)
        if trouble is not None:
            raise UnreachableError(trouble)
        cursor, jobs = reply if isinstance(reply, list) and len(reply) == 2 else (b"0", [])
        told = jobs if isinstance(jobs, list) else []
        found += [row for each in told if (row := as_row(each))]
        if cursor == b"0" or len(found) >= WORK_MAX:
            break
    return found[:WORK_MAX], cursor == b"0" and len(found) <= WORK_MAX


# A job


async def job(watch: Watch, id_: str, form: str) -> Context:
    """One job as each node knows it, and its story."""
    await watch.look()
    answers = await ask_all(list(watch.members.values()), ("SHOW", id_))
    copies = [
        (member, said)
        for member, replies in answers
        if not isinstance(replies, str) and (said := picture.facts(replies[0]))
    ]
    known = {member.id for member, _ in copies}
    facts = _best([said for _, said in copies])
    context = {
        **common(watch),
        "id": id_,
        "copies": copies,
        "without": [(m, _why_not(r)) for m, r in answers if m.id not in known],
        "facts": facts,
        "outcome": "" if facts else await _outcome(watch, id_),
        "names": {member.id: f"{member.host}:{member.port}" for member, _ in answers},
    }
    if facts:
        body = facts.get("body")
        if isinstance(body, bytes):
            context["body_bytes"] = size_of(body)
            context["preview"] = text.preview(body, size_of(body), form)
        context["story"] = story(facts, time.time())
        context["headers"] = _header_pairs(facts.get("headers"))
    return context


async def holder_that_knows_most(watch: Watch, id_: str) -> Node:
    """Whom to tell to queue a job: a holder that hasn't heard of the last hand-out would take it back again."""
    answers = await ask_all(watch.up, ("SHOW", id_))
    deliveries = {
        member.id: picture.number_of(picture.pairs(replies[0]).get("deliveries"))
        for member, replies in answers
        if not isinstance(replies, str) and isinstance(replies[0], list)
    }
    best = max(deliveries, key=lambda each: deliveries[each], default="")
    return watch.members[best].node if best else watch.own


_STATE_RANK = ("acked", "wait-repl", "active", "queued")


def _best(said: Sequence[Mapping[str, Reply]]) -> Mapping[str, Reply]:
    """Of what nodes say of a job, that of the node which queues it, or knows most."""

    def rank(facts: Mapping[str, Reply]) -> tuple[int, int]:
        state = picture.text_of(facts.get("state"))
        place = _STATE_RANK.index(state) if state in _STATE_RANK else -1
        return place, picture.number_of(facts.get("deliveries"))

    return max(said, key=rank, default={})


def _why_not(replies: list[Reply] | str) -> str:
    if isinstance(replies, str):
        return replies
    return picture.trouble_of(replies[0]) or "has no copy"


async def _outcome(watch: Watch, id_: str) -> str:
    """What became of a job that no node has: WAITJOB's word, or what is wrong with the id."""
    try:
        (reply,) = await watch.own.ask(("WAITJOB", id_, "TIMEOUT", OUTCOME_MS))
    except UnreachableError as error:
        return str(error)
    if isinstance(reply, list) and isinstance(reply[0], list) and len(reply[0]) == 2:
        return picture.text_of(reply[0][1])
    return picture.trouble_of(reply) or ""


def _header_pairs(reply: Reply) -> list[tuple[bytes, bytes]]:
    words = [each for each in reply if isinstance(each, bytes)] if isinstance(reply, list) else []
    return list(zip(words[::2], words[1::2], strict=False))


def story(facts: Mapping[str, Reply], now_s: float) -> list[str]:
    """What happened to a job, and what comes next, in sentences."""

    def count(name: str) -> int:
        return picture.number_of(facts.get(name))

    state = picture.text_of(facts.get("state"))
    added_s = count("ctime") / 1e9
    lines = []
    if added_s:
        lines.append(f"Added {text.moment(added_s)}, {text.duration(now_s - added_s)} ago.")
    deliveries, nacks, lost = count("deliveries"), count("nacks"), count("additional-deliveries")
    if deliveries:
        line = f"Handed out {_times(deliveries)}"
        line += f", given back {_times(nacks)}" if nacks else ""
        line += f", came back {_times(lost)} after its RETRY time" if lost else ""
        lines.append(line + ".")
    elif state in ("queued", "active"):
        lines.append("Never handed out, as far as is known.")
    reason = picture.text_of(facts.get("reason"))
    if reason:
        how = {"nack": "was given back", "retry": "was not acknowledged in time"}.get(
            reason, reason
        )
        lines.append(f"A dead letter: it had been handed out as often as it may, and {how}.")
    lines.append(_present(facts, state))
    if state != "acked":
        lines.append(f"Expires in {text.duration(count('ttl'))}.")
    return lines


def _present(facts: Mapping[str, Reply], state: str) -> str:
    due_ms = facts.get("next-requeue-within")
    if state == "queued":
        return "Waits in its queue to be fetched."
    if state == "wait-repl":
        return "Waits for its copies: the producer hasn't got its id yet."
    if state == "acked":
        return "Is settled; its copies are being collected."
    if not isinstance(due_ms, int):
        return "Is not queued, and will not be by itself."
    due = text.duration(due_ms / 1000) if due_ms >= 1000 else "a moment"
    was_fetched = picture.number_of(facts.get("deliveries")) > 0
    now = "Is being worked on, or delayed" if was_fetched else "Is delayed"
    return f"{now}: queued in {due} unless it is settled before."


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{text.number(count)} times")


# Dead letters


async def dead_letters(watch: Watch, name: bytes | None) -> Context:
    """The dead letters in a queue, those that would be fetched first."""
    await watch.look()
    chosen = watch.dead_queue if name is None else name
    answers = await ask_all(watch.up, ("QPEEK", chosen, LETTERS_MAX))
    letters: list[tuple[Member, Mapping[str, Reply]]] = []
    troubles = [(member, replies) for member, replies in answers if isinstance(replies, str)]
    for member, replies in answers:
        peeked = _peeked(replies)
        ids = [each[0] for each in peeked] if isinstance(peeked, list) else []
        ids = ids[: LETTERS_MAX - len(letters)]
        if not ids:
            continue
        ((_, shown),) = await ask_all([member], *[("SHOW", id_) for id_ in ids])
        if isinstance(shown, str):
            troubles.append((member, shown))
        else:
            letters += [(member, facts) for facts in map(as_row, shown) if facts]
    watched = await watch.look_at_queue(chosen)
    return {
        **common(watch),
        "name": chosen,
        "length": watched.row.length if watched.row else 0,
        "letters": letters,
        "troubles": troubles,
    }


# Nodes


async def nodes(watch: Watch) -> Context:
    """Every node, and how each sees the others."""
    await watch.look()
    return common(watch)
