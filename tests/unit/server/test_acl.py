"""Users: how a line is read, and what it lets its user do."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, get_args

import attrs
import pytest

from disque.core import commands as cmd
from disque.core.jobid import JobId
from disque.core.topics import Kind
from disque.errors import CommandError
from disque.server.acl import CATEGORIES, DEFAULT, User, parse_user
from disque.server.table import COMMANDS

if TYPE_CHECKING:
    from collections.abc import Callable

SHA = "#" + sha256(b"secret").hexdigest()
ID, OTHER = JobId(b"D-%038d" % 1), JobId(b"D-%038d" % 2)


def user(rules: str) -> User:
    return parse_user(["worker", "on", SHA, *rules.split()])


def test_a_line_is_name_switch_digests_commands_and_names() -> None:
    words = [
        "worker",
        "on",
        SHA,
        SHA.upper().replace("#", "#"),
        "+getjob",
        "+ACKJOB",
        "~jobs",
        "~mail*",
    ]
    digest = sha256(b"secret").digest()
    assert parse_user(words) == User(
        "worker",
        is_on=True,
        digests=(digest, digest),
        commands=frozenset({b"getjob", b"ackjob"}),
        names=frozenset({b"jobs"}),
        prefixes=(b"mail",),
    )


def test_rules_are_read_from_left_to_right() -> None:
    assert user("+@all -debug -config").commands == frozenset(COMMANDS) - {b"debug", b"config"}
    assert user("-getjob +@client").commands == CATEGORIES["client"]


@pytest.mark.parametrize(
    ("words", "has_everything"),
    [
        (["on", "+@all", "~*"], True),
        (["off", "+@all", "~*"], False),
        (["on", "+@all", "~mail*"], False),
        (["on", "+@all", "-debug", "~*"], False),
        (["on", "+@client", "~*"], False),
    ],
)
def test_who_may_do_everything_is_on_and_has_all_commands_and_names(
    words: list[str], has_everything: bool
) -> None:
    digest = "#" + "0" * 64
    assert parse_user(["ann", *words, digest]).has_everything is has_everything


def test_nobody_but_administrators_is_in_the_category_of_clients() -> None:
    assert not [name for name in CATEGORIES["client"] if b"admin" in COMMANDS[name].flags]
    assert not {b"qpurge", b"pause", b"qscan", b"jscan", b"deljob"} & CATEGORIES["client"]


def test_who_is_off_needs_no_password() -> None:
    assert not parse_user(["worker", "off"]).is_on


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "must be NAME on|off"),
        (["worker"], "must be NAME on|off"),
        (["worker", "maybe"], "must be NAME on|off"),
        (["worker", "on"], "worker: a user that is on needs #SHA256 of its password"),
        (["two words", "on", SHA], "'two words': a name has 1 to 64 letters"),
        (["default", "on", SHA], "default has all rights"),
        (["worker", "on", SHA, "+nosuch"], "has no command 'nosuch'"),
        (["worker", "on", SHA, "+@nosuch"], "has no category '@nosuch', only @all @client"),
        (["worker", "on", SHA, "getjob"], "worker: must be NAME on|off [^']*$"),
        (["worker", "on", ">password"], "worker: must be NAME on|off [^']*$"),
        (
            ["worker", "on", SHA, "~*mail"],
            r"worker: a star stands at the end of a name only, got '~\*mail'",
        ),
        (["worker", "on", SHA, "~"], "worker: must be NAME on|off [^']*$"),
    ],
)
def test_what_is_wrong_in_a_line_is_named(words: list[str], text: str) -> None:
    with pytest.raises(ValueError, match=text.replace("|", r"\|")):
        parse_user(words)


@pytest.mark.parametrize("digest", ["#123", SHA + "0", "#" + "g" * 64])
def test_a_wrong_digest_is_not_repeated(digest: str) -> None:
    with pytest.raises(ValueError, match="64 hexadecimal digits") as refused:
        parse_user(["worker", "on", digest])
    assert digest not in str(refused.value)


# Commands


def refusal(act: Callable[[], None]) -> str:
    with pytest.raises(CommandError) as refused:
        act()
    assert refused.value.code == "NOPERM"
    return str(refused.value)


def test_a_command_that_was_not_given_is_refused_by_name() -> None:
    worker = user("+getjob ~*")
    worker.check_command(b"getjob", [])
    text = "User worker has no permissions to run the 'qpurge' command"
    assert refusal(lambda: worker.check_command(b"qpurge", [b"q"])) == text


@pytest.mark.parametrize("name", [b"auth", b"hello", b"ping", b"command"])
def test_what_a_connection_needs_at_its_start_is_for_everybody(name: bytes) -> None:
    user("").check_command(name, [])


@pytest.mark.parametrize(
    "words", [[b"SETNAME", b"x"], [b"getname"], [b"SetInfo"], [b"ID"], [b"reply"]]
)
def test_words_of_client_about_the_own_connection_are_for_everybody(words: list[bytes]) -> None:
    user("").check_command(b"client", words)


@pytest.mark.parametrize("words", [[], [b"LIST"], [b"kill", b"1"], [b"PAUSE"]])
def test_words_of_client_about_others_are_not(words: list[bytes]) -> None:
    refusal(lambda: user("+@client").check_command(b"client", words))


# Queues and topics

ALLOWED: list[cmd.Command] = [
    cmd.AddJob(b"jobs", b"x", 0),
    cmd.AddJob(b"mail-in", b"x", 0, dead_queue=b"jobs"),
    cmd.GetJob((b"jobs", b"mail-in")),
    cmd.QLen(b"jobs"),
    cmd.QStat(b"mail"),
    cmd.JScan(queue=b"jobs"),
    cmd.AckJob((ID,)),
    cmd.Show(ID),
    cmd.Publish(b"mail.x", b""),
    cmd.Subscribe(1, ((Kind.CHANNEL, b"jobs"), (Kind.PREFIX, b"mail."))),
    cmd.Unsubscribe(1, None),
    cmd.WaitJob(()),
]
REFUSED: list[tuple[cmd.Command, str]] = [
    (cmd.AddJob(b"other", b"x", 0), "other"),
    (cmd.AddJob(b"jobs", b"x", 0, dead_queue=b"other"), "other"),
    (cmd.GetJob((b"jobs", b"other")), "other"),
    (cmd.GetJob((b"job",)), "job"),
    (cmd.GetJob((b"jobs2",)), "jobs2"),
    (cmd.GetJob((b"mai",)), "mai"),
    (cmd.QLen(b""), ""),
    (cmd.QStat(b"other"), "other"),
    (cmd.QPeek(b"other", 1), "other"),
    (cmd.QPurge(b"other"), "other"),
    (cmd.GlobalQLen(b"other"), "other"),
    (cmd.Pause(b"other", 1), "other"),
    (cmd.Attend(b"other", 1), "other"),
    (cmd.CountAttending(b"other"), "other"),
    (cmd.CountReached(b"other"), "other"),
    (cmd.NumSub((b"jobs", b"other")), "other"),
    (cmd.Publish(b"other", b""), "other"),
    (cmd.Subscribe(1, ((Kind.PREFIX, b"jobs"),)), "jobs*"),
    (cmd.Subscribe(1, ((Kind.PREFIX, b""),)), "*"),
    (cmd.JScan(), "*"),
    (cmd.JScan(queue=b"other"), "other"),
    (cmd.QScan(), "*"),
    (cmd.FlushAll(), "*"),
    (cmd.Show(OTHER), "other"),
    (cmd.Working(OTHER), "other"),
    (cmd.AckJob((ID, OTHER)), "other"),
    (cmd.FastAck((OTHER,)), "other"),
    (cmd.DelJob((OTHER,)), "other"),
    (cmd.Enqueue((OTHER,)), "other"),
    (cmd.Nack((OTHER,)), "other"),
    (cmd.Dequeue((OTHER,)), "other"),
    (cmd.Revive((OTHER,)), "other"),
    (cmd.CancelJob((OTHER,)), "other"),
    (cmd.WaitJob((OTHER,)), "other"),
    (cmd.Renew((OTHER,)), "other"),
]


def queue_of(id_: bytes) -> bytes | None:
    return {ID: b"jobs", OTHER: b"other"}.get(JobId(id_))


@pytest.mark.parametrize("command", ALLOWED)
def test_names_that_were_given_may_be_used(command: cmd.Command) -> None:
    user("~jobs ~mail*").check_names(command, queue_of)


@pytest.mark.parametrize(("command", "name"), REFUSED)
def test_others_may_not_and_are_named(command: cmd.Command, name: str) -> None:
    text = f"User worker has no permissions on '{name}'"
    assert refusal(lambda: user("~jobs ~mail*").check_names(command, queue_of)) == text


@pytest.mark.parametrize("command", [each for each, _ in REFUSED])
def test_default_and_a_star_may_use_all(command: cmd.Command) -> None:
    DEFAULT.check_names(command, queue_of)
    user("~*").check_names(command, queue_of)


def test_each_command_that_names_a_queue_a_topic_or_a_job_is_asked_about() -> None:
    """A command that is added to the core is refused here until somebody has thought of it."""
    shown = {type(command) for command, _ in REFUSED}
    unasked = {each for each in get_args(cmd.Command) if each not in shown}
    assert unasked == {cmd.Unsubscribe}
    for kind in shown:
        assert attrs.has(kind)


def test_a_job_that_is_not_known_here_is_known_by_its_id_alone() -> None:
    user("~jobs").check_names(cmd.AckJob((JobId(b"D-" + b"x" * 38),)), queue_of)
