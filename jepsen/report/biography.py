"""Biography: everything that touched one job, in order of time: clients, faults, purges, snapshots.

Made for the few jobs that a checker complains about, in one pass over the events whatever their number. A get stands
where it was answered, with the instant it was asked; anything else stands twice, when sent and when answered, because
what lies between is where races hide.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import attrs

from jepsen.checkers.base import Finding, Run
from jepsen.history import OBSERVER, OK, Op, pair
from jepsen.report.lanes import Window, windows
from jepsen.report.markup import element, text_element
from jepsen.report.measures import jobs_of

CLIENT: Final = "client"
FAULT: Final = "fault"
SNAPSHOT: Final = "snapshot"
FINDING: Final = "finding"

ADD_DEFAULTS: Final[Mapping[str, object]] = {
    "retry": -1,
    "replicate": 0,
    "delay": 0,
    "ttl": 0,
    "limit": 0,
    "dead": "",
    "async": False,
}
# Lines of one biography; a job that was delivered for ever keeps its first and its last ones.
EVENTS_MAX: Final = 200


@attrs.frozen
class Event:
    """One line of a biography: `at` ns, `kind` CLIENT, FAULT, SNAPSHOT or FINDING, `index` of the op or -1."""

    at: int
    kind: str
    node: str
    text: str
    index: int = -1


@attrs.frozen
class Biography:
    """A job's life. `job` is "" where no reply ever told its id, `v` -1 where no add is known."""

    job: str
    v: int
    events: Sequence[Event]
    left_out: int = 0


@attrs.define(eq=False)
class _Life:
    """What is being gathered about one job."""

    v: int = -1
    ids: set[str] = attrs.field(factory=set)
    queues: set[str] = attrs.field(factory=set)
    events: list[Event] = attrs.field(factory=list)
    # nodes whose last snapshot showed the job un-acked
    held_by: set[str] = attrs.field(factory=set)


def offending(findings: Iterable[Finding], limit: int) -> list[tuple[str, int]]:
    """The first `limit` different jobs of findings, as (job, v), for `biographies`."""
    named = ((each.job, each.v) for each in findings if each.job or each.v >= 0)
    return list(dict.fromkeys(named))[:limit]


def biographies(
    run: Run, wanted: Sequence[tuple[str, int]], findings: Iterable[Finding] = ()
) -> list[Biography]:
    """The lives of the wanted jobs, in that order; findings about them become lines too.

    A wanted job is (job id, v), either may be unknown ("" or -1). Two wanted ones that turn out to be the same job
    give one biography.
    """
    pairs = list(pair(run.ops))
    lives = resolve(pairs, wanted)
    by_v = {life.v: life for life in lives if life.v >= 0}
    by_id = {job: life for life in lives for job in life.ids}
    for invoke, completion in pairs:
        if invoke.process == OBSERVER:
            if completion is not None and completion.type == OK:
                note_snapshot(lives, completion)
        elif invoke.f == "purge":
            for life in lives:
                if invoke.value.get("queue") in life.queues:
                    note_call(life, invoke, completion, "")
        elif invoke.f == "get":
            note_deliveries(by_v, by_id, invoke, completion)
        else:
            for life, detail in touched(by_v, by_id, invoke):
                note_call(life, invoke, completion, detail)
    for finding in findings:
        found = by_id.get(finding.job) or by_v.get(finding.v)
        if found is not None:
            text = f"{finding.checker}: {finding.kind}: {finding.text}"
            found.events.append(Event(finding.at, FINDING, "", text))
    faults = windows(run)
    return [finish(life, faults) for life in lives]


def resolve(
    pairs: Sequence[tuple[Op, Op | None]], wanted: Sequence[tuple[str, int]]
) -> list[_Life]:
    """A life for each wanted job, with all that replies tell about which id belongs to which value."""
    vs = {v for _, v in wanted if v >= 0}
    ids = {job for job, _ in wanted if job}
    known: dict[int, set[str]] = {}
    for job, v in wanted:
        if v >= 0:
            known.setdefault(v, set()).update([job] if job else [])
    value_of = {job: v for job, v in wanted if job and v >= 0}
    queues: dict[int, set[str]] = {}
    for invoke, completion in pairs:
        if invoke.f == "add":
            v = invoke.value["v"]
            job = str(completion.value.get("id") or "") if completion else ""
            if v in vs or job in ids:
                queues.setdefault(v, set()).add(invoke.value.get("queue", ""))
                link(known, value_of, job, v)
        elif invoke.f == "get":
            for got in jobs_of(completion):
                if got["id"] in ids or (got["v"] in vs and got["v"] >= 0):
                    link(known, value_of, got["id"], got["v"])
    lives: dict[object, _Life] = {}
    for job, v in wanted:
        v = v if v >= 0 else value_of.get(job, -1)
        found = known.get(v, set()) | ({job} if job else set())
        life = lives.setdefault(v if v >= 0 else job, _Life(v, queues=queues.get(v, set())))
        life.ids |= found
    return list(lives.values())


def link(known: dict[int, set[str]], value_of: dict[str, int], job: str, v: int) -> None:
    """Note that this id and this value are one job, as far as both are known."""
    if v >= 0:
        ids = known.setdefault(v, set())
        if job:
            ids.add(job)
            value_of[job] = v


