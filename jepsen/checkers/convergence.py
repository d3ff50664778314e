"""Convergence: after a heal all nodes soon see the same members, and know which jobs are over."""

from __future__ import annotations

from jepsen.checkers.base import MS, Finding, Result
from jepsen.checkers.faults import FOREVER
from jepsen.checkers.lives import Index
from jepsen.checkers.snapshots import Round

NAME = "convergence"
CLAIM = "After a heal all nodes have one view of the cluster within seconds, and have heard of every end soon after."


def check(index: Index) -> Result | None:
    """Views in each round that has been calm for `views_ms`; ends in each snapshot after `facts_ms` of calm (C7)."""
    looks = [
        each for each in index.rounds if any("members" in s.value for s in each.looks.values())
    ]
    if not looks:
        return None
    views = index.bounds.views_ms * MS
    begun = next((at for at, name in index.faults.phases if name == "main"), 0)
    calm = [
        each
        for each in looks
        if each.begun_at >= begun and index.faults.is_calm(each.begun_at - views, each.ended_at)
    ]
    findings = [found for each in calm if (found := _view(index, each)) is not None]
    findings += _unheard(index)
    numbers = {"rounds_judged": len(calm), **_agreed_after(index, looks)}
    if findings:
        return Result(NAME, False, CLAIM, tuple(findings), numbers)
    if not calm:
        return Result(NAME, None, CLAIM, (), numbers, ("no snapshot after a heal and the bound",))
    return Result(NAME, True, CLAIM, (), numbers)


def _members(index: Index, each: Round) -> dict[str, tuple[str, ...]]:
    """What each node of the cluster said about its members."""
    out = {*index.faults.outsiders(each.begun_at), *index.meta.abandoned}
    return {
        node: tuple(sorted(look.value["members"]))
        for node, look in each.looks.items()
        if node not in out and "members" in look.value
    }


def _view(index: Index, each: Round) -> Finding | None:
    """A node of this round that sees a failed member, or other members than the first node."""
    members = _members(index, each)
    for node in members:
        look = each.looks[node]
        if failing := look.value.get("failing"):
            text = f"{node} holds {list(failing)} for failing, {index.bounds.views_ms} ms or more into a calm"
            return Finding(NAME, "failing", text, at=look.at)
    views: dict[tuple[str, ...], str] = {}
    for node, seen in members.items():
        views.setdefault(seen, node)
    if len(views) > 1:
        sizes = ", ".join(f"{node}: {len(seen)} members" for seen, node in views.items())
        text = f"{index.bounds.views_ms} ms or more into a calm views differ: {sizes}"
        return Finding(NAME, "views-differ", text, at=each.ended_at)
    return None


def _agreed_after(index: Index, looks: list[Round]) -> dict[str, int]:
    """How long after the last heal the first round with one view came, in ms."""
    healed = index.faults.healed_at
    if not index.faults.all or healed == FOREVER:
        return {}
    for each in looks:
        if each.begun_at >= healed and _view(index, each) is None:
            return {"views_agreed_ms": (each.ended_at - healed) // MS}
    return {}


def _unheard(index: Index) -> list[Finding]:
    """Nodes that still have a job un-acked when they must have heard of its end; one finding a job."""
    findings: dict[int, Finding] = {}
    for life, look in index.sightings:
        if life.v in findings or look.node in index.faults.outsiders(look.at):
            continue
        if look.asked_at > (deadline := index.settled_by(life, look.at)):
            text = f"{look.node} has it un-acked {(look.at - deadline) // MS} ms after it had to know its end"
            findings[life.v] = Finding(NAME, "end-unheard", text, life.job, life.v, look.at)
    return list(findings.values())
