"""Loading: the log on disk becomes the state of a broker that isn't running yet.

Ports are open meanwhile: between two batches clients are told LOADING and how far it is. What is wrong with the log is
said here in words; what it means is `replay`'s to decide.
"""

from __future__ import annotations

import gc
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import attrs
import trio

from disque.aof.files import kernel_boot_id
from disque.aof.replay import Findings, Replay

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from disque.aof.disk import Disk
    from disque.aof.replay import Placed
    from disque.core.engine import Engine
    from disque.server.eventlog import EventLog

_NOTES_SHOWN = 20
_SMALL_BYTES = 1 << 20  # a log that is read in a moment


@attrs.define(eq=False)
class Loading:
    """How far it is; bytes. `findings` is whole when `is_done`."""

    started_at_s: int = attrs.Factory(lambda: int(time.time()))
    started: float = attrs.Factory(time.monotonic)
    is_done: bool = False
    took_s: float = 0.0
    lost_jobs: int = 0  # whose ids could be read in what is damaged
    findings: Findings = attrs.Factory(Findings)

    def progress(self) -> list[tuple[str, object]]:
        """INFO's fields."""
        total, loaded = self.findings.total_bytes, self.findings.read_bytes
        passed_s = time.monotonic() - self.started
        return [
            ("loading_start_time", self.started_at_s),
            ("loading_total_bytes", total),
            ("loading_loaded_bytes", loaded),
            ("loading_loaded_perc", f"{100 * loaded / total if total else 0:.2f}"),
            ("loading_eta_seconds", int(passed_s / loaded * (total - loaded)) if loaded else 1),
        ]


@contextmanager
def no_collections(*, is_kept: bool) -> Iterator[None]:
    """Nothing of what is loaded is garbage, and each full collection would walk over all of it.

    `is_kept`: later ones don't look at what is there by the end, either.
    """
    gc.disable()
    try:
        yield
    finally:
        if is_kept:
            gc.freeze()
        gc.enable()


async def load(
    disk: Disk,
    engine: Engine,
    loading: Loading,
    *,
    stored_boot: int,
    may_cut: bool,
    is_dry: bool = False,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> None:
    """Replay a log into an engine; returns early, not `is_done`, if that is cancelled. OSError, LogError."""
    replay = Replay(
        disk,
        kernel_boot_id=kernel_boot_id(),
        stored_boot=stored_boot,
        may_cut=may_cut,
        is_dry=is_dry,
    )
    loading.findings = replay.findings
    batches, is_large = replay.run(), replay.findings.total_bytes > _SMALL_BYTES
    while (batch := await _next(batches, is_large)) is not None:
        for record, segment, offset, size in batch:
            engine.restore(record, segment, offset, size)
        while engine.clear_up():
            await trio.lowlevel.checkpoint()
        if is_cancelled():
            return
    lost = [id_ for id_ in replay.findings.lost_ids if not engine.knows(id_)]
    loading.lost_jobs = len(lost)
    loading.took_s = time.monotonic() - loading.started
    loading.is_done = True


async def _next(batches: Iterator[list[Placed]], is_large: bool) -> list[Placed] | None:
    """What a replay gives next, None at its end.

    To read a large segment, and look through it for damage, is left to a thread.
    """
    if is_large:
        return await trio.to_thread.run_sync(next, batches, None)
    await trio.lowlevel.checkpoint()
    return next(batches, None)


def tell(events: EventLog, loading: Loading, *, jobs: int) -> None:
    """What was found, for the log of events."""
    found = loading.findings
    if found.torn_at is not None:
        segment, offset = found.torn_at
        events.event(
            "warning", "log-cut", segment=segment, offset=offset, torn_bytes=found.torn_bytes
        )
    for text in found.notes[:_NOTES_SHOWN]:
        events.event("warning", "log-damaged", text=text)
    events.event(
        "warning" if found.lost or found.missing else "notice",
        "log-loaded",
        jobs=jobs,
        records=found.records,
        bytes=found.read_bytes,
        seconds=f"{loading.took_s:.2f}",
        lost_bytes=found.lost_bytes,
        lost_records=found.lost_records,
        lost_jobs=loading.lost_jobs,
        missing_segments=len(found.missing),
        set_aside=" ".join(each.file for each in found.lost if each.file) or "-",
        intact="yes" if found.is_intact else found.why_not_intact,
    )
