"""The command: what it answers without a server."""

from __future__ import annotations

import pytest

from disque.server.config import DIRECTIVES
from disque.server.main import help_text, main


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == "disque-broker 0.1.0\n"


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
