"""Publishing: once to all subscribers of all nodes that can be reached; counts are what peers last told."""

from __future__ import annotations

import attrs

from disque.core import commands as cmd
from disque.core import messages as msg
from disque.core.limits import Limits
from disque.core.ready import ClientId, Failure, Published, Pushes, Reply
from disque.core.topics import Kind
from tests.unit.core.builders import DAY_MS, ME, RETRY_MS, A, B, C, Node, World, view

ONE, TWO = ClientId(501), ClientId(502)


def subscribe(
    node: Node, who: int, *channels: bytes, kind: Kind = Kind.CHANNEL
) -> list[list[Reply]]:
    (answer,) = node.do(cmd.Subscribe(who, tuple((kind, name) for name in channels)))
    assert isinstance(answer, Pushes), answer
    return list(answer.each)


def published(channel: bytes, body: bytes, pattern: bytes | None = None) -> Published:
    return Published(channel, pattern, body, {})


def test_replies_tell_how_many_topics_the_connection_has() -> None:
    node = Node()
    assert subscribe(node, ONE, b"x", b"y", b"x") == [
        [b"subscribe", b"x", 1],
        [b"subscribe", b"y", 2],
        [b"subscribe", b"x", 2],
    ]
    assert subscribe(node, ONE, b"x", kind=Kind.PREFIX) == [[b"psubscribe", b"x*", 3]]
    assert subscribe(node, ONE, b"x", kind=Kind.NAME) == [[b"psubscribe", b"x", 4]]
    assert node.engine.subscription_count(ONE) == 4
    (answer,) = node.do(cmd.Unsubscribe(ONE, None))
    assert answer == Pushes(([b"unsubscribe", b"x", 3], [b"unsubscribe", b"y", 2]))
    (answer,) = node.do(cmd.Unsubscribe(ONE, None))
    assert answer == Pushes(([b"unsubscribe", None, 2],))
    (answer,) = node.do(cmd.Unsubscribe(ONE, ((Kind.PREFIX, b"x"), (Kind.PREFIX, b"z")), True))
    assert answer == Pushes(([b"punsubscribe", b"x*", 1], [b"punsubscribe", b"z*", 1]))
    (answer,) = node.do(cmd.Unsubscribe(ONE, None, True))
    assert answer == Pushes(([b"punsubscribe", b"x", 0],))
    assert node.state.topics.size == 0


def test_a_message_is_one_reply_a_subscription() -> None:
    node = Node()
    subscribe(node, ONE, b"news.a", b"other")
    subscribe(node, ONE, b"news.", kind=Kind.PREFIX)
    subscribe(node, TWO, b"", kind=Kind.PREFIX)
    node.clear()
    assert node.do(cmd.Publish(b"news.a", b"hi")) == [3]
    assert node.answers(ONE) == [
        published(b"news.a", b"hi"),
        published(b"news.a", b"hi", b"news.*"),
    ]
    assert node.answers(TWO) == [published(b"news.a", b"hi", b"*")]
    assert node.do(cmd.Publish(b"new", b"hi")) == [1]


def test_who_has_gone_hears_nothing() -> None:
    node = Node()
    subscribe(node, ONE, b"x")
    subscribe(node, ONE, b"x", kind=Kind.PREFIX)
    node.disconnect(ONE)
    node.clear()
    assert node.do(cmd.Publish(b"x", b"hi")) == [0]
    assert node.answers(ONE) == []


def test_all_nodes_hear_and_count() -> None:
    world = World.of(A, B, C)
    one, two, three = world.nodes.values()
    subscribe(two, ONE, b"x")
    subscribe(three, ONE, b"x", kind=Kind.PREFIX)
    world.settle()
    assert one.do(cmd.Publish(b"x", b"hi", {b"k": b"v"})) == [2]
    assert one.do(cmd.NumSub((b"x", b"y"))) == [[b"x", 1, b"y", 0]]
    assert one.do(cmd.CountReached(b"xx")) == [1]
    world.settle()
    assert two.answers(ONE) == [Published(b"x", None, b"hi", {b"k": b"v"})]
    assert three.answers(ONE) == [Published(b"x", b"x*", b"hi", {b"k": b"v"})]
    two.do(cmd.Unsubscribe(ONE, None))
    world.settle()
    assert one.do(cmd.CountReached(b"x")) == [1]


