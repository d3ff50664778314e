"""Replies: what a server says, with the types of the protocol, and how redis-cli spells them.

Unlike hiredis this keeps apart a status and a bulk, nil and nil array: people see the difference. It knows bytes,
nothing of sockets beyond a file to read from, nothing of commands. Sources: RESP2 and RESP3; the formats are those
that redis-cli's users have scripts for.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import attrs

from disque.resp.inline import quote_word

if TYPE_CHECKING:
    from collections.abc import Callable

LINE_BYTES_MAX = 1 << 20
DEPTH_MAX = 32  # replies in replies
PART_BYTES = 1 << 20


class Readable(Protocol):
    """What a reply is read from: a buffered binary file."""

    def readline(self, size: int, /) -> bytes:
        """One line with its end, so many bytes of it at most; shorter at the end of the stream."""
        ...

    def read(self, size: int, /) -> bytes:
        """So many bytes; fewer at the end of the stream."""
        ...


@attrs.frozen
class Status:
    """A simple string, such as OK."""

    text: bytes


@attrs.frozen
class ErrorReply:
    """An error: the whole line without the minus, its code first."""

    text: bytes


@attrs.frozen
class Pairs:
    """A map of RESP3."""

    items: tuple[tuple[Reply, Reply], ...]


Reply: TypeAlias = "int | float | bool | bytes | Status | ErrorReply | Pairs | list[Reply] | None"


class StreamError(Exception):
    """The stream ended inside a reply, or isn't RESP; the connection is of no more use."""


def read_reply(file: Readable, depth: int = 0) -> Reply:
    """Read one reply, inside so many others. Raises StreamError; OSError and TimeoutError come from the file."""
    line = file.readline(LINE_BYTES_MAX)
    if not line.endswith(b"\r\n"):
        is_long = len(line) == LINE_BYTES_MAX
        what = "sent an endless line" if is_long else "was cut" if line else "was closed"
        raise StreamError(f"the connection {what}")
    read = _READERS.get(line[:1])
    if read is None or depth > DEPTH_MAX:
        raise _no_reply(line)
    try:
        return read(file, line[1:-2], depth + 1)
    except ValueError:
        raise _no_reply(line) from None


def _no_reply(line: bytes) -> StreamError:
    return StreamError(f"no reply of a Redis or Disque server: {line[:60]!r}")


def _bulk(file: Readable, head: bytes, _: int) -> bytes | None:
    left = int(head) + 2
    if left < 2:
        return None
    # A piece at a time: what is announced may never come
    parts: list[bytes] = []
    while left:
        part = file.read(min(left, PART_BYTES))
        if not part:
            raise StreamError("the connection was cut")
        parts.append(part)
        left -= len(part)
    return b"".join(parts)[:-2]


def _array(file: Readable, head: bytes, depth: int) -> list[Reply] | None:
    count = int(head)
    return None if count < 0 else [read_reply(file, depth) for _ in range(count)]


def _map(file: Readable, head: bytes, depth: int) -> Pairs:
    count = int(head)
    return Pairs(tuple((read_reply(file, depth), read_reply(file, depth)) for _ in range(count)))


_READERS: dict[bytes, Callable[[Readable, bytes, int], Reply]] = {
    b"+": lambda _, head, __: Status(head),
    b"-": lambda _, head, __: ErrorReply(head),
    b":": lambda _, head, __: int(head),
    b"$": _bulk,
    b"*": _array,
    b"_": lambda *_: None,
    b"%": _map,
    b">": _array,
    b"~": _array,
    b"#": lambda _, head, __: head == b"t",
    b",": lambda _, head, __: float(head),
}


def plain(reply: Reply) -> Any:
    """A reply without types of its own, as hiredis gives it: a status as bytes. Errors stay ErrorReply."""
    if isinstance(reply, Status):
        return reply.text
    return [plain(item) for item in reply] if isinstance(reply, list) else reply


