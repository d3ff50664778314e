"""Administrative commands: texts, order of checks, shapes in both protocol versions."""

from __future__ import annotations

import re

import pytest

from disque.server.table import COMMANDS
from tests.unit.server.world import OWN_ID, running

CLIENT_SYNTAX = "Syntax error, try CLIENT (LIST | KILL ip:port | GETNAME | SETNAME connection-name)"


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("foo", "ERR unknown command 'foo'"),
        ("FOO a", "ERR unknown command 'FOO'"),
        ("QLEN", "ERR wrong number of arguments for 'qlen' command"),
        ("ping a b", "ERR wrong number of arguments for 'ping' command"),
        ("AUTH x", "ERR Client sent AUTH, but no password is set"),
        ("INFO a b", "ERR syntax error"),
        ("TIME x", "ERR wrong number of arguments for 'time' command"),
        ("SHUTDOWN NOW", "ERR syntax error"),
        ("SHUTDOWN REWRITE-AOF x", "ERR syntax error"),
        ("COMMAND X", "ERR Unknown subcommand or wrong number of arguments."),
        ("COMMAND INFO", "ERR Unknown subcommand or wrong number of arguments."),
        ("COMMAND INFO" + 1_025 * " x", "ERR COMMAND INFO takes at most 1024 names"),
        ("CLIENT X", f"ERR {CLIENT_SYNTAX}"),
        ("CLIENT MAINT_NOTIFICATIONS ON", f"ERR {CLIENT_SYNTAX}"),
        (
            'CLIENT SETNAME "a b"',
            "ERR Client names cannot contain spaces, newlines or special characters.",
        ),
        (
            f"CLIENT SETNAME {1_025 * 'a'}",
            "ERR Client names have 1024 bytes at most, not 1025",
        ),
        (
            f"HELLO 3 SETNAME {1_025 * 'a'}",
            "ERR Client names have 1024 bytes at most, not 1025",
        ),
        ("CONFIG X", "ERR CONFIG subcommand must be one of GET, SET, RESETSTAT, REWRITE"),
        ("CONFIG Get", "ERR Wrong number of arguments for CONFIG Get"),
        ("CONFIG SET hz 10 timeout 0", "ERR Wrong number of arguments for CONFIG SET"),
        ("CONFIG SET tls-key-file a tls-key-file", "ERR Wrong number of arguments for CONFIG SET"),
        ("CONFIG SET port 1", "ERR Unsupported CONFIG parameter: port (only a start sets it)"),
        ("CONFIG SET hz x", "ERR Invalid argument 'x' for CONFIG SET 'hz'"),
        ("CONFIG REWRITE", "ERR The server is running without a config file"),
        ("DEBUG X", "ERR Unknown DEBUG subcommand or wrong number of arguments for 'X'"),
        ("DEBUG ERROR", "ERR Unknown DEBUG subcommand or wrong number of arguments for 'ERROR'"),
        ("DEBUG ERROR 'MINE is this'", "MINE is this"),
        ("HELLO x", "ERR Protocol version is not an integer or out of range"),
        ("HELLO 1", "NOPROTO unsupported protocol version"),
        ("HELLO 4 NONSENSE", "NOPROTO unsupported protocol version"),
        ("HELLO 3 NONSENSE", "ERR Syntax error in HELLO option 'NONSENSE'"),
        ("HELLO 3 " + 129 * "x", f"ERR Syntax error in HELLO option '{128 * 'x'}'"),
        ("HELLO 3 AUTH default", "ERR Syntax error in HELLO option 'AUTH'"),
        ("HELLO 3 SETNAME", "ERR Syntax error in HELLO option 'SETNAME'"),
        (
            'HELLO 3 AUTH a b SETNAME "a b"',
            "ERR Client names cannot contain spaces, newlines or special characters.",
        ),
        ("HELLO 3 AUTH a b", "ERR Client sent AUTH, but no password is set"),
    ],
)
async def test_error(line: str, text: str) -> None:
    async with running() as world:
        await world.connect().ask(line.encode() + b"\r\n", f"-{text}\r\n".encode())


@pytest.mark.parametrize(
    ("line", "reply"),
    [
        ("PING", "+PONG\r\n"),
        ('ping "a b"', "$3\r\na b\r\n"),
        ("CLIENT SETINFO LIB-NAME redis-py", "+OK\r\n"),
        ("CLIENT GETNAME", "$-1\r\n"),
        ("CLIENT ID", ":1\r\n"),
        ("CONFIG RESETSTAT", "+OK\r\n"),
        ("CONFIG GET port", "*2\r\n$4\r\nport\r\n$4\r\n7711\r\n"),
        ("CONFIG GET nosuch", "*0\r\n"),
        ("DEBUG SLEEP 0", "+OK\r\n"),
        ("DEBUG FLUSHALL", "+OK\r\n"),
        ("INFO nosuch", "$0\r\n\r\n"),
        (
            "COMMAND INFO nosuch QLEN",
            "*2\r\n$-1\r\n*6\r\n$4\r\nqlen\r\n:2\r\n*2\r\n+readonly\r\n+fast\r\n:0\r\n:0\r\n:0\r\n",
        ),
        ("SHOW D-aaaaaaaa-aaaaaaaaaaaaaaaaaaaaaaaa-05a1", "$-1\r\n"),
        ("QSTAT q", "*-1\r\n"),
    ],
)
async def test_reply(line: str, reply: str) -> None:
    async with running() as world:
        await world.connect().ask(line.encode() + b"\r\n", reply.encode())


