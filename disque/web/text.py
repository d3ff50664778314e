"""Text: bytes, numbers and times as people read them.

Pure, and knows nothing of HTML: escaping is the templates' business. Names and bodies are any bytes, so what could
not be seen, or could mislead (controls, marks that turn the direction of writing), is spelled as an escape.
"""

from __future__ import annotations

import json
import unicodedata
from datetime import UTC, datetime
from typing import Literal, TypeAlias
from urllib.parse import quote_from_bytes

import attrs

PREVIEW_BYTES_MAX = 64 << 10  # of a body
HEX_BYTES_MAX = 4 << 10
NOTHING = "\N{EN DASH}"  # where there is no figure
NAME_CHARS_MAX = 120  # of a name where there is little room

Form: TypeAlias = Literal["text", "json", "hex"]
_TIMES = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB")


@attrs.frozen
class Preview:
    """A body to be shown. `forms` are those that it can take, the one shown among them."""

    text: str
    form: Form
    forms: tuple[Form, ...]
    is_whole: bool


def shown(data: bytes, *, keep: str = "") -> str:
    """Any bytes as one text: UTF-8 as it is, all else escaped, but for the control characters in `keep`."""
    text = data.decode("utf-8", "backslashreplace")
    return "".join([each if each in keep or _is_visible(each) else _escape(each) for each in text])


def short(data: bytes, chars_max: int = NAME_CHARS_MAX) -> str:
    """The same, and an ellipsis where there is more."""
    text = shown(data[: 4 * chars_max])
    return text if len(text) <= chars_max and len(data) <= 4 * chars_max else text[:chars_max] + "…"


def quoted(data: bytes) -> str:
    """Any bytes as a word of a URL's query."""
    return quote_from_bytes(data, safe="")


def _is_visible(char: str) -> bool:
    return char == " " or unicodedata.category(char)[0] not in "CZ"


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode()


def preview(body: bytes, size: int, form: str = "") -> Preview:
    """A body, or its beginning if it has `size` bytes, in the form that is asked for, or that suits it."""
    data = body[:PREVIEW_BYTES_MAX]
    is_whole = len(data) == size
    forms: list[Form] = ["hex"]
    text = _as_text(data, is_whole=is_whole)
    if text is not None:
        forms.insert(0, "text")
    pretty = _as_json(data) if is_whole else None
    if pretty is not None:
        forms.insert(0, "json")
    chosen = next((each for each in forms if each == form), forms[0])
    if chosen == "json":
        assert pretty is not None
        return Preview(pretty, "json", tuple(forms), is_whole)
    if chosen == "text":
        assert text is not None
        return Preview(text, "text", tuple(forms), is_whole)
    return Preview(hex_dump(data[:HEX_BYTES_MAX]), "hex", tuple(forms), size <= HEX_BYTES_MAX)


def _as_text(data: bytes, *, is_whole: bool) -> str | None:
    """UTF-8 without NUL, whose last character may be cut if the body is; None for anything else."""
    for cut in (0,) if is_whole else (0, 1, 2, 3):
        end = len(data) - cut
        try:
            data[:end].decode()
        except UnicodeDecodeError:
            continue
        return None if b"\0" in data else shown(data[:end], keep="\n\t")
    return None


def _as_json(data: bytes) -> str | None:
    """Indented, if it is an object or an array; keys in their order."""
    if data.lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        value = json.loads(data)
        pretty = json.dumps(value, indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None
    return shown(pretty.encode("utf-8", "surrogatepass"), keep="\n")


def hex_dump(data: bytes) -> str:
    """Sixteen bytes a line: offset, hexadecimal, ASCII."""
    lines = []
    for at in range(0, len(data), 16):
        row = data[at : at + 16]
        digits = f"{row[:8].hex(' ')}  {row[8:].hex(' ')}"
        plain = "".join([chr(byte) if 32 <= byte < 127 else "." for byte in row])
        lines.append(f"{at:08x}  {digits:<49}  {plain}")
    return "\n".join(lines)


def number(count: float) -> str:
    """Digits in groups."""
    return f"{count:,.0f}".replace(",", "\u202f")


def speed(per_second: float) -> str:
    """A rate, with a decimal while it is small."""
    return number(per_second) if per_second >= 10 or not per_second else f"{per_second:.1f}"


def size(count: float) -> str:
    """Bytes in the unit that suits them."""
    for unit in _SIZES:
        if count < 1024 or unit == _SIZES[-1]:
            break
        count /= 1024
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"


def duration(seconds: float | None) -> str:
    """Two units at most: 3 s, 2 min 5 s, 4 h 10 min, 3 d 2 h."""
    if seconds is None:
        return NOTHING
    left = max(0, int(seconds))
    units = [(name, each) for name, each in _TIMES if each <= left] or [("s", 1)]
    parts: list[str] = []
    for name, each in units[:2]:
        count, left = divmod(left, each)
        if count or not parts:
            parts.append(f"{count} {name}")
    return " ".join(parts)


def moment(unix_s: float) -> str:
    """A point in time, in UTC; "" for one that no calendar has."""
    try:
        return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return ""
