"""Words of the commands about the whole cluster: any case, any order, the last one wins."""

from __future__ import annotations

import pytest

from disque.core import commands as cmd
from disque.core.commands import DURATION_MAX_MS
from disque.core.parsing import PARSED, parse
from disque.errors import CommandError
from tests.unit.core.builders import job_id

I1, I2 = job_id(1), job_id(2)


def words(line: str) -> list[bytes]:
    """Arguments of a line in which id1 and id2 stand for ids."""
    ids = {"id1": I1, "id2": I2}
    return [ids.get(word) or word.encode() for word in line.split()]


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("globalqlen q", cmd.GlobalQLen(b"q")),
        ("globalqlen q TIMEOUT 7 withnodes", cmd.GlobalQLen(b"q", 7, with_nodes=True)),
        ("globalqlen q WithNodes WITHNODES timeout 1 Timeout 0", cmd.GlobalQLen(b"q", 0, with_nodes=True)),
        ("globalqlen timeout timeout 3", cmd.GlobalQLen(b"timeout", 3)),
        ("qstat q", cmd.QStat(b"q")), ("qstat q Global", cmd.QStat(b"q", is_global=True)),
        ("qstat q timeout 5 GLOBAL", cmd.QStat(b"q", is_global=True, timeout_ms=5)),
        ("qpurge q", cmd.QPurge(b"q")), ("qpurge q TIMEOUT 9", cmd.QPurge(b"q", 9)),
        ("canceljob", cmd.CancelJob(())), ("canceljob id1 id2", cmd.CancelJob((I1, I2))),
        ("canceljob id1 Timeout 4", cmd.CancelJob((I1,), 4)), ("canceljob timeout 4", cmd.CancelJob((), 4)),
        ("revive", cmd.Revive(())), ("revive id1 id2", cmd.Revive((I1, I2))),
        ("waitjob id1", cmd.WaitJob((I1,))), ("waitjob id1 id1 TIMEOUT 0", cmd.WaitJob((I1, I1), 0)),
        ("waitjob id2 timeout 1 timeout 2", cmd.WaitJob((I2,), 2)),
        (f"waitjob id1 timeout {2**63 - 1}", cmd.WaitJob((I1,), DURATION_MAX_MS)),
        ("publish x body", cmd.Publish(b"x", b"body")),
        ("pubsub NumSub", cmd.NumSub(())), ("pubsub numsub x y", cmd.NumSub((b"x", b"y"))),
    ],
)  # fmt: skip
def test_what_is_taken(line: str, command: cmd.Command) -> None:
    name, *args = words(line)
    assert parse(name, args) == command


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("globalqlen", "wrong number of arguments for 'globalqlen' command"),
        ("qpurge", "wrong number of arguments for 'qpurge' command"),
        ("qstat", "wrong number of arguments for 'qstat' command"),
        ("waitjob", "wrong number of arguments for 'waitjob' command"),
        ("globalqlen q timeout", "syntax error"), ("globalqlen q global", "syntax error"),
        ("globalqlen q timeout x", "timeout is not an integer or out of range"),
        ("globalqlen q timeout 9223372036854775808", "timeout is not an integer or out of range"),
        ("globalqlen q timeout -1", "timeout is negative"),
        ("qstat q timeout 5", "syntax error"), ("qstat q withnodes", "syntax error"),
        ("qpurge q withnodes", "syntax error"), ("qpurge q timeout 1.5", "timeout is not an integer or out of range"),
        ("canceljob id1 timeout", "syntax error"), ("canceljob id1 timeout 1 id2", "syntax error"),
        ("canceljob bad", "Invalid Job ID format."), ("canceljob id1 bad", "Invalid Job ID format."),
        ("canceljob bad timeout x", "timeout is not an integer or out of range"),
        ("revive id1 timeout 1", "Invalid Job ID format."), ("revive bad", "Invalid Job ID format."),
        ("nack id1" + 51 * " delay 1", "Invalid Job ID format."),
        ("waitjob bad", "Invalid Job ID format."), ("waitjob id1 timeout -1", "timeout is negative"),
        ("waitjob id1 withnodes", "Invalid Job ID format."), ("waitjob id1 timeout 1 withnodes", "syntax error"),
    ],
)  # fmt: skip
def test_what_is_refused_and_how(line: str, text: str) -> None:
    """Options left to right come before ids."""
    name, *args = words(line)
    with pytest.raises(CommandError) as refused:
        parse(name, args)
    assert str(refused.value) == text


def test_waitjob_takes_at_most_1024_ids_and_says_so_before_it_looks_at_them() -> None:
    assert parse(b"waitjob", [I1] * 1_024) == cmd.WaitJob((I1,) * 1_024)
    for id_ in (I1, b"bad"):
        with pytest.raises(CommandError, match=r"^WAITJOB takes at most 1024 ids$"):
            parse(b"waitjob", [id_] * 1_025)


def test_a_wrong_id_has_its_own_code() -> None:
    with pytest.raises(CommandError) as refused:
        parse(b"canceljob", [b"bad"])
    assert refused.value.code == "BADID"


def test_the_five_new_commands_are_parsed() -> None:
    assert {b"globalqlen", b"qpurge", b"canceljob", b"revive", b"waitjob"} <= PARSED
