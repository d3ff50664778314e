"""The engine's one output: records to store, then messages to send, then replies to give, in that order.

A reply is a plain value that any front end can show: int, bytes, None, a list of such, or one of the classes below.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NewType, TypeAlias

import attrs

from cluster.nodeid import NodeId
from disque.core.messages import Message
from disque.core.value import value

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
    """One job handed to a client. `nacks` and `additional` are None unless counters were asked for."""

    id: bytes
    queue: bytes
    body: bytes
    headers: Mapping[bytes, bytes]
    nacks: int | None = None
    additional: int | None = None


Reply: TypeAlias = "int | bytes | None | Status | Failure | NilArray | Delivery | list[Reply]"


@value
class Record:
    """One entry of the log: a kind and its fields, plain values that msgpack takes (rule M24).

    `is_urgent` asks for fsync before anything of the same Ready leaves, whatever the policy (B6.8).
    """

    kind: str
    fields: tuple[object, ...]
    is_urgent: bool = False


@attrs.define
class Ready:
    """Turn it into bytes before the next input: it may point at live jobs."""

    records: list[Record] = attrs.Factory(list)
    messages: dict[tuple[NodeId, ...], list[Message]] = attrs.Factory(dict)  # by set of recipients
    replies: list[tuple[ClientId, Reply]] = attrs.Factory(list)
