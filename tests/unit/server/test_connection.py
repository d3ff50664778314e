"""Slots keep replies in the order of their commands; unsent bytes are bounded."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from disque.core.ready import ClientId
from disque.resp.decoder import Decoder
from disque.server.connection import OPEN_ADDS_MAX, Client

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def pair() -> Iterator[tuple[Client, socket.socket]]:
    """A client and the other end of its connection."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.settimeout(5)
    with ours, theirs:
        yield make_client(ours), theirs


def make_client(sock: socket.socket, wants: Callable[[Client], None] = lambda _: None) -> Client:
    """A client over a socket."""
    return Client(ClientId(1), sock, Decoder(), now_ms=0, wants_writer=wants)


Pair = tuple[Client, socket.socket]


def test_replies_leave_in_the_order_of_commands_however_they_come(pair: Pair) -> None:
    client, _ = pair
    client.answer(b"1")
    second = client.open_slot(ClientId(2))
    client.answer(b"3")
    fourth = client.open_slot(ClientId(4))
    assert client.take_finished() == b"1"
    assert client.take_finished() == b""
    client.fill(fourth, b"4")
    assert client.take_finished() == b""
    client.fill(second, b"2")
    assert client.take_finished() == b"234"
    assert client.is_flushed is False  # taken, not yet sent


def test_slot_remembers_the_protocol_of_its_command(pair: Pair) -> None:
    client, _ = pair
    first = client.open_slot(ClientId(1))
    client.proto = 3
    second = client.open_slot(ClientId(2))
    assert (first.proto, second.proto) == (2, 3)


def test_client_waits_until_its_last_slot_is_filled(pair: Pair) -> None:
    client, _ = pair
    slots = [client.open_slot(ClientId(number)) for number in (1, 2)]
    for slot in slots:
        client.wait_for(slot, is_alone=False)
    client.fill(slots[1], b"b")
    assert client.is_waiting
    client.fill(slots[0], b"a")
    assert not client.is_waiting


def test_nothing_overtakes_a_command_that_waits_alone_and_adds_are_bounded(pair: Pair) -> None:
    client, _ = pair
    client.pending.append([b"ADDJOB"])
    for number in range(OPEN_ADDS_MAX):
        assert client.is_runnable
        client.wait_for(client.open_slot(ClientId(number)), is_alone=False)
    assert not client.is_runnable
    client.fill(client.open[ClientId(7)], b"x")
    assert client.is_runnable
    alone = client.open_slot(ClientId(5_000))
    client.wait_for(alone, is_alone=True)
    assert not client.is_runnable
    client.fill(alone, b"y")
    assert client.waits == OPEN_ADDS_MAX - 1
    assert client.is_runnable


def test_giving_up_forgets_what_is_behind_the_first_open_slot(pair: Pair) -> None:
    client, _ = pair
    client.answer(b"1")
    client.wait_for(client.open_slot(ClientId(7)), is_alone=True)
    client.answer(b"3")
    assert client.give_up_waiting() == [ClientId(7)]
    assert client.take_finished() == b"1"
    assert not client.is_waiting


def test_reply_off_and_skip_leave_no_trace_and_lines_of_monitor_still_come(pair: Pair) -> None:
    client, _ = pair
    client.is_skipping = True
    client.begin()
    slot = client.open_slot(ClientId(1))
    client.answer(b"a")
    client.tell(b"line ")
    assert client.take_finished() == b"line "  # it waits for no slot
    client.begin()
    client.answer(b"b")
    client.fill(slot, b"c")
    assert client.take_finished() == b"b"
    client.is_off = True
    client.begin()
    client.answer(b"d")
    client.tell(b"line")
    assert client.take_finished() == b"line"


def test_short_write_keeps_the_rest_in_order_and_asks_for_a_writer_once(pair: Pair) -> None:
    _, theirs = pair
    asked: list[Client] = []
    client = make_client(pair[0].sock, asked.append)
    data = bytes(range(256)) * 10_000
    for each in (data, b"end"):
        client.answer(each)
        client.send(client.take_finished())
    assert asked == [client]
    assert 0 < client.backlog_bytes < len(data) + 3
    received = b""
    while len(received) < len(data) + 3:
        received += theirs.recv(1 << 20)
        client.push()
    assert received == data + b"end"
    assert client.backlog_bytes == 0
    assert client.sent_bytes == len(data) + 3


def test_client_over_its_output_limit_is_dropped(pair: Pair) -> None:
    client, _ = pair
    client.out_limit_bytes = 1_000_000
    client.answer(bytes(10_000_000))
    client.send(client.take_finished())
    assert client.is_dead
    assert client.backlog_bytes == 0


def test_socket_that_broke_ends_the_client_without_an_exception(pair: Pair) -> None:
    client, theirs = pair
    theirs.close()
    client.answer(b"x")
    client.send(client.take_finished())
    assert client.is_dead


def test_closing_client_is_flushed_when_the_last_byte_is_out(pair: Pair) -> None:
    client, _ = pair
    client.answer(b"OK")
    client.close_soon()
    assert not client.is_flushed
    data = client.take_finished()
    assert not client.is_flushed
    client.send(data)
    assert client.flushed.is_set()


def test_nothing_runs_while_waiting_closing_or_with_too_much_unsent(pair: Pair) -> None:
    client, _ = pair
    client.pending.append([b"PING"])
    assert client.is_runnable
    client.is_alone = True
    assert not client.is_runnable
    client.is_alone = False
    client.backlog_bytes = 65 << 20
    assert not client.is_runnable
    assert client.is_full