def test_a_cut_off_side_is_neither_told_nor_counted_and_is_counted_again_after_the_heal() -> None:
    world = World.of(A, B)
    one, two = world.nodes.values()
    subscribe(two, ONE, b"x")
    subscribe(two, TWO, b"y")
    world.settle()
    world.split([A], [B])
    two.do(cmd.Unsubscribe(TWO, None))
    two.clear()
    assert one.do(cmd.Publish(b"x", b"lost")) == [0]
    world.settle()
    world.heal()
    assert one.do(cmd.CountReached(b"x")) == [1]
    assert one.do(cmd.CountReached(b"y")) == [0]
    assert two.answers(ONE) == []


def test_a_peer_that_lost_news_hears_all_anew() -> None:
    node = Node(view(up=(B,)))
    node.hear(
        B, msg.Subscribed(0, b"x", 2, is_anew=False), msg.Subscribed(2, b"y", 1, is_anew=False)
    )
    assert node.do(cmd.CountReached(b"x")) == [2]
    node.hear(B, msg.Subscribed(2, b"y", 3, is_anew=True))
    assert node.do(cmd.CountReached(b"x")) == [0]
    assert node.do(cmd.CountReached(b"yes")) == [3]
    node.hear(B, msg.Subscribed(2, b"y", 0, is_anew=False))
    assert node.do(cmd.CountReached(b"yes")) == [0]


def test_a_newcomer_is_told_what_there_is() -> None:
    node = Node(view(up=(B,)))
    subscribe(node, ONE, b"x")
    subscribe(node, TWO, b"x")
    node.clear()
    node.see(view(up=(B, C)))
    assert [(to, said) for to, said in node.said if isinstance(said, msg.Subscribed)] == [
        (C, msg.Subscribed(0, b"x", 2, is_anew=True))
    ]


def test_order_is_kept_for_a_publisher_and_a_channel() -> None:
    world = World.of(A, B)
    one, two = world.nodes.values()
    subscribe(two, ONE, b"x")
    world.settle()
    for number in range(20):
        one.do(cmd.Publish(b"x", b"%d" % number))
    world.settle()
    bodies = [each.body for each in two.answers(ONE) if isinstance(each, Published)]
    assert bodies == [b"%d" % number for number in range(20)]


# Very many subscribers


def crowd(node: Node, count: int, channel: bytes = b"x", first: int = 1_000) -> list[ClientId]:
    """So many subscribers of a channel."""
    found = [ClientId(first + number) for number in range(count)]
    for each in found:
        node.engine.command(ME, cmd.Subscribe(each, ((Kind.CHANNEL, channel),)))
    node.engine.take_ready()
    node.clear()
    return found


def heard(node: Node, who: ClientId) -> list[bytes]:
    return [each.body for each in node.answers(who) if isinstance(each, Published)]


FEW = Limits(told_a_turn=10)


def test_very_many_are_told_in_bounded_steps_then_the_publisher_is_answered() -> None:
    node = Node(view(up=(B,)), limits=FEW)
    listeners = crowd(node, 25)
    assert node.do(cmd.Publish(b"x", b"hi")) == []
    assert node.told(msg.Publish) == [msg.Publish(b"x", {}, b"hi")]
    steps = []
    while not node.answers():
        before = len(node.replies)
        node.advance(1)
        steps.append(len(node.replies) - before)
    assert steps == [10, 10, 6]
    assert node.replies == [(each, published(b"x", b"hi")) for each in listeners] + [(ME, 25)]
    assert len({id(said) for who, said in node.replies if who != ME}) == 1, "one for all"


def test_messages_of_one_turn_are_bounded_together() -> None:
    node = Node(limits=FEW)
    listeners = crowd(node, 4)
    for number in range(5):
        node.engine.command(ClientId(number), cmd.Publish(b"x", b"%d" % number))
    assert len(node.engine.take_ready().replies) == 10, "two, with their answers"
    node.advance(5)
    assert [heard(node, each) for each in listeners] == [[b"2", b"3", b"4"]] * 4
    assert [node.answers(ClientId(number)) for number in (2, 3, 4)] == [[4]] * 3


def test_who_hears_several_channels_hears_in_the_order_of_publishing() -> None:
    node = Node(limits=FEW)
    listeners = crowd(node, 25)
    subscribe(node, listeners[-1], b"y")
    subscribe(node, listeners[-1], b"y", kind=Kind.PREFIX)
    node.clear()
    node.do(cmd.Publish(b"x", b"1"), client=ONE)
    node.do(cmd.Publish(b"y", b"2"), client=TWO)
    assert heard(node, listeners[-1]) == []
    node.advance(10)
    assert heard(node, listeners[-1]) == [b"1", b"2", b"2"]
    assert (node.answers(ONE), node.answers(TWO)) == ([25], [2])