def raw(reply: Reply) -> bytes:
    """For programs: the bytes as they are, a line each, nil as an empty line."""
    match reply:
        case bytes():
            return reply + b"\n"
        case Status(text=text) | ErrorReply(text=text):
            return text + b"\n"
        case list():
            return b"".join([raw(item) for item in reply])
        case Pairs(items=items):
            return b"".join([raw(key)[:-1] + b" " + raw(item) for key, item in items])
        case None:
            return b"\n"
    return f"{reply}\n".encode()


def pretty(reply: Reply, indent: str = "") -> bytes:
    """For people: types shown, bulks quoted, arrays numbered; ends with a newline."""
    match reply:
        case bytes():
            return quote_word(reply) + b"\n"
        case Status(text=text):
            return _line(text)
        case ErrorReply(text=text):
            return b"(error) " + _line(text)
        case list():
            return _numbered([(b"", item) for item in reply], ")", indent) or b"(empty array)\n"
        case Pairs(items=items):
            named = [(pretty(key)[:-1] + b" => ", item) for key, item in items]
            return _numbered(named, "#", indent) or b"(empty hash)\n"
        case None:
            return b"(nil)\n"
        case bool():
            return b"(true)\n" if reply else b"(false)\n"
        case int():
            return b"(integer) %d\n" % reply
    return f"(double) {reply}\n".encode()


def _line(text: bytes) -> bytes:
    return harmless(text.decode("utf-8", "backslashreplace")).encode() + b"\n"


def prose(reply: Reply) -> bytes:
    """A text of many lines, for people."""
    text = raw(reply).decode("utf-8", "backslashreplace").replace("\r\n", "\n")
    return harmless(text).encode()


def harmless(text: str) -> str:
    """The same with all escaped that might do something to a terminal, or hide something; line ends and tabs stay."""
    if text.isprintable():
        return text
    return "".join(
        [char if char.isprintable() or char in "\n\t" else _escape(char) for char in text]
    )


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode()


def json_line(value: Any) -> bytes:
    """A line of JSON in UTF-8; bytes as `json_text` says, and what is not printable is escaped."""
    line = json.dumps(value, ensure_ascii=False, default=json_text)
    if not line.isprintable():
        line = "".join([char if char.isprintable() else _json_escape(char) for char in line])
    return line.encode() + b"\n"


def _json_escape(char: str) -> str:
    # JSON itself leaves a DEL alone
    return json.dumps(char)[1:-1].replace("\x7f", "\\u007f")


def _numbered(items: list[tuple[bytes, Reply]], mark: str, indent: str) -> bytes:
    width = len(str(len(items)))
    inner = indent + " " * (width + 2)
    lines = [
        f"{indent if number > 1 else ''}{number:>{width}}{mark} ".encode()
        + name
        + pretty(item, inner)
        for number, (name, item) in enumerate(items, 1)
    ]
    return b"".join(lines)


def to_json(reply: Reply) -> Any:
    """A reply as values of JSON: `{"error": text}` for an error, bytes as `json_text` says."""
    match reply:
        case bytes() | Status():
            return json_text(reply if isinstance(reply, bytes) else reply.text)
        case ErrorReply(text=text):
            return {"error": text.decode("utf-8", "replace")}
        case list():
            return [to_json(item) for item in reply]
        case Pairs(items=items):
            return {raw(key)[:-1].decode("utf-8", "replace"): to_json(item) for key, item in items}
    return reply


def json_text(data: bytes) -> str | dict[str, str]:
    """Bytes in JSON without loss: a string if they are UTF-8, else `{"base64": "..."}`."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def from_json_text(value: object) -> bytes:
    """What `json_text` was given; ValueError, which shows the value, for anything else."""
    match value:
        case str():
            return value.encode("utf-8", "surrogatepass")
        case {"base64": str(text), **rest} if not rest:
            return base64.b64decode(text, validate=True)
    raise ValueError(f'expected a string or {{"base64": "..."}}, got {json.dumps(value)[:60]}')
