"""Topics: who has subscribed to which channels, and whom a message reaches.

A channel is a name; a pattern is a name too, or a prefix. Nothing here knows connections or nodes beyond their ids. A
name is matched by one look-up for itself and one for each *length* that some prefix has, whatever the number of
subscriptions: O(length of the name), and mostly far less. One subscriber of a topic is kept as it is, several as a
dict: most topics have one, and a dict costs more than all the rest of a subscription.
"""

from __future__ import annotations

import enum
from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import islice
from typing import Generic, TypeAlias, TypeVar

import attrs

from cluster.nodeid import NodeId
from disque.core.sleeper import Sleeper

T = TypeVar("T")


class Kind(enum.IntEnum):
    """How a topic names channels; the numbers are on the wire."""

    CHANNEL = 0
    NAME = 1  # a pattern without a star: it matches one channel, and its messages tell the pattern
    PREFIX = 2  # the name is the pattern without its star


Topic: TypeAlias = tuple[Kind, bytes]
Piece: TypeAlias = tuple[Topic, ...]
Subscribers: TypeAlias = "int | dict[int, None]"  # one, or several in order


def pattern_of(topic: Topic) -> bytes | None:
    """The pattern as it was subscribed to; None for a channel."""
    kind, name = topic
    if kind is Kind.CHANNEL:
        return None
    return name if kind is Kind.NAME else name + b"*"


class TopicTable(Generic[T]):
    """Something for each topic, found by a channel that it matches."""

    def __init__(self) -> None:
        self.tables: tuple[dict[bytes, T], dict[bytes, T], dict[bytes, T]] = ({}, {}, {})
        self._lengths: list[int] = []  # of prefixes, sorted
        self._counts: dict[int, int] = {}  # how many prefixes have that length

    def __len__(self) -> int:
        return sum(map(len, self.tables))

    def get(self, topic: Topic) -> T | None:
        """What is kept for a topic."""
        return self.tables[topic[0]].get(topic[1])

    def put(self, topic: Topic, what: T) -> None:
        """Keep something for a topic, instead of what was kept."""
        kind, name = topic
        if kind is Kind.PREFIX and name not in self.tables[kind]:
            length = len(name)
            self._counts[length] = self._counts.get(length, 0) + 1
            if self._counts[length] == 1:
                insort(self._lengths, length)
        self.tables[kind][name] = what

    def discard(self, topic: Topic) -> None:
        """Keep nothing for a topic."""
        kind, name = topic
        if self.tables[kind].pop(name, None) is None or kind is not Kind.PREFIX:
            return
        length = len(name)
        self._counts[length] -= 1
        if not self._counts[length]:
            del self._counts[length]
            del self._lengths[bisect_left(self._lengths, length)]

    def matches(self, channel: bytes) -> Iterator[tuple[Topic, T]]:
        """All topics that a message to this channel is for: the channel, the name, then prefixes, short ones first."""
        for kind in (Kind.CHANNEL, Kind.NAME):
            found = self.tables[kind].get(channel)
            if found is not None:
                yield (kind, channel), found
        prefixes = self.tables[Kind.PREFIX]
        for length in self._lengths:
            if length > len(channel):
                break
            found = prefixes.get(channel[:length])
            if found is not None:
                yield (Kind.PREFIX, channel[:length]), found

    def first(self, count: int) -> Iterator[tuple[Topic, T]]:
        """Some of what is kept, channels first."""
        left = count
        for kind in Kind:
            table = self.tables[kind]
            for name, what in islice(table.items(), max(left, 0)):
                yield (kind, name), what
            left -= len(table)


def count_of(who: Subscribers | None) -> int:
    """How many subscribers."""
    if who is None:
        return 0
    return 1 if isinstance(who, int) else len(who)


@attrs.define(eq=False)
class Parting(Sleeper):
    """A subscriber has gone; its subscriptions, some at a time, are still to be ended."""

    subscriber: int
    pieces: Iterator[Piece]


@attrs.define(eq=False)
class Topics:
    """The subscriptions of one node, and how many others told it of."""

    table: TopicTable[Subscribers] = attrs.Factory(TopicTable)
    # A subscriber's channels, and its patterns, in their order
    chosen: dict[int, tuple[dict[bytes, None], dict[Topic, None]]] = attrs.Factory(dict)
    size: int = 0  # subscriptions here
    name_bytes: int = 0  # of their names
    parting: dict[int, Parting] = attrs.Factory(dict)  # by subscriber
    told: dict[NodeId, TopicTable[int]] = attrs.Factory(dict)  # by the peer that has them
    attending: dict[bytes, int] = attrs.Factory(dict)  # subscriptions of queues here
    attended: int = 0  # all of them together

    def add(self, subscriber: int, topic: Topic) -> bool:
        """Subscribe; False if that is so already."""
        channels, patterns = self.chosen.setdefault(subscriber, ({}, {}))
        kind, name = topic
        if (name in channels) if kind is Kind.CHANNEL else (topic in patterns):
            return False
        if kind is Kind.CHANNEL:
            channels[name] = None
        else:
            patterns[topic] = None
        who = self.table.get(topic)
        if who is None:
            self.table.put(topic, subscriber)
        elif isinstance(who, int):
            self.table.put(topic, {who: None, subscriber: None})
        else:
            who[subscriber] = None
        self.size += 1
        self.name_bytes += len(name)
        return True

    def remove(self, subscriber: int, topic: Topic) -> bool:
        """Unsubscribe; False if it wasn't subscribed."""
        channels, patterns = self.chosen.get(subscriber, ({}, {}))
        kind, name = topic
        if (name not in channels) if kind is Kind.CHANNEL else (topic not in patterns):
            return False
        if kind is Kind.CHANNEL:
            del channels[name]
        else:
            del patterns[topic]
        if not channels and not patterns:
            del self.chosen[subscriber]
        who = self.table.get(topic)
        if isinstance(who, dict):
            del who[subscriber]
            if len(who) == 1:
                self.table.put(topic, next(iter(who)))
        else:
            self.table.discard(topic)
        self.size -= 1
        self.name_bytes -= len(name)
        return True

    def has(self, subscriber: int, topic: Topic) -> bool:
        """True if it is subscribed."""
        who = self.table.get(topic)
        return who == subscriber if isinstance(who, int) else who is not None and subscriber in who

    def subscribers(self, topic: Topic) -> list[int]:
        """Those of a topic as they are now, in order."""
        who = self.table.get(topic)
        return [who] if isinstance(who, int) else list(who or ())

    def pieces_of(self, subscriber: int, count: int, *, are_patterns: bool) -> Iterator[Piece]:
        """What one subscriber has subscribed to now, so many at a time, in order: its channels, or its patterns."""
        channels, patterns = self.chosen.get(subscriber, ({}, {}))
        names, topics = ([], list(patterns)) if are_patterns else (list(channels), [])
        for first in range(0, len(topics), count):
            yield tuple(topics[first : first + count])
        for first in range(0, len(names), count):
            yield tuple([(Kind.CHANNEL, name) for name in names[first : first + count]])

    def count_of(self, subscriber: int) -> int:
        """How many topics one subscriber has subscribed to."""
        channels, patterns = self.chosen.get(subscriber, ({}, {}))
        return len(channels) + len(patterns)
