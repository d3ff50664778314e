"""Settings: what the configuration means to the parts of a server, at its start and after CONFIG SET.

It turns directives into the values that parts understand (Limits, ClientLimits ...) and knows which
part a changed one concerns. It parses nothing and starts nothing.
"""

from __future__ import annotations

import os
import resource
from typing import TYPE_CHECKING

import attrs

from cluster.bus import BusLimits
from cluster.link import LinkLimits
from disque.core.limits import Limits
from disque.errors import CommandError, ConfigError
from disque.server.configfile import read_secrets, users_of_file, weaknesses
from disque.server.crowd import ClientLimits
from disque.server.tls import make_contexts, validity_trouble

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from cluster.bus import Bus
    from disque.server.config import Config
    from disque.server.connection import Client
    from disque.server.eventlog import EventLog
    from disque.server.shell import Shell

CONNECT_MIN_S, CONNECT_MAX_S = 1.0, 5.0  # for a dial of a peer, and for its handshake
FILES_RESERVED = 32  # descriptors kept for the bus, listeners and files; Disque's
_CORE = frozenset(
    {
        "cluster-ask-timeout",
        "default-maxdeliveries",
        "default-deadletter",
        "tombstones-max",
        "dummies-max",
        "marks-max",
        "repair-after",
        "queue-max-idle",
        "maxmemory",
        "maxmemory-policy",
        "queue-name-max",
        "queues-max",
        "blocked-clients-max",
    }
)


def limits_of(config: Config) -> Limits:
    """The core's bounds and timers, as configured."""
    return Limits(
        ask_cluster_ms=config.cluster_ask_timeout,
        default_max_deliveries=config.default_maxdeliveries,
        default_dead_queue=config.default_deadletter.encode("utf-8", "surrogateescape"),
        tombstones_max=config.tombstones_max,
        dummies_max=config.dummies_max,
        marks_max=config.marks_max,
        repair_after_ms=config.repair_after * 1000,
        queue_idle_max_ms=config.queue_max_idle * 1000,
        link_wait_max_ms=config.cluster_node_timeout,
        maxmemory_bytes=config.maxmemory,
        is_eviction_on=config.maxmemory_policy != "noeviction",
        queue_name_bytes_max=config.queue_name_max,
        queues_max=config.queues_max,
        blocked_max=config.blocked_clients_max,
    )


def bus_limits_of(config: Config) -> BusLimits:
    """The bounds of the bus, as configured.

    A dial that was begun while packets got lost waits ever longer for the next try of the kernel: after a node timeout
    a fresh one is better.
    """
    connect_s = min(max(config.cluster_node_timeout / 1_000, CONNECT_MIN_S), CONNECT_MAX_S)
    return BusLimits(
        dial_timeout_s=connect_s,
        handshake_timeout_s=connect_s,
        unauthenticated_max=config.cluster_handshakes_max,
        link=LinkLimits(
            frame_bytes_max=config.cluster_frame_max,
            out_bytes_max=config.cluster_link_buffer,
            out_wait_max_ms=config.cluster_node_timeout,
        ),
    )


