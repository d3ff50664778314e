"""Tables that had very many things once don't keep the room for them."""

from __future__ import annotations

import sys
from collections import OrderedDict

import attrs

from disque.core import shrinking
from disque.core.delivery import free, queue_of
from disque.core.state import State
from disque.core.topics import Kind
from tests.unit.core.builders import ME, Node

MANY = 30_000
SMALL_BYTES = 10_000


def test_a_table_that_has_lost_nearly_all_is_made_anew() -> None:
    node = Node()
    node.add(queue=b"kept")
    state = node.state
    for number in range(MANY):
        queue_of(state, b"name-%d" % number)
    for number in range(MANY):
        free(state, state.queues[b"name-%d" % number])
    queue_of(state, b"last")
    assert sys.getsizeof(state.queues) > 1_000_000
    node.engine.shrink()
    assert list(state.queues) == [b"kept", b"last"]
    assert sys.getsizeof(state.queues) < SMALL_BYTES


def test_one_that_is_filled_stays_as_it_is() -> None:
    node = Node()
    for number in range(MANY):
        queue_of(node.state, b"name-%d" % number)
    size = sys.getsizeof(node.state.queues)
    node.engine.shrink()
    assert (len(node.state.queues), sys.getsizeof(node.state.queues)) == (MANY, size)


def test_topics_and_pools_in_order_too() -> None:
    node = Node()
    state = node.state
    topics = [(Kind.CHANNEL, b"news-%d" % number) for number in range(MANY)]
    for topic in topics:
        state.topics.add(ME, topic)
    for topic in topics[1:]:
        state.topics.remove(ME, topic)
    state.expired.update((b"D-%d" % number, 0) for number in range(MANY))  # type: ignore[misc]
    while len(state.expired) > 2:
        state.expired.popitem(last=False)
    node.engine.shrink()
    assert [topic for topic, _ in state.topics.table.matches(b"news-0")] == [topics[0]]
    assert sys.getsizeof(state.topics.table.tables[Kind.CHANNEL]) < SMALL_BYTES
    assert isinstance(state.expired, OrderedDict)
    assert list(state.expired) == [b"D-%d" % number for number in (MANY - 2, MANY - 1)]
    assert sys.getsizeof(state.expired) < SMALL_BYTES


def test_it_knows_each_table_of_the_state() -> None:
    # of which there can be as many as there are jobs, queues, clients
    bounded = {
        "chores", "reached", "peers", "purges_seen", "down_since", "refusing", "batch_of", "said_in", "shared_nodes",
        "silent", "shared_specs", "shared_claims", "joined", "counted", "pauses",
    }  # fmt: skip
    state = Node().state
    names = {
        each.name for each in attrs.fields(State) if isinstance(getattr(state, each.name), dict)
    }
    seen = {id(table) for table in shrinking._tables(state)}
    assert {name for name in names if id(getattr(state, name)) not in seen} == bounded
