"""Replies: the same values however the bytes are cut, and no more of a body than is shown."""

from __future__ import annotations

import pytest

from disque.web.replies import Cut, Failure, Reply, ReplyFormatError, ReplyReader, size_of

STREAM = b"+OK\r\n-NOAUTH please\r\n:-7\r\n$-1\r\n$0\r\n\r\n$4\r\n\r\n\0*\r\n*-1\r\n*0\r\n*2\r\n*1\r\n:1\r\n$1\r\nx\r\n"
VALUES: list[Reply] = [
    "OK",
    Failure("NOAUTH please"),
    -7,
    None,
    b"",
    b"\r\n\0*",
    None,
    [],
    [[1], b"x"],
]


def read(data: bytes, *, step: int, bulk_bytes_max: int = 1_000) -> list[Reply]:
    """The replies in these bytes, fed `step` at a time."""
    reader = ReplyReader(bulk_bytes_max=bulk_bytes_max)
    return [
        reply for at in range(0, len(data), step) for reply in reader.feed(data[at : at + step])
    ]


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1_000])
def test_values_are_the_same_however_the_bytes_are_cut(step: int) -> None:
    assert read(STREAM, step=step) == VALUES


@pytest.mark.parametrize("step", [1, 5, 1_000])
def test_of_a_large_body_the_beginning_is_kept_and_its_size_known(step: int) -> None:
    body, small = read(b"$11\r\nhello world\r\n$2\r\nhi\r\n", step=step, bulk_bytes_max=5)
    assert body == b"hello"
    assert isinstance(body, Cut)
    assert isinstance(small, bytes)
    assert (size_of(body), size_of(small)) == (11, 2)


def test_an_array_keeps_its_order_around_a_large_body() -> None:
    assert read(b"*3\r\n:1\r\n$6\r\nabcdef\r\n:2\r\n:3\r\n", step=4, bulk_bytes_max=2) == [
        [1, b"ab", 2],
        3,
    ]


@pytest.mark.parametrize(
    "data",
    [b"hello\r\n", b"$x\r\n", b"*2000000\r\n", b"*1000000\r\n*1000000\r\n", b"+" + b"x" * 70_000],
)
def test_what_is_no_reply_or_too_much_is_refused(data: bytes) -> None:
    with pytest.raises(ReplyFormatError):
        read(data, step=100_000)
