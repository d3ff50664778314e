"""Words of one line: quoting as in reference 0.1."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disque.resp.inline import quote_word, split_words


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"", []),
        (b" \t ", []),
        (b"PING", [b"PING"]),
        (b"  a \t b  ", [b"a", b"b"]),
        (b'foo "" bar', [b"foo", b"", b"bar"]),
        (b'"a b" c', [b"a b", b"c"]),
        (rb'"\n\r\t\b\a\x41\"\\\q"', [b'\n\r\t\x08\x07A"\\q']),
        (rb'"\xZZ \x4"', [b"xZZ x4"]),
        (rb"'a\'b\n'", [rb"a'b\n"]),
        (b'pre"fix ed"', [b"prefix ed"]),
        (b"a\0b", [b"a"]),
        (b'"it\'s" \'say "x"\'', [b"it's", b'say "x"']),
    ],
)
def test_words_follow_the_shell_like_rules(line: bytes, words: list[bytes]) -> None:
    assert split_words(line) == words


@pytest.mark.parametrize(
    "line", [b'"a', b"'a", b'"a"b', b"'a'b", b'"a\\"', b'"', b'x "y\\', b"'a\0'"]
)
def test_an_open_quote_or_one_inside_a_word_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match="quote"):
        split_words(line)


@given(st.lists(st.binary()))
def test_words_written_in_hexadecimal_quotes_come_back(words: list[bytes]) -> None:
    line = b" ".join(b'"%b"' % b"".join(b"\\x%02x" % byte for byte in word) for word in words)
    assert split_words(line) == words


@given(st.binary())
def test_junk_gives_words_or_a_value_error(line: bytes) -> None:
    try:
        words = split_words(line)
    except ValueError:
        return
    assert all(isinstance(word, bytes) for word in words)


@given(word=st.binary())
def test_a_quoted_word_is_printable_and_comes_back(word: bytes) -> None:
    quoted = quote_word(word)
    assert all(32 <= byte < 127 for byte in quoted)
    assert split_words(b"x " + quoted + b" y") == [b"x", word, b"y"]


def test_quoting_is_readable() -> None:
    assert quote_word(b'say "a\\b"\r\n\x00') == rb'"say \"a\\b\"\r\n\x00"'
