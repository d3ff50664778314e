"""The import contracts of pyproject.toml hold, and each of them would notice if it didn't.

The planted violations go into a copy of the packages; import-linter runs there as in CI.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# One forbidden import for each contract: its name, the file, the line that breaks it.
PLANTED = [
    ("The bus knows nothing of jobs", "cluster/bus.py", "import disque.errors"),
    (
        "Pure code has no clock, dice, files, sockets or scheduler",
        "disque/core/delivery.py",
        "import time",
    ),
    (
        "The core sees of the cluster only ids, errors and the view",
        "disque/core/state.py",
        "import cluster.membership",
    ),
    (
        "What other people's programs import must not need the bus",
        "disque/errors.py",
        "import cluster.nodeid",
    ),
    (
        "STOMP sees of the core only commands, replies and names",
        "disque/stomp/session.py",
        "import disque.core.engine",
    ),
    ("The judge knows the accused by RESP alone", "jepsen/drain.py", "import disque.errors"),
    ("Layers of the broker", "disque/broker.py", "import disque.server"),
    (
        "The tool and the page are clients of a node like any other",
        "disque/cli/render.py",
        "import disque.core.job",
    ),
    ("Layers of the client", "disque/client/routing.py", "import disque.client.session"),
    ("Layers of the log", "disque/aof/format.py", "import disque.aof.store"),
    ("Layers of the server", "disque/server/render.py", "import disque.server.dispatch"),
    ("Layers of the page", "disque/web/text.py", "import disque.web.views"),
    ("Layers of the tool", "disque/cli/grammar.py", "import disque.cli.main"),
    ("Layers of the core", "disque/core/delivery.py", "import disque.core.federation"),
    ("Layers of the bus", "cluster/peer.py", "import cluster.membership"),
]


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter in a folder that holds the packages and pyproject.toml."""
    command = [
        sys.executable,
        "-c",
        "from importlinter.cli import lint_imports_command as run; run()",
        "--no-cache",
    ]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=60
    )


def contracts() -> list[str]:
    """The names of pyproject's contracts."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    return [each["name"] for each in settings["contracts"]]


def verdicts(output: str) -> dict[str, str]:
    """KEPT or BROKEN by contract, from import-linter's report."""
    return dict(re.findall(r"^(.+?) (KEPT|BROKEN)\b", output, re.M))


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of what import-linter reads."""
    for package in ("cluster", "disque", "jepsen"):
        shutil.copytree(
            ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_all_contracts_are_kept(copy: Path) -> None:
    done = lint_imports(copy)
    assert verdicts(done.stdout) == dict.fromkeys(contracts(), "KEPT"), done.stdout + done.stderr
    assert done.returncode == 0


def test_every_contract_has_its_planted_violation() -> None:
    assert sorted(contract for contract, _, _ in PLANTED) == sorted(contracts())


@pytest.mark.parametrize(
    ("contract", "path", "line"), PLANTED, ids=[contract for contract, _, _ in PLANTED]
)
def test_a_planted_import_breaks(copy: Path, contract: str, path: str, line: str) -> None:
    with (copy / path).open("a") as file:
        file.write(f"\n{line}\n")
    done = lint_imports(copy)
    assert verdicts(done.stdout)[contract] == "BROKEN", done.stdout + done.stderr
    assert done.returncode == 1
