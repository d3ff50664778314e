"""Peers: what a node keeps about each other node, and about addresses where it hopes to find one.

Records and their small arithmetic; the moves are made by `membership`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import attrs

from cluster.messages import FAILED, LEAVING, LEFT, NOADDR, SUSPECT

if TYPE_CHECKING:
    from cluster.nodeid import NodeId
    from cluster.ready import ConnId, DialId

BACKOFF_FIRST_MS = 100
BACKOFF_MAX_MS = 2_000
REFUSED_BACKOFF_MS = 20_000  # who has forgotten us isn't asked more often
LASTING_MS = 2 * BACKOFF_MAX_MS  # so long after a link was made the wait for the next begins anew


class Dice(Protocol):
    """Where chance comes from; random.Random fits."""

    def randrange(self, stop: int, /) -> int:
        """A whole number from 0 to stop - 1."""
        ...

    def randbytes(self, n: int, /) -> bytes:
        """So many random bytes."""
        ...


@attrs.frozen
class Address:
    """Where a node listens; `host` "" if unknown, never bracketed."""

    host: str
    port: int
    bus_port: int

    @property
    def is_dialable(self) -> bool:
        """True if both host and bus port are known."""
        return bool(self.host) and self.bus_port > 0


@attrs.define(eq=False)
class Backoff:
    """When to dial next: 100 ms after the first failure, doubling, with jitter of half of it."""

    due_at_ms: int
    step_ms: int = BACKOFF_FIRST_MS
    linked_at_ms: int = 0

    def linked(self, now_ms: int) -> None:
        """A link stands; only time tells whether it's any good."""
        self.due_at_ms = self.linked_at_ms = now_ms

    def has_lasted(self, now_ms: int) -> bool:
        """True if it is long ago that the last link was made: the next failure is a first one."""
        return now_ms - self.linked_at_ms >= LASTING_MS

    def hurry(self, now_ms: int) -> None:
        """Dial at once; with links that don't last the wait after it goes on growing."""
        if self.has_lasted(now_ms):
            self.reset(now_ms)
        self.due_at_ms = now_ms

    def reset(self, now_ms: int) -> None:
        """Dial at once."""
        self.due_at_ms = now_ms
        self.step_ms = BACKOFF_FIRST_MS

    def fail(self, now_ms: int, node_timeout_ms: int, dice: Dice) -> None:
        """Wait longer than the last time, at most half a node timeout or 2 s."""
        most = max(BACKOFF_FIRST_MS, min(node_timeout_ms // 2, BACKOFF_MAX_MS))
        step = min(self.step_ms, most)
        self.due_at_ms = now_ms + step // 2 + dice.randrange(step // 2 + 1)
        self.step_ms = min(step * 2, most)


@attrs.define(eq=False)
class Peer:
    """One known node; `link` is my connection to it, `inbound` its to me."""

    id: NodeId
    address: Address
    redial: Backoff
    heard_at_ms: int  # the last word, or when we began to expect one
    boot: int = 0  # last heard of, 0 if none
    since: int = 0
    tls_port: int = 0  # for clients, 0: none, or not told yet
    is_leaving: bool = False
    has_left: bool = False  # and nobody needs anything from it any more
    is_suspect: bool = False
    is_failed: bool = False
    is_ghost: bool = False  # another id answers at its address
    is_refusing: bool = False  # my last dial reached it, and there is no link for all that
    alternate: Address | None = None  # tried when dialing `address` fails
    dial: DialId | None = None
    link: ConnId | None = None
    is_pong_owed: bool = False  # a PING came while there was no link to answer over
    inbound: ConnId | None = None
    is_inbound_new_meet: bool = False  # it was dialed to meet us, and has said nothing yet
    ping_at_ms: int = 0  # when the next is due
    unanswered_since_ms: int | None = None  # oldest ping without a pong
    ponged_at_ms: int = 0
    reports: dict[NodeId, int] = attrs.Factory(dict)  # who reported it missing, and when

    @property
    def is_reachable(self) -> bool:
        """True if a message sent now is expected to arrive and to be answered."""
        return self.link is not None and self.inbound is not None and not self.is_suspect

    @property
    def flags(self) -> int:
        """The flags as gossip tells them."""
        return (
            (SUSPECT if self.is_suspect and not self.is_failed else 0)
            | (FAILED if self.is_failed else 0)
            | (NOADDR if self.is_ghost else 0)
            | (LEAVING if self.is_leaving else 0)
            | (LEFT if self.has_left else 0)
        )

    def suspects_gone(self) -> bool:
        """Clear suspicion, failure and reports; True if there was any suspicion."""
        was_suspect = self.is_suspect or self.is_failed
        self.is_suspect = self.is_failed = False
        self.reports.clear()
        return was_suspect


@attrs.define(eq=False)
class Meeting:
    """An address where a node should be that isn't known yet: by MEET (by hand, or sticky), or by gossip."""

    host: str
    bus_port: int
    redial: Backoff
    give_up_at_ms: int | None  # None: never (sticky)
    handle: str  # a random id to show it under
    expected: NodeId | None = None  # by gossip
    is_by_hand: bool = True
    dial: DialId | None = None
    last_reason: str = ""
