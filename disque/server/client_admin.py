"""Client administration: the CLIENT command: who is connected, and what to do with them.

Texts and forms: reference 1.16; SETINFO and ID are what today's Redis clients ask for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import trio

from disque.core.integers import parse_int
from disque.core.ready import Status
from disque.errors import CommandError
from disque.server.render import Verbatim
from disque.server.shell import Later

if TYPE_CHECKING:
    from collections.abc import Callable

    from disque.server.connection import Client
    from disque.server.render import Answer
    from disque.server.shell import Shell

PIECE = 100  # connections that are listed, or ended, in a row: some ms
OK = Status(b"OK")
NOTHING = Verbatim(b"")
PAUSE_MS_MAX = 86_400_000  # a day; longer is surely a mistake in the unit
NAME_BYTES_MAX = 1_024  # of a connection's name, which is kept as long as the connection
_NAME_CHARACTERS = bytes(range(33, 127))
_T = TypeVar("_T")
_SYNTAX = "syntax error"
_USAGE = "Syntax error, try CLIENT (LIST | KILL ip:port | GETNAME | SETNAME connection-name)"


def client_(shell: Shell, client: Client, args: list[bytes]) -> Answer | Later:
    """`CLIENT LIST | ID | GETNAME | SETNAME | SETINFO | KILL | PAUSE | REPLY`."""
    match args[0].lower(), len(args):
        case b"list", 1:
            return _list(shell)
        case b"id", 1:
            return client.id
        case b"getname", 1:
            return client.name or None
        case b"setname", 2:
            check_name(args[1])
            client.name = args[1]
            return OK
        case b"setinfo", 3:
            return OK
        case b"reply", 2:
            return _set_reply(client, args[1].lower())
        case b"pause", 2:
            return _pause(shell, args[1])
        case b"kill", 2:
            return _kill_at(shell, client, args[1])
        case b"kill", count if count > 2:
            return _kill_some(shell, client, args[1:])
    raise CommandError(_USAGE)


def check_name(name: bytes) -> None:
    """CommandError if a connection can't be called so."""
    if len(name) > NAME_BYTES_MAX:
        raise CommandError(f"Client names have {NAME_BYTES_MAX} bytes at most, not {len(name)}")
    if name.translate(None, _NAME_CHARACTERS):
        text = "Client names cannot contain spaces, newlines or special characters."
        raise CommandError(text)


def client_line(client: Client, now_ms: int) -> str:
    """One line of CLIENT LIST."""
    flags = "".join(
        letter
        for letter, is_set in (
            ("O", client.is_monitor),
            ("b", client.is_waiting),
            ("c", client.is_closing and not client.is_dead),
            ("A", client.is_dead),
            ("U", client.address.startswith("unix:")),
        )
        if is_set
    )
    return (
        f"id={client.id} addr={client.address} fd={client.sock.fileno()} "
        f"name={client.name.decode()} "
        f"age={(now_ms - client.connected_at_ms) // 1000} "
        f"idle={(now_ms - client.idle_since_ms) // 1000} "
        f"flags={flags or 'N'} qbuf={client.decoder.pending_bytes} qbuf-free=0 "
        f"obl={client.owed_bytes} oll={len(client.backlog)} omem={client.backlog_bytes} "
        f"events={'rw' if client.backlog else 'r'} cmd={client.last_command}\n"
    )


def _list(shell: Shell) -> Answer | Later:
    """`LIST`: a line each, as they are when their turn comes."""
    clients, now_ms = list(shell.clients.by_id.values()), shell.clock.now_ms()

    def joined(lines: list[str]) -> Answer:
        return "".join(lines).encode("utf-8", "surrogateescape")

    return _of_each(clients, lambda each: client_line(each, now_ms), joined)


def _of_each(
    clients: list[Client], act: Callable[[Client], _T], answer: Callable[[list[_T]], Answer]
) -> Answer | Later:
    """What is answered when something was done with each; in pieces if there are many."""
    if len(clients) <= PIECE:
        return answer([act(each) for each in clients])

    async def find() -> Answer:
        found: list[_T] = []
        for first in range(0, len(clients), PIECE):
            await trio.lowlevel.checkpoint()
            found += [act(each) for each in clients[first : first + PIECE]]
        return answer(found)

    return Later(find)


def _set_reply(client: Client, word: bytes) -> Answer:
    """`REPLY ON | OFF | SKIP`: OFF and SKIP aren't answered themselves."""
    if word not in (b"on", b"off", b"skip"):
        raise CommandError(_SYNTAX)
    if word == b"on":
        client.is_off = client.is_mute = False
        return OK
    if word == b"off":
        client.is_off = True
    elif not client.is_off:
        client.is_skipping = True
    return NOTHING


def _pause(shell: Shell, raw: bytes) -> Answer:
    """`PAUSE <ms>`: nobody's commands run till then."""
    milliseconds = parse_int(raw)
    if milliseconds is None:
        raise CommandError("timeout is not an integer or out of range")
    if milliseconds < 0:
        raise CommandError("timeout is negative")
    shell.clients.pause(min(milliseconds, PAUSE_MS_MAX) / 1000)
    return OK


def _kill_at(shell: Shell, client: Client, address: bytes) -> Answer | Later:
    """`KILL <address>`, the old form."""
    wanted = address.decode("utf-8", "surrogateescape")
    found = [each for each in shell.clients.by_id.values() if each.address == wanted]
    if not found:
        raise CommandError("No such client")
    return _kill(client, found, lambda _: OK)


def _kill_some(shell: Shell, client: Client, args: list[bytes]) -> Answer | Later:
    """`KILL [ID n] [TYPE normal] [ADDR a] [SKIPME yes|no]`: how many there were."""
    found: list[Client] = list(shell.clients.by_id.values())
    is_sparing = True
    if len(args) % 2:
        raise CommandError(_SYNTAX)
    for option, text in zip(args[::2], args[1::2], strict=True):
        match option.lower():
            case b"id":
                number = parse_int(text)
                if number is None:
                    raise CommandError(_SYNTAX)
                found = [each for each in found if each.id == number]
            case b"type":
                if text.lower() != b"normal":
                    name = text.decode("utf-8", "surrogateescape")
                    raise CommandError(f"Unknown client type '{name}'")
            case b"addr":
                wanted = text.decode("utf-8", "surrogateescape")
                found = [each for each in found if each.address == wanted]
            case b"skipme" if text.lower() in (b"yes", b"no"):
                is_sparing = text.lower() == b"yes"
            case _:
                raise CommandError(_SYNTAX)
    if is_sparing:
        found = [each for each in found if each is not client]
    return _kill(client, found, len)


def _kill(
    client: Client, found: list[Client], answer: Callable[[list[None]], Answer]
) -> Answer | Later:
    """End connections; the one that asks is the last, and answered first: nothing waits between both."""
    found.sort(key=lambda each: each is client)
    return _of_each(found, lambda each: each.close_soon() if each is client else each.die(), answer)
