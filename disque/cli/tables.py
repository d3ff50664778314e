"""Tables: rows for people, fitted to their terminal; for a pipe plain columns that are never cut.

Colours only where there is a terminal (and NO_COLOR isn't set). Apart from `render`, since what draws them takes long
to be imported, and most commands need none.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from disque.cli.replies import harmless

if TYPE_CHECKING:
    from collections.abc import Sequence

PIPE_COLUMNS = 10_000  # width where no terminal says one
FLEXIBLE_MIN = 10  # columns that are left of a column that is cut
GAP = 2  # between columns


class Output(Console):
    """A console that leaves it to `main` what a reader means who has gone; Rich's own ends with 1."""

    def on_broken_pipe(self) -> None:
        """Rich calls it where it caught the error."""
        raise BrokenPipeError


def console(*, is_error: bool = False) -> Console:
    """A console for standard output, or standard error."""
    file = sys.stderr if is_error else sys.stdout
    width = None if file.isatty() else PIPE_COLUMNS
    return Output(file=file, width=width, highlight=False, markup=False, emoji=False)


def show_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str | Text]],
    *,
    numbers: str = "",
    optional: Sequence[str] = (),
    flexible: str = "",
) -> None:
    """Print a table, fitted to the terminal, if there is one; see `table_of`."""
    out = console()
    width = out.width if out.is_terminal else None
    table = table_of(
        columns, rows, numbers=numbers, optional=optional, flexible=flexible, width=width
    )
    # What is still too wide goes on in the next line: an id that is cut is of no use.
    out.width = PIPE_COLUMNS
    out.print(table, crop=False, soft_wrap=True)


def table_of(
    columns: Sequence[str],
    rows: Sequence[Sequence[str | Text]],
    *,
    numbers: str = "",
    optional: Sequence[str] = (),
    flexible: str = "",
    width: int | None = None,
) -> Table:
    """A table; `numbers` names the columns, space-separated, that are aligned right.

    If it is wider than `width`, `flexible` is cut, down to FLEXIBLE_MIN, then `optional` columns are left out in
    order; it may be one of them.
    """
    cells = [
        [each if isinstance(each, Text) else Text(harmless(each)) for each in row] for row in rows
    ]
    widths = {
        name: max([cell_len(name), *[row[at].cell_len for row in cells]])
        for at, name in enumerate(columns)
    }
    if width is not None:
        _fit(widths, width, optional, flexible)
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, GAP, 0, 0))
    for name in widths:
        justify: Any = "right" if name in numbers.split() else "left"
        table.add_column(name, justify=justify, no_wrap=True, width=widths[name])
    kept = [at for at, name in enumerate(columns) if name in widths]
    for row in cells:
        table.add_row(*[row[at] for at in kept])
    return table


def _fit(widths: dict[str, int], width: int, optional: Sequence[str], flexible: str) -> None:
    """Take from the widths of columns, or whole columns, what is too much."""
    spare = width - sum(widths.values()) - GAP * (len(widths) - 1)
    for name in ("", *optional):
        if spare < 0 and name:
            spare += widths.pop(name) + GAP
        if flexible in widths:
            least = min(FLEXIBLE_MIN, widths[flexible])
            if spare < 0 and widths[flexible] + spare >= least:
                widths[flexible] += spare
                return
