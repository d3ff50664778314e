"""Errors by RESP prefix, and whether one says for sure that nothing was done."""

from __future__ import annotations

import pytest

from disque.client import errors
from disque.errors import DisqueError


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("ERR syntax error", errors.ReplyError),
        ("BADID Invalid Job ID format.", errors.BadIdError),
        ("NOREPL Not enough reachable nodes", errors.NotReplicatedError),
        ("MAXLEN Queue is already longer", errors.QueueFullError),
        ("PAUSED Queue paused in input, try later", errors.QueuePausedError),
        ("LEAVING This node is leaving", errors.LeavingError),
        ("LOADING Disque is loading", errors.LoadingError),
        ("OOM command not allowed", errors.OutOfMemoryError),
        ("MISCONF Errors writing", errors.DiskError),
        ("NOJOB Job not known", errors.JobUnknownError),
        ("ACKED Job already acknowledged.", errors.JobDoneError),
        ("TOOLATE Half of job TTL", errors.TooLateError),
        ("NOAUTH Authentication required.", errors.AuthenticationError),
        ("NOPERM User x has no permissions", errors.NotPermittedError),
        ("DENIED protected mode", errors.AuthenticationError),
        ("NEWCODE of a later version", errors.ReplyError),
        ("ERR", errors.ReplyError),
    ],
)
def test_error_reply_has_its_own_class_and_keeps_its_words(
    line: str, kind: type[errors.ReplyError]
) -> None:
    error = errors.reply_error(line)
    assert type(error) is kind
    assert isinstance(error, DisqueError)
    assert error.code == line.split(maxsplit=1)[0]
    assert str(error).strip() == line


@pytest.mark.parametrize(
    ("command", "line", "is_sure"),
    [
        ("ADDJOB", "NOREPL Not enough reachable nodes for the requested replication level", True),
        ("ADDJOB", "NOREPL Not enough reachable nodes ..., since I'm unable to hold a copy", True),
        ("ADDJOB", "NOREPL Timeout reached before replicating to the requested number", False),
        ("ADDJOB", "NOREPL job removed (expired?) before the requested replication level", False),
        ("ADDJOB", "LEAVING This node is leaving the cluster", False),
        ("GETJOB", "LEAVING This node is leaving the cluster", True),
        ("ADDJOB", "MISCONF Errors writing to the AOF file: No space left on device", True),
        ("ADDJOB", "MISCONF Errors writing ...; whether the job was added isn't known", False),
        ("ADDJOB", "PAUSED Queue paused in input, try later", True),
        ("ADDJOB", "ERR syntax error", True),
        ("QPURGE", "ERR syntax error", True),
    ],
)
def test_only_a_refusal_before_copies_is_conclusive(command: str, line: str, is_sure: bool) -> None:
    assert errors.is_conclusive(command, errors.reply_error(line)) is is_sure


def test_unreachable_tells_why_of_each_node() -> None:
    error = errors.UnreachableError({"a:7711": "refused", "b:7711": "no reply in time"})
    assert str(error) == "no node can be reached: a:7711: refused; b:7711: no reply in time"
