"""Dispatch: one command of a client, from its words to the broker or to an administrative
function.

The order of checks is Disque's (reference 0.3): QUIT, name, number of words, authentication; then
the command itself. It knows who answers what, nothing of bytes or sockets.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from disque.core.parsing import parse
from disque.errors import CommandError
from disque.resp import encoder
from disque.server.admin import ADMIN
from disque.server.info import Usage
from disque.server.render import render
from disque.server.shell import Forward, Later
from disque.server.table import find_command

if TYPE_CHECKING:
    from collections.abc import Mapping

    from disque.core.commands import Command
    from disque.server.connection import Client
    from disque.server.shell import Shell

_BEFORE_AUTH = (b"auth", b"hello")  # HELLO with arguments sees to authentication itself


def execute(shell: Shell, client: Client, words: list[bytes]) -> None:
    """Carry out one command: it leaves an answer or an open slot with the client."""
    started_ns = time.perf_counter_ns()
    try:
        if shell.renames:
            _rename(shell.renames, words)
        spec = find_command(words)
        name = spec.name
        if shell.config.requirepass and not client.is_authenticated:
            _check_authenticated(name, words)
        client.last_command = name.decode()
        admin = ADMIN.get(name)
        if admin is None:
            _forward(shell, client, parse(name, words[1:]))
        else:
            answer = admin(shell, client, words[1:])
            if isinstance(answer, Later):
                shell.finish_later(client, answer)
            elif isinstance(answer, Forward):
                _forward(shell, client, answer.command)
            else:
                client.answer(render(answer, client.proto))
    except CommandError as error:
        if words[0].lower() == b"quit":
            client.answer(encoder.OK)
            client.close_soon()
            return
        client.answer(encoder.error(error.code, str(error)))
        return
    figures = shell.figures
    figures.commands_processed += 1
    usage = figures.usages.get(name)
    if usage is None:
        usage = figures.usages[name] = Usage()
    usage.calls += 1
    usage.usec += (time.perf_counter_ns() - started_ns) // 1000


def _rename(renames: Mapping[bytes, bytes], words: list[bytes]) -> None:
    """Put the table's name in place of the one sent; a name that was taken away is unknown."""
    name = renames.get(words[0].lower())
    if name == b"":
        text = words[0].decode("utf-8", "surrogateescape")
        raise CommandError(f"unknown command '{text}'")
    if name is not None:
        words[0] = name


def _forward(shell: Shell, client: Client, command: Command) -> None:
    """Give a command to the broker; its reply comes with this batch or, if the client must wait, later."""
    broker = shell.broker
    client.open_slot()
    if not broker.command(client.id, command):
        client.is_waiting = True


def _check_authenticated(name: bytes, words: list[bytes]) -> None:
    if name not in _BEFORE_AUTH or (name == b"hello" and len(words) == 1):
        raise CommandError("Authentication required.", "NOAUTH")
