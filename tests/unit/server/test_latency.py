"""LATENCY keeps the worst of each second, and draws it."""

from __future__ import annotations

import pytest

from disque.server.latency import SAMPLES_MAX, Latency
from tests.unit.server.world import running


def test_of_one_second_the_worst_counts_and_the_record_is_kept() -> None:
    latency = Latency(1)
    for at_s, ms in ((1, 5), (1, 9), (1, 7), (2, 3)):
        latency.record("command", at_s, ms)
    event = latency.events["command"]
    assert [(each.at_s, each.ms) for each in event.samples] == [(1, 9), (2, 3)]
    assert event.max_ms == 9


def test_samples_are_bounded_and_off_means_off() -> None:
    latency = Latency(0)
    latency.add("command", 10_000)
    assert latency.events == {}
    latency.threshold_ms = 10
    latency.add("command", 9)
    assert latency.events == {}
    for second in range(2 * SAMPLES_MAX):
        latency.record("command", second, 1)
    assert len(latency.events["command"].samples) == SAMPLES_MAX


def test_reset_tells_how_many_events_there_were() -> None:
    latency = Latency(1)
    for name in ("a", "b", "c"):
        latency.record(name, 1, 1)
    assert latency.reset(["b", "nosuch"]) == 1
    assert latency.reset([]) == 2
    assert latency.events == {}


def test_graph_has_a_column_a_sample_and_its_age_below() -> None:
    latency = Latency(1)
    for second, ms in enumerate((0, 10, 20, 40)):
        latency.record("command", second, ms)
    assert latency.graph("command", 62).splitlines() == [
        "command - high 40 ms, low 0 ms (all time high 40 ms)",
        "-" * 80,
        "   #",
        "   |",
        "  #|",
        "_#||",
        "",
        "1115",
        "mmm9",
        "   s",
    ]


async def test_the_command() -> None:
    async with running() as world:
        peer = world.connect()
        world.shell.latency.record("command", 7, 30)
        world.shell.latency.record("command", 8, 20)
        await peer.ask(b"LATENCY LATEST\r\n", b"*1\r\n*4\r\n$7\r\ncommand\r\n:8\r\n:20\r\n:30\r\n")
        await peer.ask(
            b"latency history command\r\n", b"*2\r\n*2\r\n:7\r\n:30\r\n*2\r\n:8\r\n:20\r\n"
        )
        await peer.ask(b"LATENCY HISTORY nosuch\r\n", b"*0\r\n")
        await peer.ask(
            b"LATENCY GRAPH nosuch\r\n", b"-ERR No samples available for event 'nosuch'\r\n"
        )
        await peer.ask(b"LATENCY\r\n", b"-ERR wrong number of arguments for 'latency' command\r\n")
        for line in (b"LATENCY x", b"LATENCY LATEST x", b"LATENCY HISTORY", b"LATENCY GRAPH"):
            await peer.ask(line + b"\r\n", b"-ERR syntax error\r\n")
        await peer.ask(b"LATENCY RESET\r\nLATENCY LATEST\r\n", b":1\r\n*0\r\n")


async def test_a_slow_command_is_seen_and_the_doctor_knows_it() -> None:
    async with running() as world:
        peer = world.connect()
        assert "off" in world.shell.latency.doctor()
        world.shell.latency.threshold_ms = 5
        assert "All is well" in world.shell.latency.doctor()
        await peer.ask(b"DEBUG SLEEP 0.02\r\n", b"+OK\r\n")
        assert list(world.shell.latency.events) == ["command"]
        assert "1. command: 1 spikes" in world.shell.latency.doctor()


@pytest.mark.parametrize("ms", [4, 3])
async def test_what_is_quick_enough_is_not(ms: int) -> None:
    latency = Latency(5)
    latency.add("command", ms)
    assert latency.events == {}
