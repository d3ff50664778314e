"""Hatchling's hook: with DISQUE_COMPILED=1 in the environment a wheel has the compiled modules, for this Python alone.

DISQUE_COMPILED=1 pip install '.[cli,web]'
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

VARIABLE = "DISQUE_COMPILED"


class CompiledHook(BuildHookInterface[Any]):
    """Adds extension modules to a wheel; without the variable, and in an editable install, nothing."""

    def _is_wanted(self) -> bool:
        return os.environ.get(VARIABLE, "") not in ("", "0")

    def dependencies(self) -> list[str]:
        """What the build needs beside hatchling: the compiler, and what it must know of to check types."""
        if not self._is_wanted():
            return []
        return [
            "mypy>=1.20",
            "setuptools>=65",
            "msgpack-types>=0.3",
            *self.metadata.core.dependencies,
        ]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and say which files come along."""
        if not self._is_wanted() or version == "editable":
            return
        sys.path.insert(0, self.root)  # in a build of its own nothing of ours is installed
        from deploy.compiled.build import DIRECTORY, OPTIMIZATION, added, build

        directory = Path(self.root) / DIRECTORY
        build(directory, optimization=os.environ.get(OPTIMIZATION, "1"))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["force_include"].update(
            {str(directory / each): str(each) for each in added(directory)}
        )
