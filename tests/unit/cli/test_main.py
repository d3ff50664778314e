"""The command line: our commands by their lower-case names, any other word is the server's."""

from __future__ import annotations

import re
import sys
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

import disque
from disque.cli import entry
from disque.cli.exits import WRONG_USAGE
from disque.cli.grammar import SUBCOMMANDS, USAGE, names, option_words
from disque.cli.main import Passthrough, cli
from disque.server.table import COMMANDS

NOWHERE = ("-h", "127.0.0.1", "-p", "1")  # nothing listens there


def run(*words: str, **more: Any) -> Result:
    """Run the tool in this process."""
    return CliRunner().invoke(cli, words, prog_name="disque", **more)


def resolve(*words: str) -> tuple[str | None, click.Command | None, list[str]]:
    """Who gets these words."""
    ctx = click.Context(cli, info_name="disque")
    assert isinstance(cli, click.Group)
    return cli.resolve_command(ctx, list(words))


def test_help_names_every_command_with_a_line_of_its_own() -> None:
    text = run("--help").output
    for name in SUBCOMMANDS:
        assert re.search(rf"^  {name} +\S", text, re.M), name
    for name in USAGE:
        assert name in text


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_each_of_ours_has_help_that_begins_with_what_it_does(name: str) -> None:
    result = run(name, "--help")
    assert result.exit_code == 0, result.output
    assert f"Usage: disque {name}" in result.output


def test_help_tells_how_a_command_is_called() -> None:
    assert run("help", "qlen").output == "QLEN queue\n"
    assert run("help", "queues").output.startswith("Usage: disque queues [OPTIONS] [PATTERN]")
    assert run("help", "jobs", "list").output.startswith("Usage: disque jobs list [OPTIONS]")
    assert run("help", "cluster", "nodes").output.startswith("CLUSTER ")
    assert run("help", "jobs", "nosuch").exit_code == WRONG_USAGE
    assert run("help").output == run("--help").output
    assert run("help", "nosuch").exit_code == WRONG_USAGE
    assert all(name in names() for name in [*USAGE, *SUBCOMMANDS])


def test_version() -> None:
    assert run("--version").output == f"disque {disque.__version__}\n"


@pytest.mark.parametrize(
    "word", ["PING", "info", "hello", "Jobs", "TOP", "nosuch", "client", "cluster"]
)
def test_any_other_word_is_the_servers(word: str) -> None:
    name, command, rest = resolve(word, "--help", "-p", "--")
    assert isinstance(command, Passthrough)
    assert (name, command.name, rest) == (word, word, ["--help", "-p", "--"])


def test_no_command_of_the_server_is_hidden_by_one_of_ours() -> None:
    assert not {name.decode() for name in COMMANDS} & set(SUBCOMMANDS)


def test_every_command_of_the_server_has_a_usage() -> None:
    assert set(USAGE) == {name.decode().upper() for name in COMMANDS} | {"QUIT"}


def test_option_words_are_those_of_the_usage() -> None:
    assert option_words("getjob") == ["NOHANG", "TIMEOUT", "COUNT", "WITHCOUNTERS", "FROM"]
    assert "SAVECONFIG" in option_words("CLUSTER")
    assert option_words("nosuch") == []


WRONG = [
    (("-p", "0", "PING"), "-p"),
    (("-p", "x", "PING"), "-p"),
    (("-u", "redis://h", "PING"), "redis://h"),
    (("--nosuch",), "--nosuch"),
    (("queues", "--sort", "x"), "--sort"),
    (("jobs", "list", "--state", "x"), "--state"),
    (("jobs", "show", "x"), "no job id: 'x'"),
    (("jobs", "cancel"), "name the jobs"),
    (("jobs", "-q", "mail", "cancel"), "behind the command"),
    (("export", "q", "--move"), "--output"),
    (("import", "/nosuch/file"), "/nosuch/file"),
    (("leave", "--cancel", "--wait"), "--cancel"),
    (("completion", "tcsh"), "tcsh"),
    (("-X", "BODY", "ADDJOB", "q"), "-X BODY"),
]


@pytest.mark.parametrize(("words", "complaint"), WRONG)
def test_wrong_usage_is_status_2_and_names_it(
    words: tuple[str, ...], complaint: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert entry.main(words) == WRONG_USAGE
    out, err = capfd.readouterr()
    assert out == ""
    assert complaint in err
    assert "Traceback" not in err


@pytest.mark.parametrize("words", [("PING",), ("queues",), ("top",), ("bench",), ("drain", "q")])
def test_no_connection_is_status_3_and_names_the_address(
    words: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    assert entry.main([*NOWHERE, *words]) == 3
    out, err = capfd.readouterr()
    assert out == ""
    assert "127.0.0.1:1" in err
    assert "refused" in err


def test_options_may_stand_behind_our_commands(capfd: pytest.CaptureFixture[str]) -> None:
    assert entry.main(["queues", *NOWHERE]) == 3
    assert "127.0.0.1:1" in capfd.readouterr().err


def test_missing_extra_is_one_clear_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "click", None)
    assert entry.main(["PING"]) == WRONG_USAGE
    assert "pip install 'disque-broker[cli]'" in capsys.readouterr().err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_asks_the_tool(shell: str) -> None:
    result = run("completion", shell)
    assert result.exit_code == 0
    assert "_DISQUE_COMPLETE" in result.output


@pytest.mark.parametrize(
    ("begun", "wanted"),
    [
        ("qu", "queues"),
        ("ADDJ", "ADDJOB"),
        ("addj", "addjob"),
        ("jobs ca", "cancel"),
        ("queues --so", "--sort"),
    ],
)
def test_completion_knows_our_commands_options_and_the_servers(begun: str, wanted: str) -> None:
    words = f"disque {begun}".split()
    environment = {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    result = run(env={**environment, "_DISQUE_COMPLETE": "bash_complete"})
    assert f"plain,{wanted}" in result.output.splitlines()
