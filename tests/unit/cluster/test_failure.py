"""The arithmetic of failure, as tables."""

from __future__ import annotations

import pytest

from cluster import failure
from cluster.nodeid import NodeId

A, B, C = (NodeId(char * 40) for char in "abc")


@pytest.mark.parametrize(("size", "needed"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (7, 4)])
def test_majority_is_more_than_half(size, needed):
    assert failure.majority(size) == needed


@pytest.mark.parametrize(
    ("node_timeout_ms", "interval_ms"), [(15_000, 1_000), (3_000, 750), (500, 125), (1, 10)]
)
def test_ping_interval_is_a_quarter_of_the_timeout_at_most_a_second(node_timeout_ms, interval_ms):
    assert failure.ping_interval_ms(node_timeout_ms) == interval_ms


def test_silence_begins_after_the_node_timeout():
    assert not failure.is_silent(4_000, 1_000, 3_000)
    assert failure.is_silent(4_001, 1_000, 3_000)


def test_a_node_heard_within_half_a_timeout_is_heard():
    assert failure.is_hearing(2_500, 1_000, 3_000)
    assert not failure.is_hearing(2_501, 1_000, 3_000)


@pytest.mark.parametrize(
    ("reports", "size", "is_failed"),
    [
        ({}, 2, False),
        ({}, 1, True),
        ({B: 10_000}, 3, True),
        ({B: 10_000}, 4, False),
        ({B: 10_000, C: 10_000}, 4, True),
        ({B: 3_999}, 3, False),
        ({B: 4_000}, 3, True),
    ],
)
def test_fail_needs_valid_reports_and_self_to_be_a_majority(reports, size, is_failed):
    assert failure.is_failed(reports, 10_000, 3_000, size) is is_failed
