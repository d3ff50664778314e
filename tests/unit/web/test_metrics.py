"""Metrics: what a collector reads, by its own parser; labels are bounded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

from disque.core.histogram import Histogram
from disque.web import metrics
from disque.web.picture import QueueRow, Sample

if TYPE_CHECKING:
    from collections.abc import Mapping


def read(content: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """All samples by name and labels."""
    return {
        (each.name, tuple(sorted(each.labels.items()))): each.value
        for family in text_string_to_metric_families(content.decode())
        for each in family.samples
    }


def of_info(**fields: str) -> Sample:
    """A sample of a node that says this in INFO."""
    return Sample(0, fields, {"cluster_known_nodes": "3"}, is_leaving=True, memory_max=7)


def test_figures_are_told_under_their_names() -> None:
    found = read(metrics.exposition(of_info(added_total="5", queued_jobs="2"), {}))
    assert found["disque_jobs_added_total", ()] == 5
    assert found["disque_jobs_queued", ()] == 2
    assert found["disque_cluster_known_nodes", ()] == 3
    assert (found["disque_leaving", ()], found["disque_memory_max_bytes", ()]) == (1, 7)
    assert found["disque_log_ok", ()] == 1
    assert ("disque_jobs_acknowledged_total", ()) not in found


def test_a_log_that_cannot_be_written_is_told() -> None:
    assert (
        read(metrics.exposition(of_info(aof_last_write_status="err"), {}))["disque_log_ok", ()] == 0
    )


def test_names_of_queues_may_be_any_bytes() -> None:
    queues = {
        name: QueueRow(name, length=1, oldest_s=9) for name in (b'a"b\\', b"\xff\n", "ä".encode())
    }
    found = read(metrics.exposition(Sample(0, {}, {}, queues=queues), {}))
    lengths = [labels for name, labels in found if name == "disque_queue_length"]
    assert sorted(lengths) == [(("queue", "\\xff\\n"),), (("queue", 'a"b\\'),), (("queue", "ä"),)]


def test_names_that_look_the_same_have_one_label() -> None:
    queues = {
        name: QueueRow(name, length=length)
        for name, length in ((b"\xff", 1), (b"\\xff", 7), (b"\xc3\xbf", 3))
    }
    found = read(metrics.exposition(Sample(0, {}, {}, queues=queues), {}))
    assert found["disque_queue_length", (("queue", "\\xff"),)] == 7
    assert found["disque_queues_left_out", ()] == 1


def test_only_the_longest_queues_have_labels_and_the_rest_is_counted() -> None:
    queues = {b"%03d" % n: QueueRow(b"%03d" % n, length=n) for n in range(150)}
    content = metrics.exposition(Sample(0, {"registered_queues": "150"}, {}, queues=queues), {})
    found = read(content)
    lengths = {
        labels: value for (name, labels), value in found.items() if name == "disque_queue_length"
    }
    assert sorted(lengths.values()) == list(range(50, 150))
    assert found["disque_queues_left_out", ()] == 50


def test_histograms_are_in_seconds_and_cumulative() -> None:
    histogram = Histogram()
    for took_ms in (0, 1, 3, 700_000, -5):
        histogram.add(took_ms)
    latency: Mapping[str, str] = {"delivery_ms": histogram.spelled()}
    found = read(metrics.exposition(Sample(0, {}, {}), latency))

    def bucket(bound: str) -> float:
        return found["disque_delivery_seconds_bucket", (("le", bound),)]

    assert [bucket(each) for each in ("0.001", "0.005", "600.0", "+Inf")] == [3, 4, 4, 5]
    assert found["disque_delivery_seconds_count", ()] == 5
    assert found["disque_delivery_seconds_sum", ()] == 700.004
