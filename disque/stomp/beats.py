"""Heart-beats: what both sides agreed on at CONNECT, and when something must be said or should have been heard."""

from __future__ import annotations

from disque.errors import CommandError
from disque.stomp.frames import shown

OFFERED_MS = 1_000  # they can be sent, and looked for, so often
_LONGEST_MS = 600_000
OFFER = b"%d,%d" % (OFFERED_MS, OFFERED_MS)


class Beats:
    """Of one connection; none until `agree`. Times in ms."""

    def __init__(self) -> None:
        self._send_ms = 0
        self._expect_ms = 0
        self._look_at = 0
        self._sent_bytes = -1  # when it was last looked

    def agree(self, text: bytes, now_ms: int) -> None:
        """A client's `<can send>,<wants>`, 0 is never: each way the larger of offer and wish counts.

        CommandError if it is something else.
        """
        offered, comma, wanted = text.partition(b",")
        numbers = [each.strip() for each in (offered, wanted)]
        if not comma or not all([each.isdigit() and len(each) <= 9 for each in numbers]):
            raise CommandError(f"heart-beat must be two numbers of ms, got {shown(text)}")
        theirs, ours = [min(int(each), _LONGEST_MS) for each in numbers]
        self._expect_ms = max(theirs, OFFERED_MS) if theirs else 0
        self._send_ms = max(ours, OFFERED_MS) if ours else 0
        self._look_again(now_ms)

    def _look_again(self, now_ms: int) -> None:
        self._look_at = now_ms + (self._send_ms or self._expect_ms) // 2

    @property
    def due_at(self) -> int | None:
        """When to look."""
        return self._look_at if self._send_ms or self._expect_ms else None

    def must_send(self, now_ms: int, sent_bytes: int) -> bool:
        """True if nothing has been sent since it was last looked, half an interval ago."""
        if not (self._send_ms or self._expect_ms) or now_ms < self._look_at:
            return False
        is_silent = sent_bytes == self._sent_bytes
        self._sent_bytes = sent_bytes
        self._look_again(now_ms)
        return is_silent and self._send_ms > 0

    def missing_ms(self, now_ms: int, read_at_ms: int) -> int:
        """For how long the client has said nothing, if that is twice as long as it may; else 0."""
        silent_ms = now_ms - read_at_ms
        return silent_ms if self._expect_ms and silent_ms > 2 * self._expect_ms else 0
