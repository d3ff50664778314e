"""How a job ended, as one node can tell, and how the words of several nodes become one (WAITJOB)."""

from __future__ import annotations

from collections.abc import Sequence

# On the wire. When members differ, the larger is shown: pending beats all, acked beats cancelled beats expired.
UNKNOWN, EXPIRED, CANCELLED, ACKED, DEAD, PENDING = range(6)

OUTCOME_NAMES = (b"unknown", b"expired", b"cancelled", b"acked", b"dead", b"pending")


def joined_outcome(said: Sequence[int], *, is_complete: bool) -> int:
    """One outcome of what members said; nobody knows it: unknown if all have spoken, else it may yet be pending."""
    outcome = max([each for each in said if each <= PENDING], default=UNKNOWN)
    if outcome == UNKNOWN and not is_complete:
        return PENDING
    return outcome
