"""Sleeper: the base of whatever can be booked in the agenda; and the lists in which those lie that are far off."""

from __future__ import annotations

from typing import Final

import attrs

UNBOOKED: Final = -1


class Bucket:
    """Items in the order in which they were booked, each linked with its neighbours."""

    __slots__ = ("first", "last")

    def __init__(self) -> None:
        self.first: Sleeper | None = None
        self.last: Sleeper | None = None

    def remove(self, item: Sleeper) -> None:
        """Take out an item that is in it."""
        ahead, behind = item.ahead, item.behind
        if ahead is None:
            self.first = behind
        else:
            ahead.behind = behind
        if behind is None:
            self.last = ahead
        else:
            behind.ahead = ahead
        item.bucket = item.ahead = item.behind = None


@attrs.define(eq=False, weakref_slot=False)
class Sleeper:
    """What is here belongs to the agenda: the time in ms, or UNBOOKED, its bucket, and the neighbours there."""

    wake_at: int = attrs.field(default=UNBOOKED, init=False)
    bucket: Bucket | None = attrs.field(default=None, init=False, repr=False)
    ahead: Sleeper | None = attrs.field(default=None, init=False, repr=False)
    behind: Sleeper | None = attrs.field(default=None, init=False, repr=False)
