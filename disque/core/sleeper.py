"""Sleeper: the base of whatever can be booked in the agenda."""

from __future__ import annotations

from typing import Final

import attrs

UNBOOKED: Final = -1


@attrs.define(eq=False, weakref_slot=False)
class Sleeper:
    """What is here belongs to the agenda: the time in ms, or UNBOOKED, and the neighbours in its bucket."""

    wake_at: int = attrs.field(default=UNBOOKED, init=False)
    ahead: Sleeper | None = attrs.field(default=None, init=False, repr=False)
    behind: Sleeper | None = attrs.field(default=None, init=False, repr=False)
