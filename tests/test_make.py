"""The Makefile tells of what takes long, and only then."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("target", ["run", "test"])
def test_an_installation_is_told_and_where_nothing_is_to_be_done_nothing(
    target: str, tmp_path: Path
) -> None:
    python = tmp_path / "bin/python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    bare = {name: text for name, text in os.environ.items() if not name.startswith("MAKE")}
    told = [
        subprocess.run(
            ["make", "-C", ROOT, "--no-print-directory", target, f"VENV={tmp_path}"],
            capture_output=True,
            check=True,
            text=True,
            env=bare,
        ).stdout
        for _ in range(2)
    ]
    assert told[0].startswith("pip installs disque-broker")
    assert (told[0].count("\n"), told[1]) == (1, "")


def test_cleaning_leaves_what_cannot_be_made_again() -> None:
    told = subprocess.run(
        ["make", "-C", ROOT, "-n", "clean"], capture_output=True, check=True, text=True
    ).stdout
    assert "__pycache__" in told
    assert not {"store", "store/"} & {*told.split()}
