"""Recorder: the history of a run as it grows, with the run's clock and the count of process numbers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from jepsen.history import History, Op

Sink = Callable[[Op], None]


@attrs.define(eq=False)
class Recorder:
    """Gives events their index and time, keeps them, and hands each to `sinks` (the file, the live line).

    Time is ns of the monotonic clock since it was made: a jump of the wall clock isn't seen.
    """

    sinks: list[Sink] = attrs.Factory(list)
    history: History = attrs.Factory(History)
    _began_ns: int = attrs.field(factory=time.monotonic_ns, init=False)

    def restart_clock(self) -> None:
        """Time zero is now. Only before the first event."""
        self._began_ns = time.monotonic_ns()

    def now_ns(self) -> int:
        """ns since the run began."""
        return time.monotonic_ns() - self._began_ns

    def now_s(self) -> float:
        """Seconds since the run began."""
        return self.now_ns() / 1e9

    def add(
        self,
        process: int,
        type: str,  # noqa: A002  # the history's own word
        f: str,
        value: Mapping[str, Any],
        *,
        node: str = "",
        error: str = "",
    ) -> Op:
        """Append one event, now."""
        op = Op(len(self.history), self.now_ns(), process, type, f, value, node, error)
        self.history.append(op)
        for sink in self.sinks:
            sink(op)
        return op
