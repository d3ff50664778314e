"""The audit: a found vulnerability counts, and what couldn't be looked up isn't taken for sound."""

from __future__ import annotations

import json

import pytest

from tests.by_hand.audit import judge

SOUND = {"name": "attrs", "version": "1.0", "vulns": []}
UNKNOWN = {"name": "trio", "skip_reason": "Dependency not found on PyPI"}
BAD = {
    "name": "jinja2",
    "version": "2.0",
    "vulns": [
        {"id": "PYSEC-2021-66", "fix_versions": ["2.11.3"], "aliases": [], "description": ""}
    ],
}


@pytest.mark.parametrize(
    ("rows", "judged"),
    [
        ([], (0, [])),
        ([UNKNOWN], (0, [])),
        ([SOUND, UNKNOWN], (1, [])),
        ([SOUND, BAD], (2, ["jinja2 2.0: PYSEC-2021-66, mended in 2.11.3"])),
    ],
)
def test_a_report_is_judged_by_what_was_looked_up(rows: list[object], judged: object) -> None:
    assert judge(json.dumps({"dependencies": rows, "fixes": []})) == judged


@pytest.mark.parametrize("report", ["", "Traceback", "[]", '{"other": 1}'])
def test_no_report_finds_nothing_out(report: str) -> None:
    assert judge(report) == (0, [])
