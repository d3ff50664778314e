"""Pictures: the plots of a run. Same grammar as Jepsen's, so that its readers feel at home.

x is seconds; latencies stand on a logarithmic axis, a mark for each call, its colour the outcome, its shape the
function; faults are shaded, each family in a lane. New against Jepsen: the backlog by node, what was acknowledged and
not yet delivered, the latency of deliveries, and what became of each add.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import attrs

from jepsen.checkers.base import Finding, Run
from jepsen.history import FAIL, INFO, OK
from jepsen.report import measures
from jepsen.report.lanes import Window, bands, windows
from jepsen.report.measures import Call, Calls
from jepsen.report.svg import POINTS_MAX, Key, Plot, Point, Scale

OUTCOMES: Final = {OK: "#4f9fe8", INFO: "#f79a1e", FAIL: "#f0308c"}
SHAPES: Final = {"add": "circle", "get": "square", "ack": "triangle", "get (empty)": "cross"}
OTHER_SHAPE: Final = "diamond"
DASHES: Final = {"add": "", "get": "6 3", "ack": "2 2"}
OTHER_DASHES: Final = "8 2 2 2"
NODE_COLOURS: Final = (
    "#4f9fe8",
    "#f79a1e",
    "#3fae6a",
    "#c35bd0",
    "#e0564f",
    "#8a8f2c",
    "#2aa7a7",
    "#8d6a4f",
    "#6c6fd8",
)
QUANTILE_COLOURS: Final = {0.5: "#3fae6a", 0.95: "#4f9fe8", 0.99: "#f79a1e", 1.0: "#e0564f"}
BACKLOG_DASHES: Final = {"queued": "", "registered": "6 3", "acked": "2 2"}
FATES: Final = {
    "delivered": "#4f9fe8",
    "unseen": "#9aa3ad",
    "unknown": "#f79a1e",
    "refused": "#d9a0c0",
    "lost-prefix": "#e0564f",
    "lost-middle": "#b0123b",
    "lost-postfix": "#8c2be2",
}
BIN_RATE_S: Final = 10
BIN_QUANTILE_S: Final = 30


@attrs.frozen
class Gallery:
    """What all pictures of one run share."""

    run: Run
    calls: Calls
    faults: Sequence[Window]
    findings: Sequence[Finding]

    @classmethod
    def of(cls, run: Run, findings: Sequence[Finding]) -> Gallery:
        """Prepare the pictures of a run; one pass over its events."""
        return cls(run, Calls.of(run), windows(run), findings)

    def plot(
        self, title: str, y: Scale, y_label: str, keys: Sequence[Key], rows: Sequence[str] = ()
    ) -> Plot:
        """An empty plot over the time of the run, with its faults."""
        x = Scale(0.0, self.calls.end_s)
        shades = bands(self.faults)
        return Plot(title, x, y, y_label=y_label, bands=shades, keys=keys, rows=rows)


def latency_raw(gallery: Gallery) -> Plot:
    """Each client's call: when it was made, how long it took."""
    calls = gallery.calls
    latencies = [call.latency_ms(calls.end_ns) for call in calls.clients]
    names = dict.fromkeys(function_name(call) for call in calls.clients)
    keys = [Key(outcome, colour) for outcome, colour in OUTCOMES.items()]
    keys += [Key(name, "#8a929c", SHAPES.get(name, OTHER_SHAPE)) for name in names]
    plot = gallery.plot("Latency of calls", Scale.around(latencies, is_log=True), "ms", keys)
    has_tips = len(latencies) <= POINTS_MAX
    plot.add_points(
        [
            Point(
                call.invoke.time / 1e9,
                ms,
                OUTCOMES.get(call.type, OUTCOMES[INFO]),
                SHAPES.get(function_name(call), OTHER_SHAPE),
                describe(call, ms) if has_tips else "",
            )
            for call, ms in zip(calls.clients, latencies, strict=True)
        ]
    )
    return plot


def latency_quantiles(gallery: Gallery) -> Plot:
    """Quantiles of the latency of calls that were ok; a get that waited in vain isn't slow, so it is left out."""
    calls = gallery.calls
    samples = [
        (call.invoke.time / 1e9, call.latency_ms(calls.end_ns))
        for call in calls.clients
        if call.type == OK and not call.is_empty
    ]
    return quantile_plot(gallery, "Quantiles of latency, ok calls", samples)


def delivery_latency(gallery: Gallery) -> Plot:
    """Quantiles of the wait for a first delivery, since the job was acknowledged and due."""
    found = measures.delivery_latencies(gallery.calls)
    samples = [(at, max(ms, 0.001)) for at, ms, _ in found]
    return quantile_plot(gallery, "Quantiles of the wait for a first delivery", samples)


def quantile_plot(gallery: Gallery, title: str, samples: Sequence[tuple[float, float]]) -> Plot:
    """A line for each quantile over bins of up to BIN_QUANTILE_S."""
    width = measures.bin_width_s(gallery.calls.end_s, BIN_QUANTILE_S)
    lines = measures.latency_quantiles(samples, width)
    scale = Scale.around((ms for line in lines.values() for _, ms in line), is_log=True)
    keys = [Key(f"{q:g}", colour, "line") for q, colour in QUANTILE_COLOURS.items()]
    plot = gallery.plot(f"{title} ({width:g} s bins)", scale, "ms", keys)
    for q, line in lines.items():
        plot.add_line(line, QUANTILE_COLOURS[q], tip=f"quantile {q:g}")
        plot.add_points(
            [Point(x, y, QUANTILE_COLOURS[q], tip=f"{q:g}: {y:.2f} ms") for x, y in line]
        )
    return plot


