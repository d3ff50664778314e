"""World: sessions around a real engine, without sockets; what a client says and hears are frames' bytes."""

from __future__ import annotations

import itertools
from collections import deque

import attrs

from disque.core import commands as cmd
from disque.core.ready import ClientId, Published
from disque.stomp.frames import Decoder, Frame, Version, encode
from disque.stomp.listening import Tails
from disque.stomp.session import Session, Surroundings
from tests.unit.core.builders import Node

ACCEPT = {Version.V10: None, Version.V11: b"1.0,1.1", Version.V12: b"1.0,1.1,1.2"}


class Hub:
    """One node with STOMP connections."""

    def __init__(self, node: Node | None = None, *, prefetch_max: int = 100) -> None:
        self.node = Node() if node is None else node
        self.prefetch_max = prefetch_max
        self.passcode = b""
        self.ends_lines = False
        self.ids = itertools.count(10_000)
        self.tails = Tails()
        self.talkers: list[Talker] = []

    def new_id(self) -> ClientId:
        return ClientId(next(self.ids))

    def connect(self, version: Version = Version.V12, **headers: str) -> Talker:
        """A connection that has been welcomed."""
        talker = self.open()
        accept = ACCEPT[version]
        said = {name.replace("_", "-").encode(): text.encode() for name, text in headers.items()}
        if accept is not None:
            said[b"accept-version"] = accept
        (frame,) = talker.say(Frame(b"CONNECT", said))
        assert frame.command == b"CONNECTED", frame
        assert talker.session.version is version
        return talker

    def open(self) -> Talker:
        """A connection that has said nothing yet."""
        talker = Talker(self, b"c%d" % len(self.talkers))
        self.talkers.append(talker)
        return talker

    def route(self) -> None:
        """Carry commands and replies until nobody has any more."""
        is_moving = True
        while is_moving:
            is_moving = False
            for talker in self.talkers:
                is_moving |= talker.carry_out()
            replies, self.node.replies = self.node.replies, []
            for id_, reply in replies:
                for talker in self.talkers:
                    if isinstance(reply, Published) and id_ == talker.session.subscriber:
                        talker.wire += b"".join(talker.session.messages(reply))
                    elif id_ in talker.session.outbox.waiting():
                        talker.session.replied(id_, reply, self.node.now_ms)
                        is_moving = True

    def advance(self, ms: int, step_ms: int = 100) -> None:
        """Let time pass; sessions look at their timers as the server lets them."""
        for _ in range(0, ms, step_ms):
            self.node.advance(step_ms)
            for talker in self.talkers:
                talker.tick()
            self.route()

    def add(self, body: bytes = b"body", *, queue: bytes = b"q", **options: object) -> bytes:
        """ADDJOB by somebody else; its id."""
        id_ = self.node.add(body, queue=queue, **options)
        self.route()
        return id_


class Talker:
    """One client: what it says, and what it heard as frames."""

    def __init__(self, hub: Hub, name: bytes) -> None:
        self.hub = hub
        around = Surroundings(
            connection=name,
            server=b"test",
            new_id=hub.new_id,
            log_in=lambda _login, codes: hub.passcode in codes,
            prefetch_max=lambda: hub.prefetch_max,
            tails=hub.tails,
            ends_lines=lambda: hub.ends_lines,
        )
        self.session = Session(around, hub.node.now_ms)
        self.wire = b""
        self.sent_bytes = 0
        self.read_at_ms = hub.node.now_ms
        self.is_stalled = False  # what it is sent isn't taken
        self.is_gone = False

    def say(self, *frames: Frame) -> list[Frame]:
        """Say frames; what has been heard since."""
        for frame in frames:
            self.read_at_ms = self.hub.node.now_ms
            decoder = Decoder()
            decoder.version = self.session.version
            decoder.feed(encode(frame, self.session.version))
            for each in decoder.take():
                self.session.receive(each, self.hub.node.now_ms)
            self.session.settle_up()
            self.hub.route()
        return self.heard()

    def do(self, command: str, body: bytes = b"", /, **headers: str | bytes) -> list[Frame]:
        """Say one frame; underscores in names are dashes."""
        said = {
            name.rstrip("_").replace("_", "-").encode(): text
            if isinstance(text, bytes)
            else text.encode()
            for name, text in headers.items()
        }
        return self.say(Frame(command.encode(), said, body))

    def heard(self) -> list[Frame]:
        """What has come since the last call."""
        decoder = Decoder()
        decoder.version = self.session.version
        decoder.feed(self.wire)
        self.wire = b""
        frames: list[Frame] = []
        while more := decoder.take():
            frames += more
        assert not decoder.pending_bytes
        return frames

    def bodies(self) -> list[bytes]:
        """The bodies of messages that have come; nothing else may have."""
        frames = self.heard()
        assert [each for each in frames if each.command != b"MESSAGE"] == []
        return [each.body for each in frames]

    def carry_out(self) -> bool:
        """Give the session's commands to the engine; True if there were some."""
        outbox, engine = self.session.outbox, self.hub.node.engine
        commands, outbox.commands = outbox.commands, deque()
        for id_, command in commands:
            if command is not None:
                engine.command(id_, command)
            elif engine.is_waiting(id_):
                engine.disconnect(id_)
                outbox.forget(id_)
        self.hub.node._take()
        data, outbox.data = b"".join(outbox.data), []
        if not self.is_gone:
            self.wire += data
            self.sent_bytes += len(data)
        if not (self.is_stalled or self.is_gone):
            self.session.flushed(self.hub.node.now_ms)
        return bool(commands or outbox.commands)

    def tick(self) -> None:
        """Look at the timers."""
        due_at = self.session.due_at
        if due_at is not None and due_at <= self.hub.node.now_ms and not self.is_gone:
            self.session.tick(
                self.hub.node.now_ms, sent_bytes=self.sent_bytes, read_at_ms=self.read_at_ms
            )

    def leave(self) -> None:
        """The connection is lost."""
        self.is_gone = True
        for id_ in self.session.outbox.waiting():
            if self.hub.node.engine.is_waiting(id_):
                self.hub.node.engine.disconnect(id_)
                self.session.outbox.forget(id_)
        if self.session.subscriber is not None:
            self.hub.node.engine.disconnect(self.session.subscriber)
        while self.session.close(self.hub.node.now_ms):
            pass
        self.hub.route()


def receipt(name: str, **more: bytes) -> Frame:
    """A RECEIPT."""
    extra = {key.replace("_", "-").encode(): text for key, text in more.items()}
    return Frame(b"RECEIPT", {b"receipt-id": name.encode(), **extra})


@attrs.frozen
class Depth:
    """A queue of the node: what is queued, and what is known of jobs."""

    queued: int
    known: int


def depth(hub: Hub, queue: bytes = b"q") -> Depth:
    """How deep a queue is."""
    (length,) = hub.node.do(cmd.QLen(queue), client=ClientId(96))
    assert isinstance(length, int)
    return Depth(length, len(hub.node.state.jobs))
