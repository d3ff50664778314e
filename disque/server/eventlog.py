"""EventLog: one line an event, `time level event key=value …`, to standard output or a file.

It doesn't know what is worth logging, only how a line looks. No job bodies, no secrets: callers
see to that. The standard library's logging isn't used: a line here is one write, and a full disk
must never become an exception.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from cluster.ready import OnceAMinute

if TYPE_CHECKING:
    from collections.abc import Callable

LEVELS = {"debug": 0, "verbose": 1, "notice": 2, "warning": 3}  # Disque's names
_VALUE_CHARS_MAX = 512  # a longer value is cut: a log line stays a line
_OF_NOTE = {"debug": "debug", "info": "notice", "warning": "warning"}


def spell(value: object) -> str:
    """A value as it stands in a line: quoted if it holds blanks, quotes or control characters."""
    text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
    if len(text) > _VALUE_CHARS_MAX:
        text = text[:_VALUE_CHARS_MAX] + "…"
    if text and text.isprintable() and not any(char in text for char in " =\"'"):
        return text
    return '"' + "".join(map(_escape, text)) + '"'


def _escape(char: str) -> str:
    """One character inside quotes. Not by a codec: its import would fail when files run out."""
    if char in '"\\':
        return "\\" + char
    return char if char.isprintable() else f"\\u{ord(char):04x}"


def _open_syslog(ident: str, facility: str) -> Callable[[str, str], None]:
    """A function that takes a level and a line."""
    import syslog  # only now: few need it, and a start must be quick

    places = {
        "user": syslog.LOG_USER,
        **{f"local{n}": getattr(syslog, f"LOG_LOCAL{n}") for n in range(8)},
    }
    levels = {
        "debug": syslog.LOG_DEBUG,
        "verbose": syslog.LOG_INFO,
        "notice": syslog.LOG_NOTICE,
        "warning": syslog.LOG_WARNING,
    }
    syslog.openlog(ident, syslog.LOG_PID | syslog.LOG_NDELAY, places[facility])

    def tell(level: str, text: str) -> None:
        printable = text.encode("utf-8", "backslashreplace").decode()
        syslog.syslog(levels[level], printable)

    return tell


class EventLog:
    """Writes events of at least `level`; a sink that can't be written to is given up silently, never raised."""

    def __init__(
        self, *, path: str = "", level: str = "notice", syslog: tuple[str, str] | None = None
    ) -> None:
        """`path` "" is standard output; OSError if the file can't be opened for appending.

        `syslog`: our name there and the facility; it gets the lines without their time.
        """
        self.level = level
        self._to_syslog: Callable[[str, str], None] | None = (
            _open_syslog(*syslog) if syslog else None
        )
        self._told = OnceAMinute()
        self._sink: BinaryIO
        if path:
            self._sink = Path(path).open("ab", buffering=0)  # noqa: SIM115 - lives as long as the process
        else:
            self._sink = sys.stdout.buffer

    def event(self, level: str, event: str, /, **facts: object) -> None:
        """Write one line if `level` is high enough."""
        if LEVELS[level] < LEVELS[self.level]:
            return
        now = time.time()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now))
        words = [event, *[f"{key}={spell(value)}" for key, value in facts.items()]]
        text = " ".join(words)
        self.write(f"{stamp}.{int(now * 1000) % 1000:03d}Z {level} {text}\n")
        if self._to_syslog is not None:
            self._to_syslog(level, text)

    def seldom(self, level: str, event: str, about: str = "", /, **facts: object) -> None:
        """The same at most once a minute for each event, and what it is `about`: others can cause it at will."""
        if self._told.allows(event, about, int(time.monotonic() * 1_000)):
            self.event(level, event, **facts)

    def note(self, level: str, event: str, facts: tuple[tuple[str, object], ...]) -> None:
        """Write an event that pure code noted (cluster.ready.Note)."""
        self.event(_OF_NOTE.get(level, "notice"), event.replace("_", "-"), **dict(facts))

    def close(self) -> None:
        """Give up the file; standard output stays open."""
        if self._sink is not sys.stdout.buffer:
            self._sink.close()

    def write(self, text: str) -> None:
        """Write text as it is (a traceback); errors of the sink are swallowed."""
        try:
            self._sink.write(text.encode("utf-8", "backslashreplace"))
            self._sink.flush()
        except (OSError, ValueError):
            return
