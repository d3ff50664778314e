"""STOMP at the sockets: what the shell adds to sessions. Frames are spelt here byte for byte."""

from __future__ import annotations

import socket
from hashlib import sha256
from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from disque.core.commands import AddJob
from disque.core.limits import Limits
from disque.errors import ConfigError
from disque.server.acl import parse_user
from disque.server.config import DIRECTIVES, Config
from disque.server.stomp import Stomp, Talk
from tests.unit.server.world import SOON_S, Peer, World, running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from disque.core.ready import Record

CONNECT = b"CONNECT\naccept-version:1.2\n\n\0"
SUBSCRIBE = b"SUBSCRIBE\nid:0\nack:client\ndestination:/queue/q\nreceipt:s\n\n\0"
SUBSCRIBED = b"RECEIPT\nreceipt-id:s\n\n\0"


class Wire:
    """A STOMP client's end of a connection."""

    def __init__(self, world: World, stomp: Stomp, address: object = "") -> None:
        ours, theirs = socket.socketpair()
        world.clients.admit(ours, address, stomp)
        self.peer = Peer(trio.SocketStream(trio.socket.from_stdlib_socket(theirs)))
        world.peers.append(self.peer)
        self.rest = b""

    async def say(self, data: bytes) -> None:
        """Send bytes."""
        await self.peer.send(data)

    async def frame(self) -> bytes:
        """The next frame without its NUL and the line ends before it."""
        with trio.fail_after(SOON_S):
            while b"\0" not in self.rest:
                more = await self.peer.stream.receive_some(1 << 16)
                assert more, f"the stream ended after {self.rest!r}"
                self.rest += more
        frame, _, self.rest = self.rest.partition(b"\0")
        return frame.lstrip(b"\n")

    async def ask(self, data: bytes) -> bytes:
        """Send bytes; the next frame."""
        await self.say(data)
        return await self.frame()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """A node that serves while the test lasts."""
    async with running() as made:
        yield made


@pytest.fixture
async def stomp(world: World) -> Stomp:
    """Its STOMP side, with running timers."""
    made = Stomp(world.shell)
    world.nursery.start_soon(made.run)
    return made


async def connected(world: World, stomp: Stomp) -> Wire:
    """A connection that has been welcomed."""
    wire = Wire(world, stomp)
    assert (await wire.ask(CONNECT)).startswith(b"CONNECTED\nversion:1.2\n")
    return wire


async def wait_for(what: object) -> None:
    """Poll until `what()` is true."""
    with trio.fail_after(5):
        while not what():  # type: ignore[operator]
            await trio.sleep(0.01)


async def test_a_job_there_and_back_with_resp_beside(world: World, stomp: Stomp) -> None:
    wire, resp = await connected(world, stomp), world.connect()
    assert await wire.ask(SUBSCRIBE) == SUBSCRIBED[:-1]
    await resp.ask(b"ADDJOB q hello 0\r\n", b"+D-")
    head, _, body = (await wire.frame()).partition(b"\n\n")
    lines = head.split(b"\n")
    assert (lines[0], body) == (b"MESSAGE", b"hello")
    (id_,) = [line[4:] for line in lines if line.startswith(b"ack:")]
    assert await wire.ask(b"ACK\nid:%b\nreceipt:a\n\n\0" % id_) == b"RECEIPT\nreceipt-id:a\n\n"
    assert world.broker.engine.statistics().registered_jobs == 0


async def test_a_pipeline_cut_anywhere(world: World, stomp: Stomp) -> None:
    wire = Wire(world, stomp)
    data = CONNECT + b"\n\n".join(
        b"SEND\ndestination:/queue/q\nreceipt:%d\n\n%d\0" % (n, n) for n in range(20)
    )
    for start in range(0, len(data), 7):
        await wire.say(data[start : start + 7])
    assert (await wire.frame()).startswith(b"CONNECTED")
    for n in range(20):
        assert (await wire.frame()).startswith(b"RECEIPT\nreceipt-id:%d\n" % n)
    await world.connect().ask(b"QLEN q\r\n", b":20\r\n")


