"""`import`: what was done is written down, what may have been done, too."""

from __future__ import annotations

import contextlib
import io
from typing import TYPE_CHECKING

from disque.cli.connection import ConnectionFailed
from disque.cli.importing import BATCH, Changes, Counts, Entry, Import, _batches, read_journal
from disque.cli.jobfile import StoredJob
from disque.cli.progress import Progress
from disque.cli.replies import ErrorReply, Reply, Status

if TYPE_CHECKING:
    from pathlib import Path


def test_journal_tells_what_was_added_and_a_torn_line_tells_nothing(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    assert read_journal(path) == {}
    path.write_text("a ?\na D-new\nline:3 ?\n\nbroken\nb D-n")
    assert read_journal(path) == {"a": "D-new", "line:3": "?"}


def test_job_without_an_id_is_called_by_its_line_and_what_it_says() -> None:
    job = StoredJob(b"q", b"")
    key = Entry(7, job, b"{}\n").key
    assert key.startswith("line:7:")
    assert Entry(7, job, b"{}").key == key
    assert Entry(7, job, b"{1}").key != key
    assert Entry(7, StoredJob(b"q", b"", id="D-x"), b"{}").key == "D-x"


def test_batches_are_bounded_by_count_and_bytes() -> None:
    small = [Entry(at, StoredJob(b"q", b""), b"x") for at in range(2 * BATCH + 1)]
    assert [len(batch) for batch in _batches(iter(small))] == [BATCH, BATCH, 1]
    large = [Entry(at, StoredJob(b"q", b""), bytes(3 << 20)) for at in range(3)]
    assert [len(batch) for batch in _batches(iter(large))] == [2, 1]


def test_dead_letter_can_go_back_to_where_it_comes_from() -> None:
    letter, other = StoredJob(b"graves", b"", own_queue=b"mail"), StoredJob(b"graves", b"", ttl=5)
    assert [Changes(is_revived=True).to(job).queue for job in (letter, other)] == [
        b"mail",
        b"graves",
    ]
    assert [Changes(b"x").to(job).queue for job in (letter, other)] == [b"x", b"x"]
    assert [Changes(ttl=9).to(job).ttl for job in (letter, other)] == [9, 9]
    assert Changes().to(other) == other


class Cut:
    """A connection that gives some replies, and then is gone."""

    def __init__(self, *replies: Reply) -> None:
        self.replies = list(replies)

    def send(self, *_: object) -> None:
        """Everything is sent."""

    def read(self) -> Reply:
        """The next reply."""
        if not self.replies:
            raise ConnectionFailed("cut", was_sent=True)
        return self.replies.pop(0)


class Nodes:
    """A survey of one node."""

    nodes = (1,)


def run_import(*replies: Reply) -> tuple[Counts, str]:
    """Import four jobs over a connection that is cut after these replies."""
    notes, counts = io.StringIO(), Counts()
    run = Import(Nodes(), Cut(*replies), notes, counts, {}, again=True)
    entries = [Entry(at, StoredJob(b"q", b"", id=f"old-{at}"), b"") for at in range(1, 5)]
    with contextlib.suppress(ConnectionFailed):
        run.run(iter(entries), Progress(None, None))
    return counts, notes.getvalue()


def test_what_was_sent_and_not_answered_is_written_down_as_unknown() -> None:
    counts, notes = run_import(Status(b"D-1"), Status(b"D-2"))
    assert (counts.added, counts.unknown, counts.failed) == (2, 2, 0)
    assert notes == "old-1 D-1\nold-2 D-2\nold-3 ?\nold-4 ?\n"


def test_refused_job_may_be_tried_again_and_one_without_copies_may_be_there() -> None:
    refused = ErrorReply(b"OOM command not allowed when used memory > 'maxmemory'.")
    late = ErrorReply(b"NOREPL Timeout reached before replicating to the requested number of nodes")
    counts, notes = run_import(Status(b"D-1"), refused, late, Status(b"D-4"))
    assert (counts.added, counts.unknown, counts.failed) == (2, 1, 1)
    assert notes == "old-1 D-1\nold-3 ?\nold-4 D-4\n"
