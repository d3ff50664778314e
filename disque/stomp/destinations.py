"""Destinations: what stands behind a name such as `/queue/x`; anything else is an error, never a guess."""

from __future__ import annotations

import enum

from disque.core.topics import Kind, Topic
from disque.core.value import value
from disque.errors import CommandError
from disque.stomp.frames import shown

TEMP = b"/temp-queue/"
SUBSCRIPTION_BYTES = 300  # of memory that one takes of its session, besides its texts


class Control(enum.IntEnum):
    """Questions that a SEND with a receipt asks."""

    MESSAGES = 0
    QUEUE_SUBSCRIBERS = 1
    TOPIC_SUBSCRIBERS = 2


@value
class Queue:
    """A queue, by the name that RESP sees."""

    name: bytes
    is_temporary: bool = False

    @property
    def text(self) -> bytes:
        """As its subscriber says it."""
        return TEMP + self.name.split(b"/", 2)[2] if self.is_temporary else b"/queue/" + self.name


@value
class Channel:
    """A topic, or when subscribed to, a prefix."""

    name: bytes

    @property
    def topic(self) -> Topic:
        """As a subscriber means it: a final star makes a prefix. CommandError for other brokers' wildcards."""
        if b"*" in self.name[:-1] or self.name.endswith((b".#", b".>")):
            raise CommandError(
                f"a topic is a name, or a beginning and one final star, not {shown(self.name)}"
            )
        if self.name.endswith(b"*"):
            return (Kind.PREFIX, self.name[:-1])
        return (Kind.CHANNEL, self.name)


@value
class Asked:
    """A count that is asked for, of a queue or a topic."""

    what: Control
    name: bytes


Destination = Queue | Channel | Asked

_CONTROLS = (
    (b"/control/count-msgs/queue/", Control.MESSAGES),
    (b"/control/count-subscribers/queue/", Control.QUEUE_SUBSCRIBERS),
    (b"/control/count-subscribers/topic/", Control.TOPIC_SUBSCRIBERS),
)


def parse_destination(text: bytes, connection: bytes) -> Destination:
    """What a destination header means; `connection` makes the names of temporary queues unique.

    CommandError for what isn't one.
    """
    if text.startswith(b"/queue/") and len(text) > 7:
        return Queue(text[7:])
    if text.startswith(b"/topic/") and len(text) > 7:
        return Channel(text[7:])
    if text.startswith(TEMP) and len(text) > len(TEMP):
        return Queue(temporary_name(text, connection), is_temporary=True)
    for prefix, what in _CONTROLS:
        if text.startswith(prefix) and len(text) > len(prefix):
            return Asked(what, text[len(prefix) :])
    raise CommandError(
        f"no destination: {shown(text)}; there are /queue/x, /topic/x and /temp-queue/x"
    )


def cost_of(id_: bytes, name: bytes) -> int:
    """Bytes that a session keeps for a subscription: its texts, and once more in the lines of its MESSAGE frames."""
    return SUBSCRIPTION_BYTES + 2 * (len(id_) + len(name))


def temporary_name(text: bytes, connection: bytes) -> bytes:
    """The queue behind `/temp-queue/x` of one connection."""
    return b"temp-queue/%b/%b" % (connection, text[len(TEMP) :])
