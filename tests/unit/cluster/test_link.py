"""Links over real loopback sockets: one write, bounded waiting, an end that is noticed."""

from __future__ import annotations

import socket

import attrs
import pytest
import trio

from cluster.errors import RemoteProtocolError
from cluster.frame import HANDSHAKE_FRAME_BYTES_MAX, encode_frame
from cluster.link import Link, LinkLimits


async def pair(limits: LinkLimits | None = None) -> tuple[Link, trio.SocketStream]:
    left, right = socket.socketpair()
    for each in (left, right):
        each.setblocking(False)
    ends = [trio.SocketStream(trio.socket.from_stdlib_socket(each)) for each in (left, right)]
    return Link(ends[0], limits or LinkLimits()), ends[1]


async def test_frames_of_a_turn_go_out_at_once_without_a_task():
    link, other = await pair()
    link.send([b"one", b"two"])
    assert await other.receive_some(100) == encode_frame(b"one") + encode_frame(b"two")
    assert link.waiting_bytes == 0
    link.close()
    await other.aclose()


async def test_what_the_socket_doesn_t_take_is_brought_out_by_the_writer():
    link, other = await pair()
    body = bytes(5_000_000)
    link.send([body])
    link.send([b"after"])
    assert link.waiting_bytes > 0
    expected = encode_frame(body) + encode_frame(b"after")
    received = bytearray()
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.write_waiting)
            while len(received) < len(expected):
                received += await other.receive_some(1 << 16)
            nursery.cancel_scope.cancel()
    assert received == expected
    assert link.waiting_bytes == 0
    link.close()
    await other.aclose()


async def test_link_over_its_bound_is_closed_with_the_reason():
    link, other = await pair(LinkLimits(out_bytes_max=1_000_000))
    link.send([bytes(5_000_000)])  # one job may be larger than the bound
    link.send([b"and words come after it"])
    assert not link.is_closed
    link.send([bytes(2_000_000)])
    assert link.is_closed
    assert "at most 1000000 are allowed" in link.reason
    assert link.waiting_bytes == 0
    link.send([b"dropped"])
    await other.aclose()


async def test_bytes_that_wait_too_long_end_the_link():
    link, other = await pair(LinkLimits(out_wait_max_ms=50))
    link.send([bytes(5_000_000)])
    with trio.fail_after(5):
        await link.write_waiting()
    assert link.reason == "bytes waited longer than 50 ms to be sent"
    await other.aclose()


async def test_idle_writer_ends_when_the_link_closes():
    link, other = await pair()
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.write_waiting)
            await trio.testing.wait_all_tasks_blocked()
            link.close()
    await other.aclose()


async def test_blocked_reader_ends_when_the_link_closes():
    link, other = await pair()
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.wait_read)
            await trio.testing.wait_all_tasks_blocked()
            link.close()
    await other.aclose()


async def test_long_frames_are_read_only_after_authentication():
    link, other = await pair()
    await other.send_all(encode_frame(bytes(5_000)))
    assert await link.wait_read()
    with pytest.raises(RemoteProtocolError, match="5000 bytes announced, at most 4096"):
        list(link.frames_read())
    link.authenticated()
    while not (frames := list(link.frames_read())):
        assert await link.wait_read()
    assert frames == [bytes(5_000)]
    link.limits = attrs.evolve(link.limits, frame_bytes_max=10)
    link.close()
    await other.aclose()


async def test_little_is_read_at_a_time_before_authentication():
    link, other = await pair()
    await other.send_all(bytes(20_000))
    assert await link.wait_read()
    assert link.unread_bytes == HANDSHAKE_FRAME_BYTES_MAX
    link.authenticated()
    assert await link.wait_read()
    assert link.unread_bytes == 20_000
    link.close()
    await other.aclose()


async def test_broken_socket_closes_the_link_and_raises_nothing():
    link, other = await pair()
    await other.aclose()
    link.send([b"x"])
    link.send([b"y"])
    assert link.is_closed
    assert not await link.wait_read()


async def tcp_pair() -> tuple[Link, trio.SocketStream]:
    listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
    port = listener.socket.getsockname()[1]
    near = await trio.open_tcp_stream("127.0.0.1", port)
    far = await listener.accept()
    await listener.aclose()
    return Link(near, LinkLimits()), far


@pytest.mark.parametrize("is_aborted", [True, False])
async def test_an_aborted_link_takes_back_what_the_kernel_still_had(is_aborted: bool):
    """A cut holds bytes up in the kernel; after the heal they would arrive as if they had just been said (M12)."""
    link, far = await tcp_pair()
    link.send([bytes(50_000_000)])  # far reads nothing: its kernel takes some, ours keeps some
    with trio.move_on_after(0.3):
        await link.write_waiting()
    sent = 50_000_004 - link.waiting_bytes
    link.abort() if is_aborted else link.close()
    received = 0
    with trio.fail_after(10):
        try:
            while data := await far.receive_some(1 << 16):
                received += len(data)
        except trio.BrokenResourceError:
            pass
    await far.aclose()
    assert (received < sent) == is_aborted
