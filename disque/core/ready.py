"""The engine's one output: records to store, then messages to send, then replies to give, in that order.

A reply is a plain value that any front end can show: int, bytes, None, a list of such, or one of the classes below.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NewType, TypeAlias

import attrs

from cluster.nodeid import NodeId
from disque.core.job import Paged
from disque.core.messages import Message
from disque.core.value import value

__all__ = [
    "BASE_KINDS",
    "ClientId",
    "Delivery",
    "Failure",
    "NilArray",
    "Paged",
    "Published",
    "Pushes",
    "Ready",
    "Record",
    "Reply",
    "Status",
]

ClientId = NewType("ClientId", int)


@value
class Status:
    """A short word of success, RESP's `+`."""

    text: bytes


@value
class Failure:
    """An error; code is RESP's first word."""

    code: str
    text: str


@value
class NilArray:
    """No array, as opposed to an empty one: RESP2's `*-1`."""


@value
class Delivery:
    """One job handed to a client. `nacks` and `additional` are None unless counters were asked for.

    `retry_ms` is the length of the lease, 0: it won't be handed out again.
    """

    id: bytes
    queue: bytes
    body: bytes | Paged
    headers: Mapping[bytes, bytes]
    nacks: int | None = None
    additional: int | None = None
    retry_ms: int = 0


@value
class Published:
    """A message of a topic for one of its subscribers; `pattern` as it was subscribed to, None: the channel itself."""

    channel: bytes
    pattern: bytes | None
    body: bytes
    headers: Mapping[bytes, bytes]


@value
class Pushes:
    """Several replies to one command, each an array: what SUBSCRIBE and its like answer."""

    each: tuple[list[Reply], ...]


# The broker reads a Paged body before a reply leaves the pure part.
Reply: TypeAlias = (
    "int | bytes | None | Status | Failure | NilArray | Delivery | Paged"
    " | Published | Pushes | list[Reply]"
)

# A base record says the whole present state of its id, with the increments that directly follow it.
BASE_KINDS = frozenset({"job", "done", "settled"})


@value
class Record:
    """One entry of the log: a kind and its fields, plain values that msgpack takes (rule M24).

    `is_urgent` asks for fsync before anything of the same Ready leaves, whatever the policy (B6.8); nothing waits for
    the fsync of one that `is_lazy`.
    """

    kind: str
    fields: tuple[object, ...]
    is_urgent: bool = False
    is_lazy: bool = False

    @property
    def id(self) -> bytes | None:
        """The job that it is about, None for one about the node."""
        first = self.fields[0] if self.fields else None
        return first if isinstance(first, bytes) else None


@attrs.define
class Ready:
    """Turn it into bytes before the next input: it may point at live jobs."""

    records: list[Record] = attrs.Factory(list)
    # batches, each to a set of peers: what is said of one job leaves in the order in which it was said
    messages: list[tuple[tuple[NodeId, ...], list[Message]]] = attrs.Factory(list)
    replies: list[tuple[ClientId, Reply]] = attrs.Factory(list)
