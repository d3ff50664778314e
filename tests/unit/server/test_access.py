"""Who may come in: names, passwords, users; over RESP and STOMP; and what guessing costs."""

from __future__ import annotations

from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

from disque.errors import CommandError
from disque.server.access import ADDRESSES_MAX, WINDOW_S, Access, WrongPassword
from disque.server.acl import DEFAULT, parse_user
from disque.server.config import Config
from disque.server.eventlog import EventLog
from disque.server.info import Figures
from disque.server.stomp import Stomp
from tests.unit.server.test_stomp import Wire
from tests.unit.server.world import World, running

if TYPE_CHECKING:
    from collections.abc import Iterator

WRONG = b"-WRONGPASS invalid username-password pair or user is disabled.\r\n"
NOAUTH = b"-NOAUTH Authentication required.\r\n"
RULES = "+@client +client -publish ~jobs ~mail*"


def digest(password: str) -> str:
    return "#" + sha256(password.encode()).hexdigest()


def add_user(world: World, line: str) -> None:
    user = parse_user(line.split())
    world.config.user[user.name] = user


def guarded(world: World) -> World:
    """With a password for `default`, and a worker."""
    world.config.requirepass = "secret"
    world.settings.apply("requirepass")
    add_user(world, f"worker on {digest('w')} {RULES}")
    add_user(world, f"gone off {digest('w')} +@all ~*")
    return world


async def test_auth_takes_a_password_or_a_name_and_a_password() -> None:
    async with running() as world:
        guarded(world)
        for words in (b"secret", b"default secret", b"worker w"):
            peer = world.connect()
            await peer.ask(b"QLEN jobs\r\n", NOAUTH)
            await peer.ask(b"AUTH " + words + b"\r\n", b"+OK\r\n")
            await peer.ask(b"QLEN jobs\r\n", b":0\r\n")
        wrong = b"-ERR wrong number of arguments for 'auth' command\r\n"
        await world.connect().ask(b"AUTH a b c\r\n", wrong)


@pytest.mark.parametrize(
    "words", [b"worker x", b"nobody w", b"gone w", b"worker secret", b"default w", b"default"]
)
async def test_a_wrong_pair_takes_back_what_was_right_before(words: bytes) -> None:
    async with running() as world:
        guarded(world)
        peer = world.connect()
        await peer.ask(b"AUTH worker w\r\n", b"+OK\r\n")
        reply = b"-ERR invalid password\r\n" if words == b"default" else WRONG
        await peer.ask(b"AUTH " + words + b"\r\n", reply)
        await peer.ask(b"QLEN jobs\r\n", NOAUTH)


@pytest.mark.parametrize("words", [b"MONITOR", b"SUBSCRIBE jobs", b"PSUBSCRIBE j*"])
@pytest.mark.parametrize("pair", [b"AUTH secret", b"AUTH worker x", b"HELLO 3 AUTH default secret"])
async def test_who_becomes_somebody_else_hears_no_more_of_what_the_one_before_heard(
    words: bytes, pair: bytes
) -> None:
    async with running() as world:
        guarded(world)
        add_user(world, f"spy on {digest('s')} +@all ~*")
        peer, other = world.connect(), world.connect()
        await peer.ask(b"HELLO 3 AUTH spy s\r\n", b"%7\r\n")
        (client,) = [each for each in world.clients.by_id.values() if each.user]
        await peer.send(words + b"\r\nHELLO 3 AUTH spy s\r\n")
        await trio.testing.wait_all_tasks_blocked()
        assert client.is_monitor or client.is_listening
        await peer.send(pair + b"\r\n")
        await trio.testing.wait_all_tasks_blocked()
        assert (client.is_monitor, client.is_listening) == (False, False)
        said = client.sent_bytes
        await other.ask(b"AUTH secret\r\nPUBLISH jobs x\r\n", b"+OK\r\n:0\r\n")
        assert client.sent_bytes == said


