"""Render: times, sizes and text as people read them; nothing that could move a terminal's cursor."""

from __future__ import annotations

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disque.cli.render import counted, duration, note, say, show_error, shown, size
from disque.cli.tables import show_table
from disque.resp.inline import split_words


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0, "0 s"),
        (0.25, "0.2 s"),
        (59, "59 s"),
        (60, "1 min"),
        (185, "3 min 5 s"),
        (7_800, "2 h 10 min"),
        (86_400, "1 d"),
        (100 * 86_400 + 3_600, "100 d 1 h"),
    ],
)
def test_duration_has_its_two_largest_units(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_rough_duration_has_its_largest_unit() -> None:
    assert [duration(s, is_rough=True) for s in (59, 3_599, 7_800, 90_000)] == [
        "59 s",
        "59 min",
        "2 h",
        "1 d",
    ]


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (3 << 20, "3.0 MiB"),
        (5 << 40, "5120.0 GiB"),
    ],
)
def test_size_is_in_binary_units(count: int, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"mail", "mail"),
        ("grün".encode(), "grün"),
        (b"", '""'),
        (b"\x1b[31mred", '"\\x1b[31mred"'),
        (b"a\nb", '"a\\nb"'),
        (b"\xff", '"\\xff"'),
        ("\u202eevil".encode(), '"\\xe2\\x80\\xaeevil"'),
        ('grün\n"blau"'.encode(), r'"grün\n\"blau\""'),
    ],
)
def test_shown_text_is_one_printable_line(data: bytes, text: str) -> None:
    assert shown(data) == text
    assert shown(data).isprintable()


@given(st.text())
def test_escaped_text_is_read_back_by_the_prompt(text: str) -> None:
    data = f"{text}\n".encode()
    assert split_words(shown(data).encode()) == [data]


def test_lines_and_errors_and_cells_do_nothing_to_a_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    say("a\x1bb")
    note("a\x1bb")
    show_error(click.ClickException("a\x1bb"))
    show_table(["A"], [["a\x1bb"]])
    assert capsys.readouterr() == ("a\\x1bb\nA     \na\\x1bb\n", "a\\x1bb\nError: a\\x1bb\n")


def test_long_text_is_cut() -> None:
    assert shown(b"x" * 100, 10) == "x" * 9 + "…"
    assert len(shown(b"\xff" * 100, 10)) == 10


def test_one_job_is_no_jobs() -> None:
    assert (counted(1, "job"), counted(0, "job"), counted(1_000, "job")) == (
        "1 job",
        "0 jobs",
        "1,000 jobs",
    )
