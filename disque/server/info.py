"""Info: the server's counters and the text of INFO, in Disque's sections and order (reference 1.14).

It counts what connections and commands do; what jobs and peers do is counted by the engine and by
membership, and only shown here. Fields for what this server hasn't (a fork) keep their place with
their value of rest.
"""

from __future__ import annotations

import os
import resource
import sys
from collections import deque
from typing import TYPE_CHECKING

import attrs

import disque
from disque.core.histogram import Histogram

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from disque.server.connection import Client
    from disque.server.shell import Shell

DISQUE_VERSION = "1.0-rc1"  # whose behaviour we have; clients read it (reference: clients.md)
SECTIONS = (
    b"server",
    b"clients",
    b"memory",
    b"jobs",
    b"queues",
    b"persistence",
    b"stats",
    b"cpu",
    b"commandstats",
    b"limits",
    b"latencystats",
)
_ASKED_FOR = (b"commandstats", b"latencystats")  # only by name, or by `all`
_TITLES = {b"cpu": "CPU"}
_SAMPLES = 16  # of a second each, behind the instantaneous metrics


@attrs.define
class Usage:
    """How often a command ran and how long it took."""

    calls: int = 0
    usec: int = 0


@attrs.define
class Figures:
    """Counters since start."""

    connections_received: int = 0
    connections_rejected: int = 0
    commands_processed: int = 0
    net_input_bytes: int = 0
    net_output_bytes: int = 0  # of connections that are closed; Clients.sent_bytes adds the others
    topic_messages_dropped: int = 0  # beyond topic-buffer
    topic_subscribers_dropped: int = 0  # connections, for the same
    # What limits have refused or ended
    auth_failures: int = 0
    auth_refused: int = 0
    tls_handshakes_failed: int = 0
    strangers_dropped: int = 0
    clients_per_address_refused: int = 0
    clients_dropped_output: int = 0
    clients_dropped_memory: int = 0
    requests_over_limit: int = 0  # body-max, arguments-max
    pipelines_paused: int = 0  # pipeline-max was reached, and more had been sent
    reads_paused: int = 0  # too much unread, or sent ahead of what waits
    loop_lag: Histogram = attrs.Factory(Histogram)  # how late the loop came to a timer, in ms
    usages: dict[bytes, Usage] = attrs.Factory(dict)
    _samples: deque[tuple[int, int, int, int]] = attrs.field(factory=lambda: deque(maxlen=_SAMPLES))

    def sample(self, now_ms: int, sent_bytes: int) -> None:
        """Remember where the counters stand; called once a second, and so much later as the loop lags."""
        if self._samples:
            self.loop_lag.add(now_ms - self._samples[-1][0] - 1_000)
        self._samples.append((now_ms, self.commands_processed, self.net_input_bytes, sent_bytes))

    def rates(self) -> tuple[int, float, float]:
        """Commands a second, KiB a second in and out, over the remembered seconds."""
        if len(self._samples) < 2:
            return 0, 0.0, 0.0
        first, last = self._samples[0], self._samples[-1]
        seconds = max(last[0] - first[0], 1) / 1000
        return (
            int((last[1] - first[1]) / seconds),
            (last[2] - first[2]) / 1024 / seconds,
            (last[3] - first[3]) / 1024 / seconds,
        )

    def reset(self, clients: Iterable[Client]) -> None:
        """CONFIG RESETSTAT: all counters back to 0; what present connections got counts from here."""
        self.connections_received = self.connections_rejected = self.commands_processed = 0
        self.net_input_bytes = 0
        self.topic_messages_dropped = self.topic_subscribers_dropped = 0
        for name in LIMITS:
            setattr(self, name, 0)
        self.net_output_bytes = -sum(each.sent_bytes for each in clients)
        self.usages.clear()
        self._samples.clear()


# Counters of what limits have refused or ended
LIMITS = (
    "auth_failures",
    "auth_refused",
    "tls_handshakes_failed",
    "strangers_dropped",
    "clients_per_address_refused",
    "clients_dropped_output",
    "clients_dropped_memory",
    "requests_over_limit",
    "pipelines_paused",
    "reads_paused",
)
Field = tuple[str, object]


