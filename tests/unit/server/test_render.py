"""Replies of the core as bytes, in both versions of the protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from disque.core.ready import Delivery, Failure, NilArray, Status
from disque.server.render import Pairs, Verbatim, render

if TYPE_CHECKING:
    from disque.server.render import Answer


@pytest.mark.parametrize(
    ("reply", "two", "three"),
    [
        (7, b":7\r\n", b":7\r\n"),
        (-1, b":-1\r\n", b":-1\r\n"),
        (b"", b"$0\r\n\r\n", b"$0\r\n\r\n"),
        (b"a\r\nb", b"$4\r\na\r\nb\r\n", b"$4\r\na\r\nb\r\n"),
        (None, b"$-1\r\n", b"_\r\n"),
        (NilArray(), b"*-1\r\n", b"_\r\n"),
        (Status(b"OK"), b"+OK\r\n", b"+OK\r\n"),
        (Failure("NOJOB", "not here"), b"-NOJOB not here\r\n", b"-NOJOB not here\r\n"),
        ([], b"*0\r\n", b"*0\r\n"),
        ([1, [None, b"x"]], b"*2\r\n:1\r\n*2\r\n$-1\r\n$1\r\nx\r\n", None),
        (Pairs({b"a": 1}), b"*2\r\n$1\r\na\r\n:1\r\n", b"%1\r\n$1\r\na\r\n:1\r\n"),
        (Pairs({}), b"*0\r\n", b"%0\r\n"),
        (Verbatim(b"+x\r\n"), b"+x\r\n", b"+x\r\n"),
    ],
)
def test_reply_in_both_versions(reply: Answer, two: bytes, three: bytes | None) -> None:
    assert render(reply, 2) == two
    if three is not None:
        assert render(reply, 3) == three


def test_nil_inside_follows_the_version() -> None:
    assert render([None], 3) == b"*1\r\n_\r\n"


def test_job_is_queue_id_and_body() -> None:
    job = Delivery(b"D-x", b"q", b"body", {})
    assert render([job], 2) == b"*1\r\n*3\r\n$1\r\nq\r\n$3\r\nD-x\r\n$4\r\nbody\r\n"


def test_job_with_counters_has_seven_elements() -> None:
    job = Delivery(b"D-x", b"q", b"", {}, nacks=0, additional=300)
    assert render(job, 3) == (
        b"*7\r\n$1\r\nq\r\n$3\r\nD-x\r\n$0\r\n\r\n"
        b"$5\r\nnacks\r\n:0\r\n$21\r\nadditional-deliveries\r\n:300\r\n"
    )


def test_error_text_stays_one_line() -> None:
    assert render(Failure("ERR", "a\r\nb"), 2).count(b"\r\n") == 1
