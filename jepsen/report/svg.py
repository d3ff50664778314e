"""Plots as SVG text, from the standard library alone: scales, ticks, points, lines, lanes.

Knows nothing of histories. Every mark may carry a tooltip; colours of text, grid and paper follow
the reader's light or dark setting, in a file of its own as well as inside a page. Above POINTS_MAX
marks a scatter becomes a grid of densities, so a picture never grows with the run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import attrs

from jepsen.report.markup import element, text_element

# A tooltip mark is some 150 bytes; so many keep a picture below 3 MB.
POINTS_MAX = 20_000
# Vertices of one line; a screen has no more columns.
VERTICES_MAX = 2_000
# Cells of a density grid, across and up.
GRID = (160, 60)

MARGIN_LEFT = 110
MARGIN_RIGHT = 16
MARGIN_BOTTOM = 44
TITLE_HEIGHT = 28
LANE_HEIGHT = 12
LEGEND_HEIGHT = 20
SHAPE_RADIUS = 2.6

STYLE = """
.jx { --ink: #1b1f24; --faint: #8a929c; --grid: #e3e6ea; --paper: #ffffff; }
@media (prefers-color-scheme: dark) {
  .jx { --ink: #e6e9ec; --faint: #8d96a0; --grid: #2c333b; --paper: #14181d; }
}
.jx .paper { fill: var(--paper); }
.jx text { fill: var(--ink); font: 11px system-ui, sans-serif; }
.jx text.title { font-size: 14px; font-weight: 600; }
.jx text.faint { fill: var(--faint); }
.jx .grid { stroke: var(--grid); stroke-width: 1; }
.jx .axis { stroke: var(--faint); stroke-width: 1; }
"""


@attrs.frozen
class Scale:
    """Values to pixels, linear or logarithmic; values outside are clamped to the ends.

    A logarithmic scale needs `low` > 0. An empty range is widened, so `at` never divides by 0.
    """

    low: float
    high: float
    is_log: bool = False

    @classmethod
    def around(cls, values: Iterable[float], *, is_log: bool = False) -> Scale:
        """A scale that holds all values: from 0 when linear, whole decades when logarithmic."""
        if is_log:
            positive = [each for each in values if each > 0] or [1.0]
            low = 10.0 ** math.floor(math.log10(min(positive)))
            high = 10.0 ** math.ceil(math.log10(max(positive)))
            return cls(low, high if high > low else low * 10, is_log=True)
        high = max(values, default=0.0)
        return cls(0.0, high if high > 0 else 1.0)

    def fraction(self, value: float) -> float:
        """Where a value stands, 0 at `low` and 1 at `high`."""
        if self.is_log:
            low, high = math.log10(self.low), math.log10(self.high)
            value = math.log10(max(value, self.low))
        else:
            low, high = self.low, self.high
        width = (high - low) or 1.0
        return min(1.0, max(0.0, (value - low) / width))

    def ticks(self) -> list[float]:
        """About seven round values: decades, or steps of 1, 2 or 5 times a power of ten."""
        if self.is_log:
            first, last = round(math.log10(self.low)), round(math.log10(self.high))
            stride = max(1, (last - first) // 7)
            return [10.0**power for power in range(first, last + 1, stride)]
        step = nice_step((self.high - self.low) / 7 or 1.0)
        first = math.ceil(self.low / step)
        return [i * step for i in range(first, math.floor(self.high / step + 1e-9) + 1)]


def nice_step(wanted: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that is not below `wanted` (> 0)."""
    power = 10.0 ** math.floor(math.log10(wanted))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= wanted * (1 - 1e-9))


def tick_label(value: float) -> str:
    """A tick's number, short: 2500000 is 2.5M."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (limit if unit != 'k' else 1e3):g}{unit}"
    return f"{value:g}"


# Made by the hundred thousand: a frozen class would take twice the time.
@attrs.define(eq=False)
class Point:
    """One mark of a scatter: `shape` of SHAPES, `tip` the tooltip, "" for none."""

    x: float
    y: float
    colour: str
    shape: str = "circle"
    tip: str = ""


@attrs.frozen
class Band:
    """A span of x that is shaded over the whole plot, with a bar in lane `lane` at the top."""

    start: float
    end: float
    lane: int
    label: str
    colour: str
    tip: str


@attrs.frozen
class Key:
    """One entry of the legend."""

    label: str
    colour: str
    shape: str = "circle"
    dashes: str = ""


@attrs.define(eq=False)
class Plot:
    """One picture with axes; add marks in the order of drawing, then `render`."""

    title: str
    x: Scale
    y: Scale
    x_label: str = "seconds"
    y_label: str = ""
    bands: Sequence[Band] = ()
    keys: Sequence[Key] = ()
    # Labels of whole y values, which replace the ticks.
    rows: Sequence[str] = ()
    width: int = 960
    height: int = 360
    _marks: list[str] = attrs.field(factory=list, init=False)

    @property
    def top(self) -> float:
        """The y pixel of the upper end of the plot area."""
        lanes = 1 + max((band.lane for band in self.bands), default=-1)
        return TITLE_HEIGHT + LEGEND_HEIGHT * bool(self.keys) + lanes * LANE_HEIGHT + 4

    @property
    def bottom(self) -> float:
        """The y pixel of the lower end of the plot area."""
        return self.height - MARGIN_BOTTOM

    def x_px(self, value: float) -> float:
        """The x pixel of a value."""
        return MARGIN_LEFT + self.x.fraction(value) * (self.width - MARGIN_LEFT - MARGIN_RIGHT)

    def y_px(self, value: float) -> float:
        """The y pixel of a value."""
        return self.bottom - self.y.fraction(value) * (self.bottom - self.top)

    def add_points(self, points: Sequence[Point]) -> None:
        """Draw a scatter: single marks with tooltips, or densities above POINTS_MAX."""
        if len(points) > POINTS_MAX:
            self._add_densities(points)
            return
        for point in points:
            drawn = draw_shape(point.shape, self.x_px(point.x), self.y_px(point.y))
            tip = text_element("title", point.tip) if point.tip else ""
            self._marks.append(element("g", tip, drawn, class_="point", fill=point.colour))

    def add_line(
        self,
        vertices: Sequence[tuple[float, float]],
        colour: str,
        *,
        dashes: str = "",
        tip: str = "",
    ) -> None:
        """Draw one line; nothing without vertices."""
        if not vertices:
            return
        path = " ".join(f"{self.x_px(x):.1f},{self.y_px(y):.1f}" for x, y in thinned(vertices))
        tips = [text_element("title", tip)] if tip else []
        self._marks.append(
            element(
                "polyline",
                *tips,
                class_="line",
                points=path,
                fill="none",
                stroke=colour,
                stroke_width=1.5,
                stroke_dasharray=dashes or None,
            )
        )

    def render(self) -> str:
        """The whole `<svg>`, a document of its own that may also stand in a page."""
        parts = [
            text_element("title", self.title),
            text_element("style", STYLE),
            element("rect", class_="paper", width=self.width, height=self.height),
            text_element("text", self.title, class_="title", x=MARGIN_LEFT, y=18),
            *self._legend(),
            *self._shades(),
            *self._axes(),
            *self._marks,
        ]
        return element(
            "svg",
            *parts,
            xmlns="http://www.w3.org/2000/svg",
            class_="jx",
            role="img",
            viewBox=f"0 0 {self.width} {self.height}",
            width=self.width,
            height=self.height,
        )

    def _add_densities(self, points: Sequence[Point]) -> None:
        """Count points by cell and colour; the darker, the more, on a logarithmic scale."""
        across, up = GRID
        counts: dict[tuple[str, int, int], int] = {}
        for point in points:
            column = min(across - 1, int(self.x.fraction(point.x) * across))
            row = min(up - 1, int(self.y.fraction(point.y) * up))
            cell = (point.colour, column, row)
            counts[cell] = counts.get(cell, 0) + 1
        full = math.log1p(max(counts.values()))
        cell_width = (self.width - MARGIN_LEFT - MARGIN_RIGHT) / across
        cell_height = (self.bottom - self.top) / up
        for (colour, column, row), count in sorted(counts.items()):
            self._marks.append(
                element(
                    "rect",
                    text_element("title", f"{count} operations"),
                    class_="cell",
                    data_count=count,
                    x=MARGIN_LEFT + column * cell_width,
                    y=self.bottom - (row + 1) * cell_height,
                    width=cell_width,
                    height=cell_height,
                    fill=colour,
                    fill_opacity=0.2 + 0.8 * math.log1p(count) / full,
                )
            )

    def _legend(self) -> list[str]:
        """One row of marks and names below the title."""
        parts = []
        x = float(MARGIN_LEFT)
        y = TITLE_HEIGHT + 8
        for key in self.keys:
            if key.shape == "line":
                parts.append(
                    element(
                        "line",
                        x1=x,
                        x2=x + 14,
                        y1=y,
                        y2=y,
                        stroke=key.colour,
                        stroke_width=2,
                        stroke_dasharray=key.dashes or None,
                    )
                )
            else:
                parts.append(element("g", draw_shape(key.shape, x + 7, y), fill=key.colour))
            parts.append(text_element("text", key.label, x=x + 18, y=y + 4))
            x += 32 + 6.2 * len(key.label)
        return parts

    def _shades(self) -> list[str]:
        """Faults: a bar in its lane, a faint shade below, a thin line at start and end; each lane's name."""
        parts = []
        for band in self.bands:
            left, right = self.x_px(band.start), self.x_px(band.end)
            width = max(1.0, right - left)
            height = self.bottom - self.top
            shapes = [
                text_element("title", band.tip),
                element(
                    "rect", x=left, y=self._lane_y(band), width=width, height=LANE_HEIGHT - 2.0
                ),
                element("rect", x=left, y=self.top, width=width, height=height, fill_opacity=0.1),
            ]
            for x in (left, left + width):
                ends: dict[str, object] = {"x1": x, "x2": x, "y1": self.top, "y2": self.bottom}
                shapes.append(element("line", **ends, stroke=band.colour, stroke_width=0.5))
            parts.append(element("g", *shapes, class_="band", fill=band.colour))
        for band in {band.lane: band for band in self.bands}.values():
            y = self._lane_y(band) + LANE_HEIGHT - 3
            given: dict[str, object] = {"class": "faint", "text-anchor": "end"}
            parts.append(text_element("text", band.label, x=MARGIN_LEFT - 6, y=y, **given))
        return parts

    def _lane_y(self, band: Band) -> float:
        """The y pixel of the upper end of a band's lane; lane 0 is the lowest."""
        return self.top - 4 - (band.lane + 1) * LANE_HEIGHT

    def _axes(self) -> list[str]:
        """Grid, ticks and labels of both axes."""
        right = self.width - MARGIN_RIGHT
        parts = []
        for value in self.x.ticks():
            x = self.x_px(value)
            parts.append(element("line", class_="grid", x1=x, x2=x, y1=self.top, y2=self.bottom))
            parts.append(
                text_element(
                    "text", tick_label(value), x=x, y=self.bottom + 15, text_anchor="middle"
                )
            )
        labels = [(float(row), name) for row, name in enumerate(self.rows)]
        for value, label in labels or [(v, tick_label(v)) for v in self.y.ticks()]:
            y = self.y_px(value)
            parts.append(element("line", class_="grid", x1=MARGIN_LEFT, x2=right, y1=y, y2=y))
            parts.append(text_element("text", label, x=MARGIN_LEFT - 6, y=y + 4, text_anchor="end"))
        middle = (self.top + self.bottom) / 2
        parts += [
            element(
                "line", class_="axis", x1=MARGIN_LEFT, x2=right, y1=self.bottom, y2=self.bottom
            ),
            text_element(
                "text",
                self.x_label,
                class_="faint",
                x=right,
                y=self.height - 8,
                text_anchor="end",
            ),
            text_element(
                "text",
                self.y_label,
                class_="faint",
                x=-middle,
                y=14,
                transform="rotate(-90)",
                text_anchor="middle",
            ),
        ]
        return parts


def draw_shape(shape: str, x: float, y: float) -> str:
    """A small mark centred on a pixel: circle, square, triangle, diamond or cross."""
    r = SHAPE_RADIUS
    if shape == "circle":
        return element("circle", cx=x, cy=y, r=r)
    if shape == "square":
        return element("rect", x=x - r, y=y - r, width=2 * r, height=2 * r)
    corners = SHAPES[shape]
    path = " ".join(f"{x + dx * r:.1f},{y + dy * r:.1f}" for dx, dy in corners)
    return element("polygon", points=path)


SHAPES: dict[str, tuple[tuple[float, float], ...]] = {
    "triangle": ((0, -1.3), (1.2, 1), (-1.2, 1)),
    "diamond": ((0, -1.4), (1.4, 0), (0, 1.4), (-1.4, 0)),
    "cross": ((-1.2, -0.5), (1.2, -0.5), (1.2, 0.5), (-1.2, 0.5)),
}


def thinned(vertices: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most VERTICES_MAX vertices: of each run of neighbours the lowest and the highest stay."""
    if len(vertices) <= VERTICES_MAX:
        return list(vertices)
    stride = math.ceil(len(vertices) / (VERTICES_MAX / 2))
    kept: list[tuple[float, float]] = []
    for first in range(0, len(vertices), stride):
        part = vertices[first : first + stride]
        kept += sorted({min(part, key=lambda v: v[1]), max(part, key=lambda v: v[1])})
    return kept
