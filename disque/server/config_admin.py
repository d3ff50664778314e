"""Config administration: the CONFIG command.

`config` knows the settings, `rewriting` the file; here is what a client may ask and what it is told.
Texts: reference 1.17.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from disque.core.ready import Status
from disque.errors import CommandError, ConfigError
from disque.server.config import DIRECTIVES
from disque.server.render import Pairs
from disque.server.rewriting import present, replace_file, rewrite_file, rewritten
from disque.server.shell import Later

if TYPE_CHECKING:
    from collections.abc import Iterator

    from disque.server.config import Config
    from disque.server.connection import Client
    from disque.server.eventlog import EventLog
    from disque.server.render import Answer
    from disque.server.shell import Shell

OK = Status(b"OK")
_COUNTS = {b"get": 2, b"set": 3, b"resetstat": 1, b"rewrite": 1}


def config(shell: Shell, client: Client, args: list[bytes]) -> Answer | Later:
    """`CONFIG GET <glob> | SET <name> <value> … | RESETSTAT | REWRITE`."""
    word = args[0].lower()
    if word not in _COUNTS:
        raise CommandError("CONFIG subcommand must be one of GET, SET, RESETSTAT, REWRITE")
    pairs = list(zip(map(_text, args[1::2]), map(_text, args[2::2]), strict=False))
    is_of_files = word == b"set" and len(args) % 2 == 1 and _are_files(pairs)
    if len(args) != _COUNTS[word] and not is_of_files:
        raise CommandError(f"Wrong number of arguments for CONFIG {_text(args[0])}")
    if word == b"get":
        return Pairs(
            {
                name.encode(): text.encode("utf-8", "surrogateescape")
                for name, text in shell.config.get(_text(args[1]))
            }
        )
    if word == b"set":
        return _set_files(shell, client, pairs) if is_of_files else _set(shell, client, *pairs[0])
    if word == b"rewrite":
        if not shell.config.config_file:
            raise CommandError("The server is running without a config file")
        return Later(lambda: _rewrite(shell))
    shell.figures.reset(shell.clients.by_id.values())
    return OK


async def _rewrite(shell: Shell) -> Answer:
    await rewrite(shell)
    return OK


async def rewrite(shell: Shell) -> None:
    """Bring the configuration file up to date, one client after the other; CommandError if that can't be.

    A thread waits for the disk.
    """
    async with shell.rewriting:
        with _told(shell.config, shell.events):
            path = Path(shell.config.config_file)
            old, mode = await trio.to_thread.run_sync(present, path)
            new = rewritten(old, shell.config)
            await trio.to_thread.run_sync(replace_file, path, new, mode)


def rewrite_config(config: Config, events: EventLog) -> None:
    """The same at once, waiting for the disk: at a start."""
    with _told(config, events):
        rewrite_file(config)


@contextlib.contextmanager
def _told(config: Config, events: EventLog) -> Iterator[None]:
    """What goes wrong is the client's error, what goes well a line in the log."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise CommandError(f"Rewriting config file: {reason}") from None
    except ConfigError as error:  # an included file has become unreadable
        raise CommandError(f"Rewriting config file: {error}") from None
    events.event("notice", "configuration-rewritten", file=config.config_file)


def _set(shell: Shell, client: Client, name: str, text: str) -> Answer | Later:
    """CONFIG SET: what can't be applied is put back. Switching the log takes time."""
    directive = DIRECTIVES.get(name.lower())
    old = None if directive is None else getattr(shell.config, directive.attribute)
    changed = shell.config.set(name, text)
    if changed is None and directive is not None and directive.is_reloaded:
        changed = directive.name
    if changed == "appendonly":
        return Later(shell.persistence.switch)
    if changed is not None and directive is not None:
        try:
            shell.apply_setting(changed, client)
        except CommandError:
            setattr(shell.config, directive.attribute, old)
            raise
    return _answer(shell, client)


def _answer(shell: Shell, setter: Client) -> Answer | Later:
    """OK, once what was set holds for everybody."""
    reviews = shell.clients.reviews
    if not reviews.is_under_way:
        return OK

    async def find() -> Answer:
        await reviews.wait_over()
        # the last one, and answered whatever it is: nothing waits between both
        reviews.judge(setter, is_setter=True)
        return OK

    return Later(find)


def _are_files(pairs: list[tuple[str, str]]) -> bool:
    """True if all are about files that are read again: a certificate and its key have to change together."""
    found = [DIRECTIVES.get(name.lower()) for name, _ in pairs]
    return len(found) > 1 and all(each is not None and each.is_reloaded for each in found)


def _set_files(shell: Shell, client: Client, pairs: list[tuple[str, str]]) -> Answer | Later:
    """CONFIG SET of several files: all of them, or none."""
    directives = [DIRECTIVES[name.lower()] for name, _ in pairs]
    old = [(each.attribute, getattr(shell.config, each.attribute)) for each in directives]
    try:
        for name, text in pairs:
            shell.config.set(name, text)
        shell.apply_setting(directives[0].name, client)
    except CommandError:
        for attribute, value in old:
            setattr(shell.config, attribute, value)
        raise
    return _answer(shell, client)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")
