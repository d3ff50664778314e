"""The README says what is true: its table is the one measured, its links and files exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from disque.server.config import DIRECTIVES
from disque.server.table import COMMANDS
from tests.bench.report import NOTHING_YET, block, from_json, headlines, table

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PAGES = ("README.md", "tests/README.md", "CHANGELOG.md")
LINES_MAX = 350


def test_bench_table_is_what_was_measured_last() -> None:
    measured = ROOT / "bench.json"
    expected = (
        table(headlines(from_json(measured.read_text()))) if measured.exists() else NOTHING_YET
    )
    assert block(README) == expected


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    targets = re.findall(r"\]\(([^)\s]+)\)", (ROOT / page).read_text())
    for target in targets:
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        other = (ROOT / page).parent / path if path else ROOT / page
        assert other.exists(), f"{page}: {target} isn't there"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", other.read_text(), re.M)
            assert anchor in map(slug, headings), f"{page}: no heading for {target}"


def test_files_that_the_readme_names_exist() -> None:
    named = set(re.findall(r"`((?:disque|cluster|tests|\.ci)/[\w./*-]+)`", README))
    assert named
    assert [path for path in sorted(named) if not list(ROOT.glob(path.rstrip("/")))] == []


def test_status_lists_the_commands_that_are_served() -> None:
    served = [spec.name.decode().upper() for spec in COMMANDS.values()]
    (rows,) = re.findall(r"^\| about \|.*\n((?:\|.*\n)+)", README, re.M)
    told = re.findall(r"`([A-Z]+)", re.sub(r"\([^)]*\)", "", rows))
    assert sorted({*told}) == sorted([*served, "QUIT"])


def test_directives_that_the_readme_explains_exist() -> None:
    (rows,) = re.findall(r"^\| directive \|.*\n\| --- .*\n((?:\|.*\n)+)", README, re.M)
    told = [
        name for row in rows.splitlines() for name in re.findall(r"`([^`]+)`", row.split("|")[1])
    ]
    assert told
    assert [name for name in told if name not in DIRECTIVES] == []


def test_what_is_to_be_installed_is_the_checkout() -> None:
    """No registry has it: a command that asks one fails, or brings what is somebody else's."""
    deployed = [path for path in ROOT.glob("deploy/*") if path.is_file()]
    for path in (ROOT / "README.md", *ROOT.glob("docs/*.md"), *deployed):
        for asked in re.findall(r"pip install (.*)", path.read_text()):
            assert re.match(r"(-e )?('\.\[|\.( |$))", asked), f"{path.name}: pip install {asked}"


def test_readme_stays_a_front_door() -> None:
    assert len(README.splitlines()) <= LINES_MAX


def slug(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
