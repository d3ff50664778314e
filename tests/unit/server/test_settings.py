"""What CONFIG SET changes takes effect at once."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from disque.errors import CommandError
from disque.server.config import Config
from disque.server.eventlog import EventLog
from disque.server.settings import limits_of
from tests.unit.server.world import running

if TYPE_CHECKING:
    from pathlib import Path


def test_limits_of_the_core_are_those_of_the_configuration() -> None:
    config = Config(
        cluster_ask_timeout=7,
        default_maxdeliveries=3,
        default_deadletter="graves",
        tombstones_max=10,
        dummies_max=11,
        marks_max=12,
        repair_after=13,
        queue_max_idle=14,
        cluster_node_timeout=1_500,
        maxmemory=15,
        maxmemory_policy="noeviction",
    )
    limits = limits_of(config)
    assert (limits.ask_cluster_ms, limits.default_max_deliveries) == (7, 3)
    assert limits.default_dead_queue == b"graves"
    assert (limits.tombstones_max, limits.dummies_max, limits.marks_max) == (10, 11, 12)
    assert (limits.repair_after_ms, limits.queue_idle_max_ms) == (13_000, 14_000)
    assert (limits.link_wait_max_ms, limits.maxmemory_bytes) == (1_500, 15)
    assert not limits.is_eviction_on


@pytest.mark.parametrize(
    ("name", "value", "field", "wanted"),
    [
        ("cluster-ask-timeout", "7", "ask_cluster_ms", 7),
        ("default-maxdeliveries", "3", "default_max_deliveries", 3),
        ("default-deadletter", "graves", "default_dead_queue", b"graves"),
        ("repair-after", "0", "repair_after_ms", 0),
        ("queue-max-idle", "2", "queue_idle_max_ms", 2_000),
        ("tombstones-max", "5", "tombstones_max", 5),
        ("maxmemory", "3mb", "maxmemory_bytes", 3 << 20),
        ("maxmemory", "0", "maxmemory_bytes", 0),
        ("maxmemory-policy", "noeviction", "is_eviction_on", False),
    ],
)
async def test_core_settings_change_at_run_time(
    name: str, value: str, field: str, wanted: object
) -> None:
    async with running() as world:
        line = f"CONFIG SET {name} {value}\r\n"
        await world.connect().ask(line.encode(), b"+OK\r\n")
        assert getattr(world.broker.engine.state.limits, field) == wanted
        assert getattr(world.broker.settings.limits, field) == wanted


async def test_what_frames_may_wait_stays_as_it_was_at_the_start() -> None:
    async with running() as world:
        longest_ms = world.broker.settings.limits.link_wait_max_ms
        await world.connect().ask(
            b"CONFIG SET cluster-node-timeout 50\r\nCONFIG SET repair-after 1\r\n",
            b"+OK\r\n+OK\r\n",
        )
        assert world.broker.settings.limits.link_wait_max_ms == longest_ms


async def test_settings_of_the_shell_change_at_run_time() -> None:
    async with running() as world:
        peer = world.connect()
        for line in (
            b"slowlog-log-slower-than 5",
            b"slowlog-max-len 7",
            b"latency-monitor-threshold 9",
            b"timeout 11",
            b"loglevel warning",
            b"tcp-keepalive yes",
        ):
            await peer.ask(b"CONFIG SET " + line + b"\r\n", b"+OK\r\n")
        shell = world.shell
        assert (shell.slowlog.threshold_us, shell.slowlog.entries_max) == (5, 7)
        assert shell.latency.threshold_ms == 9
        assert (world.limits.idle_max_s, world.limits.keepalive_s) == (11, 300)
        assert world.events.level == "warning"


async def test_what_is_announced_changes_at_run_time_and_takes_the_tls_port_with_it() -> None:
    async with running() as world:
        peer, config = world.connect(), world.config
        config.tls_port = 7721
        for value, tls_port in ((b"9999", 0), (b"0", 7721)):
            await peer.ask(b"CONFIG SET cluster-announce-port " + value + b"\r\n", b"+OK\r\n")
            own = world.broker.membership.identity
            assert (own.port, own.tls_port) == (int(value) or 7711, tls_port)


async def test_a_folder_that_cannot_be_entered_is_an_error_of_the_client() -> None:
    async with running() as world:
        world.config.dir = "/nowhere"
        with pytest.raises(CommandError, match="Changing directory: No such file or directory"):
            world.settings.apply("dir")


async def test_output_limit_concerns_those_who_are_connected_already() -> None:
    async with running() as world:
        peer, other = world.connect(), world.connect()
        await peer.ask(b"PING\r\n", b"+PONG\r\n")
        limit = b'"normal 1mb 2kb 3"'
        await other.ask(b"CONFIG SET client-output-buffer-limit " + limit + b"\r\n", b"+OK\r\n")
        assert {client.out_limit_bytes for client in world.clients.by_id.values()} == {1 << 20}
        assert (world.limits.out_soft_bytes, world.limits.out_soft_s) == (2048, 3)


async def test_bounds_of_the_bus_change_at_run_time() -> None:
    async with running() as world:
        await world.connect().ask(
            b"CONFIG SET cluster-handshakes-max 7\r\nCONFIG SET cluster-frame-max 1mb\r\n"
            b"CONFIG SET cluster-link-buffer 2mb\r\n",
            b"+OK\r\n" * 3,
        )
        limits = world.settings._bus._limits
        assert limits.unauthenticated_max == 7
        assert (limits.link.frame_bytes_max, limits.link.out_bytes_max) == (1 << 20, 2 << 20)


async def test_sighup_tells_of_a_cluster_secret_that_is_short(tmp_path: Path) -> None:
    async with running() as world:
        world.settings._events = events = EventLog(path=str(tmp_path / "log"))
        for secret, count in (("x" * 16, 0), ("short", 1)):
            (tmp_path / "secret").write_text(secret)
            world.config.cluster_secret_file = str(tmp_path / "secret")
            world.settings.reload()
            told = (tmp_path / "log").read_text()
            assert told.count("cluster-secret has 5 bytes") == count
        events.close()


async def test_sighup_waits_for_no_pipe_and_reads_the_other_secret(tmp_path: Path) -> None:
    async with running() as world:
        world.settings._events = events = EventLog(path=str(tmp_path / "log"))
        pipe, secret = tmp_path / "pipe", tmp_path / "secret"
        os.mkfifo(pipe)
        secret.write_text("x" * 32)
        world.config.requirepass_file = world.config.config_file = str(pipe)
        world.config.tls_cert_file, world.config.cluster_secret_file = str(pipe), str(secret)
        world.settings.reload()
        told = (tmp_path / "log").read_text()
        for name in ("requirepass-file", "tls-cert-file", f"{pipe}:"):
            assert f"{name} " in told
        assert told.count("not an ordinary file") == 3
        assert world.settings._bus.secret == b"x" * 32
        events.close()
