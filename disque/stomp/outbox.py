"""Outbox: what a session wants done: commands of the core under ids, and who waits for their replies.

The owner gives the commands to the core in order, the replies to `replied`, and the bytes to the client. No command
is about more than IDS_MAX jobs, so that he may stop between any two and go on later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

from disque.core.commands import Command
from disque.core.jobid import JobId
from disque.core.ready import ClientId, Failure, Reply

IDS_MAX = 200  # jobs that a command is about: some 10 ms

Then: TypeAlias = Callable[[Reply], None]


def ignore(_reply: Reply) -> None:
    """What a reply leads to that nobody waits for."""


class Outbox:
    """Commands and bytes of one session since they were last taken."""

    def __init__(self, new_id: Callable[[], ClientId]) -> None:
        """`new_id` gives ids that the core has never heard of."""
        self._new_id = new_id
        # In order; None takes back the command that was given under that id, if it still waits
        self.commands: deque[tuple[ClientId, Command | None]] = deque()
        self.data: list[bytes] = []
        self._thens: dict[ClientId, Then] = {}
        self._owed: dict[ClientId, int] = {}  # with the bytes that are kept until then
        self.kept_bytes = 0  # all of those

    def ask(
        self, command: Command, then: Then, *, is_owed: bool = True, receipt: bytes | None = None
    ) -> ClientId:
        """Give a command to the core; `then` gets its reply. `is_owed`: the client waits for it, with this receipt."""
        id_ = self._new_id()
        self.commands.append((id_, command))
        self._thens[id_] = then
        if is_owed:
            self._owed[id_] = len(receipt or b"")
            self.kept_bytes += self._owed[id_]
        return id_

    def ask_all(
        self,
        kind: Callable[[tuple[JobId, ...]], Command],
        ids: Sequence[JobId],
        then: Then,
        *,
        is_owed: bool = True,
        receipt: bytes | None = None,
    ) -> None:
        """The same about many jobs; `then` gets one reply: the first Failure, or the last one."""
        left = -(-len(ids) // IDS_MAX)
        failure: Failure | None = None

        def answered(reply: Reply) -> None:
            nonlocal left, failure
            left -= 1
            if failure is None and isinstance(reply, Failure):
                failure = reply
            if not left:
                then(reply if failure is None else failure)

        for first in range(0, len(ids), IDS_MAX):
            command = kind(tuple(ids[first : first + IDS_MAX]))
            self.ask(command, answered, is_owed=is_owed, receipt=receipt)

    @property
    def open_count(self) -> int:
        """Commands whose replies a client is owed."""
        return len(self._owed)

    def take_back(self, id_: ClientId) -> None:
        """Let a command wait no longer; if it has been answered already, its reply still comes."""
        self.commands.append((id_, None))

    def replied(self, id_: ClientId, reply: Reply) -> None:
        """The reply to a command; nothing for an id that was forgotten."""
        then = self._thens.pop(id_, ignore)
        self.kept_bytes -= self._owed.pop(id_, 0)
        then(reply)

    def forget(self, id_: ClientId) -> None:
        """No reply will come for this id."""
        self._thens.pop(id_, None)
        self.kept_bytes -= self._owed.pop(id_, 0)

    def waiting(self) -> list[ClientId]:
        """The ids whose replies haven't come, in order."""
        return list(self._thens)

    def owed(self) -> list[ClientId]:
        """Those of them for which the client waits."""
        return list(self._owed)

    @property
    def is_idle(self) -> bool:
        """True if nothing is to be done, and no reply is to come."""
        return not (self.commands or self._thens)
