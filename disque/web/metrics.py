"""Metrics: this node's figures in Prometheus' text format, from INFO and its kin.

One node each: whoever collects them asks every node. Pure but for the clock of prometheus-client's registry, which
isn't used. Labels are bounded: QUEUES_MAX queues, the longest, and a figure that says how many are left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import CollectorRegistry

from disque.web import picture, text
from disque.web.watch import sample_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from prometheus_client import Metric

    from disque.web.node import Node
    from disque.web.picture import QueueRow, Sample

QUEUES_MAX = 100
CONTENT_TYPE = CONTENT_TYPE_LATEST

# Field of INFO or CLUSTER INFO, name here, help; counters get _total.
_COUNTERS = (
    ("added_total", "jobs_added", "Jobs accepted from producers at this node."),
    ("delivered_total", "jobs_delivered", "Jobs handed out to workers at this node."),
    ("redelivered_total", "jobs_redelivered", "Of those, jobs that had been handed out before."),
    ("acked_total", "jobs_acknowledged", "Ids acknowledged at this node."),
    ("nacked_total", "jobs_given_back", "Jobs given back with NACK at this node."),
    ("norepl_total", "jobs_norepl", "ADDJOBs that failed for want of copies."),
    ("dead_lettered_total", "jobs_dead_lettered", "Jobs that became dead letters at this node."),
    ("cancelled_total", "jobs_cancelled", "Jobs cancelled at this node, purged ones included."),
    ("forward_timeouts", "forward_timeouts", "Commands passed on to a holder and not confirmed."),
    ("total_commands_processed", "commands", "Commands of clients."),
    ("total_connections_received", "connections", "Connections of clients."),
    ("rejected_connections", "connections_rejected", "Connections that were refused."),
    ("total_net_input_bytes", "input_bytes", "Bytes read from clients."),
    ("total_net_output_bytes", "output_bytes", "Bytes sent to clients."),
    ("topic_messages_dropped", "topic_messages_dropped", "Messages of topics over topic-buffer."),
    ("cluster_stats_messages_sent", "bus_messages_sent", "Messages sent to other nodes."),
    ("cluster_stats_messages_received", "bus_messages_received", "Messages of other nodes."),
    ("cluster_handshakes_failed", "bus_handshakes_failed", "Links that could not be made."),
)
_GAUGES = (
    ("uptime_in_seconds", "uptime_seconds", "Time since the node's start."),
    ("registered_jobs", "jobs_registered", "Copies and acknowledgements that the node keeps."),
    ("queued_jobs", "jobs_queued", "Jobs that wait at this node to be fetched."),
    ("delivered_jobs", "jobs_leased", "Jobs fetched here and not settled yet."),
    ("delayed_jobs", "jobs_delayed", "Jobs of this node that wait for their time."),
    ("acked_jobs", "jobs_being_collected", "Settled jobs not yet forgotten everywhere."),
    ("under_replicated_jobs", "jobs_under_replicated", "Jobs with fewer copies than asked for."),
    ("registered_queues", "queues", "Queues in use at this node."),
    ("connected_clients", "clients", "Connections of clients."),
    ("blocked_clients", "clients_blocked", "Clients that wait for a reply."),
    ("used_memory", "memory_used_bytes", "Accounted memory."),
    ("used_memory_rss", "memory_resident_bytes", "Memory of the process that is in RAM."),
    ("loading", "loading", "1 while the log is being read."),
    ("aof_enabled", "log_enabled", "1 if jobs are kept in a log."),
    ("aof_current_size", "log_bytes", "Size of the log."),
    ("aof_base_size", "log_base_bytes", "Size of the log after it was last rewritten."),
    (
        "cluster_known_nodes",
        "cluster_known_nodes",
        "Nodes of the cluster, this one and those being joined included.",
    ),
    ("cluster_reachable_nodes", "cluster_reachable_nodes", "Other nodes that can be reached."),
)
# Field of INFO latencystats, name here, help.
_HISTOGRAMS = (
    ("replication_ms", "replication_seconds", "From ADDJOB to its reply, where other nodes had to take copies."),
    ("delivery_ms", "delivery_seconds", "From when a job may be fetched to its first hand-out."),
    ("loop_lag_ms", "loop_lag_seconds", "How late the node's loop came to a timer."),
)  # fmt: skip
_QUEUE_GAUGES = (
    ("length", "queue_length", "Jobs that wait at this node."),
    ("oldest_s", "queue_oldest_seconds", "Age of the oldest job that waits at this node."),
    ("delivered", "queue_leased", "Jobs fetched here and not settled yet."),
    ("delayed", "queue_delayed", "Jobs of this node that wait for their time."),
    ("blocked", "queue_clients_blocked", "Clients that wait for a job here."),
)
_QUEUE_COUNTERS = (
    ("jobs_in", "queue_jobs_in", "Jobs that came into the queue at this node."),
    ("jobs_out", "queue_jobs_out", "Jobs that left it."),
)


async def collect(node: Node) -> bytes:
    """The page of metrics; UnreachableError if the node doesn't answer."""
    sample = await sample_of(node)
    (latency,) = await node.ask(("INFO", "latencystats"))
    return exposition(sample, picture.fields(latency))


