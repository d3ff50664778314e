"""Choosing: from the name of a kind of hosts to hosts of it; `auto` takes the strongest that this machine can make."""

from __future__ import annotations

from typing import Final

from jepsen.hosts import probing
from jepsen.hosts.base import HostOptions, Hosts, HostsError
from jepsen.hosts.compose import ComposeHosts
from jepsen.hosts.local import ProxyNetwork
from jepsen.hosts.netns import NamespaceNetwork
from jepsen.hosts.processes import ProcessHosts

AUTO: Final = "auto"
LOCAL: Final = "local"
NETNS: Final = "netns"
COMPOSE: Final = "compose"
KINDS: Final = (AUTO, LOCAL, NETNS, COMPOSE)


def pick() -> str:
    """What `auto` means here."""
    return NETNS if probing.can_cut().is_there else LOCAL


def make_hosts(kind: str, options: HostOptions) -> Hosts:
    """Hosts that aren't set up yet. HostsError for a kind that there isn't, or that this machine can't make."""
    kind = pick() if kind == AUTO else kind
    if kind == LOCAL:
        return ProcessHosts(LOCAL, options, ProxyNetwork(options))
    if kind == NETNS:
        found = probing.can_cut()
        if not found.is_there:
            raise HostsError(f"no namespaces here: {found.detail}")
        return ProcessHosts(NETNS, options, NamespaceNetwork(options))
    if kind == COMPOSE:
        found = probing.can_docker()
        if not found.is_there:
            raise HostsError(f"no containers here: {found.detail}")
        return ComposeHosts(options)
    raise HostsError(f"no kind of hosts is named '{kind}'; there are {', '.join(KINDS)}")
