"""The prompt: completion, hints, and a history without secrets."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.history import InMemoryHistory

from disque.cli.repl import Words, hint, history

if TYPE_CHECKING:
    from pathlib import Path


def completions(line: str) -> list[str]:
    """What Tab offers at the end of a line."""
    return [each.text for each in Words().get_completions(Document(line), CompleteEvent())]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("ADDJ", ["ADDJOB"]),
        ("addj", ["addjob"]),
        ("que", ["queues"]),
        ("GETJOB NO", ["NOHANG"]),
        ("getjob nohang fr", ["from"]),
        ("CLUSTER SA", ["SAVECONFIG"]),
        ("", []),
        ("ADDJOB ", []),
        ("nosuch x", []),
    ],
)
def test_tab_completes_commands_and_their_words(line: str, offered: list[str]) -> None:
    assert completions(line) == offered


def test_hint_is_the_usage_of_what_is_typed() -> None:
    assert hint("ackjob D-").startswith("ACKJOB id…")
    assert "help" in hint("")


def test_history_keeps_no_secrets_and_is_its_owners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "deep" / "history"
    monkeypatch.setenv("DISQUE_HISTORY", str(path))
    kept = history()
    for line in (
        "ADDJOB q hello 0",
        "AUTH sesame",
        "config set RequirePass sesame",
        "HELLO 3 AUTH default sesame",
        '"auth" sesame',
        "nodes -a sesame",
        "nodes -asesame",
        "nodes --password=sesame",
        "nodes -u disque://:sesame@host",
    ):
        kept.append_string(line)
    assert "sesame" not in path.read_text()
    assert "ADDJOB q hello 0" in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_history_can_be_switched_off_and_its_folder_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISQUE_HISTORY", "")
    assert isinstance(history(), InMemoryHistory)
    (tmp_path / "file").touch()
    monkeypatch.setenv("DISQUE_HISTORY", str(tmp_path / "file" / "history"))
    assert isinstance(history(), InMemoryHistory)
