"""The dashboard for Grafana asks only for what /metrics tells."""

from __future__ import annotations

import json
import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from disque.core.histogram import Histogram
from disque.web import metrics
from disque.web.picture import QueueRow, Sample

DASHBOARD = Path(__file__).parents[3] / "deploy" / "grafana-dashboard.json"
FIELDS = dict.fromkeys([each[0] for each in (*metrics._COUNTERS, *metrics._GAUGES)], "1")
LATENCY = {each[0]: Histogram().spelled() for each in metrics._HISTOGRAMS}


def told() -> set[str]:
    """The names of all figures that a node may tell."""
    sample = Sample(0, FIELDS, {}, queues={b"q": QueueRow(b"q", length=1, oldest_s=1)})
    content = metrics.exposition(sample, LATENCY).decode()
    return {
        each.name for family in text_string_to_metric_families(content) for each in family.samples
    }


def test_every_figure_of_the_dashboard_is_told_by_nodes() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    assert len(expressions) > 20
    asked = {name for text in expressions for name in re.findall(r"disque_\w+", text)}
    assert asked - told() == set()


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
