"""Reading for many: who asks for little isn't held up by a flood of those who ask for much."""

from __future__ import annotations

import itertools
import selectors
import socket
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio

from disque.server import polling
from disque.server.polling import PUSHES_A_PASS, OtherPoll, Poller, Pusher

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True, params=["epoll", pytest.param("selector", marks=pytest.mark.patches)])
def either_poll(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Linux has and what others have."""
    if request.param == "selector":
        made = lambda: OtherPoll(selectors.DefaultSelector())  # noqa: E731
        monkeypatch.setattr(polling, "new_poll", made)


@attrs.define(eq=False)
class Reader:
    """As much of a client as a poller sees."""

    sock: socket.socket
    other: socket.socket
    name: str


class Rows:
    """As much of the turn loop as a poller sees; a client's read takes a second of a clock of its own."""

    def __init__(self) -> None:
        self.served: list[str] = []
        self.now_s = 0.0
        self.is_row = False

    def begin(self) -> None:
        self.is_row = True

    def finish(self) -> None:
        self.is_row = False

    def take_in(self, reader: Any) -> None:
        assert self.is_row
        reader.sock.recv(1)
        self.served.append(reader.name)
        self.now_s += 1


@contextmanager
def polled(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> Iterator[tuple[Poller, Rows, list[Reader]]]:
    rows = Rows()
    monkeypatch.setattr(polling, "time", SimpleNamespace(perf_counter=lambda: rows.now_s))
    poller = Poller(rows, rows.take_in)  # type: ignore[arg-type]
    with ExitStack() as stack:
        readers = []
        for number in range(count):
            ours, theirs = (stack.enter_context(each) for each in socket.socketpair())
            ours.setblocking(False)
            readers.append(Reader(ours, theirs, f"r{number}"))
            poller.watch(readers[-1])  # type: ignore[arg-type]
        yield poller, rows, readers


async def run(poller: Poller) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(poller.run)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()


async def test_all_are_served_as_often_as_they_say_something(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with polled(monkeypatch, 100) as (poller, rows, readers):
        for reader in readers:
            reader.other.send(b"xx")
        await run(poller)
        assert sorted(rows.served) == sorted(2 * [reader.name for reader in readers])


async def test_who_comes_later_doesn_t_wait_for_all_who_came_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with polled(monkeypatch, 100) as (poller, rows, readers):
        *many, late = readers
        for reader in many:
            reader.other.send(b"x")
        take_in = rows.take_in

        def then_one_comes(reader: Any) -> None:
            take_in(reader)
            if len(rows.served) == 3:
                late.other.send(b"x")

        poller._take_in = then_one_comes
        await run(poller)
        assert len(rows.served) == 100
        assert rows.served.index(late.name) <= 5


async def test_those_who_wait_have_their_part_of_each_row(monkeypatch: pytest.MonkeyPatch) -> None:
    with polled(monkeypatch, 20) as (poller, rows, readers):
        *many, pest = readers
        for reader in many:
            reader.other.send(b"x")
        take_in = rows.take_in

        def pesters(reader: Any) -> None:
            take_in(reader)
            # it always has something new to say, until the others are through
            if len(set(rows.served)) < 20:
                pest.other.send(b"x")

        poller._take_in = pesters
        await run(poller)
        assert set(rows.served) == {reader.name for reader in readers}


@attrs.define(eq=False)
class Writer:
    """As much of a client as a pusher sees."""

    sock: socket.socket
    backlog: list[bytes] = attrs.Factory(lambda: [b"x", b"y"])


async def test_others_have_their_turn_between_a_few_of_many_who_have_room_at_once() -> None:
    pushed: list[Writer] = []
    counts: list[int] = []

    def push(writer: Any) -> None:
        pushed.append(writer)
        del writer.backlog[0]

    async def others() -> None:
        while True:
            counts.append(len(pushed))
            await trio.lowlevel.checkpoint()

    pusher = Pusher(push)
    with ExitStack() as stack:
        pairs = [socket.socketpair() for _ in range(5 * PUSHES_A_PASS)]
        writers = [Writer(stack.enter_context(ours)) for ours, _ in pairs]
        for writer, (_, theirs) in zip(writers, pairs, strict=True):
            stack.enter_context(theirs)
            pusher.watch(writer)  # type: ignore[arg-type]
        gone = writers.pop()
        pusher.unwatch(gone)  # type: ignore[arg-type]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pusher.run)
            nursery.start_soon(others)
            while any(writer.backlog for writer in writers):
                await trio.lowlevel.checkpoint()
            for _ in range(10):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
    assert pushed == writers + writers
    # two of its passes may lie between two of another's
    assert max(b - a for a, b in itertools.pairwise(counts)) <= 2 * PUSHES_A_PASS


@pytest.mark.parametrize(
    "make", [lambda: Pusher(lambda _: None), lambda: Poller(Rows(), lambda _: None)]
)
async def test_a_reply_while_the_server_ends_is_no_error(make: Any) -> None:
    """Who writes them may be cancelled before those who still have something to say."""
    watcher = make()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watcher.run)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        watcher.watch(Writer(ours))
        watcher.unwatch(Writer(ours))
