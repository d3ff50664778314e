"""Base: what a checker is given and what it answers. Plain values; nothing here decides anything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from jepsen.history import Op

MS = 1_000_000  # ns
S = 1_000_000_000  # ns


def _spans(spans: Iterable[Sequence[int]]) -> tuple[tuple[int, int], ...]:
    return tuple((span[0], span[1]) for span in spans)


def _names(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(names)


@attrs.frozen
class Meta:
    """What a run was, beside its events. Everything is JSON-able, so that `attrs.asdict` goes into test.json."""

    name: str = ""
    workload: str = "queue"
    nemesis: str = "none"
    nodes: tuple[str, ...] = attrs.field(default=(), converter=_names)
    concurrency: int = 0
    log: bool = False  # appendonly: without it a killed node is a wiped node
    fsync: str = ""  # appendfsync: "always" "everysec" "no"
    seed: int = 0
    # published by the servers or set by the harness: see Bounds in checkers.bounds
    bounds: Mapping[str, int] = attrs.Factory(dict)
    # server logs: "n1: Traceback ..." a trouble; exits that nobody asked for: "n1: exit code 1"
    tracebacks: tuple[str, ...] = attrs.field(default=(), converter=_names)
    exits: tuple[str, ...] = attrs.field(default=(), converter=_names)
    # drain ended by silence and zero jobs (True), by its time limit (False), or there was none (None)
    drained: bool | None = None
    # ended by hand before its time: it can show what is broken, and never that all is well
    is_stopped: bool = False
    # spans (from, to) in ns in which the harness stood still for more than 250 ms, as the machine did
    lags: tuple[tuple[int, int], ...] = attrs.field(default=(), converter=_spans)
    # what the run is to show, so that it isn't vacuous: least counts by name, the workload's; None: nobody said
    demands: Mapping[str, int] | None = None
    # nodes cut off or dead on purpose when the run ended (--final core)
    abandoned: tuple[str, ...] = attrs.field(default=(), converter=_names)
    # nodes may be short of memory: then peers alone hold what they take (Disque's external replication)
    is_external: bool = False
    is_simulated: bool = False

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Meta:
        """The meta of a JSON object; keys that are no field are passed over."""
        known = {each.name for each in attrs.fields(cls)}
        return cls(**{name: value for name, value in fields.items() if name in known})


@attrs.define
class Run:
    """A run as the checkers see it: `ops` in order of index and time."""

    meta: Meta
    ops: list[Op]


@attrs.frozen
class Finding:
    """One broken promise. `at` is ns since the run began; `job` "" and `v` -1 where no job is meant."""

    checker: str
    kind: str  # "lost", "stuck", "resurrected" ...
    text: str
    job: str = ""
    v: int = -1
    at: int = 0


@attrs.frozen
class Result:
    """A checker's answer: valid True, False, or None where the run can't tell; `claim` is the promise that it backs.

    `findings` are what is broken (valid is False then), `numbers` what was measured, `notes` what was excused or why
    it is unknown. A checker that doesn't apply to a run gives no Result at all.
    """

    checker: str
    valid: bool | None
    claim: str
    findings: tuple[Finding, ...] = ()
    numbers: Mapping[str, Any] = attrs.Factory(dict)
    notes: tuple[str, ...] = ()


def verdict(results: Iterable[Result]) -> bool | None:
    """False if any is False, else None if any is unknown, else True."""
    found = {result.valid for result in results}
    if False in found:
        return False
    return None if None in found else True
