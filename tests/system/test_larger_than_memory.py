"""Queues larger than memory: bodies lie in the log, memory holds handles, and every byte comes back.

The large one, 300 MB through 64 MB, is `python -m tests.bench.memory`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.bench.memory import LOG, Bodies, large_body, peak_mb, resident_mb
from tests.system.nodes import Cluster, Node

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.system

# 80 MB; of them 16 may wait in memory for their sync, beside maxmemory.
BODIES = Bodies(large_body, 800, 10)
GROWTH_MB_MAX = 65.0
FLAGS = (*LOG, "--maxmemory", "8mb")


def test_bodies_ten_times_larger_than_memory_all_come_back(make_node: Callable[..., Node]) -> None:
    node = make_node(*FLAGS).start()
    at_start = resident_mb(node)

    BODIES.add(node.port, "REPLICATE", 1)
    BODIES.take(node.port)

    assert peak_mb(node) - at_start < GROWTH_MB_MAX


def test_replica_holds_bodies_ten_times_larger_than_memory_and_gives_them_back(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path, 2, *FLAGS) as cluster:
        asked, replica = cluster.join().nodes
        at_start = max(resident_mb(asked), resident_mb(replica))

        BODIES.add(asked.port, "REPLICATE", 2, "RETRY", 5)
        peak = peak_mb(asked)
        asked.kill()
        BODIES.take(replica.port)

        assert max(peak, peak_mb(replica)) - at_start < GROWTH_MB_MAX
