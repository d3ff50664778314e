"""Clients under TLS: ends, closing and large replies as on plain sockets."""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import pytest
import trio
import trio.testing

from disque.server.tls import OWN_WORDS_BYTES_MAX, RECORD_BYTES, TlsSocket
from tests.certificates import Authority
from tests.unit.server.world import SOON_S, World, running, tcp_pair

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
Contexts = tuple[ssl.SSLContext, ssl.SSLContext]


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> Contexts:
    """The node's and its clients'."""
    authority = Authority(tmp_path_factory.mktemp("authority"))
    own = authority.issue("server")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(own.cert, own.key)
    return server, authority.client()


class TlsPeer:
    """The other end of a client's connection, which says itself when its bytes leave."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        self.stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
        self._read, self._written = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._read, self._written, server_hostname="127.0.0.1")

    async def flush(self) -> None:
        """Send in one go what was written."""
        await self.stream.send_all(self._written.read())

    async def reach(self, step: Callable[[], T]) -> T:
        """Do what may need more bytes of the other side."""
        with trio.fail_after(SOON_S):
            while True:
                try:
                    return step()
                except ssl.SSLWantReadError:
                    await self.flush()
                    data = await self.stream.receive_some()
                    self._read.write(data)
                    if not data:
                        self._read.write_eof()
                finally:
                    await self.flush()

    async def expect(self, reply: bytes) -> None:
        """The next bytes must be these."""
        got = b""
        while len(got) < len(reply):
            got += await self.reach(lambda: self.tls.read(1 << 20))
        assert got == reply

    async def expect_end(self) -> None:
        """Nothing more may come; for what did come, see `expect`."""
        with trio.fail_after(SOON_S):
            while data := await self.stream.receive_some():
                self._read.write(data)


async def connect(world: World, contexts: Contexts) -> tuple[TlsSocket, TlsPeer]:
    ours, theirs = tcp_pair()
    ours.setblocking(False)
    world.clients.handshakes.context = lambda: contexts[0]
    peer = TlsPeer(theirs, contexts[1])
    world.peers.append(peer)  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer.reach, peer.tls.do_handshake)
        secured = await world.clients.handshakes.shake(ours, "")
    assert secured is not None
    return secured, peer


async def admit(world: World, contexts: Contexts) -> TlsPeer:
    secured, peer = await connect(world, contexts)
    world.clients.admit(secured, ("127.0.0.1", 1))
    return peer


async def test_the_end_of_the_stream_is_seen_though_it_came_with_a_command(
    contexts: Contexts,
) -> None:
    async with running() as world:
        peer = await admit(world, contexts)
        peer.tls.write(b"PING\r\n")
        with pytest.raises(ssl.SSLWantReadError):
            peer.tls.unwrap()
        await peer.flush()
        await peer.expect(b"+PONG\r\n")
        await peer.expect_end()


async def test_records_of_a_byte_are_read_so_many_at_a_time(contexts: Contexts) -> None:
    async with running() as world:
        secured, peer = await connect(world, contexts)
        said = bytes(range(250)) * 8
        for byte in said:
            peer.tls.write(bytes((byte,)))
        await peer.flush()
        sizes, heard = [], b""
        while len(heard) < len(said):
            await trio.lowlevel.wait_readable(secured)
            heard += (data := secured.recv(64 << 10))
            sizes.append(len(data))
        assert heard == said
        assert max(sizes) * 20 < RECORD_BYTES  # each has more than that around it
        secured.close()


async def test_messages_of_tls_itself_are_read_so_many_at_a_time(contexts: Contexts) -> None:
    """OpenSSL deals with them inside; it never returned while a client went on sending new keys."""
    async with running() as world:
        secured, peer = await connect(world, contexts)
        fed: list[int] = []
        secured._feed = lambda data: fed.append(len(data))  # type: ignore[method-assign]
        secured.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        await peer.stream.send_all(bytes(5 * RECORD_BYTES))
        await trio.lowlevel.wait_readable(secured)
        with pytest.raises(BlockingIOError):
            secured.recv(64 << 10)
        assert fed == [RECORD_BYTES]
        secured.close()


async def test_who_asks_for_answers_of_tls_and_reads_none_is_dropped(contexts: Contexts) -> None:
    async with running() as world:
        secured, peer = await connect(world, contexts)
        secured.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 10)
        peer.tls.write(b"x")
        await peer.flush()
        await trio.lowlevel.wait_readable(secured)
        # As OpenSSL would, of a request for new keys
        secured._outgoing.write(bytes(OWN_WORDS_BYTES_MAX + (8 << 20)))
        with pytest.raises(ConnectionAbortedError):
            secured.recv()
        secured.close()


async def test_who_still_sends_when_its_connection_is_closed_isnt_reset(contexts: Contexts) -> None:
    async with running() as world:
        peer = await admit(world, contexts)
        peer.tls.write(b"QUIT\r\n")
        await peer.flush()
        await peer.expect(b"+OK\r\n")
        await peer.expect_end()
        for _ in range(3):
            peer.tls.write(b"PING\r\n" * 1_000)
            await peer.flush()
            await trio.testing.wait_all_tasks_blocked(0.01)
        assert len(world.clients.by_id) == 1


async def test_who_is_refused_and_still_sends_isnt_reset(contexts: Contexts) -> None:
    async with running() as world:
        world.limits.clients_max = 0
        peer = await admit(world, contexts)
        await peer.expect(b"-ERR max number of clients reached\r\n")
        for _ in range(3):
            peer.tls.write(b"PING\r\n" * 1_000)
            await peer.flush()
            await trio.testing.wait_all_tasks_blocked(0.01)
        assert world.clients._farewells == 1


async def test_a_socket_takes_what_it_has_room_for_and_loses_nothing(
    contexts: Contexts,
) -> None:
    async with running() as world:
        secured, peer = await connect(world, contexts)
        secured.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 256 << 10)
        with secured:
            data = bytes(range(256)) * (32 << 10)
            left, got, sizes = memoryview(data), b"", []
            while len(got) < len(data):
                with suppress(BlockingIOError):
                    while left:
                        sizes.append(secured.send(left))
                        left = left[sizes[-1] :]
                got += await peer.reach(lambda: peer.tls.read(1 << 20))
            assert got == data
            assert 4 * RECORD_BYTES < sizes[0] < len(data)