class Settings:
    """Applies directives; `client_limits` is shared with Clients."""

    def __init__(self, config: Config, events: EventLog) -> None:
        self.client_limits = ClientLimits()
        self.contexts = make_contexts(config)
        self.on_change: Callable[[], None] = lambda: None  # for who must be told of any change
        self._config = config
        self._events = events
        self._clients_possible = clients_possible(config.maxclients)
        if self._clients_possible < config.maxclients:
            events.event(
                "warning",
                "maxclients-lowered",
                maxclients=config.maxclients,
                served=self._clients_possible,
                open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            )
        self._apply_client_limits()

    def start(self, shell: Shell, bus: Bus) -> None:
        """The parts are there: give them what they don't get otherwise."""
        self._shell = shell
        self._bus = bus
        shell.clients.handshakes.context = self._context_of_clients
        self._apply_contexts()
        self._look_at_dates()
        for name in ("slowlog-max-len", "slowlog-log-slower-than", "latency-monitor-threshold"):
            self.apply(name)

    def _context_of_clients(self) -> ssl.SSLContext:
        assert self.contexts is not None, "a port speaks TLS without a certificate"
        return self.contexts.clients

    def apply(self, name: str, setter: Client | None = None) -> None:
        """`setter`'s CONFIG SET changed a directive: let it act. CommandError if that can't be: nothing has changed."""
        config, shell = self._config, self._shell
        match name:
            case "dir":
                self._enter_folder()
            case "loglevel":
                self._events.level = config.loglevel
            case "maxclients":
                self._check_maxclients()
            case "slowlog-log-slower-than":
                shell.slowlog.threshold_us = config.slowlog_log_slower_than
            case "slowlog-max-len":
                shell.slowlog.set_entries_max(config.slowlog_max_len)
            case "latency-monitor-threshold":
                shell.latency.threshold_ms = config.latency_monitor_threshold
            case "appendfsync" | "auto-aof-rewrite-percentage" | "auto-aof-rewrite-min-size":
                shell.persistence.apply_settings()
            case "cluster-node-timeout":
                self._apply_node_timeout()
            case "cluster-frame-max" | "cluster-link-buffer" | "cluster-handshakes-max":
                self._apply_bus_limits()
            case _ if name.startswith("tls-"):
                self.reload_certificates()
            case _ if name in _CORE:
                broker = shell.broker
                longest_ms = broker.settings.limits.link_wait_max_ms  # fixed at start, see below
                broker.set_limits(attrs.evolve(limits_of(config), link_wait_max_ms=longest_ms))
            case _ if name.startswith("cluster-announce-"):
                shell.broker.set_announce(*config.announced)
        self._apply_client_limits()
        shell.clients.reviews.begin(setter)
        self.on_change()

    def _enter_folder(self) -> None:
        try:
            os.chdir(self._config.dir)
        except OSError as error:  # it may be read, and not be entered
            raise CommandError(f"Changing directory: {error.strerror}") from None

    def _apply_node_timeout(self) -> None:
        broker, timeout_ms = self._shell.broker, self._config.cluster_node_timeout
        broker.set_node_timeout(timeout_ms)
        self._apply_bus_limits()

    def _apply_bus_limits(self) -> None:
        # Ends of jobs count on frames never waiting longer than Limits say (merge-rules M12).
        longest_ms = self._shell.broker.settings.limits.link_wait_max_ms
        limits = bus_limits_of(self._config)
        wait_ms = min(limits.link.out_wait_max_ms, longest_ms)
        self._bus.set_limits(
            attrs.evolve(limits, link=attrs.evolve(limits.link, out_wait_max_ms=wait_ms))
        )

    # Files that may have changed

    def reload_certificates(self) -> None:
        """Read the certificates' files again; CommandError, and the old ones stay, if they can't be used."""
        try:
            self.contexts = make_contexts(self._config)
        except ConfigError as error:
            raise CommandError(str(error)) from None
        self._apply_contexts()
        self._look_at_dates()

    def _look_at_dates(self) -> None:
        """A certificate out of its time is shown all the same: those who don't look at it go on."""
        if self.contexts is not None and (trouble := validity_trouble(self._config)):
            file = self._config.tls_cert_file
            self._events.event("warning", "certificate-invalid", file=file, reason=trouble)

    def _apply_contexts(self) -> None:
        contexts = self.contexts
        self._bus.tls = None if contexts is None else contexts.peers

    def reload(self) -> None:
        """SIGHUP: certificates, files of secrets, and users are read again; what can't be used stays as it was."""
        reasons = []
        for read in (self.reload_certificates, self._reload_secrets, self._reload_users):
            try:
                read()
            except (CommandError, ConfigError) as error:
                reasons.append(str(error))
        self._apply_client_limits()
        self._shell.clients.reviews.begin(None)
        self.on_change()
        if reasons:
            self._events.event("warning", "reload-failed", reason="; ".join(reasons))
        else:
            self._events.event("notice", "reloaded")

    def _reload_secrets(self) -> None:
        config = self._config
        try:
            read_secrets(config, may_wait=False)
        finally:
            self._bus.secret = config.cluster_secret.encode("utf-8", "surrogateescape")
        for text in weaknesses(config):
            self._events.event("warning", "configuration", text=text)

    def _reload_users(self) -> None:
        """The connections of a user who isn't what he was end; he may log in again."""
        self._config.user = users_of_file(self._config)

    def _check_maxclients(self) -> None:
        possible = clients_possible(self._config.maxclients)
        if possible < self._config.maxclients:
            raise CommandError(
                "The operating system is not able to handle the specified number of clients, "
                f"try with {possible}"
            )
        self._clients_possible = possible

    def _apply_client_limits(self) -> None:
        config, limits = self._config, self.client_limits
        limits.clients_max = min(config.maxclients, self._clients_possible)
        limits.idle_max_s = config.timeout
        limits.out_hard_bytes = config.client_output_buffer_limit.hard_bytes
        limits.out_soft_bytes = config.client_output_buffer_limit.soft_bytes
        limits.out_soft_s = config.client_output_buffer_limit.soft_s
        limits.keepalive_s = config.tcp_keepalive
        limits.is_open_to_all = bool(config.requirepass) or not config.protected_mode
        limits.is_tls_only = config.tls_only
        limits.needs_password = bool(config.requirepass)
        limits.strangers_max = config.unauthenticated_max
        limits.stranger_s = config.auth_timeout
        limits.per_address_max = config.clients_per_address_max
        limits.bulk_bytes_max = config.body_max
        limits.arguments_max = config.arguments_max
        limits.waits_max = config.pipeline_max
        limits.memory_max = config.clients_memory_max
        limits.users = config.user


def clients_possible(wanted: int) -> int:
    """Ask for as many descriptors as so many clients need; returns how many can be served, at least 1."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = wanted + FILES_RESERVED
    if soft != resource.RLIM_INFINITY and soft < files:
        most = files if hard == resource.RLIM_INFINITY else min(files, hard)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            files = most
        except (OSError, ValueError):
            files = soft
    return max(min(files - FILES_RESERVED, wanted), 1)
