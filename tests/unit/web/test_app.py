"""App: the page's process knows how long nobody has asked for anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from disque.web.app import Activity

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


async def test_a_request_under_way_is_no_idleness(autojump_clock: object) -> None:
    async def page(scope: Scope, receive: Receive, send: Send) -> None:
        await trio.sleep(100)

    async def receive() -> dict[str, str]:
        return {}

    async def send(_: object) -> None:
        return

    activity = Activity(page)
    await trio.sleep(10)
    assert activity.idle_s() == 10
    async with trio.open_nursery() as nursery:
        nursery.start_soon(activity, {"type": "http"}, receive, send)
        await trio.sleep(50)
        assert activity.idle_s() == 0
    assert activity.idle_s() == 0
    await trio.sleep(7)
    assert activity.idle_s() == 7


async def test_the_life_of_the_application_itself_is_no_request(autojump_clock: object) -> None:
    async def page(scope: Scope, receive: Receive, send: Send) -> None:
        await trio.sleep_forever()

    async def nothing(*_: object) -> dict[str, str]:
        return {}

    activity = Activity(page)
    with trio.move_on_after(30):
        await activity({"type": "lifespan"}, nothing, nothing)
    assert activity.idle_s() == 30
