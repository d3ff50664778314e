"""Tables fit their terminal: one column is cut, then columns that may go, go; an id is never cut."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.text import Text

from disque.cli.tables import show_table, table_of

COLUMNS = ("ID", "AGE", "TTL", "BODY")
ROWS = [["x" * 20, "5 s", "1 min", "b" * 30], ["y", "10 s", "2 min", Text("c")]]


def drawn(width: int | None) -> list[str]:
    """The lines of the table in a terminal so wide."""
    file = io.StringIO()
    table = table_of(
        COLUMNS, ROWS, numbers="AGE TTL", optional=("TTL", "AGE"), flexible="BODY", width=width
    )
    Console(file=file, width=500).print(table)
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_without_a_terminal_nothing_is_cut() -> None:
    head, first, second = drawn(None)
    assert head == f"{'ID':20}   AGE    TTL  BODY"
    assert first == f"{'x' * 20}   5 s  1 min  {'b' * 30}"
    assert second == f"{'y':20}  10 s  2 min  c"


@pytest.mark.parametrize(
    ("width", "names"),
    [
        (65, ["ID", "AGE", "TTL", "BODY"]),
        (45, ["ID", "AGE", "TTL", "BODY"]),
        (42, ["ID", "AGE", "BODY"]),
        (36, ["ID", "BODY"]),
    ],
)
def test_narrow_terminal_gets_what_fits(width: int, names: list[str]) -> None:
    lines = drawn(width)
    assert lines[0].split() == names
    assert max(map(len, lines)) <= width


def test_id_is_whole_in_the_narrowest_terminal() -> None:
    assert drawn(5)[1].split()[0] == "x" * 20


def test_table_without_rows_is_its_head() -> None:
    file = io.StringIO()
    Console(file=file, width=500).print(table_of(("A", "B"), [], width=80))
    assert file.getvalue().split() == ["A", "B"]


class Terminal(io.StringIO):
    """Standard output that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_row_too_wide_for_the_terminal_goes_on_in_the_next_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "15")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stdout", file := Terminal())
    show_table(COLUMNS, ROWS, optional=("TTL", "AGE"), flexible="BODY")
    assert "x" * 20 in file.getvalue()


def test_flexible_column_may_be_left_out_at_the_end() -> None:
    table = table_of(COLUMNS, ROWS, optional=("TTL", "AGE", "BODY"), flexible="BODY", width=25)
    assert [each.header for each in table.columns] == ["ID"]