@pytest.mark.parametrize(
    "words", [b"MONITOR", b"SUBSCRIBE jobs", b"GETJOB FROM jobs", b"GETJOB COUNT 500 FROM jobs"]
)
async def test_a_password_that_comes_later_ends_who_listens_and_waits_without_it(
    words: bytes,
) -> None:
    async with running() as world:
        peer, idle, admin = world.connect(), world.connect(), world.connect()
        await peer.send(words + b"\r\n")
        await trio.testing.wait_all_tasks_blocked()
        await admin.ask(b"CONFIG SET requirepass secret\r\n", b"+OK\r\n")
        with trio.fail_after(5):
            while await peer.stream.receive_some():
                pass
        for each in (admin, idle):
            await each.ask(b"PING\r\n", NOAUTH)
            await each.ask(b"AUTH secret\r\nPING\r\n", b"+OK\r\n+PONG\r\n")


async def test_who_came_before_the_password_is_a_stranger_until_there_is_none_again() -> None:
    async with running() as world:
        peer, admin = world.connect(), world.connect()
        await peer.ask(b"PING\r\n", b"+PONG\r\n")
        await admin.ask(b"CONFIG SET requirepass secret\r\nAUTH secret\r\n", b"+OK\r\n+OK\r\n")
        strangers = [each for each in world.clients.by_id.values() if each.is_stranger]
        assert len(strangers) == 1
        world.config.requirepass = ""
        world.settings.apply("requirepass")
        world.clients.crowd.drop_strangers(world.turns.clock.now_ms() + 60_000)
        body = b"x" * 20_000
        await peer.ask(b"*2\r\n$4\r\nPING\r\n$20000\r\n%b\r\n" % body, b"$20000\r\n%b\r\n" % body)


async def test_default_without_a_password_is_whoever_is_let_in_but_a_user_needs_his() -> None:
    async with running() as world:
        add_user(world, f"worker on {digest('w')} {RULES}")
        peer = world.connect()
        await peer.ask(b"QPURGE jobs\r\n", b"*3\r\n:0\r\n:1\r\n:0\r\n")
        await peer.ask(b"AUTH default x\r\n", b"-ERR Client sent AUTH, but no password is set\r\n")
        await peer.ask(b"AUTH worker x\r\n", WRONG)
        await peer.ask(b"AUTH worker w\r\n", b"+OK\r\n")
        no = b"-NOPERM User worker has no permissions to run the 'qpurge' command\r\n"
        await peer.ask(b"QPURGE jobs\r\n", no)


async def test_hello_takes_users_and_an_error_changes_nothing() -> None:
    async with running() as world:
        guarded(world)
        peer = world.connect()
        await peer.ask(b"HELLO 2 AUTH worker x\r\n", WRONG)
        await peer.ask(b"HELLO 2 AUTH gone w\r\n", WRONG)
        await peer.ask(b"HELLO 2 AUTH worker w\r\n", b"*14\r\n$6\r\nserver\r\n")
        (client,) = world.clients.by_id.values()
        assert client.user == world.config.user["worker"]


async def test_users_may_run_what_they_were_given_on_the_queues_they_were_given() -> None:
    async with running() as world:
        guarded(world)
        peer = world.connect()
        await peer.ask(b"AUTH worker w\r\n", b"+OK\r\n")
        await peer.ask(b"GETJOB NOHANG FROM jobs mail.in\r\n", b"*-1\r\n")
        for line, name in (
            (b"GETJOB NOHANG FROM jobs other", b"other"),
            (b"ADDJOB jobs2 x 0", b"jobs2"),
            (b"ADDJOB jobs x 0 DEADLETTER other", b"other"),
            (b"SUBSCRIBE jobs other", b"other"),
            (b"PSUBSCRIBE m*", b"m*"),
        ):
            text = b"-NOPERM User worker has no permissions on '%b'\r\n" % name
            await peer.ask(line + b"\r\n", text)
        await peer.ask(
            b"PUBLISH jobs x\r\n",
            b"-NOPERM User worker has no permissions to run the 'publish' command\r\n",
        )
        await peer.ask(b"nosuch\r\n", b"-ERR unknown command 'nosuch'\r\n")
        await peer.ask(b"QLEN\r\n", b"-ERR wrong number of arguments for 'qlen' command\r\n")


