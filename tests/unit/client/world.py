"""World: nodes of a few lines behind a `transport.Transport` with a clock of its own, to test the client's judgement.

A node answers each command by a function of its words, or cuts the connection, or says nothing. Whatever would wait
moves the clock instead.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from contextlib import AbstractContextManager

import attrs

from disque.client.session import Session
from disque.client.url import Address, Endpoint, Options
from disque.resp import encoder
from disque.resp.decoder import Decoder

CUT = b"-cut"
SILENCE = b"-silence"
ID = "D-{}-dvLzHhkmNXFD0IjK1TSjQJ9a-05a1"


def job_id(node: str) -> str:
    """The id of a job made by the node whose id begins so."""
    return ID.format(node[:8].ljust(8, "0"))


@attrs.define(eq=False)
class Node:
    """A node of the test; `asked` are the commands that reached it, greetings left out."""

    name: str
    id: str
    answer: Callable[[list[bytes]], bytes] = lambda _: b"+OK\r\n"
    is_down: bool = False
    priority: int = 1
    knows: list[Node] = attrs.Factory(list)
    asked: list[list[bytes]] = attrs.Factory(list)
    greeted: int = 0
    password: bytes = b""
    hello_error: bytes = b""

    @property
    def address(self) -> Address:
        """Its name is its host."""
        return Address(self.name)

    def reply(self, words: list[bytes]) -> bytes:
        """What it says to a command."""
        if words[0] == b"AUTH" and not self.password:
            return b"-ERR Client sent AUTH, but no password is set\r\n"
        if words[0] == b"AUTH":
            return b"+OK\r\n" if words[-1] == self.password else b"-ERR invalid password\r\n"
        if words[0] == b"HELLO":
            self.greeted += 1
            if self.hello_error:
                return self.hello_error
            nodes = [
                [each.id.encode(), each.name.encode(), b"7711", b"%d" % each.priority]
                for each in (self, *self.knows)
            ]
            return encoder.encode([1, self.id.encode(), *nodes])
        self.asked.append(words)
        return self.answer(words)


class Stream:
    """A connection to such a node; `bytes_left` is how many it takes before it breaks, `piece` at a time."""

    def __init__(self, world: World, node: Node) -> None:
        self._world, self._node = world, node
        self._decoder = Decoder()
        self._replies = bytearray()
        self.is_cut = self.is_closed = self.is_finished = False
        self.bytes_left: int | None = None
        self.piece = 1 << 20

    async def send_some(self, data: memoryview, deadline: float | None) -> int:
        """Hand over a piece."""
        if self.is_cut or self._node.is_down:
            raise BrokenPipeError("cut")
        part = bytes(data[: self.piece])
        if self.bytes_left is not None:
            part = part[: self.bytes_left]
            self.bytes_left -= len(part)
            if not part:
                raise BrokenPipeError("cut")
        self._decoder.feed(part)
        for words in self._decoder.take():
            reply = self._node.reply(words)
            if reply == CUT:
                self.is_cut = True
                break
            self._replies += b"" if reply == SILENCE else reply
        return len(part)

    async def receive_some(self, deadline: float | None) -> bytes:
        """What is there, at once; else the end of the stream, or the deadline comes."""
        if self._replies:
            data = bytes(self._replies)
            self._replies.clear()
            return data
        if self.is_cut or self._node.is_down:
            return b""
        assert deadline is not None, "it would wait for ever"
        self._world.time = max(self._world.time, deadline)
        raise TimeoutError

    def is_stale(self) -> bool:
        """True once it is cut."""
        return self.is_cut or self._node.is_down

    def fileno(self) -> int:
        """None here."""
        return -1

    def finish(self) -> None:
        """Noted."""
        self.is_finished = True

    def close(self) -> None:
        """Noted."""
        self.is_closed = True


@attrs.define(eq=False)
class World:
    """Nodes by address, the time, the pauses that were made, the connections."""

    nodes: dict[Address, Node]
    time: float = 1_000.0
    pauses: list[float] = attrs.Factory(list)
    streams: list[Stream] = attrs.Factory(list)
    on_sleep: Callable[[], None] = lambda: None

    async def connect(self, address: Address, deadline: float) -> Stream:
        """OSError if nobody is there."""
        node = self.nodes.get(address)
        if node is None or node.is_down:
            raise ConnectionRefusedError("refused")
        stream = Stream(self, node)
        self.streams.append(stream)
        return stream

    async def sleep(self, seconds: float) -> None:
        """Move the clock."""
        self.pauses.append(seconds)
        self.time += seconds
        self.on_sleep()

    def shielded(self, _seconds: float, /) -> AbstractContextManager[object]:
        """Nothing cancels here."""
        return contextlib.nullcontext()

    def now(self) -> float:
        """The world's time."""
        return self.time


def cluster(count: int = 3) -> list[Node]:
    """Nodes a, b, c ... that know each other; their ids begin with eight of that letter's hexadecimal digit."""
    nodes = [Node("abcdef"[index], "abcdef"[index] * 40) for index in range(count)]
    for node in nodes:
        node.knows = [each for each in nodes if each is not node]
    return nodes


def session_with(
    nodes: list[Node], *, seeds: int | None = None, password: str = "", **options: float
) -> tuple[Session, World]:
    """A session that starts with the first `seeds` nodes, all by default."""
    world = World({node.address: node for node in nodes})
    addresses = tuple([node.address for node in nodes[:seeds]])
    endpoint = Endpoint(addresses, "", password, Options(**options))  # type: ignore[arg-type]
    return Session(world, endpoint, dice=random.Random(7)), world
