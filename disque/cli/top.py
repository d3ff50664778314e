"""`top`: the cluster live: nodes, queues, rates, ages, dead letters.

A picture is taken each interval over the same connections and compared with the one before. How many queues are asked
for is bounded by the screen; a node that falls silent stays in the picture, and is tried again.
"""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any

import attrs
import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from disque.cli import nodes, queues
from disque.cli.nodes import info_of, node_json, node_row
from disque.cli.queues import ORDERS, gather, is_in_use, queue_json, queue_row
from disque.cli.render import counted, duration, say_json
from disque.cli.settings import common
from disque.cli.survey import Survey
from disque.cli.tables import console, table_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from disque.cli.connection import Address
    from disque.cli.settings import Settings
    from disque.client.results import GlobalQueueStats

QUEUES_READ_MAX = 10_000  # of each node, to find those to show
QUEUES_MAX = 50  # shown; fewer on a small screen
FRAME_LINES = 9  # of the screen for what isn't a row
RENEW_S = 5.0  # the nodes are looked up again so often
DEAD_QUEUE = "dead-letters"  # the default of default-deadletter


@attrs.frozen
class Picture:
    """The cluster at one moment."""

    at: float  # monotonic
    nodes: list[dict[str, Any]]
    queues: list[GlobalQueueStats]
    queue_count: int
    dead_letters: int

    def sum(self, figure: str) -> int:
        """A figure of all nodes that told it."""
        return sum([node[figure] or 0 for node in self.nodes])


@click.command("top")
@click.option(
    "-i",
    "--interval",
    type=click.FloatRange(min=0.1),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
)
@click.option(
    "-n", "--count", type=click.IntRange(min=1), metavar="N", help="End after N pictures."
)
@click.option("--sort", type=click.Choice(list(ORDERS)), default="length", show_default=True)
@common
def top_command(settings: Settings, interval: float, count: int | None, sort: str) -> None:
    """Watch the cluster live: nodes, queues, rates, ages.

    The fullest queues come first. q or Ctrl-C ends. In a pipe, and with --json (a line a picture), pictures follow
    each other until --count.
    """
    watcher = Watcher(settings, sort)
    try:
        if settings.is_json or not sys.stdout.isatty():
            for at, (before, now) in enumerate(watcher.pictures(interval)):
                if settings.is_json:
                    say_json(picture_json(before, now))
                else:
                    console().print(drawn(before, now))
                if at + 1 == count:
                    return
        else:
            _watch(watcher, interval, count)
    except KeyboardInterrupt:
        return
    finally:
        watcher.close()


def _watch(watcher: Watcher, interval_s: float, count: int | None) -> None:
    pictures = watcher.pictures(interval_s)
    # What goes wrong at first is told on the ordinary screen.
    first = next(pictures)
    with _keys(), Live(console=console(), screen=True, auto_refresh=False) as live:
        for at, (before, now) in enumerate(chain([first], pictures)):
            live.update(drawn(before, now, live.console.size), refresh=True)
            if at + 1 == count:
                return


class Watcher:
    """Takes pictures; connects again when nodes come and go."""

    def __init__(self, settings: Settings, sort: str) -> None:
        self._settings = settings
        self._sort = sort
        self._survey: Survey | None = None
        self._renew_at = 0.0
        # Where to go on when the node that was named is gone.
        self._known: list[Address] = []

    def close(self) -> None:
        """End the connections."""
        if self._survey is not None:
            self._survey.close()
            self._survey = None

    def pictures(self, interval_s: float) -> Iterator[tuple[Picture | None, Picture]]:
        """One after another, each with the one before; ends when `q` is pressed."""
        before: Picture | None = None
        while True:
            now = self._take()
            yield before, now
            before = now
            if _waits_for_q(interval_s):
                return

    def _take(self) -> Picture:
        try:
            return self._take_once()
        except click.ClickException:
            # The node that is asked is gone: once more, at another one if need be, and only then it is an error.
            self.close()
            return self._take_once()

    def _take_once(self) -> Picture:
        if self._survey is None or time.monotonic() >= self._renew_at:
            self.close()
            self._survey = Survey(self._settings, self._known)
            self._known = [node.address for node in self._survey.reached]
            self._renew_at = time.monotonic() + RENEW_S
        survey = self._survey
        infos = survey.each(info_of)
        found = gather(survey, QUEUES_READ_MAX)
        dead = sum([queue.length for queue in found if queue.name == DEAD_QUEUE])
        used = sorted(filter(is_in_use, found), key=ORDERS[self._sort])
        told = [node_json(node, infos.get(node.id)) for node in survey.nodes]
        return Picture(time.monotonic(), told, used, len(found), dead)