def rate(gallery: Gallery) -> Plot:
    """Completed calls a second, by function and outcome."""
    width = measures.bin_width_s(gallery.calls.end_s, BIN_RATE_S)
    lines = measures.rates(gallery.calls, width)
    scale = Scale.around(y for line in lines.values() for _, y in line)
    keys = [
        Key(f"{f} {outcome}", OUTCOMES.get(outcome, OUTCOMES[INFO]), "line", dashes_of(f))
        for f, outcome in lines
    ]
    plot = gallery.plot(f"Rate ({width:g} s bins)", scale, "calls a second", keys)
    for (f, outcome), line in lines.items():
        colour = OUTCOMES.get(outcome, OUTCOMES[INFO])
        plot.add_line(line, colour, dashes=dashes_of(f), tip=f"{f} {outcome}")
    return plot


def backlog(gallery: Gallery) -> Plot:
    """Jobs queued, registered and acked on each node, as its snapshots tell."""
    seen = measures.snapshots(gallery.calls)
    lines: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for snapshot in seen:
        for name in BACKLOG_DASHES:
            if name in snapshot.counts:
                vertex = (snapshot.at_s, snapshot.counts[name])
                lines.setdefault((snapshot.node, name), []).append(vertex)
    colours = node_colours(gallery.run, [node for node, _ in lines])
    keys = [Key(node, colour, "line") for node, colour in colours.items()]
    keys += [Key(name, "#8a929c", "line", dashes) for name, dashes in BACKLOG_DASHES.items()]
    scale = Scale.around(y for line in lines.values() for _, y in line)
    plot = gallery.plot("Backlog by node", scale, "jobs", keys)
    for (node, name), line in lines.items():
        plot.add_line(line, colours[node], dashes=BACKLOG_DASHES[name], tip=f"{node} {name}")
    return plot


def unseen(gallery: Gallery) -> Plot:
    """Jobs acknowledged to a producer and not yet delivered to anybody."""
    steps = measures.unseen(gallery.calls)
    scale = Scale.around(count for _, count in steps)
    plot = gallery.plot("Acknowledged, not yet delivered", scale, "jobs", [])
    plot.add_line(steps, OUTCOMES[OK], tip="acknowledged, not yet delivered")
    return plot


def lost(gallery: Gallery) -> Plot:
    """What became of each add, in a row for each node that took it."""
    meta = gallery.run.meta
    fates = measures.fates(gallery.calls, gallery.findings, meta.concurrency)
    nodes = list(dict.fromkeys([*meta.nodes, *sorted({call.invoke.node for call, _ in fates})]))
    counts = dict.fromkeys(FATES, 0)
    for _, fate in fates:
        counts[fate] += 1
    keys = [Key(f"{fate} {n}", FATES[fate]) for fate, n in counts.items() if n]
    rows = Scale(-0.5, max(len(nodes), 1) - 0.5)
    plot = gallery.plot("What became of each add", rows, "node", keys, nodes)
    # What is fine may melt into densities; what isn't stays a mark of its own, and on top.
    for is_lost in (False, True):
        chosen = [each for each in fates if each[1].startswith("lost") == is_lost]
        has_tips = len(chosen) <= POINTS_MAX
        plot.add_points([fate_point(c, fate, nodes, has_tip=has_tips) for c, fate in chosen])
    return plot


def fate_point(call: Call, fate: str, nodes: Sequence[str], *, has_tip: bool) -> Point:
    """An add in the row of its node, spread over the row by its value so that neighbours stay apart."""
    v = call.invoke.value["v"]
    row = nodes.index(call.invoke.node) + ((v * 7) % 23 - 11) / 30
    tip = f"{fate}: {v} on {call.invoke.node} at {call.invoke.time / 1e9:.3f} s" if has_tip else ""
    shape = "diamond" if fate.startswith("lost") else "circle"
    return Point(call.invoke.time / 1e9, row, FATES[fate], shape, tip)


def function_name(call: Call) -> str:
    """The function of a call as the legend tells it; a get that got nothing is told apart."""
    return "get (empty)" if call.is_empty else call.invoke.f


def dashes_of(f: str) -> str:
    """The dashes of a function's lines."""
    return DASHES.get(f, OTHER_DASHES)


def describe(call: Call, ms: float) -> str:
    """A call in one line, for a tooltip."""
    error = f" {call.completion.error}" if call.completion and call.completion.error else ""
    where = f"{call.invoke.node} process {call.invoke.process}"
    return f"{function_name(call)} {call.type}{error} {ms:.2f} ms, {where}, {call.invoke.time / 1e9:.3f} s"


def node_colours(run: Run, nodes: Sequence[str]) -> Mapping[str, str]:
    """A colour for each node of the run."""
    ordered = dict.fromkeys([*run.meta.nodes, *nodes])
    return {node: NODE_COLOURS[i % len(NODE_COLOURS)] for i, node in enumerate(ordered)}


# The pictures of a run by file name, in the order of the page.
PICTURES: Final[Mapping[str, Callable[[Gallery], Plot]]] = {
    "latency-raw.svg": latency_raw,
    "latency-quantiles.svg": latency_quantiles,
    "rate.svg": rate,
    "backlog.svg": backlog,
    "unseen.svg": unseen,
    "delivery.svg": delivery_latency,
    "lost.svg": lost,
}


def draw(run: Run, findings: Sequence[Finding]) -> dict[str, str]:
    """All pictures of a run, by file name, each an SVG document with its own style."""
    gallery = Gallery.of(run, findings)
    return {name: picture(gallery).render() for name, picture in PICTURES.items()}
