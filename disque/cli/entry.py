"""Entry: the command `disque` as the shell starts it; says what is missing where the extra isn't installed."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING

from disque.cli.exits import INTERRUPTED, WRONG_USAGE

if TYPE_CHECKING:
    from collections.abc import Sequence

EXTRA = ("click", "rich", "prompt_toolkit")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tool and return its exit status (see `exits`)."""
    _mend_streams()
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        return INTERRUPTED
    except ModuleNotFoundError as error:
        if error.name not in EXTRA:
            raise
        sys.stderr.write(
            f"disque: {error.name} isn't installed; pip install 'disque-broker[cli]' brings what the tool needs\n"
        )
        return WRONG_USAGE


def _mend_streams() -> None:
    """A closed standard stream becomes the null device; what an encoding can't say is escaped, not an error."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: PTH123, SIM115 - open until the end
        elif mode == "w" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _run(arguments: Sequence[str] | None) -> int:
    import click

    from disque.cli.main import cli
    from disque.cli.render import show_error

    words = None if arguments is None else list(arguments)
    try:
        status = cli.main(words, prog_name="disque", standalone_mode=False)
    except click.ClickException as error:
        show_error(error)
        return error.exit_code
    except click.Abort:
        return INTERRUPTED
    return status if isinstance(status, int) else 0


if __name__ == "__main__":
    sys.exit(main())
