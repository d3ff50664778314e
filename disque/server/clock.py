"""Clock: milliseconds for the broker, made once from the wall clock at start plus monotonic time elapsed.

It knows nothing of what is timed. A step of the wall clock requeues and expires nothing, since
after the start only monotonic time is read.
"""

from __future__ import annotations

import time

import trio


class Clock:
    """The one place where the server reads time; `now_ms` never goes back."""

    def __init__(self) -> None:
        self.started_at_ms = time.time_ns() // 1_000_000
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    def now_ms(self) -> int:
        """Milliseconds since the epoch, steps of the wall clock after the start left out."""
        return (time.monotonic_ns() + self._offset_ns) // 1_000_000

    def trio_deadline(self, due_at_ms: int) -> float:
        """The moment `due_at_ms` in trio's own time, for a cancel scope's deadline."""
        return trio.current_time() + (due_at_ms - self.now_ms()) / 1000

    @property
    def uptime_s(self) -> int:
        """Whole seconds since start."""
        return (self.now_ms() - self.started_at_ms) // 1000
