"""ADDJOB's HEADER: what STOMP producers can give a job, others can, too."""

from __future__ import annotations

import pytest

from disque.core import parsing
from disque.core.commands import AddJob
from disque.core.parsing import HEADERS_BYTES_MAX, HEADERS_MAX, parse
from disque.errors import CommandError


def headers_of(*words: bytes) -> dict[bytes, bytes]:
    """What ADDJOB with these options makes of them."""
    command = parse(b"addjob", [b"q", b"body", b"0", *words])
    assert isinstance(command, AddJob)
    return dict(command.headers)


def test_headers_are_kept_in_order_and_the_first_of_a_name_counts() -> None:
    words = [b"HEADER", b"b", b"1", b"TTL", b"60", b"header", b"a", b"\0\n", b"HEADER", b"b", b"2"]
    assert list(headers_of(*words).items()) == [(b"b", b"1"), (b"a", b"\0\n")]
    assert headers_of() == {}


@pytest.mark.parametrize("words", [[b"HEADER"], [b"HEADER", b"name"]])
def test_header_without_its_value_is_a_syntax_error(words: list[bytes]) -> None:
    with pytest.raises(CommandError, match=r"^syntax error$"):
        headers_of(*words)


def test_headers_are_bounded_in_number_and_bytes() -> None:
    many = [each for at in range(HEADERS_MAX + 1) for each in (b"HEADER", b"%d" % at, b"")]
    assert len(headers_of(*many[:-3])) == HEADERS_MAX
    with pytest.raises(CommandError, match=f"at most {HEADERS_MAX} of them"):
        headers_of(*many)
    assert headers_of(b"HEADER", b"a", b"x" * (HEADERS_BYTES_MAX - 1))
    with pytest.raises(CommandError, match=f"{HEADERS_BYTES_MAX} bytes together"):
        headers_of(b"HEADER", b"a", b"x" * HEADERS_BYTES_MAX)


@pytest.mark.parametrize(
    "words", [[b"HEADER", b"name", b"value"] * 20, [b"HEADER", b"name", b"v" * 1_000]]
)
def test_what_is_remembered_of_options_is_small(words: list[bytes]) -> None:
    before = len(parsing._READ_OPTIONS)
    command = parsing.parse(b"addjob", [b"q", b"body", b"0", *words])
    assert isinstance(command, AddJob)
    assert command.headers == {b"name": words[2]}
    assert len(parsing._READ_OPTIONS) == before


def test_what_is_remembered_of_options_is_bounded() -> None:
    for retry in range(3_000):
        command = parsing.parse(b"addjob", [b"q", b"body", b"0", b"RETRY", b"%d" % retry])
        assert isinstance(command, AddJob)
        assert command.retry_ms == 1_000 * retry
        parsing.parse(b"getjob", [b"COUNT", b"%d" % (retry + 1), b"FROM", b"q"])
    assert len(parsing._READ_OPTIONS) <= 1_000
    assert len(parsing._READ_GETS) <= 1_000
