"""Server: disque-server with one bug in it, for real runs.

    python -m tests.mutants.server NAME [disque-server's own arguments]

NAME is one of the catalogue, `python -m tests.mutants --list` tells them; "none" is no bug.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys

import disque.server
from disque.server.main import main
from tests.mutants.catalogue import BUGS
from tests.mutants.real import HEALTHY
from tests.mutants.surgery import patched


def run(arguments: list[str]) -> int:
    """The server's exit status; 2 if there is no such bug."""
    name, *rest = arguments or [""]
    if name == HEALTHY:
        return main(rest)
    bug = BUGS.get(name)
    if bug is None:
        sys.stderr.write(f"no bug {name!r}; there are {' '.join(BUGS)}\n")
        return 2
    # What is imported later would bind the healthy functions.
    for module in pkgutil.iter_modules(disque.server.__path__):
        importlib.import_module(f"disque.server.{module.name}")
    with patched(*(bug.in_server or bug.patches)) as places:
        assert places, f"{name}: nothing was replaced"
        return main(rest)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
