"""Nodes restarted one after another under load, as operations.md says, their bus under TLS or with a secret."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.certificates import Authority
from tests.system.load import Load, check, drain
from tests.system.logged import LOG, wait_ready
from tests.system.nodes import Cluster, Node, wait_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.system


def tls_flags(folder: Path) -> tuple[str, ...]:
    """A bus under TLS, with one certificate for all."""
    authority = Authority(folder)
    pair = authority.issue("node")
    files = {"cert": pair.cert, "key": pair.key, "ca-cert": authority.ca}
    words = [word for name, path in files.items() for word in (f"--tls-{name}-file", str(path))]
    return ("--tls-cluster", "yes", *words)


def wait_whole(node: Node) -> None:
    """Until no job that it knows lacks a copy: what the page says of nodes without a log."""
    wait_until(
        f"{node.port} has its copies", lambda: node.info("jobs")["under_replicated_jobs"] == "0"
    )


def left_of(node: Node, queue: str) -> list[bytes]:
    """Ids of the jobs of a queue that it has copies of."""
    return node.call("JSCAN", "0", "COUNT", 1_000_000, "QUEUE", queue)[1]  # type: ignore[no-any-return]


@pytest.mark.parametrize("secured", ["tls", "secret"])
def test_restart_of_each_node_under_load_loses_nothing(tmp_path: Path, secured: str) -> None:
    is_logged = secured == "tls"
    words = (*tls_flags(tmp_path), *LOG) if is_logged else ("--cluster-secret", "s")
    with Cluster(tmp_path, 3, *words, "--cluster-node-timeout", "2000") as cluster:
        cluster.join()
        with Load([node.port for node in cluster.nodes], pause_s=0.01) as load:
            for node in cluster.nodes:
                count = len(load.added)
                wait_until("jobs were added", lambda count=count: len(load.added) > count + 100)  # type: ignore[misc]
                assert node.terminate() == 0
                node.start()
                wait_ready(node)
                cluster.wait_mesh()
                if not is_logged:
                    for each in cluster.nodes:
                        wait_whole(each)
        drain(cluster.nodes, load)
        check(load, acked_before=[], delivered_before=[])
        for node in cluster.nodes:
            wait_until("all ends are known", lambda node=node: left_of(node, "many") == [])  # type: ignore[misc]
            assert "Traceback" not in node.log() + node.complaints()
