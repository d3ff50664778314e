"""Arguments become commands; every refusal in Disque's words, the first failure first."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disque.core import commands as cmd
from disque.core import parsing
from disque.core.jobid import JobId
from disque.errors import CommandError

ID = JobId(b"D-01234567-AAAAAAAAAAAAAAAAAAAAAAAA-05a1")
OTHER = JobId(b"D-76543210-BBBBBBBBBBBBBBBBBBBBBBBB-05a0")
MAX = b"9223372036854775807"


def parse(line: str) -> cmd.Command:
    name, *args = line.encode().split(b" ")
    return parsing.parse(name, args)


def refusal(line: str) -> str:
    with pytest.raises(CommandError) as refused:
        parse(line)
    return f"{refused.value.code} {refused.value}"


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("addjob q body 0", cmd.AddJob(b"q", b"body", 0)),
        ("addjob q body +250", cmd.AddJob(b"q", b"body", 250)),
        (
            "addjob q b 5 REPLICATE 3 DELAY 2 RETRY 7 TTL 60 MAXLEN 9 ASYNC",
            cmd.AddJob(
                b"q",
                b"b",
                5,
                replicate=3,
                delay_ms=2_000,
                retry_ms=7_000,
                ttl_ms=60_000,
                maxlen=9,
                is_async=True,
            ),
        ),
        ("addjob q b 5 async rEtRy 0", cmd.AddJob(b"q", b"b", 5, retry_ms=0, is_async=True)),
        ("addjob q b 5 TTL 1 TTL 2 MAXLEN 1 MAXLEN 3", cmd.AddJob(b"q", b"b", 5, ttl_ms=2_000, maxlen=3)),
        ("addjob q b 5 REPLICATE 65535 DELAY 0", cmd.AddJob(b"q", b"b", 5, replicate=65_535)),
        # Left to the engine, which knows the cluster: RETRY 0 with copies, DELAY beyond TTL
        ("addjob q b 5 RETRY 0 REPLICATE 2", cmd.AddJob(b"q", b"b", 5, replicate=2, retry_ms=0)),
        ("addjob q b 5 DELAY 3 TTL 2", cmd.AddJob(b"q", b"b", 5, delay_ms=3_000, ttl_ms=2_000)),
        # No wrap at 32 bits (W-30), and none at 64
        ("addjob q b 5 RETRY 5000000", cmd.AddJob(b"q", b"b", 5, retry_ms=5_000_000_000)),
        ("addjob q b 5 TTL 2147483648", cmd.AddJob(b"q", b"b", 5, ttl_ms=2_147_483_648_000)),
        ("addjob q b 5 TTL 9223372036854775807", cmd.AddJob(b"q", b"b", 5, ttl_ms=cmd.DURATION_MAX_MS)),
        ("addjob q b 9223372036854775807", cmd.AddJob(b"q", b"b", cmd.DURATION_MAX_MS)),
    ],
)  # fmt: skip
def test_addjob(line: str, command: cmd.Command) -> None:
    assert parse(line) == command


@pytest.mark.parametrize(
    ("options", "text"),
    [
        *((f"REPLICATE {bad}", "REPLICATE must be between 1 and 65535")
          for bad in ("0", "-1", "65536", "70000", "2147483648", "x", "", "1.5")),
        *((f"TTL {bad}", "TTL must be a number > 0") for bad in ("0", "-1", "x", "", "9223372036854775808")),
        *((f"RETRY {bad}", "RETRY time must be a non negative number") for bad in ("-1", "x", "")),
        *((f"DELAY {bad}", "DELAY time must be a non negative number") for bad in ("-1", "x", "")),
        *((f"MAXLEN {bad}", "MAXLEN must be a positive number") for bad in ("0", "-1", "x", "")),
        *((word, "syntax error")
          for word in ("REPLICATE", "TTL", "RETRY", "DELAY", "MAXLEN", "FOO", "", "ASYNC 1", "RETRY 1 TTL")),
        # The leftmost failure wins
        ("TTL 0 FOO", "TTL must be a number > 0"),
        ("FOO TTL 0", "syntax error"),
        ("RETRY x REPLICATE 0", "RETRY time must be a non negative number"),
    ],
)  # fmt: skip
def test_addjob_refuses_bad_options_from_left_to_right(options: str, text: str) -> None:
    assert refusal(f"addjob q b 0 {options}") == f"ERR {text}"
    assert refusal(f"addjob q b -1 {options}") == f"ERR {text}"  # before the timeout


TIMEOUTS = [
    ("-1", "timeout is negative"),
    ("x", "timeout is not an integer or out of range"),
    ("", "timeout is not an integer or out of range"),
    ("1.5", "timeout is not an integer or out of range"),
    ("9223372036854775808", "timeout is not an integer or out of range"),
]


@pytest.mark.parametrize(("timeout", "text"), TIMEOUTS)
def test_addjob_refuses_a_bad_timeout_after_the_options(timeout: str, text: str) -> None:
    assert refusal(f"addjob q b {timeout}") == f"ERR {text}"
    assert refusal(f"addjob q b {timeout} ASYNC") == f"ERR {text}"


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("getjob FROM q", cmd.GetJob((b"q",))),
        ("getjob from a b a c b", cmd.GetJob((b"a", b"b", b"c"))),
        ("getjob FROM FROM NOHANG", cmd.GetJob((b"FROM", b"NOHANG"))),
        (
            "getjob WITHCOUNTERS count 5 NOHANG TIMEOUT 7 FROM q",
            cmd.GetJob((b"q",), 7, 5, is_nohang=True, with_counters=True),
        ),
        ("getjob COUNT 1 COUNT 2 TIMEOUT 1 TIMEOUT 0 FROM q", cmd.GetJob((b"q",), 0, 2)),
        ("getjob TIMEOUT 9223372036854775807 FROM q", cmd.GetJob((b"q",), cmd.DURATION_MAX_MS)),
    ],
)
def test_getjob(line: str, command: cmd.Command) -> None:
    assert parse(line) == command


@pytest.mark.parametrize(
    ("words", "text"),
    [
        *((f"COUNT {bad} FROM q", "COUNT must be a number greater than zero")
          for bad in ("0", "-1", "9223372036854775808", "1.5", "", "x")),
        *((f"TIMEOUT {bad} FROM q", text) for bad, text in TIMEOUTS),
        *((words, "syntax error")
          for words in ("q", "FROM", "NOHANG", "NOHANG FROM", "TIMEOUT", "COUNT", "FOO FROM q", "WITHCOUNTERS")),
        ("COUNT 0 FOO", "COUNT must be a number greater than zero"),
        ("FOO COUNT 0", "syntax error"),
        ("TIMEOUT FROM q", "timeout is not an integer or out of range"),
    ],
)  # fmt: skip
def test_getjob_refuses_in_parse_order(words: str, text: str) -> None:
    assert refusal(f"getjob {words}") == f"ERR {text}"


MANY = {
    "ackjob": cmd.AckJob,
    "fastack": cmd.FastAck,
    "deljob": cmd.DelJob,
    "enqueue": cmd.Enqueue,
    "nack": cmd.Nack,
    "dequeue": cmd.Dequeue,
}
ONE = {"working": cmd.Working, "show": cmd.Show}


@pytest.mark.parametrize("name", MANY)
def test_commands_of_many_ids(name: str) -> None:
    assert parse(name) == MANY[name](())
    assert parse(f"{name} {ID.decode()} {OTHER.decode()}") == MANY[name]((ID, OTHER))
    assert refusal(f"{name} {ID.decode()} bad") == "BADID Invalid Job ID format."


@pytest.mark.parametrize("name", ONE)
def test_commands_of_one_id(name: str) -> None:
    assert parse(f"{name} {ID.decode()}") == ONE[name](ID)
    assert refusal(f"{name} bad") == "BADID Invalid Job ID format."


def test_commands_of_a_queue() -> None:
    assert parse("qlen q") == cmd.QLen(b"q")
    assert parse("qstat q") == cmd.QStat(b"q")


@pytest.mark.parametrize(
    "line",
    ["addjob", "addjob q", "addjob q b", "getjob", "show", "working a b", "qlen", "qstat"],
)
def test_a_wrong_number_of_arguments_is_refused_here_too(line: str) -> None:
    name = line.partition(" ")[0]
    assert refusal(line) == f"ERR wrong number of arguments for '{name}' command"


junk = st.lists(
    st.sampled_from(
        [b"TTL", b"RETRY", b"COUNT", b"FROM", b"TIMEOUT", b"1", b"0", b"-1", b"", MAX, ID]
    )
    | st.binary(max_size=5)
)


@given(st.sampled_from(sorted(parsing.PARSED)), junk)
def test_junk_gives_a_command_or_a_command_error(name: bytes, args: list[bytes]) -> None:
    with suppress(CommandError):
        parsing.parse(name, args)
