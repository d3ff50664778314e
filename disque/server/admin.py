"""Admin: the commands that the shell answers by itself, one function each, in the table `ADMIN`.

A function takes the shell, the client and the words after the name, and returns the answer, or
raises CommandError. Texts and order of checks are Disque's (reference 1.13-1.18); HELLO with a
version is ours (extensions.md).
"""

from __future__ import annotations

import time
from hmac import compare_digest
from typing import TYPE_CHECKING

import disque
from disque.core.commands import FlushAll
from disque.core.integers import parse_int
from disque.core.ready import Status
from disque.errors import CommandError
from disque.resp import encoder
from disque.server.cluster_admin import cluster, known_nodes
from disque.server.info import info_text
from disque.server.render import Answer, Pairs, Verbatim
from disque.server.shell import Forward, Later
from disque.server.table import COMMANDS, CommandSpec, wrong_count

if TYPE_CHECKING:
    from collections.abc import Callable

    from disque.server.connection import Client
    from disque.server.shell import Shell

OK = Status(b"OK")
NOTHING = Verbatim(b"")
PASSWORD_BYTES_MAX = 512
SLEEP_S_MAX = 3_600.0
_SYNTAX = "syntax error"
_NAME_TEXT = "Client names cannot contain spaces, newlines or special characters."


def ping(shell: Shell, client: Client, args: list[bytes]) -> Answer:
    """`PING [message]`."""
    if len(args) > 1:
        raise wrong_count(b"ping")
    return args[0] if args else Status(b"PONG")


def auth(shell: Shell, client: Client, args: list[bytes]) -> Answer:
    """`AUTH <password>`; a wrong one takes back an earlier right one."""
    password = shell.config.requirepass
    if not password:
        raise CommandError("Client sent AUTH, but no password is set")
    client.is_authenticated = _is_password(args[0], password)
    if not client.is_authenticated:
        raise CommandError("invalid password")
    return OK


def _is_password(given: bytes, password: str) -> bool:
    """Compare in a time that tells nothing."""
    return len(given) <= PASSWORD_BYTES_MAX and compare_digest(
        given, password.encode("utf-8", "surrogateescape")
    )


def hello(shell: Shell, client: Client, args: list[bytes]) -> Answer:
    """`HELLO [2|3 [AUTH <user> <password>] [SETNAME <name>]]`; an error changes nothing."""
    if not args:
        return known_nodes(shell, client)
    proto = parse_int(args[0])
    if proto is None:
        raise CommandError("Protocol version is not an integer or out of range")
    if proto not in (2, 3):
        raise CommandError("unsupported protocol version", "NOPROTO")
    credentials, name = _hello_options(args[1:])
    if name is not None:
        _check_name(name)
    password = shell.config.requirepass
    if credentials is not None:
        if not password:
            raise CommandError("Client sent AUTH, but no password is set")
        if not _is_password(credentials[1], password) or credentials[0] != b"default":
            raise CommandError("invalid username-password pair or user is disabled.", "WRONGPASS")
        client.is_authenticated = True
    elif password and not client.is_authenticated:
        raise CommandError("Authentication required.", "NOAUTH")
    if name is not None:
        client.name = name
    client.proto = 2 if proto == 2 else 3
    return Pairs(
        {
            b"server": b"disque",
            b"version": disque.__version__.encode(),
            b"proto": proto,
            b"id": client.id,
            b"mode": b"standalone",
            b"role": b"master",
            b"modules": [],
        }
    )


def _hello_options(args: list[bytes]) -> tuple[tuple[bytes, bytes] | None, bytes | None]:
    """(user, password) and name, None where not given; the last of each counts."""
    credentials, name = None, None
    at = 0
    while at < len(args):
        word, left = args[at].lower(), len(args) - at - 1
        if word == b"auth" and left >= 2:
            credentials = (args[at + 1], args[at + 2])
            at += 3
        elif word == b"setname" and left >= 1:
            name = args[at + 1]
            at += 2
        else:
            text = args[at].decode("utf-8", "surrogateescape")
            raise CommandError(f"Syntax error in HELLO option '{text}'")
    return credentials, name


def _check_name(name: bytes) -> None:
    if any(not 33 <= char <= 126 for char in name):
        raise CommandError(_NAME_TEXT)


def info(shell: Shell, client: Client, args: list[bytes]) -> Answer:
    """`INFO [section]`."""
    if len(args) > 1:
        raise CommandError(_SYNTAX)
    return info_text(shell, args[0].lower() if args else b"default")


