"""Places: where connections come from, and who of too many makes room. It opens nothing."""

from __future__ import annotations

import socket
from collections import Counter
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

T = TypeVar("T")
_MAPPED = bytes(10) + b"\xff\xff"  # IPv4 in IPv6: ::ffff:a.b.c.d


def packed(host: str) -> bytes | None:
    """The 4 or 16 bytes of a literal address (IPv4-mapped: 4), or None for anything else."""
    host = host.removeprefix("[").removesuffix("]").split("%", 1)[0]
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            raw = socket.inet_pton(family, host)
        except (OSError, ValueError):
            continue
        return raw[12:] if raw.startswith(_MAPPED) else raw
    return None


def place_of(host: str) -> str:
    """Of whom the same is counted together: an address, of IPv6 the network that one owner has (/64)."""
    raw = packed(host)
    if raw is None:
        return host
    if len(raw) == 4:
        return socket.inet_ntop(socket.AF_INET, raw)
    return socket.inet_ntop(socket.AF_INET6, raw[:8] + bytes(8)) + "/64"


def oldest_of_most(comers: Iterable[tuple[T, str]]) -> T:
    """The first of those that come from the place where most come from: a flood makes room for itself."""
    known = list(comers)
    counts = Counter([place for _, place in known])
    most = max(counts.values())
    return next(comer for comer, place in known if counts[place] == most)
