"""Lanes: the faults of a run as shaded bands, each family in a lane and a colour of its own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

import attrs

from jepsen.checkers.base import Run
from jepsen.checkers.bounds import Bounds
from jepsen.checkers.faults import MEMBERSHIP, Fault, Faults
from jepsen.history import NEMESIS
from jepsen.report.svg import Band

COLOURS: Final = (
    "#e9a0e6",
    "#7fb3e8",
    "#f0b070",
    "#8fd08a",
    "#e08a8a",
    "#b8a5ea",
    "#d4c25f",
    "#79cfc4",
)


@attrs.frozen
class Window:
    """One fault from the first word of its start to the last of its stop, or to the end of the run; ns."""

    fault: Fault
    start: int
    end: int
    params: str

    @property
    def kind(self) -> str:
        """What kind of fault it was."""
        return self.fault.kind

    @property
    def is_proven(self) -> bool:
        """Whether probes showed that it acted, and that it was mended if it was."""
        return self.fault.proven is True and self.fault.heal_proven is not False

    @property
    def text(self) -> str:
        """The fault in one line: what it hit, how long, whether it was proven."""
        proof = "proven" if self.is_proven else "NOT PROVEN"
        return f"{self.kind}: {self.details}; {(self.end - self.start) / 1e9:.3f} s; {proof}"

    @property
    def details(self) -> str:
        """Nodes, silent links, parameters and wiped nodes, those that it has."""
        wiped = (self.fault.wipes_started or ()) + (self.fault.wipes_stopped or ())
        given = [
            ("nodes", " ".join(self.fault.nodes)),
            ("cut", " ".join(f"{a}→{b}" for a, b in sorted(self.fault.links))),
            ("params", self.params),
            ("wiped", " ".join(dict.fromkeys(wiped))),
        ]
        return "; ".join(f"{name} {value}" for name, value in given if value) or "-"


def windows(run: Run) -> list[Window]:
    """The faults of a run, changes of membership too, in order of their beginning."""
    end = run.ops[-1].time if run.ops else 0
    events = [op for op in run.ops if op.process == NEMESIS]
    params = {
        op.value.get("id"): json.dumps(op.value["params"])
        for op in events
        if op.f == "start" and op.value.get("params")
    }
    faults = Faults(run.meta, events, Bounds.of(run.meta, run.ops)).all
    return [
        Window(
            each,
            each.begun_at,
            min(each.stopped_at, end),
            "" if each.kind in MEMBERSHIP else params.get(each.id, ""),
        )
        for each in faults
    ]


def lanes(faults: Sequence[Window]) -> dict[str, int]:
    """The lane of each kind of fault, in order of first appearance."""
    return {kind: lane for lane, kind in enumerate(dict.fromkeys(each.kind for each in faults))}


def bands(faults: Sequence[Window]) -> list[Band]:
    """The faults as bands over an axis of seconds."""
    lane_of = lanes(faults)
    return [
        Band(
            each.start / 1e9,
            each.end / 1e9,
            lane_of[each.kind],
            each.kind,
            COLOURS[lane_of[each.kind] % len(COLOURS)],
            each.text,
        )
        for each in faults
    ]
