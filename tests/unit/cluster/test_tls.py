"""TLS of the bus: pure sessions, however the bytes are cut; and links and buses that speak it."""

from __future__ import annotations

import random
import ssl

import pytest
import trio

from cluster.bus import NEEDS_TLS, BusLimits
from cluster.errors import RemoteProtocolError
from cluster.frame import encode_frame
from cluster.link import LinkLimits
from cluster.tls import TlsSession
from tests.certificates import Authority, Pair
from tests.unit.cluster.test_bus import Node, running, wait_until
from tests.unit.cluster.test_link import Link, pair

Contexts = tuple[ssl.SSLContext, ssl.SSLContext]


def contexts(authority: Authority, own: Pair) -> Contexts:
    """Who accepts, who dials: both show a certificate, and ask for one."""
    made = []
    for protocol in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT):
        context = ssl.SSLContext(protocol)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(authority.ca)
        context.load_cert_chain(own.cert, own.key)
        made.append(context)
    return made[0], made[1]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def ours(authority: Authority) -> Contexts:
    return contexts(authority, authority.issue("node"))


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Contexts:
    """Of another authority."""
    other = Authority(tmp_path_factory.mktemp("other"), "other")
    return contexts(other, other.issue("node"))


@pytest.mark.parametrize("seed", range(5))
def test_sessions_understand_each_other_however_the_bytes_are_cut(
    ours: Contexts, seed: int
) -> None:
    dice = random.Random(seed)
    dialer, acceptor = TlsSession(ours[1], is_server=False), TlsSession(ours[0], is_server=True)
    said = dice.randbytes(50_000)
    heard = b""
    wire = {dialer: bytearray(dialer.shake()), acceptor: bytearray()}
    is_said = False
    while heard != said:
        for one, other in ((dialer, acceptor), (acceptor, dialer)):
            count = dice.randrange(1, 3_000)
            piece = bytes(wire[one][:count])
            del wire[one][:count]
            if not piece:
                continue
            other.feed(piece)
            if not other.is_done:
                wire[other] += other.shake()
            if other.is_done:
                meant, has_ended = other.decrypt()
                assert not has_ended
                heard += meant
                wire[other] += other.own_words()
        if dialer.is_done and not is_said:
            is_said = True
            wire[dialer] += dialer.encrypt(said)
    assert heard == said


async def secured(ours: Contexts, limits: LinkLimits | None = None) -> tuple[Link, Link]:
    acceptor, stream = await pair(limits)
    dialer = Link(stream, limits or LinkLimits())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: acceptor.secure(ours[0], is_server=True))
        nursery.start_soon(lambda: dialer.secure(ours[1], is_server=False))
    for each in (acceptor, dialer):
        each.authenticated()
    return acceptor, dialer


async def test_links_carry_frames_of_any_size_both_ways_under_tls(ours: Contexts) -> None:
    acceptor, dialer = await secured(ours)
    bodies = [b"one", bytes(3_000_000), b"last"]
    with trio.fail_after(10):
        for sender, receiver in ((acceptor, dialer), (dialer, acceptor)):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(sender.write_waiting)
                sender.send(bodies)
                assert [await receiver.wait_frame() for _ in bodies] == bodies
                nursery.cancel_scope.cancel()
        dialer.close()
        assert await acceptor.wait_frame() is None
    acceptor.close()


async def test_first_frame_with_the_last_word_of_the_handshake_is_not_lost(ours: Contexts) -> None:
    acceptor, stream = await pair()
    session = TlsSession(ours[1], is_server=False)

    async def dial() -> None:
        said = session.shake()
        while not session.is_done:
            await stream.send_all(said)
            session.feed(await stream.receive_some(1 << 16))
            said = session.shake()
        await stream.send_all(said + session.encrypt(encode_frame(b"first")))

    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(dial)
            await acceptor.secure(ours[0], is_server=True)
            assert await acceptor.wait_frame() == b"first"
    acceptor.close()
    await stream.aclose()


@pytest.mark.parametrize("data", [b"\0\0\0\5hello", b"\x16\3\1\0\5junk!", b""])
async def test_what_is_no_tls_is_a_protocol_error(ours: Contexts, data: bytes) -> None:
    link, other = await pair()
    await other.send_all(data)
    await other.send_eof()
    with trio.fail_after(5), pytest.raises(RemoteProtocolError, match="TLS"):
        await link.secure(ours[0], is_server=True)
    link.close()
    await other.aclose()


async def test_junk_after_the_handshake_closes_the_link_and_raises_nothing(ours: Contexts) -> None:
    acceptor, dialer = await secured(ours)
    dialer._tls = None
    dialer.send([b"plain words"])
    with trio.fail_after(5):
        assert not await acceptor.wait_read()
    assert acceptor.reason.startswith("TLS: ")
    dialer.close()


async def test_what_is_said_in_the_turn_in_which_a_peer_ends_closes_the_link_and_raises_nothing(
    ours: Contexts,
) -> None:
    acceptor, dialer = await secured(ours)
    await dialer._stream.send_eof()
    with trio.fail_after(5):
        assert not await acceptor.wait_read()
    acceptor.send([b"the reader's end isn't heard yet"])
    assert (acceptor.is_closed, acceptor.reason) == (True, "")
    dialer.close()


def secure_node(number: int, tls: Contexts) -> Node:
    node = Node(number)
    node.bus.tls = tls
    return node


async def test_nodes_that_show_certificates_of_one_authority_meet(ours: Contexts) -> None:
    a, b = secure_node(1, ours), secure_node(2, ours)
    async with running(a, b):
        a.meet(b)
        await wait_until(lambda: a.reaches(b) and b.reaches(a))


async def test_nodes_of_another_authority_or_without_tls_stay_out(
    ours: Contexts, theirs: Contexts
) -> None:
    a, stranger, plain = secure_node(1, ours), secure_node(2, theirs), Node(3)
    async with running(a, stranger, plain):
        for one, other in ((stranger, a), (plain, a), (a, plain)):
            one.meet(other)
            await wait_until(lambda one=one: bool(one.events("handshake_failed")))
        assert a.reaches()
        assert stranger.reaches()
        assert plain.reaches()
        # Each side says in words what was wrong
        told = {each: str(each.events("handshake_failed")[0]["reason"]) for each in (a, plain)}
        assert told[plain] == f"refused (unproved): {NEEDS_TLS}"
        assert told[a] == "TLS: the other side doesn't speak TLS"
        (complaint,) = plain.events("bus_connection_refused")
        assert complaint["reason"] == "the other side speaks TLS, this one doesn't"
        (complaint,) = a.events("bus_connection_refused")
        assert complaint["reason"] == "TLS: the other side doesn't trust our certificate"


async def test_tls_that_is_never_spoken_times_out(ours: Contexts) -> None:
    a = Node(1, limits=BusLimits(handshake_timeout_s=0.2))
    a.bus.tls = ours
    async with running(a):
        silent = await trio.open_tcp_stream("127.0.0.1", a.port)
        await wait_until(lambda: bool(a.bus._unauthenticated))
        await wait_until(lambda: not a.bus._unauthenticated)
        await silent.aclose()
