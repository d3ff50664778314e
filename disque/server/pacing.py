"""Pacing: commands that are about a hundred thousand jobs, carried out in pieces, so that others have their turn.

A piece is an ordinary command of the core; replies are added up, or put in a row, and spelled piece by piece. The
client waits for the whole as for any reply that takes time. What comes between the pieces is seen by those that follow:
no command about many jobs ever promised more than each of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import trio

from disque.core import commands as cmd
from disque.core.ready import Failure, NilArray
from disque.core.scanning import CURSOR_BITS
from disque.errors import CommandError
from disque.resp import encoder
from disque.server.clients import UNWRITTEN
from disque.server.render import Whole, render
from disque.server.shell import Later

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

    from disque.core.ready import ClientId, Reply
    from disque.resp.encoder import Protocol
    from disque.server.connection import Client
    from disque.server.render import Answer
    from disque.server.shell import Shell

PIECE = 200  # ids, jobs or names: some 10 ms
SCANNED = 1_000  # jobs or queues that a piece of a scan finds; it looks at ten times as many
SHOWN = 200  # the same if all is told of each
LOOKED_AT = 1_000  # jobs of a queue in a piece of a look
FORGOTTEN = 5_000  # words
_PART_BYTES = 64 << 10  # of a long answer: a smaller one isn't worth a write of its own
_WAIT_S = 0.05  # for a broker that takes no commands now, or a log that takes no records


def in_pieces(shell: Shell, client: Client, command: cmd.Command) -> Later | None:
    """A long command's way to its answer; None if it is short enough to be carried out at once."""
    pace = _PACES.get(type(command))
    if pace is None or not pace[0](command):
        return None
    # What a client that has gone said of jobs counts; it gets none, and reads nothing
    return Later(
        lambda: _carry_out(pace[1], Asking(shell, client), command),
        ends_with_client=pace is not _OF_IDS,
    )


def in_pieces_of_words(
    shell: Shell,
    client: Client,
    words: list[bytes],
    first: int,
    read: Callable[[list[bytes]], cmd.Command],
) -> Later:
    """The same for more words than are read in one go, from the `first` on; `read` makes a command of some."""
    many = Many(words, first, read, read(words[-PIECE:]))
    steps = _PACES[type(many.last)][1]
    return Later(
        lambda: _carry_out(steps, Asking(shell, client), many), ends_with_client=steps is not _sum
    )


async def forget(words: list[bytes]) -> None:
    """Very many words: to give a million up at once would take some 30 ms."""
    while words:
        del words[-FORGOTTEN:]
        await trio.lowlevel.checkpoint()


async def _carry_out(
    steps: Callable[[Asking, Any], Awaitable[Answer | Whole]],
    asking: Asking,
    command: cmd.Command | Many,
) -> Answer | Whole:
    try:
        await asking.check_names(command)
        if asking.shell.turns.trouble and not only_reads(command):
            raise unwritten(asking.shell)
        return await steps(asking, command)
    finally:
        asking.client.kept_bytes = 0
        if isinstance(command, Many):
            asking.shell.nursery.start_soon(forget, command.words)


@attrs.frozen
class Asking:
    """Who asks for the pieces of one command."""

    shell: Shell
    client: Client

    @property
    def proto(self) -> Protocol:
        """In which replies are spelled."""
        return self.client.proto

    @property
    def bytes_max(self) -> int:
        """An answer with bodies is full once it has so many."""
        return self.shell.broker.engine.state.limits.answer_bytes_max

    async def check_names(self, command: cmd.Command | Many) -> None:
        """CommandError if the client's user may not touch one of many names or jobs: before the first is touched.

        Or if one of many words isn't one.
        """
        user, queue_of = self.client.user, self.shell.broker.engine.queue_of
        if user is not None or isinstance(command, Many):
            for piece in command.look() if isinstance(command, Many) else _cut(command):
                if user is not None:
                    user.check_names(piece, queue_of)
                await trio.lowlevel.checkpoint()

    async def ask(self, command: cmd.Command) -> Any:
        """Give a piece to the broker and wait for its reply, and for a log that fails; a failure ends the whole."""
        shell, clients = self.shell, self.shell.clients
        while shell.broker.is_returning or (shell.turns.trouble and not only_reads(command)):
            await trio.sleep(_WAIT_S)
        await trio.lowlevel.checkpoint_if_cancelled()
        id_, answered = clients.new_id(), trio.Event()
        replies: list[Reply] = []

        def hear(_id: ClientId, reply: Reply) -> None:
            self.client.is_abandonable = False
            replies.append(reply)
            answered.set()

        clients.listen_to(id_, hear)
        try:
            if not shell.broker.command(id_, command) and isinstance(command, cmd.GetJob):
                # There is nothing yet: who has ended its side waits no longer
                self.client.is_abandonable = True
                self.client.made_room()
            shell.turns.wake()
            await answered.wait()
        finally:
            clients.forget(id_)
            if not replies:
                shell.broker.disconnect(id_)
        if isinstance(replies[0], Failure):
            raise CommandError(replies[0].text, replies[0].code)
        if not only_reads(command):
            await shell.turns.wait_written()
        return replies[0]


