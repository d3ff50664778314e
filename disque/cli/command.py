"""Command: send what was typed to the node and show the reply, as redis-cli does.

For people (a terminal) types are shown; in a pipe the bytes are given as they are. Errors go to standard error and
make the exit status 1, so that `ID=$(disque ADDJOB ...)` never holds one.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING

import attrs
import click

from disque.cli.connection import NO_PASSWORD_HINT, Connection, ConnectionFailed, Word
from disque.cli.exits import REFUSED, WRONG_USAGE
from disque.cli.grammar import SUBCOMMANDS, USAGE
from disque.cli.render import note
from disque.cli.replies import ErrorReply, Reply, json_line, pretty, prose, raw, to_json
from disque.resp.inline import split_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import TracebackType

WAIT_NOTE_S = 0.7  # a reply that takes longer is announced on a terminal
STREAMS = ("monitor", "subscribe", "psubscribe")  # commands with replies without end
WAITING = ("getjob", "waitjob", "addjob")  # commands that may wait for others
# Commands whose bulk is a text to read, not a value.
TEXTS = (
    ("info",),
    ("cluster", "info"),
    ("cluster", "nodes"),
    ("client", "list"),
    ("latency", "doctor"),
    ("latency", "graph"),
)
# What errors say of a command that is called in another way than it is to be; its usage follows.
MISCALLED = (
    b"wrong number of arguments",
    b"syntax error",
    b"is not an integer",
    b" subcommand or ",
)
# What people say by habit who come from Redis' lists -> what it is here (docs/from-redis.md).
HABITS = {
    **dict.fromkeys(("lpush", "rpush"), "ADDJOB"),
    **dict.fromkeys(("lpop", "rpop", "blpop", "brpop", "lmove", "blmove"), "GETJOB"),
    **dict.fromkeys(("keys", "scan"), "queues"),
    "llen": "GLOBALQLEN",
    "lrange": "QPEEK",
    "lrem": "CANCELJOB",
    "del": "QPURGE",
}


@attrs.frozen
class Style:
    """How replies are shown: `is_raw` None means raw unless standard output is a terminal."""

    is_json: bool = False
    is_raw: bool | None = None

    @property
    def is_for_people(self) -> bool:
        """True if types are shown."""
        if self.is_json:
            return False
        return sys.stdout.isatty() if self.is_raw is None else not self.is_raw


def run(
    connection: Connection,
    words: Sequence[Word],
    style: Style,
    *,
    times: int = 1,
    every_s: float = 0.0,
) -> int:
    """Send a command, show what comes; again if `times` says so (-1: for ever). Returns the exit status."""
    status = 0
    while times:
        status = _run_once(connection, words, style) or status
        times -= 1
        if times:
            time.sleep(every_s)
    return status


def run_lines(connection: Connection, lines: Iterable[bytes], style: Style) -> int:
    """Run commands from a file, one a line; `#` begins a comment. Returns 1 if one failed, 2 for an unreadable line."""
    status = 0
    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith(b"#"):
            continue
        try:
            words = split_words(line.rstrip(b"\r\n"))
        except ValueError as error:
            note(f"line {number}: {error}")
            return WRONG_USAGE
        if words:
            status = run(connection, words, style) or status
    return status


def names_of(words: Sequence[Word]) -> tuple[str, ...]:
    """The first two words in lower case, as text."""
    return tuple(
        (word.decode("utf-8", "replace") if isinstance(word, bytes) else str(word)).lower()
        for word in words[:2]
    )


def _run_once(connection: Connection, words: Sequence[Word], style: Style) -> int:
    names = names_of(words)
    name = names[0]
    is_watched = style.is_for_people and sys.stderr.isatty()
    try:
        with _Announcement(name, is_watched):
            reply = connection.ask(*words)
    except ConnectionFailed as error:
        # It has done what it was told, and there is nobody left to say so.
        if name == "shutdown" and error.was_sent:
            return 0
        raise
    status = show(reply, style, is_text=names[:1] in TEXTS or names in TEXTS)
    if isinstance(reply, ErrorReply):
        _suggest(reply, name)
    elif name == "getjob" and is_watched and isinstance(reply, list) and reply:
        _remind(reply)
    elif name in STREAMS:
        while True:
            show(connection.read(), style)
    return status


def show(reply: Reply, style: Style, *, is_text: bool = False) -> int:
    """Write a reply out; returns 1 for an error, else 0."""
    is_error = isinstance(reply, ErrorReply)
    if style.is_json:
        data = json_line(to_json(reply))
    elif is_error or style.is_for_people:
        data = prose(reply) if is_text and not is_error else pretty(reply)
    else:
        data = raw(reply)
    click.echo(data, nl=False, err=is_error and not style.is_json)
    return REFUSED if is_error else 0


def _suggest(reply: ErrorReply, name: str) -> None:
    """After an error that says too little: where a password is taken from, the usage, or what may have been meant."""
    if reply.text.startswith(b"NOAUTH"):
        note(NO_PASSWORD_HINT)
    if (called := USAGE.get(name.upper())) and any([part in reply.text for part in MISCALLED]):
        note(f"Usage: {name.upper()} {called}".rstrip())
    if not reply.text.startswith(b"ERR unknown command"):
        return
    import difflib

    known = {**HABITS, **{each.lower(): each for each in (*USAGE, *SUBCOMMANDS)}}
    for close in difflib.get_close_matches(name, known, n=1):
        note(f"Did you mean {known[close]}?")


def _remind(jobs: list[Reply]) -> None:
    ids = [job[1].decode() for job in jobs if isinstance(job, list) and isinstance(job[1], bytes)]
    note(f"When done: ACKJOB {' '.join(ids)}  (else it is handed out again after its RETRY time)")


class _Announcement:
    """Says on a terminal that a command waits, if it does; people took that for a hang (disque#89)."""

    def __init__(self, name: str, is_wanted: bool) -> None:
        self._timer: threading.Timer | None = None
        if is_wanted and name in WAITING:
            what = {"getjob": "a job", "waitjob": "the outcome"}.get(name, "the copies")
            self._timer = threading.Timer(
                WAIT_NOTE_S, note, [f"Waiting for {what}; Ctrl-C ends the wait."]
            )
            self._timer.daemon = True

    def __enter__(self) -> None:
        if self._timer is not None:
            self._timer.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
