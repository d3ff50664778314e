"""Topics over RESP: SUBSCRIBE and its kin, and what a subscriber hears, bounded.

The core knows a connection's subscriptions under an id of their own, `client.subscriber`, made at the first one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from disque.core.commands import Subscribe, Unsubscribe
from disque.core.parsing import parse_pattern
from disque.core.ready import Published
from disque.core.topics import Kind
from disque.errors import CommandError
from disque.server.render import message_parts
from disque.server.shell import Forward

if TYPE_CHECKING:
    from disque.core.ready import ClientId, Reply
    from disque.core.topics import Topic
    from disque.server.connection import Client
    from disque.server.shell import Shell

# In RESP2, where a message can't be told from a reply (QUIT is answered before all checks)
ALLOWED_TO_SUBSCRIBERS = frozenset(
    {b"subscribe", b"psubscribe", b"unsubscribe", b"punsubscribe", b"ping"}
)


def has_subscriptions(shell: Shell, client: Client) -> bool:
    """True if a connection has subscribed to something."""
    if client.subscriber is None:
        return False
    return shell.turns.broker.engine.subscription_count(client.subscriber) > 0


def subscribe(shell: Shell, client: Client, args: list[bytes]) -> Forward:
    """`SUBSCRIBE <channel>…`"""
    topics = tuple([(Kind.CHANNEL, name) for name in args])
    return Forward(Subscribe(_subscriber(shell, client), topics))


def pattern_subscribe(shell: Shell, client: Client, args: list[bytes]) -> Forward:
    """`PSUBSCRIBE <pattern>…`: all are subscribed, or an error and none."""
    topics = tuple([parse_pattern(pattern) for pattern in args])
    return Forward(Subscribe(_subscriber(shell, client), topics))


def unsubscribe(shell: Shell, client: Client, args: list[bytes]) -> Forward:
    """`UNSUBSCRIBE [<channel>…]`"""
    topics = tuple([(Kind.CHANNEL, name) for name in args])
    return Forward(Unsubscribe(_subscriber(shell, client), topics or None))


def pattern_unsubscribe(shell: Shell, client: Client, args: list[bytes]) -> Forward:
    """`PUNSUBSCRIBE [<pattern>…]`: of what can't be a pattern nothing was subscribed, which isn't an error."""
    topics = tuple([_pattern(text) for text in args])
    return Forward(Unsubscribe(_subscriber(shell, client), topics or None, is_pattern=True))


def _pattern(text: bytes) -> Topic:
    try:
        return parse_pattern(text)
    except CommandError:
        return (Kind.NAME, text)


def _subscriber(shell: Shell, client: Client) -> ClientId:
    """The id of a connection's subscriptions; what is published to them is told the client."""
    if client.subscriber is None:

        def heard(_id: ClientId, reply: Reply) -> Client:
            if isinstance(reply, Published):
                tell(shell, client, *message_parts(reply, client.proto))
            return client

        client.subscriber = shell.clients.new_id()
        client.is_listening = True
        shell.clients.listen_to(client.subscriber, heard)
    return client.subscriber


def end_subscriptions(shell: Shell, client: Client) -> None:
    """All that a connection has subscribed to, without a word."""
    if client.subscriber is not None:
        shell.clients.forget(client.subscriber)
        shell.broker.disconnect(client.subscriber)
        client.subscriber = None
        client.is_listening = False


def tell(shell: Shell, client: Client, *message: bytes) -> int:
    """Give a client a topic's message, in parts; beyond topic-buffer the oldest are dropped, or the client is.

    Returns how many messages were dropped.
    """
    config, figures = shell.config, shell.figures
    dropped = client.hear(*message, bytes_max=config.topic_buffer)
    if not dropped:
        return 0
    figures.topic_messages_dropped += dropped
    if config.topic_overflow == "disconnect" and not client.is_dead:
        figures.topic_subscribers_dropped += 1
        shell.events.event("warning", "client-dropped", addr=client.address, reason="topic-buffer")
        client.die()
    return dropped
