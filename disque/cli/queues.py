"""`queues`, `drain`: what waits in the cluster, and how a queue runs empty."""

from __future__ import annotations

import sys
import time
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import attrs
import click

from disque.cli.exits import TIME_IS_UP
from disque.cli.render import duration, note, say, say_json, shown
from disque.cli.settings import common
from disque.cli.survey import Survey, queues_of
from disque.cli.tables import show_table
from disque.client import results

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from disque.cli.connection import Connection
    from disque.cli.settings import Settings
    from disque.client.results import GlobalQueueStats

POLL_S = 0.5
COLUMNS = (
    "QUEUE",
    "LENGTH",
    "OLDEST",
    "DELIVERED",
    "DELAYED",
    "COPIES",
    "CONSUMERS",
    "IN",
    "OUT",
    "PAUSED",
)
NUMBERS = "LENGTH OLDEST DELIVERED DELAYED COPIES CONSUMERS IN OUT"
OPTIONAL = ("OUT", "IN", "COPIES", "DELAYED")  # left out on a narrow terminal, the first ones first

ORDERS: dict[str, Callable[[GlobalQueueStats], Any]] = {
    "name": lambda queue: queue.name,
    "length": lambda queue: -queue.length,
    "age": lambda queue: -(queue.oldest_age or -1),
    "delivered": lambda queue: -queue.delivered,
}


def gather(survey: Survey, count_max: int | None = None) -> list[GlobalQueueStats]:
    """The queues of all nodes that can be asked, sorted by name; at most so many of each node."""
    rows: dict[str, list[GlobalQueueStats]] = {}
    for told in survey.each(lambda connection: queues_of(connection, count_max)).values():
        for row in told:
            rows.setdefault(row.name, []).append(row)
    answered, silent = len(survey.reached), len(survey.silent)
    return [summed(rows[name], answered, silent) for name in sorted(rows)]


SUMMED = ("length", "delivered", "delayed", "acked", "copies", "blocked", "jobs_in", "jobs_out")


def summed(rows: Sequence[GlobalQueueStats], answered: int, silent: int) -> GlobalQueueStats:
    """One queue as several nodes tell of it together: sums, the largest age, the union of pauses."""
    ages = [row.oldest_age for row in rows if row.oldest_age is not None]
    pauses = {row.pause for row in rows} - {"none"}
    return attrs.evolve(
        rows[0],
        oldest_age=max(ages, default=None),
        pause="none" if not pauses else "all" if len(pauses) > 1 else pauses.pop(),
        nodes_answered=answered,
        nodes_silent=silent,
        **{name: sum([getattr(row, name) for row in rows]) for name in SUMMED},
    )


def encoded(name: str) -> bytes:
    """The bytes of a name that came from the command line or from a reply."""
    return name.encode("utf-8", "surrogateescape")


def queue_json(queue: GlobalQueueStats) -> dict[str, Any]:
    """A queue as JSON; its name as `replies.json_text` says."""
    return {**attrs.asdict(queue), "name": encoded(queue.name)}


def queue_row(queue: GlobalQueueStats) -> list[str]:
    """The same as a row of COLUMNS."""
    numbers = (
        queue.delivered,
        queue.delayed,
        copies(queue),
        queue.blocked,
        queue.jobs_in,
        queue.jobs_out,
    )
    return [
        shown(encoded(queue.name)),
        f"{queue.length:,}",
        duration(queue.oldest_age),
        *[f"{number:,}" for number in numbers],
        "" if queue.pause == "none" else queue.pause,
    ]