async def test_a_job_of_another_queue_can_t_be_touched_by_its_id() -> None:
    async with running() as world:
        guarded(world)
        owner, peer = world.connect(), world.connect()
        await owner.ask(b"AUTH secret\r\n", b"+OK\r\n")
        await owner.send(b"ADDJOB other x 0\r\n")
        job = (await owner.read_line())[1:-2]
        await peer.ask(b"AUTH worker w\r\n", b"+OK\r\n")
        for word in (b"SHOW", b"ACKJOB", b"NACK", b"WORKING", b"CANCELJOB"):
            no = b"-NOPERM User worker has no permissions on 'other'\r\n"
            await peer.ask(b"%b %b\r\n" % (word, job), no)
        await owner.ask(b"QLEN other\r\n", b":1\r\n")


async def test_oom_comes_after_noperm() -> None:
    async with running() as world:
        guarded(world)
        add_user(world, f"reader on {digest('r')} +qlen ~*")
        world.config.maxmemory = 1
        world.settings.apply("maxmemory")
        peer = world.connect()
        await peer.ask(b"AUTH reader r\r\n", b"+OK\r\n")
        await peer.ask(b"ADDJOB q x 0\r\n", b"-NOPERM")


# Guessing


@contextmanager
def accessed(failures_max: int = 3, log: Path = Path("/dev/null")) -> Iterator[Access]:
    """A door with a password for `default`."""
    config, events = Config(), EventLog(path=str(log))
    config.requirepass = "secret"
    config.auth_failures_max = failures_max
    yield Access(config, Figures(), events)
    events.close()


def fail(access: Access, host: str = "192.0.2.1") -> None:
    with pytest.raises(WrongPassword):
        access.log_in("default", [b"wrong"], host)


async def test_beyond_the_limit_even_the_right_password_is_refused_for_a_minute(
    autojump_clock: trio.testing.MockClock,
) -> None:
    with accessed() as access:
        for _ in range(3):
            fail(access)
        with pytest.raises(CommandError, match=r"too many wrong passwords .* again in 61 s"):
            access.log_in("default", [b"secret"], "192.0.2.1")
        assert access.log_in("default", [b"secret"], "192.0.2.2") is DEFAULT
        assert (access._figures.auth_failures, access._figures.auth_refused) == (3, 1)
        await trio.sleep(WINDOW_S)
        assert access.log_in("default", [b"secret"], "192.0.2.1") is DEFAULT


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("2001:db8::1", "2001:db8::2:3", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("", "", True),
    ],
)
async def test_addresses_that_one_owner_has_are_one(one: str, other: str, is_same: bool) -> None:
    with accessed(failures_max=1) as access:
        fail(access, one)
        if is_same:
            with pytest.raises(CommandError, match="too many wrong passwords"):
                access.log_in("default", [b"secret"], other)
        else:
            assert access.log_in("default", [b"secret"], other) is DEFAULT


async def test_addresses_are_remembered_up_to_a_bound() -> None:
    with accessed(failures_max=1) as access:
        for number in range(ADDRESSES_MAX + 5):
            fail(access, f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
        assert len(access._tries) == ADDRESSES_MAX


async def test_a_password_longer_than_any_can_be_is_wrong() -> None:
    with accessed() as access, pytest.raises(WrongPassword):
        access.log_in("default", [b"secret" + bytes(1_000_000)], "")


async def test_failures_are_logged_once_when_they_begin_and_once_when_they_are_too_many(
    tmp_path: Path,
) -> None:
    with accessed(log=tmp_path / "log") as access:
        for _ in range(3):
            fail(access)
        # Said in the wrong place
        with pytest.raises(WrongPassword):
            access.log_in("secret", [b"default"], "192.0.2.2")
    lines = (tmp_path / "log").read_text().splitlines()
    assert [line.split(" ", 1)[1] for line in lines] == [
        "warning wrong-password host=192.0.2.1 user=default count=1",
        "warning wrong-password host=192.0.2.1 user=default count=3",
        "warning wrong-password host=192.0.2.2 user=(unknown) count=1",
    ]


# STOMP


def connect_frame(**headers: str) -> bytes:
    lines = "".join(f"{name}:{text}\n" for name, text in headers.items())
    return f"CONNECT\naccept-version:1.2\n{lines}\n\0".encode()


async def test_stomp_knows_the_same_users() -> None:
    async with running() as world:
        stomp = Stomp(guarded(world).shell)
        for login, passcode, is_welcome in (
            ("worker", "w", True),
            ("worker", "secret", False),
            ("gone", "w", False),
            ("guest", "secret", True),
            ("default", "secret", True),
            ("guest", "w", False),
        ):
            frame = await Wire(world, stomp).ask(connect_frame(login=login, passcode=passcode))
            assert frame.startswith(b"CONNECTED" if is_welcome else b"ERROR"), (login, frame)


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        (b"SEND\ndestination:/queue/other\n\nx\0", "on 'other'"),
        (b"SEND\ndestination:/topic/jobs\n\nx\0", "to run the 'publish' command"),
        (b"SUBSCRIBE\nid:0\ndestination:/queue/other\n\n\0", "on 'other'"),
        (b"SUBSCRIBE\nid:0\ndestination:/topic/m*\n\n\0", "on 'm*'"),
        (b"SEND\ndestination:/control/count-msgs/queue/other\nreceipt:r\n\n\0", "on 'other'"),
        (
            b"BEGIN\ntransaction:t\n\n\0SEND\ndestination:/queue/other\ntransaction:t\n\nx\0",
            "on 'other'",
        ),
    ],
)
async def test_stomp_users_are_held_to_their_rules(frame: bytes, text: str) -> None:
    async with running() as world:
        wire = Wire(world, Stomp(guarded(world).shell))
        assert (await wire.ask(connect_frame(login="worker", passcode="w"))).startswith(
            b"CONNECTED"
        )
        wanted = b"message:NOPERM User worker has no permissions " + text.encode()
        assert wanted in await wire.ask(frame)


