"""Asgi: one request to an ASGI application, without sockets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import attrs
import trio

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import ASGIApp

SOON_S = 5.0


@attrs.frozen
class Answer:
    """What came back; names of headers are in lower case, the last of a name counts."""

    status: int
    headers: Mapping[str, str]
    body: bytes


async def ask(
    app: ASGIApp,
    path: str,
    *,
    method: str = "GET",
    body: bytes = b"",
    **headers: str,
) -> Answer:
    """Send one request; underscores in the names of headers are dashes, and Host is localhost."""
    sent = {"host": "localhost:8711", **{k.replace("_", "-"): v for k, v in headers.items()}}
    plain, _, query = path.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(plain),
        "raw_path": plain.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(k.encode(), v.encode("latin-1")) for k, v in sent.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8711),
        "state": {},
    }
    incoming = [{"type": "http.request", "body": body, "more_body": False}]
    outgoing: list[Any] = []

    async def receive() -> Any:
        while not incoming:
            await trio.sleep_forever()
        return incoming.pop(0)

    async def send(message: Any) -> None:
        outgoing.append(message)

    with trio.fail_after(SOON_S):
        await app(scope, receive, send)
    start, *rest = outgoing
    return Answer(
        start["status"],
        {k.decode().lower(): v.decode("latin-1") for k, v in start["headers"]},
        b"".join([each.get("body", b"") for each in rest]),
    )
