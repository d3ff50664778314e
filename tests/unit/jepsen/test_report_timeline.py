"""timeline.html: a box for each call in its worker's column, capped without losing the jobs in question."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest

from jepsen.checkers.base import Meta, Run
from jepsen.report import timeline
from jepsen.report.measures import Calls
from tests.unit.jepsen.synthetic import job_id, make_run


def boxes(page: str) -> list[ET.Element]:
    return [each for each in ET.fromstring(page).iter("div") if "call" in each.get("class", "")]


def pixels(box: ET.Element) -> dict[str, int]:
    return {
        name: int(value) for name, value in re.findall(r"(\w+): (-?\d+)px", box.get("style", ""))
    }


def test_every_call_has_a_box_from_its_invocation_to_its_completion() -> None:
    run = make_run(jobs=30)
    calls = Calls.of(run).clients
    found = boxes(timeline.page(run))
    assert len(found) == len(calls)
    assert len({pixels(box)["left"] for box in found}) == run.meta.concurrency
    by_column: dict[int, list[tuple[int, int]]] = {}
    for box in found:
        where = pixels(box)
        by_column.setdefault(where["left"], []).append(
            (where["top"], where["top"] + where["height"])
        )
    for spans in by_column.values():
        ordered = sorted(spans)
        assert all(end <= start for (_, end), (start, _) in pairwise(ordered))


def test_a_retired_process_number_stays_in_its_column() -> None:
    run = make_run(jobs=3)
    (op, *_) = run.ops
    assert timeline.column_of(op, 3) == op.process % 3
    assert timeline.column_of(op, 0) == op.process


def test_a_box_can_be_found_by_value_and_by_job_id() -> None:
    found = boxes(timeline.page(make_run(jobs=10)))
    about = [box.get("data-about", "").split() for box in found]
    assert sum("3" in each for each in about) == 3
    assert sum(job_id(3) in each for each in about) == 3


def test_the_cap_keeps_the_jobs_complained_about(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "CALLS_MAX", 20)
    run = make_run(jobs=60)
    calls = Calls.of(run).clients
    chosen = timeline.choose(calls, [(job_id(50), 50), ("", 57)])
    assert len(chosen) == 20
    indexes = [call.invoke.index for call in chosen]
    assert indexes == sorted(set(indexes))
    wanted = [call for call in calls if not {"50", "57"}.isdisjoint(timeline.about(call))]
    assert len(wanted) > 3
    assert all(call in chosen for call in wanted)
    assert calls[0] in chosen
    page = timeline.page(run, [("", 57)])
    assert len(boxes(page)) == 20
    assert f"20 of {len(calls)} operations shown" in page


def test_faults_stand_in_a_column_of_their_own() -> None:
    root = ET.fromstring(timeline.page(make_run(jobs=60)))
    faults = [each for each in root.iter("div") if "nemesis" in each.get("class", "")]
    assert [each.text for each in faults][:4] == [
        "start partition-halves",
        "start partition-halves",
    ] + ["stop partition-halves"] * 2
    assert {pixels(each)["left"] for each in faults} == {timeline.LEFT_PX}


def test_a_run_without_calls_has_a_page() -> None:
    assert not boxes(timeline.page(Run(Meta(), [])))


def test_errors_stay_text() -> None:
    page = timeline.page(make_run(jobs=40))
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page
