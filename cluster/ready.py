"""What membership wants done after a batch of inputs; the bus (or the simulator) does it.

ConnId names one connection, dialed or accepted, for its life; the owner draws them, never reusing
one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NewType

import attrs

from cluster.handshake import Identity

if TYPE_CHECKING:
    from cluster.nodeid import NodeId
    from cluster.view import ClusterView

__all__ = ["ClusterReady", "ConnId", "Dial", "DialId", "Identity", "Note", "OnceAMinute"]

ConnId = NewType("ConnId", int)
DialId = NewType("DialId", int)

NOTE_EVERY_MS = 60_000
NOTED_MAX = 1_000  # events of the last minute that are remembered; the oldest go


@attrs.frozen
class Dial:
    """Open a connection to host:bus_port and shake hands.

    `expected` is the id that must answer, or None for a MEET by address. `is_meet` tells the other
    side that it may list us although it doesn't know us yet.
    """

    dial: DialId
    host: str
    bus_port: int
    expected: NodeId | None
    is_meet: bool


@attrs.frozen
class Note:
    """An event for the log: a name and key=value facts. No secrets."""

    level: str  # "debug" | "info" | "warning"
    event: str
    facts: tuple[tuple[str, object], ...] = ()


class OnceAMinute:
    """What was noted in the last minute, of that which others can cause as often as they like."""

    def __init__(self) -> None:
        # (event, whom it is about) -> ms; oldest first
        self._until: dict[tuple[str, str], int] = {}

    def allows(self, event: str, about: str, now_ms: int) -> bool:
        """True if this may be noted now; then it counts as noted."""
        key = (event, about)
        if now_ms < self._until.get(key, now_ms):
            return False
        self._until.pop(key, None)
        while len(self._until) >= NOTED_MAX:
            del self._until[next(iter(self._until))]
        self._until[key] = now_ms + NOTE_EVERY_MS
        return True


@attrs.define
class ClusterReady:
    """Effects in the order: save nodes_file, dial, send, close."""

    nodes_file: str | None = None  # new text of nodes.conf, None if unchanged
    dials: list[Dial] = attrs.Factory(list)
    # Frame bodies, without the length prefix.
    frames: list[tuple[ConnId, bytes]] = attrs.Factory(list)
    closes: list[ConnId] = attrs.Factory(list)
    # (sender, its boot, opaque payload) for the core.
    payloads: list[tuple[NodeId, int, bytes]] = attrs.Factory(list)
    view: ClusterView | None = None  # set if it changed
    notes: list[Note] = attrs.Factory(list)
