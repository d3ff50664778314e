"""Messages between members: values, and their codec.

A body is msgpack [version, type, field ...]. Later versions only append fields and add types: what
is unknown at the end is skipped, an unknown type decodes to None. Anything malformed is
RemoteProtocolError, never another exception. A payload is opaque here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import attrs
import msgpack

from cluster.errors import RemoteProtocolError
from cluster.nodeid import NodeId, is_node_id
from cluster.packing import pack

if TYPE_CHECKING:
    from collections.abc import Callable

VERSION = 1

GOSSIP_ENTRIES_MAX = 1_000  # accepted in one message
FORGOTTEN_IDS_MAX = 1_000  # accepted in one message
HOST_CHARS_MAX = 255  # as DNS
NUMBER_MAX = (1 << 63) - 1
# Bytes of a message without its payload: a PING has less than half of it
BESIDE_PAYLOAD_MAX = 1 << 20
_PREFIX_BYTES = 32  # more than stands before a payload

SUSPECT = 1  # PFAIL
FAILED = 2
NOADDR = 16  # another id answers at its address
LEAVING = 128
LEFT = 256  # leaving, and nobody needs anything from it any more

_HOST_CHARS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_:%")


@attrs.frozen
class GossipEntry:
    """What the sender thinks of a third node; `flags` is a sum of the constants above."""

    id: NodeId
    host: str
    port: int
    bus_port: int
    flags: int


@attrs.frozen
class Gossip:
    """The sender's own address and flags, some of its peers, and some ids forgotten everywhere."""

    boot: int
    is_leaving: bool
    host: str  # announced host, "" = use the address the connection comes from
    port: int
    bus_port: int
    entries: tuple[GossipEntry, ...] = ()
    forgotten: tuple[NodeId, ...] = ()
    has_left: bool = False
    drained: tuple[NodeId, ...] = ()  # forgotten ids under which no copy can come back
    tls_port: int = 0  # for clients, 0: none


@attrs.frozen
class Ping:
    """Asks for a PONG."""

    gossip: Gossip


@attrs.frozen
class Pong:
    """Answers a PING, over the answerer's own link: so it proves both directions."""

    gossip: Gossip


@attrs.frozen
class Fail:
    """A majority misses this node."""

    node: NodeId


@attrs.frozen
class Payload:
    """Bytes for the core; `boot` is the sender's (rule M17)."""

    boot: int
    data: bytes


@attrs.frozen
class Forgotten:
    """These ids are forgotten; to its own holder: by the sender, to others: everywhere (rule M16)."""

    nodes: tuple[NodeId, ...]


Message: TypeAlias = Ping | Pong | Fail | Payload | Forgotten

_PING, _PONG, _FAIL, _PAYLOAD, _FORGOTTEN = 1, 2, 3, 4, 5
_UNPACK_ERRORS = (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException)


def encode(message: Message) -> bytes:
    """The body of a frame."""
    match message:
        case Payload(boot=boot, data=data):
            fields: list[object] = [VERSION, _PAYLOAD, boot, data]
        case Ping(gossip=gossip):
            fields = [VERSION, _PING, *_gossip_fields(gossip)]
        case Pong(gossip=gossip):
            fields = [VERSION, _PONG, *_gossip_fields(gossip)]
        case Fail(node=node):
            fields = [VERSION, _FAIL, node]
        case Forgotten(nodes=nodes):
            fields = [VERSION, _FORGOTTEN, list(nodes)]
    return pack(fields)


def decode(body: bytes) -> Message | None:
    """The message in a frame's body, or None if its type is unknown; else RemoteProtocolError."""
    if len(body) > BESIDE_PAYLOAD_MAX and not _is_readable(body):
        return None
    fields = unpack_list(body)
    if len(fields) < 2:
        raise RemoteProtocolError(f"message of {len(fields)} fields, at least 2 are needed")
    number(fields[0], "version", least=1)
    reader = _READERS.get(number(fields[1], "type"))
    return None if reader is None else reader(fields)


def _is_readable(body: bytes) -> bool:
    """Of a large body: True for a payload and little else, of small elements it would take a hundred times its size.

    False for a later version's type, RemoteProtocolError for all others.
    """
    unpacker = msgpack.Unpacker(read_size=_PREFIX_BYTES)
    unpacker.feed(body[:_PREFIX_BYTES])
    try:
        unpacker.read_array_header()
        unpacker.skip()
        kind = number(unpacker.unpack(), "type")
        if kind not in _READERS:
            return False
        if kind == _PAYLOAD:
            unpacker.skip()
    except _UNPACK_ERRORS as error:
        raise RemoteProtocolError(f"no msgpack: {type(error).__name__}") from error
    at = unpacker.tell()
    width = _BYTES_OF_LENGTH.get(body[at], 0)
    said = int.from_bytes(body[at + 1 : at + 1 + width], "big")
    if kind != _PAYLOAD or len(body) - said > BESIDE_PAYLOAD_MAX:
        raise RemoteProtocolError(f"a message of {len(body)} bytes that is no payload")
    return True


_BYTES_OF_LENGTH = {0xC4: 1, 0xC5: 2, 0xC6: 4}  # msgpack's kinds of bytes


def is_host(text: str) -> bool:
    """True for what may stand as a host: a name, IPv4 or IPv6 (unbracketed), or "" for unknown."""
    return len(text) <= HOST_CHARS_MAX and _HOST_CHARS.issuperset(text)


