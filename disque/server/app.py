"""App: the composition root; it makes the parts of a server, starts them in order, and ends them.

Start: node table locked and read, boot number drawn, ports opened, log replayed, table saved, then the loop. End:
SIGTERM, SIGINT or SHUTDOWN let the turn under way finish, flush replies, close, and end the log; a bug of ours ends the
process with its traceback and status 70, never in an unknown state.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
import traceback
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import trio

import disque
from cluster.bus import Bus, NodesFileLock, load_nodes_file, save_nodes_file
from cluster.errors import NodesFileError
from cluster.membership import MembershipConfig
from cluster.nodeid import NODE_ID_CHARS, node_id_from_bytes
from cluster.ready import Identity
from disque.broker import Broker, BrokerSettings
from disque.errors import ConfigError
from disque.server import dialmap, dispatch
from disque.server.access import Access
from disque.server.addresses import is_loopback
from disque.server.clients import Clients
from disque.server.clock import Clock
from disque.server.config import PIDFILE_DEFAULT
from disque.server.dialect import Door
from disque.server.entropy import Entropy
from disque.server.eventlog import EventLog
from disque.server.heap import give_back, keep_large_apart
from disque.server.info import Figures
from disque.server.loop import NullLog, Turns
from disque.server.page import Page, open_port
from disque.server.persistence import Persistence
from disque.server.settings import Settings, bus_limits_of, limits_of
from disque.server.shell import Shell
from disque.server.sockets import listen, listen_unix
from disque.server.stomp import Stomp

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from cluster.ready import Note
    from disque.server.config import Config

EXIT_BUG = 70  # EX_SOFTWARE
FAREWELL_S = 5.0  # for replies that are owed when the server ends
FROZEN_FAREWELL_S = 1.0  # the same while the log can't be written: most of them won't come
# To look at an object costs 1 us and more: 5,000 that are new, together with 5,000 that outlived this once, are a short
# pause, and fewer in all than if those waited for others. All of a million live jobs would be a long one, and come
# after 150 million
GC_THRESHOLDS = (5_000, 0, 15_000)


def run(config: Config, warnings: Sequence[str]) -> int:
    """Run a node until it is told to stop; returns the exit status. ConfigError if it can't start."""
    try:
        os.chdir(config.dir)
    except OSError as error:
        raise ConfigError(f"dir {config.dir}: {error.strerror}") from None
    syslog = (config.syslog_ident, config.syslog_facility) if config.syslog_enabled else None
    try:
        events = EventLog(path=config.logfile, level=config.loglevel, syslog=syslog)
    except OSError as error:
        raise ConfigError(f"logfile {config.logfile}: {error.strerror}") from None
    for text in warnings:
        events.event("warning", "configuration", text=text)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    server = Server(config, events)
    try:
        trio.run(server.serve)
    except Exception as error:  # noqa: BLE001 - the last place: what comes here ends the process
        causes = _leaves(error)
        if all(isinstance(cause, ConfigError) for cause in causes):
            raise causes[0] from None
        events.write("".join(traceback.format_exception(error)))
        events.event("warning", "bug", status=EXIT_BUG)
        return EXIT_BUG
    if server.restart_after_s is not None:
        time.sleep(server.restart_after_s)
        start_again(config)
    return 0


def start_again(config: Config) -> NoReturn:
    """Become a new server: the same program, arguments, folder, environment and process id."""
    os.chdir(config.start_folder)
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


