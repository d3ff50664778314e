"""Which queues a message reaches, and that no exchange's name can be taken for a pattern."""

from __future__ import annotations

import pytest

from disque.kombu_transport.bindings import Binding, queues_for
from disque.kombu_transport.ear import topic_of


@pytest.mark.parametrize(
    ("kind", "binding_key", "routing_key", "fits"),
    [
        ("direct", "a.b", "a.b", True),
        ("direct", "a.b", "a.c", False),
        ("direct", "a.*", "a.b", False),
        ("fanout", "x", "y", True),
        ("topic", "a.*", "a.b", True),
        ("topic", "a.*", "a.b.c", False),
        ("topic", "a.*", "axb", False),
        ("topic", "a.#", "a.b.c", True),
        ("topic", "#", "", True),
        ("topic", "a.b", "a.b", True),
        ("topic", "(a", "(a", True),
    ],
)
def test_a_binding_fits_by_the_rules_of_its_exchange(
    kind: str, binding_key: str, routing_key: str, *, fits: bool
) -> None:
    assert Binding("e", kind, binding_key, "q").fits(routing_key) is fits


def test_a_queue_that_is_bound_twice_gets_a_message_once() -> None:
    ways = [
        Binding("e", "topic", "a.*", "q"),
        Binding("e", "topic", "#", "q"),
        Binding("e", "topic", "b.*", "other"),
    ]
    assert queues_for(ways, "a.b") == ["q"]


@pytest.mark.parametrize("name", ["news", "a/b", "a*", "[x]", "ä?\\", "a b\r\n", ""])
def test_a_topic_is_no_pattern(name: str) -> None:
    topic = topic_of(name, name)
    assert topic.count("/") == 2
    assert not set(topic) & set("*?[]\\ \r\n")
    assert topic.isascii()


def test_different_exchanges_have_different_topics() -> None:
    assert topic_of("a", "b/c") != topic_of("a/b", "c")