@attrs.define(eq=False)
class Many:
    """A command that isn't made of its words in one go, nor forgotten; they are checked first, then used up."""

    words: list[bytes]
    first: int  # of them that is a name or job
    read: Callable[[list[bytes]], Any]  # a command of some words
    last: Any  # command: of the last words, with all that options say

    def look(self) -> Iterator[Any]:
        """The pieces, in order; CommandError for one that isn't right."""
        end = len(self.words) - PIECE
        for at in range(self.first, end, PIECE):
            yield self._piece(self.words[at : min(at + PIECE, end)])
        yield self.last

    def take(self) -> Iterator[Any]:
        """The same, and the words are given up on the way."""
        left = self.words
        del left[-PIECE:]
        left.reverse()
        del left[-self.first :]
        while left:
            piece = self._piece(left[: -PIECE - 1 : -1])
            del left[-PIECE:]
            yield piece
        yield self.last

    def _piece(self, words: list[bytes]) -> Any:
        piece, field = self.read(words), _list_of(self.last)
        names = getattr(piece, str(field))
        if len(names) != len(words):
            raise CommandError("Invalid Job ID format.", "BADID")  # an option amid ids
        return attrs.evolve(self.last, **{str(field): names})


def _list_of(command: Any) -> str | None:
    return next((each for each in _LISTS if getattr(command, each, None)), None)


def _cut(command: Any) -> Iterator[Any]:
    """The same about some of its jobs or names at a time."""
    if isinstance(command, Many):
        yield from command.take()
        return
    field = _list_of(command)
    if field is None:
        yield command
        return
    whole = getattr(command, field)
    for first in range(0, len(whole), PIECE):
        yield attrs.evolve(command, **{field: whole[first : first + PIECE]})


_LISTS = ("ids", "topics", "channels", "queues")


async def _sum(asking: Asking, command: Any) -> Answer:
    """Of the counts that each piece of the ids gives."""
    total = 0
    for piece in _cut(command):
        total += await asking.ask(piece)
    return total


async def _subscribe(asking: Asking, command: Any) -> Whole:
    """One reply after the other."""
    return Whole([render(await asking.ask(piece), asking.proto) for piece in _cut(command)])


async def _unsubscribe(asking: Asking, command: cmd.Unsubscribe | Many) -> Whole:
    """Without names: of all there are."""
    if isinstance(command, Many) or command.topics is not None:
        return await _subscribe(asking, command)
    topics, parts = asking.shell.broker.engine.state.topics, []
    for piece in topics.pieces_of(command.subscriber, PIECE, are_patterns=command.is_pattern):
        reply = await asking.ask(attrs.evolve(command, topics=piece))
        parts.append(render(reply, asking.proto))
    if not parts:
        parts.append(render(await asking.ask(command), asking.proto))
    return Whole(parts)


async def _count_subscriptions(asking: Asking, command: cmd.NumSub | Many) -> Whole:
    found = Elements(asking.client)
    for piece in _cut(command):
        found.add(await asking.ask(piece))
    return found.array()


async def _get(asking: Asking, command: cmd.GetJob) -> Answer | Whole:
    """Who has got some doesn't wait for more."""
    found = Elements(asking.client)
    piece = attrs.evolve(command, count=PIECE)
    while found.count < command.count and found.size < asking.bytes_max:
        piece = attrs.evolve(piece, count=min(PIECE, command.count - found.count))
        reply = await asking.ask(piece)
        if isinstance(reply, NilArray):
            break
        found.add(reply)
        piece = attrs.evolve(piece, is_nohang=True)
    return found.array() if found.count else NilArray()


