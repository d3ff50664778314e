"""The prompt: history, completion and hints around `command`; our own commands work there, too.

The connection is opened when it is needed and again after it broke. What holds a secret isn't kept in the history.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import click
from prompt_toolkit import PromptSession
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.completion import Completer, Completion
from prompt_toolkit.history import FileHistory, History, InMemoryHistory

from disque.cli.command import STREAMS, Style, names_of, run
from disque.cli.connection import Connection, ConnectionFailed
from disque.cli.grammar import SUBCOMMANDS, USAGE, names, option_words
from disque.cli.render import note, say, show_error
from disque.cli.settings import Settings
from disque.resp.inline import split_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from prompt_toolkit.completion import CompleteEvent
    from prompt_toolkit.document import Document

HISTORY_NAME = "DISQUE_HISTORY"  # of the environment: the file; empty for none
END_WORDS = ("exit", "quit")
# Lines that hold a password, and aren't kept.
SECRETS = re.compile(
    r"""\s*["']?(auth|hello\b.*\bauth)\b|.*(requirepass|cluster-secret|\s-a|\s--pass|://\S*@)""",
    re.I | re.S,
)


class Words(Completer):
    """Completes names of commands, and the capital words that a command takes."""

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        """For the word before the cursor."""
        del complete_event
        before = document.text_before_cursor.split()
        begun = "" if document.text_before_cursor[-1:].isspace() or not before else before.pop()
        if before:
            known = option_words(before[0])
        else:
            known = [*USAGE, *SUBCOMMANDS, *END_WORDS]
        for word in known:
            spelt = word.lower() if begun.islower() else word
            if begun and spelt.startswith(begun):
                yield Completion(spelt, -len(begun), display_meta=USAGE.get(word, ""))


class Keeping(FileHistory):
    """A history file that only its owner can read, and that holds no secrets."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        super().__init__(str(path))

    def store_string(self, string: str) -> None:
        """Keep a line, unless it holds a password."""
        if not SECRETS.match(string):
            super().store_string(string)


class Repl:
    """Reads lines and runs them until `exit`, `quit` or Ctrl-D."""

    def __init__(self, ctx: click.Context, connect: Callable[[], Connection], style: Style) -> None:
        self._ctx = ctx
        self._connect = connect
        self._style = style
        self._settings = ctx.ensure_object(Settings)
        self._connection: Connection | None = None
        self._session: PromptSession[str] = PromptSession(
            history=history(),
            completer=Words(),
            complete_while_typing=True,
            auto_suggest=AutoSuggestFromHistory(),
            bottom_toolbar=lambda: hint(self._session.default_buffer.text),
        )

    def run(self) -> int:
        """Until the end; returns the exit status. A first connection that fails is told, and tried again later."""
        self._reach()
        while True:
            try:
                line = self._session.prompt(self._prompt())
            except KeyboardInterrupt:
                continue
            except EOFError:
                break
            words = self._split(line)
            if words and names_of(words)[0] in END_WORDS:
                break
            if words:
                self._run(words)
        self._drop()
        return 0

    def _prompt(self) -> str:
        return f"{self._connection.address}> " if self._connection else "not connected> "

    def _split(self, line: str) -> list[bytes]:
        try:
            return split_words(line.encode("utf-8", "surrogateescape"))
        except ValueError as error:
            note(f"{error}")
            return []

    def _run(self, words: list[bytes]) -> None:
        name = os.fsdecode(words[0])
        try:
            if name == "help" and len(words) == 1:
                say(names())
            elif name in SUBCOMMANDS:
                self._run_ours([os.fsdecode(word) for word in words])
            elif connection := self._reach():
                status = run(connection, words, self._style)
                if name.lower() == "auth" and status == 0:
                    self._remember(words[1:])
        except click.Abort:
            pass
        except KeyboardInterrupt:
            # A reply may be half read, or still to come.
            self._drop()
            if name.lower() not in STREAMS:
                note("Not waited for; it may have been carried out.")
        except ConnectionFailed as error:
            self._drop()
            note(f"Error: {error.format_message()}")

    def _remember(self, words: list[bytes]) -> None:
        """AUTH holds for the next connection, too."""
        *user, password = [word.decode("utf-8", "surrogateescape") for word in words]
        self._settings.password = password
        self._settings.user = user[0] if user else None

    def _run_ours(self, words: list[str]) -> None:
        root = self._ctx.find_root()
        command = root.command
        assert isinstance(command, click.Group)
        found = command.get_command(self._ctx, words[0])
        assert found is not None
        # Their options hold for this one call.
        settings = attrs.evolve(self._settings)
        try:
            found.main(words[1:], prog_name=words[0], standalone_mode=False, obj=settings)
        except ConnectionFailed as error:
            note(f"Error: {error.format_message()}")
        except click.ClickException as error:
            show_error(error)

    def _reach(self) -> Connection | None:
        if self._connection is None:
            try:
                self._connection = self._connect()
            except click.ClickException as error:
                note(f"Error: {error.format_message()}")
        return self._connection

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def history() -> History:
    """Where lines are kept: $DISQUE_HISTORY, else in the user's state folder; in memory if that can't be written."""
    named = os.environ.get(HISTORY_NAME)
    if named == "":
        return InMemoryHistory()
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    try:
        return Keeping(Path(named or f"{state}/disque/history").expanduser())
    except (OSError, RuntimeError):
        return InMemoryHistory()


def hint(line: str) -> str:
    """How the command that is being typed is called; what can be typed, before there is one."""
    name = line.split(maxsplit=1)[0].upper() if line.strip() else ""
    if name in USAGE:
        return f"{name} {USAGE[name]}"
    return "help [command]   exit   Tab completes"
