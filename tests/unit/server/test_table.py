"""The command table against reference 0.4."""

from __future__ import annotations

import pytest

from disque.core.parsing import PARSED
from disque.errors import CommandError
from disque.server.admin import ADMIN
from disque.server.table import COMMANDS, find_command


def refusal(*words: bytes) -> str:
    with pytest.raises(CommandError) as refused:
        find_command(list(words))
    return f"{refused.value.code} {refused.value}"


def test_there_are_disques_32_commands_and_11_of_ours_and_the_key_is_the_name() -> None:
    assert len(COMMANDS) == 32 + 5 + 6
    assert all(spec.name == name == name.lower() for name, spec in COMMANDS.items())


@pytest.mark.parametrize(
    ("name", "arity", "flags"),
    [
        (b"auth", -2, b"readonly loading fast"),
        (b"command", 0, b"readonly loading"),
        (b"hello", -1, b"readonly fast"),  # ours takes arguments
        (b"addjob", -4, b"write denyoom fast"),
        (b"getjob", -2, b"write fast"),
        (b"loadjob", 2, b"write"),
        (b"pause", -3, b"readonly fast"),
        (b"qstat", -2, b"readonly fast"),  # ours takes arguments
        (b"globalqlen", -2, b"readonly"),
        (b"qpurge", -2, b"write"),
        (b"canceljob", -1, b"write"),
        (b"revive", -1, b"write"),
        (b"waitjob", -2, b"readonly"),
        (b"publish", 3, b"readonly fast"),
        (b"subscribe", -2, b"readonly"),
        (b"psubscribe", -2, b"readonly"),
        (b"unsubscribe", -1, b"readonly"),
        (b"punsubscribe", -1, b"readonly"),
        (b"pubsub", -2, b"readonly"),
    ],
)
def test_rows_of_the_table(name: bytes, arity: int, flags: bytes) -> None:
    spec = COMMANDS[name]
    assert (spec.arity, spec.flags) == (arity, tuple(flags.split()))


@pytest.mark.parametrize("name", [b"addjob", b"getjob", b"hello", b"jscan", b"client"])
def test_only_commands_about_many_take_very_many_words(name: bytes) -> None:
    assert find_command([name, *[b"x"] * 10_000]).name == name
    text = f"ERR too many arguments for '{name.decode()}' command, at most 10000"
    assert refusal(name, *[b"x"] * 10_001) == text
    assert find_command([b"ackjob", *[b"x"] * 10_001]).name == b"ackjob"


def test_only_three_commands_are_refused_when_memory_is_short() -> None:
    denied = [name for name, spec in COMMANDS.items() if b"denyoom" in spec.flags]
    assert denied == [b"addjob", b"enqueue", b"nack"]


def test_every_command_has_somebody_who_answers_it() -> None:
    assert PARSED | set(ADMIN) == set(COMMANDS)
    assert not PARSED & set(ADMIN)


def test_renamed_commands_answer_to_their_new_names_alone() -> None:
    renames = {b"qlen": b"", b"length": b"qlen", b"shutdown": b""}
    assert find_command([b"Length", b"q"], renames).name == b"qlen"
    for name in (b"QLEN", b"shutdown"):
        with pytest.raises(CommandError, match=f"unknown command '{name.decode()}'"):
            find_command([name, b"q"], renames)
    with pytest.raises(CommandError, match="for 'qlen' command"):
        find_command([b"length"], renames)


def test_names_are_found_in_any_case_and_shown_as_sent() -> None:
    assert find_command([b"PiNg"]).name == b"ping"
    assert refusal(b"FooBar", b"x") == "ERR unknown command 'FooBar'"
    assert refusal(b"") == "ERR unknown command ''"
    assert refusal(b"\xff") == "ERR unknown command '\udcff'"
    assert refusal(b"x" * 1000) == f"ERR unknown command '{'x' * 128}'"


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (b"ADDJOB q b", "addjob"),
        (b"GetJob", "getjob"),
        (b"SHOW", "show"),
        (b"show a b", "show"),
        (b"TIME now", "time"),
        (b"auth", "auth"),
    ],
)
def test_wrong_counts_are_refused_with_the_lower_case_name(words: bytes, name: str) -> None:
    assert refusal(*words.split()) == f"ERR wrong number of arguments for '{name}' command"


@pytest.mark.parametrize(
    "words", [b"PING", b"PING x", b"ACKJOB", b"COMMAND", b"COMMAND a b", b"HELLO 3"]
)
def test_arity_allows(words: bytes) -> None:
    assert find_command(words.split()).name == words.split()[0].lower()
