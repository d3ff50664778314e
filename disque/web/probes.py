"""Probes: what programs ask of one node: is it alive, does it take work, what are its figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import PlainTextResponse, Response

from disque.web import metrics
from disque.web.node import UnreachableError
from disque.web.replies import Failure

if TYPE_CHECKING:
    from starlette.requests import Request

    from disque.web.node import Node


class Probes:
    """The addresses for programs, about the own node."""

    def __init__(self, own: Node) -> None:
        self._own = own

    async def health(self, _: Request) -> Response:
        """`/health`: 200 while the node answers anything at all, a node that loads its log included; else 503."""
        try:
            await self._own.ask(("PING",))
        except UnreachableError as error:
            return _no(str(error))
        return PlainTextResponse("ok\n")

    async def ready(self, _: Request) -> Response:
        """`/ready`: 200 if clients are served; 503 with the reason while it loads, leaves, or can't write its log."""
        try:
            pong, leaving = await self._own.ask(("PING",), ("CLUSTER", "LEAVING"))
        except UnreachableError as error:
            return _no(str(error))
        for reply in (pong, leaving):
            if isinstance(reply, Failure):
                return _no(reply.text)
        return _no("leaving the cluster") if leaving == "yes" else PlainTextResponse("ok\n")

    async def metrics(self, _: Request) -> Response:
        """`/metrics`, for Prometheus."""
        try:
            content = await metrics.collect(self._own)
        except UnreachableError as error:
            return _no(str(error))
        return Response(content, media_type=metrics.CONTENT_TYPE)


def _no(reason: str) -> Response:
    return PlainTextResponse(f"{reason}\n", 503)
