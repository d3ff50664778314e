"""Fixtures of the system tests: nodes and clusters that end with the test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.system.nodes import Cluster, Node, Resp

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.system.tool import Tool


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[Callable[..., Node]]:
    """Makes nodes (not yet started) with folders of their own; they are killed at the end."""
    made: list[Node] = []

    def make(*flags: str, folder: str = "") -> Node:
        node = Node(tmp_path / (folder or f"node{len(made)}"), *flags)
        made.append(node)
        return node

    yield make
    for node in made:
        node.kill()


@pytest.fixture
def node(make_node: Callable[..., Node]) -> Node:
    """One lone node that runs."""
    return make_node().start()


@pytest.fixture
def logging(make_node: Callable[..., Node]) -> Node:
    """A lone node that runs with a log."""
    return make_node("--appendonly", "yes").start()


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Cluster]:
    """Three nodes that know each other, with a node timeout of 2 s."""
    with Cluster(tmp_path, 3, "--cluster-node-timeout", "2000") as cluster:
        yield cluster.join()
        for each in cluster.nodes:
            assert each.process is None or each.process.poll() in (None, 0), each.log()
            assert "Traceback" not in each.log(), each.log()


@pytest.fixture(scope="module")
def lone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """One node for all tests of a module that use only queues of their own."""
    node = Node(tmp_path_factory.mktemp("lone")).start()
    yield node
    node.kill()
    assert "Traceback" not in node.log(), node.log()


@pytest.fixture
def client(lone: Node) -> Iterator[Resp]:
    """A connection to the shared node, which forgets all jobs first."""
    with lone.connect() as connection:
        assert connection.call("DEBUG", "FLUSHALL") == "OK"
        yield connection


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Tool:
    """The tool `disque` in this process, without settings of the environment."""
    from tests.system.tool import Tool

    for name in ("DISQUE_URL", "DISQUE_PASSWORD", "DISQUE_AUTH"):
        monkeypatch.delenv(name, raising=False)
    return Tool(monkeypatch, capfdbinary)


@pytest.fixture
def spawn_tool() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts the tool as a process with pipes; it is killed at the end if it still runs."""
    from tests.system.tool import spawn

    made: list[subprocess.Popen[bytes]] = []

    def make(*words: str, **more: object) -> subprocess.Popen[bytes]:
        made.append(spawn(*words, **more))
        return made[-1]

    yield make
    for process in made:
        process.kill()
        process.communicate()
