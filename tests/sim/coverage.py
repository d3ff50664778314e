"""Coverage: what the seeds together have met. Message type x state of the receiver's copy, and faults by kind.

An empty cell is a hole in the test, or a thing that can't happen: then ALLOWED_EMPTY says why.
"""

from __future__ import annotations

from collections import Counter

import attrs

from disque.core.wire import MESSAGE_TYPES
from tests.sim.checks import KINDS
from tests.sim.plan import FAULTS
from tests.sim.run import Result

NO_ID = "-"  # messages that are about no single job
_ONCE = "RETRY 0 has no copies (B6.1): nobody says it of a job that moves, but by a whisper in a short moment"
_ORIGIN = (
    "only the origin waits, and nobody gives or hands to it what it has itself, but by a whisper"
)
_ENDS_FIRST = "a waiting ADDJOB becomes a success by any end or lease (B7.3): the moment is short"
_KNOWS = "a dummy's holders are unknown to it, so they hardly ever speak to it (M14)"
_LEAVES = "said by and to nodes that leave, of which a run has one at most"
ALLOWED_EMPTY: dict[tuple[str, str], str] = {
    ("Publish", NO_ID): "no topics in the simulator",
    ("Subscribed", NO_ID): "no topics in the simulator",
    **{
        (name, "moving"): _ONCE
        for name in (
            *("ReplJob", "GotJob", "Refused", "WillQueue", "Have", "Unknown", "Waiting", "Queued"),
            *(
                "Leased",
                "Told",
                "SetAck",
                "GotAck",
                "DelJob",
                "YourJobs",
                "Keep",
                "Kept",
                "KeepDummy",
            ),
        )
    },
    **{
        (name, "waiting"): _ORIGIN
        for name in ("ReplJob", "Have", "Unknown", "Waiting", "YourJobs", "Move", "Keep", "Kept")
    },
    **{
        (name, "waiting"): _ENDS_FIRST
        for name in ("Queued", "Leased", "SetAck", "GotAck", "DelJob", "KeepDummy")
    },
    **{
        (name, "dummy"): _KNOWS
        for name in (
            *("ReplJob", "GotJob", "Refused", "WillQueue", "Have", "Waiting", "Queued", "Leased"),
            *("Told", "YourJobs", "Move", "Keep", "Kept", "KeepDummy"),
        )
    },
    **{(name, "none"): _LEAVES for name in ("Keep", "KeepDummy", "Kept")},
    **{("KeepDummy", state): _LEAVES for state in ("active", "queued", "done", "tombstone")},
    (
        "Move",
        "moving",
    ): "a job comes back before its move was confirmed: lost GOTMOVE and two hungry nodes",
    ("Move", "done"): "its end overtook a move: only by whispers",
    ("Move", "tombstone"): "its end overtook a move",
    ("Refused", "none"): "the asker forgot the job before the refusal came",
}
# What all of these do is shown, each for itself, in tests/unit/core/test_engine_table.py.


