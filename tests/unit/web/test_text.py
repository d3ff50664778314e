"""Text: any bytes can be shown, and nothing that could mislead is shown as it is."""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disque.web import text


@pytest.mark.parametrize(
    ("data", "spelled"),
    [
        (b"mail", "mail"),
        (b"a b", "a b"),
        ("ä €".encode(), "ä €"),
        (b"\xff\x00", "\\xff\\x00"),
        (b"a\nb\t", "a\\nb\\t"),
        ("x\u202ey".encode(), "x\\u202ey"),
        ("x\u200by".encode(), "x\\u200by"),
        (b"<b>&\"'", "<b>&\"'"),
    ],
)
def test_names_are_shown_without_what_misleads(data: bytes, spelled: str) -> None:
    assert text.shown(data) == spelled


@given(st.binary(max_size=200))
def test_any_bytes_can_be_shown_quoted_and_previewed(data: bytes) -> None:
    assert text.shown(data).isprintable()
    assert len(text.short(data, 10)) <= 11
    assert unquote_to_bytes(text.quoted(data)) == data
    for form in ("text", "json", "hex", "", "else"):
        preview = text.preview(data, len(data), form)
        assert preview.form in preview.forms
        assert "hex" in preview.forms


@pytest.mark.parametrize(
    ("body", "form", "shown"),
    [
        (b"hello\nworld", "text", "hello\nworld"),
        (b'{"b": [1, 2]}', "json", '{\n  "b": [\n    1,\n    2\n  ]\n}'),
        (b"[NaN", "text", "[NaN"),
        (b'"only a string"', "text", '"only a string"'),
        (b"\x00\x01", "hex", "00000000  00 01                                              .."),
        (b"\xff", "hex", "00000000  ff                                                 ."),
        (b"", "text", ""),
    ],
)
def test_a_body_takes_the_form_that_suits_it(body: bytes, form: str, shown: str) -> None:
    preview = text.preview(body, len(body))
    assert (preview.form, preview.text, preview.is_whole) == (form, shown, True)


def test_a_form_that_is_asked_for_is_taken_if_the_body_has_it() -> None:
    assert text.preview(b"[1]", 3, "hex").form == "hex"
    assert text.preview(b"[1]", 3, "text").text == "[1]"
    assert text.preview(b"\xff", 1, "json").form == "hex"


def test_deeply_nested_json_is_text() -> None:
    body = b"[" * 50_000
    assert text.preview(body, len(body)).form == "text"


def test_a_body_that_is_cut_within_a_character_is_still_text() -> None:
    whole = "€uro".encode()
    preview = text.preview(whole[:2], 100)
    assert (preview.form, preview.is_whole) == ("text", False)
    assert text.preview(b"[1, 2]", 100).forms == ("text", "hex")


@pytest.mark.parametrize(
    ("seconds", "spelled"),
    [
        (None, "\N{EN DASH}"),
        (-1, "0 s"),
        (0.9, "0 s"),
        (59, "59 s"),
        (60, "1 min"),
        (125, "2 min 5 s"),
        (3_599, "59 min 59 s"),
        (3_600, "1 h"),
        (15_000, "4 h 10 min"),
        (86_400 + 60, "1 d"),
        (93_600, "1 d 2 h"),
    ],
)
def test_durations_take_two_units(seconds: float | None, spelled: str) -> None:
    assert text.duration(seconds) == spelled


def test_numbers_sizes_speeds_and_moments() -> None:
    assert text.number(1_234_567) == "1\u202f234\u202f567"
    assert [text.size(each) for each in (0, 1_023, 1_024, 5 << 30, 1 << 60)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "5.0 GiB",
        "1048576.0 TiB",
    ]
    assert [text.speed(each) for each in (0, 0.25, 12.6)] == ["0", "0.2", "13"]
    assert text.moment(0) == "1970-01-01 00:00:00 UTC"
    assert text.moment(1e20) == ""