def time_(shell: Shell, client: Client, args: list[bytes]) -> Answer:
    """`TIME`: the wall clock, seconds and microseconds."""
    seconds, microseconds = divmod(time.time_ns() // 1000, 1_000_000)
    return [b"%d" % seconds, b"%d" % microseconds]


def command(shell: Shell, client: Client, args: list[bytes]) -> Answer:
    """`COMMAND`, `COMMAND COUNT`, `COMMAND INFO <name>…`, for the commands that are served."""
    served = [spec for spec in COMMANDS.values() if spec.is_served]
    word = args[0].lower() if args else b""
    if not args:
        return [_command_entry(spec, client.proto) for spec in served]
    if word == b"count" and len(args) == 1:
        return len(served)
    if word == b"info" and len(args) > 1:
        found = [COMMANDS.get(name.lower()) for name in args[1:]]
        return [
            _command_entry(spec, client.proto) if spec and spec.is_served else None
            for spec in found
        ]
    raise CommandError("Unknown subcommand or wrong number of arguments.")


def _command_entry(spec: CommandSpec, proto: int) -> Answer:
    entry: list[Answer] = [spec.name, spec.arity, [Status(flag) for flag in spec.flags], 0, 0, 0]
    return [*entry, []] if proto == 3 else entry


def client_(shell: Shell, client: Client, args: list[bytes]) -> Answer:
    """`CLIENT LIST | ID | GETNAME | SETNAME <name> | SETINFO <attribute> <value>`."""
    match args[0].lower(), len(args):
        case b"list", 1:
            now_ms = shell.clock.now_ms()
            lines = [_client_line(each, now_ms) for each in shell.clients.by_id.values()]
            return "".join(lines).encode("utf-8", "surrogateescape")
        case b"id", 1:
            return client.id
        case b"getname", 1:
            return client.name or None
        case b"setname", 2:
            _check_name(args[1])
            client.name = args[1]
            return OK
        case b"setinfo", 3:
            return OK
    raise CommandError(
        "Syntax error, try CLIENT (LIST | KILL ip:port | GETNAME | SETNAME connection-name)"
    )


def _client_line(client: Client, now_ms: int) -> str:
    flags = ("b" if client.is_waiting else "") + ("c" if client.is_closing else "")
    flags += "U" if client.address.startswith("unix:") else ""
    return (
        f"id={client.id} addr={client.address} fd={client.sock.fileno()} "
        f"name={client.name.decode()} "
        f"age={(now_ms - client.connected_at_ms) // 1000} "
        f"idle={(now_ms - client.idle_since_ms) // 1000} "
        f"flags={flags or 'N'} qbuf={client.decoder.pending_bytes} qbuf-free=0 "
        f"obl={client.owed_bytes} oll={len(client.backlog)} omem={client.backlog_bytes} "
        f"events={'rw' if client.is_writing else 'r'} cmd={client.last_command}\n"
    )


def config(shell: Shell, client: Client, args: list[bytes]) -> Answer:
    """`CONFIG GET <glob> | SET <name> <value> | RESETSTAT`."""
    word = args[0].lower()
    counts = {b"get": 2, b"set": 3, b"resetstat": 1, b"rewrite": 1}
    if word not in counts:
        raise CommandError("CONFIG subcommand must be one of GET, SET, RESETSTAT, REWRITE")
    if len(args) != counts[word]:
        typed = args[0].decode("utf-8", "surrogateescape")
        raise CommandError(f"Wrong number of arguments for CONFIG {typed}")
    if word == b"get":
        return Pairs(
            {
                name.encode(): text.encode("utf-8", "surrogateescape")
                for name, text in shell.config.get(args[1].decode("utf-8", "surrogateescape"))
            }
        )
    if word == b"set":
        return _config_set(shell, args[1], args[2])
    if word == b"resetstat":
        shell.figures.reset()
        return OK
    if not shell.config_file:
        raise CommandError("The server is running without a config file")
    raise CommandError("Rewriting config file: not built yet")


def _config_set(shell: Shell, name: bytes, text: bytes) -> Answer:
    changed = shell.config.set(
        name.decode("utf-8", "surrogateescape"), text.decode("utf-8", "surrogateescape")
    )
    if changed is not None:
        shell.apply_setting(changed)
    return OK


def debug(shell: Shell, client: Client, args: list[bytes]) -> Answer | Forward:
    """`DEBUG FLUSHALL | SLEEP <seconds> | ERROR <text>`."""
    match args[0].lower(), len(args):
        case b"flushall", 1:
            return Forward(FlushAll())
        case b"sleep", 2:
            time.sleep(_sleep_s(args[1]))  # on purpose: it blocks the whole server, as in Disque
            return OK
        case b"error", 2:
            return Verbatim(encoder.error("", args[1].decode("utf-8", "surrogateescape")))
    sub = args[0].decode("utf-8", "surrogateescape")
    raise CommandError(f"Unknown DEBUG subcommand or wrong number of arguments for '{sub}'")


def _sleep_s(raw: bytes) -> float:
    """As C's strtod: what is no number is 0; bounded."""
    try:
        seconds = float(raw)
    except ValueError:
        return 0.0
    return min(seconds, SLEEP_S_MAX) if seconds > 0 else 0.0


def shutdown(shell: Shell, client: Client, args: list[bytes]) -> Answer:
    """`SHUTDOWN [REWRITE-AOF]`: no reply, the connection just ends."""
    if len(args) > 1 or (args and args[0].lower() != b"rewrite-aof"):
        raise CommandError(_SYNTAX)
    shell.events.event("notice", "shutdown-asked", addr=client.address)
    shell.stopping.set()
    client.close_soon()
    return NOTHING


ADMIN: dict[bytes, Callable[[Shell, Client, list[bytes]], Answer | Later | Forward]] = {
    b"auth": auth,
    b"client": client_,
    b"cluster": cluster,
    b"command": command,
    b"config": config,
    b"debug": debug,
    b"hello": hello,
    b"info": info,
    b"ping": ping,
    b"shutdown": shutdown,
    b"time": time_,
}
