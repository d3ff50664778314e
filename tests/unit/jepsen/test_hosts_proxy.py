"""The proxy: what each gate does to both directions, to ends and to new connections."""

from __future__ import annotations

import json
import socket
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio
import trio.testing

from jepsen.hosts.proxy import PROBE_S, Gate, Proxy, abort, orders

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

# Long enough for loopback on a busy machine when something must come; when nothing may come, long enough to see it.
SOON_S = 8.0
SILENCE_S = 0.2


@attrs.define
class Pair:
    """n1 has dialed n2 through the proxy: n1's end and n2's end."""

    proxy: Proxy
    port: int
    accepted: trio.MemoryReceiveChannel[trio.SocketStream]
    dialed: list[trio.SocketStream] = attrs.field(factory=list)

    async def order(self, what: str, **more: Any) -> dict[str, Any]:
        return await self.proxy.answer({"do": what, **more})

    async def dial(self) -> trio.SocketStream:
        self.dialed.append(await trio.open_tcp_stream("127.0.0.1", self.port))
        return self.dialed[-1]

    async def connect(self) -> tuple[trio.SocketStream, trio.SocketStream]:
        dialed = await self.dial()
        with trio.fail_after(SOON_S):
            return dialed, await self.accepted.receive()


@asynccontextmanager
async def carrying() -> AsyncIterator[Pair]:
    send, receive = trio.open_memory_channel[trio.SocketStream](10)

    async def accept(stream: trio.SocketStream) -> None:
        await send.send(stream)
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        serve = partial(trio.serve_tcp, host="127.0.0.1")
        (bus,) = await nursery.start(serve, accept, 0)
        proxy = Proxy(nursery)
        buses = {"n1": ["127.0.0.1", 1], "n2": ["127.0.0.1", bus.socket.getsockname()[1]]}
        answer = await proxy.answer({"do": "listen", "buses": buses})
        ports = {(source, target): port for source, target, port in answer["ports"]}
        assert set(ports) == {("n1", "n2"), ("n2", "n1")}
        pair = Pair(proxy, ports["n1", "n2"], receive)
        yield pair
        for stream in pair.dialed:
            await stream.aclose()
        nursery.cancel_scope.cancel()


async def hears(stream: trio.SocketStream, data: bytes) -> None:
    got = b""
    with trio.fail_after(SOON_S):
        while len(got) < len(data):
            chunk = await stream.receive_some()
            assert chunk, f"ended after {got!r}"
            got += chunk
    assert got == data


async def hears_nothing(stream: trio.SocketStream) -> None:
    with trio.move_on_after(SILENCE_S) as scope:
        got = await stream.receive_some()
        raise AssertionError(f"heard {got!r}")
    assert scope.cancelled_caught


async def test_open_gates_carry_both_ways():
    async with carrying() as pair:
        one, two = await pair.connect()
        await one.send_all(b"there")
        await hears(two, b"there")
        big = bytes(range(256)) * 4_000
        async with trio.open_nursery() as nursery:
            nursery.start_soon(two.send_all, big)
            await hears(one, big)
        carried = (await pair.order("carried"))["bytes"]
        assert carried == [["n1", "n2", 5], ["n2", "n1", len(big)]]


async def test_cut_of_one_direction_holds_it_and_lets_the_other_pass_until_the_heal():
    async with carrying() as pair:
        one, two = await pair.connect()
        await pair.order("cut", links=[["n1", "n2"]])
        await one.send_all(b"late")
        await two.send_all(b"back")
        await hears(one, b"back")
        await hears_nothing(two)
        await pair.order("cut", links=[])
        await hears(two, b"late")


async def test_cut_replaces_the_cut_before():
    async with carrying() as pair:
        one, two = await pair.connect()
        await pair.order("cut", links=[["n1", "n2"]])
        await pair.order("cut", links=[["n2", "n1"]])
        await one.send_all(b"there")
        await hears(two, b"there")
        await two.send_all(b"back")
        await hears_nothing(one)


@pytest.mark.parametrize("end", ["eof", "reset"])
async def test_news_of_an_end_waits_for_the_heal_too(end):
    async with carrying() as pair:
        one, two = await pair.connect()
        await pair.order("cut", links=[["n1", "n2"]])
        if end == "eof":
            await one.aclose()
        else:
            abort(one)
        await hears_nothing(two)
        await pair.order("cut", links=[])
        with trio.fail_after(SOON_S):
            if end == "eof":
                assert await two.receive_some() == b""
            else:
                with pytest.raises(trio.BrokenResourceError):
                    await two.receive_some()