@click.command("queues")
@click.argument("pattern", required=False)
@click.option(
    "--sort", type=click.Choice(list(ORDERS)), default="name", help="name, or largest first."
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Show the first N.")
@click.option("--all", "is_all", is_flag=True, help="Also those with no jobs and no consumers.")
@common
def queues_command(
    settings: Settings, pattern: str | None, sort: str, limit: int | None, is_all: bool
) -> int:
    """Show the queues of the cluster.

    PATTERN has * and ? as in a shell. LENGTH is what waits, OLDEST how long the oldest of it has, DELIVERED what
    workers have now, COPIES what nodes hold of all these jobs, CONSUMERS how many connections wait for jobs, IN and
    OUT sums since the queue was made (a job that moved counts at each node). Copies and nothing else: of jobs that
    were queued or handed out at a node that is gone; the others offer them once their RETRY is over.
    """
    with Survey(settings) as survey:
        found = [
            queue
            for queue in sorted(gather(survey), key=ORDERS[sort])
            if (is_all or is_in_use(queue)) and (not pattern or fnmatchcase(queue.name, pattern))
        ]
        found = found[:limit]
        if settings.is_json:
            say_json([queue_json(queue) for queue in found])
            return int(bool(survey.silent))
        rows = [queue_row(queue) for queue in found]
        show_table(COLUMNS, rows, numbers=NUMBERS, optional=OPTIONAL)
        return int(not survey.tell_silent())


def is_in_use(queue: GlobalQueueStats) -> bool:
    """True if there is a job or a consumer, or a pause that should not be forgotten."""
    return bool(jobs_left(queue) + queue.blocked) or queue.pause != "none"


def copies(queue: GlobalQueueStats) -> int:
    """What nodes hold of jobs that haven't ended."""
    return max(0, queue.copies - queue.acked)


def accounted(queue: GlobalQueueStats) -> int:
    """Jobs that a node that answered has in its queue, was the last to hand out, or delays."""
    return queue.length + queue.delivered + queue.delayed


def jobs_left(queue: GlobalQueueStats) -> int:
    """Jobs that haven't ended; if nobody accounts for them, no fewer than there are."""
    return accounted(queue) or copies(queue)


@click.command("drain")
@click.argument("queue")
@click.option("--timeout", type=click.FloatRange(min=0), metavar="SECONDS", help="Wait no longer.")
@click.option("--resume", is_flag=True, help="Let new jobs in again at the end.")
@common
def drain_command(settings: Settings, queue: str, timeout: float | None, resume: bool) -> int:
    """Let a queue run empty: nothing in, until all is done.

    New jobs are refused on all nodes (PAUSED) while workers finish what it has. The queue stays paused for input,
    unless --resume; `PAUSE queue none BCAST` lifts it. Ctrl-C and --timeout (exit status 4) end the wait, and with
    --resume the pause. A queue that no node knows is an error (1), and isn't paused.
    """
    name = encoded(queue)
    with settings.connect() as connection:
        if connection.get(results.global_queue_stats, "QSTAT", name, "GLOBAL") is None:
            raise click.ClickException(f"no node has a queue {shown(name)}")
        before = connection.get(results.word, "PAUSE", name, "state")
        shut, reopened = ("all", "out") if before in ("out", "all") else ("in", "none")
        connection.call("PAUSE", name, shut, "BCAST")
        try:
            left = _wait_empty(connection, name, timeout)
        finally:
            if resume:
                connection.call("PAUSE", name, reopened, "BCAST")
            elif not settings.is_json:
                note(
                    f"{shown(name)} stays paused; to let jobs in: disque PAUSE {shown(name)} {reopened} BCAST"
                )
        if settings.is_json:
            say_json({"queue": name, "left": left, "is_paused": not resume})
        elif not left:
            say(f"{shown(name)} is empty")
        return TIME_IS_UP if left else 0


def _wait_empty(connection: Connection, name: bytes, timeout_s: float | None) -> int:
    """Wait; returns the number of jobs that are left when time is up, 0 if none are."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    told = ""
    while True:
        found = connection.get(results.global_queue_stats, "QSTAT", name, "GLOBAL")
        if found is None:
            return 0
        left = jobs_left(found)
        if not left and not found.nodes_silent:
            return 0
        if deadline is not None and time.monotonic() >= deadline:
            note(_told(found))
            return max(left, 1)
        if sys.stderr.isatty() and _told(found) != told:
            told = _told(found)
            note(told)
        time.sleep(POLL_S)


def _told(queue: GlobalQueueStats) -> str:
    silent = f", {queue.nodes_silent} nodes silent" if queue.nodes_silent else ""
    held = "" if accounted(queue) else f", copies held: {copies(queue):,}"
    return f"{queue.length:,} waiting, {queue.delivered:,} delivered, {queue.delayed:,} delayed{held}{silent}"
