"""Topics: whom a message reaches, against a plain scan of all subscriptions."""

from __future__ import annotations

from itertools import chain

from hypothesis import given, settings
from hypothesis import strategies as st

from disque.core.topics import Kind, Topic, Topics, TopicTable, count_of, pattern_of

names = st.text("ab.", max_size=5).map(str.encode)
topics = st.tuples(st.sampled_from(Kind), names)
changes = st.lists(st.tuples(st.booleans(), st.integers(1, 4), topics), max_size=40)


def is_for(topic: Topic, channel: bytes) -> bool:
    kind, name = topic
    return channel.startswith(name) if kind is Kind.PREFIX else channel == name


@settings(max_examples=200, deadline=None)
@given(changes, names)
def test_a_message_reaches_exactly_those_whose_topic_it_is(
    said: list[tuple[bool, int, Topic]], channel: bytes
) -> None:
    kept, model = Topics(), dict[tuple[int, Topic], None]()
    for is_add, who, topic in said:
        if is_add:
            assert kept.add(who, topic) is ((who, topic) not in model)
            model[who, topic] = None
        else:
            assert kept.remove(who, topic) is ((who, topic) in model)
            model.pop((who, topic), None)
    reached = sorted(
        (who, topic)
        for topic, found in kept.table.matches(channel)
        for who in ((found,) if isinstance(found, int) else found)
    )
    assert reached == sorted(pair for pair in model if is_for(pair[1], channel))
    assert kept.size == len(model)
    assert len(kept.table) == len({topic for _, topic in model})
    for who in range(1, 5):
        assert kept.count_of(who) == sum(each == who for each, _ in model)
        patterns = [t for each, t in model if each == who and t[0] is not Kind.CHANNEL]
        pieces = list(kept.pieces_of(who, 3, are_patterns=True))
        assert sorted(chain(*pieces)) == sorted(patterns)
        assert all(len(piece) == 3 for piece in pieces[:-1])


@given(st.lists(topics, max_size=30))
def test_what_was_taken_out_leaves_nothing(chosen: list[Topic]) -> None:
    kept = Topics()
    for topic in chosen:
        kept.add(1, topic)
    for topic in chosen:
        kept.remove(1, topic)
    assert (kept.size, kept.chosen, len(kept.table)) == (0, {}, 0)
    assert list(kept.table.matches(b"a.b")) == []
    assert (kept.table._lengths, kept.table._counts) == ([], {})


def test_subscribers_of_a_topic_are_reached_in_order_of_their_coming() -> None:
    kept = Topics()
    for who in (3, 1, 2):
        kept.add(who, (Kind.CHANNEL, b"x"))
    kept.remove(3, (Kind.CHANNEL, b"x"))
    kept.add(3, (Kind.CHANNEL, b"x"))
    ((_, who),) = kept.table.matches(b"x")
    assert isinstance(who, dict)
    assert list(who) == [1, 2, 3]
    assert count_of(who) == 3


def test_some_of_a_table() -> None:
    table = TopicTable[int]()
    chosen = [(Kind.PREFIX, b"p"), (Kind.CHANNEL, b"x"), (Kind.CHANNEL, b"y"), (Kind.NAME, b"n")]
    for number, topic in enumerate(chosen):
        table.put(topic, number)
    assert [topic for topic, _ in table.first(3)] == [chosen[1], chosen[2], chosen[3]]
    assert len(list(table.first(99))) == 4
    assert list(table.first(0)) == []


def test_how_a_pattern_is_shown() -> None:
    said = [pattern_of((kind, b"news.")) for kind in Kind]
    assert said == [None, b"news.", b"news.*"]
