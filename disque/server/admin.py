"""Admin: the commands that the shell answers by itself, one function each, in the table `ADMIN`.

A function takes the shell, the client and the words after the name, and returns the answer, or
raises CommandError. Texts and order of checks are Disque's; HELLO with a version is Redis'.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import disque
from disque.core.integers import parse_int
from disque.core.ready import Status
from disque.errors import CommandError
from disque.server.access import WrongPassword
from disque.server.acl import DEFAULT_NAME
from disque.server.client_admin import check_name, client_
from disque.server.cluster_admin import cluster, known_nodes
from disque.server.config_admin import config
from disque.server.debug_admin import debug
from disque.server.info import info_text
from disque.server.latency import latency
from disque.server.monitor import MONITOR_OUT_MAX
from disque.server.pubsub import (
    end_subscriptions,
    has_subscriptions,
    pattern_subscribe,
    pattern_unsubscribe,
    subscribe,
    unsubscribe,
)
from disque.server.render import Answer, Pairs, Verbatim
from disque.server.shell import Forward, Later
from disque.server.slowlog import slowlog
from disque.server.table import COMMANDS, NAME_BYTES_SHOWN, CommandSpec, wrong_count

if TYPE_CHECKING:
    from collections.abc import Callable

    from disque.server.acl import User
    from disque.server.connection import Client
    from disque.server.shell import Shell

OK = Status(b"OK")
NOTHING = Verbatim(b"")
INFO_NAMES_MAX = 1_024  # of COMMAND INFO: some 5 ms
_SYNTAX = "syntax error"


def ping(shell: Shell, client: Client, args: list[bytes]) -> Answer:
    """`PING [message]`."""
    if len(args) > 1:
        raise wrong_count(b"ping")
    if client.proto == 2 and has_subscriptions(shell, client):
        return [b"pong", args[0] if args else b""]
    return args[0] if args else Status(b"PONG")


def auth(shell: Shell, client: Client, args: list[bytes]) -> Answer:
    """`AUTH [<user>] <password>`; a wrong one takes back an earlier right one."""
    if len(args) > 2:
        raise wrong_count(b"auth")
    name = args[0].decode("utf-8", "surrogateescape") if len(args) == 2 else DEFAULT_NAME
    try:
        user = shell.access.log_in(name, args[-1:], client.host)
    except WrongPassword:
        _become(shell, client, None)
        if len(args) == 1:
            raise CommandError("invalid password") from None
        raise
    _become(shell, client, user)
    return OK


def _become(shell: Shell, client: Client, user: User | None) -> None:
    """A connection is this user's from here on, or nobody's: what it heard by another's rights ends."""
    if user != client.user:
        client.is_monitor = False
        shell.monitors.pop(client.id, None)
        end_subscriptions(shell, client)
    if user is None:
        shell.clients.crowd.logged_out(client, shell.clock.now_ms())
    else:
        shell.clients.crowd.logged_in(client, user)


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
        check_name(name)
    if credentials is not None:
        user_name = credentials[0].decode("utf-8", "surrogateescape")
        user = shell.access.log_in(user_name, credentials[1:], client.host)
        _become(shell, client, user)
    elif shell.access.needs_password and client.user is None:
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
            text = args[at][:NAME_BYTES_SHOWN].decode("utf-8", "surrogateescape")
            raise CommandError(f"Syntax error in HELLO option '{text}'")
    return credentials, name


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
    """`COMMAND`, `COMMAND COUNT`, `COMMAND INFO <name>…`, in the order of the table."""
    word = args[0].lower() if args else b""
    if not args:
        return [_command_entry(spec, client.proto) for spec in COMMANDS.values()]
    if word == b"count" and len(args) == 1:
        return len(COMMANDS)
    if word == b"info" and len(args) > 1:
        if len(args) - 1 > INFO_NAMES_MAX:
            raise CommandError(f"COMMAND INFO takes at most {INFO_NAMES_MAX} names")
        found = [COMMANDS.get(name.lower()) for name in args[1:]]
        return [_command_entry(spec, client.proto) if spec else None for spec in found]
    raise CommandError("Unknown subcommand or wrong number of arguments.")


def _command_entry(spec: CommandSpec, proto: int) -> Answer:
    entry: list[Answer] = [spec.name, spec.arity, [Status(flag) for flag in spec.flags], 0, 0, 0]
    return [*entry, []] if proto == 3 else entry


def shutdown(shell: Shell, client: Client, args: list[bytes]) -> Answer:
    """`SHUTDOWN [REWRITE-AOF]`: no reply, the connection just ends."""
    if len(args) > 1 or (args and args[0].lower() != b"rewrite-aof"):
        raise CommandError(_SYNTAX)
    shell.events.event("notice", "shutdown-asked", addr=client.address)
    shell.rewrites_at_end = bool(args) and not shell.turns.is_loading
    shell.stopping.set()
    client.close_soon()
    return NOTHING


def monitor(shell: Shell, client: Client, args: list[bytes]) -> Answer:
    """`MONITOR`: from now on every command that is carried out; said twice it isn't answered."""
    if client.is_monitor:
        return NOTHING
    client.is_monitor = True
    client.out_limit_bytes = min(client.out_limit_bytes, MONITOR_OUT_MAX)
    shell.monitors[client.id] = client
    return OK


def load_job(shell: Shell, client: Client, args: list[bytes]) -> Answer:
    """`LOADJOB <blob>`: only the log may say that."""
    raise CommandError("LOADJOB is a special command only processed from AOF")


def rewrite_log(shell: Shell, client: Client, args: list[bytes]) -> Answer:
    """`BGREWRITEAOF`: say all that lives again and forget the rest, log switched on or not."""
    shell.persistence.begin_rewrite()
    return Status(b"Background append only file rewriting started")


ADMIN: dict[bytes, Callable[[Shell, Client, list[bytes]], Answer | Later | Forward]] = {
    b"auth": auth,
    b"bgrewriteaof": rewrite_log,
    b"client": client_,
    b"cluster": cluster,
    b"command": command,
    b"config": config,
    b"debug": debug,
    b"hello": hello,
    b"info": info,
    b"latency": latency,
    b"loadjob": load_job,
    b"monitor": monitor,
    b"ping": ping,
    b"psubscribe": pattern_subscribe,
    b"punsubscribe": pattern_unsubscribe,
    b"shutdown": shutdown,
    b"slowlog": slowlog,
    b"subscribe": subscribe,
    b"time": time_,
    b"unsubscribe": unsubscribe,
}
