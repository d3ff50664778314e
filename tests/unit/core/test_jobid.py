"""Job ids: Disque's form, and what the TTL field tells."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.nodeid import NodeId
from disque.core.jobid import (
    JOB_ID_BYTES,
    JobId,
    is_job_id,
    is_retried,
    make_job_id,
    parse_job_ids,
    ttl_minutes,
)
from disque.errors import CommandError
from tests.unit.core.builders import job_id

NODE = NodeId("0123456789abcdef0123456789abcdef01234567")
GOOD = b"D-01234567-AAAAAAAAAAAAAAAAAAAAAAAA-05a1"


@given(st.binary(min_size=18, max_size=18), st.integers(1, 1 << 62), st.booleans())
def test_a_made_id_has_disques_form_and_tells_ttl_and_retry(
    entropy: bytes, ttl_ms: int, retried: bool
) -> None:
    job = make_job_id(NODE, entropy, ttl_ms=ttl_ms, is_retried=retried)
    assert re.fullmatch(rb"D-01234567-[A-Za-z0-9+/]{24}-[0-9a-f]{4}", job)
    assert is_job_id(job)
    assert is_retried(job) == retried
    assert abs(ttl_minutes(job) - min(ttl_ms // 60_000, 0xFFFF)) <= 1


@pytest.mark.parametrize(
    ("ttl_ms", "retried", "field"),
    [
        (86_400_000, True, b"05a1"),
        (86_400_000, False, b"05a0"),
        (59_999, True, b"0001"),
        (59_999, False, b"0000"),
        (10**15, True, b"ffff"),
        (10**15, False, b"fffe"),
    ],
)
def test_the_last_field_is_minutes_of_ttl_odd_if_retried(
    ttl_ms: int, retried: bool, field: bytes
) -> None:
    assert make_job_id(NODE, bytes(18), ttl_ms=ttl_ms, is_retried=retried)[-4:] == field


def test_another_amount_of_entropy_is_our_bug() -> None:
    with pytest.raises(ValueError, match="18 random bytes, got 17"):
        make_job_id(NODE, bytes(17), ttl_ms=1, is_retried=True)


def test_only_length_and_marks_are_checked() -> None:
    assert is_job_id(
        b"D-zzzzzzzz-\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff" + b" " * 12 + b"-zzzz"
    )


@pytest.mark.parametrize(
    "raw",
    [b"", GOOD[:-1], GOOD + b"0", b"d" + GOOD[1:], b"D_" + GOOD[2:], b"x" * 40]
    + [GOOD[:at] + b"_" + GOOD[at + 1 :] for at in (0, 1, 10, 35)],
)
def test_one_bad_id_refuses_all(raw: bytes) -> None:
    with pytest.raises(CommandError, match=r"^Invalid Job ID format\.$") as refused:
        parse_job_ids([GOOD, raw])
    assert refused.value.code == "BADID"


def test_no_ids_are_no_ids() -> None:
    assert parse_job_ids([]) == ()


def test_digits_that_are_no_hexadecimal_count_as_zero() -> None:
    assert ttl_minutes(JobId(GOOD[:36] + b"0G1z")) == 0x10
    assert ttl_minutes(JobId(GOOD[:36] + b"FFFF")) == 0xFFFF


@given(
    st.lists(st.integers(0, 99).map(job_id), min_size=10, max_size=40),
    st.integers(0, 39),
    st.integers(0, JOB_ID_BYTES - 1),
    st.binary(max_size=2),
)
def test_many_ids_are_judged_as_each_of_them(
    ids: list[JobId], at: int, place: int, piece: bytes
) -> None:
    raw: list[bytes] = list(ids)
    changed = raw[at % len(raw)]
    raw[at % len(raw)] = changed[:place] + piece + changed[place + 1 :]
    if all(map(is_job_id, raw)):
        assert parse_job_ids(raw) == tuple(raw)
    else:
        with pytest.raises(CommandError, match="Invalid Job ID format"):
            parse_job_ids(raw)
