"""Numbers as in reference 0.2."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disque.core.integers import INT64_MAX, INT64_MIN, parse_int


@pytest.mark.parametrize(
    ("raw", "number"),
    [
        (b"0", 0),
        (b"-0", 0),
        (b"+7", 7),
        (b"007", 7),
        (b"-12", -12),
        (b"0" * 5000 + b"9", 9),
        (b"9223372036854775807", INT64_MAX),
        (b"-9223372036854775808", INT64_MIN),
    ],
)
def test_signed_decimals_are_numbers(raw: bytes, number: int) -> None:
    assert parse_int(raw) == number


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"-", b"+", b" 1", b"1 ", b"1_0", b"1.5", b"0x1", b"--1", b"+-1", b"1\0", b"\xb2",
        b"9223372036854775808", b"-9223372036854775809", b"9" * 5000,
    ],
)  # fmt: skip
def test_anything_else_is_none(raw: bytes) -> None:
    assert parse_int(raw) is None


@given(st.integers())
def test_every_integer_of_64_bits_and_no_other_is_read(number: int) -> None:
    fits = INT64_MIN <= number <= INT64_MAX
    assert parse_int(b"%d" % number) == (number if fits else None)


@given(st.binary())
def test_junk_never_raises(raw: bytes) -> None:
    assert parse_int(raw) is None or raw.strip(b"+-").isdigit()
