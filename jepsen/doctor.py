"""Doctor: what this machine can do, each line tried for real just now, and which hosts `auto` would be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs

from jepsen.hosts import choosing, probing
from jepsen.hosts.probing import Finding


@attrs.frozen
class Line:
    """One thing that may be there: its name, what it is good for, and how it is tried."""

    name: str
    serves: str
    probe: Callable[[], Finding]


LINES: Final = (
    Line("proxy", "hosts local: cuts, delay, resets; no root", probing.can_proxy),
    Line("root", "hosts netns, small disks", probing.can_enter),
    Line("namespaces", "hosts netns", probing.can_network),
    Line("one-way cuts", "hosts netns: nft verdicts on a bridge", probing.can_cut),
    Line("loss", "hosts netns: nft numgen", probing.can_lose),
    Line("resets", "hosts netns: ss --kill", probing.can_reset),
    Line("netem", "nothing yet: delay is the proxy's", probing.can_netem),
    Line("small disks", "nemesis disk-full: tmpfs", probing.can_mount),
    Line("false clocks", "nemesis clock: libfaketime", probing.can_fake_clock),
    Line("tracing", "nemesis fsync: strace", probing.can_trace),
    Line("docker", "hosts compose", probing.can_docker),
)


def table() -> str:
    """Every line, and the choice, as text."""
    rows = [(line.name, line.probe(), line.serves) for line in LINES]
    width = max(len(name) for name, _, _ in rows)
    told = [
        f"{name:{width}}  {'yes' if found.is_there else 'no ':3}  {found.detail}   [{serves}]"
        for name, found, serves in rows
    ]
    return "\n".join([*told, "", f"--hosts auto is {choosing.pick()}"])
