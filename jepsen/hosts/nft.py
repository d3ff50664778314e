"""Nft: the texts that cut and thin out links in a packet filter; each is one transaction, so cuts come and go whole.

One verdict map from (source, destination) to what happens. In a bridge's table it rules all links between nodes; in the
table of a node's own namespace (`FAMILY_INET`) what that node hears. Scripts end in newlines: nft's parser wants them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

FAMILY_BRIDGE: Final = "bridge"
FAMILY_INET: Final = "inet"
TABLE: Final = "jepsen"
_PARTS: Final = 10_000  # resolution of a loss

Addresses = tuple[str, str]  # (source, destination)


def table(family: str) -> str:
    """The table, its empty map and its chains."""
    hook = "forward" if family == FAMILY_BRIDGE else "input"
    return f"""\
table {family} {TABLE} {{
  map verdicts {{
    type ipv4_addr . ipv4_addr : verdict
  }}
  chain lossy {{
  }}
  chain judge {{
    type filter hook {hook} priority 0; policy accept;
    ip saddr . ip daddr vmap @verdicts
  }}
}}
"""


def verdicts(
    family: str, silent: Iterable[Addresses], lossy: Iterable[Addresses] = (), loss: float = 0.0
) -> str:
    """From now on packets of `silent` pairs are dropped, of `lossy` ones with this probability (0..1)."""
    parts = round(loss * _PARTS)
    drops = sorted({*silent, *(lossy if parts >= _PARTS else ())})
    thinned = sorted(set(lossy) - set(drops)) if parts > 0 else []
    lines = [f"flush map {family} {TABLE} verdicts", f"flush chain {family} {TABLE} lossy"]
    if thinned:
        odds = f"numgen random mod {_PARTS} < {parts}"
        lines.append(f"add rule {family} {TABLE} lossy {odds} counter drop")
    elements = [*_elements(drops, "drop"), *_elements(thinned, "jump lossy")]
    if elements:
        lines.append(f"add element {family} {TABLE} verdicts {{ {', '.join(elements)} }}")
    return "\n".join(lines) + "\n"


def listing(family: str) -> str:
    """The command, for a shell of nft's, whose answer `lost` reads."""
    return f"list chain {family} {TABLE} lossy\n"


def lost(listed: str) -> int:
    """Packets that the present loss has dropped so far; 0 if there is none."""
    return sum(map(int, re.findall(r"counter packets (\d+)", listed)))


def _elements(pairs: Sequence[Addresses], verdict: str) -> list[str]:
    return [f"{source} . {destination} : {verdict}" for source, destination in pairs]