async def test_a_lost_connection_gives_its_jobs_back(world: World, stomp: Stomp) -> None:
    wire, resp = await connected(world, stomp), world.connect()
    await wire.ask(SUBSCRIBE)
    for _ in range(3):
        await resp.ask(b"ADDJOB q x 0\r\n", b"+D-")
        await resp.read_line()
        await wire.frame()
    await resp.ask(b"QLEN q\r\n", b":0\r\n")
    wire.peer.stream.socket.close()
    await wait_for(lambda: not stomp._talks)
    await resp.ask(b"QLEN q\r\n", b":3\r\n")
    assert world.clients._hearers == {}
    assert world.broker.engine.state.getting == {}
    assert world.broker.engine.state.topics.attending == {}


async def test_disconnect_waits_for_what_was_sent(world: World, stomp: Stomp) -> None:
    wire = await connected(world, stomp)
    sends = b"SEND\ndestination:/queue/q\n\nx\0" * 5
    frame = await wire.ask(sends + b"DISCONNECT\nreceipt:bye\n\n\0SEND\ndestination:/queue/q\n\n\0")
    assert frame == b"RECEIPT\nreceipt-id:bye\n\n"
    await wire.peer.expect_end()
    await world.connect().ask(b"QLEN q\r\n", b":5\r\n")


async def test_automatic_messages_are_done_once_sent(world: World, stomp: Stomp) -> None:
    wire, resp = await connected(world, stomp), world.connect()
    await wire.ask(SUBSCRIBE.replace(b"ack:client", b"ack:auto"))
    await resp.ask(b"ADDJOB q x 0\r\n", b"+D-")
    await wire.frame()
    await wait_for(lambda: world.broker.engine.statistics().registered_jobs == 0)


async def test_a_slow_automatic_subscriber_isnt_handed_everything(
    world: World, stomp: Stomp
) -> None:
    world.config.stomp_max_prefetch = 3
    wire, resp = await connected(world, stomp), world.connect()
    await wire.ask(SUBSCRIBE.replace(b"ack:client", b"ack:auto"))
    for _ in range(30):
        await resp.ask(b"ADDJOB q " + b"x" * 60_000 + b" 0\r\n", b"+D-")
        await resp.read_line()
    queued = world.broker.engine.statistics().queued_jobs
    assert queued > 10, "the socket takes some, prefetch holds the rest"
    for _ in range(30):
        await wire.frame()
    await wait_for(lambda: world.broker.engine.statistics().registered_jobs == 0)


async def test_bytes_that_are_no_frame(world: World, stomp: Stomp) -> None:
    wire = await connected(world, stomp)
    frame = await wire.ask(b"SEND\nno colon\n\n\0")
    assert frame.startswith(b"ERROR\nmessage:not a header\\c 'no colon'\n")
    await wire.peer.expect_end()


async def test_a_body_limit_that_shrinks_holds_for_who_is_connected(
    world: World, stomp: Stomp
) -> None:
    wire = await connected(world, stomp)
    send = b"SEND\ndestination:/queue/q\nreceipt:r\n\n%b\0" % (b"x" * 2_000)
    assert (await wire.ask(send)).startswith(b"RECEIPT\n")
    world.config.body_max = 1_024
    world.settings.apply("body-max")
    assert b"message:the body takes more than 1024 bytes (body-max)\n" in await wire.ask(send)


async def test_the_password(world: World, stomp: Stomp) -> None:
    world.config.requirepass = "s:cret"
    wire = Wire(world, stomp)
    assert b"message:wrong login or passcode" in await wire.ask(CONNECT)
    await wire.peer.expect_end()
    wire = Wire(world, stomp)
    frame = await wire.ask(b"STOMP\naccept-version:1.1\nlogin:any\npasscode:s:cret\n\n\0")
    assert frame.startswith(b"CONNECTED\nversion:1.1\n")


async def test_strangers_and_too_many_are_refused_by_an_error_frame(
    world: World, stomp: Stomp
) -> None:
    assert (
        b"message:DENIED disque-broker runs in protected"
        in await Wire(world, stomp, ("192.0.2.1", 1)).frame()
    )
    world.limits.clients_max = len(world.clients.by_id)
    assert b"message:ERR max number of clients reached" in await Wire(world, stomp).frame()


@pytest.mark.parametrize("kind", ["OOM", "LOADING", "MISCONF"])
async def test_what_the_shell_refuses(world: World, stomp: Stomp, kind: str) -> None:
    wire = await connected(world, stomp)
    if kind == "OOM":
        world.broker.set_limits(Limits(maxmemory_bytes=1))
    elif kind == "LOADING":
        world.turns.is_loading = True
    else:
        world.turns.trouble = "No space left on device"
    frame = await wire.ask(b"SEND\ndestination:/queue/q\nreceipt:r\n\n\0")
    assert frame.startswith(b"ERROR\nmessage:%b " % kind.encode())
    assert b"\nreceipt-id:r\n" in frame
    world.turns.is_loading, world.turns.trouble = False, ""


