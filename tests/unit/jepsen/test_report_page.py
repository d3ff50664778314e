"""report.html of a synthetic run: well-formed, complete, self-contained, and safe."""

from __future__ import annotations

import json
import re
import shlex
import xml.etree.ElementTree as ET
from pathlib import Path

import attrs
import pytest

from jepsen import cli, report, store
from jepsen.checkers import CLAIMS, Finding, Meta, Result, Run
from jepsen.options import Options
from jepsen.report import page
from jepsen.report.text import ABSENT
from tests.unit.jepsen.synthetic import NASTY, job_id, lost_values, make_results, make_run


def marked(root: ET.Element, class_: str) -> list[ET.Element]:
    return [each for each in root.iter() if class_ in each.get("class", "").split()]


def words(root: ET.Element) -> str:
    return " ".join("".join(root.itertext()).split())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run's folder with its report."""
    run = make_run(jobs=60)
    opened = store.open_run(tmp_path, "queue", {"options": {"rate": 50, "name": NASTY}})
    for op in run.ops:
        opened.append(op)
    opened.write_results(run, make_results(run))
    opened.close()
    report.write(run, make_results(run), opened)
    return opened.folder


def test_the_page_tells_the_verdict_the_promises_and_the_offending_jobs(folder: Path) -> None:
    root = ET.fromstring((folder / "report.html").read_text())
    (verdict,) = marked(root, "verdict")
    assert verdict.text == "INVALID"
    assert marked(root, "banner")[0].get("class") == "banner invalid"
    rows = [[cell.text for cell in row] for row in marked(root, "checker")]
    assert {row[1] for row in rows} == CLAIMS.keys()
    assert all(row[0] == ABSENT for row in rows[3:])
    assert [row[:3] for row in rows[:3]] == [
        ["✓", "accounting", "Only added jobs are delivered."],
        ["✗", "loss", "Acknowledged jobs survive W - 1 failures."],
        ["?", "stats", "The run is not vacuous."],
    ]
    lives = marked(root, "biography")
    lost = lost_values(make_run(jobs=60))
    assert lost
    assert len(lives) == len(lost)
    for v, life in zip(lost, lives, strict=True):
        assert job_id(v) in words(life)
    assert "stats: fault 1500 (kill) is not proven" in words(root)
    assert [cells[-1].text for cells in marked(root, "fault") if len(cells) == 5] == ["yes", "NO"]


def test_all_pictures_are_inside_and_nothing_is_fetched(folder: Path) -> None:
    text = (folder / "report.html").read_text()
    pictures = [path for path in folder.iterdir() if path.suffix == ".svg"]
    assert len(pictures) == 7
    for path in pictures:
        assert path.read_text() in text
    # the one address is the name of the SVG language
    assert set(re.findall(r"https?://[^\"' )]+", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"\b(?:src|@import|url\()", text)


def test_what_the_network_sent_stays_text(folder: Path) -> None:
    text = (folder / "report.html").read_text()
    assert "<script" not in text
    assert "alert(&#x27;x&#x27;)" in text
    assert "queue &lt;partition&gt;" in text
    assert not re.search("[\x00-\x08\x0e-\x1f]", text)


def test_links_lead_to_files_of_the_run(folder: Path) -> None:
    root = ET.fromstring((folder / "report.html").read_text())
    linked = {each.get("href", "") for each in root.iter("a")}
    assert {"timeline.html", "history-full.jsonl", "history.edn"} <= linked
    files = {name.partition("#")[0] for name in linked}
    assert {name for name in files if not (folder / name).exists()} <= {store.LOG}


def test_the_command_that_runs_it_again_is_one_that_the_command_line_takes() -> None:
    command = ("python", "-m", "a server")
    given = Options(
        workload="ack-race",
        nemesis="kill,pause",
        seed=0,
        node_timeout_ms=500,
        rate=80,
        server_command=command,
        concurrency=7,
        store=Path("elsewhere"),
        test_count=3,
    )
    test = json.loads(json.dumps({"options": given.as_json()}))
    words = shlex.split(page.repro(Run(Meta(), []), test))
    assert words[:3] == ["python", "-m", "jepsen"]
    again = cli.options_of(cli.make_parser().parse_args(words[3:]))
    assert again == attrs.evolve(given, store=Options().store, test_count=1)


def test_without_options_the_command_names_what_the_history_knows() -> None:
    run = Run(Meta(workload="ack-race", nemesis="kill", seed=5), [])
    assert (
        page.repro(run, {}) == "python -m jepsen test --workload ack-race --nemesis kill --seed 5"
    )


@pytest.mark.parametrize(
    ("valid", "word"), [(True, "VALID"), (None, "UNKNOWN"), (False, "INVALID")]
)
def test_an_empty_run_has_a_page(valid: bool | None, word: str) -> None:
    html = page.render(Run(Meta(), []), [Result("stats", valid, "x")], {}, {})
    root = ET.fromstring(html)
    assert [each.text for each in marked(root, "verdict")] == [word]
    assert "Pictures" not in words(root)


def test_findings_and_jobs_are_capped() -> None:
    findings = tuple(Finding("loss", "lost", "gone", job_id(v), v, v) for v in range(50))
    run = attrs.evolve(make_run(jobs=60))
    root = ET.fromstring(page.render(run, [Result("loss", False, "x", findings)], {}, {}))
    assert len(marked(root, "biography")) == page.JOBS_MAX
    assert "… and 30 more, in results.json" in words(root)


def test_html_has_no_element_that_closes_itself_but_void_ones(folder: Path) -> None:
    for name in ("report.html", "timeline.html"):
        text = re.sub(r"<svg.*?</svg>", "", (folder / name).read_text(), flags=re.S)
        assert set(re.findall(r"<(\w+)[^<>]*/>", text)) <= {"meta", "input"}
