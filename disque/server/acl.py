"""Acl: users, and what they may do: commands by name or category, queues and topics by name or prefix.

A rule set is a value, made of the words of a `user` line, and asked with a command's name and with the core's command,
which is what will be carried out: there is no second reading of a client's words that could differ. It knows neither
connections nor passwords, only their digests. A job id isn't a name: it has 144 random bits, and whoever was told it
may act on it where the job isn't known; where it is, the job's queue decides.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import attrs

from disque.core import commands as cmd
from disque.core.topics import Kind
from disque.errors import CommandError
from disque.server.table import COMMANDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

DEFAULT_NAME = "default"  # whose password is requirepass
EVERYTHING = b""  # the prefix of all names
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_DIGEST = re.compile(r"#[0-9A-Fa-f]{64}")
# What a connection needs before anybody can say who it is; CLIENT: see OWN_CLIENT_WORDS
_ALWAYS = frozenset({b"auth", b"hello", b"ping", b"command"})
# Words of CLIENT that concern the connection that says them
OWN_CLIENT_WORDS = frozenset({b"setname", b"getname", b"setinfo", b"id", b"reply"})
_CLIENT = b"""
    addjob getjob ackjob fastack nack working enqueue dequeue canceljob waitjob show qlen qpeek qstat globalqlen
    publish subscribe psubscribe unsubscribe punsubscribe pubsub time info
"""
CATEGORIES: Mapping[str, frozenset[bytes]] = {
    "all": frozenset(COMMANDS),
    "client": frozenset(_CLIENT.split()),
}
_USAGE = "must be NAME on|off #SHA256... +COMMAND|+@client|+@all... ~QUEUE|~PREFIX*..."


@attrs.frozen
class User:
    """One user. `prefixes` has EVERYTHING for all names; a password's digest is its SHA-256."""

    name: str
    is_on: bool = True
    digests: tuple[bytes, ...] = ()
    commands: frozenset[bytes] = frozenset()
    names: frozenset[bytes] = frozenset()
    prefixes: tuple[bytes, ...] = ()

    @property
    def has_everything(self) -> bool:
        """True if this user may do whatever `default` may."""
        return self.is_on and self.commands == CATEGORIES["all"] and EVERYTHING in self.prefixes

    def check_command(self, name: bytes, args: Sequence[bytes]) -> None:
        """CommandError (NOPERM) if this user may not run a command of the table, called with these arguments."""
        if name in self.commands or name in _ALWAYS:
            return
        if name == b"client" and args and args[0].lower() in OWN_CLIENT_WORDS:
            return
        text = f"User {self.name} has no permissions to run the '{name.decode()}' command"
        raise CommandError(text, "NOPERM")

    def check_names(self, command: cmd.Command, queue_of: Callable[[bytes], bytes | None]) -> None:
        """CommandError (NOPERM) if a command touches a queue or topic that this user has no rights on.

        `queue_of`: the queue in which the job of an id lies, None if that isn't known here.
        """
        if EVERYTHING in self.prefixes:
            return
        for name in _names(command, queue_of):
            if not self._covers(name):
                shown = name.text[:128].decode("utf-8", "surrogateescape")
                star = "*" if name.is_prefix else ""
                text = f"User {self.name} has no permissions on '{shown}{star}'"
                raise CommandError(text, "NOPERM")

    def _covers(self, name: _Name) -> bool:
        if name.text.startswith(self.prefixes):
            return True
        return not name.is_prefix and name.text in self.names


# Who gave requirepass, or needed none
DEFAULT = User(DEFAULT_NAME, commands=CATEGORIES["all"], prefixes=(EVERYTHING,))


@attrs.frozen
class _Name:
    text: bytes
    is_prefix: bool = False  # it stands for all names that begin so


_ALL = _Name(EVERYTHING, is_prefix=True)


