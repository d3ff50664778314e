"""Posts: messages of topics that not all of this node's subscribers have been told yet.

Ten thousand are told some at a time, in the order of the messages; what is published meanwhile waits behind, so that
everybody hears in order. Who has published is answered once all have been told, and so says the next thing no earlier.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import attrs

from disque.core.ready import ClientId, Published
from disque.core.sleeper import Sleeper
from disque.core.topics import Topic, Topics, pattern_of

POST_BYTES = 1_000  # besides the message
SINCE_BYTES = 200


@attrs.define(eq=False)
class Post:
    """One message, and how many it reaches."""

    message: Published  # as those hear it who subscribed to its channel
    cost: int  # bytes
    left: Iterator[tuple[ClientId, Published]]  # who is still to be told
    publisher: ClientId | None = None  # waits for the answer
    reached: int = 0


@attrs.define(eq=False)
class Posts(Sleeper):
    """All that wait, the next one first."""

    waiting: deque[Post] = attrs.Factory(deque)
    bytes: int = 0  # what they cost
    made: int = 0
    asking: dict[ClientId, Post] = attrs.Factory(dict)  # by its publisher
    # Subscriptions that began meanwhile: the number of the last message before
    since: dict[tuple[int, Topic], int] = attrs.Factory(dict)

    @property
    def used_bytes(self) -> int:
        """What all of this is charged."""
        return self.bytes + len(self.since) * SINCE_BYTES

    def add(self, message: Published, topics: Topics) -> Post:
        """One more, behind the others."""
        self.made += 1
        size = len(message.channel) + len(message.body)
        size += sum([len(name) + len(value) for name, value in message.headers.items()])
        left = self._recipients(topics, self.made, message)
        post = Post(message, POST_BYTES + size, left)
        self.waiting.append(post)
        self.bytes += post.cost
        return post

    def drop_first(self) -> Post:
        """All have been told of it."""
        post = self.waiting.popleft()
        self.bytes -= post.cost
        if not self.waiting:
            self.since.clear()
        return post

    def begins(self, subscriber: int, topic: Topic) -> None:
        """A subscription is new: it isn't told what was published before."""
        if self.waiting:
            self.since[subscriber, topic] = self.made

    def ends(self, subscriber: int, topic: Topic) -> None:
        """A subscription has ended."""
        if self.since:
            self.since.pop((subscriber, topic), None)

    def _recipients(
        self, topics: Topics, number: int, said: Published
    ) -> Iterator[tuple[ClientId, Published]]:
        """Those whose subscription was there when it was published, and still is when their turn comes."""
        for topic in [topic for topic, _ in topics.table.matches(said.channel)]:
            told = Published(said.channel, pattern_of(topic), said.body, said.headers)
            for subscriber in topics.subscribers(topic):
                is_late = self.since and self.since.get((subscriber, topic), 0) >= number
                if topics.has(subscriber, topic) and not is_late:
                    yield ClientId(subscriber), told
