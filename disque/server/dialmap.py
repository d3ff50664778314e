"""Dialmap: where to dial instead of a bus address; for tests that put something between nodes.

DISQUE_DIAL_MAP in the environment, `host:port=host:port,...` (an IPv6 host in brackets): left the bus address that a
node announces, right where this node connects to reach it. What is announced, gossiped and stored stays as it is.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from disque.server.directives import PORT_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

VARIABLE: Final = "DISQUE_DIAL_MAP"
_ADDRESS: Final = re.compile(
    r"(?:\[(?P<bracketed>[^\[\]]+)\]|(?P<plain>[^:\[\]]+)):(?P<port>\d{1,5})"
)

Address = tuple[str, int]


def parse_dial_map(text: str) -> Mapping[Address, Address]:
    """The pairs of DISQUE_DIAL_MAP; ValueError with what is wrong."""
    found: dict[Address, Address] = {}
    for pair in filter(None, map(str.strip, text.split(","))):
        left, equals, right = pair.partition("=")
        if not equals:
            raise ValueError(f"must be host:port=host:port,..., got '{pair}'")
        source = _address(left)
        if source in found:
            raise ValueError(f"has '{left}' twice")
        found[source] = _address(right)
    return found


def dialer(pairs: Mapping[Address, Address]) -> Callable[[str, int], Address] | None:
    """The map as the bus wants it: addresses that it doesn't know stay; None for an empty one."""
    return (lambda host, port: pairs.get((host, port), (host, port))) if pairs else None


def _address(text: str) -> Address:
    match = _ADDRESS.fullmatch(text)
    if match is None or not 0 < int(match["port"]) <= PORT_MAX:
        raise ValueError(f"must be host:port=host:port,..., got '{text}' for an address")
    return match["bracketed"] or match["plain"], int(match["port"])
