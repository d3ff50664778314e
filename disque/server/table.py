"""The command table: which names there are, how many arguments they take, what they are like.

It is data; who answers a command isn't known here. First Disque's 32, then ours. QUIT isn't in it,
as in Disque: the connection answers that before all checks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from disque.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Mapping

NAME_BYTES_SHOWN = 128  # of an unknown name or option, in the error that says so
# But of those about as many jobs or topics as you like, which go piece by piece
ARGUMENTS_MAX = 10_000
_OF_MANY = frozenset(
    b"ackjob fastack deljob enqueue nack dequeue revive canceljob "
    b"subscribe psubscribe unsubscribe punsubscribe pubsub".split()
)


@attrs.frozen
class CommandSpec:
    """One command. `arity` counts the name; negative means at least so many, 0 any number."""

    name: bytes  # lower case
    arity: int
    flags: tuple[bytes, ...]
    is_fast: bool
    is_denied_oom: bool  # refused when memory is short
    text: str  # the name, to be shown


def find_command(words: list[bytes], renames: Mapping[bytes, bytes] | None = None) -> CommandSpec:
    """The command that `words` (name first, at least one) calls.

    `renames`: name sent, in lower case -> name in the table, b"" for none (rename-command). Raises
    CommandError for an unknown name, then for a wrong number of words: the first two checks of
    reference 0.3.
    """
    name = words[0]
    spec = _AS_SENT.get(name) or COMMANDS.get(name.lower())
    if renames:
        renamed = renames.get(name.lower())
        spec = spec if renamed is None else COMMANDS.get(renamed)
    if spec is None:
        text = name[:NAME_BYTES_SHOWN].decode("utf-8", "surrogateescape")
        raise CommandError(f"unknown command '{text}'")
    count, arity = len(words), spec.arity
    if count != arity and (arity > 0 or count < -arity):
        raise wrong_count(spec.name)
    if count > ARGUMENTS_MAX + 1 and spec.name not in _OF_MANY:
        text = f"too many arguments for '{spec.text}' command, at most {ARGUMENTS_MAX}"
        raise CommandError(text)
    return spec


def wrong_count(name: bytes) -> CommandError:
    """What a call with too few or too many words gets."""
    return CommandError(f"wrong number of arguments for '{name.decode()}' command")


def _table() -> Mapping[bytes, CommandSpec]:
    table = {}
    for row in _ROWS.strip().splitlines():
        name, arity, *flags = row.encode().split()
        is_fast, is_denied = b"fast" in flags, b"denyoom" in flags
        table[name] = CommandSpec(name, int(arity), tuple(flags), is_fast, is_denied, name.decode())
    return table


# Name, arity, flags.
_ROWS = """
auth         -2  readonly loading fast
ping         -1  readonly fast
info         -1  readonly loading
shutdown     -1  readonly admin loading
monitor       1  readonly admin
debug        -2  admin
config       -2  readonly admin
cluster      -2  readonly admin
client       -2  readonly admin
slowlog      -2  readonly
time          1  readonly fast
command       0  readonly loading
latency      -2  readonly admin loading
hello        -1  readonly fast
addjob       -4  write denyoom fast
getjob       -2  write fast
ackjob       -1  write fast
fastack      -1  write fast
deljob       -1  write fast
show          2  readonly fast
loadjob       2  write
bgrewriteaof  1  readonly admin
qlen          2  readonly fast
qpeek         3  readonly
qstat        -2  readonly fast
qscan        -1  readonly
jscan        -1  readonly
enqueue      -1  write denyoom fast
nack         -1  write denyoom fast
dequeue      -1  write fast
working       2  write fast
pause        -3  readonly fast
globalqlen   -2  readonly
qpurge       -2  write
canceljob    -1  write
revive       -1  write
waitjob      -2  readonly
publish       3  readonly fast
subscribe    -2  readonly
psubscribe   -2  readonly
unsubscribe  -1  readonly
punsubscribe -1  readonly
pubsub       -2  readonly
"""

COMMANDS: Mapping[bytes, CommandSpec] = _table()
# In capitals, too, as most clients say them
_AS_SENT = {**COMMANDS, **{name.upper(): spec for name, spec in COMMANDS.items()}}
