"""Node: questions survive a dead connection, orders are never said twice, nothing waits for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from disque.web.node import REPLY_BYTES_MAX, Node, UnreachableError
from disque.web.replies import Failure
from tests.unit.web.fakes import FakeNode, bulk

if TYPE_CHECKING:
    from tests.unit.web.fakes import Words


NOAUTH = b"-NOAUTH Authentication required.\r\n"


def echo(words: Words) -> bytes:
    """The words again."""
    return bulk(list(words))


async def test_several_questions_share_a_connection_which_is_kept(nursery: trio.Nursery) -> None:
    fake = FakeNode(nursery, echo)
    node = fake.node()
    assert await node.ask(("A", 1), (b"\xff",)) == [[b"A", b"1"], [b"\xff"]]
    assert await node.ask(("B",)) == [[b"B"]]
    assert len(fake.connections) == 1


async def test_a_question_is_asked_again_when_its_connection_had_died(
    nursery: trio.Nursery,
) -> None:
    fake = FakeNode(nursery, echo)
    node = fake.node()
    await node.ask(("A",))
    await fake.hang_up()
    assert await node.ask(("B",)) == [[b"B"]]


async def test_an_order_whose_connection_dies_is_not_said_again(nursery: trio.Nursery) -> None:
    def hang_up(_: Words) -> bytes:
        raise EOFError

    fake = FakeNode(nursery, hang_up)
    with pytest.raises(UnreachableError, match="broke"):
        await fake.node().order("CANCELJOB", "x")
    assert fake.heard == [(b"CANCELJOB", b"x")]


async def test_an_order_does_not_trust_an_old_connection(nursery: trio.Nursery) -> None:
    fake = FakeNode(nursery, echo)
    node = fake.node()
    await node.ask(("A",))
    assert await node.order("B") == [b"B"]
    assert len(fake.connections) == 2


async def test_the_password_comes_first(nursery: trio.Nursery) -> None:
    fake = FakeNode(nursery, echo)
    await fake.node(password="pä\udcff").ask(("A",))
    assert fake.heard == [(b"AUTH", "pä".encode() + b"\xff"), (b"A",)]


async def test_a_node_that_has_got_a_password_meanwhile_is_told_it(nursery: trio.Nursery) -> None:
    passwords = [""]
    fake = FakeNode(nursery, echo)
    node = Node(fake.dial, password=lambda: passwords[-1], timeout_s=1.0)
    await node.ask(("A",))
    passwords.append("new")
    fake.answer = lambda words: echo(words) if (b"AUTH", b"new") in fake.heard else NOAUTH
    assert await node.ask(("B",)) == [Failure("NOAUTH Authentication required.")]
    assert await node.ask(("C",)) == [[b"C"]]


async def test_a_wrong_password_is_told(nursery: trio.Nursery) -> None:
    fake = FakeNode(nursery, lambda _: b"-ERR invalid password\r\n")
    with pytest.raises(UnreachableError, match="refuses our password: ERR invalid password"):
        await fake.node(password="x").ask(("A",))


async def test_an_error_is_an_answer(nursery: trio.Nursery) -> None:
    fake = FakeNode(nursery, lambda _: b"-LOADING wait\r\n")
    assert await fake.node().ask(("A",)) == [Failure("LOADING wait")]


async def test_last_words_of_a_node_that_hangs_up_are_told(nursery: trio.Nursery) -> None:
    def refuse(words: Words) -> bytes:
        if words == (b"B",):
            raise EOFError
        return b"-DENIED not from there\r\n"

    with pytest.raises(UnreachableError, match="DENIED not from there"):
        await FakeNode(nursery, refuse).node().ask(("A",), ("B",))


async def test_a_silent_node_is_given_up(nursery: trio.Nursery, autojump_clock: object) -> None:
    fake = FakeNode(nursery, lambda _: None)
    with pytest.raises(UnreachableError, match="no answer within 1 s"):
        await fake.node().ask(("A",))
    fake.answer = echo
    assert await fake.node().ask(("B",)) == [[b"B"]]


async def test_what_refuses_to_connect_is_told(nursery: trio.Nursery) -> None:
    fake = FakeNode(nursery, echo)
    fake.is_down = True
    with pytest.raises(UnreachableError, match="connection refused"):
        await fake.node().ask(("A",))


async def test_nonsense_ends_the_connection(nursery: trio.Nursery) -> None:
    fake = FakeNode(nursery, lambda _: b"hello\r\n")
    node = fake.node()
    with pytest.raises(UnreachableError, match="can't be shown"):
        await node.ask(("A",))
    fake.answer = echo
    assert await node.ask(("B",)) == [[b"B"]]


async def test_an_endless_answer_is_cut(nursery: trio.Nursery) -> None:
    size = REPLY_BYTES_MAX + 1
    fake = FakeNode(nursery, lambda _: b"$%d\r\n%b\r\n" % (size, bytes(size)))
    with pytest.raises(UnreachableError, match="more than 64 MiB"):
        await fake.node(timeout_s=30).ask(("A",))