def touched(
    by_v: Mapping[int, _Life], by_id: Mapping[str, _Life], invoke: Op
) -> list[tuple[_Life, str]]:
    """The wanted jobs that a call names, by id or by value, each once."""
    value = invoke.value
    if invoke.f == "add":
        life = by_v.get(value["v"])
        return [(life, describe_add(value))] if life else []
    named = [by_id.get(job) for job in value.get("ids") or ()]
    named += [by_v.get(v) for v in value.get("vs") or ()]
    found = {id(life): life for life in named if life is not None}
    return [(life, describe_order(value)) for life in found.values()]


def note_call(life: _Life, invoke: Op, completion: Op | None, detail: str) -> None:
    """Two lines: the call as it was sent, and its answer."""
    who = f"{invoke.f} by process {invoke.process}"
    sent = f"{who}: {detail}" if detail else who
    life.events.append(Event(invoke.time, CLIENT, invoke.node, sent, invoke.index))
    if completion is None:
        return
    told = " ".join(
        f"{name} {completion.value[name]}"
        for name in ("id", "count", "seconds")
        if name in completion.value
    )
    error = completion.error
    text = " ".join(each for each in (who, "→", completion.type, told, error) if each)
    life.events.append(Event(completion.time, CLIENT, completion.node, text, completion.index))


def note_deliveries(
    by_v: Mapping[int, _Life], by_id: Mapping[str, _Life], invoke: Op, completion: Op | None
) -> None:
    """One line for each delivery of a wanted job."""
    for job in jobs_of(completion):
        life = by_id.get(job["id"]) or by_v.get(job["v"])
        if life is None or completion is None:
            continue
        asked = f"asked at {invoke.time / 1e9:.3f} s"
        counters = f"nacks {job.get('nacks', 0)}, extra deliveries {job.get('extra', 0)}"
        raw = f", body {job['raw']}" if "raw" in job else ""
        text = f"DELIVERED to process {invoke.process} ({asked}), queue {job['queue']}, {counters}{raw}"
        life.events.append(Event(completion.time, CLIENT, invoke.node, text, completion.index))


def note_snapshot(lives: Sequence[_Life], completion: Op) -> None:
    """A line for each wanted job that this node shows for the first time, or shows no longer."""
    shown = completion.value.get("ids")
    if shown is None:
        return
    present = set(shown)
    for life in lives:
        holds = not present.isdisjoint(life.ids)
        if holds == (completion.node in life.held_by):
            continue
        if holds:
            life.held_by.add(completion.node)
        else:
            life.held_by.discard(completion.node)
        text = "snapshot shows it, un-acked" if holds else "snapshot shows it no longer"
        life.events.append(
            Event(completion.time, SNAPSHOT, completion.node, text, completion.index)
        )


def finish(life: _Life, faults: Sequence[Window]) -> Biography:
    """The life in order of time, with the faults that overlap it; the middle left out when it is too long."""
    events = list(life.events)
    if events:
        born = min(each.at for each in events)
        died = max(each.at for each in events)
        for fault in faults:
            if fault.start <= died and fault.end >= born:
                events.append(Event(fault.start, FAULT, "", f"starts: {fault.text}"))
                events.append(Event(fault.end, FAULT, "", f"ends: {fault.kind}"))
    events.sort(key=lambda event: (event.at, event.index))
    left_out = max(0, len(events) - EVENTS_MAX)
    if left_out:
        events = events[: EVENTS_MAX // 2] + events[-EVENTS_MAX // 2 :]
    return Biography(" ".join(sorted(life.ids)), life.v, events, left_out)


def describe_add(value: Mapping[str, Any]) -> str:
    """The value and the queue of an add, and those arguments that differ from the defaults."""
    shown = [f"v {value['v']}", f"queue {value.get('queue', '')}"]
    shown += [
        f"{k} {value[k]}" for k, usual in ADD_DEFAULTS.items() if value.get(k, usual) != usual
    ]
    return ", ".join(shown)


def describe_order(value: Mapping[str, Any]) -> str:
    """How many other jobs an order named, and its delay."""
    others = len(value.get("ids") or value.get("vs") or ()) - 1
    parts = [f"with {others} others"] if others > 0 else []
    if value.get("delay"):
        parts.append(f"delay {value['delay']} s")
    return ", ".join(parts)


def as_html(biography: Biography) -> str:
    """A biography as a table that can be folded away."""
    rows = [
        element(
            "tr",
            text_element("td", f"{event.at / 1e9:.6f}", class_="number"),
            text_element("td", event.node),
            text_element("td", event.text),
            class_=event.kind,
        )
        for event in biography.events
    ]
    if biography.left_out:
        cell = text_element("td", f"… {biography.left_out} lines left out", colspan=3)
        rows.insert(EVENTS_MAX // 2, element("tr", cell))
    table = element("table", *rows, class_="biography") if rows else text_element("p", "No event.")
    word = str(biography.v) if biography.v >= 0 else biography.job.partition(" ")[0]
    around = text_element("a", "timeline", href=f"timeline.html#{urllib.parse.quote(word)}")
    return element("details", text_element("summary", headline(biography)), around, table)


def headline(biography: Biography) -> str:
    """Which job this is."""
    value = f"value {biography.v}" if biography.v >= 0 else "value unknown"
    return f"{value}  job {biography.job or 'without known id'}  {len(biography.events)} events"
