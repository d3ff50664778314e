"""`export`: a queue as JSON lines, from all nodes, each job once.

First the nodes tell which jobs there are, by state; then each job is fetched once, and written in the order in which
the queue gives them out. Only ids are kept in memory. A file appears whole or not at all.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from disque.cli.exits import TIME_IS_UP
from disque.cli.jobfile import StoredJob, to_line
from disque.cli.joblist import CHUNK, JobView, look_up, name_bytes
from disque.cli.progress import Progress, progress
from disque.cli.render import counted, note, say_json, shown
from disque.cli.settings import common
from disque.cli.survey import Survey, job_ids
from disque.client import results

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from disque.cli.settings import Settings

PAUSE_S = 5.0  # until all nodes must have heard of the pause
POLL_S = 0.05
ROUNDS_MAX = 3  # of looking for jobs; in a busy queue new ones never end
STATES = ("queued", "active", "wait-repl", "acked")  # of copies, as JSCAN has them
NAMES = ("utf-8", "surrogateescape")  # how results have names
PRIORITY_DEFAULT = 4


@click.command("export")
@click.argument("queue")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, allow_dash=True, path_type=Path),
    help="File (standard output).",
)
@click.option(
    "--move", is_flag=True, help="Cancel the jobs in the cluster once the file is on disk."
)
@click.option("--keep", is_flag=True, help="Leave the jobs where they are (the default).")
@common
def export_command(
    settings: Settings, queue: str, output: Path | None, move: bool, keep: bool
) -> int:
    """Write the jobs of a queue as JSON lines.

    One a job, with its body, times, priority and headers. --keep changes nothing and shows the queue as it is now,
    with the jobs that workers have. --move holds deliveries of the queue back on all nodes meanwhile, leaves what
    workers have where it is, and cancels what was written; if it is cut short, `import` of the file adds only what was
    cancelled. A file is written beside and put in place when it is whole. Exit status 1 if a node could not be asked:
    its jobs may be missing.
    """
    if move and keep:
        raise click.UsageError("--move and --keep exclude each other")
    if move and output in (None, Path("-")):
        raise click.UsageError(
            "--move needs --output: jobs are cancelled only once they are safe in a file"
        )
    name = queue.encode("utf-8", "surrogateescape")
    output = None if output == Path("-") else output
    with Survey(settings) as survey:
        if move and not survey.tell_silent():
            raise click.ClickException(
                "--move needs all nodes: a silent one goes on giving jobs out"
            )
        if move:
            assert output is not None
            return _move(settings, survey, name, output)
        with progress("export", is_shown=output is not None) as bar, _sink(output) as sink:
            written, _ = _write(survey, name, sink, bar)
        is_whole = survey.tell_silent()
        _tell(settings, output, exported=written, nodes_silent=len(survey.silent))
        if (
            not written
            and survey.home.get(results.global_queue_stats, "QSTAT", name, "GLOBAL") is None
        ):
            note(f"no node has a queue {shown(name)}")  # a name that is mistyped makes no backup
        return int(not is_whole)


def _move(settings: Settings, survey: Survey, queue: bytes, output: Path) -> int:
    with _deliveries_paused(survey, queue):
        with progress("export", is_shown=True) as bar, _sink(output) as sink:
            ids, left = _write(survey, queue, sink, bar, only=("queued", "delayed"))
        cancelled = 0
        for start in range(0, len(ids), CHUNK):
            cancelled += survey.home.get(results.number, "CANCELJOB", *ids[start : start + CHUNK])
    _tell(settings, output, exported=ids, cancelled=cancelled, left=left)
    if cancelled != len(ids):
        note(
            f"{len(ids) - cancelled} of them ended meanwhile, or were not confirmed to be cancelled"
        )
    return int(cancelled != len(ids) or bool(survey.silent))


def _tell(settings: Settings, output: Path | None, *, exported: list[str], **more: int) -> None:
    """What was done; to standard error where standard output has the jobs."""
    if settings.is_json and output is not None:
        say_json({"exported": len(exported), **more})
        return
    parts = [f"exported {counted(len(exported), 'job')}"]
    parts += [f"{count:,} {name.replace('_', ' ')}" for name, count in more.items() if count]
    note(", ".join(parts))


def _write(
    survey: Survey, queue: bytes, sink: BinaryIO, bar: Progress, only: Sequence[str] = ()
) -> tuple[list[str], int]:
    """Write the jobs, or those in some states, in the order of the queue; returns the ids, and how many were left out.

    They come in any order, go to a temporary file, and from there to their place: a queue may be larger than memory.
    """
    places: list[tuple[int, int, str, int, int]] = []
    left_out = 0
    with tempfile.TemporaryFile() as heap:
        for view in _jobs(survey, queue, bar):
            if only and view.state not in only:
                left_out += 1
                continue
            best = view.best
            line = to_line(stored(view, queue)).encode()
            priority = PRIORITY_DEFAULT if best.priority is None else best.priority
            places.append((-priority, best.ctime, best.id, heap.tell(), len(line)))
            heap.write(line)
        places.sort()
        for *_, start, size in places:
            heap.seek(start)
            sink.write(heap.read(size))
    return [id_ for _, _, id_, _, _ in places], left_out


def _jobs(survey: Survey, queue: bytes, bar: Progress) -> Iterator[JobView]:
    """The jobs of the queue that aren't done, each once, with a body.

    Of one that is queued, the copy in the queue says enough; of others, all holders are asked: only the one that handed
    a job out is sure to know.
    """
    states: dict[str, dict[str, str]] = {}
    for _ in range(ROUNDS_MAX):
        # Once more for what was on its way from a node that wasn't asked yet to one that was.
        before = len(states)
        for state in STATES:
            told = survey.each(
                lambda connection, state=state: job_ids(  # type: ignore[misc]
                    connection, "QUEUE", queue, "STATE", state
                )
            )
            for node, ids in told.items():
                for id_ in ids:
                    states.setdefault(id_, {})[node] = state
        if len(states) == before:
            break
    queued, others = dict[str, str](), list[str]()
    for id_, by_node in states.items():
        holder = next((node for node, state in by_node.items() if state == "queued"), None)
        if "acked" in by_node.values():
            continue
        if holder is None:
            others.append(id_)
        else:
            queued[id_] = holder
    bar.total(len(queued) + len(others))
    for holder in dict.fromkeys(queued.values()):
        mine = [id_ for id_, node in queued.items() if node == holder]
        yield from _looked_up(survey, mine, bar, holder)
    yield from _looked_up(survey, others, bar)


def _looked_up(
    survey: Survey, ids: list[str], bar: Progress, holder: str | None = None
) -> Iterator[JobView]:
    """The jobs at one holder, or at all; whichever has gone on meanwhile is looked for everywhere."""
    for start in range(0, len(ids), CHUNK):
        chunk = ids[start : start + CHUNK]
        found = {view.best.id: view for view in look_up(survey, chunk, holder)}
        moved = [id_ for id_ in chunk if holder and not _is_queued(found.get(id_))]
        found.update({view.best.id: view for view in look_up(survey, moved)})
        for id_ in chunk:
            view = found.get(id_)
            if view is not None and view.state != "acked" and view.best.body is not None:
                yield view
        bar.advance(len(chunk))


def _is_queued(view: JobView | None) -> bool:
    return view is not None and view.state == "queued"


def stored(view: JobView, queue: bytes) -> StoredJob:
    """A job for the file.

    `delay` is what is left for a job that waits for its time. A RETRY below a second, which SHOW tells as 0, is 1: an
    id says by its last digit whether its job may be delivered again.
    """
    copy, state = view.best, view.state
    retry = int(copy.retry)
    if retry == 0 and int(copy.id[-1], 16) % 2:
        retry = 1
    return StoredJob(
        queue=queue,
        body=copy.body or b"",
        ttl=max(1, int(copy.ttl)),
        delay=math.ceil(view.due_in or 0) if state == "delayed" else 0,
        retry=retry,
        replicate=copy.replicate,
        priority=copy.priority,
        max_deliveries=copy.max_deliveries,
        dead_letter=name_bytes(copy.dead_letter),
        headers=tuple([(name.encode(*NAMES), text) for name, text in copy.headers.items()]),
        own_queue=None if copy.reason is None else name_bytes(copy.own_queue),
        id=copy.id,
        told={
            "state": state,
            "created_at": copy.created_at,
            "deliveries": copy.deliveries,
            "nacks": copy.nacks,
            "reason": copy.reason,
        },
    )


@contextmanager
def _sink(output: Path | None) -> Iterator[BinaryIO]:
    """Standard output; or a file that is put in place, synced, when the block has ended well."""
    if output is None:
        stream = sys.stdout.buffer
        yield stream
        stream.flush()
        return
    where = output.resolve()
    is_special = where.exists() and not where.is_file()
    part = where if is_special else where.with_name(f".{where.name}.{os.getpid()}.part")
    try:
        file = part.open("wb")
    except OSError as error:
        raise click.UsageError(f"{output} can't be written: {error.strerror}") from None
    if is_special:
        with file:
            yield file
        return
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(where)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    _sync_folder(where.parent)


def _sync_folder(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


@contextmanager
def _deliveries_paused(survey: Survey, queue: bytes) -> Iterator[None]:
    """Hold back the queue's deliveries on every node; begins once each of them says so."""
    before = survey.home.get(results.word, "PAUSE", queue, "state")
    if before not in ("out", "all"):
        survey.home.call("PAUSE", queue, "all" if before == "in" else "out", "BCAST")
    try:
        deadline = time.monotonic() + PAUSE_S
        while not all(
            flags in ("out", "all")
            for flags in survey.each(
                lambda connection: connection.get(results.word, "PAUSE", queue, "state")
            ).values()
        ):
            if time.monotonic() > deadline:
                note(
                    f"not all nodes hold {shown(queue)} back after {PAUSE_S:g} s; nothing was done"
                )
                raise click.exceptions.Exit(TIME_IS_UP)
            time.sleep(POLL_S)
        yield
    finally:
        if before not in ("out", "all"):
            survey.home.call("PAUSE", queue, before, "BCAST")