async def test_a_subscription_begins_though_the_log_cant_be_written_now(
    world: World, stomp: Stomp
) -> None:
    wire = await connected(world, stomp)
    world.turns.trouble = "No space left on device"
    assert await wire.ask(SUBSCRIBE) == SUBSCRIBED[:-1]
    world.turns.trouble = ""
    await world.connect().ask(b"ADDJOB q x 0\r\n", b"+D-")
    assert (await wire.frame()).startswith(b"MESSAGE\n")


async def test_who_waits_is_told_when_the_log_cant_be_written(world: World, stomp: Stomp) -> None:
    wire = await connected(world, stomp)
    await wire.ask(SUBSCRIBE)
    (talk,) = stomp._talks.values()
    world.clients.fail_waiting("No space left on device")
    assert talk.session.outbox.waiting() == []
    resp = world.connect()
    await resp.ask(b"ADDJOB q x 0\r\n", b"+D-")
    assert (await wire.frame()).startswith(b"MESSAGE\n"), "the fetch is tried again after a second"


async def test_topics_between_resp_and_stomp_and_a_slow_subscriber(
    world: World, stomp: Stomp
) -> None:
    world.config.topic_buffer = 10_000
    wire, resp = await connected(world, stomp), world.connect()
    await wire.ask(b"SUBSCRIBE\nid:0\ndestination:/topic/t*\nreceipt:s\n\n\0")
    await resp.ask(b"PUBLISH tt hi\r\n", b":1\r\n")
    wanted = (
        b"MESSAGE\nsubscription:0\nmessage-id:T-1\ndestination:/topic/tt\ncontent-length:2\n\nhi"
    )
    assert await wire.frame() == wanted
    with trio.fail_after(30):
        while not world.shell.figures.topic_messages_dropped:
            await resp.ask(b"PUBLISH tt " + b"x" * 1_000 + b"\r\n", b":1\r\n")
    await resp.ask(b"PUBLISH tt last\r\n", b":1\r\n")
    while not (await wire.frame()).endswith(b"\n\nlast"):
        pass


async def test_very_many_listeners_are_told_in_order_before_the_receipt_even_if_the_sender_goes(
    world: World, stomp: Stomp
) -> None:
    world.broker.set_limits(attrs.evolve(world.broker.settings.limits, told_a_turn=5))
    listeners = [Wire(world, stomp) for _ in range(12)]
    for each in listeners:
        await each.ask(CONNECT)
        await each.ask(b"SUBSCRIBE\nid:0\ndestination:/topic/t\nreceipt:s\n\n\0")
    sender = Wire(world, stomp)
    await sender.ask(CONNECT)
    sends = [b"SEND\ndestination:/topic/t\nreceipt:%d\n\n%d\0" % (n, n) for n in range(3)]
    before = world.turns.turns_taken
    await sender.say(b"".join(sends))
    for number in range(3):
        assert await sender.frame() == b"RECEIPT\nreceipt-id:%d\n\n" % number
    assert world.turns.turns_taken >= before + 7
    await sender.say(sends[0])
    sender.peer.stream.socket.close()
    for each in listeners:
        assert [(await each.frame())[-1:] for _ in range(4)] == [b"0", b"1", b"2", b"0"]
    assert world.clients._hearers.keys() == {
        each.subscriber for each in world.clients.by_id.values() if each.subscriber is not None
    }


@pytest.mark.parametrize("overflow", ["drop-oldest", "disconnect"])
async def test_no_more_copies_of_a_message_are_made_than_topic_buffer_holds(
    world: World, stomp: Stomp, overflow: str
) -> None:
    world.config.topic_buffer, world.config.topic_overflow = 100_000, overflow
    wire, resp = await connected(world, stomp), world.connect()
    for n in range(50):
        await wire.ask(b"SUBSCRIBE\nid:%d\ndestination:/topic/t\nreceipt:s\n\n\0" % n)
    (talk,) = stomp._talks.values()
    listener, figures = talk.session._listener, world.shell.figures
    publish = b"PUBLISH t " + b"x" * 50_000 + b"\r\n"
    with trio.fail_after(30):
        while not figures.topic_messages_dropped:
            await resp.ask(publish, b":1\r\n")
    assert talk.client.is_dead == (overflow == "disconnect")
    made, dropped = listener._count, figures.topic_messages_dropped
    await resp.send(publish)
    await resp.read_line()
    if overflow == "drop-oldest":
        assert listener._count - made <= 3
        assert figures.topic_messages_dropped - dropped >= 48


