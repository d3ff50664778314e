"""Each target with what once broke it, and with some inputs, the same in every run; `make fuzz` goes on for hours."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from tests.fuzz.targets import TARGETS, Target

CORPUS = Path(__file__).with_name("corpus")
each_target = pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)


@each_target
def test_what_once_broke_it_breaks_it_no_more(target: Target) -> None:
    for path in sorted((CORPUS / target.name).glob("*.hex")):
        target.run(bytes.fromhex(path.read_text()))


@each_target
def test_no_input_breaks_it(target: Target) -> None:
    @settings(
        max_examples=target.examples,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(target.inputs)
    def holds(data: bytes) -> None:
        target.run(data)

    holds()


def test_every_folder_of_the_corpus_belongs_to_a_target() -> None:
    names = {target.name for target in TARGETS}
    assert {path.name for path in CORPUS.iterdir()} <= names
