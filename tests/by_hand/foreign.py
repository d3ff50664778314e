"""What the scripts for other people's clients share: a cluster on the ports that those expect, and packages in a
temporary folder. Nothing stays behind.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.system.nodes import Cluster, Node

if TYPE_CHECKING:
    from collections.abc import Iterator

FIRST_PORT = 7711
INSTALL_S = 300.0
RUN_S = 600.0


@contextlib.contextmanager
def cluster(count: int) -> Iterator[tuple[Path, Cluster]]:
    """So many nodes that know each other on 7711, 7712 ..., and a folder for whatever else is needed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made = Cluster(folder, 0)
        made.nodes = [Node(folder / f"node{n}", port=FIRST_PORT + n) for n in range(count)]
        with made:
            yield folder, made.join()


def find_python(version: str) -> str:
    """The interpreter of a version such as 3.6, on the PATH or in pyenv's folder; SystemExit without one."""
    found = shutil.which(f"python{version}")
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [found] if found else []
    candidates += [str(path) for path in sorted(pyenv.glob(f"{version}.*/bin/python"))]
    for path in candidates:
        if subprocess.run([path, "--version"], capture_output=True, check=False).returncode == 0:
            return path
    raise SystemExit(f"needs Python {version}, which isn't here")


def make_venv(folder: Path, *packages: str, python: str = sys.executable, pip: str = "pip") -> Path:
    """A fresh venv's python, with these packages; an old Python needs an old `pip`."""
    call(python, "-m", "venv", str(folder / "venv"))
    own = folder / "venv" / "bin" / "python"
    call(str(own), "-m", "pip", "install", "-q", "-U", "--disable-pip-version-check", pip)
    call(str(own), "-m", "pip", "install", "-q", "--disable-pip-version-check", *packages)
    return own


def unpack_sdist(folder: Path, requirement: str) -> Path:
    """The folder of a source distribution, tests included."""
    target = folder / "sdist"
    call(
        sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:",
        "--disable-pip-version-check", "-d", str(target), requirement,
    )  # fmt: skip
    return unpack(next(target.glob("*.tar.gz")))


def unpack(path: Path) -> Path:
    """The one folder inside an archive, laid beside it."""
    with tarfile.open(path) as archive:
        archive.extractall(path.parent, filter="data")
    (inside,) = [each for each in path.parent.iterdir() if each.is_dir()]
    return inside


def npm_install(folder: Path, *packages: str) -> Path:
    """A folder with these packages in node_modules."""
    target = folder / "npm"
    target.mkdir()
    (target / "package.json").write_text("{}")
    call("npm", "install", "--no-audit", "--no-fund", "--silent", *packages, folder=target)
    return target


def npm_unpack(folder: Path, package: str) -> Path:
    """The folder of a package as it is published, tests included."""
    target = folder / "pack"
    target.mkdir()
    call("npm", "pack", "--silent", package, folder=target)
    return unpack(next(target.glob("*.tgz")))


def call(*words: str, folder: Path | None = None) -> None:
    """Run an installing command; SystemExit with its words if it fails."""
    done = subprocess.run(
        words, cwd=folder, capture_output=True, text=True, timeout=INSTALL_S, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}\n{(done.stdout + done.stderr)[-3_000:]}")


def run(*words: str, folder: Path, limit_s: float = RUN_S, **environment: str) -> int:
    """Run a client's suite or session, showing what it says; its exit status."""
    print(f"$ {' '.join(words)[:200]}", flush=True)
    return subprocess.run(
        words, cwd=folder, env={**os.environ, **environment}, timeout=limit_s, check=False
    ).returncode
