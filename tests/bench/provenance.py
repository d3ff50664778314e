"""Where figures come from: the machine, the commit, our other build, the C Disque beside which they were measured."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.machinery import ExtensionFileLoader, PathFinder
from pathlib import Path

from deploy.compiled.build import is_present
from tests.system.nodes import ROOT


def machine() -> str:
    """Processor, cores and Python in a few words."""
    model = "unknown processor"
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text().splitlines()
        names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
        model = names[0] if names else model
    return f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}"


def commit() -> str:
    """The short id of the commit, with a plus if files differ from it; "unknown" without git."""
    quiet = subprocess.DEVNULL
    try:
        name = output(["git", "rev-parse", "--short", "HEAD"], quiet).strip()
        return name + ("+" if output(["git", "status", "--porcelain"], quiet).strip() else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def output(call: list[str], errors: int | None = None) -> str:
    """What a command prints; CalledProcessError if it fails. `errors`: where its stderr goes."""
    done = subprocess.run(
        call, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True, check=True, timeout=300
    )
    return done.stdout


def binary_of(word: str) -> str:
    """PATH of C_DISQUE=PATH or of PATH; ValueError if it can't be executed."""
    path = word.removeprefix("C_DISQUE=")
    if path and not os.access(path, os.X_OK):
        raise ValueError(f"{path} can't be executed")
    return path


def build_in(word: str) -> Path | None:
    """The folder of a compiled build, None for no word; ValueError if what is there isn't what would be built now."""
    if not word:
        return None
    root = Path(word).resolve()
    engine = PathFinder.find_spec("engine", [str(root / "disque" / "core")])
    if engine is None or not isinstance(engine.loader, ExtensionFileLoader):
        found = "isn't there" if engine is None else f"is {engine.origin}"
        raise ValueError(
            f"{root} is no compiled build: disque.core.engine {found}, and must be an extension module"
            f" of Python {platform.python_version()}"
        )
    if not is_present(root):
        raise ValueError(
            f"{root} is of another source, or made for no speed: `make compiled` again"
        )
    return root
