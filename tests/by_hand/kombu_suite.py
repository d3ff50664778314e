"""Kombu's own integration classes against our transport: the six mixins of its t/integration/common.py, 40 tests.

`python -m tests.by_hand.kombu_suite [NODES]` takes them from the source distribution of the installed version,
and runs them against one node, or a cluster of so many. pytest prints the counts.
"""

from __future__ import annotations

import shutil
import sys

import kombu

from tests.by_hand.foreign import cluster, run, unpack_sdist
from tests.system.nodes import ROOT

SUITE = """
import kombu
import pytest

import disque.kombu_transport
from t.integration import common

disque.kombu_transport.register()


@pytest.fixture
def connection():
    return kombu.Connection("disque://127.0.0.1:7711")


@pytest.fixture
def invalid_connection():
    return kombu.Connection("disque://127.0.0.1:12345")


@pytest.fixture
def failover_connection():
    return kombu.Connection("disque://127.0.0.1:12345;disque://127.0.0.1:7711", connect_timeout=10)


class TestBasicFunctionality(common.BasicFunctionality): pass
class TestExchangeTypes(common.BaseExchangeTypes): pass
class TestTimeToLive(common.BaseTimeToLive): pass
class TestPriority(common.BasePriority): pass
class TestMessage(common.BaseMessage): pass
class TestFailover(common.BaseFailover): pass
"""


def main(count: int) -> int:
    """Run the suite; pytest's exit status."""
    with cluster(count) as (folder, nodes):
        source = unpack_sdist(folder, f"kombu=={kombu.__version__}")
        shutil.copytree(source / "t" / "integration", folder / "t" / "integration")
        (folder / "t" / "__init__.py").touch()
        (folder / "t" / "integration" / "test_disque.py").write_text(SUITE)
        words = ("-q", "-p", "no:cacheprovider", "t/integration/test_disque.py")
        status = run(sys.executable, "-m", "pytest", *words, folder=folder, PYTHONPATH=str(ROOT))
        for node in nodes.nodes:
            print(f"{node.port}: {node.info('jobs')}")
        return status


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1))