async def test_connections_are_shown_and_killed_like_others(world: World, stomp: Stomp) -> None:
    wire, resp = await connected(world, stomp), world.connect()
    await wire.ask(SUBSCRIBE)
    await resp.send(b"CLIENT LIST\r\n")
    size = int((await resp.read_line())[1:])
    assert b"cmd=subscribe" in await resp.read(size + 2)
    (talk,) = stomp._talks.values()
    talk.client.close_soon()
    await wire.peer.expect_end()


async def test_client_list_shows_nothing_that_a_stranger_sent(world: World, stomp: Stomp) -> None:
    wire, resp = Wire(world, stomp), world.connect()
    assert (await wire.ask(b"\x1b]0;x\x07 id=9\n\n\0")).startswith(b"ERROR")
    await resp.send(b"CLIENT LIST\r\n")
    size = int((await resp.read_line())[1:])
    shown = await resp.read(size + 2)
    assert b"\x1b" not in shown
    assert shown.count(b" cmd=") == 2
    assert b"cmd=unknown\n" in shown


async def test_automatic_messages_need_the_right_to_acknowledge(world: World, stomp: Stomp) -> None:
    digest = sha256(b"pass").hexdigest()
    world.config.user = {
        "taker": parse_user(["taker", "on", f"#{digest}", "+getjob", "~q"]),
        "worker": parse_user(["worker", "on", f"#{digest}", "+getjob", "+ackjob", "~q"]),
    }
    for login, ack, answer in (
        (b"taker", b"auto", b"ERROR\nmessage:NOPERM "),
        (b"taker", b"client", b"RECEIPT\n"),
        (b"worker", b"auto", b"RECEIPT\n"),
    ):
        wire = Wire(world, stomp)
        hello = b"CONNECT\naccept-version:1.2\nlogin:%b\npasscode:pass\n\n\0" % login
        assert (await wire.ask(hello)).startswith(b"CONNECTED\n")
        frame = b"SUBSCRIBE\nid:0\nack:%b\ndestination:/queue/q\nreceipt:s\n\n\0" % ack
        assert (await wire.ask(frame)).startswith(answer)


async def test_an_idle_subscriber_isnt_dropped_and_others_are(world: World, stomp: Stomp) -> None:
    wire, idle = await connected(world, stomp), await connected(world, stomp)
    await wire.ask(SUBSCRIBE)
    for client in world.clients.by_id.values():
        client.idle_since_ms -= 60_000
    world.limits.idle_max_s = 30
    await idle.peer.expect_end()
    assert (await wire.ask(b"BEGIN\ntransaction:t\nreceipt:r\n\n\0")).startswith(b"RECEIPT")


async def test_heart_beats(world: World, stomp: Stomp) -> None:
    wire = Wire(world, stomp)
    frame = await wire.ask(b"CONNECT\naccept-version:1.2\nheart-beat:0,1000\n\n\0")
    assert b"\nheart-beat:1000,1000\n" in frame
    assert await wire.peer.read(2) == b"\n\n"
    silent = Wire(world, stomp)
    await silent.ask(b"CONNECT\naccept-version:1.2\nheart-beat:1000,0\n\n\0")
    assert (await silent.frame()).startswith(b"ERROR\nmessage:no heart-beat for ")
    await silent.peer.expect_end()


