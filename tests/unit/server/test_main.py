"""The command: what it answers without a server."""

from __future__ import annotations

import pytest

from disque.server.config import DIRECTIVES
from disque.server.main import help_text, main


@pytest.mark.parametrize("before", [[], ["--port", "7711"], ["no.conf"]])
def test_version_and_help_may_be_asked_for_at_the_end(
    before: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*before, "--version"]) == 0
    assert capsys.readouterr().out == "disque-broker 0.1.0\n"
    assert main([*before, "--help"]) == 0
    assert capsys.readouterr().out == help_text()


def test_what_follows_a_directive_is_its_value(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--port", "-h"]) == 1
    assert "'-h'" in capsys.readouterr().err


def test_help_names_every_directive() -> None:
    text = help_text()
    assert [name for name in DIRECTIVES if f"\n  {name} " not in text] == []


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--nosuch", "1"], "--nosuch: unknown directive 'nosuch'\n"),
        (["--prot", "1"], "--prot: unknown directive 'prot'; did you mean --port?\n"),
        (
            ["--logfile", "/nonexistent/log"],
            "logfile /nonexistent/log: No such file or directory\n",
        ),
        (["--daemonize", "yes"], "daemonize yes "),
    ],
)
def test_wrong_directive_is_one_line_and_status_1(
    words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 1
    error = capsys.readouterr().err
    assert error.startswith("disque-server: ")
    assert complaint in error
    assert error.count("\n") == 1
