"""Jobs: how one is shown."""

from __future__ import annotations

from disque.cli.jobs import body_text


def test_a_body_is_json_or_text_or_bytes_and_never_a_complaint() -> None:
    assert body_text(b'{"a":1}') == '{\n  "a": 1\n}'
    assert body_text(b"some text") == "some text"
    assert body_text(b"[" * 100_000) == "[" * 100_000
    assert body_text(b"\x1b[2J").startswith("00000000  1b 5b 32 4a")
