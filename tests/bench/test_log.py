"""The arithmetic of the log's benchmarks; nothing here measures anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.churn import SEGMENT_BYTES, Churn, Sample, tail
from tests.bench.log import compared, replayed
from tests.bench.memory import LARGE_BYTES, SMALL_BYTES, large_body, small_body
from tests.bench.provenance import binary_of

MB = 1 << 20


def test_ratio_is_the_median_of_ratios_within_a_turn() -> None:
    # The machine was twice as slow in the second turn: no ratio changes.
    turns = [[100.0, 200.0], [50.0, 100.0], [120.0, 160.0]]
    assert compared(turns) == "100 jobs/s; C Disque 160; ratio 0.50"


def test_one_server_alone_has_no_ratio() -> None:
    assert compared([[1000.0], [3000.0], [2000.0]]) == "2,000 jobs/s"


def test_replay_is_read_from_the_newest_event() -> None:
    older = "notice log-loaded jobs=5 records=6 bytes=700 seconds=1.00 lost_bytes=0\n"
    newer = "notice log-loaded jobs=1000 records=1200 bytes=2097152 seconds=0.50 lost_bytes=0\n"
    assert replayed(older + newer) == "2,000 jobs/s (1,000 jobs, 2 MB, 0.5 s)"


def test_a_log_without_the_event_is_refused_and_shown() -> None:
    with pytest.raises(ValueError, match="no log-loaded event in 'ready'"):
        replayed("ready")


def test_binary_is_named_with_or_without_the_word(tmp_path: Path) -> None:
    path = tmp_path / "disque-server"
    path.touch(0o755)
    assert binary_of(f"C_DISQUE={path}") == binary_of(str(path)) == str(path)
    assert not binary_of("")
    path.chmod(0o644)
    with pytest.raises(ValueError, match="can't be executed"):
        binary_of(str(path))


def test_log_is_compared_with_what_really_lives_at_the_worst_moment() -> None:
    # An estimate of 10 MB that takes 20 when it is written afresh.
    samples = [Sample(30 * MB, 10 * MB), Sample(2 * SEGMENT_BYTES + 10 * MB, 10 * MB)]
    seen = Churn([1.0], samples, scale=2.0, deleted=0)
    assert seen.worst_ratio() == pytest.approx(74 / 20)
    assert seen.worst_ratio_but_two_segments() == pytest.approx(10 / 20)


def test_a_log_smaller_than_two_segments_is_within_any_bound() -> None:
    seen = Churn([1.0], [Sample(MB, 1)], scale=1.0, deleted=0)
    assert seen.worst_ratio_but_two_segments() == 0


def test_tail_shows_the_worst() -> None:
    assert tail([1.0] * 99 + [200.0]) == "p50 1.0 ms, p99 1.0, worst 200.0"


def test_bodies_have_their_size_and_begin_with_their_number() -> None:
    for make, size in ((large_body, LARGE_BYTES), (small_body, SMALL_BYTES)):
        assert len(make(7)) == size
        assert int(make(7)[:8]) == 7
        assert make(7) == make(7) != make(8)
