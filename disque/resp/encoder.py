"""Encoder: values in, reply bytes out, in version 2 or 3 of the protocol.

Small functions for each kind of reply, and `encode` for nested plain values. It knows nothing of
jobs or commands. The versions differ in nil and in maps alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, TypeAlias

import attrs

Protocol: TypeAlias = Literal[2, 3]

OK: Final = b"+OK\r\n"
_NIL: Final = b"$-1\r\n"
_NIL_ARRAY: Final = b"*-1\r\n"
_NIL_3: Final = b"_\r\n"
ERROR_CHARS_MAX: Final = 4_096  # many errors show what a client said, which may have half a GiB
_SMALL = tuple(b":%d\r\n" % number for number in range(256))
_CR = ord("\r")
_LF = ord("\n")
_LINE_ENDS = bytes.maketrans(b"\r\n", b"  ")


@attrs.frozen
class Status:
    """A short word of success: RESP's `+`."""

    text: bytes


@attrs.frozen
class Error:
    """An error; `code` is the first word of the line, "" leaves it out (DEBUG ERROR)."""

    code: str
    text: str


@attrs.frozen
class NilArray:
    """No array, as opposed to an empty one."""


Value: TypeAlias = (
    "int | bytes | str | Status | Error | NilArray | Sequence[Value] | Mapping[bytes, Value] | None"
)


def status(text: bytes) -> bytes:
    """A status line; line ends inside become spaces."""
    if _LF in text or _CR in text:  # numbers: for bytes, CPython raises and forgets an error first
        text = text.translate(_LINE_ENDS)
    return b"+" + text + b"\r\n"


def error(code: str, text: str) -> bytes:
    """An error line of at most ERROR_CHARS_MAX; line ends inside become spaces.

    Bytes that were no UTF-8 when `text` was made (surrogateescape) come out as they were.
    """
    line = f"{code} {text}" if code else text
    return b"-%b\r\n" % line[:ERROR_CHARS_MAX].encode("utf-8", "surrogateescape").translate(
        _LINE_ENDS
    )


def integer(number: int) -> bytes:
    """An integer."""
    if 0 <= number < 256:
        return _SMALL[number]
    return b":%d\r\n" % number


def bulk(data: bytes) -> bytes:
    """A string of any bytes."""
    return b"$%d\r\n%b\r\n" % (len(data), data)


def nil(proto: Protocol) -> bytes:
    """No string."""
    return _NIL if proto == 2 else _NIL_3


def nil_array(proto: Protocol) -> bytes:
    """No array."""
    return _NIL_ARRAY if proto == 2 else _NIL_3


def array_header(count: int) -> bytes:
    """What precedes the `count` elements of an array."""
    return b"*%d\r\n" % count


def map_header(count: int, proto: Protocol) -> bytes:
    """What precedes `count` pairs: a map, or under 2 a flat array."""
    return b"%%%d\r\n" % count if proto == 3 else b"*%d\r\n" % (2 * count)


def bulk_array(items: Sequence[bytes]) -> bytes:
    """An array of strings, such as one job of GETJOB: the quickest way to spell it."""
    parts: list[bytes] = [b"*%d\r\n" % len(items)]
    for item in items:
        parts += (b"$%d\r\n" % len(item), item, b"\r\n")
    return b"".join(parts)


def encode(value: Value, proto: Protocol = 2) -> bytes:
    """Spell any value: str as UTF-8 bulk, sequences as arrays, mappings as maps, None as nil.

    Under version 2 a map is a flat array.
    """
    if type(value) is bytes:
        return bulk(value)
    parts: list[bytes] = []
    _write(value, proto, parts)
    return b"".join(parts)


def _write(value: Value, proto: Protocol, parts: list[bytes]) -> None:
    match value:
        case bytes():
            parts.append(bulk(value))
        case int():
            parts.append(integer(value))
        case None:
            parts.append(nil(proto))
        case str():
            parts.append(bulk(value.encode("utf-8", "surrogateescape")))
        case Status(text=text):
            parts.append(status(text))
        case Error(code=code, text=text):
            parts.append(error(code, text))
        case NilArray():
            parts.append(nil_array(proto))
        case Mapping():
            parts.append(map_header(len(value), proto))
            for key, item in value.items():
                parts.append(bulk(key))
                _write(item, proto, parts)
        case _:
            parts.append(array_header(len(value)))
            for item in value:
                _write(item, proto, parts)
