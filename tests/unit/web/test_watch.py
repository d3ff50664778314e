"""Watch: every node is looked at while somebody looks, and a silent one holds nobody up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import trio

from disque.web.watch import LOOKED_S, PERIOD_S, QUEUES_A_CALL, QUEUES_MAX, Watch
from tests.unit.web.fakes import FakeNode, bulk

if TYPE_CHECKING:
    from disque.web.node import Node
    from tests.unit.web.fakes import Words

IDS = ("a" * 40, "b" * 40)


@attrs.define
class Cluster:
    """Two nodes; `queues` of the second, `is_silent` and `hello` may be changed."""

    nursery: trio.Nursery
    hello: list[Any] = attrs.Factory(lambda: hello_of(*IDS))
    info: bytes = b"added_total:10\r\nqueued_jobs:2\r\n"
    queues: int = 1
    is_silent: bool = False
    my_id: bytes | None = None
    own: FakeNode = attrs.field(init=False)
    peer: FakeNode = attrs.field(init=False)
    watch: Watch = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.own = FakeNode(self.nursery, self.answer)
        self.peer = FakeNode(
            self.nursery, lambda words: None if self.is_silent else self.answer(words)
        )

        def make_peer(_host: str, _port: int) -> Node:
            return self.peer.node()

        self.watch = Watch(self.own.node(), make_peer)
        self.nursery.start_soon(self.watch.run)

    def answer(self, words: Words) -> bytes:
        """What both nodes say."""
        match words:
            case (b"HELLO",):
                return bulk(self.hello)
            case (b"CONFIG", b"GET", name):
                return bulk([name, b"letters" if name == b"default-deadletter" else b"1000"])
            case (b"INFO",):
                return bulk(self.info)
            case (b"CLUSTER", b"LEAVING"):
                return b"+yes\r\n"
            case (b"CLUSTER", b"MYID"):
                return b"-LOADING wait\r\n" if self.my_id is None else bulk(self.my_id)
            case (b"CLUSTER", _):
                return bulk(b"")
            case (b"QSCAN", cursor, *_):
                return self.scanned(int(cursor))
            case (b"QSTAT", name, b"GLOBAL"):
                return bulk([b"name", name, b"len", 4, b"jobs-in", 8, b"nodes-answered", 2])
        raise AssertionError(words)

    def scanned(self, at: int) -> bytes:
        """One call of QSCAN."""
        names = [b"q%d" % n for n in range(at, min(at + QUEUES_A_CALL, self.queues))]
        cursor = at + len(names) if at + len(names) < self.queues else 0
        return bulk([b"%d" % cursor, [[b"name", name, b"len", 1] for name in names]])


def hello_of(*ids: str) -> list[Any]:
    """HELLO's reply at the first of these nodes."""
    return [1, ids[0].encode(), *[[id_.encode(), b"127.0.0.1", b"7711", b"1"] for id_ in ids]]


async def test_a_first_look_waits_until_every_node_was_asked(
    nursery: trio.Nursery, autojump_clock: object
) -> None:
    watch = Cluster(nursery).watch
    await watch.look()
    assert [(each.id, each.is_own, each.is_up) for each in watch.members.values()] == [
        (IDS[0], True, True),
        (IDS[1], False, True),
    ]
    assert watch.now.waiting == 4
    assert watch.dead_queue == b"letters"
    sample = watch.up[1].sample
    assert sample is not None
    assert (sample.is_leaving, sample.memory_max) == (True, 1000)


async def test_a_silent_node_is_named_and_left_out(
    nursery: trio.Nursery, autojump_clock: object
) -> None:
    cluster = Cluster(nursery, is_silent=True)
    watch = cluster.watch
    await watch.look()
    assert [each.id for each in watch.up] == [IDS[0]]
    assert watch.members[IDS[1]].trouble == "no answer within 1 s"
    assert watch.now.waiting == 2
    cluster.is_silent = False
    await watch.wait_tick()
    await watch.wait_tick()
    await watch.wait_tick()
    assert [each.id for each in watch.up] == list(IDS)