def unpack_list(body: bytes) -> list[object]:
    """Decode msgpack that must be one array; anything else is RemoteProtocolError."""
    try:
        fields = msgpack.unpackb(body, strict_map_key=True)
    except _UNPACK_ERRORS as error:
        raise RemoteProtocolError(f"no msgpack: {type(error).__name__}") from error
    if not isinstance(fields, list):
        raise RemoteProtocolError(f"a {type(fields).__name__} where an array is needed")
    return fields


def number(value: object, what: str, *, least: int = 0, most: int = NUMBER_MAX) -> int:
    """A whole number within bounds, else RemoteProtocolError that names `what`."""
    if type(value) is not int or not least <= value <= most:
        raise RemoteProtocolError(f"{what} must be {least}..{most}, got {_show(value)}")
    return value


def node_id(value: object, what: str) -> NodeId:
    """A node id, else RemoteProtocolError."""
    if not isinstance(value, str) or not is_node_id(value):
        raise RemoteProtocolError(f"{what} must be a node id, got {_show(value)}")
    return NodeId(value)


def host(value: object, what: str) -> str:
    """A host or "", else RemoteProtocolError."""
    if not isinstance(value, str) or not is_host(value):
        raise RemoteProtocolError(f"{what} must be a host, got {_show(value)}")
    return value


def flag(value: object, what: str) -> bool:
    """A boolean, else RemoteProtocolError."""
    if not isinstance(value, bool):
        raise RemoteProtocolError(f"{what} must be a boolean, got {_show(value)}")
    return value


def data(value: object, what: str) -> bytes:
    """Bytes, else RemoteProtocolError."""
    if not isinstance(value, bytes):
        raise RemoteProtocolError(f"{what} must be bytes, got {_show(value)}")
    return value


def _show(value: object) -> str:
    if isinstance(value, str | bytes):
        value = value[:60]  # the repr of all of it may take gigabytes
    text = repr(value) if isinstance(value, str | int | bytes | float | None) else "?"
    return f"{type(value).__name__} {text[:60]}"


def _gossip_fields(gossip: Gossip) -> list[object]:
    entries = [[e.id, e.host, e.port, e.bus_port, e.flags] for e in gossip.entries]
    own = [gossip.boot, gossip.is_leaving, gossip.host, gossip.port, gossip.bus_port]
    forgotten, drained = list(gossip.forgotten), list(gossip.drained)
    return [*own, entries, forgotten, gossip.has_left, drained, gossip.tls_port]


def _read_gossip(fields: list[object]) -> Gossip:
    _need(fields, 9)
    return Gossip(
        boot=number(fields[2], "boot"),
        is_leaving=flag(fields[3], "leaving"),
        host=host(fields[4], "host"),
        port=number(fields[5], "port", most=65535),
        bus_port=number(fields[6], "bus port", most=65535),
        entries=tuple(map(_read_entry, _array(fields[7], "entries", GOSSIP_ENTRIES_MAX))),
        forgotten=_read_ids(fields[8]),
        has_left=len(fields) > 9 and flag(fields[9], "left"),
        drained=_read_ids(fields[10]) if len(fields) > 10 else (),
        tls_port=number(fields[11], "tls port", most=65535) if len(fields) > 11 else 0,
    )


def _read_entry(value: object) -> GossipEntry:
    fields = _array(value, "gossip entry", 64)
    _need(fields, 5)
    return GossipEntry(
        id=node_id(fields[0], "gossip id"),
        host=host(fields[1], "gossip host"),
        port=number(fields[2], "gossip port", most=65535),
        bus_port=number(fields[3], "gossip bus port", most=65535),
        flags=number(fields[4], "gossip flags"),
    )


def _read_ids(value: object) -> tuple[NodeId, ...]:
    ids = _array(value, "forgotten ids", FORGOTTEN_IDS_MAX)
    return tuple(node_id(each, "forgotten id") for each in ids)


def _array(value: object, what: str, most: int) -> list[object]:
    if not isinstance(value, list):
        raise RemoteProtocolError(f"{what} must be an array, got {_show(value)}")
    if len(value) > most:
        raise RemoteProtocolError(f"{what}: {len(value)} given, at most {most} are allowed")
    return value


def _need(fields: list[object], count: int) -> None:
    if len(fields) < count:
        raise RemoteProtocolError(f"{len(fields)} fields, at least {count} are needed")


def _read_ping(fields: list[object]) -> Message:
    return Ping(_read_gossip(fields))


def _read_pong(fields: list[object]) -> Message:
    return Pong(_read_gossip(fields))


def _read_fail(fields: list[object]) -> Message:
    _need(fields, 3)
    return Fail(node_id(fields[2], "failed id"))


def _read_payload(fields: list[object]) -> Message:
    _need(fields, 4)
    return Payload(boot=number(fields[2], "boot"), data=data(fields[3], "payload"))


def _read_forgotten(fields: list[object]) -> Message:
    _need(fields, 3)
    return Forgotten(_read_ids(fields[2]))


_READERS: dict[int, Callable[[list[object]], Message]] = {
    _PING: _read_ping,
    _PONG: _read_pong,
    _FAIL: _read_fail,
    _PAYLOAD: _read_payload,
    _FORGOTTEN: _read_forgotten,
}
