"""Render: values as people and programs read them: sizes, times, names, JSON.

Text that comes from jobs and queues is shown escaped: it can't move a terminal's cursor.
"""

from __future__ import annotations

import io
from typing import Any

import click

from disque.cli.replies import harmless, json_line
from disque.resp.inline import quote_word

BODY_CHARS_MAX = 60  # of a body in a table


def say(text: str) -> None:
    """One line of result on standard output."""
    click.echo(harmless(text))


def note(text: str) -> None:
    """One line for people beside the result, on standard error."""
    click.echo(harmless(text), err=True)


def say_json(value: Any) -> None:
    """One line of JSON on standard output, in UTF-8 whatever the locale; see `replies.json_line`."""
    click.echo(json_line(value), nl=False)


def show_error(error: click.ClickException) -> None:
    """What ends a call, on standard error; a server may have said some of it."""
    said = io.StringIO()
    error.show(said)
    click.echo(harmless(said.getvalue()), nl=False, err=True)


def shown(data: bytes, chars_max: int = 0) -> str:
    """Bytes as one line of printable text, cut to `chars_max` (0: whole); in quotes where some must be escaped."""
    part = data[: 4 * chars_max] if chars_max else data
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = quote_word(part).decode()
    else:
        if not text.isprintable() or not data:
            text = '"' + "".join(map(_escaped, part.decode(errors="ignore"))) + '"'
    return text if not chars_max or len(text) <= chars_max else text[: chars_max - 1] + "…"


def _escaped(char: str) -> str:
    if char.isprintable() and char not in '"\\':
        return char
    return quote_word(char.encode()).decode()[1:-1]


def duration(seconds: float | None, *, is_rough: bool = False) -> str:
    """A time in its two largest units: 0.3 s, 12 s, 3 min 5 s, 2 h 10 min, 4 d 3 h; a dash for None.

    Rough: in its largest unit alone.
    """
    if seconds is None:
        return "-"
    if seconds < 10 and seconds != int(seconds):
        return f"{seconds:.1f} s"
    left = int(seconds)
    for size, unit, small, small_unit in (
        (86_400, "d", 3_600, "h"),
        (3_600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if left >= size:
            rest = 0 if is_rough else left % size // small
            return f"{left // size} {unit}" + (f" {rest} {small_unit}" if rest else "")
    return f"{left} s"


def size(count: float) -> str:
    """Bytes in binary units: 512 B, 1.5 KiB, 3.0 MiB."""
    if count < 1024:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB"):
        count /= 1024
        if count < 1024:
            return f"{count:.1f} {unit}"
    return f"{count / 1024:.1f} GiB"


def counted(count: int, noun: str) -> str:
    """`1 job`, `2 jobs`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
