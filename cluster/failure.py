"""Failure arithmetic: when is a node suspect (PFAIL), and when does a majority make it failed (FAIL)?

Numbers in, answers out; who sends what stands in `membership`. After Redis Cluster and Disque
(cluster.c), with two changes: silence counts from the last word heard, not from a ping that needs a
link; and a FAIL message is believed only by those who don't hear the node themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cluster.nodeid import NodeId

PING_INTERVAL_MAX_MS = 1_000
PING_INTERVAL_MIN_MS = 10
REPORT_LIFE_TIMEOUTS = 2  # a report counts for so many node timeouts


def ping_interval_ms(node_timeout_ms: int) -> int:
    """How often each peer is pinged: four times a node timeout, at least once a second."""
    return max(PING_INTERVAL_MIN_MS, min(PING_INTERVAL_MAX_MS, node_timeout_ms // 4))


def unanswered_max_ms(node_timeout_ms: int) -> int:
    """How long a link may leave a ping unanswered before it is dropped and dialed again."""
    return max(2 * PING_INTERVAL_MIN_MS, node_timeout_ms // 2)


def is_silent(now_ms: int, heard_at_ms: int, node_timeout_ms: int) -> bool:
    """True if nothing was heard for longer than the node timeout."""
    return now_ms - heard_at_ms > node_timeout_ms


def is_hearing(now_ms: int, heard_at_ms: int, node_timeout_ms: int) -> bool:
    """True if the node spoke so lately that another's word of its failure isn't believed."""
    return now_ms - heard_at_ms <= node_timeout_ms // 2


def majority(size: int) -> int:
    """How many of `size` nodes must agree: more than half."""
    return size // 2 + 1


def valid_reports(reports: Mapping[NodeId, int], now_ms: int, node_timeout_ms: int) -> int:
    """Count the reports (by whom, when) that haven't expired."""
    oldest = now_ms - REPORT_LIFE_TIMEOUTS * node_timeout_ms
    return sum(at >= oldest for at in reports.values())


def is_failed(reports: Mapping[NodeId, int], now_ms: int, node_timeout_ms: int, size: int) -> bool:
    """True if the others' valid reports and our own suspicion make a majority of `size` nodes, self included."""
    return valid_reports(reports, now_ms, node_timeout_ms) + 1 >= majority(size)
