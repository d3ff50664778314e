"""`import`: jobs from JSON lines into the cluster; what was done is written down, so that it can be done again.

ADDJOB draws a new id for each job, so the protocol can't tell a repetition from a second job. The journal can: beside
the file, one line for each job that was added, or may have been. A second run goes on where the first one ended.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import zlib
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

import attrs
import click

from disque.cli.connection import PIPELINE_BYTES_MAX, Connection
from disque.cli.exits import WRONG_USAGE
from disque.cli.jobfile import StoredJob, add_words, from_line
from disque.cli.joblist import look_up
from disque.cli.progress import Progress, progress
from disque.cli.render import counted, note, say, say_json
from disque.cli.replies import ErrorReply, Reply, Status
from disque.cli.settings import common
from disque.cli.survey import Survey
from disque.client.errors import is_conclusive, reply_error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from disque.cli.settings import Settings

BATCH = 100  # jobs that are added at once; their copies are made together
COPY_BYTES_MAX = 16 << 20  # of a pipe's content in memory; beyond, it goes to a temporary file
TIMEOUT_MS = 10_000  # for the copies of one job
REPLY_S = 60.0  # without a reply, the connection counts as lost
COMPLAINTS_MAX = 10
UNKNOWN = "?"  # in the journal: added or not, nobody knows


@attrs.define
class Counts:
    """What has become of the jobs of the file."""

    added: int = 0
    done_before: int = 0
    still_there: int = 0
    unknown: int = 0
    failed: int = 0


@attrs.frozen
class Entry:
    """A job and its place in the file."""

    number: int  # of its line, from 1
    job: StoredJob
    line: bytes

    @property
    def key(self) -> str:
        """What the journal calls it: its old id; without one its line, number and content, lest an edited file is taken
        for the one that was imported.
        """
        return self.job.id or f"line:{self.number}:{zlib.crc32(self.line.strip()):08x}"


@attrs.frozen
class Changes:
    """What an import makes different from the file."""

    queue: bytes | None = None
    is_revived: bool = False  # dead letters go to their own queue
    ttl: int | None = None

    def to(self, job: StoredJob) -> StoredJob:
        """The job as it is to be added."""
        queue = job.own_queue if self.is_revived else self.queue
        return attrs.evolve(
            job,
            queue=job.queue if queue is None else queue,
            ttl=job.ttl if self.ttl is None else self.ttl,
        )


@click.command("import")
@click.argument(
    "file", type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path)
)
@click.option("-q", "--queue", metavar="QUEUE", help="Add all jobs to this queue.")
@click.option("--revive", is_flag=True, help="Add dead letters to the queue that they come from.")
@click.option(
    "--ttl", type=click.IntRange(min=1), metavar="SECONDS", help="Give all jobs this TTL."
)
@click.option(
    "--journal",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File that remembers what was added (FILE.imported; none for standard input).",
)
@click.option(
    "--again", is_flag=True, help="Add also what the journal has, or the cluster still has."
)
@click.option(
    "--retry-unknown", is_flag=True, help="Add also those of which nobody knows whether they were."
)
@common
def import_command(
    settings: Settings,
    file: Path,
    queue: str | None,
    revive: bool,
    ttl: int | None,
    journal: Path | None,
    again: bool,
    retry_unknown: bool,
) -> int:
    """Add jobs from JSON lines.

    FILE (`-`: standard input) is what `disque export` wrote, or anybody; queue and body suffice. The jobs get new
    ids; ttl and delay go on from where they stood. The whole file is checked before the first job is added. Left out
    are jobs that the journal says were added before, and those that the cluster still has under their old ids. At the
    first batch with an error it stops; called again, it goes on there. A job of which nobody knows whether it was
    added (a connection lost, NOREPL) is noted, and left out, too, unless --retry-unknown.
    """
    if queue is not None and revive:
        raise click.UsageError("--queue and --revive exclude each other")
    changes = Changes(
        None if queue is None else queue.encode("utf-8", "surrogateescape"), revive, ttl
    )
    is_stdin = file == Path("-")
    where = journal or (None if is_stdin else file.with_name(f"{file.name}.imported"))
    counts = Counts()
    with _open_file(file) as lines:
        count = _check(lines)
        known = {} if again or where is None else read_journal(where)
        if retry_unknown:
            known = {key: id_ for key, id_ in known.items() if id_ != UNKNOWN}
        with (
            Survey(settings) as survey,
            settings.connect(reply_timeout_s=REPLY_S) as connection,
            _open_journal(where) as notes,
            progress("import") as bar,
        ):
            bar.total(count)
            run = Import(survey, connection, notes, counts, known, again=again)
            try:
                run.run(_entries(lines, changes), bar)
            finally:
                _tell(settings, counts, where)
    return int(bool(counts.failed or counts.unknown))


@attrs.define(eq=False)
class Import:
    """One run over a file."""

    survey: Survey
    connection: Connection
    journal: IO[str] | None
    counts: Counts
    known: dict[str, str]
    again: bool = attrs.field(kw_only=True)

    def run(self, entries: Iterator[Entry], bar: Progress) -> None:
        """Add the jobs, a batch at a time, until one fails."""
        for batch in _batches(entries):
            self._add(batch if self.again else self._not_there(self._not_done(batch)))
            bar.advance(len(batch))
            if self.counts.failed or self.counts.unknown:
                break

    def _not_done(self, entries: list[Entry]) -> list[Entry]:
        """Those that the journal doesn't have, each id once."""
        fresh = []
        for entry in entries:
            if entry.key in self.known:
                self.counts.done_before += 1
            else:
                self.known[entry.key] = ""
                fresh.append(entry)
        return fresh

    def _not_there(self, entries: list[Entry]) -> list[Entry]:
        """Those whose old id no node knows as a job that is still to be done."""
        ids = [entry.job.id for entry in entries if entry.job.id is not None]
        there = {view.best.id for view in look_up(self.survey, ids) if view.state != "acked"}
        self.counts.still_there += len(there)
        return [entry for entry in entries if entry.job.id not in there]

    def _add(self, entries: list[Entry]) -> None:
        """Add these jobs and write down what came of each."""
        nodes = max(len(self.survey.nodes), 1)
        commands = [add_words(entry.job, timeout_ms=TIMEOUT_MS, nodes=nodes) for entry in entries]
        told = 0
        try:
            self.connection.send(*commands)
            for entry in entries:
                self._learn(entry, self.connection.read())
                told += 1
        except BaseException:
            # A lost connection or Ctrl-C: what was sent may have been done.
            for entry in entries[told:]:
                self._unknown(entry)
            raise

    def _learn(self, entry: Entry, reply: Reply) -> None:
        if isinstance(reply, Status):
            self.counts.added += 1
            self._note(entry, reply.text.decode())
            return
        text = (
            reply.text.decode("utf-8", "replace") if isinstance(reply, ErrorReply) else f"{reply!r}"
        )
        if is_conclusive("ADDJOB", reply_error(text)):
            self.counts.failed += 1
        else:
            self._unknown(entry)
        if self.counts.failed + self.counts.unknown <= COMPLAINTS_MAX:
            note(f"line {entry.number}: {text}")

    def _unknown(self, entry: Entry) -> None:
        self.counts.unknown += 1
        self._note(entry, UNKNOWN)

    def _note(self, entry: Entry, id_: str) -> None:
        if self.journal is not None:
            self.journal.write(f"{entry.key} {id_}\n")
            self.journal.flush()


