"""Live: what differs is sent, what doesn't is a sign of life; streams are bounded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from disque.web.live import STREAMS_MAX, Streams
from tests.unit.web.asgi import ask

if TYPE_CHECKING:
    from starlette.requests import Request


class EnoughError(Exception):
    """The test has seen enough."""


def streaming(streams: Streams, contents: list[str]) -> Starlette:
    """An application whose page has these contents one after another."""

    async def page(request: Request) -> Response:
        left = list(contents)

        async def render() -> str:
            return left.pop(0)

        async def wait() -> None:
            if not left:
                raise EnoughError

        if not streams.is_wanted(request):
            return PlainTextResponse("whole")
        return streams.respond(render, wait)

    return Starlette(routes=[Route("/", page)])


async def events(streams: Streams, contents: list[str]) -> bytes:
    """All that is sent."""
    sent: list[bytes] = []
    app = streaming(streams, contents)

    async def capture(scope: Any, receive: Any, send: Any) -> None:
        async def keep(message: Any) -> None:
            sent.append(message.get("body", b""))
            await send(message)

        await app(scope, receive, keep)

    try:
        await ask(capture, "/", accept="text/event-stream")
    except* EnoughError:
        pass
    return b"".join(sent)


async def test_a_content_is_sent_when_it_differs() -> None:
    streams = Streams()
    assert await events(streams, ["a\nb", "a\nb", "c\r\n\ndata: d"]) == (
        b"retry: 2000\n\ndata: a\ndata: b\n\n: same\n\ndata: c\ndata: \ndata: data: d\n\n"
    )
    assert streams.open == 0


async def test_who_asks_for_a_page_gets_a_page() -> None:
    answer = await ask(streaming(Streams(), []), "/", accept="text/html")
    assert answer.body == b"whole"


async def test_there_are_no_more_streams_than_may_be() -> None:
    streams = Streams()
    streams.open = STREAMS_MAX
    answer = await ask(streaming(streams, ["a"]), "/", accept="text/event-stream")
    assert (answer.status, answer.headers["retry-after"]) == (503, "30")


async def test_nor_when_all_come_at_once() -> None:
    streams = Streams()
    app = streaming(streams, ["a"] * 2)
    refused = 0

    async def come(nursery: trio.Nursery) -> None:
        nonlocal refused

        async def begin(scope: Any, receive: Any, send: Any) -> None:
            async def say(message: Any) -> None:
                await trio.lowlevel.checkpoint()  # a socket's
                await send(message)
                if message["type"] == "http.response.start" and message["status"] == 200:
                    await trio.sleep_forever()

            await app(scope, receive, say)

        answer = await ask(begin, "/", accept="text/event-stream")
        refused += answer.status == 503
        if refused == 10:
            assert streams.open == STREAMS_MAX
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for _ in range(STREAMS_MAX + 10):
            nursery.start_soon(come, nursery)
    assert streams.open == 0
