"""Live: a page's content as server-sent events, again whenever it differs from what was sent last.

The address of a page is that of its events: a browser that asks for text/event-stream gets them. One stream costs
what a page costs, a tick; beyond STREAMS_MAX there is none, and pages are as old as their last load.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

from starlette.responses import PlainTextResponse, Response, StreamingResponse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

STREAMS_MAX = 64
RETRY_MS = 2_000  # after which a browser tries again
TYPE = "text/event-stream"


class Streams:
    """All event streams of the process."""

    def __init__(self) -> None:
        self.open = 0

    @staticmethod
    def is_wanted(request: Request) -> bool:
        """True if a page is asked for as events."""
        return TYPE in request.headers.get("accept", "")

    def respond(
        self, render: Callable[[], Awaitable[str]], wait: Callable[[], Awaitable[None]]
    ) -> Response:
        """Events with what `render` gives, at once and after each `wait`."""
        if self.open >= STREAMS_MAX:
            text = f"{STREAMS_MAX} pages are followed already.\n"
            return PlainTextResponse(text, 503, {"Retry-After": "30"})
        return _EventResponse(self, _events(render, wait))


async def _events(
    render: Callable[[], Awaitable[str]], wait: Callable[[], Awaitable[None]]
) -> AsyncIterator[str]:
    yield f"retry: {RETRY_MS}\n\n"
    last = ""
    while True:
        content = await render()
        # A comment shows that we are there, and finds out who has gone.
        yield _event(content) if content != last else ": same\n\n"
        last = content
        await wait()


class _EventResponse(StreamingResponse):
    """Is counted from its first step on, when nobody else can have come; ends its stream with itself."""

    def __init__(self, streams: Streams, events: AsyncIterator[str]) -> None:
        super().__init__(events, media_type=TYPE, headers={"X-Accel-Buffering": "no"})
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        self._streams.open += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._streams.open -= 1

    async def stream_response(self, send: Send) -> None:
        """All of it, while somebody listens."""
        async with aclosing(self.body_iterator):  # type: ignore[type-var]  # ours is a generator
            await super().stream_response(send)


def _event(content: str) -> str:
    """One event; a line of content is a line of data."""
    lines = content.replace("\r", "").split("\n")
    return "".join([f"data: {line}\n" for line in lines]) + "\n"