def parse_user(words: Sequence[str]) -> User:
    """A user from the words of its line; ValueError says what would be right, never what a digest was."""
    if len(words) < 2 or words[1] not in ("on", "off"):
        raise ValueError(_USAGE)
    name, is_on = words[0], words[1] == "on"
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r}: a name has 1 to 64 letters, digits, or any of _ . -")
    if name == DEFAULT_NAME:
        raise ValueError(f"{DEFAULT_NAME} has all rights, and requirepass for its password")
    digests: list[bytes] = []
    commands: frozenset[bytes] = frozenset()
    names: list[bytes] = []
    prefixes: list[bytes] = []
    for word in words[2:]:
        if _DIGEST.fullmatch(word):
            digests.append(bytes.fromhex(word[1:]))
        elif word.startswith("#"):
            raise ValueError(f"{name}: # and the 64 hexadecimal digits of a password's SHA-256")
        elif word.startswith("+"):
            commands |= _commands(word[1:])
        elif word.startswith("-"):
            commands -= _commands(word[1:])
        elif word.startswith("~") and len(word) > 1:
            text = word[1:].encode("utf-8", "surrogateescape")
            if b"*" in text[:-1]:
                raise ValueError(f"{name}: a star stands at the end of a name only, got {word!r}")
            (prefixes if text.endswith(b"*") else names).append(text.removesuffix(b"*"))
        else:
            # It may be a password, as others' files have them
            raise ValueError(f"{name}: {_USAGE}")
    if is_on and not digests:
        raise ValueError(f"{name}: a user that is on needs #SHA256 of its password")
    return User(name, is_on, tuple(digests), commands, frozenset(names), tuple(prefixes))


def _commands(word: str) -> frozenset[bytes]:
    """The commands of `name` or `@category`."""
    if word.startswith("@"):
        if word[1:].lower() not in CATEGORIES:
            known = " ".join(f"@{each}" for each in CATEGORIES)
            raise ValueError(f"has no category {word!r}, only {known}")
        return CATEGORIES[word[1:].lower()]
    name = word.lower().encode("utf-8", "surrogateescape")
    if name not in COMMANDS:
        raise ValueError(f"has no command {word!r}")
    return frozenset({name})


# Which names a command touches


def _names(command: cmd.Command, queue_of: Callable[[bytes], bytes | None]) -> Iterable[_Name]:
    find = _TOUCHED.get(type(command))
    if find is not None:
        return find(command)
    id_ = getattr(command, "id", None)
    ids = getattr(command, "ids", ()) if id_ is None else (id_,)
    return [_Name(name) for each in ids if (name := queue_of(each)) is not None]


def _of_add(command: cmd.AddJob) -> list[_Name]:
    """A dead letter queue is written to, too, one day."""
    dead = [] if command.dead_queue is None else [_Name(command.dead_queue)]
    return [_Name(command.queue), *dead]


def _of_subscribe(command: cmd.Subscribe) -> list[_Name]:
    return [_Name(text, is_prefix=kind is Kind.PREFIX) for kind, text in command.topics]


def _of_queue(command: Any) -> list[_Name]:
    return [_Name(command.queue)]


def _of_channel(command: cmd.Publish | cmd.CountReached) -> list[_Name]:
    return [_Name(command.channel)]


def _of_job_scan(command: cmd.JScan) -> list[_Name]:
    return [_ALL if command.queue is None else _Name(command.queue)]


# Those that aren't here are about ids
_TOUCHED: Mapping[type, Callable[[Any], list[_Name]]] = {
    cmd.AddJob: _of_add,
    cmd.GetJob: lambda command: [_Name(queue) for queue in command.queues],
    cmd.QLen: _of_queue,
    cmd.QStat: _of_queue,
    cmd.GlobalQLen: _of_queue,
    cmd.QPurge: _of_queue,
    cmd.QPeek: _of_queue,
    cmd.Pause: _of_queue,
    cmd.Attend: _of_queue,
    cmd.CountAttending: _of_queue,
    cmd.JScan: _of_job_scan,
    cmd.Publish: _of_channel,
    cmd.CountReached: _of_channel,
    cmd.Subscribe: _of_subscribe,
    cmd.Unsubscribe: lambda _: [],
    cmd.NumSub: lambda command: [_Name(channel) for channel in command.channels],
    cmd.QScan: lambda _: [_ALL],
    cmd.FlushAll: lambda _: [_ALL],
}
