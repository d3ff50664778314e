"""Progress: a bar on standard error while something long goes on, where that is a terminal; silent elsewhere."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from disque.cli.tables import console

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.progress import Progress as Bar
    from rich.progress import TaskID


class Progress:
    """How far something is; does nothing without a bar."""

    def __init__(self, bar: Bar | None, task: TaskID | None) -> None:
        self._bar = bar
        self._task = task

    def total(self, count: int) -> None:
        """So much there is to do."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, total=count)

    def advance(self, count: int) -> None:
        """So much more is done."""
        if self._bar is not None and self._task is not None:
            self._bar.advance(self._task, count)


@contextmanager
def progress(what: str, *, is_shown: bool = True) -> Iterator[Progress]:
    """A bar for the block; `is_shown` False where it would stand in the way of other output."""
    errors = console(is_error=True)
    if not is_shown or not errors.is_terminal:
        yield Progress(None, None)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=errors) as bar:
        yield Progress(bar, bar.add_task(what, total=None))
