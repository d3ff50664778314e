"""Resp: replies cut anywhere, and what a client says about a connection that gives none."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio

from jepsen.resp import Client, ReplyError, Trouble, decode, encode

REPLY = b"*4\r\n:12\r\n$5\r\na\r\nbc\r\n*-1\r\n*2\r\n+OK\r\n$-1\r\n"
Serve = Callable[[trio.SocketStream], Awaitable[None]]


@asynccontextmanager
async def server(serve: Serve) -> AsyncIterator[Client]:
    """A client of a server that does `serve` with each connection."""
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        port = listener.socket.getsockname()[1]
        client = Client(partial(trio.open_tcp_stream, "127.0.0.1", port))
        yield client
        client.close()
        nursery.cancel_scope.cancel()


def test_a_command_is_an_array_of_bulks() -> None:
    assert encode(("ADDJOB", b"\0\xff", 7)) == b"*3\r\n$6\r\nADDJOB\r\n$2\r\n\0\xff\r\n$1\r\n7\r\n"


def test_a_reply_is_read_whole_or_not_at_all() -> None:
    for end in range(len(REPLY)):
        assert decode(REPLY[:end]) is None
    assert decode(REPLY + b"+more") == ([12, b"a\r\nbc", None, ["OK", None]], len(REPLY))


def test_an_error_reply_is_a_value() -> None:
    found = decode(b"-NOREPL not enough\r\n")
    assert found is not None
    assert isinstance(found[0], ReplyError)
    assert str(found[0]) == "NOREPL not enough"


def test_what_is_no_resp_is_an_error() -> None:
    with pytest.raises(ValueError, match="no RESP"):
        decode(b"HTTP/1.1 400\r\n")


async def test_an_error_reply_leaves_the_connection_usable() -> None:
    async def serve(stream: trio.SocketStream) -> None:
        for reply in (b"-ERR no\r\n", b"+yes\r\n"):
            await stream.receive_some()
            await stream.send_all(reply)

    async with server(serve) as client:
        with pytest.raises(ReplyError, match="ERR no"):
            await client.call("X", timeout_s=5)
        assert await client.call("X", timeout_s=5) == "yes"


async def test_a_late_reply_is_never_taken_for_the_next() -> None:
    async def serve(stream: trio.SocketStream) -> None:
        asked = await stream.receive_some()
        await trio.sleep(0.3 if b"late" in asked else 0)
        await stream.send_all(b"+to %b\r\n" % asked.split(b"\r\n")[2])

    async with server(serve) as client:
        with pytest.raises(Trouble) as caught:
            await client.call("late", timeout_s=0.05)
        assert (caught.value.kind, caught.value.was_sent) == ("timeout", True)
        assert await client.call("next", timeout_s=5) == "to next"


async def test_an_end_before_the_reply_is_unknown() -> None:
    async def serve(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(b"$5\r\nab")
        await stream.aclose()

    async with server(serve) as client:
        with pytest.raises(Trouble) as caught:
            await client.call("X", timeout_s=5)
    assert (caught.value.kind, caught.value.was_sent) == ("eof", True)


async def test_a_refused_connection_sent_nothing() -> None:
    with trio.socket.socket() as free:
        await free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    client = Client(partial(trio.open_tcp_stream, "127.0.0.1", port))
    with pytest.raises(Trouble) as caught:
        await client.call("X", timeout_s=5)
    assert (caught.value.kind, caught.value.was_sent) == ("refused", False)


async def test_no_answer_to_auth_means_that_the_command_was_not_sent() -> None:
    async def serve(stream: trio.SocketStream) -> None:
        assert b"AUTH" in await stream.receive_some()
        await stream.aclose()

    async with server(serve) as client:
        client.password = "secret"
        with pytest.raises(Trouble) as caught:
            await client.call("ADDJOB", timeout_s=5)
    assert not caught.value.was_sent
