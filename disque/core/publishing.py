"""PUBLISH and its kin: a message goes once to all subscribers of all nodes that can be reached, and is forgotten.

Every reachable peer is sent every message, whether it has told of subscribers or not. What peers tell each other are
only *numbers*, for replies: news of a subscription may be late or lost, and then a count is wrong for a while, but no
subscriber misses a message that its own node already counts it for.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from itertools import chain, islice

from cluster.nodeid import NodeId
from cluster.view import ClusterView
from disque.core import commands as cmd
from disque.core import messages as msg
from disque.core.chores import for_each
from disque.core.delivery import queue_of
from disque.core.posts import Post, Posts
from disque.core.ready import ClientId, Published, Pushes, Reply
from disque.core.state import State, fail, reply, send, wake
from disque.core.topics import Kind, Parting, Topic, TopicTable, count_of, pattern_of

_PARTING_STEP = 1_000  # subscriptions: some ms
_WORDS: Mapping[tuple[bool, bool], bytes] = {
    # (is it a pattern, does it begin)
    (False, True): b"subscribe",
    (True, True): b"psubscribe",
    (False, False): b"unsubscribe",
    (True, False): b"punsubscribe",
}


def publish(state: State, client: ClientId, command: cmd.Publish) -> None:
    """PUBLISH: `:n` subscriptions here and those that linked peers last told of; at most once, no copies."""
    if _is_too_long(state, client, command.channel):
        return
    reached = _reached(state, command.channel)
    send(state, state.up, msg.Publish(command.channel, command.headers, command.body))
    post = _deliver(state, command.channel, command.body, command.headers)
    if post is None:
        reply(state, client, reached)
    else:
        post.publisher, post.reached = client, reached
        state.posts.asking[client] = post


def on_publish(state: State, _peer: NodeId, said: msg.Publish) -> None:
    """A message that was published at a peer."""
    if len(said.channel) <= state.limits.topic_name_bytes_max:
        _deliver(state, said.channel, said.body, said.headers)


def _deliver(
    state: State, channel: bytes, body: bytes, headers: Mapping[bytes, bytes]
) -> Post | None:
    """Tell the subscribers here; None: all have been told, else the rest is done in bounded steps."""
    topics, posts, limits = state.topics, state.posts, state.limits
    count = _reached_here(state, channel)
    if not count:
        return None
    if not posts.waiting and len(state.ready.replies) + count <= limits.told_a_turn:
        for topic, who in topics.table.matches(channel):
            published = Published(channel, pattern_of(topic), body, headers)
            for subscriber in (who,) if isinstance(who, int) else who:
                reply(state, ClientId(subscriber), published)
        return None
    while posts.waiting and (
        len(posts.waiting) >= limits.posts_max or posts.bytes + len(body) > limits.posts_bytes_max
    ):
        _tell_of_first(state, sys.maxsize)
    post = posts.add(Published(channel, None, body, headers), topics)
    wake(state, posts, state.now_ms + 1)
    return post


def posts_due(state: State, posts: Posts) -> None:
    """One bounded step of telling subscribers what was published."""
    left = state.limits.told_a_turn
    while posts.waiting and left > 0:
        told = _tell_of_first(state, left)
        state.fired += told
        left -= told
    if posts.waiting:
        wake(state, posts, state.now_ms + 1)


def _tell_of_first(state: State, most: int) -> int:
    """Tell so many of the message whose turn it is, and if that is all, answer its publisher; returns how many."""
    posts, told = state.posts, 0
    post = posts.waiting[0]
    for subscriber, published in islice(post.left, most):
        reply(state, subscriber, published)
        told += 1
    if told < most:
        posts.drop_first()
        client = post.publisher
        if client is not None and posts.asking.get(client) is post:
            del posts.asking[client]
            reply(state, client, post.reached)
    return told


def _reached_here(state: State, channel: bytes) -> int:
    topics = state.topics
    return sum([count_of(who) for _, who in topics.table.matches(channel)]) if topics.size else 0


def _reached(state: State, channel: bytes) -> int:
    there = [table for peer, table in state.topics.told.items() if peer in state.up_set]
    counts = [count for table in there for _, count in table.matches(channel)]
    return _reached_here(state, channel) + sum(counts)


def count_reached(state: State, client: ClientId, command: cmd.CountReached) -> None:
    """What PUBLISH would answer."""
    if not _is_too_long(state, client, command.channel):
        reply(state, client, _reached(state, command.channel))


def number_of_subscriptions(state: State, client: ClientId, command: cmd.NumSub) -> None:
    """PUBSUB NUMSUB: flat, name and number; counted as PUBLISH does, without patterns."""
    topics = state.topics
    answer: list[Reply] = []
    for channel in command.channels:
        topic = (Kind.CHANNEL, channel)
        told = [
            table.get(topic) or 0 for peer, table in topics.told.items() if peer in state.up_set
        ]
        answer += (channel, count_of(topics.table.get(topic)) + sum(told))
    reply(state, client, answer)


def subscribe(state: State, client: ClientId, command: cmd.Subscribe) -> None:
    """SUBSCRIBE, PSUBSCRIBE: one reply a topic, with the number that the connection has then."""
    topics, limits = state.topics, state.limits
    longest = max([name for _, name in command.topics], key=len, default=b"")
    if _is_too_long(state, client, longest):
        return
    if topics.size + len(command.topics) > limits.subscriptions_max:
        text = f"Too many subscriptions at this node, the limit is {limits.subscriptions_max}"
        fail(state, client, "ERR", text)
        return
    answers: list[list[Reply]] = []
    for topic in command.topics:
        if topics.add(command.subscriber, topic):
            state.posts.begins(command.subscriber, topic)
            _tell(state, topic)
        answers.append(_answer(state, command.subscriber, topic, begins=True))
    reply(state, client, Pushes(tuple(answers)))


def unsubscribe(state: State, client: ClientId, command: cmd.Unsubscribe) -> None:
    """UNSUBSCRIBE, PUNSUBSCRIBE: one reply a topic; without names all go, and if there are none it says so."""
    topics, who = state.topics, command.subscriber
    chosen = command.topics
    if chosen is None:
        pieces = topics.pieces_of(who, _PARTING_STEP, are_patterns=command.is_pattern)
        chosen = tuple(chain.from_iterable(pieces))
    answers: list[list[Reply]] = []
    for topic in chosen:
        if topics.remove(who, topic):
            state.posts.ends(who, topic)
            _tell(state, topic)
        answers.append(_answer(state, who, topic, begins=False))
    if not answers:
        answers.append([_WORDS[command.is_pattern, False], None, topics.count_of(who)])
    reply(state, client, Pushes(tuple(answers)))


def _answer(state: State, subscriber: int, topic: Topic, *, begins: bool) -> list[Reply]:
    pattern = pattern_of(topic)
    word = _WORDS[pattern is not None, begins]
    return [word, topic[1] if pattern is None else pattern, state.topics.count_of(subscriber)]


def leave(state: State, subscriber: ClientId) -> None:
    """A connection has gone, and all its subscriptions with it; of very many the rest goes soon."""
    topics = state.topics
    state.posts.asking.pop(subscriber, None)
    if subscriber in topics.chosen:
        both = [
            topics.pieces_of(subscriber, _PARTING_STEP, are_patterns=each) for each in (False, True)
        ]
        parting = topics.parting[subscriber] = Parting(subscriber, chain(*both))
        parting_due(state, parting)


def parting_due(state: State, parting: Parting) -> None:
    """One bounded step of what a subscriber that has gone left to do."""
    left = _PARTING_STEP
    while left > 0 and (piece := next(parting.pieces, ())):
        left -= len(piece)
        for topic in piece:
            state.topics.remove(parting.subscriber, topic)
            state.posts.ends(parting.subscriber, topic)
            _tell(state, topic)
    if parting.subscriber in state.topics.chosen:
        wake(state, parting, state.now_ms + 1)
    else:
        del state.topics.parting[parting.subscriber]


def adopt(state: State, old: State) -> None:
    """Connections outlive a new identity, and so does what is left to do for them and for those that have gone."""
    state.topics, state.posts = old.topics, old.posts
    for each in (state.posts, *state.topics.parting.values()):
        old.agenda.cancel(each)
        wake(state, each, state.now_ms)


def attend(state: State, client: ClientId, command: cmd.Attend) -> None:
    """A front end's subscription of a queue begins or ends; the queue is there as long as it lasts."""
    topics, name = state.topics, command.queue
    count = topics.attending.get(name, 0) + command.change
    topics.attended += command.change
    if count:
        topics.attending[name] = count
        queue_of(state, name)
    else:
        del topics.attending[name]
    reply(state, client, count)


