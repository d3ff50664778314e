"""Latency: the worst delays, a second each, of the few things that can delay others; the LATENCY command.

Events are `command`, `fast-command` (commands that should be quick), `jobs-processing` (timers of
jobs), and of the log `aof-write`, `aof-fsync` and `aof-fsync-always` (which replies wait for).
Nothing is kept while `latency-monitor-threshold` is 0. Source: reference 1.18.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

import attrs

from disque.core.value import value
from disque.errors import CommandError

if TYPE_CHECKING:
    from disque.server.connection import Client
    from disque.server.render import Answer
    from disque.server.shell import Shell

SAMPLES_MAX = 160  # an event; one a second at most
EVENTS_MAX = 32
_COLUMNS, _ROWS = 80, 4  # of a graph
_ADVICE = {
    "command": "Look at SLOWLOG: which commands are slow? QSCAN, JSCAN and QPEEK cost what they return; "
    "BUSYLOOP walks over everything at once.",
    "fast-command": "These should be quick: is the machine short of CPU, or does it swap? Very large bodies "
    "also cost time.",
    "aof-write": "The disk doesn't take what is written: is it slow, or busy with other programs?",
    "aof-fsync": "The disk is slow to store what was written; nobody waits for it with appendfsync everysec.",
    "aof-fsync-always": "Each reply waits for the disk. Use a faster one, more clients at a time (they share a sync), "
    "or appendfsync everysec.",
    "jobs-processing": "Many jobs come due at the same moment: spread their RETRY, DELAY and TTL, or use more nodes.",
}


@value
class Sample:
    """The worst of one second."""

    at_s: int
    ms: int


@attrs.define
class Event:
    """What is kept of one event."""

    samples: deque[Sample] = attrs.Factory(lambda: deque(maxlen=SAMPLES_MAX))
    max_ms: int = 0  # of all time, till RESET


class Latency:
    """Keeps what takes at least `threshold_ms`; 0: nothing."""

    def __init__(self, threshold_ms: int) -> None:
        self.threshold_ms = threshold_ms
        self.events: dict[str, Event] = {}

    def add(self, name: str, ms: int) -> None:
        """Something took so long just now; kept if that was long enough."""
        if self.threshold_ms and ms >= self.threshold_ms:
            self.record(name, int(time.time()), ms)

    def record(self, name: str, at_s: int, ms: int) -> None:
        """Keep a sample; of one second the worst counts."""
        event = self.events.get(name)
        if event is None:
            if len(self.events) >= EVENTS_MAX:
                return
            event = self.events[name] = Event()
        event.max_ms = max(event.max_ms, ms)
        samples = event.samples
        if samples and samples[-1].at_s == at_s:
            samples[-1] = Sample(at_s, max(ms, samples[-1].ms))
        else:
            samples.append(Sample(at_s, ms))

    def reset(self, names: list[str]) -> int:
        """Forget these events, or all; returns how many there were."""
        gone = [self.events.pop(name, None) for name in names or list(self.events)]
        return len([event for event in gone if event is not None])

    def graph(self, name: str, now_s: int) -> str:
        """The samples of an event as bars, the oldest left; under each its age."""
        event = self.events[name]
        samples = list(event.samples)[-_COLUMNS:]
        low, high = min(each.ms for each in samples), max(each.ms for each in samples)
        heights = [_height(each.ms, low, high) for each in samples]
        ages = [_age(now_s - each.at_s) for each in samples]
        lines = [
            f"{name} - high {high} ms, low {low} ms (all time high {event.max_ms} ms)",
            "-" * _COLUMNS,
        ]
        lines += ["".join(map(_cell, heights, [row] * len(heights))) for row in range(_ROWS, 0, -1)]
        lines.append("")
        deepest = max(map(len, ages))
        lines += ["".join(age.ljust(deepest)[depth] for age in ages) for depth in range(deepest)]
        return "\n".join(line.rstrip() for line in lines) + "\n"

    def doctor(self) -> str:
        """What the samples mean, in words."""
        if not self.threshold_ms:
            return (
                "I'm sorry, I can't help: latency monitoring is off. Switch it on with CONFIG SET "
                "latency-monitor-threshold <milliseconds>, wait, and ask again.\n"
            )
        if not self.events:
            return (
                f"Nothing took {self.threshold_ms} ms or more since the last reset. All is well.\n"
            )
        lines = ["Latency spikes were seen:", ""]
        for number, (name, event) in enumerate(self.events.items(), 1):
            mean = sum(each.ms for each in event.samples) // len(event.samples)
            lines.append(
                f"{number}. {name}: {len(event.samples)} spikes, {mean} ms on average, "
                f"the worst of all time {event.max_ms} ms."
            )
        lines += ["", "What you can do:", ""]
        lines += [f"- {_ADVICE[name]}" for name in self.events if name in _ADVICE]
        return "\n".join(lines) + "\n"


def _height(ms: int, low: int, high: int) -> float:
    """In rows."""
    return _ROWS * (ms - low) / (high - low) if high > low else _ROWS / 2


def _cell(height: float, row: int) -> str:
    """What stands in this row (1: lowest) of a bar."""
    if height >= row:
        return "|" if height > row else "#"
    share = height - (row - 1)
    if share < 0 or (share == 0 and row > 1):
        return " "
    return "_" if share < 1 / 3 else "o" if share < 2 / 3 else "#"


def _age(seconds: int) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{max(seconds, 0)}s"


def latency(shell: Shell, _: Client, args: list[bytes]) -> Answer:
    """`LATENCY LATEST | HISTORY <event> | RESET [<event>…] | GRAPH <event> | DOCTOR`."""
    kept = shell.latency
    name = args[1].decode("utf-8", "surrogateescape") if len(args) > 1 else ""
    match args[0].lower(), len(args):
        case b"latest", 1:
            return [_latest(name, event) for name, event in kept.events.items()]
        case b"history", 2:
            event = kept.events.get(name)
            return [[each.at_s, each.ms] for each in event.samples] if event else []
        case b"graph", 2:
            if name not in kept.events:
                raise CommandError(f"No samples available for event '{name}'")
            return kept.graph(name, int(time.time())).encode("utf-8", "surrogateescape")
        case b"doctor", 1:
            return kept.doctor().encode()
        case b"reset", _:
            return kept.reset([word.decode("utf-8", "surrogateescape") for word in args[1:]])
    raise CommandError("syntax error")


def _latest(name: str, event: Event) -> Answer:
    return [name.encode(), event.samples[-1].at_s, event.samples[-1].ms, event.max_ms]