@attrs.define
class Totals:
    """Sums over seeds."""

    seeds: int = 0
    events: int = 0
    turns: int = 0
    simulated_ms: int = 0
    cpu_s: float = 0.0
    frames: int = 0
    messages: int = 0
    deliveries: int = 0
    late_deliveries: int = 0
    duplicates: int = 0
    lost: int = 0
    failed: int = 0
    operations: Counter[str] = attrs.Factory(Counter)
    outcomes: Counter[str] = attrs.Factory(Counter)
    faults: Counter[str] = attrs.Factory(Counter)
    matrix: Counter[tuple[str, str]] = attrs.Factory(Counter)

    def add(self, result: Result) -> None:
        """One more seed."""
        self.seeds += 1
        self.failed += result.violation is not None
        for name in ("events", "turns", "simulated_ms", "frames", "messages", "deliveries"):
            setattr(self, name, getattr(self, name) + getattr(result, name))
        for name in ("late_deliveries", "duplicates", "lost", "cpu_s"):
            setattr(self, name, getattr(self, name) + getattr(result, name))
        self.operations += result.operations
        self.outcomes += result.outcomes
        self.faults += result.faults
        self.matrix += result.matrix

    def summary(self, wall_s: float, jobs: int) -> str:
        """Numbers."""
        seeds = max(1, self.seeds)
        operations, faults = sum(self.operations.values()), sum(self.faults.values())
        hours, real_time = (
            self.simulated_ms / 3_600_000,
            self.simulated_ms / 1000 / max(wall_s, 0.001),
        )
        again = f"of them again {self.duplicates:,}, after an ack {self.late_deliveries:,}"
        speed = f"{self.events / max(self.cpu_s, 0.001):,.0f} events/s of CPU, {self.cpu_s / seeds:.2f} s a seed"
        rows = [
            ("seeds", f"{self.seeds}, {self.failed} failed"),
            ("events", f"{self.events:,} ({self.turns:,} turns)"),
            ("simulated", f"{hours:.2f} h, {self.simulated_ms / 1000 / seeds:.0f} s a seed"),
            (
                "operations",
                f"{operations:,}, {operations / seeds:.0f} a seed: {_show(self.operations)}",
            ),
            ("outcomes", _show(self.outcomes)),
            ("faults", f"{faults:,}, {faults / seeds:.1f} a seed: {_show(self.faults)}"),
            ("messages", f"{self.messages:,} in {self.frames:,} frames (gossip included)"),
            ("deliveries", f"{self.deliveries:,}, {again}"),
            ("lost with all holders", f"{self.lost:,}"),
            ("speed", f"{speed}, {wall_s:.0f} s on {jobs} processes, {real_time:,.0f}x real time"),
        ]
        return "\n".join(f"{name:22} {text}" for name, text in rows)

    def table(self, wall_s: float, jobs: int) -> str:
        """Coverage and numbers."""
        head = f"{'message x receiver':20}" + "".join(f"{kind:>11}" for kind in (*KINDS, NO_ID))
        lines = [head]
        for kind in MESSAGE_TYPES:
            name = kind.__name__
            cells = "".join(f"{self._cell(name, state):>11}" for state in (*KINDS, NO_ID))
            lines.append(f"{name:20}{cells}")
        lines += ["", f"{'fault':20}" + "".join(f"{kind:>9}" for kind in FAULTS)]
        lines.append(f"{'':20}" + "".join(f"{self.faults[kind]:>9}" for kind in FAULTS))
        return "\n".join([*lines, "", self.summary(wall_s, jobs)])

    def _cell(self, name: str, state: str) -> str:
        count = self.matrix[name, state]
        if count:
            return str(count)
        if (name, state) in ALLOWED_EMPTY:
            return "(none)"
        return "" if not _is_cell(name, state) else "EMPTY"

    def unexplained(self) -> list[str]:
        """Cells and fault kinds that nobody met and for which there is no reason."""
        empty = [
            f"{kind.__name__} x {state}"
            for kind in MESSAGE_TYPES
            for state in (*KINDS, NO_ID)
            if _is_cell(kind.__name__, state)
            and not self.matrix[kind.__name__, state]
            and (kind.__name__, state) not in ALLOWED_EMPTY
        ]
        return empty + [f"fault {kind}" for kind in FAULTS if not self.faults[kind]]


def _is_cell(name: str, state: str) -> bool:
    """A message about one job meets a state, any other meets none."""
    kind = next(each for each in MESSAGE_TYPES if each.__name__ == name)
    has_id = any(field.name == "id" for field in attrs.fields(kind))
    return has_id != (state == NO_ID)


def _show(counter: Counter[str]) -> str:
    return ", ".join(
        f"{name} {count:,}" for name, count in sorted(counter.items(), key=lambda item: -item[1])
    )