def _is_too_long(state: State, client: ClientId, name: bytes) -> bool:
    most = state.limits.topic_name_bytes_max
    if len(name) > most:
        fail(state, client, "ERR", f"A topic's name has at most {most} bytes, got {len(name)}")
    return len(name) > most


# What peers tell each other: numbers


def _tell(state: State, topic: Topic) -> None:
    """So many are subscribed here now. Of very many topics not all are told of."""
    table = state.topics.table
    if state.up and len(table) <= state.limits.topics_told_max:
        kind, name = topic
        send(state, state.up, msg.Subscribed(kind, name, count_of(table.get(topic)), is_anew=False))


def topics_view_changed(state: State, before: ClusterView) -> None:
    """Who can be reached again is told all; what peers said that are away doesn't count, and is said again."""
    topics = state.topics
    for peer in [peer for peer in topics.told if peer not in state.up_set]:
        del topics.told[peer]
    if not topics.size:
        return
    was_up = [node for node, member in before.members.items() if member.is_reachable]
    for peer in state.up:
        if peer not in was_up:
            _tell_all(state, peer)


def _tell_all(state: State, peer: NodeId) -> None:
    told = [topic for topic, _ in state.topics.table.first(state.limits.topics_told_max)]

    def tell(state: State, topic: Topic) -> None:
        kind, name = topic
        count = count_of(state.topics.table.get(topic))
        send(state, (peer,), msg.Subscribed(kind, name, count, is_anew=topic == told[0]))

    for_each(state, told, tell, key=(_tell_all, peer))


def on_subscribed(state: State, peer: NodeId, said: msg.Subscribed) -> None:
    """A peer tells how many of its clients have subscribed to a topic."""
    if peer not in state.up_set or said.kind not in (0, 1, 2):
        return
    if len(said.name) > state.limits.topic_name_bytes_max:
        return
    if said.is_anew:
        state.topics.told.pop(peer, None)
    topic = (Kind(said.kind), said.name)
    if not said.count:
        if peer in state.topics.told:
            state.topics.told[peer].discard(topic)
        return
    table = state.topics.told.setdefault(peer, TopicTable())
    if table.get(topic) is not None or len(table) < state.limits.topics_told_max:
        table.put(topic, said.count)
