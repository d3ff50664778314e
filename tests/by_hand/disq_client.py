"""PyPI `disq` 0.0.4: its own 22 tests, against four nodes on 7711-7714.

`python -m tests.by_hand.disq_client` needs Python 3.6 (`async` is one of its argument names) and those ports free.
Its benchmark tests are run once each; its test package's pytest-benchmark isn't needed for that.
"""

from __future__ import annotations

import sys

from tests.by_hand.foreign import cluster, find_python, make_venv, run, unpack_sdist

BENCHMARK = """
import pytest
@pytest.fixture
def benchmark():
    return lambda function, *arguments, **options: function(*arguments, **options)
"""


def main() -> int:
    """Run the suite; pytest prints the counts."""
    with cluster(4) as (folder, _):
        source = unpack_sdist(folder, "disq==0.0.4")
        python = make_venv(
            folder,
            *("pytest<7", "redis<3", "six", "blist"),
            python=find_python("3.6"),
            pip="pip<22",
        )
        (source / "conftest.py").write_text(BENCHMARK)
        return run(str(python), "-m", "pytest", "-q", "-rA", "tests", folder=source)


if __name__ == "__main__":
    sys.exit(main())
