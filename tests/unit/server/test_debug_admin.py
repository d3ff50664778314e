"""DEBUG: trouble on purpose; what ends the process is tried in system/test_administration.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.server.world import running

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("line", "reply"),
    [
        ("DEBUG FLUSHALL", "+OK"),
        ("DEBUG SLEEP nonsense", "+OK"),
        ("DEBUG ERROR 'MINE is this'", "-MINE is this"),
        ("DEBUG LOADAOF", "-ERR There is no append-only log to load: appendonly is no"),
        ("DEBUG RESTART x", "-ERR value is not an integer or out of range"),
        (
            "DEBUG SLEEP",
            "-ERR Unknown DEBUG subcommand or wrong number of arguments for 'SLEEP'",
        ),
        (
            "debug Restart 1 2",
            "-ERR Unknown DEBUG subcommand or wrong number of arguments for 'Restart'",
        ),
    ],
)
async def test_reply(line: str, reply: str) -> None:
    async with running() as world:
        await world.connect().ask(line.encode() + b"\r\n", reply.encode() + b"\r\n")


async def test_structsize_tells_what_memory_is_charged() -> None:
    async with running() as world:
        peer = world.connect()
        await peer.send(b"DEBUG STRUCTSIZE\r\n")
        await peer.read_line()
        assert (await peer.read_line()).startswith(b"bits:64 base:")


async def test_flushall_ends_waiting_commands() -> None:
    async with running() as world:
        waiting, other = world.connect(), world.connect()
        await waiting.send(b"PING\r\nGETJOB FROM q\r\n")
        await waiting.expect(b"+PONG\r\n")
        await other.ask(b"ADDJOB r b 0\r\n", b"+D-")
        await other.read_line()
        await other.ask(b"DEBUG FLUSHALL\r\n", b"+OK\r\n")
        await waiting.expect(b"*-1\r\n")
        assert world.broker.engine.statistics().registered_jobs == 0


async def test_restart_without_a_file_stops_the_server_and_asks_for_a_new_one() -> None:
    async with running() as world:
        peer = world.connect()
        await peer.send(b"DEBUG RESTART 20\r\n")
        await peer.expect_end()
        assert world.shell.stopping.is_set()
        assert world.shell.restart_after_s == 0.02


async def test_restart_whose_file_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    async with running() as world:
        world.config.config_file = str(tmp_path / "nosuch" / "file")
        text = b"-ERR failed to restart the server. Check server logs.\r\n"
        await world.connect().ask(b"DEBUG RESTART\r\n", text)
        assert not world.shell.stopping.is_set()


async def test_restart_and_rewrite_wait_for_each_other_and_nobody_else_does(tmp_path: Path) -> None:
    async with running() as world:
        world.config.config_file = str(tmp_path / "disque.conf")
        world.config.start_folder = str(tmp_path)
        rewriter, restarter, witness = world.connect(), world.connect(), world.connect()
        async with world.shell.rewriting:
            await rewriter.send(b"CONFIG REWRITE\r\n")
            await restarter.send(b"DEBUG RESTART\r\n")
            await witness.ask(b"PING\r\n", b"+PONG\r\n")
            assert not world.shell.stopping.is_set()
        await rewriter.ask(b"", b"+OK\r\n")
        await restarter.expect_end()
        assert world.shell.stopping.is_set()