@pytest.mark.parametrize("link", [["n1", "n2"], ["n2", "n1"]])
async def test_no_new_connection_while_either_direction_is_cut(link):
    async with carrying() as pair:
        await pair.order("cut", links=[link])
        dialed = await pair.dial()
        await dialed.send_all(b"hello")
        with trio.move_on_after(SILENCE_S):
            await pair.accepted.receive()
            raise AssertionError("connected through a cut")
        await pair.order("cut", links=[])
        with trio.fail_after(SOON_S):
            accepted = await pair.accepted.receive()
        await hears(accepted, b"hello")


async def test_who_gave_up_during_a_cut_is_never_heard_of():
    async with carrying() as pair:
        await pair.order("cut", links=[["n1", "n2"]])
        early = await pair.dial()
        await early.send_all(b"early")
        await early.aclose()
        await trio.sleep(SILENCE_S)
        await pair.order("cut", links=[])
        late, accepted = await pair.connect()
        await late.send_all(b"later")
        await hears(accepted, b"later")


async def test_reset_aborts_both_ends_and_new_connections_are_welcome():
    async with carrying() as pair:
        one, two = await pair.connect()
        assert await pair.order("reset", links=[["n2", "n1"]]) == {"count": 1}
        for stream in (one, two):
            with trio.fail_after(SOON_S), pytest.raises(trio.BrokenResourceError):
                await stream.receive_some()
        one, two = await pair.connect()
        await one.send_all(b"again")
        await hears(two, b"again")
        assert await pair.order("reset", links=[]) == {"count": 0}


async def test_delay_holds_each_byte_so_long_in_that_direction_only():
    async with carrying() as pair:
        one, two = await pair.connect()
        await pair.order("shape", links=[["n1", "n2"]], delay_ms=300, jitter_ms=0)
        began = trio.current_time()
        await two.send_all(b"quick")
        await hears(one, b"quick")
        await one.send_all(b"slow")
        await hears(two, b"slow")
        assert trio.current_time() - began >= 0.3
        await pair.order("shape", links=[], delay_ms=0, jitter_ms=0)
        assert pair.proxy.gates["n1", "n2"].delay_s == 0


async def test_jitter_keeps_the_order_of_bytes():
    async with carrying() as pair:
        one, two = await pair.connect()
        await pair.order("shape", links=[["n1", "n2"]], delay_ms=1, jitter_ms=40)
        text = b"".join(b"%04d" % number for number in range(20))
        for at in range(0, len(text), 4):
            await one.send_all(text[at : at + 4])
            await trio.sleep(0.001)
        await hears(two, text)


async def test_dead_target_resets_the_dialer():
    async with carrying() as pair:
        with socket.create_server(("127.0.0.1", 0)) as server:
            free = server.getsockname()[1]
        pair.proxy._buses["n2"] = ("127.0.0.1", free)
        dialed = await pair.dial()
        with trio.fail_after(SOON_S), pytest.raises(trio.BrokenResourceError):
            await dialed.receive_some()


async def test_probe_tells_which_directions_carry():
    async with carrying() as pair:
        assert await pair.order("probe") == {"links": [("n1", "n2"), ("n2", "n1")]}
        await pair.order("cut", links=[["n2", "n1"]])
        assert await pair.order("probe") == {"links": [("n1", "n2")]}
        await pair.order("cut", links=[])
        slow = PROBE_S * 2_000
        await pair.order("shape", links=[["n2", "n1"]], delay_ms=slow, jitter_ms=0)
        assert await pair.order("probe") == {"links": [("n1", "n2"), ("n2", "n1")]}


async def test_each_direction_is_timed_by_itself():
    async with carrying() as pair:
        await pair.order("shape", links=[["n1", "n2"]], delay_ms=120, jitter_ms=0)
        times = (await pair.order("time"))["ms"]
        slow, fast = [next(ms for *link, ms in times if link[0] == by) for by in ("n1", "n2")]
        assert fast < 120 <= slow
        await pair.order("cut", links=[["n1", "n2"]])
        assert [link for *link, _ in (await pair.order("time"))["ms"]] == [["n2", "n1"]]


async def test_unknown_order_is_an_error():
    async with carrying() as pair:
        with pytest.raises(ValueError, match="no such order: 'sing'"):
            await pair.order("sing")


async def test_gate_opens_for_all_who_wait():
    gate = Gate()
    gate.set_open(False)
    passed = []
    async with trio.open_nursery() as nursery:
        for number in range(3):

            async def wait(number: int = number) -> None:
                await gate.wait_open()
                passed.append(number)

            nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        assert passed == []
        gate.set_open(True)
    assert sorted(passed) == [0, 1, 2]


async def test_orders_are_lines_however_they_are_cut():
    send, receive = trio.testing.memory_stream_one_way_pair()
    lines = b"".join(json.dumps({"id": number}).encode() + b"\n" for number in range(3))
    for at in range(len(lines)):
        await send.send_all(lines[at : at + 1])
    await send.aclose()
    assert [order["id"] async for order in orders(receive)] == [0, 1, 2]
