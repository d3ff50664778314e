"""The collector of garbage looks at few objects in a row, however many there are and stay."""

from __future__ import annotations

import gc

from disque.server.app import GC_THRESHOLDS

SLACK = 500  # what the test makes itself


def test_of_new_objects_that_all_stay_ten_thousand_are_looked_at_in_a_row() -> None:
    looked_at: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            young = range(info["generation"] + 1)
            looked_at.append(sum([len(gc.get_objects(generation=each)) for each in young]))

    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.callbacks.append(note)
    try:
        gc.set_threshold(*GC_THRESHOLDS)
        kept: list[list[int]] = [[] for _ in range(100_000)]
    finally:
        gc.callbacks.remove(note)
        gc.set_threshold(*before)
        gc.unfreeze()
    assert len(kept) == 100_000
    assert 5_000 < max(looked_at) <= 10_000 + SLACK
    assert sum(looked_at) <= 1.6 * len(kept)
