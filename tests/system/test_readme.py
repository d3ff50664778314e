"""The README's first steps, typed as they stand, into three real nodes."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.system.nodes import ROOT, Cluster

if TYPE_CHECKING:
    from pathlib import Path

MARKER = "<!-- first steps: run by tests/system/test_readme.py -->"
TOLD_PORTS = ("7711", "7712", "7713")


def first_steps() -> list[str]:
    """The shell lines of the README's block, without their comments."""
    readme = (ROOT / "README.md").read_text()
    (block,) = re.findall(re.escape(MARKER) + r"\n```sh\n(.*?)```", readme, re.S)
    return [line.split("   #")[0].strip() for line in block.splitlines()]


@pytest.mark.system
@pytest.mark.skipif(not shutil.which("redis-cli"), reason="redis-cli isn't installed")
def test_first_steps_of_the_readme_carry_a_job_through_three_nodes(tmp_path: Path) -> None:
    with Cluster(tmp_path, 3) as cluster:
        cluster.join()
        script = "\n".join(["set -eu", *first_steps(), 'echo "$ID"'])
        for told, node in zip(TOLD_PORTS, cluster.nodes, strict=True):
            script = script.replace(f"-p {told}", f"-p {node.port}")
        done = subprocess.run(
            ["bash", "-c", script], capture_output=True, text=True, check=True, timeout=60
        )
        lines = done.stdout.split()
        job = lines[-1]
        assert lines[:5] == ["mail", job, "hello", "1", "0"], done.stdout
        assert job.startswith("D-")
        cluster.wait_drained()