def info_text(shell: Shell, section: bytes) -> bytes:
    """INFO's bulk; `section` is lower case, b"default" leaves _ASKED_FOR out."""
    names: tuple[bytes, ...]
    if section == b"default":
        names = tuple(name for name in SECTIONS if name not in _ASKED_FOR)
    elif section == b"all":
        names = SECTIONS
    else:
        names = tuple(name for name in SECTIONS if name == section)
    blocks = []
    for name in names:
        lines = [f"# {_TITLES.get(name, name.decode().capitalize())}"]
        lines += [f"{key}:{value}" for key, value in _FIELDS[name](shell)]
        blocks.append("\r\n".join(lines) + "\r\n")
    return "\r\n".join(blocks).encode("utf-8", "surrogateescape")


def human_bytes(count: int) -> str:
    """As Disque spells a size: 10B, 1.50K, 3.00M."""
    if count < 1024:
        return f"{count}B"
    size = float(count)
    for unit in "KMGT":
        size /= 1024
        if size < 1024 or unit == "T":
            break
    return f"{size:.2f}{unit}"


def resident_bytes() -> int:
    """Memory of this process that is in RAM now; 0 where /proc isn't there."""
    try:
        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - hot in INFO, no Path needed
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def _server(shell: Shell) -> list[Field]:
    system = os.uname()
    uptime_s = shell.clock.uptime_s
    return [
        ("disque_version", DISQUE_VERSION),
        ("disque_git_sha1", "00000000"),
        ("disque_git_dirty", 0),
        ("disque_build_id", f"disque-broker-{disque.__version__}"),
        ("os", f"{system.sysname} {system.release} {system.machine}"),
        ("arch_bits", 64 if sys.maxsize > 1 << 32 else 32),
        ("multiplexing_api", "trio"),
        ("gcc_version", "0.0.0"),
        ("process_id", os.getpid()),
        ("run_id", shell.run_id),
        ("tcp_port", shell.config.port),
        ("uptime_in_seconds", uptime_s),
        ("uptime_in_days", uptime_s // 86_400),
        ("hz", shell.config.hz),
        ("executable", sys.executable),
        ("config_file", shell.config.config_file),
    ]


def _clients(shell: Shell) -> list[Field]:
    clients = shell.clients.by_id.values()
    return [
        ("connected_clients", len(clients)),
        ("client_longest_output_list", max((len(each.backlog) for each in clients), default=0)),
        (
            "client_biggest_input_buf",
            max((each.decoder.pending_bytes for each in clients), default=0),
        ),
        ("blocked_clients", sum(each.is_waiting for each in clients)),
        ("http_clients", sum(each.last_command == "http" for each in clients)),
    ]


def _memory(shell: Shell) -> list[Field]:
    engine = shell.broker.engine
    engine.set_shell_bytes(shell.clients.used_bytes())
    used = engine.statistics().used_memory
    resident = resident_bytes()
    shell.memory_peak_bytes = max(shell.memory_peak_bytes, used)
    return [
        ("used_memory", used),
        ("used_memory_human", human_bytes(used)),
        ("used_memory_rss", resident),
        ("used_memory_peak", shell.memory_peak_bytes),
        ("used_memory_peak_human", human_bytes(shell.memory_peak_bytes)),
        ("mem_fragmentation_ratio", f"{resident / used if used else 0:.2f}"),
        ("mem_allocator", "pymalloc"),
    ]


def _jobs(shell: Shell) -> list[Field]:
    figures = shell.broker.engine.statistics()
    return [
        ("registered_jobs", figures.registered_jobs),
        ("queued_jobs", figures.queued_jobs),
        ("delivered_jobs", figures.delivered_jobs),
        ("delayed_jobs", figures.delayed_jobs),
        ("acked_jobs", figures.done_jobs),
        ("body_bytes", figures.body_bytes),
        ("under_replicated_jobs", figures.under_replicated_jobs),
        ("dead_lettered_total", figures.dead_lettered_total),
        ("cancelled_total", figures.cancelled_total),
        ("forward_timeouts", figures.forward_timeouts),
        ("added_total", figures.added_total),
        ("delivered_total", figures.delivered_total),
        ("redelivered_total", figures.redelivered_total),
        ("acked_total", figures.acked_total),
        ("nacked_total", figures.nacked_total),
        ("norepl_total", figures.norepl_total),
    ]


def _queues(shell: Shell) -> list[Field]:
    return [("registered_queues", shell.broker.engine.statistics().registered_queues)]


def _persistence(shell: Shell) -> list[Field]:
    return shell.persistence.info()


def _stats(shell: Shell) -> list[Field]:
    figures = shell.figures
    commands, kib_in, kib_out = figures.rates()
    return [
        ("total_connections_received", figures.connections_received),
        ("total_commands_processed", figures.commands_processed),
        ("instantaneous_ops_per_sec", commands),
        ("total_net_input_bytes", figures.net_input_bytes),
        ("total_net_output_bytes", shell.clients.sent_bytes()),
        ("instantaneous_input_kbps", f"{kib_in:.2f}"),
        ("instantaneous_output_kbps", f"{kib_out:.2f}"),
        ("rejected_connections", figures.connections_rejected),
        ("latest_fork_usec", 0),
        ("topic_messages_dropped", figures.topic_messages_dropped),
        ("topic_subscribers_dropped", figures.topic_subscribers_dropped),
    ]


def _cpu(shell: Shell) -> list[Field]:
    del shell
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return [
        ("used_cpu_sys", f"{own.ru_stime:.2f}"),
        ("used_cpu_user", f"{own.ru_utime:.2f}"),
        ("used_cpu_sys_children", f"{children.ru_stime:.2f}"),
        ("used_cpu_user_children", f"{children.ru_utime:.2f}"),
    ]


def _commandstats(shell: Shell) -> list[Field]:
    return [
        (
            f"cmdstat_{name.decode()}",
            f"calls={usage.calls},usec={usage.usec},usec_per_call={usage.usec / usage.calls:.2f}",
        )
        for name, usage in sorted(shell.figures.usages.items())
        if usage.calls
    ]


def _latencystats(shell: Shell) -> list[Field]:
    """Durations in steps, those of jobs and how late the loop comes to its timers."""
    counts = shell.broker.engine.state.counts
    return [
        ("replication_ms", counts.replication.spelled()),
        ("delivery_ms", counts.delivery.spelled()),
        ("loop_lag_ms", shell.figures.loop_lag.spelled()),
    ]


def _limits(shell: Shell) -> list[Field]:
    """How often each limit has bitten."""
    figures, core = shell.figures, shell.broker.engine.statistics()
    bus = shell.turns.bus
    return [
        *[(name, getattr(figures, name)) for name in LIMITS],
        ("queues_refused", core.queues_refused),
        ("queue_names_refused", core.queue_names_refused),
        ("blocked_clients_refused", core.blocked_refused),
        ("dummy_acks_dropped", core.dummies_evicted),
        ("tombstones_dropped", core.tombstones_evicted),
        ("marks_dropped", core.marks_evicted),
        ("topic_messages_dropped", figures.topic_messages_dropped),
        ("bus_handshakes_dropped", 0 if bus is None else bus.figures.handshakes_dropped),
        ("bus_links_dropped", 0 if bus is None else bus.figures.links_dropped),
    ]


_FIELDS: dict[bytes, Callable[[Shell], list[Field]]] = {
    b"server": _server,
    b"clients": _clients,
    b"memory": _memory,
    b"jobs": _jobs,
    b"queues": _queues,
    b"persistence": _persistence,
    b"stats": _stats,
    b"cpu": _cpu,
    b"commandstats": _commandstats,
    b"limits": _limits,
    b"latencystats": _latencystats,
}