class Server:
    """One node's parts and their life."""

    def __init__(self, config: Config, events: EventLog) -> None:
        """Take the node table and draw the boot number; nothing is opened yet."""
        self.config = config
        self.events = events
        self.clock = Clock()
        self.figures = Figures()
        self.settings = Settings(config, events)
        self.restart_after_s: float | None = None  # DEBUG RESTART
        self._leftovers: list[Path] = []  # files that go when the server ends
        self._nodes_path = Path(config.cluster_config_file).resolve()
        self._nodes_lock = trio.Lock()  # one writes the table at a time
        broker = self._make_broker()
        self.turns = Turns(
            broker,
            clock=self.clock,
            log=NullLog(),
            save_nodes=self._save_nodes,
            note=self._note,
        )
        self.persistence = Persistence(config, events, self.turns, stored_boot=self._stored_boot)

    def _make_broker(self) -> Broker:
        """The broker with this node's identity; ConfigError if its node table can't be used."""
        config = self.config
        try:
            self._lock = NodesFileLock(self._nodes_path)
            stored = load_nodes_file(self._nodes_path)
        except NodesFileError as error:
            raise ConfigError(str(error)) from None
        except OSError as error:
            raise ConfigError(f"{self._nodes_path}: {error.strerror}") from None
        for text in stored.warnings:
            self.events.event("warning", "nodes-file-mended", file=self._nodes_path, text=text)
        self._stored_boot = stored.boot
        boot = max(stored.boot + 1, time.time_ns() // 1_000_000)
        node = stored.id or node_id_from_bytes(os.urandom(NODE_ID_CHARS // 2))
        host, port, bus_port, tls_port = config.announced
        identity = Identity(
            id=node,
            boot=boot,
            since=boot,  # unless a log proves that nothing of an earlier life is lost
            host=host,
            port=port,
            bus_port=bus_port,
            tls_port=tls_port,
        )
        return Broker(
            settings=BrokerSettings(
                membership=MembershipConfig(
                    node_timeout_ms=config.cluster_node_timeout,
                    host=identity.host,
                    port=identity.port,
                    bus_port=identity.bus_port,
                ),
                limits=limits_of(config),
            ),
            identity=identity,
            stored=stored,
            dice=Entropy(),
            now_ms=self.clock.now_ms(),
        )

    # Life

    async def serve(self) -> None:
        """Open the ports, serve until told to stop, and take leave."""
        config = self.config
        self.turns.is_loading = True
        listeners = self._listen()
        self._bus = self.turns.bus = self._make_bus()
        try:
            await self._bus.listen(config.bind, config.bus_port)
        except OSError as error:
            raise ConfigError(error.strerror or str(error)) from None
        page_listeners = open_port(config, self.events)
        async with trio.open_nursery() as nursery:
            shell = self._make_shell(nursery)
            self.settings.start(shell, self._bus)
            self._write_pidfile()
            nursery.start_soon(self._heed_signals, shell)
            stomp = Stomp(shell)
            doors = [
                Door(each, stomp if is_stomp else None, is_tls)
                for (is_stomp, is_tls), several in listeners.items()
                for each in several
            ]
            nursery.start_soon(shell.clients.serve, doors)
            nursery.start_soon(stomp.run)
            if page_listeners:
                page = Page(shell, page_listeners, stomp)
                self.settings.on_change = page.settings_changed
                nursery.start_soon(page.run)
            if await self.persistence.load(shell.stopping.is_set):
                await self._run(shell)
            patience_s = FROZEN_FAREWELL_S if self.turns.trouble else FAREWELL_S
            await shell.clients.farewell(patience_s)
            await self.turns.wait_rest(patience_s)
            nursery.cancel_scope.cancel()
        await self.persistence.stop(rewrites=shell.rewrites_at_end)
        for path in self._leftovers:
            path.unlink(missing_ok=True)
        self.restart_after_s = shell.restart_after_s
        self.events.event("notice", "stopped")

    async def _run(self, shell: Shell) -> None:
        """The log is read: be a member and serve, until told to stop."""
        self.turns.is_loading = False
        try:
            # After the log's first words: no life is in the table that the log doesn't know.
            await self._save_nodes_now()
        except OSError as error:
            raise ConfigError(f"{self._nodes_path}: can't be written: {error.strerror}") from None
        await shell.nursery.start(self._bus.run)
        for node in self.config.cluster_join:
            shell.broker.meet(node.host, node.bus_port, is_sticky=True)
        shell.nursery.start_soon(self.turns.run)
        shell.nursery.start_soon(self.persistence.run)
        shell.nursery.start_soon(give_back, self.turns)
        self._tell_start()
        "".encode("idna")  # host names need this codec, and loading it needs a free descriptor
        keep_large_apart()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        await shell.stopping.wait()

    def _listen(self) -> dict[tuple[bool, bool], list[socket.socket]]:
        """Listeners by what is spoken there: STOMP or RESP, under TLS or not."""
        config = self.config
        ports = {
            (False, False): config.port,
            (False, True): config.tls_port,
            (True, False): config.stomp_port,
            (True, True): config.tls_stomp_port,
        }
        listeners = {
            kind: listen(config.bind, port, config.tcp_backlog)
            for kind, port in ports.items()
            if port
        }
        if config.unixsocket:
            mode = config.unixsocketperm
            unix = listen_unix(config.unixsocket, mode, config.tcp_backlog)
            listeners[False, False].append(unix)
            self._leftovers.append(Path(config.unixsocket).resolve())
        return listeners

    def _write_pidfile(self) -> None:
        """Only one that was asked for: several nodes of one machine would share the default."""
        if self.config.pidfile in ("", PIDFILE_DEFAULT):
            return
        path = Path(self.config.pidfile).resolve()
        try:
            path.write_text(f"{os.getpid()}\n")
        except OSError as error:
            self.events.event("warning", "pidfile-unwritten", file=path, reason=error.strerror)
        else:
            self._leftovers.append(path)

    def _make_shell(self, nursery: trio.Nursery) -> Shell:
        config = self.config
        clients = Clients(
            self.turns,
            limits=self.settings.client_limits,
            figures=self.figures,
            events=self.events,
        )
        self.turns.clients = clients
        shell = Shell(
            config=config,
            access=Access(config, self.figures, self.events),
            turns=self.turns,
            clients=clients,
            clock=self.clock,
            figures=self.figures,
            events=self.events,
            nursery=nursery,
            persistence=self.persistence,
            run_id=os.urandom(20).hex(),
            renames=_renames(config.rename_command),
            apply_setting=self.settings.apply,
            save_nodes_now=self._save_nodes_now,
            start_again=lambda: start_again(config),
        )
        clients.execute = partial(dispatch.execute, shell)
        clients.overtakes = partial(dispatch.overtakes, shell)
        self.turns.latency = self.persistence.latency = shell.latency
        return shell

    def _make_bus(self) -> Bus:
        config = self.config
        return Bus(
            self.turns,
            secret=config.cluster_secret.encode("utf-8", "surrogateescape"),
            limits=bus_limits_of(config),
            objection=self._objection,
            dial_map=dialmap.dialer(config.dial_map),
        )

    async def _heed_signals(self, shell: Shell) -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
            async for number in signals:
                if number == signal.SIGHUP:
                    self.settings.reload()
                    continue
                if shell.stopping.is_set() and number == signal.SIGINT:
                    os._exit(1)  # asked twice: no patience left
                self.events.event("notice", "signal", name=signal.Signals(number).name)
                shell.stopping.set()

    def _tell_start(self) -> None:
        view = self.turns.broker.membership.view()
        self.events.event(
            "notice",
            "ready",
            version=disque.__version__,
            port=self.config.port,
            bus_port=self.config.bus_port,
            id=view.self_id,
            known_nodes=view.size,
        )

    # The node table

    async def _save_nodes(self) -> None:
        """Store the node table; the log tells if that fails."""
        try:
            await self._store_nodes()
        except OSError as error:
            text = error.strerror or str(error)
            self.events.event("warning", "nodes-file-unsaved", file=self._nodes_path, reason=text)

    async def _save_nodes_now(self) -> None:
        """Bring the stored node table up to date; OSError if that fails."""
        self.turns.refresh_nodes_text()
        await self._store_nodes()

    async def _store_nodes(self) -> None:
        """Write the newest table, in a thread: fsync may take long, and readers go on meanwhile."""
        async with self._nodes_lock:
            text = self.turns.nodes_text
            if text is not None:
                await trio.to_thread.run_sync(save_nodes_file, self._nodes_path, text)

    # What was noted, and what may change

    def _note(self, note: Note) -> None:
        self.events.note(note.level, note.event, note.facts)

    def _objection(self, remote_host: str) -> str | None:
        """Protected mode of the bus: why a connection from there isn't welcome, or None."""
        if self.config.is_bus_open or is_loopback(remote_host):
            return None
        return (
            "protected mode is on and no cluster-secret is set, so only nodes on the same machine "
            "are let in; set the same cluster-secret on all nodes"
        )


def _renames(renames: dict[str, str]) -> dict[bytes, bytes]:
    """rename-command's pairs as name sent -> name in the table; b"" takes a name away."""
    table: dict[bytes, bytes] = {}
    for old in renames:
        table[old.encode()] = b""
    for old, new in renames.items():
        if new:
            table[new.encode()] = old.encode()
    return table


def _leaves(error: BaseException) -> list[BaseException]:
    """The exceptions in a group, or the one that it is."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for each in error.exceptions for leaf in _leaves(each)]
    return [error]
