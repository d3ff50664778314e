"""What can go wrong for a client, by what the caller can do about it.

`ReplyError` and its kinds: a node said no, nothing was done. `OutcomeUnknownError`: it may have been done.
`UnreachableError`: no node could be asked, nothing was done. Bad arguments are ValueError, before anything is sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from disque.errors import DisqueError


class ReplyError(DisqueError):
    """A node's error reply: `code` is its first word, `text` the rest, str() both. Nothing was done."""

    def __init__(self, text: str, code: str = "ERR") -> None:
        super().__init__(text)
        self.code = code
        self.text = text

    def __str__(self) -> str:
        return f"{self.code} {self.text}"


class BadIdError(ReplyError):
    """BADID: one of the ids is none; none of the others was touched."""


class NotReplicatedError(ReplyError):
    """NOREPL before anything was done: too few nodes for the REPLICATE asked for."""


class QueueFullError(ReplyError):
    """MAXLEN: the queue is as long as the caller allowed."""


class QueuePausedError(ReplyError):
    """PAUSED: the queue takes no jobs on any node that could be asked."""


class LeavingError(ReplyError):
    """LEAVING: every node that could be asked leaves the cluster."""


class LoadingError(ReplyError):
    """LOADING: the node still reads its log."""


class OutOfMemoryError(ReplyError):
    """OOM: no node that could be asked has room."""


class DiskError(ReplyError):
    """MISCONF: the node can't write its log."""


class JobUnknownError(ReplyError):
    """NOJOB: nobody who answered knows the job."""


class JobDoneError(ReplyError):
    """ACKED: the job is acknowledged or cancelled already."""


class TooLateError(ReplyError):
    """TOOLATE: half of the job's TTL is over, its lease can't be renewed any more."""


class AuthenticationError(ReplyError):
    """NOAUTH, WRONGPASS, DENIED, or a wrong password: the node doesn't let us in."""


class NotPermittedError(ReplyError):
    """NOPERM: the user may not do that, or not to that queue."""


class OutcomeUnknownError(DisqueError):
    """A command may or may not have been carried out, or only in part; if it was repeated, that failed.

    `command` is its name, `address` the node it was sent to; __cause__ says what happened instead of a conclusive
    reply: an OSError, or the ReplyError of a node that doesn't know either (NOREPL after a time-out).
    """

    def __init__(self, command: str, address: str, reason: str) -> None:
        super().__init__(f"{command} to {address}: {reason}; it may have been carried out")
        self.command = command
        self.address = address


class UnreachableError(DisqueError):
    """No node could be asked in time, and nothing was done; `troubles` says for each address why."""

    def __init__(self, troubles: Mapping[str, str]) -> None:
        told = "; ".join(f"{address}: {trouble}" for address, trouble in troubles.items())
        super().__init__(f"no node can be reached: {told}")
        self.troubles = dict(troubles)


_BY_CODE: Final[Mapping[str, type[ReplyError]]] = {
    "BADID": BadIdError,
    "NOREPL": NotReplicatedError,
    "MAXLEN": QueueFullError,
    "PAUSED": QueuePausedError,
    "LEAVING": LeavingError,
    "LOADING": LoadingError,
    "OOM": OutOfMemoryError,
    "MISCONF": DiskError,
    "NOJOB": JobUnknownError,
    "ACKED": JobDoneError,
    "TOOLATE": TooLateError,
    "NOAUTH": AuthenticationError,
    "WRONGPASS": AuthenticationError,
    "NOPERM": NotPermittedError,
    "DENIED": AuthenticationError,
}


def reply_error(line: str) -> ReplyError:
    """The error for an error reply without its minus: `CODE text`."""
    code, _, text = line.partition(" ")
    return _BY_CODE.get(code, ReplyError)(text, code)


# How a refusal begins that comes before anything is done; any other NOREPL comes when copies may have been made.
_TOO_FEW_NODES: Final = "Not enough reachable nodes"
_NOT_KNOWN: Final = "isn't known"


def is_conclusive(command: str, error: ReplyError) -> bool:
    """True if the reply says that nothing was done; False if copies of the job may exist all the same."""
    if command != "ADDJOB":
        return True
    if error.code == "NOREPL":
        return error.text.startswith(_TOO_FEW_NODES)
    if error.code == "MISCONF":
        return not error.text.endswith(_NOT_KNOWN)
    # Disque takes a waiting ADDJOB back by best effort when it is told to leave.
    return error.code != "LEAVING"