async def test_another_node_at_the_address_is_not_taken_for_the_one_that_was_there(
    nursery: trio.Nursery, autojump_clock: object
) -> None:
    watch = Cluster(nursery, my_id=IDS[0].encode()).watch
    await watch.look()
    assert [each.id for each in watch.up] == [IDS[0]]
    assert watch.members[IDS[1]].trouble == "another node answers there: aaaaaaaa"


async def test_nobody_is_asked_while_nobody_looks(
    nursery: trio.Nursery, autojump_clock: object
) -> None:
    cluster = Cluster(nursery)
    await trio.sleep(10 * LOOKED_S)
    assert cluster.own.heard == []
    await cluster.watch.look()
    await trio.sleep(LOOKED_S + 2 * PERIOD_S)
    heard = len(cluster.own.heard)
    assert heard > 0
    await trio.sleep(10 * LOOKED_S)
    assert len(cluster.own.heard) == heard


async def test_what_was_remembered_long_ago_is_not_shown_again(
    nursery: trio.Nursery, autojump_clock: object
) -> None:
    cluster = Cluster(nursery)
    await cluster.watch.look()
    await trio.sleep(20 * LOOKED_S)
    cluster.info = b"queued_jobs:50\r\n"
    await cluster.watch.look()
    assert cluster.watch.now.waiting == 100
    assert [each.waiting for each in cluster.watch.history] in ([], [100])


async def test_who_leaves_the_cluster_is_not_shown_and_who_joins_is(
    nursery: trio.Nursery, autojump_clock: object
) -> None:
    cluster = Cluster(nursery)
    watch = cluster.watch
    await watch.look()
    cluster.hello = hello_of(IDS[0])
    await watch.wait_tick()
    await watch.wait_tick()
    assert list(watch.members) == [IDS[0]]
    cluster.hello = hello_of(IDS[0], "c" * 40)
    await watch.wait_tick()
    await watch.wait_tick()
    await watch.look()
    assert list(watch.members) == [IDS[0], "c" * 40]


async def test_a_node_that_cannot_tell_who_is_there_says_why(
    nursery: trio.Nursery, autojump_clock: object
) -> None:
    fake = FakeNode(nursery, lambda _: b"-LOADING wait\r\n")

    def make_peer(_host: str, _port: int) -> Node:
        raise AssertionError("nobody is known")

    watch = Watch(fake.node(), make_peer)
    nursery.start_soon(watch.run)
    await watch.look()
    assert watch.own_trouble == "LOADING wait"
    assert watch.members == {}


async def test_queues_are_read_page_by_page_up_to_a_bound(
    nursery: trio.Nursery, autojump_clock: object
) -> None:
    cluster = Cluster(nursery, queues=QUEUES_A_CALL + 1)
    await cluster.watch.look()
    sample = cluster.watch.up[0].sample
    assert sample is not None
    assert (len(sample.queues), sample.is_complete) == (QUEUES_A_CALL + 1, True)
    cluster.queues = 10 * QUEUES_MAX
    await trio.sleep(2 * PERIOD_S)
    sample = cluster.watch.up[0].sample
    assert sample is not None
    assert (len(sample.queues), sample.is_complete) == (QUEUES_MAX, False)


async def test_a_queue_that_is_looked_at_has_a_history(
    nursery: trio.Nursery, autojump_clock: object
) -> None:
    watch = Cluster(nursery).watch
    watched = await watch.look_at_queue(b"q\xff")
    assert watched.row is not None
    assert (watched.row.name, watched.row.length, watched.answered) == (b"q\xff", 4, 2)
    await watch.wait_tick()
    await watch.wait_tick()
    assert len(watched.history) >= 2
    assert await watch.look_at_queue(b"q\xff") is watched