def read_journal(path: Path) -> dict[str, str]:
    """What was added before: key -> new id, or UNKNOWN; the last line of a key counts, a torn one doesn't."""
    if not path.exists():
        return {}
    lines = [line.split() for line in path.read_text().split("\n")[:-1]]
    return {words[0]: words[1] for words in lines if len(words) == 2}


@contextmanager
def _open_journal(path: Path | None) -> Iterator[IO[str] | None]:
    if path is None:
        yield None
        return
    try:
        file = path.open("a+")
    except OSError as error:
        raise click.FileError(str(path), error.strerror) from None
    with file:
        # A line that was torn off must not swallow the next one.
        if file.tell() and not path.read_text().endswith("\n"):
            file.write("\n")
        yield file
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _open_file(path: Path) -> Iterator[IO[bytes]]:
    """The file; of what can't be read twice (a pipe) a copy."""
    with click.open_file(str(path), "rb") as file:
        if file.seekable():
            yield file
            return
        with tempfile.SpooledTemporaryFile(COPY_BYTES_MAX) as copy:
            shutil.copyfileobj(file, copy)
            copy.seek(0)
            yield copy


def _check(file: IO[bytes]) -> int:
    """Read a file whole, count its jobs and go back to its beginning; ends the command if a line is wrong."""
    count, complaints = 0, []
    for number, line in enumerate(file, 1):
        if line.strip():
            count += 1
            try:
                from_line(line)
            except ValueError as error:
                complaints.append(f"line {number}: {error}")
    file.seek(0)
    if complaints:
        for each in complaints[:COMPLAINTS_MAX]:
            note(each)
        note(f"{counted(len(complaints), 'line')} wrong; nothing was added")
        raise click.exceptions.Exit(WRONG_USAGE)
    return count


def _entries(lines: IO[bytes], changes: Changes) -> Iterator[Entry]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield Entry(number, changes.to(from_line(line)), line)


def _batches(entries: Iterator[Entry]) -> Iterator[list[Entry]]:
    batch: list[Entry] = []
    size = 0
    for entry in entries:
        batch.append(entry)
        size += len(entry.line)
        if len(batch) >= BATCH or size >= PIPELINE_BYTES_MAX:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _tell(settings: Settings, counts: Counts, journal: Path | None) -> None:
    if settings.is_json:
        say_json(attrs.asdict(counts))
        return
    say(f"added {counted(counts.added, 'job')}")
    if counts.done_before:
        note(
            f"{counts.done_before:,} left out: {journal} says that they were added before (--again)"
        )
    if counts.still_there:
        note(
            f"{counts.still_there:,} left out: the cluster still has them under their old ids (--again)"
        )
    if counts.unknown:
        note(
            f"{counts.unknown:,} of which nobody knows whether they were added (--retry-unknown adds them)"
        )
    if counts.failed:
        note(
            f"{counts.failed:,} refused; later lines were not tried. Once that is mended, call it again to go on"
        )
