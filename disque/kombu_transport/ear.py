"""Ear: queues that end with their process, fed by the broker's topics.

A queue declared auto_delete or exclusive and bound to a fanout or transient exchange (Celery's remote control, replies
to it, events) needs no job: what is published to its exchange is PUBLISHed, and reaches every process that listens, on
any node, at most once. Meanwhile it waits here, high priority first, until it is consumed or its time is over.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote
from uuid import uuid4

from disque.kombu_transport.bindings import Binding, queues_for
from disque.kombu_transport.envelope import lifetime_of, opened, priority_of

if TYPE_CHECKING:
    from disque.client import Client, Subscription
    from disque.kombu_transport.envelope import Message, Terms

TOPIC_PREFIX: Final = "kombu"
# Messages that wait for a queue's consumer; what comes beyond is lost, and that is logged.
WAITING_MAX: Final = 10_000

_log = logging.getLogger(__name__)


def topic_of(exchange: str, routing_key: str) -> str:
    """The topic to which a message is published; percent-encoded, so that no name can be a pattern."""
    return f"{TOPIC_PREFIX}/{quote(exchange, safe='')}/{quote(routing_key, safe='.')}"


class Ear:
    """The queues of one process that are heard. One thread at a time."""

    def __init__(self, client: Client, is_moving: Callable[[int], Any]) -> None:
        """`is_moving` is called with the file descriptor before it may change."""
        self._client = client
        self._is_moving = is_moving
        self._bindings: dict[Binding, Terms] = {}
        self._waiting: dict[str, list[tuple[int, int, float, Message]]] = {}
        self._numbers = itertools.count(1)
        self._subscription: Subscription | None = None

    def __contains__(self, queue: str) -> bool:
        return queue in self._waiting

    def bind(self, binding: Binding, terms: Terms) -> None:
        """Hear what takes this way, from the return on. A DisqueError if no node can be asked."""
        topics = self._topics()
        self._bindings[binding] = terms
        self._waiting.setdefault(binding.queue, [])
        self._change(topics)

    def unbind(self, binding: Binding) -> None:
        """Hear it no more; what has come stays."""
        topics = self._topics()
        self._bindings.pop(binding, None)
        self._change(topics)

    def forget(self, queue: str) -> None:
        """The queue is no more."""
        topics = self._topics()
        for binding in [each for each in self._bindings if each.queue == queue]:
            del self._bindings[binding]
        self._waiting.pop(queue, None)
        self._change(topics)

    def pop(self, queue: str) -> Message | None:
        """The next message for a queue, None if there is none."""
        waiting = self._waiting.get(queue)
        while waiting:
            _, _, until, message = heapq.heappop(waiting)
            if time.time() < until:
                return message
        return None

    def count(self, queue: str) -> int:
        """Messages that wait."""
        return len(self._waiting.get(queue, ()))

    def clear(self, queue: str) -> int:
        """Drop what waits; returns how much."""
        count = self.count(queue)
        if count:
            self._waiting[queue].clear()
        return count

    def put_back(self, message: Message) -> None:
        """A message that wasn't wanted comes first among its equals, marked as redelivered."""
        message["properties"]["delivery_info"]["redelivered"] = True
        waiting = self._waiting.get(message["queue"])
        if waiting is not None:
            heapq.heappush(
                waiting, (-priority_of(message), -next(self._numbers), float("inf"), message)
            )

    def fileno(self) -> int:
        """Where something comes, -1 if nothing can."""
        return -1 if self._subscription is None else self._subscription.fileno()

    def listen(self) -> None:
        """Take in what has come. UnreachableError if the node is lost and there is no other."""
        if self._subscription is None:
            return
        self._is_moving(self.fileno())
        while (heard := self._subscription.receive(timeout=0)) is not None:
            _, exchange, routing_key = heard.channel.split("/", 2)
            self._take(unquote(exchange), unquote(routing_key), heard.body)

    def close(self) -> None:
        """End the connection; after a fork it stays the parent's."""
        if self._subscription is not None:
            self._is_moving(self.fileno())
            self._subscription.close()
            self._subscription = None

    def _take(self, exchange: str, routing_key: str, body: bytes) -> None:
        ways = [each for each in self._bindings if each.exchange == exchange]
        for queue in queues_for(ways, routing_key):
            terms = next(self._bindings[each] for each in ways if each.queue == queue)
            message = opened(body)
            message["queue"] = queue
            message["properties"]["delivery_tag"] = str(uuid4())
            until = _end_of(message, terms)
            waiting = self._waiting[queue]
            if len(waiting) < WAITING_MAX:
                heapq.heappush(
                    waiting, (-priority_of(message), next(self._numbers), until, message)
                )
            else:
                _log.warning("message-lost queue=%s waiting=%d", queue, len(waiting))

    def _topics(self) -> set[tuple[bool, str]]:
        """What must be subscribed to: (is it a prefix, name)."""
        topics = set()
        for binding in self._bindings:
            if binding.kind == "direct":
                topics.add((False, topic_of(binding.exchange, binding.routing_key)))
            else:
                topics.add((True, topic_of(binding.exchange, "") + "*"))
        return topics

    def _change(self, before: set[tuple[bool, str]]) -> None:
        after = self._topics()
        new, old = sorted(after - before), sorted(before - after)
        if self._subscription is None:
            if not after:
                return
            self._subscription = self._client.subscribe()
            new = sorted(after)
        self._is_moving(self.fileno())
        if new:
            self._subscription.subscribe(*_names(new, False), patterns=_names(new, True))
        if old:
            self._subscription.unsubscribe(*_names(old, False), patterns=_names(old, True))


def _end_of(message: Message, terms: Terms) -> float:
    """Unix time until which a message is worth hearing, by the clock of its sender unless that is ahead."""
    lifetime_s = lifetime_of(message, terms)
    if lifetime_s is None:
        return float("inf")
    said_at = message.get("published_at")
    return lifetime_s + min(time.time(), said_at if isinstance(said_at, float) else float("inf"))


def _names(topics: list[tuple[bool, str]], is_prefix: bool) -> tuple[str, ...]:
    return tuple([name for kind, name in topics if kind is is_prefix])
