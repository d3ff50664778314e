"""What membership tells the rest of the node: an immutable picture of the cluster as this node sees it now.

Two notions of presence, on purpose. *Reachable*: a frame sent now is expected to arrive and to be answered (both
directed links are up, no failure suspected). *Suspect*: silent for longer than the node timeout. A peer whose link just
broke is unreachable at once but not yet suspect.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from cluster.nodeid import NodeId


@attrs.frozen
class MemberView:
    """One known node (self included, handshakes and forgotten ones never)."""

    id: NodeId
    host: str  # "" if unknown; never bracketed
    port: int  # client port
    bus_port: int
    boot: int  # last boot number heard of it, 0 if none (rule M17)
    since: int  # first boot of which its present store is unbroken (merge-rules.md, Words); 0 if boot is 0
    is_reachable: bool  # links both ways up, not suspect; True for self
    is_suspect: bool  # PFAIL or FAIL
    is_failed: bool  # FAIL
    is_leaving: bool
    tls_port: int = 0  # for clients, 0: none, or not told yet


@attrs.frozen
class ClusterView:
    """The cluster at one moment. `members` is sorted by id."""

    self_id: NodeId
    members: Mapping[NodeId, MemberView]
    forgotten: frozenset[NodeId]
    node_timeout_ms: int
    # of the forgotten: those that had handed everything over, so that no copy can come back from them
    drained: frozenset[NodeId] = frozenset()
    # True if a member said that it has forgotten this node, and hasn't been linked with it since
    is_forgotten: bool = False
    has_unmet: bool = False  # members tell of nodes that this one has never met

    @property
    def is_leaving(self) -> bool:
        """True once this node has been told to leave."""
        return self.members[self.self_id].is_leaving

    @property
    def size(self) -> int:
        """Number of known nodes, self included."""
        return len(self.members)