async def _scan(asking: Asking, command: cmd.QScan | cmd.JScan) -> Whole:
    """From the cursor on, as many as are asked for."""
    found = Elements(asking.client)
    cursor, step = command.cursor, SHOWN if command.is_full else SCANNED
    most = command.count
    async with asking.shell.long_scans:
        while most is None or (found.count < most and found.size < asking.bytes_max):
            count = step if most is None else min(step, most - found.count)
            place, names = await asking.ask(attrs.evolve(command, cursor=cursor, count=count))
            found.add(names)
            if (
                found.count
                and cursor
                and int(place)
                and int(place) >> CURSOR_BITS != cursor >> CURSOR_BITS
            ):
                raise CommandError("too many scans at a time, try again")
            cursor = int(place)
            if not cursor:
                break
    return found.array(encoder.array_header(2) + encoder.bulk(b"%d" % cursor))


async def _peek(asking: Asking, command: cmd.QPeek) -> Whole:
    """From one end on."""
    found = Elements(asking.client)
    sign = 1 if command.count > 0 else -1
    while found.count < abs(command.count) and found.size < asking.bytes_max:
        count = min(LOOKED_AT, abs(command.count) - found.count)
        reply = await asking.ask(attrs.evolve(command, count=sign * count, skip=found.count))
        found.add(reply)
        if len(reply) < count:
            break
    return found.array()


@attrs.define
class Elements:
    """Of an array, spelled piece by piece into what the socket gets: nothing grows, nothing is joined in the end."""

    client: Client  # for whom it holds them: see clients-memory-max
    count: int = 0
    size: int = 0  # bytes
    _parts: list[bytes] = attrs.Factory(lambda: [b""])  # the first one is of the head

    def add(self, elements: Sequence[Reply]) -> None:
        """Some more."""
        self.count += len(elements)
        proto = self.client.proto
        piece = b"".join([render(each, proto) for each in elements])
        self.size += len(piece)
        self.client.kept_bytes += len(piece)
        if len(self._parts) > 1 and len(self._parts[-1]) < _PART_BYTES:
            piece = self._parts.pop() + piece
        self._parts.append(piece)

    def array(self, before: bytes = b"") -> Whole:
        """All of them, after what comes before."""
        self._parts[0] = before + encoder.array_header(self.count)
        return Whole(self._parts)


def _is_long_scan(command: cmd.QScan | cmd.JScan) -> bool:
    return command.count is None or command.count > (SHOWN if command.is_full else SCANNED)


_Pace = tuple["Callable[[Any], bool]", "Callable[[Asking, Any], Awaitable[Answer | Whole]]"]
_OF_IDS: _Pace = (lambda command: len(command.ids) > PIECE, _sum)
_PACES: Mapping[type, _Pace] = {
    cmd.AckJob: _OF_IDS,
    cmd.FastAck: _OF_IDS,
    cmd.DelJob: _OF_IDS,
    cmd.Enqueue: _OF_IDS,
    cmd.Nack: _OF_IDS,
    cmd.Dequeue: _OF_IDS,
    cmd.Revive: _OF_IDS,
    cmd.CancelJob: _OF_IDS,
    cmd.Subscribe: (lambda command: len(command.topics) > PIECE, _subscribe),
    cmd.Unsubscribe: (
        lambda command: command.topics is None or len(command.topics) > PIECE,
        _unsubscribe,
    ),
    cmd.NumSub: (lambda command: len(command.channels) > PIECE, _count_subscriptions),
    cmd.GetJob: (lambda command: command.count > PIECE, _get),
    cmd.QScan: (_is_long_scan, _scan),
    cmd.JScan: (_is_long_scan, _scan),
    cmd.QPeek: (lambda command: abs(command.count) > LOOKED_AT, _peek),
}


def only_reads(command: cmd.Command | Many) -> bool:
    """True if it needs neither the log nor a peer: it is answered from memory even if the log can't be written."""
    is_read = _READS.get(type(command))
    return is_read is not None and is_read(command)


_READS: Mapping[type, Callable[[Any], bool]] = {
    cmd.Pause: lambda command: command.flags is None,
    cmd.QStat: lambda command: not command.is_global,
    **dict.fromkeys((cmd.Show, cmd.QLen, cmd.QPeek, cmd.QScan, cmd.JScan), lambda _: True),
}


def unwritten(shell: Shell) -> CommandError:
    """The log can't be written."""
    return CommandError(f"{UNWRITTEN}: {shell.turns.trouble}", "MISCONF")