def exposition(sample: Sample, latency: Mapping[str, str]) -> bytes:
    """A sample and the fields of INFO latencystats as text."""
    registry = CollectorRegistry()
    registry.register(_Collector([*_families(sample), *_histograms(latency)]))
    return generate_latest(registry)


class _Collector:
    """What a registry asks, once."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Sequence[Metric]:
        """All families."""
        return self._families


def _families(sample: Sample) -> Iterator[Metric]:
    version = sample.info.get("disque_build_id", "")
    yield InfoMetricFamily("disque_build", "The server.", {"build": version})
    for field, name, help_ in _COUNTERS:
        if field in sample.info or field in sample.cluster:
            yield CounterMetricFamily(f"disque_{name}", help_, sample.number(field))
    for field, name, help_ in _GAUGES:
        if field in sample.info or field in sample.cluster:
            yield GaugeMetricFamily(f"disque_{name}", help_, sample.number(field))
    is_ok = sample.info.get("aof_last_write_status", "ok") == "ok"
    yield GaugeMetricFamily("disque_log_ok", "0 while the log can't be written.", int(is_ok))
    yield GaugeMetricFamily("disque_memory_max_bytes", "maxmemory, 0: no limit.", sample.memory_max)
    yield GaugeMetricFamily("disque_leaving", "1 once told to leave.", int(sample.is_leaving))
    yield from _queue_families(sample)


def _queue_families(sample: Sample) -> Iterator[Metric]:
    rows = sorted(sample.queues.values(), key=lambda row: (-row.length, row.name))
    # Of names that look the same only the longest queue counts: a collector takes no label twice
    labels = list({text.shown(row.name): row for row in reversed(rows[:QUEUES_MAX])}.items())
    left_out = max(sample.number("registered_queues"), len(rows)) - len(labels)
    yield GaugeMetricFamily(
        "disque_queues_left_out",
        f"Queues beyond the {QUEUES_MAX} longest, for which there are no figures.",
        left_out,
    )
    for field, name, help_ in _QUEUE_GAUGES:
        gauge = GaugeMetricFamily(f"disque_{name}", help_, labels=["queue"])
        for label, row in labels:
            gauge.add_metric([label], _figure(row, field))
        yield gauge
    for field, name, help_ in _QUEUE_COUNTERS:
        counter = CounterMetricFamily(f"disque_{name}", help_, labels=["queue"])
        for label, row in labels:
            counter.add_metric([label], _figure(row, field))
        yield counter


def _figure(row: QueueRow, field: str) -> int:
    value = getattr(row, field)
    return 0 if value is None else value


def _histograms(latency: Mapping[str, str]) -> Iterator[Metric]:
    for field, name, help_ in _HISTOGRAMS:
        if field in latency:
            buckets, sum_ms = _buckets(latency[field])
            yield HistogramMetricFamily(
                f"disque_{name}", help_, buckets=buckets, sum_value=sum_ms / 1000
            )


def _buckets(spelled: str) -> tuple[list[tuple[str, float]], float]:
    """`le_1=5,le_2=7,le_inf=9,sum=12` (ms, cumulative) as buckets in seconds and the sum in ms."""
    buckets: list[tuple[str, float]] = []
    sum_ms = 0.0
    for part in spelled.split(","):
        name, _, count = part.partition("=")
        if name == "sum":
            sum_ms = float(count)
        elif name == "le_inf":
            buckets.append(("+Inf", float(count)))
        else:
            buckets.append((str(float(name.removeprefix("le_")) / 1000), float(count)))
    return buckets, sum_ms
