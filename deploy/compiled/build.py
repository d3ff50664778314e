"""Builds the compiled form of disque-broker: the hottest pure modules as C, by mypyc, from the same source.

    python -m deploy.compiled.build [DIRECTORY]

leaves `disque` and `cluster` there as they are in the checkout, with an extension module beside each module that was
compiled: put the directory into PYTHONPATH, and set PYTHONSAFEPATH where the checkout is the present directory. mypyc
(it comes with mypy), setuptools, a C compiler and Python's headers are needed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploy.compiled.expand import ADOPT, expand

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
PACKAGES = ("disque", "cluster")
# What a command, a message or a look at the time goes through, with all that these modules know of each other.
_MODULES = {
    "disque": ["broker"],
    "disque/core": ["*"],
    "disque/resp": ["*"],
    "cluster": ["frame", "gossip", "membership", "messages", "packing", "peer", "ready", "state", "view"],
    "disque/server": [
        "clients", "connection", "dispatch", "entropy", "info", "latency", "loop", "pacing", "polling", "render",
        "shelf", "shell", "slowlog", "table",
    ],
}  # fmt: skip
COMPILED = [f"{folder}/{name}.py" for folder, names in _MODULES.items() for name in names]
ADOPTION = f"{ADOPT.replace('.', '/')}.py"
LEFT_OUT = ("__init__.py", "value.py")
DIRECTORY = "build/compiled"  # in the checkout
STAMP = "compiled-from"  # a file in it; empty while it is filled
OPTIMIZATION = "DISQUE_OPTIMIZATION"  # of the C compiler
_LEVELS = ("0", "1", "2", "3")


class BuildError(Exception):
    """It can't be built so."""


def build(directory: Path, *, optimization: str = "1") -> None:
    """Fill a directory, a new or empty one or a former build; nothing to do if that is of the same source.

    BuildError for another directory or level of optimization.
    """
    if optimization not in _LEVELS:
        raise BuildError(f"{OPTIMIZATION} is {optimization!r}, not one of {', '.join(_LEVELS)}")
    stamp = stamp_of(optimization)
    if _read(directory / STAMP) == stamp:
        return
    _empty(directory)
    expanded = directory / "expanded"
    for package in PACKAGES:
        shutil.copytree(
            ROOT / package, expanded / package, ignore=shutil.ignore_patterns("__pycache__")
        )
        shutil.copytree(
            ROOT / package, directory / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    for tree in (expanded, directory):
        shutil.copy(HERE / "adopt.py", tree / ADOPTION)
    modules = _modules(expanded)
    for each in modules:
        path = expanded / each
        path.write_text(expand(path.read_text()))
    _compile(expanded, modules, optimization)
    shutil.rmtree(expanded / "build")
    for built in expanded.rglob("*.so"):
        shutil.copy(built, directory / built.relative_to(expanded))
    shutil.rmtree(expanded)
    (directory / STAMP).write_text(stamp)


def _empty(directory: Path) -> None:
    """Leave nothing but a stamp that says that this is ours to empty; BuildError if it may be somebody's."""
    if directory.is_dir() and any(directory.iterdir()) and not (directory / STAMP).is_file():
        raise BuildError(f"{directory} holds other things than a build")
    if directory.exists() and not directory.is_dir():
        raise BuildError(f"{directory} is no directory")
    if directory.exists():
        shutil.rmtree(directory)
    directory.mkdir(parents=True)
    (directory / STAMP).touch()


def added(directory: Path) -> list[Path]:
    """What the directory has beside the source: paths in it."""
    found = [*directory.rglob("*.so"), directory / ADOPTION]
    return sorted(path.relative_to(directory) for path in found)


def _modules(tree: Path) -> list[str]:
    found = [path for pattern in COMPILED for path in sorted(tree.glob(pattern))]
    return [str(path.relative_to(tree)) for path in found if path.name not in LEFT_OUT]


def is_present(directory: Path) -> bool:
    """True for a build of the source as it is now, by this Python, with an optimizing compiler."""
    return _read(directory / STAMP) in [stamp_of(level) for level in _LEVELS if level != "0"]


def stamp_of(optimization: str) -> str:
    """What tells a build of the present source by this Python from others."""
    return f"{_digest()} {sys.version} mypy {version('mypy')} {optimization}\n"


def _digest() -> str:
    """Of all that is compiled or copied."""
    digest = hashlib.sha256()
    copied = [path for package in PACKAGES for path in (ROOT / package).rglob("*")]
    for path in sorted([*copied, *HERE.glob("*.py")]):
        if path.is_file() and path.parent.name != "__pycache__":
            digest.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _compile(tree: Path, modules: Sequence[str], optimization: str) -> None:
    """Make extension modules in place. The source has been checked: of the text that was written mypy may complain."""
    from mypyc.build import mypycify
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    class ParallelBuild(build_ext):
        """All C files of an extension at once: setuptools takes one after another."""

        def build_extensions(self) -> None:
            compiler, compile_one = self.compiler, self.compiler.compile

            def compile_all(sources: list[str], **options: Any) -> list[str]:
                with ThreadPoolExecutor(os.cpu_count()) as pool:
                    parts = pool.map(lambda source: compile_one([source], **options), sources)
                    return [made for part in parts for made in part]

            compiler.compile = compile_all
            super().build_extensions()

    before = Path.cwd()
    os.chdir(tree)  # mypyc names modules by their paths
    try:
        options = [
            "--strict",
            "--implicit-reexport",
            "--disable-error-code=misc",
            "--no-warn-unused-ignores",
        ]
        extensions = mypycify(
            [*options, *modules], opt_level=optimization, debug_level="0", multi_file=True
        )
        command = ParallelBuild(Distribution({"name": "disque", "ext_modules": extensions}))
        command.inplace = True
        command.ensure_finalized()
        command.run()
    finally:
        os.chdir(before)


if __name__ == "__main__":
    where = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / DIRECTORY
    try:
        build(where.resolve(), optimization=os.environ.get(OPTIMIZATION, "1"))
    except BuildError as error:
        sys.exit(f"deploy.compiled.build: {error}")
