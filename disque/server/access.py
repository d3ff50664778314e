"""Access: who says that he is whom, and with what password; for every protocol that clients speak.

Passwords are compared by their SHA-256, in a time that tells nothing. Wrong ones are counted by address: beyond
`auth-failures-max` in a minute nobody from there is even looked at until the minute is over, so that guessing has a
pace whatever the number of connections; those who are in already aren't disturbed. It knows no command and no socket.
"""

from __future__ import annotations

from hashlib import sha256
from hmac import compare_digest
from typing import TYPE_CHECKING

import attrs
import trio

from cluster.places import place_of
from disque.errors import CommandError
from disque.server.acl import DEFAULT, DEFAULT_NAME, User

if TYPE_CHECKING:
    from collections.abc import Sequence

    from disque.server.config import Config
    from disque.server.eventlog import EventLog
    from disque.server.info import Figures

PASSWORD_BYTES_MAX = 512
WINDOW_S = 60.0  # in which wrong passwords of an address are counted together
ADDRESSES_MAX = 10_000  # whose wrong passwords are remembered; the oldest go
# Costs as much to ask for as somebody
NOBODY = User("", is_on=False, digests=(bytes(32),))
NOT_SET = "Client sent AUTH, but no password is set"


class WrongPassword(CommandError):  # noqa: N818 - it is what has come, not our error
    """The name and the password don't belong together, or the user is off, or there is none of that name."""

    def __init__(self) -> None:
        super().__init__("invalid username-password pair or user is disabled.", "WRONGPASS")


@attrs.define
class _Tries:
    since: float  # trio's time
    count: int = 0


class Access:
    """The door of one node."""

    def __init__(self, config: Config, figures: Figures, events: EventLog) -> None:
        self._config = config
        self._figures = figures
        self._events = events
        self._tries: dict[str, _Tries] = {}  # in the order of their beginning

    @property
    def needs_password(self) -> bool:
        """True if nobody is anybody before a password was given."""
        return bool(self._config.requirepass)

    def log_in(self, name: str, passwords: Sequence[bytes], host: str) -> User:
        """The user whose password is among these; `host`: the address where they come from, "" for a unix socket.

        Raises WrongPassword; CommandError if there is no password to be given, and while too many were wrong.
        """
        if not self.needs_password and name not in self._config.user:
            raise CommandError(NOT_SET)
        place = place_of(host) or "unix"
        self._check_pace(place)
        user = DEFAULT if name == DEFAULT_NAME else self._config.user.get(name, NOBODY)
        wanted = [self._default_digest()] if user is DEFAULT else user.digests
        given = [sha256(each[: PASSWORD_BYTES_MAX + 1]).digest() for each in passwords]
        # All are compared, whatever the first ones gave
        matches = sum([compare_digest(ours, theirs) for ours in wanted for theirs in given])
        if matches and user.is_on:
            return user
        self._note_failure(name, place)
        raise WrongPassword

    def _default_digest(self) -> bytes:
        return sha256(self._config.requirepass.encode("utf-8", "surrogateescape")).digest()

    def _check_pace(self, host: str) -> None:
        most, tries = self._config.auth_failures_max, self._tries.get(host)
        if not most or tries is None:
            return
        left_s = tries.since + WINDOW_S - trio.current_time()
        if left_s <= 0:
            del self._tries[host]
        elif tries.count >= most:
            self._figures.auth_refused += 1
            raise CommandError(
                f"too many wrong passwords from this address, try again in {int(left_s) + 1} s"
            )

    def _note_failure(self, name: str, host: str) -> None:
        """Count it; the log tells the first one of a minute, and when it becomes too many."""
        self._figures.auth_failures += 1
        tries = self._tries.get(host)
        if tries is None:
            while len(self._tries) >= ADDRESSES_MAX:
                del self._tries[next(iter(self._tries))]
            tries = self._tries[host] = _Tries(trio.current_time())
        tries.count += 1
        if tries.count in (1, self._config.auth_failures_max):
            # Who isn't known may be a password, said in the wrong place
            is_known = name == DEFAULT_NAME or name in self._config.user
            user = name if is_known else "(unknown)"
            self._events.event("warning", "wrong-password", host=host, user=user, count=tries.count)
