"""Backoff: how long a job waits after its n-th failure. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs

if TYPE_CHECKING:
    from random import Random

# 2 to the power of more than this is beyond any limit.
_DOUBLINGS_MAX: Final = 60


def _in_order(backoff: Backoff, _: Any, most: float) -> None:
    if not 0 < backoff.first <= most < float("inf"):
        raise ValueError(
            f"a back-off needs 0 < first <= most, got {backoff.first!r} and {most!r} seconds"
        )


def _share(_: Any, __: Any, jitter: float) -> None:
    if not 0 <= jitter <= 1:
        raise ValueError(f"jitter is a share from 0 to 1, got {jitter!r}")


@attrs.frozen
class Backoff:
    """`first` seconds, doubling up to `most`; each time chance takes up to the share `jitter` off.

    So jobs that failed together, because of one broken thing, don't come back together.
    """

    first: float = 1.0
    most: float = attrs.field(default=300.0, validator=_in_order)
    jitter: float = attrs.field(default=0.5, validator=_share)

    def delay(self, attempt: int, dice: Random) -> float:
        """Seconds to wait after attempt number `attempt`, from 1."""
        doubled = self.first * 2.0 ** min(attempt - 1, _DOUBLINGS_MAX)
        return min(doubled, self.most) * (1 - self.jitter * dice.random())
