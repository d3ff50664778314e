"""Persistence: whether a node keeps a log: read at the start, switched at run time, ended in order.

It owns the one AppendLog of a server's life and decides which log the turns write to; INFO's section of that name is
made here. A log that was switched off stays open, since bodies may lie in it alone. Source: reference 7, 1.14.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from disque.aof.disk import LogError
from disque.aof.files import FileDisk, kernel_boot_id
from disque.aof.log import AppendLog
from disque.aof.store import Life, Store
from disque.core.engine import Engine
from disque.core.ready import Status
from disque.errors import CommandError, ConfigError
from disque.server import loading as replaying
from disque.server.config_admin import rewrite_config
from disque.server.loading import Loading
from disque.server.loop import NullLog

if TYPE_CHECKING:
    from collections.abc import Callable

    from disque.server.config import Config
    from disque.server.eventlog import EventLog
    from disque.server.latency import Latency
    from disque.server.loop import Turns
    from disque.server.render import Answer

OK = Status(b"OK")
TICK_S = 0.1
REMIND_S = 60.0
ALREADY = "Background append only file rewriting already in progress"


class Persistence:
    """The log's life beside the turns; `run` must run while the server does."""

    def __init__(
        self, config: Config, events: EventLog, turns: Turns, *, stored_boot: int = 0
    ) -> None:
        """`stored_boot`: the last life's boot number, as nodes.conf knew it."""
        self.log: AppendLog | None = None
        self.loading: Loading | None = None
        self.latency: Latency | None = None
        self._config = config
        self._events = events
        self._turns = turns
        self._stored_boot = stored_boot
        self._opened = self._folder  # where the log lies; `dir` may be changed later
        self._is_dump = False  # BGREWRITEAOF with the log off: on until that is done
        self._base_bytes = 0  # the log's size after the last rewrite
        self._starts = trio.Event()
        turns.on_trouble = self._on_trouble
        turns.broker.engine.set_logged(False)

    # Start

    async def load(self, is_cancelled: Callable[[], bool]) -> bool:
        """Replay what is there and open the log, as configured; False if cancelled. ConfigError."""
        config, turns = self._config, self._turns
        if not (config.appendonly or config.aof_enqueue_jobs_once):
            return True
        self.loading = Loading()
        try:
            disk = FileDisk(self._folder)
            turns.broker.engine.set_logged(config.appendonly)
            with replaying.no_collections(is_kept=True):
                await replaying.load(
                    disk,
                    turns.broker.engine,
                    self.loading,
                    stored_boot=self._stored_boot,
                    may_cut=config.aof_load_truncated,
                    is_cancelled=is_cancelled,
                )
                if not self.loading.is_done:
                    return False
                await self._take_over()
            self._open(disk, is_complete=True)
            if config.appendonly:
                self._begin()
        except LogError as error:
            raise ConfigError(str(error)) from None
        except OSError as error:
            raise ConfigError(f"{self._folder}: {error.strerror or error}") from None
        return True

    @property
    def _folder(self) -> Path:
        return Path(self._config.dir) / self._config.appendfilename

    async def _take_over(self) -> None:
        """All records are in: what they mean."""
        assert self.loading is not None
        config, broker, found = self._config, self._turns.broker, self.loading.findings
        own = broker.membership.identity
        is_intact = found.is_intact and found.node_id == own.id
        queued = found.queued or [] if config.aof_enqueue_jobs_once and is_intact else []
        # a start that never came to save nodes.conf counts, too
        boot = max(own.boot, found.boot + 1)
        since = found.since if is_intact else boot
        for _ in broker.finish_restoring(since=since, boot=boot, queued=queued):
            await trio.lowlevel.checkpoint()
        jobs = broker.engine.statistics().registered_jobs
        replaying.tell(self._events, self.loading, jobs=jobs)
        if config.aof_enqueue_jobs_once:
            config.aof_enqueue_jobs_once = False
            if found.queued is None or not is_intact:
                reason = "the last life didn't end with SHUTDOWN REWRITE-AOF"
                self._events.event("warning", "nothing-queued-again", reason=reason)
            if config.config_file:
                try:
                    rewrite_config(config, self._events)
                except CommandError as error:
                    self._events.event("warning", "configuration-unwritten", reason=error)

    def _open(self, disk: FileDisk, *, is_complete: bool) -> AppendLog:
        broker, config = self._turns.broker, self._config
        self._opened = disk.folder
        own = broker.membership.identity
        life = Life(own.id, own.boot, own.since, kernel_boot_id(), config.appendfsync)
        store = Store(
            disk,
            life,
            is_complete=is_complete,
            node_records=lambda: self._turns.broker.engine.node_records(),
            # What a killed process left to the kernel is written again: its failed sync would be seen by nobody.
            unsynced=self.loading.findings.unsynced if is_complete and self.loading else None,
        )
        self.log = AppendLog(
            store,
            lambda: self._turns.broker.engine,
            policy=config.appendfsync,
            observe=self._observe,
            wake=self._turns.wake,
        )
        self.log.is_off = True
        broker.bodies = store.read
        self.apply_settings()
        self._starts.set()
        return self.log

    def _begin(self) -> None:
        """Let the turns write to the log; its first words are written and synced now. OSError."""
        log = self.log
        assert log is not None
        log.begin()
        log.is_off = False
        self._base_bytes = log.store.total_bytes
        self._turns.broker.engine.set_logged(True)
        self._turns.log = log

    def _stop_writing(self) -> None:
        assert self.log is not None
        self.log.is_off = True
        self.log.is_unsafe = False
        self._is_dump = False
        self._turns.log = NullLog()
        self._turns.broker.engine.set_logged(False)

    # Life

    async def run(self) -> None:
        """Sync, compact, and tell what goes wrong, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._remind)
            await self._starts.wait()
            assert self.log is not None
            nursery.start_soon(self.log.run)
            while True:
                await trio.sleep(TICK_S)
                self._tell_notes()
                self._mind_identity()
                if self.log.take_rewritten():
                    self._rewritten()
                if self._is_dump and not self.log.is_rewriting:
                    # Who can't say that the log ends tries again.
                    with contextlib.suppress(OSError):
                        await self._switch_off()

    def _mind_identity(self) -> None:
        """CLUSTER RESET HARD, or coming back after CLUSTER FORGET, makes another node of this one."""
        own = self._turns.broker.membership.identity
        if self.log is not None and own.id != self.log.store.life.node_id:
            self.log.store.set_node_id(own.id)

    async def _remind(self) -> None:
        while True:
            await trio.sleep(REMIND_S)
            if self._turns.trouble:
                self._on_trouble(self._turns.trouble)

    def _on_trouble(self, reason: str) -> None:
        """The turns can't write, or (reason "") can again."""
        if self.log is not None:
            self.log.is_paused = bool(reason)
        if reason and self._is_dump and self.log is not None:
            # Nobody asked for a log: no client is to suffer for it.
            self._events.event("warning", "rewrite-failed", reason=reason)
            self.log.give_up_rewrite(reason)
            self._stop_writing()
        elif reason:
            self._events.event("warning", "log-unwritable", reason=reason)
        else:
            self._events.event("notice", "log-writable-again")

    def _tell_notes(self) -> None:
        """Notes of the store, the same at most once a minute."""
        if self.log is None:
            return
        notes = self.log.store.take_notes()
        if self.log.compaction_trouble:
            notes.append(f"compaction: {self.log.compaction_trouble}")
        for text in notes:
            self._events.seldom("warning", "log", text, text=text)

    def _observe(self, name: str, ms: int) -> None:
        if self.latency is not None and self.latency.threshold_ms:
            self.latency.add(name, ms)

    # At run time

    def apply_settings(self) -> None:
        """appendfsync or auto-aof-rewrite-* may have changed."""
        config, log = self._config, self.log
        if log is None:
            return
        log.percentage = config.auto_aof_rewrite_percentage
        log.min_bytes = config.auto_aof_rewrite_min_size
        if log.policy != config.appendfsync:
            log.policy = config.appendfsync
            log.store.set_policy(config.appendfsync)

    async def switch(self) -> Answer:
        """CONFIG SET appendonly: make it so; CommandError, and the setting is put back."""
        config = self._config
        is_on = config.appendonly
        try:
            if is_on:
                self._switch_on()
            else:
                await self._switch_off()
        except (OSError, LogError) as error:
            config.appendonly = not is_on
            self._events.event("warning", "log-unswitched", wanted=is_on, reason=error)
            way = "on" if is_on else "off"
            raise CommandError(f"Unable to turn {way} AOF. Check server logs.") from None
        self._events.event("notice", "log-switched", to="on" if is_on else "off")
        return OK

    def _switch_on(self) -> None:
        """From now on records are written; the log is worth something when a rewrite has said all."""
        if self._is_dump:
            self._is_dump = False
            return
        log = self.log or self._open(FileDisk(self._folder), is_complete=False)
        log.store.is_complete = False
        log.store.seal()
        self._begin()
        log.wants_rewrite = True

    async def _switch_off(self) -> None:
        log = self.log
        if log is None or log.is_off:
            return
        await log.end("off")
        self._stop_writing()

    def begin_rewrite(self) -> None:
        """BGREWRITEAOF; CommandError."""
        log = self.log
        if log is not None and not log.is_off and log.is_rewriting:
            raise CommandError(ALREADY)
        if log is not None and not log.is_off:
            log.wants_rewrite = True
            return
        try:
            self._switch_on()
        except (OSError, LogError) as error:
            self._events.event("warning", "log-unswitched", wanted=True, reason=error)
            raise CommandError(f"Can't rewrite the append only file: {error}") from None
        self._is_dump = True

    def _rewritten(self) -> None:
        """A rewrite has come to its end."""
        assert self.log is not None
        self._base_bytes = self.log.store.total_bytes
        self._events.event(
            "notice",
            "log-rewritten",
            bytes=self._base_bytes,
            seconds=f"{self.log.last_rewrite_s:.1f}",
        )

    async def try_to_load(self) -> Answer:
        """DEBUG LOADAOF: read the whole log into an engine of its own and change nothing; CommandError: it's damaged.

        Disque empties the node first, and the log with it (W-28).
        """
        log = self.log
        if log is None or log.is_off:
            raise CommandError("There is no append-only log to load: appendonly is no")
        broker = self._turns.broker
        trial, own = Loading(), broker.membership.identity
        engine = Engine(
            view=broker.membership.view(),
            boot=own.boot,
            since=own.since,
            limits=broker.settings.limits,
            dice=broker.engine.state.dice,
            now_ms=self._turns.clock.now_ms(),
        )
        log.is_paused = True
        disk = FileDisk(self._opened, is_locked=False)
        with replaying.no_collections(is_kept=False):
            try:
                await log.wait_safe()
                await replaying.load(
                    disk, engine, trial, stored_boot=own.boot, may_cut=True, is_dry=True
                )
            except (OSError, LogError) as error:
                raise CommandError(f"The log can't be loaded: {error}") from None
            finally:
                log.is_paused = bool(self._turns.trouble)
                disk.close()
                for _ in engine.take_apart():
                    await trio.lowlevel.checkpoint()
        found = trial.findings
        if found.lost or found.missing or found.torn_bytes:
            raise CommandError(f"The log is damaged: {found.lost_bytes} bytes lost")
        return OK

    # End

    async def stop(self, *, rewrites: bool) -> None:
        """The loop has ended: say what it left, and the last word. `rewrites`: SHUTDOWN REWRITE-AOF."""
        turns, log = self._turns, self.log
        if turns.is_loading or not (rewrites or (log is not None and not log.is_off)):
            return
        try:
            if log is None or log.is_off:
                self._switch_on()
                log = self.log
            assert log is not None
            records = turns.take_records()
            if records:
                log.write(records)
            if rewrites or not log.store.is_complete:
                log.rewrite_now(anew=rewrites)
            queued = turns.broker.engine.queued_ids() if rewrites else None
            await log.end("end", queued)
        except (OSError, LogError) as error:
            self._events.event("warning", "log-unended", reason=error)
        else:
            self._events.event("notice", "log-ended", bytes=log.store.total_bytes)
        finally:
            with contextlib.suppress(OSError):
                self._tell_notes()

    # INFO

    def info(self) -> list[tuple[str, object]]:
        """The fields of INFO persistence, Disque's first."""
        log, turns, is_on = self.log, self._turns, self._config.appendonly
        rewrite_s = -1 if log is None else int(log.last_rewrite_s)
        since = None if log is None else log.rewrite_started_at
        state = "off"
        if is_on and turns.is_loading:
            state = "on"
        elif is_on:
            state = "on" if log is not None and log.store.is_complete else "wait-rewrite"
        fields: list[tuple[str, object]] = [
            ("loading", int(turns.is_loading)),
            ("aof_enabled", int(is_on)),
            ("aof_state", state),
            ("aof_rewrite_in_progress", int(since is not None)),
            ("aof_rewrite_scheduled", int(log is not None and log.wants_rewrite)),
            ("aof_last_rewrite_time_sec", rewrite_s),
            (
                "aof_current_rewrite_time_sec",
                -1 if since is None else int(trio.current_time() - since),
            ),
            (
                "aof_last_bgrewrite_status",
                "err" if log is not None and log.compaction_trouble else "ok",
            ),
            ("aof_last_write_status", "err" if turns.trouble else "ok"),
        ]
        if is_on and log is not None:
            fields += self._sizes(log)
        if self.loading is not None:
            found = self.loading.findings
            if turns.is_loading:
                fields += self.loading.progress()
            fields += [
                ("aof_loaded_records", found.records),
                ("aof_damaged_bytes", found.lost_bytes),
                ("aof_damaged_records", found.lost_records),
                ("aof_torn_bytes", found.torn_bytes),
                ("aof_lost_jobs", self.loading.lost_jobs),
                ("aof_files_set_aside", len([each for each in found.lost if each.file])),
                ("aof_intact", int(self.loading.is_done and found.is_intact)),
            ]
        return fields

    def _sizes(self, log: AppendLog) -> list[tuple[str, object]]:
        return [
            ("aof_current_size", log.store.total_bytes),
            ("aof_base_size", self._base_bytes),
            ("aof_pending_rewrite", int(log.wants_rewrite)),
            ("aof_buffer_length", 0),
            ("aof_rewrite_buffer_length", 0),
            ("aof_pending_bio_fsync", int(log.is_syncing)),
            ("aof_delayed_fsync", 0),
            ("aof_segments", len(log.store.sizes)),
            ("aof_live_size", self._turns.broker.engine.live_bytes()),
            ("aof_fsyncs", log.syncs),
            ("aof_unreadable_bodies", log.store.unreadable),
        ]
