"""Every scenario of tests/scenarios plays as it is written; and the player itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.story import Block, ScriptError, parse, play, render

FILES = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_scenario_plays_as_written(path: Path) -> None:
    blocks = parse(path.read_text())
    assert render(play(blocks)).splitlines() == render(blocks).splitlines()


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_scenario_begins_with_what_it_shows(path: Path) -> None:
    first = path.read_text().splitlines()[0]
    assert first.startswith(f"# tests/scenarios/{path.name}: "), first
    assert len(first) <= 120, f"{len(first)} characters, at most 120"


def test_a_file_without_a_rule_line_expects_silence() -> None:
    assert parse("nodes a\n\na> QLEN q\n----\na: 0\n") == [
        Block(("nodes a",), ()),
        Block(("a> QLEN q",), ("a: 0",)),
    ]


def test_rendering_gives_the_text_that_was_parsed() -> None:
    for path in FILES:
        text = path.read_text()
        assert render(parse(text)) == text, f"{path.name}: blocks have one empty line between them"


@pytest.mark.parametrize("line", ["jump a", "cut a b", "run 3", "a> NOSUCH q", "a> ADDJOB q x y"])
def test_a_line_that_means_nothing_is_refused(line: str) -> None:
    with pytest.raises(ScriptError):
        play(parse(f"nodes a b\n{line}\n"))


def test_a_wrong_line_is_seen() -> None:
    blocks = parse("nodes a\n\na> ADDJOB q x 0\n----\na: j2\n")
    assert play(blocks) != blocks