def test_only_those_hear_it_who_had_subscribed_and_still_do() -> None:
    node = Node(limits=FEW)
    listeners = crowd(node, 25)
    node.do(cmd.Publish(b"x", b"hi"))
    node.do(cmd.Unsubscribe(listeners[-1], ((Kind.CHANNEL, b"x"),)))
    node.do(cmd.Unsubscribe(listeners[-2], ((Kind.CHANNEL, b"x"),)))
    subscribe(node, listeners[-2], b"x")
    subscribe(node, ONE, b"x")
    node.disconnect(listeners[-3])
    node.clear()
    node.advance(10)
    assert [who for who, _ in node.replies] == [*listeners[:-3], ME]
    assert not node.state.posts.since
    node.clear()
    assert node.do(cmd.Publish(b"x", b"again")) == []
    node.advance(10)
    assert heard(node, listeners[-2]) == heard(node, ONE) == [b"again"]


def test_a_publisher_that_has_gone_is_not_answered_and_all_hear_it() -> None:
    node = Node(limits=FEW)
    listeners = crowd(node, 25)
    node.do(cmd.Publish(b"x", b"hi"))
    assert node.engine.is_waiting(ME)
    node.disconnect(ME)
    assert not node.engine.is_waiting(ME)
    node.advance(10)
    assert [who for who, _ in node.replies] == listeners


def test_what_a_peer_published_is_told_in_steps_too() -> None:
    node = Node(view(up=(B,)), limits=FEW)
    listeners = crowd(node, 25)
    node.hear(B, msg.Publish(b"x", {}, b"hi"), msg.Publish(b"x", {}, b"ho"))
    assert node.replies == []
    node.advance(10)
    assert [heard(node, each) for each in listeners] == [[b"hi", b"ho"]] * 25


def test_what_waits_is_charged_and_bounded_and_beyond_that_told_at_once() -> None:
    node = Node(limits=attrs.evolve(FEW, posts_max=3, posts_bytes_max=10_000))
    listeners = crowd(node, 25)
    before = node.engine.statistics().used_memory
    for number in range(3):
        node.engine.command(ClientId(number), cmd.Publish(b"x", b"%d" % number))
    assert node.engine.statistics().used_memory - before == 3 * (1_000 + 2)
    node.engine.command(ClientId(3), cmd.Publish(b"x", b"3"))
    assert len(node.engine.take_ready().replies) == 26, "the first, with its answer"
    node.engine.command(ClientId(4), cmd.Publish(b"x", bytes(9_000)))
    assert len(node.engine.take_ready().replies) == 3 * 26, "there is no room beside it"
    assert len(node.state.posts.waiting) == 1
    node.advance(10)
    assert heard(node, listeners[-1]) == [bytes(9_000)]
    assert node.engine.statistics().used_memory == before


def test_what_waits_outlives_a_new_identity() -> None:
    node, other = Node(limits=FEW), Node(limits=FEW)
    listeners = crowd(node, 25)
    node.do(cmd.Publish(b"x", b"hi"))
    other.engine.adopt_topics(node.engine)
    other.advance(10)
    assert [who for who, _ in other.replies] == [*listeners, ME]


def test_limits() -> None:
    limits = Limits(subscriptions_max=2, topic_name_bytes_max=3, topics_told_max=1)
    node = Node(view(up=(B,)), limits=limits)
    (refusal,) = node.do(cmd.Subscribe(ONE, ((Kind.CHANNEL, b"1234"),)))
    assert refusal == Failure("ERR", "A topic's name has at most 3 bytes, got 4")
    assert node.do(cmd.Publish(b"1234", b"")) == [refusal]
    late = ((Kind.CHANNEL, b"1"), (Kind.CHANNEL, b"1234"))
    assert node.do(cmd.Subscribe(ONE, late)) == [refusal], "wherever the name stands"
    assert node.state.topics.size == 0
    (refusal,) = node.do(
        cmd.Subscribe(ONE, tuple((Kind.CHANNEL, each) for each in (b"1", b"2", b"3")))
    )
    assert refusal == Failure("ERR", "Too many subscriptions at this node, the limit is 2")
    node.clear()
    subscribe(node, ONE, b"1", b"2")
    assert node.told(msg.Subscribed) == [msg.Subscribed(0, b"1", 1, is_anew=False)]
    node.hear(B, *[msg.Subscribed(0, name, 1, is_anew=False) for name in (b"a", b"b")])
    assert node.do(cmd.NumSub((b"a", b"b"))) == [[b"a", 1, b"b", 0]]


