"""Packages: nemeses by name, what they need of a host, and combinations "a,b", "all", "mixed", "none"."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from jepsen.nemesis.field import Kind
from jepsen.nemesis.grudges import GRUDGES, NODES_MIN
from jepsen.nemesis.membership import Forget, LeaveJoin
from jepsen.nemesis.network import Delay, Flapping, Loss, Reset, partition
from jepsen.nemesis.process import DISKS, Clock, Kill, MassRestart, Pause, RollingRestart

NONE: Final = "none"
ALL: Final = frozenset({"all", "mixed"})
NEEDS_LOG: Final = frozenset(disk.name for disk in DISKS)

_ALL_KINDS: Final[tuple[Kind, ...]] = (
    *(partition(name) for name in GRUDGES),
    Flapping(),
    Delay(),
    Loss(),
    Reset(),
    Kill(),
    Kill("kill-two", count=2),
    Pause(),
    RollingRestart(),
    MassRestart(),
    Clock(),
    *DISKS,
    LeaveJoin(),
    Forget(),
)
KINDS: Final[Mapping[str, Kind]] = {kind.name: kind for kind in _ALL_KINDS}
# Without a log these would wipe so much that a mixed run shows nothing of what survives.
TOO_HARSH: Final = frozenset({"mass-restart", "kill-two", "rolling-restart", "forget"})


class NoNemesisError(Exception):
    """The name is unknown, or this host can't do it; the text says which."""


def choose(
    name: str, capabilities: Collection[str], *, count: int, is_logged: bool
) -> tuple[Kind, ...]:
    """The kinds that a name stands for, given what the host can, the number of nodes, and whether there is a log.

    "all" and "mixed" leave out what can't be done here, and without a log what wipes too much; a kind that is named
    must be possible. Raises NoNemesisError.
    """
    if name == NONE:
        return ()
    if name in ALL:
        possible = [k for k in KINDS.values() if why_not(k, capabilities, count, is_logged) is None]
        return tuple(kind for kind in possible if is_logged or kind.name not in TOO_HARSH)
    chosen = []
    for word in name.split(","):
        kind = KINDS.get(word)
        if kind is None:
            known = ", ".join((NONE, *sorted(ALL), *KINDS))
            raise NoNemesisError(f"unknown nemesis {word!r}; there are {known}")
        reason = why_not(kind, capabilities, count, is_logged)
        if reason is not None:
            raise NoNemesisError(f"nemesis {word} is not possible: {reason}")
        chosen.append(kind)
    return tuple(chosen)


def why_not(kind: Kind, capabilities: Collection[str], count: int, is_logged: bool) -> str | None:
    """Why this kind can't be used; None if it can."""
    missing = sorted(kind.needs - set(capabilities))
    if missing:
        return f"this host has no {', '.join(missing)} (see `python -m jepsen doctor`)"
    least = NODES_MIN.get(kind.name, 2)
    if count < least:
        return f"it needs {least} nodes, there are {count}"
    if kind.name in NEEDS_LOG and not is_logged:
        return "it needs a log: --aof everysec or always"
    return None