async def test_timers_of_many_sessions_let_others_have_their_turn(
    world: World, stomp: Stomp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("disque.server.stomp.RUN_NS", -1)
    for _ in range(3):
        await connected(world, stomp)
    ticked: list[Talk] = []
    monkeypatch.setattr(stomp, "_tick", lambda talk, is_nobody: ticked.append(talk))
    for talk in stomp._talks.values():
        talk.due_at_ms = 0
    seen = set()
    with trio.fail_after(SOON_S):
        while len(ticked) < 3:
            await trio.lowlevel.checkpoint()
            seen.add(len(ticked))
    assert seen & {1, 2}


# Much to do for one session


@pytest.fixture
def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time for one command of a session, before others have their turn."""
    monkeypatch.setattr("disque.server.stomp.RUN_NS", -1)


@pytest.mark.usefixtures("one_at_a_time")
async def test_the_last_receipt_comes_when_all_has_been_carried_out(
    world: World, stomp: Stomp
) -> None:
    wire, resp = await connected(world, stomp), world.connect()
    for n in range(5):
        await wire.ask(SUBSCRIBE.replace(b":0", b":%d" % n).replace(b"/q\n", b"/q%d\n" % n))
    for n in range(5):
        await resp.ask(b"ADDJOB q%d x 0\r\n" % n, b"+D-")
        await resp.read_line()
    acks = b""
    for _ in range(5):
        head = (await wire.frame()).partition(b"\n\n")[0]
        (id_,) = [line[4:] for line in head.split(b"\n") if line.startswith(b"ack:")]
        acks += b"ACK\nid:%b\n\n\0" % id_
    unsubscribes = b"".join([b"UNSUBSCRIBE\nid:%d\n\n\0" % n for n in range(5)])
    await wire.say(acks + unsubscribes + b"DISCONNECT\nreceipt:bye\n\n\0")
    assert await wire.frame() == b"RECEIPT\nreceipt-id:bye\n\n"
    state = world.broker.engine.state
    assert (len(state.jobs), state.getting, state.topics.attending) == (0, {}, {})


@pytest.mark.usefixtures("one_at_a_time")
async def test_many_subscriptions_end_one_after_the_other(world: World, stomp: Stomp) -> None:
    wire, resp = await connected(world, stomp), world.connect()
    for n in range(20):
        place = b"queue" if n % 2 else b"temp-queue"
        await wire.ask(b"SUBSCRIBE\nid:%d\ndestination:/%b/%d\nreceipt:s\n\n\0" % (n, place, n))
    (talk,) = stomp._talks.values()
    talk.client.close_soon()
    attending, seen = world.broker.engine.state.topics.attending, set()
    with trio.fail_after(SOON_S):
        while stomp._talks:
            await trio.lowlevel.checkpoint()
            seen.add(len(attending))
    assert len(seen) > 5
    await resp.ask(b"PING\r\n", b"+PONG\r\n")
    state = world.broker.engine.state
    assert (attending, state.getting, world.clients._hearers) == ({}, {}, {})
    assert not [name for name in state.queues if name.startswith(b"temp-queue/")]


async def test_what_isnt_said_yet_isnt_done_though_all_else_is_sent(
    world: World, stomp: Stomp
) -> None:
    wire = await connected(world, stomp)
    await wire.ask(SUBSCRIBE.replace(b"ack:client", b"ack:auto"))
    (talk,) = stomp._talks.values()
    talk.is_behind = True
    world.shell.broker.command(world.clients.new_id(), AddJob(b"q", b"x", 0))
    world.turns.finish()
    stomp._flushed(talk)
    assert world.broker.engine.statistics().registered_jobs == 1
    assert (await wire.frame()).startswith(b"MESSAGE\n")
    await wait_for(lambda: world.broker.engine.statistics().registered_jobs == 0)


@pytest.mark.parametrize("port", ["7711", "17711"])
def test_its_port_is_its_own(port: str) -> None:
    config = Config()
    config.assign(DIRECTIVES["stomp-port"], [port])
    with pytest.raises(ConfigError, match=f"stomp-port must be another .*, got {port}"):
        config.check()


class LateLog:
    """A log whose records are safe only once `gate` opens."""

    stores = True
    is_unsafe = False

    def __init__(self) -> None:
        self.gate = trio.Event()

    def write(self, records: Sequence[Record]) -> bool:
        """All turns wait."""
        return bool(records)

    async def wait_safe(self) -> None:
        """Until the gate opens."""
        await self.gate.wait()


async def test_a_receipt_comes_after_the_log() -> None:
    log = LateLog()
    async with running(log) as world:
        wire = await connected(world, Stomp(world.shell))
        await wire.say(b"SEND\ndestination:/queue/q\nreceipt:r\n\n\0")
        with trio.move_on_after(0.2):
            raise AssertionError(f"before the log: {await wire.frame()!r}")
        log.gate.set()
        assert (await wire.frame()).startswith(b"RECEIPT\nreceipt-id:r\n")
