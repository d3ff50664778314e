"""Main: the command `disque-server`: reads its arguments, runs the server, says in one line what was wrong.

It imports the server only when there is one to run: `--version` and a wrong directive answer at once.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import disque
from disque.errors import ConfigError
from disque.server.configfile import load

if TYPE_CHECKING:
    from collections.abc import Sequence

EXIT_WRONG = 1  # a directive, a file or a port that can't be used

HELP = """\
disque-server [CONFIG-FILE] [--DIRECTIVE VALUE ...]

Runs one node of a disque-broker cluster. A directive stands in the file as `port 7711`, in the
environment as DISQUE_PORT=7711, and here as --port 7711; each beats the one before.

  disque-server --port 7711
  disque-server --port 7712 --dir data --cluster-join 127.0.0.1:7711
  disque-server --version
  disque-server --help

Directives:
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status: 0 stopped, 1 can't start, 70 our own bug."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    # It may stand last, behind others; but what follows a directive is its value
    asked = "" if words[-2:-1] and words[-2].startswith("--") else "".join(words[-1:])
    if asked in ("--version", "-v"):
        sys.stdout.write(f"disque-broker {disque.__version__}\n")
        return 0
    if asked in ("--help", "-h"):
        sys.stdout.write(help_text())
        return 0
    try:
        loaded = load(words, os.environ)
        from disque.server.app import run  # only now: see above

        return run(loaded.config, loaded.warnings)
    except ConfigError as error:
        sys.stderr.write(f"disque-server: {error}\n")
        return EXIT_WRONG
    except KeyboardInterrupt:  # before the server heeds signals
        return EXIT_WRONG


def help_text() -> str:
    """How it is called, and one line a directive."""
    from disque.server.config import DIRECTIVES, Config

    config, lines = Config(), []
    for name, directive in DIRECTIVES.items():
        default = directive.show(getattr(config, directive.attribute)) if name != "dir" else "."
        unit = f" {directive.unit}" if directive.unit else ""
        lines.append(f"  {name:30} {directive.help} [{default or '-'}{unit if default else ''}]")
    return HELP + "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
