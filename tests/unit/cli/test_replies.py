"""Replies: read with their types, spelt as redis-cli spells them, and kept whole in JSON."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disque.cli.replies import (
    ErrorReply,
    Pairs,
    Reply,
    Status,
    StreamError,
    from_json_text,
    json_line,
    json_text,
    plain,
    pretty,
    prose,
    raw,
    read_reply,
    to_json,
)

# Bytes, the reply, what redis-cli 7 prints with --no-raw, and with --raw.
SPELT: list[tuple[bytes, Reply, str, bytes]] = [
    (b"+OK\r\n", Status(b"OK"), "OK\n", b"OK\n"),
    (b"-ERR no\r\n", ErrorReply(b"ERR no"), "(error) ERR no\n", b"ERR no\n"),
    (b":42\r\n", 42, "(integer) 42\n", b"42\n"),
    (b"$5\r\na\r\nb\x00\r\n", b"a\r\nb\x00", '"a\\r\\nb\\x00"\n', b"a\r\nb\x00\n"),
    (b'$2\r\n"\\\r\n', b'"\\', '"\\"\\\\"\n', b'"\\\n'),
    (b"$-1\r\n", None, "(nil)\n", b"\n"),
    (b"*-1\r\n", None, "(nil)\n", b"\n"),
    (b"_\r\n", None, "(nil)\n", b"\n"),
    (b"*0\r\n", [], "(empty array)\n", b""),
    (
        b"*2\r\n*2\r\n$1\r\na\r\n:1\r\n$1\r\nb\r\n",
        [[b"a", 1], b"b"],
        '1) 1) "a"\n   2) (integer) 1\n2) "b"\n',
        b"a\n1\nb\n",
    ),
    (
        b"%1\r\n$5\r\nproto\r\n:3\r\n",
        Pairs(((b"proto", 3),)),
        '1# "proto" => (integer) 3\n',
        b"proto 3\n",
    ),
    (b"%0\r\n", Pairs(()), "(empty hash)\n", b""),
    (b">1\r\n$1\r\na\r\n", [b"a"], '1) "a"\n', b"a\n"),
    (b"#t\r\n", True, "(true)\n", b"True\n"),
    (b",1.5\r\n", 1.5, "(double) 1.5\n", b"1.5\n"),
]


@pytest.mark.parametrize(("data", "reply", "for_people", "for_programs"), SPELT)
def test_reply_is_read_and_spelt(
    data: bytes, reply: Reply, for_people: str, for_programs: bytes
) -> None:
    file = io.BytesIO(data + b"rest")
    assert read_reply(file) == reply
    assert file.read() == b"rest"
    assert pretty(reply).decode() == for_people
    assert raw(reply) == for_programs


def test_numbers_of_a_long_array_stand_in_a_column() -> None:
    lines = pretty(list(range(10))).decode().splitlines()
    assert lines[0] == " 1) (integer) 0"
    assert lines[9] == "10) (integer) 9"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"+OK",
        b"$5\r\nab",
        b"*2\r\n:1\r\n",
        b"HTTP/1.1 400\r\n",
        b":x\r\n",
        b"$x\r\n",
        b"*1\r\n" * 100_000,
        b"%1\r\n" * 100_000,
        b"$999999999999999\r\nab",
        b"*999999999999999\r\n:1\r\n",
        b"+" + b"x" * (2 << 20) + b"\r\n",
    ],
)
def test_stream_that_ends_or_is_no_resp_is_an_error(data: bytes) -> None:
    with pytest.raises(StreamError):
        read_reply(io.BytesIO(data))


def test_nothing_that_a_server_says_can_do_something_to_a_terminal() -> None:
    evil = "a\x1b[2J\x9b31m\u202e\x7f grün"
    spelt = "a\\x1b[2J\\x9b31m\\u202e\\x7f grün"
    said = evil.encode()
    assert pretty(Status(said)).decode() == f"{spelt}\n"
    assert pretty([ErrorReply(said)]).decode() == f"1) (error) {spelt}\n"
    assert prose(b"one:1\r\ntwo:" + said + b"\r\n").decode() == f"one:1\ntwo:{spelt}\n\n"
    line = json_line({"said": evil}).decode()
    assert line.removesuffix("\n").isprintable()
    assert "grün" in line
    assert json.loads(line) == {"said": evil}


def test_json_of_a_reply() -> None:
    reply: Reply = [Status(b"OK"), b"\xff", None, 1, Pairs(((b"a", [b"b"]),)), ErrorReply(b"ERR x")]
    assert to_json(reply) == ["OK", {"base64": "/w=="}, None, 1, {"a": ["b"]}, {"error": "ERR x"}]


def test_plain_reply_is_what_hiredis_gives() -> None:
    assert plain([Status(b"id"), [Status(b"x"), 1], None]) == [b"id", [b"x", 1], None]


@given(st.binary())
def test_bytes_come_through_json_unchanged(data: bytes) -> None:
    assert from_json_text(json.loads(json.dumps(json_text(data)))) == data


@pytest.mark.parametrize(
    "value", [1, None, [], {}, {"base64": 1}, {"base64": "*"}, {"base64": "YQ==", "x": 1}]
)
def test_what_is_no_text_is_refused_with_what_was_expected(value: object) -> None:
    with pytest.raises(ValueError, match=r"base64|Only|Non-base64|padding|data"):
        from_json_text(value)
