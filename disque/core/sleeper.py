"""Sleeper: the base of whatever can be booked in the agenda."""

from __future__ import annotations

from typing import Final

import attrs

UNBOOKED: Final = -1


@attrs.define(eq=False, weakref_slot=False)
class Sleeper:
    """`wake_at` (ms, or UNBOOKED) belongs to the agenda."""

    wake_at: int = attrs.field(default=UNBOOKED, init=False)
