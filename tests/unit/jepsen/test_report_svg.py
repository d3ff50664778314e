"""Scales, marks and densities of the plots, read back from the SVG text by a parser."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from jepsen.report.markup import element, escape
from jepsen.report.svg import (
    POINTS_MAX,
    VERTICES_MAX,
    Band,
    Key,
    Plot,
    Point,
    Scale,
    nice_step,
    thinned,
    tick_label,
)

SVG = "{http://www.w3.org/2000/svg}"


def parse(plot: Plot) -> ET.Element:
    return ET.fromstring(plot.render())


def marked(root: ET.Element, class_: str) -> list[ET.Element]:
    return [each for each in root.iter() if each.get("class") == class_]


@pytest.mark.parametrize(
    ("scale", "value", "fraction"),
    [
        (Scale(0, 10), 5, 0.5),
        (Scale(0, 10), -1, 0),
        (Scale(0, 10), 11, 1),
        (Scale(1, 100, is_log=True), 10, 0.5),
        (Scale(1, 100, is_log=True), 0, 0),
        (Scale(3, 3), 3, 0),
    ],
)
def test_where_a_value_stands(scale: Scale, value: float, fraction: float) -> None:
    assert scale.fraction(value) == pytest.approx(fraction)


def test_scales_hold_what_they_are_made_for() -> None:
    assert Scale.around([0.5, 70], is_log=True) == Scale(0.1, 100, is_log=True)
    assert Scale.around([10], is_log=True) == Scale(10, 100, is_log=True)
    assert Scale.around([3, 8]) == Scale(0, 8)
    assert Scale.around([]) == Scale(0, 1)
    assert Scale.around([0.0], is_log=True).low > 0


def test_ticks_are_round_and_inside() -> None:
    assert Scale(0, 60).ticks() == [0, 10, 20, 30, 40, 50, 60]
    assert Scale(0.1, 100, is_log=True).ticks() == pytest.approx([0.1, 1, 10, 100])
    assert [nice_step(x) for x in (0.9, 1, 1.1, 3, 70)] == [1, 1, 2, 5, 100]
    assert [tick_label(x) for x in (0.5, 100, 25_000, 2.5e6)] == ["0.5", "100", "25k", "2.5M"]


def test_every_point_is_a_mark_with_its_tip() -> None:
    plot = Plot("p", Scale(0, 10), Scale(0, 10))
    shapes = ["circle", "square", "triangle", "diamond", "cross"]
    plot.add_points([Point(i, i, "red", shape, f"tip <{i}>") for i, shape in enumerate(shapes)])
    points = marked(parse(plot), "point")
    assert [each.findtext(f"{SVG}title") for each in points] == [f"tip <{i}>" for i in range(5)]


def test_too_many_points_become_densities_that_count_them_all() -> None:
    plot = Plot("p", Scale(0, 1000), Scale(0.1, 100, is_log=True))
    points = [
        Point(i % 1000, (i % 977) / 10, ("red", "blue")[i % 2]) for i in range(POINTS_MAX + 1)
    ]
    plot.add_points(points)
    root = parse(plot)
    cells = marked(root, "cell")
    assert not marked(root, "point")
    assert sum(int(each.get("data-count", 0)) for each in cells) == POINTS_MAX + 1
    blue = [int(each.get("data-count", 0)) for each in cells if each.get("fill") == "blue"]
    assert sum(blue) == POINTS_MAX // 2


def test_a_thinned_line_keeps_its_extremes() -> None:
    line = [(float(x), float(x % 7)) for x in range(10_000)]
    line[5_003] = (5_003.0, 99.0)
    line[7_001] = (7_001.0, -5.0)
    kept = thinned(line)
    assert len(kept) <= VERTICES_MAX
    assert (5_003.0, 99.0) in kept
    assert (7_001.0, -5.0) in kept
    assert kept == sorted(kept)
    assert thinned(line[:10]) == line[:10]


def test_faults_are_shaded_over_their_time_in_their_lane() -> None:
    faults = [Band(2, 4, 0, "cut", "red", "a cut"), Band(6, 7, 1, "kill", "blue", "a kill")]
    plot = Plot("p", Scale(0, 10), Scale(0, 1), bands=faults)
    bars = [each.findall(f"{SVG}rect") for each in marked(parse(plot), "band")]
    cut, kill = ([float(rect.get(k, 0)) for k in ("x", "y", "width")] for rect, _ in bars)
    assert cut[0] == pytest.approx(plot.x_px(2), abs=0.01)
    assert cut[2] == pytest.approx(plot.x_px(4) - plot.x_px(2), abs=0.01)
    assert kill[1] < cut[1] < plot.top
    assert {"cut", "kill"} <= {each.text for each in parse(plot).iter(f"{SVG}text")}


def test_rows_replace_the_ticks_of_y() -> None:
    plot = Plot("p", Scale(0, 1), Scale(-0.5, 1.5), rows=["n1", "n2"], keys=[Key("a & b", "red")])
    texts = [each.text for each in parse(plot).iter(f"{SVG}text")]
    assert {"n1", "n2", "a & b"} <= set(texts)
    assert "1.5" not in texts


def test_nothing_given_breaks_out_of_the_markup() -> None:
    nasty = "</title><script>&\"'\x00\x1b\ud800"
    plot = Plot(nasty, Scale(0, 1), Scale(0, 1), keys=[Key(nasty, "red")])
    plot.add_points([Point(0, 0, "red", tip=nasty)])
    root = parse(plot)
    assert not list(root.iter(f"{SVG}script"))
    assert marked(root, "title")[0].text == "</title><script>&\"'\ufffd\ufffd\ufffd"
    assert escape('<a b="c">') == "&lt;a b=&quot;c&quot;&gt;"


def test_only_void_elements_close_themselves() -> None:
    assert element("div", class_="x") == '<div class="x"></div>'
    assert element("rect", stroke_width=1.50, x=None) == '<rect stroke-width="1.5"/>'
