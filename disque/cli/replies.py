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


class Readable(Protocol):
    """What a reply is read from: a buffered binary file."""

    def readline(self) -> bytes:
        """One line with its end; shorter at the end of the stream."""
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


def read_reply(file: Readable) -> Reply:
    """Read one reply. Raises StreamError; OSError and TimeoutError come from the file."""
    line = file.readline()
    if not line.endswith(b"\r\n"):
        raise StreamError("the connection was closed" if not line else "the connection was cut")
    read = _READERS.get(line[:1])
    if read is None:
        raise StreamError(f"no reply of a Redis or Disque server: {line[:60]!r}")
    try:
        return read(file, line[1:-2])
    except ValueError:
        raise StreamError(f"no reply of a Redis or Disque server: {line[:60]!r}") from None


def _bulk(file: Readable, head: bytes) -> bytes | None:
    size = int(head)
    if size < 0:
        return None
    body = file.read(size + 2)
    if len(body) != size + 2:
        raise StreamError("the connection was cut")
    return body[:-2]


def _array(file: Readable, head: bytes) -> list[Reply] | None:
    count = int(head)
    return None if count < 0 else [read_reply(file) for _ in range(count)]


def _map(file: Readable, head: bytes) -> Pairs:
    return Pairs(tuple((read_reply(file), read_reply(file)) for _ in range(int(head))))


_READERS: dict[bytes, Callable[[Readable, bytes], Reply]] = {
    b"+": lambda _, head: Status(head),
    b"-": lambda _, head: ErrorReply(head),
    b":": lambda _, head: int(head),
    b"$": _bulk,
    b"*": _array,
    b"_": lambda _, __: None,
    b"%": _map,
    b">": _array,
    b"~": _array,
    b"#": lambda _, head: head == b"t",
    b",": lambda _, head: float(head),
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
            return text + b"\n"
        case ErrorReply(text=text):
            return b"(error) " + text + b"\n"
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
