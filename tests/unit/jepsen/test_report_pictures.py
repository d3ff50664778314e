"""The pictures of a synthetic run: well-formed, complete, and of bounded size."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections import Counter

import pytest

from jepsen.checkers.base import Finding, Meta, Run
from jepsen.report import pictures
from jepsen.report.lanes import windows
from jepsen.report.measures import Calls
from jepsen.report.pictures import OUTCOMES, PICTURES
from jepsen.report.svg import POINTS_MAX
from tests.unit.jepsen.synthetic import lost_values, make_results, make_run
from tests.unit.jepsen.telling import Tale

SVG = "{http://www.w3.org/2000/svg}"


def drawn(run: Run, findings: list[Finding] | None = None) -> dict[str, ET.Element]:
    return {name: ET.fromstring(svg) for name, svg in pictures.draw(run, findings or []).items()}


def marked(root: ET.Element, class_: str) -> list[ET.Element]:
    return [each for each in root.iter() if each.get("class") == class_]


def tips(root: ET.Element, class_: str) -> list[str]:
    return [each.findtext(f"{SVG}title", "") for each in marked(root, class_)]


def test_every_call_is_one_mark_of_its_outcome() -> None:
    run = make_run(jobs=80)
    calls = Calls.of(run).clients
    points = marked(drawn(run)["latency-raw.svg"], "point")
    assert Counter(each.get("fill") for each in points) == Counter(
        OUTCOMES[call.type] for call in calls
    )


def test_every_call_is_counted_when_there_are_too_many() -> None:
    run = make_run(jobs=POINTS_MAX // 2)
    total = len(Calls.of(run).clients)
    assert total > POINTS_MAX
    svg = pictures.draw(run, [])["latency-raw.svg"]
    counts = [int(each.get("data-count", 0)) for each in marked(ET.fromstring(svg), "cell")]
    assert sum(counts) == total
    assert len(svg) < 3_000_000


def test_a_fault_whose_end_nobody_saw_is_not_proven() -> None:
    tale = Tale()
    tale.fault(1_000, 2_000, heal_proven=False)
    assert not windows(tale.run())[0].is_proven


@pytest.mark.parametrize("name", PICTURES)
def test_faults_are_shaded_in_every_picture(name: str) -> None:
    told = tips(drawn(make_run(jobs=60))[name], "band")
    assert [each.split(":")[0] for each in told] == ["partition-halves", "kill"]
    assert "cut n1→n2" in told[0]
    assert told[0].endswith("0.509 s; proven")
    assert told[1].endswith("NOT PROVEN")


@pytest.mark.parametrize("name", PICTURES)
def test_a_run_without_events_has_pictures_too(name: str) -> None:
    root = drawn(Run(Meta(), []))[name]
    assert root.tag == f"{SVG}svg"
    assert not marked(root, "point")


def test_the_backlog_has_a_line_for_each_node_and_count() -> None:
    told = tips(drawn(make_run(jobs=60))["backlog.svg"], "line")
    assert sorted(told) == sorted(
        f"{n} {c}" for n in ("n1", "n2", "n3") for c in ("queued", "registered", "acked")
    )


def test_losses_stay_single_marks_whatever_their_number() -> None:
    run = make_run(jobs=30)
    (_, loss, _) = make_results(run)
    told = tips(drawn(run, list(loss.findings))["lost.svg"], "point")
    assert len(told) == 30
    assert [each for each in told if each.startswith("lost")] == told[-len(loss.findings) :]
    assert {int(each.split()[1]) for each in told if each.startswith("lost")} == set(
        lost_values(run)
    )


def test_nasty_errors_stay_text() -> None:
    root = drawn(make_run(jobs=40))["latency-raw.svg"]
    assert any("<script>alert('x')</script> & \"quotes\"" in tip for tip in tips(root, "point"))
    assert not list(root.iter(f"{SVG}script"))
