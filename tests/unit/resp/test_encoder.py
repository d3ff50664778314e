"""Replies, read back by a decoder written here from the protocol's description."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disque.resp import encoder as enc

NIL = "nil"


class Reader:
    """A plain recursive reader of RESP2 and RESP3 replies."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def line(self) -> bytes:
        line, mark, self.data = self.data.partition(b"\r\n")
        assert mark
        assert b"\r" not in line
        assert b"\n" not in line
        return line

    def value(self) -> Any:
        line = self.line()
        kind, rest = line[:1], line[1:]
        match kind:
            case b"+":
                return ("status", rest)
            case b"-":
                return ("error", rest)
            case b":":
                return int(rest)
            case b"$" if rest == b"-1":
                return NIL
            case b"$":
                body, self.data = self.data[: int(rest)], self.data[int(rest) :]
                assert len(body) == int(rest)
                assert self.line() == b""
                return body
            case b"*" if rest == b"-1":
                return "nil array"
            case b"*":
                return [self.value() for _ in range(int(rest))]
            case b"%":
                return ("map", [(self.value(), self.value()) for _ in range(int(rest))])
            case b"_":
                assert rest == b""
                return NIL
        raise AssertionError(line)


def read(data: bytes) -> Any:
    reader = Reader(data)
    value = reader.value()
    assert reader.data == b""
    return value


def expected(value: Any, proto: int) -> Any:
    match value:
        case None:
            return NIL
        case enc.NilArray():
            return "nil array" if proto == 2 else NIL
        case enc.Status(text=text):
            return ("status", text)
        case enc.Error(code=code, text=text):
            return ("error", f"{code} {text}".encode())
        case str():
            return value.encode()
        case dict():
            pairs = [(key, expected(item, proto)) for key, item in value.items()]
            return ("map", pairs) if proto == 3 else [part for pair in pairs for part in pair]
        case list() | tuple():
            return [expected(item, proto) for item in value]
    return value


line = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]))
leaves = (
    st.none()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.integers(0, 300)
    | st.binary()
    | line
    | st.just(enc.NilArray())
    | line.map(lambda text: enc.Status(text.encode()))
    | line.map(lambda text: enc.Error("ERR", text))
)
values = st.recursive(
    leaves, lambda inner: st.lists(inner) | st.dictionaries(st.binary(), inner, max_size=4)
)


@given(values, st.sampled_from([2, 3]))
def test_another_decoder_reads_what_was_encoded(value: Any, proto: Any) -> None:
    assert read(enc.encode(value, proto)) == expected(value, proto)


@pytest.mark.parametrize(
    ("data", "spelled"),
    [
        (enc.OK, b"+OK\r\n"),
        (enc.status(b"a\r\nb"), b"+a  b\r\n"),
        (enc.error("ERR", "a\r\n+OK"), b"-ERR a  +OK\r\n"),
        (enc.error("", "BARE"), b"-BARE\r\n"),
        (enc.error("ERR", "x" * 5_000), b"-ERR " + b"x" * 4_092 + b"\r\n"),
        (
            enc.error("ERR", b"\xff\xc3\xa4".decode("utf-8", "surrogateescape")),
            b"-ERR \xff\xc3\xa4\r\n",
        ),
        (enc.integer(0), b":0\r\n"),
        (enc.integer(255), b":255\r\n"),
        (enc.integer(256), b":256\r\n"),
        (enc.integer(-1), b":-1\r\n"),
        (enc.bulk(b""), b"$0\r\n\r\n"),
        (enc.nil(2), b"$-1\r\n"),
        (enc.nil(3), b"_\r\n"),
        (enc.nil_array(2), b"*-1\r\n"),
        (enc.nil_array(3), b"_\r\n"),
        (enc.array_header(3), b"*3\r\n"),
        (enc.map_header(7, 3), b"%7\r\n"),
        (enc.map_header(7, 2), b"*14\r\n"),
        (enc.encode([]), b"*0\r\n"),
    ],
)
def test_spelling_of_each_kind(data: bytes, spelled: bytes) -> None:
    assert data == spelled


@given(st.lists(st.binary()))
def test_bulk_array_is_the_array_of_its_bulks(items: list[bytes]) -> None:
    assert enc.bulk_array(items) == enc.encode(items)
