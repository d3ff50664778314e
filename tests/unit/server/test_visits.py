"""Visits: what the page's process says of its connections, and what becomes of them."""

from __future__ import annotations

import socket

import trio

from disque.server.stomp import Stomp
from disque.server.visits import LINE_BYTES_MAX, Visits
from tests.unit.server.test_access import add_user, digest
from tests.unit.server.test_crowd import lock
from tests.unit.server.world import SOON_S, Peer, World, running


def visit(world: World, address: object = ("192.0.2.1", 1), *, is_secured: bool = False) -> Peer:
    """The page's end of a visit."""
    ours, theirs = socket.socketpair()
    visits = Visits(world.shell, Stomp(world.shell))
    world.clients.admit(ours, address, visits, is_secured=is_secured)
    peer = Peer(trio.SocketStream(trio.socket.from_stdlib_socket(theirs)))
    world.peers.append(peer)
    return peer


async def say_user(world: World, peer: Peer, name: bytes) -> None:
    """Say whose password was given; return when the node knows."""
    await peer.send(b"user " + name + b"\n")
    with trio.fail_after(SOON_S):
        while name.decode() not in [
            each.user and each.user.name for each in world.clients.by_id.values()
        ]:
            await trio.sleep(0.01)


async def test_a_visit_is_welcome_or_told_why_not() -> None:
    async with running() as world:
        await visit(world).expect(b"-DENIED disque-broker runs in protected mode")
        await visit(world, ("127.0.0.1", 1)).expect(b"+\n")
        world.config.clients_per_address_max = 1
        lock(world)
        await visit(world).expect(b"+\n")
        await visit(world).expect(b"-ERR max number of clients of one address reached\n")


async def test_who_has_given_a_password_is_no_stranger_and_stays_as_long_as_the_user() -> None:
    async with running() as world:
        add_user(world, f"ann on {digest('a')} +@all ~*")
        add_user(world, f"bob on {digest('b')} +@client ~*")
        lock(world, unauthenticated_max=1)
        stranger, default = visit(world), visit(world)
        await stranger.expect(b"+\n")
        await stranger.expect_end()
        await default.expect(b"+\n")
        await say_user(world, default, b"default")
        ann = visit(world)
        await ann.expect(b"+\n")
        await say_user(world, ann, b"ann")
        for name in (b"bob", b"nobody"):
            bob = visit(world)
            await bob.expect(b"+\n")
            await bob.send(b"user " + name + b"\n")
            await bob.expect_end()
        world.settings.reload()  # without a file there are no users
        await ann.expect_end()
        known = [each for each in world.clients.by_id.values() if not each.is_closing]
        assert [each.user is not None for each in known] == [True]


async def test_a_websocket_says_its_password_itself() -> None:
    async with running() as world:
        lock(world)
        peer = visit(world)
        await peer.ask(b"user default\nstomp\n", b"+\n+\n")
        frame = b"CONNECT\naccept-version:1.2\nhost:/\npasscode:%b\n\n\0"
        await peer.ask(frame % b"secret", b"CONNECTED\n")
        other = visit(world)
        await other.ask(b"user default\nstomp\n", b"+\n+\n")
        await other.ask(frame % b"wrong", b"ERROR\n")


async def test_visits_end_with_what_let_them_in() -> None:
    async with running() as world:
        world.config.protected_mode = False
        world.settings.apply("protected-mode")
        plain, secured = visit(world), visit(world, is_secured=True)
        for each in (plain, secured):
            await each.expect(b"+\n")
        world.config.tls_only = True
        world.settings.apply("tls-only")
        await plain.expect_end()
        lock(world)
        await secured.expect_end()


async def test_a_line_that_nobody_says_ends_the_visit() -> None:
    async with running() as world:
        longest = "n" * 64
        add_user(world, f"{longest} on {digest('a')} +@all ~*")
        lock(world)
        peer, other = visit(world), visit(world)
        for each in (peer, other):
            await each.expect(b"+\n")
        await say_user(world, peer, longest.encode())
        await other.send(b"user " + b"n" * LINE_BYTES_MAX)
        await other.expect_end()
