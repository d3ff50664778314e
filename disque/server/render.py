"""Render: the core's replies as RESP bytes, for version 2 or 3 of the protocol.

It knows the reply classes of disque.core.ready and the encoder; how they come about is none of
its business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from disque.core.ready import Delivery, Failure, NilArray, Published, Pushes, Reply, Status
from disque.core.value import value
from disque.resp import encoder

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from disque.resp.encoder import Protocol

_SIZES: Sequence[bytes] = [b"$%d\r\n" % size for size in range(1_024)]


@value
class Verbatim:
    """Bytes that are RESP already."""

    data: bytes


@value
class Whole:
    """A long answer, RESP already, in parts that are sent as they are: they are never joined."""

    parts: Sequence[bytes]

    def __len__(self) -> int:
        return sum(map(len, self.parts))


@value
class Pairs:
    """A map under 3, a flat array of keys and values under 2; a mapping's order is kept."""

    items: Mapping[bytes, Answer]


Answer: TypeAlias = "int | bytes | Status | Failure | NilArray | Delivery | Verbatim | Pairs | Sequence[Answer] | None"


def render(reply: Answer | Reply, proto: Protocol) -> bytes:
    """Spell a reply of the core or of an administrative command."""
    if type(reply) is int:
        return encoder.integer(reply)
    if type(reply) is Status:
        return encoder.status(reply.text)
    parts: list[bytes] = []
    _write(reply, proto, parts)
    return b"".join(parts)


def _write(reply: Answer | Reply, proto: Protocol, parts: list[bytes]) -> None:
    match reply:
        case bytes():
            parts += (b"$%d\r\n" % len(reply), reply, b"\r\n")
        case list():
            parts.append(encoder.array_header(len(reply)))
            for item in reply:
                _write(item, proto, parts)
        case Delivery():
            _write_delivery(reply, parts)
        case int():
            parts.append(encoder.integer(reply))
        case None:
            parts.append(encoder.nil(proto))
        case NilArray():
            parts.append(encoder.nil_array(proto))
        case Status(text=text):
            parts.append(encoder.status(text))
        case Failure(code=code, text=text):
            parts.append(encoder.error(code, text))
        case Verbatim(data=data):
            parts.append(data)
        case Pushes() | Published():
            _write_pushes(reply, proto, parts)
        case Pairs(items=items):
            parts.append(encoder.map_header(len(items), proto))
            for key, item in items.items():
                parts.append(encoder.bulk(key))
                _write(item, proto, parts)


def _write_pushes(reply: Pushes | Published, proto: Protocol, parts: list[bytes]) -> None:
    if isinstance(reply, Published):
        parts += message_parts(reply, proto)
        return
    for items in reply.each:
        parts.append(_push_header(len(items), proto))
        for item in items:
            _write(item, proto, parts)


def message_parts(message: Published, proto: Protocol) -> tuple[bytes, bytes, bytes]:
    """A topic's message for a subscriber; the large part is the body itself, the same for all who hear it."""
    channel, pattern, body = message.channel, message.pattern, message.body
    if pattern is None:
        head = b"%b$7\r\nmessage\r\n" % _push_header(3, proto)
    else:
        head = b"%b$8\r\npmessage\r\n" % _push_header(4, proto)
        head += b"$%d\r\n%b\r\n" % (len(pattern), pattern)
    return (b"%b$%d\r\n%b\r\n$%d\r\n" % (head, len(channel), channel, len(body)), body, b"\r\n")


def _push_header(count: int, proto: Protocol) -> bytes:
    """Of topics: an own type in 3, arrays like any other in 2."""
    return b">%d\r\n" % count if proto == 3 else encoder.array_header(count)


def _size(data: bytes) -> bytes:
    """The line before a string."""
    size = len(data)
    return _SIZES[size] if size < len(_SIZES) else b"$%d\r\n" % size


def _write_delivery(job: Delivery, parts: list[bytes]) -> None:
    """GETJOB's element: queue, id, body and, if asked for, the two counters with their names."""
    assert isinstance(job.body, bytes), "the broker has read it"
    queue, id_, body = job.queue, job.id, job.body
    head = b"*3\r\n" if job.nacks is None else b"*7\r\n"
    parts += (
        head, _size(queue), queue, b"\r\n", _size(id_), id_, b"\r\n", _size(body), body, b"\r\n",
    )  # fmt: skip
    if job.nacks is not None:
        parts += (
            b"$5\r\nnacks\r\n",
            encoder.integer(job.nacks),
            b"$21\r\nadditional-deliveries\r\n",
            encoder.integer(job.additional or 0),
        )