def rates(before: Picture | None, now: Picture) -> dict[str, tuple[float, float]]:
    """Jobs a second in and out by queue, as far as two pictures tell; a counter that began anew counts as 0."""
    if before is None:
        return {}
    seconds = max(now.at - before.at, 0.001)
    old = {queue.name: queue for queue in before.queues}
    return {
        queue.name: (
            max(0, queue.jobs_in - old[queue.name].jobs_in) / seconds,
            max(0, queue.jobs_out - old[queue.name].jobs_out) / seconds,
        )
        for queue in now.queues
        if queue.name in old
    }


def picture_json(before: Picture | None, now: Picture) -> dict[str, Any]:
    """A picture as JSON: nodes, queues with rates (null in the first picture), dead letters."""
    found = rates(before, now)
    rows = []
    for queue in now.queues:
        came, went = found.get(queue.name, (None, None))
        rows.append({**queue_json(queue), "in_per_second": came, "out_per_second": went})
    return {
        "time": time.time(),
        "nodes": now.nodes,
        "queues": rows,
        "queue_count": now.queue_count,
        "dead_letters": now.dead_letters,
        "dead_lettered_total": now.sum("dead_lettered_total"),
    }


def drawn(
    before: Picture | None, now: Picture, screen: tuple[int, int] | None = None
) -> RenderableType:
    """A picture for people, fitted into a screen of so many columns and lines, if there is one."""
    columns, lines = screen or (None, FRAME_LINES + len(now.nodes) + QUEUES_MAX)
    most = max(1, min(QUEUES_MAX, lines - len(now.nodes) - FRAME_LINES))
    found = rates(before, now)
    rows = []
    for queue in now.queues[:most]:
        came, went = found.get(queue.name, (None, None))
        *left, _, _, paused = queue_row(queue)
        rows.append([*left, _rate(came), _rate(went), paused])
    names = [{"IN": "IN/S", "OUT": "OUT/S"}.get(name, name) for name in queues.COLUMNS]
    node_rows = [node_row(node) for node in now.nodes]
    hidden = len(now.queues) - len(rows)
    return Group(
        _summary(now),
        Text(),
        table_of(
            nodes.COLUMNS, node_rows, numbers=nodes.NUMBERS, optional=nodes.OPTIONAL, width=columns
        ),
        Text(),
        table_of(
            names,
            rows,
            numbers=f"{queues.NUMBERS} IN/S OUT/S",
            optional=("COPIES", "DELAYED", "CONSUMERS"),
            flexible="QUEUE",
            width=columns,
        ),
        Text(f"… {counted(hidden, 'queue')} more" if hidden else "", style="dim"),
    )


def _summary(now: Picture) -> Text:
    ages = [queue.oldest_age for queue in now.queues if queue.oldest_age is not None]
    ok = sum([node["state"] == "ok" and node["is_reached"] for node in now.nodes])
    short = now.sum("under_replicated")
    parts = [
        (
            f"{ok} of {counted(len(now.nodes), 'node')} ok",
            "green" if ok == len(now.nodes) else "red",
        ),
        (f"{sum([queue.length for queue in now.queues]):,} waiting", ""),
        (f"{sum([queue.delivered for queue in now.queues]):,} delivered", ""),
        (f"oldest {duration(max(ages, default=None))}", ""),
        (counted(now.dead_letters, "dead letter"), "red" if now.dead_letters else ""),
        (f"{short:,} short of copies" if short else "", "yellow"),
        (time.strftime("%H:%M:%S"), "dim"),
    ]
    return Text("   ").join([Text(text, style=style) for text, style in parts if text])


def _rate(number: float | None) -> str:
    return "-" if number is None else f"{number:,.1f}" if number < 100 else f"{number:,.0f}"


@contextmanager
def _keys() -> Iterator[None]:
    """Keys are read as they are pressed, without Enter and without being shown."""
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _waits_for_q(seconds: float) -> bool:
    """Wait; True as soon as `q` is pressed on a terminal."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            time.sleep(left)
        elif select.select([sys.stdin], [], [], left)[0] and os.read(sys.stdin.fileno(), 1) in (
            b"q",
            b"Q",
            b"",
        ):
            return True
    return False