async def test_hello_3_is_a_map_and_switches_the_protocol() -> None:
    async with running() as world:
        peer = world.connect()
        await peer.ask(
            b"hello 3 SETNAME first SETNAME second\r\n",
            b"%7\r\n$6\r\nserver\r\n$6\r\ndisque\r\n$7\r\nversion\r\n$5\r\n0.1.0\r\n"
            b"$5\r\nproto\r\n:3\r\n$2\r\nid\r\n:1\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n"
            b"$4\r\nrole\r\n$6\r\nmaster\r\n$7\r\nmodules\r\n*0\r\n",
        )
        await peer.ask(b"CLIENT GETNAME\r\n", b"$6\r\nsecond\r\n")
        await peer.ask(b"QSTAT q\r\nGETJOB NOHANG FROM q\r\n", b"_\r\n_\r\n")
        await peer.ask(b"CONFIG GET port\r\n", b"%1\r\n$4\r\nport\r\n$4\r\n7711\r\n")
        await peer.ask(
            b"COMMAND INFO qlen\r\n",
            b"*1\r\n*7\r\n$4\r\nqlen\r\n:2\r\n*2\r\n+readonly\r\n+fast\r\n:0\r\n:0\r\n:0\r\n*0\r\n",
        )


async def test_hello_without_arguments_names_the_nodes_in_either_protocol() -> None:
    nodes = (
        b"*3\r\n:1\r\n$40\r\n%b\r\n*4\r\n$40\r\n%b\r\n$9\r\n127.0.0.1\r\n$4\r\n7711\r\n$1\r\n1\r\n"
    )
    nodes %= (OWN_ID.encode(), OWN_ID.encode())
    async with running() as world:
        peer = world.connect()
        await peer.ask(b"HELLO\r\n", nodes)
        await peer.send(b"HELLO 3\r\n")
        while await peer.read_line() != b"*0\r\n":
            pass
        await peer.ask(b"HELLO\r\n", nodes)


async def test_failed_hello_changes_nothing() -> None:
    async with running() as world:
        world.config.requirepass = "secret"
        peer = world.connect()
        wrong = b"-WRONGPASS invalid username-password pair or user is disabled.\r\n"
        await peer.ask(b"HELLO 3 AUTH default wrong SETNAME me\r\n", wrong)
        await peer.ask(b"HELLO 3 AUTH other secret\r\n", wrong)
        await peer.ask(b"HELLO 3\r\n", b"-NOAUTH Authentication required.\r\n")
        await peer.ask(b"AUTH secret\r\n", b"+OK\r\n")
        await peer.ask(b"CLIENT GETNAME\r\n", b"$-1\r\n")


async def test_password_locks_out_all_but_auth_hello_and_quit() -> None:
    async with running() as world:
        peer = world.connect()
        await peer.ask(b"CONFIG SET requirepass secret\r\n", b"+OK\r\n")
        for line in (b"PING", b"HELLO", b"QLEN q", b"SHUTDOWN", b"CONFIG GET requirepass"):
            await peer.ask(line + b"\r\n", b"-NOAUTH Authentication required.\r\n")
        await peer.ask(b"nosuch\r\n", b"-ERR unknown command 'nosuch'\r\n")
        await peer.ask(b"QLEN\r\n", b"-ERR wrong number of arguments for 'qlen' command\r\n")
        await peer.ask(b"AUTH wrong\r\n", b"-ERR invalid password\r\n")
        await peer.ask(b"AUTH secret\r\n", b"+OK\r\n")
        await peer.ask(b"PING\r\n", b"+PONG\r\n")
        await peer.ask(b"AUTH wrong\r\n", b"-ERR invalid password\r\n")
        await peer.ask(b"PING\r\n", b"-NOAUTH Authentication required.\r\n")
        await peer.ask(b"QUIT\r\n", b"+OK\r\n")
        await peer.expect_end()


async def test_command_lists_the_table() -> None:
    async with running() as world:
        peer = world.connect()
        await peer.ask(b"COMMAND COUNT\r\n", b":%d\r\n" % len(COMMANDS))
        await peer.ask(b"COMMAND\r\n", b"*%d\r\n" % len(COMMANDS))


async def test_renamed_command_answers_to_its_new_name_alone() -> None:
    async with running() as world:
        world.shell.renames = {b"shutdown": b"", b"qlen": b"", b"length": b"qlen"}
        peer = world.connect()
        await peer.ask(b"Shutdown\r\n", b"-ERR unknown command 'Shutdown'\r\n")
        await peer.ask(b"QLEN q\r\n", b"-ERR unknown command 'QLEN'\r\n")
        await peer.ask(b"Length q\r\n", b":0\r\n")


async def test_client_list_shows_one_line_a_client() -> None:
    async with running() as world:
        first, second = world.connect(), world.connect()
        await second.ask(b"CLIENT SETNAME me\r\n", b"+OK\r\n")
        await first.send(b"CLIENT LIST\r\n")
        size = int((await first.read_line())[1:])
        lines = (await first.read(size)).decode().splitlines()
        pattern = (
            r"id=\d+ addr=\S* fd=\d+ name=\S* age=\d+ idle=\d+ flags=\w+ qbuf=\d+ qbuf-free=\d+ "
            r"obl=\d+ oll=\d+ omem=\d+ events=rw? cmd=\w+"
        )
        assert all(re.fullmatch(pattern, line) for line in lines)
        assert [line.split("name=")[1].split()[0] for line in lines] == ["age=0", "me"]


async def test_shutdown_stops_the_server_without_a_reply() -> None:
    async with running() as world:
        peer = world.connect()
        await peer.send(b"SHUTDOWN\r\n")
        await peer.expect_end()
        assert world.shell.stopping.is_set()
