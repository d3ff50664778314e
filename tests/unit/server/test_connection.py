"""Slots keep replies in the order of their commands; unsent bytes are bounded."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from disque.core.ready import ClientId
from disque.resp.decoder import Decoder
from disque.server.connection import Client

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
    client.open_slot()
    client.answer(b"3")
    client.open_slot()
    assert client.take_finished() == b"1"
    assert client.take_finished() == b""
    client.fill(b"2")
    assert client.take_finished() == b"23"
    client.fill(b"4")
    assert client.take_finished() == b"4"


def test_slot_remembers_the_protocol_of_its_command(pair: Pair) -> None:
    client, _ = pair
    client.open_slot()
    client.proto = 3
    client.open_slot()
    assert client.next_proto == 2
    client.fill(b"a")
    assert client.next_proto == 3


def test_client_waits_until_its_last_slot_is_filled(pair: Pair) -> None:
    client, _ = pair
    client.open_slot()
    client.open_slot()
    client.is_waiting = True
    client.fill(b"a")
    assert client.is_waiting
    client.fill(b"b")
    assert not client.is_waiting


def test_giving_up_forgets_what_is_behind_the_first_open_slot(pair: Pair) -> None:
    client, _ = pair
    client.answer(b"1")
    client.open_slot()
    client.answer(b"3")
    client.is_waiting = True
    client.give_up_waiting()
    assert client.take_finished() == b"1"
    assert not client.is_waiting


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
    client.is_waiting = True
    assert not client.is_runnable
    client.is_waiting = False
    client.backlog_bytes = 65 << 20
    assert not client.is_runnable
    assert client.is_full
