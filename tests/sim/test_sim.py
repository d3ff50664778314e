"""A handful of seeds in pytest; the same seed is the same run whatever PYTHONHASHSEED says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.__main__ import STRICT_SEEDS
from tests.sim.plan import draw
from tests.sim.run import run_seed
from tests.sim.streams import Streams

ROOT = Path(__file__).parents[2]
_DIGESTS = """
from tests.sim.run import run_seed
print(*(run_seed(s, wants_digest=True).digest for s in (3, 7)))
print(run_seed(3, events_wanted=5000, has_log=True, wants_digest=True).digest)
"""


@pytest.mark.parametrize("seed", range(6))
def test_seed_breaks_no_rule(seed: int) -> None:
    result = run_seed(seed)
    assert result.violation is None, result.story


def test_three_hash_seeds_give_one_digest() -> None:
    digests = set()
    for hash_seed in ("0", "1", "77"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            [sys.executable, "-c", _DIGESTS],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(done.stdout)
    assert len(digests) == 1, digests


def test_ci_runs_so_many_seeds_at_once_that_the_table_has_to_be_full() -> None:
    first, last = map(int, re.findall(r" SEEDS=(\d+)\.\.(\d+)", (ROOT / ".ci/run").read_text())[0])
    assert last - first + 1 >= STRICT_SEEDS


def test_two_seeds_are_two_runs() -> None:
    assert run_seed(1, wants_digest=True).digest != run_seed(2, wants_digest=True).digest


def test_a_stream_depends_on_its_name_alone() -> None:
    one, two = Streams(5), Streams(5)
    two["other"].random()
    assert one["link 0>1"].random() == two["link 0>1"].random()
    assert one["link 0>1"].random() != one["link 1>0"].random()


def test_plans_have_faults_and_differ() -> None:
    plans = [draw(seed) for seed in range(100)]
    assert sum(len(plan.faults) for plan in plans) >= 5 * len(plans)
    assert len({plan.describe() for plan in plans}) == len(plans)
