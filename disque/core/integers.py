"""Integers: numbers as clients write them.

A signed 64-bit decimal: an optional sign, digits, nothing else. Disque reads the empty string as 0;
here it is no number (field report U02). Source: reference 0.2.
"""

from __future__ import annotations

INT64_MIN = -(1 << 63)
INT64_MAX = (1 << 63) - 1
_SAFE_DIGITS = 18  # so many can't overflow


def parse_int(raw: bytes) -> int | None:
    """The number, or None if it isn't one or doesn't fit into 64 bits. Never raises."""
    if raw.isdigit() and len(raw) <= _SAFE_DIGITS:
        return int(raw)
    digits = raw[1:] if raw[:1] in (b"-", b"+") else raw
    if not digits.isdigit():
        return None
    digits = digits.lstrip(b"0") or b"0"
    if len(digits) > _SAFE_DIGITS + 1:
        return None
    number = -int(digits) if raw[:1] == b"-" else int(digits)
    return number if INT64_MIN <= number <= INT64_MAX else None