def test_who_has_gone_with_very_many_subscriptions_leaves_in_bounded_steps() -> None:
    node = Node(view(up=(B,)))
    names = [b"%d" % number for number in range(2_500)]
    subscribe(node, ONE, *names)
    node.do(cmd.Subscribe(ONE, tuple((Kind.PREFIX, name) for name in names)))
    subscribe(node, TWO, b"7")
    node.clear()
    node.engine.disconnect(ONE)
    assert node.state.topics.size == 4_001
    for left in (3_001, 1_501, 501, 1, 1):
        node.advance(1)
        assert node.state.topics.size == left
    told = node.told(msg.Subscribed)
    assert (len(told), sum(each.count for each in told)) == (5_000, 1)  # type: ignore[attr-defined]
    assert node.do(cmd.Publish(b"7", b"")) == [1]
    assert not node.state.topics.parting


def test_it_leaves_in_spite_of_a_new_identity() -> None:
    node, other = Node(), Node()
    subscribe(node, ONE, *[b"%d" % number for number in range(2_500)])
    node.engine.disconnect(ONE)
    other.engine.adopt_topics(node.engine)
    other.advance(10)
    assert (other.state.topics.size, other.state.topics.parting) == (0, {})


def test_subscriptions_and_their_names_are_charged() -> None:
    node = Node()
    before = node.engine.statistics().used_memory
    subscribe(node, ONE, *[b"%1000d" % number for number in range(500)])
    node.do(cmd.Subscribe(ONE, tuple((Kind.PREFIX, b"%1000d" % number) for number in range(500))))
    assert node.engine.statistics().used_memory - before == 1_300_000
    node.do(cmd.Unsubscribe(ONE, None))
    assert node.engine.statistics().used_memory - before == 650_000
    node.engine.disconnect(ONE)
    assert node.engine.statistics().used_memory == before


def test_subscriptions_of_queues_are_counted_on_all_nodes() -> None:
    world = World.of(A, B)
    one, two = world.nodes.values()
    assert one.do(cmd.Attend(b"q", 1)) == [1]
    assert two.do(cmd.Attend(b"q", 1)) == [1]
    assert two.do(cmd.Attend(b"q", 1)) == [2]
    one.do(cmd.CountAttending(b"q"))
    world.settle()
    assert one.answers()[-1] == 3
    assert two.do(cmd.Attend(b"q", -1)) == [1]
    assert two.do(cmd.Attend(b"q", -1)) == [0]
    assert (two.state.topics.attending, two.state.topics.attended) == ({}, 0)


def test_a_queue_that_is_subscribed_to_stays() -> None:
    node = Node()
    node.do(cmd.Attend(b"q", 1))
    node.advance(node.state.limits.queue_idle_max_ms * 2)
    assert b"q" in node.state.queues
    node.do(cmd.Attend(b"q", -1))
    node.advance(node.state.limits.queue_idle_max_ms * 2)
    assert not node.state.queues


# Leases that are renewed while the subscriber lives


def test_a_default_retry_is_renewed_beyond_half_the_life_of_the_job() -> None:
    node = Node()
    id_ = node.add(retry_ms=None, ttl_ms=100_000)
    (delivery,) = node.get()
    assert delivery.retry_ms == 10_000
    for _ in range(12):
        node.advance(8_000)
        assert node.do(cmd.Renew((id_,)), client=ME) == [[]]
        assert node.get() == []
    node.do(cmd.AckJob((id_,)))
    assert node.do(cmd.Renew((id_,))) == [[id_]]


def test_a_given_retry_is_not_renewed() -> None:
    node = Node()
    id_ = node.add(retry_ms=RETRY_MS)
    assert node.get()[0].retry_ms == RETRY_MS
    node.advance(RETRY_MS - 1)
    assert node.do(cmd.Renew((id_,))) == [[]]
    node.advance(1_000)
    assert [each.id for each in node.get()] == [id_]


def test_what_was_handed_out_elsewhere_is_not_ours_to_renew() -> None:
    node = Node(view(up=(B,)), limits=attrs.evolve(Limits()))
    id_ = node.add(retry_ms=None, ttl_ms=DAY_MS)
    node.do(cmd.Nack((id_,)))
    assert node.do(cmd.Renew((id_,))) == [[id_]]
