"""Connection: batches out, replies in, and how far it got when the stream ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disque.client.connection import BATCH_BYTES, BadReplyError, Connection, encode, in_batches
from disque.client.errors import ReplyError
from disque.client.transport import run
from tests.unit.client.world import CUT, SILENCE, Node, Stream, World


def connection_to(node: Node) -> tuple[Connection, Stream]:
    stream = Stream(World({}), node)
    return Connection(stream), stream


def test_replies_come_in_order_and_errors_are_values() -> None:
    answers = {b"A": b"+one\r\n", b"B": b"-NOPE two\r\n", b"C": b"*2\r\n:3\r\n$-1\r\n"}
    connection, _ = connection_to(Node("a", "", lambda words: answers[words[0]]))
    done = run(connection.exchange([encode([b"A"]), encode([b"B"]), encode([b"C"])], 1.0))
    one, two, three = done.replies
    assert (one, str(two), three) == (b"one", "NOPE two", [3, None])
    assert isinstance(two, ReplyError)
    assert (done.sent, done.trouble) == (3, None)


def test_what_was_answered_before_the_end_is_kept() -> None:
    connection, _ = connection_to(
        Node("a", "", lambda words: CUT if words[0] == b"B" else b":1\r\n")
    )
    done = run(connection.exchange([encode([b"A"]), encode([b"B"]), encode([b"C"])], 1.0))
    assert (done.replies, done.sent) == ([1], 3)
    assert isinstance(done.trouble, ConnectionResetError)


def test_silence_is_a_trouble_when_the_deadline_comes() -> None:
    connection, _ = connection_to(Node("a", "", lambda _: SILENCE))
    done = run(connection.exchange([encode([b"A"])], 1.0))
    assert (done.replies, done.sent, type(done.trouble)) == ([], 1, TimeoutError)


def test_what_is_no_resp_is_a_trouble() -> None:
    connection, _ = connection_to(Node("a", "", lambda _: b"HTTP/1.1 400\r\n"))
    done = run(connection.exchange([encode([b"A"])], 1.0))
    assert isinstance(done.trouble, BadReplyError)


def test_a_reply_without_end_is_a_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("disque.client.connection.REPLY_BYTES_MAX", 1_000)
    for begun in (b"$1000000\r\n", b"*1000000\r\n" + b":1\r\n" * 1_000, b"+"):
        connection, _ = connection_to(Node("a", "", lambda _, b=begun: b + b"x" * 2_000))  # type: ignore[misc]
        done = run(connection.exchange([encode([b"A"])], 1.0))
        assert isinstance(done.trouble, BadReplyError)
        assert "more than 1000 bytes" in str(done.trouble)


def test_short_replies_are_as_many_as_you_like(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("disque.client.connection.REPLY_BYTES_MAX", 1_000)
    connection, _ = connection_to(Node("a", "", lambda _: b"$900\r\n" + b"x" * 900 + b"\r\n"))
    for _ in range(3):
        assert run(connection.exchange([encode([b"A"])], 1.0)).trouble is None


SIZES = st.lists(st.integers(0, 300), min_size=1, max_size=8)


@given(SIZES, st.integers(0, 8), st.sampled_from([-1, 0, 1, 20]))
def test_a_command_counts_as_sent_exactly_if_the_other_end_got_it_whole(
    sizes: list[int], whole: int, more: int
) -> None:
    node = Node("a", "", lambda _: SILENCE)
    connection, stream = connection_to(node)
    batch = [encode([b"X", b"y" * size]) for size in sizes]
    stream.bytes_left = max(0, sum(map(len, batch[:whole])) + more)
    stream.piece = 100
    done = run(connection.exchange(batch, 1.0))
    assert done.sent == len(node.asked)


@given(st.lists(st.one_of(st.integers(1, 200), st.integers(1, 3 * BATCH_BYTES)), max_size=60))
def test_batches_keep_the_order_and_are_bounded(sizes: list[int]) -> None:
    encoded = [b"x" * size for size in sizes]
    counts = in_batches(encoded)
    assert sum(counts) == len(sizes)
    at = 0
    for count in counts:
        batch = sizes[at : at + count]
        assert count == 1 or sum(batch) <= BATCH_BYTES
        at += count
