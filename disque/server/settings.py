"""Settings: what the configuration means to the parts of a server, at its start and after CONFIG SET.

It turns directives into the values that parts understand (Limits, ClientLimits ...) and knows which
part a changed one concerns. It parses nothing and starts nothing.
"""

from __future__ import annotations

import os
import resource
from typing import TYPE_CHECKING

import attrs

from disque.core.limits import Limits
from disque.errors import CommandError
from disque.server.clients import ClientLimits

if TYPE_CHECKING:
    from cluster.bus import Bus
    from disque.server.config import Config
    from disque.server.eventlog import EventLog
    from disque.server.shell import Shell

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
    )


class Settings:
    """Applies directives; `client_limits` is shared with Clients."""

    def __init__(self, config: Config, events: EventLog) -> None:
        self.client_limits = ClientLimits()
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
        for name in ("slowlog-max-len", "slowlog-log-slower-than", "latency-monitor-threshold"):
            self.apply(name)

    def apply(self, name: str) -> None:
        """CONFIG SET changed a directive: let it act. CommandError if that can't be: nothing has changed."""
        config, shell = self._config, self._shell
        match name:
            case "dir":
                os.chdir(config.dir)
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
            case _ if name in _CORE:
                broker = shell.broker
                longest_ms = broker.settings.limits.link_wait_max_ms  # fixed at start, see below
                broker.set_limits(attrs.evolve(limits_of(config), link_wait_max_ms=longest_ms))
            case _ if name.startswith("cluster-announce-"):
                shell.broker.set_announce(
                    config.cluster_announce_host,
                    config.cluster_announce_port or config.port,
                    config.cluster_announce_bus_port or config.bus_port,
                )
        self._apply_client_limits()
        shell.clients.limits_changed()

    def _apply_node_timeout(self) -> None:
        broker, timeout_ms = self._shell.broker, self._config.cluster_node_timeout
        broker.set_node_timeout(timeout_ms)
        # Ends of jobs count on frames never waiting longer than Limits say (merge-rules M12).
        longest_ms = broker.settings.limits.link_wait_max_ms
        self._bus.set_out_wait_max_ms(min(timeout_ms, longest_ms))

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
