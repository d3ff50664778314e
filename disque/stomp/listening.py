"""Listening: the topics that one connection has subscribed to, and the frames in which their messages reach it."""

from __future__ import annotations

from collections.abc import Iterator

from disque.core.ready import Published
from disque.errors import CommandError
from disque.stomp.destinations import cost_of
from disque.stomp.frames import Version, carried_lines, escape

SAME_MAX = 100  # subscriptions of one topic, each of which is another copy of a message


class Tails:
    """What all MESSAGE frames of one message of a topic end with, spelt once for all subscribers of a node."""

    def __init__(self) -> None:
        self._last: tuple[Published, Version] | None = None
        self._tail = b""

    def tail(self, published: Published, version: Version) -> bytes:
        """All but the frame's first lines and its NUL."""
        last = self._last
        if last is None or last[0] is not published or last[1] is not version:
            self._last = (published, version)
            head = b"destination:/topic/%b\n" % escape(published.channel, version)
            head += carried_lines(published.headers, version)
            body = published.body
            self._tail = b"%bcontent-length:%d\n\n%b" % (head, len(body), body)
        return self._tail


class Listener:
    """Subscriptions of topics, by their ids and by the topics' names as they were said, a final star included.

    Two entries and a name are all that one costs here: there may be a million.
    """

    def __init__(self, tails: Tails) -> None:
        self.version = Version.V10
        self.frame_end = b"\0"
        self.kept_bytes = 0  # what all subscriptions take
        self._tails = tails
        self._names: dict[bytes, bytes] = {}
        self._ids: dict[bytes, bytes | tuple[bytes, ...]] = {}  # one, or several
        self._odd: dict[bytes, bytes] = {}  # first lines of MESSAGE frames that begin otherwise
        self._count = 0  # messages so far

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, id_: bytes) -> bool:
        return id_ in self._names

    def add(self, id_: bytes, name: bytes, *, is_nameless: bool, is_acknowledged: bool) -> None:
        """A new subscription; `is_nameless`: the client gave it no id (1.0), `is_acknowledged`: it will say ACK.

        CommandError if this topic has too many of them.
        """
        found = self._ids.get(name)
        if isinstance(found, tuple) and len(found) >= SAME_MAX:
            raise CommandError(f"too many subscriptions of one topic, the limit is {SAME_MAX}")
        self._names[id_] = name
        self.kept_bytes += cost_of(id_, name)
        if found is None:
            self._ids[name] = id_
        else:
            self._ids[name] = (*((found,) if isinstance(found, bytes) else found), id_)
        if is_nameless:
            self._odd[id_] = b""
        elif is_acknowledged and self.version >= Version.V12:
            # The header must be there; an ACK of it changes nothing
            self._odd[id_] = self._line(id_) + b"ack:T\n"

    def drop(self, id_: bytes) -> bytes | None:
        """Forget a subscription; its topic's name, None if there is none."""
        name = self._names.pop(id_, None)
        if name is None:
            return None
        self.kept_bytes -= cost_of(id_, name)
        self._odd.pop(id_, None)
        found = self._ids.pop(name)
        left = () if isinstance(found, bytes) else tuple([each for each in found if each != id_])
        if left:
            self._ids[name] = left[0] if len(left) == 1 else left
        return name

    def wants(self, name: bytes) -> bool:
        """True if a subscription of this topic is left."""
        return name in self._ids

    def count(self, published: Published) -> int:
        """How many subscriptions a message reaches."""
        found = self._ids.get(_topic_of(published), ())
        return 1 if isinstance(found, bytes) else len(found)

    def messages(self, published: Published) -> Iterator[bytes]:
        """The frames in which a message reaches this client, one a subscription, each made when it is asked for."""
        found = self._ids.get(_topic_of(published), ())
        tail = self._tails.tail(published, self.version)
        for id_ in (found,) if isinstance(found, bytes) else found:
            self._count += 1
            line = self._odd.get(id_)
            if line is None:
                line = self._line(id_)
            yield b"MESSAGE\n%bmessage-id:T-%d\n%b%b" % (line, self._count, tail, self.frame_end)

    def _line(self, id_: bytes) -> bytes:
        return b"subscription:%b\n" % escape(id_, self.version)


def _topic_of(published: Published) -> bytes:
    """As its subscribers said it."""
    return published.channel if published.pattern is None else published.pattern
