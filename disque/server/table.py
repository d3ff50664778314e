"""The command table: which names there are, how many arguments they take, what they are like.

It is data; who answers a command isn't known here. All 32 commands of Disque stand in it; those
that aren't built yet are marked, and answer `unknown command`. QUIT isn't in it, as in Disque: the
connection answers that before all checks. Source: reference 0.4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from disque.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Mapping

NAME_BYTES_SHOWN = 128  # of an unknown command's name, in the error that says so


@attrs.frozen
class CommandSpec:
    """One command. `arity` counts the name; negative means at least so many, 0 any number."""

    name: bytes  # lower case
    arity: int
    flags: tuple[bytes, ...]
    is_served: bool

    def accepts(self, count: int) -> bool:
        """True if a call of `count` words, its name included, is of the right length."""
        if self.arity > 0:
            return count == self.arity
        return count >= -self.arity


def find_command(words: list[bytes]) -> CommandSpec:
    """The command that `words` (name first, at least one) calls.

    Raises CommandError for a name that isn't served, then for a wrong number of words: the first
    two checks of reference 0.3.
    """
    spec = COMMANDS.get(words[0]) or COMMANDS.get(words[0].lower())
    if spec is None or not spec.is_served:
        name = words[0][:NAME_BYTES_SHOWN].decode("utf-8", "surrogateescape")
        raise CommandError(f"unknown command '{name}'")
    if not spec.accepts(len(words)):
        raise wrong_count(spec.name)
    return spec


def wrong_count(name: bytes) -> CommandError:
    """What a call with too few or too many words gets."""
    return CommandError(f"wrong number of arguments for '{name.decode()}' command")


def _table() -> Mapping[bytes, CommandSpec]:
    table = {}
    for row in _ROWS.strip().splitlines():
        name, arity, *flags = row.encode().split()
        is_served = flags[-1] != b"(later)"
        table[name] = CommandSpec(
            name, int(arity), tuple(flags if is_served else flags[:-1]), is_served
        )
    return table


# Name, arity, flags; "(later)": not built yet. CLIENT serves LIST, ID, SETNAME, GETNAME, SETINFO.
_ROWS = """
auth          2  readonly loading fast
ping         -1  readonly fast
info         -1  readonly loading
shutdown     -1  readonly admin loading
monitor       1  readonly admin (later)
debug        -2  admin
config       -2  readonly admin
cluster      -2  readonly admin
client       -2  readonly admin
slowlog      -2  readonly (later)
time          1  readonly fast
command       0  readonly loading
latency      -2  readonly admin loading (later)
hello        -1  readonly fast
addjob       -4  write denyoom fast
getjob       -2  write fast
ackjob       -1  write fast
fastack      -1  write fast
deljob       -1  write fast
show          2  readonly fast
loadjob       2  write (later)
bgrewriteaof  1  readonly admin (later)
qlen          2  readonly fast
qpeek         3  readonly (later)
qstat         2  readonly fast
qscan        -1  readonly (later)
jscan        -1  readonly (later)
enqueue      -1  write denyoom fast
nack         -1  write denyoom fast
dequeue      -1  write fast
working       2  write fast
pause        -3  readonly fast (later)
"""

COMMANDS: Mapping[bytes, CommandSpec] = _table()