async def test_stomp_users_have_their_own_temporary_queues_and_what_they_were_given() -> None:
    async with running() as world:
        wire = Wire(world, Stomp(guarded(world).shell))
        await wire.ask(connect_frame(login="worker", passcode="w"))
        for frame in (
            b"SUBSCRIBE\nid:0\ndestination:/temp-queue/mine\nreceipt:r\n\n\0",
            b"SUBSCRIBE\nid:1\ndestination:/queue/jobs\nreceipt:r\n\n\0",
            b"SEND\ndestination:/queue/mail.out\nreceipt:r\nreply-to:/temp-queue/mine\n\nx\0",
        ):
            assert (await wire.ask(frame)).startswith(b"RECEIPT")


@pytest.mark.parametrize(
    ("frame", "command"),
    [
        (b"SEND\ndestination:/temp-queue/mine\nreceipt:r\n\nx\0", b"addjob"),
        (b"SUBSCRIBE\nid:0\ndestination:/temp-queue/mine\nreceipt:r\n\n\0", b"getjob"),
    ],
)
async def test_a_queue_of_ones_own_needs_no_name_but_the_command(
    frame: bytes, command: bytes
) -> None:
    async with running() as world:
        add_user(guarded(world), f"ear on {digest('e')} +subscribe ~news*")
        wire = Wire(world, Stomp(world.shell))
        await wire.ask(connect_frame(login="ear", passcode="e"))
        assert b"NOPERM User ear has no permissions to run the '%b'" % command in await wire.ask(
            frame
        )


async def test_the_password_of_stomp_is_counted_once_however_it_is_spelt() -> None:
    async with running() as world:
        stomp = Stomp(guarded(world).shell)
        await Wire(world, stomp).ask(connect_frame(passcode="wr\\\\ong"))
        assert world.clients._figures.auth_failures == 1


async def test_who_came_to_stomp_without_a_password_goes_once_one_is_needed() -> None:
    async with running() as world:
        add_user(world, f"worker on {digest('w')} {RULES}")
        stomp = Stomp(world.shell)
        known, talking, silent = [Wire(world, stomp) for _ in range(3)]
        await known.ask(connect_frame(login="worker", passcode="w"))
        for wire in (talking, silent):
            await wire.ask(connect_frame())
        late = Wire(world, stomp)
        guarded(world)
        text = b"ERROR\nmessage:NOAUTH Authentication required.\n"
        send = b"SEND\ndestination:/queue/jobs\nreceipt:r\n\n\0"
        assert (await talking.ask(send)).startswith(text)
        await talking.peer.expect_end()
        world.nursery.start_soon(stomp.run)
        assert (await silent.frame()).startswith(text)
        await silent.peer.expect_end()
        assert (await known.ask(send)).startswith(b"RECEIPT\nreceipt-id:r\n")
        assert (await late.ask(connect_frame(passcode="secret"))).startswith(b"CONNECTED\n")
