"""CLUSTER's subcommands: texts, order of checks, effects on membership."""

from __future__ import annotations

import pytest
import trio

from tests.unit.server.world import OWN_ID, running

WRONG = "ERR Wrong CLUSTER subcommand or number of arguments"
OTHER_ID = "b" * 40


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("X", WRONG),
        ("MEET 127.0.0.1", WRONG),
        ("MEET 127.0.0.1 1 2 3", WRONG),
        ("MYID x", WRONG),
        ("FORGET", WRONG),
        (f"FORGET {OTHER_ID} SOME", WRONG),
        ("MEET 127.0.0.1 http", "ERR Invalid TCP port specified: http"),
        ("MEET 127.0.0.1 1 bus", "ERR Invalid TCP bus port specified: bus"),
        ("MEET 127.0.0.1 1 65536", "ERR Invalid TCP bus port specified: 65536"),
        ("MEET 127.0.0.1 0", "ERR Invalid node address specified: 127.0.0.1:0"),
        ("MEET 127.0.0.1 55536", "ERR Invalid node address specified: 127.0.0.1:55536"),
        ("MEET 'a b' 7711", "ERR Invalid node address specified: a b:7711"),
        ("MEET nosuch.invalid 7711", "ERR Invalid node address specified: nosuch.invalid:7711"),
        ("FORGET abc", "ERR Invalid node identifier"),
        (f"FORGET {OTHER_ID}", f"ERR Unknown node {OTHER_ID}"),
        (f"FORGET {OWN_ID}", "ERR I tried hard but I can't forget myself..."),
        ("RESET MEDIUM", "ERR syntax error"),
        ("LEAVING maybe", "ERR Wrong argument for CLUSTER LEAVING. Use 'yes' or 'no'"),
    ],
)
async def test_error(line: str, text: str) -> None:
    async with running() as world:
        await world.connect().ask(f"CLUSTER {line}\r\n".encode(), f"-{text}\r\n".encode())


@pytest.mark.parametrize("host", ["192.0.2.1", "2001:db8::1", "::ffff:192.0.2.1"])
async def test_meet_beyond_this_machine_needs_a_secret_or_protected_mode_off(host: str) -> None:
    async with running() as world:
        peer = world.connect()
        await peer.send(f"CLUSTER MEET {host} 7711\r\n".encode())
        assert (await peer.read_line()).startswith(f"-DENIED MEET with {host} refused: ".encode())
        assert world.broker.membership.statistics().handshakes_pending == 0
        world.config.cluster_secret = "s"
        await peer.ask(f"CLUSTER MEET {host} 7711\r\n".encode(), b"+OK\r\n")
        assert world.broker.membership.statistics().handshakes_pending == 1


@pytest.mark.parametrize(
    ("words", "bus_port"), [("7711", 17711), ("7711 9000", 9000), ("60000 9000", 9000)]
)
async def test_meet_dials_the_bus_port_of_a_name(words: str, bus_port: int) -> None:
    async with running() as world:
        peer = world.connect()
        await peer.ask(f"CLUSTER MEET localhost {words}\r\nPING\r\n".encode(), b"+OK\r\n+PONG\r\n")
        table = world.broker.membership.nodes_text()
        assert "handshake" in table
        assert str(bus_port) in table or world.broker.membership.statistics().handshakes_pending


async def test_leaving_is_told_and_taken_back() -> None:
    async with running() as world:
        peer = world.connect()
        await peer.ask(b"CLUSTER LEAVING\r\n", b"+no\r\n")
        await peer.ask(b"CLUSTER LEAVING YES\r\nCLUSTER LEAVING\r\n", b"+OK\r\n+yes\r\n")
        await peer.ask(b"CLUSTER LEAVING no\r\nCLUSTER LEAVING\r\n", b"+OK\r\n+no\r\n")


async def test_reset_drops_jobs_and_hard_takes_a_new_id() -> None:
    async with running() as world:
        peer = world.connect()
        await peer.send(b"ADDJOB q body 0\r\n")
        await peer.read_line()
        await peer.ask(b"CLUSTER RESET\r\nQLEN q\r\n", b"+OK\r\n:0\r\n")
        await peer.ask(b"CLUSTER MYID\r\n", b"$40\r\n%b\r\n" % OWN_ID.encode())
        await peer.ask(b"CLUSTER RESET hard\r\n", b"+OK\r\n")
        await peer.send(b"CLUSTER MYID\r\n")
        assert await peer.read(47) != b"$40\r\n%b\r\n" % OWN_ID.encode()


async def test_info_has_disques_fields_then_ours() -> None:
    async with running() as world:
        peer = world.connect()
        await peer.send(b"CLUSTER INFO\r\n")
        size = int((await peer.read_line())[1:])
        lines = (await peer.read(size)).decode().split("\r\n")
        assert [line.split(":")[0] for line in lines] == [
            "cluster_state",
            "cluster_known_nodes",
            "cluster_reachable_nodes",
            "cluster_size",
            "cluster_stats_messages_sent",
            "cluster_stats_messages_received",
            "cluster_safe_to_stop",
            "cluster_forgotten_by",
            "cluster_handshakes_failed",
            "cluster_refused_by",
            "",
        ]
        assert lines[:4] == [
            "cluster_state:ok",
            "cluster_known_nodes:1",
            "cluster_reachable_nodes:0",
            "cluster_size:1",
        ]


async def test_nodes_is_disques_table() -> None:
    line = f"{OWN_ID} :7711 myself 0 0 connected\n".encode()
    async with running() as world:
        await world.connect().ask(b"CLUSTER NODES\r\n", b"$%d\r\n%b\r\n" % (len(line), line))


async def test_saveconfig_that_fails_says_why() -> None:
    async def fail() -> None:
        raise OSError(28, "No space left on device")

    async with running() as world:
        peer = world.connect()
        await peer.ask(b"CLUSTER SAVECONFIG\r\n", b"+OK\r\n")
        world.shell.save_nodes_now = fail
        await peer.ask(
            b"CLUSTER SAVECONFIG\r\n",
            b"-ERR error saving the cluster node config: No space left on device\r\n",
        )


async def test_saveconfig_waits_for_the_disk_and_nobody_else_does() -> None:
    is_stored = trio.Event()
    async with running() as world:
        world.shell.save_nodes_now = is_stored.wait
        first, second = world.connect(), world.connect()
        await first.send(b"CLUSTER SAVECONFIG\r\n")
        await second.ask(b"PING\r\n", b"+PONG\r\n")
        is_stored.set()
        await first.ask(b"", b"+OK\r\n")
