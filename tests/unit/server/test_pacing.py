"""Commands about very many jobs: the same replies as in one go, and others are served in between."""

from __future__ import annotations

import errno
import time
import tracemalloc
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from disque.broker import Broker
from disque.core.limits import Limits
from disque.server import dispatch, pacing
from disque.server.acl import parse_user
from disque.server.table import ARGUMENTS_MAX
from tests.unit.server.test_loop import ADD, MISCONF, FullLog
from tests.unit.server.world import Peer, World, running

if TYPE_CHECKING:
    from collections.abc import Sequence

    from disque.core.ready import Record


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (("PIECE", 3), ("SCANNED", 4), ("SHOWN", 2), ("LOOKED_AT", 3)):
        monkeypatch.setattr(pacing, name, size)


def command(*words: bytes) -> bytes:
    return b"*%d\r\n%b" % (len(words), b"".join(b"$%d\r\n%b\r\n" % (len(w), w) for w in words))


async def add(peer: Peer, count: int, queue: bytes = b"q") -> list[bytes]:
    ids = []
    for number in range(count):
        await peer.send(command(b"ADDJOB", queue, b"%d" % number, b"0", b"RETRY", b"60"))
        ids.append((await peer.read_line())[1:-2])
    return ids


async def read(peer: Peer) -> object:
    """One reply."""
    line = (await peer.read_line())[:-2]
    kind, rest = line[:1], line[1:]
    if kind == b":":
        return int(rest)
    if kind == b"$":
        return (await peer.read(int(rest) + 2))[:-2] if rest != b"-1" else None
    if kind == b"*":
        return [await read(peer) for _ in range(int(rest))] if rest != b"-1" else None
    return rest


async def ask(peer: Peer, *words: bytes) -> object:
    await peer.send(command(*words))
    return await read(peer)


@pytest.mark.parametrize(
    ("word", "before", "counted"),
    [
        (b"ACKJOB", b"", 10),
        (b"FASTACK", b"", 10),
        (b"DELJOB", b"", 10),
        (b"CANCELJOB", b"", 10),
        (b"DEQUEUE", b"", 10),
        (b"ENQUEUE", b"DEQUEUE", 10),
        (b"NACK", b"DEQUEUE", 10),
        (b"REVIVE", b"", 0),
    ],
)
async def test_counts_of_many_ids_are_added_up(word: bytes, before: bytes, counted: int) -> None:
    async with running() as world:
        peer = world.connect()
        ids = await add(peer, 10)
        if before:
            assert await ask(peer, before, *ids) == 10
        assert await ask(peer, word, *ids) == counted
        assert await ask(peer, b"PING", b"next") == b"next"


async def test_one_bad_id_still_refuses_all() -> None:
    async with running() as world:
        peer = world.connect()
        ids = await add(peer, 5)
        await peer.send(command(b"ACKJOB", *ids, b"bad"))
        assert await read(peer) == b"BADID Invalid Job ID format."
        assert await ask(peer, b"QLEN", b"q") == 5


@pytest.mark.parametrize(("count", "given"), [(b"4", 4), (b"7", 7), (b"10", 8), (b"100", 8)])
async def test_many_jobs_are_given_in_their_order(count: bytes, given: int) -> None:
    async with running() as world:
        peer = world.connect()
        ids = await add(peer, 8)
        found = await ask(peer, b"GETJOB", b"COUNT", count, b"FROM", b"q")
        assert found == [[b"q", id_, b"%d" % n] for n, id_ in enumerate(ids[:given])]
        assert await ask(peer, b"GETJOB", b"NOHANG", b"COUNT", count, b"FROM", b"none") is None


async def test_who_asks_for_many_waits_for_the_first_and_takes_what_is_there() -> None:
    async with running() as world:
        waiting, peer = world.connect(), world.connect()
        await waiting.send(command(b"GETJOB", b"COUNT", b"50", b"FROM", b"q"))
        await trio.testing.wait_all_tasks_blocked()
        (id_,) = await add(peer, 1)
        assert await read(waiting) == [[b"q", id_, b"0"]]
        assert await ask(peer, b"GETJOB", b"TIMEOUT", b"1", b"COUNT", b"50", b"FROM", b"q") is None


async def test_a_client_that_waits_for_many_and_goes_gets_none() -> None:
    async with running() as world:
        waiting, peer = world.connect(), world.connect()
        await waiting.send(command(b"GETJOB", b"COUNT", b"50", b"FROM", b"q"))
        await trio.testing.wait_all_tasks_blocked()
        await waiting.stream.aclose()
        while len(world.clients.by_id) > 1:
            await trio.sleep(0.001)
        await add(peer, 1)
        assert await ask(peer, b"QLEN", b"q") == 1
        assert not world.broker.engine.state.getting
        assert not world.clients._hearers


@pytest.mark.parametrize("count", [b"3", b"4", b"50"])
async def test_a_client_that_ends_its_side_gets_the_jobs_that_are_there(count: bytes) -> None:
    async with running() as world:
        peer, ending, empty = world.connect(), world.connect(), world.connect()
        ids = await add(peer, 8)
        await ending.send(command(b"GETJOB", b"COUNT", count, b"FROM", b"q"))
        await ending.stream.send_eof()
        assert len(await read(ending)) == min(int(count), len(ids))  # type: ignore[arg-type]
        await ending.expect_end()
        await empty.send(command(b"GETJOB", b"COUNT", count, b"FROM", b"none"))
        await empty.stream.send_eof()
        await empty.expect_end()


@pytest.mark.parametrize(
    "words", [[b"BUSYLOOP"], [b"COUNT", b"1000"], [b"REPLY", b"id", b"COUNT", b"11"]]
)
async def test_a_long_scan_finds_each_job_once(words: list[bytes]) -> None:
    async with running() as world:
        peer = world.connect()
        ids = await add(peer, 11)
        cursor, found = await ask(peer, b"JSCAN", *words)  # type: ignore[misc]
        assert cursor == b"0"
        assert sorted(found) == sorted(ids)


async def test_a_long_scan_ends_where_it_was_asked_to_and_goes_on_from_there() -> None:
    async with running() as world:
        peer = world.connect()
        ids = await add(peer, 11)
        cursor, found = await ask(peer, b"JSCAN", b"COUNT", b"6")  # type: ignore[misc]
        assert cursor != b"0"
        assert len(found) == 6
        _, rest = await ask(peer, b"JSCAN", cursor, b"COUNT", b"6")  # type: ignore[misc]
        assert sorted([*found, *rest]) == sorted(ids)


async def test_long_scans_show_what_short_ones_do(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as world:
        peer = world.connect()
        for number in range(7):
            await add(peer, 1, b"q%d" % number)
        paced = [
            await ask(peer, *words)
            for words in (
                (b"QSCAN", b"BUSYLOOP"),
                (b"JSCAN", b"BUSYLOOP", b"STATE", b"queued"),
                (b"JSCAN", b"BUSYLOOP", b"QUEUE", b"q3"),
            )
        ]
        for name in ("SCANNED", "SHOWN"):
            monkeypatch.setattr(pacing, name, 100)
        at_once = [
            await ask(peer, *words)
            for words in (
                (b"QSCAN", b"COUNT", b"100"),
                (b"JSCAN", b"COUNT", b"100", b"STATE", b"queued"),
                (b"JSCAN", b"COUNT", b"100", b"QUEUE", b"q3"),
            )
        ]
        assert paced == at_once


@pytest.mark.parametrize("count", [b"5", b"8", b"9", b"1000"])
async def test_a_long_look_shows_the_queue_from_either_end(count: bytes) -> None:
    async with running() as world:
        peer = world.connect()
        jobs = [[b"q", id_, b"%d" % n] for n, id_ in enumerate(await add(peer, 9))]
        assert await ask(peer, b"QPEEK", b"q", count) == jobs[: int(count)]
        assert await ask(peer, b"QPEEK", b"q", b"-" + count) == jobs[::-1][: int(count)]


async def test_an_answer_in_pieces_ends_once_it_is_full() -> None:
    async with running() as world:
        peer = world.connect()
        ids = await add(peer, 30)
        # some five jobs with their ids
        world.broker.engine.state.limits = Limits(answer_bytes_max=300)
        looked = await ask(peer, b"QPEEK", b"q", b"20")
        assert looked == [[b"q", id_, b"%d" % n] for n, id_ in enumerate(ids[:6])]
        assert await ask(peer, b"GETJOB", b"COUNT", b"20", b"FROM", b"q") == looked
        cursor, found = await ask(peer, b"JSCAN", b"COUNT", b"29")  # type: ignore[misc]
        assert cursor != b"0"
        assert len(found) < 29


@pytest.mark.patches
async def test_many_subscriptions_are_told_one_by_one() -> None:
    async with running() as world:
        peer = world.connect()
        names = [b"c%d" % number for number in range(8)]
        await peer.send(command(b"SUBSCRIBE", *names))
        for at, name in enumerate(names, start=1):
            assert await read(peer) == [b"subscribe", name, at]
        await peer.send(command(b"UNSUBSCRIBE", *names))
        for at, name in enumerate(names, start=1):
            assert await read(peer) == [b"unsubscribe", name, 8 - at]
        await peer.send(command(b"SUBSCRIBE", *names, b"more"))
        for _ in (*names, b"more"):
            await read(peer)
        await peer.send(command(b"PSUBSCRIBE", b"p*"))
        await read(peer)
        broker, pieces = world.broker, []
        carry_out = broker.command
        broker.command = lambda id_, each: (pieces.append(each), carry_out(id_, each))[1]  # type: ignore[method-assign]
        await peer.send(command(b"UNSUBSCRIBE"))
        for at, name in enumerate((*names, b"more"), start=1):
            assert await read(peer) == [b"unsubscribe", name, 10 - at]
        assert [len(piece.topics) for piece in pieces] == [3, 3, 3]
        await peer.send(command(b"UNSUBSCRIBE"))
        assert await read(peer) == [b"unsubscribe", None, 1]
        await peer.send(command(b"PUNSUBSCRIBE"))
        assert await read(peer) == [b"punsubscribe", b"p*", 0]
        counts = await ask(peer, b"PUBSUB", b"NUMSUB", *names)
        assert counts == [each for name in names for each in (name, 0)]


async def others_are_served(world: World, peer: Peer, *words: bytes) -> None:
    other = world.connect()
    await other.ask(b"PING\r\n", b"+PONG\r\n")
    replies: list[str] = []
    async with trio.open_nursery() as nursery:

        async def long() -> None:
            await ask(peer, *words)
            replies.append("long")

        async def short() -> None:
            await trio.lowlevel.checkpoint()
            await other.ask(b"PING\r\n", b"+PONG\r\n")
            replies.append("short")

        nursery.start_soon(long)
        nursery.start_soon(short)
    assert replies == ["short", "long"]


async def test_others_are_served_between_the_pieces() -> None:
    async with running() as world:
        peer = world.connect()
        ids = await add(peer, 600)
        await others_are_served(world, peer, b"JSCAN", b"BUSYLOOP")
        await others_are_served(world, peer, b"QPEEK", b"q", b"600")
        await others_are_served(world, peer, b"GETJOB", b"COUNT", b"600", b"FROM", b"q")
        await others_are_served(world, peer, b"ACKJOB", *ids)
        assert not world.clients._hearers


async def test_rights_on_all_of_many_jobs_are_looked_at_in_pieces_before_one_is_touched() -> None:
    async with running() as world:
        peer = world.connect()
        ids = [*await add(peer, 600), *await add(peer, 1, b"other")]
        (client,) = world.clients.by_id.values()
        client.user = parse_user(["worker", "on", "#" + 64 * "0", "+@all", "~q"])
        await others_are_served(world, peer, b"ACKJOB", *ids)
        refused = b"NOPERM User worker has no permissions on 'other'"
        assert await ask(peer, b"ACKJOB", *ids) == refused
        assert await ask(peer, b"QLEN", b"q") == 600
        assert await ask(peer, b"ACKJOB", *ids[:600]) == 600
        names = [b"q", b"other", b"more", b"q2"]
        assert await ask(peer, b"SUBSCRIBE", *names) == refused
        assert await ask(peer, b"PUBSUB", b"NUMSUB", *names) == refused
        assert await ask(peer, b"GETJOB", b"COUNT", b"9", b"FROM", *names) == refused


UNKNOWN = [b"D-deadbeef-%024d-05a0" % number for number in range(ARGUMENTS_MAX + 1)]


async def test_more_words_than_are_read_in_one_go_are_all_checked_and_then_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pacing, "PIECE", 1_000)
    async with running() as world:
        peer = world.connect()
        ids = await add(peer, 10)
        (client,) = world.clients.by_id.values()

        async def expect(reply: bytes, *words: bytes) -> None:
            given = list(words)
            dispatch.execute(world.shell, client, given, time.perf_counter_ns())
            world.turns.end(client)
            await peer.expect(reply)
            await trio.testing.wait_all_tasks_blocked()
            assert given == [], "all at once they would hold others up"

        many = [*ids[:5], *UNKNOWN, *ids[5:]]
        bad = b"-BADID Invalid Job ID format.\r\n"
        more = b"-ERR too many arguments for 'ping' command, at most %d\r\n" % ARGUMENTS_MAX
        await expect(bad, b"ACKJOB", *ids, b"bad", *UNKNOWN)
        await expect(bad, b"NACK", *ids, b"DELAY", b"9", *UNKNOWN)
        await expect(more, b"PING", *UNKNOWN)
        assert await ask(peer, b"QLEN", b"q") == 10
        await expect(b":10\r\n", b"DEQUEUE", *many)
        await expect(b":10\r\n", b"NACK", *many, b"DELAY", b"60")
        assert await ask(peer, b"QLEN", b"q") == 0
        await expect(b":10\r\n", b"ACKJOB", *many)
        spelled = [b"$40\r\n%b\r\n" % name for name in UNKNOWN]
        counts = b"".join([b"%b:0\r\n" % name for name in spelled])
        await expect(b"*%d\r\n%b" % (2 * len(UNKNOWN), counts), b"PUBSUB", b"NUMSUB", *UNKNOWN)
        heard = [
            b"*3\r\n$9\r\nsubscribe\r\n%b:%d\r\n" % (name, at)
            for at, name in enumerate(spelled, start=1)
        ]
        await expect(b"".join(heard), b"SUBSCRIBE", *UNKNOWN)


async def test_as_many_words_as_any_command_may_have_are_read_in_one_go() -> None:
    async with running() as world:
        names = UNKNOWN[: ARGUMENTS_MAX - 2]
        answer = await ask(world.connect(), b"GETJOB", b"NOHANG", b"FROM", *names)
        assert answer == b"ERR GETJOB takes at most 5000 queues"


async def test_a_log_that_can_t_be_written_refuses_a_command_before_its_first_piece() -> None:
    async with running() as world:
        peer = world.connect()
        ids = await add(peer, 6)
        asking = pacing.Asking(world.shell, next(iter(world.clients.by_id.values())))
        world.turns.trouble = "no space"
        with pytest.raises(Exception, match="Errors writing to the AOF file: no space"):
            await pacing._carry_out(
                pacing._sum, asking, pacing.cmd.AckJob(tuple(map(pacing.cmd.JobId, ids)))
            )
        world.turns.trouble = ""


class FillingLog(FullLog):
    """A log whose disk is full after so many writes more; None: it isn't."""

    writes_left: int | None = None

    def write(self, records: Sequence[Record]) -> bool:
        """Take them, or nothing of them."""
        if self.writes_left is not None:
            self.write_errno = 0 if self.writes_left > 0 else errno.ENOSPC
            self.writes_left -= 1
        return super().write(records)

    def heal(self) -> None:
        """There is room again."""
        self.writes_left, self.write_errno, self.sync_errno = None, 0, 0


async def expect_silence(peer: Peer) -> None:
    with trio.move_on_after(0.3):
        await peer.read(1)
        pytest.fail("a reply came though nothing was stored")


@pytest.mark.parametrize("writes", [0, 1, 2, None])
async def test_counts_wait_for_the_log_that_is_to_hold_what_they_speak_of(
    writes: int | None,
) -> None:
    log = FillingLog()
    async with running(log) as world:
        peer, reader = world.connect(), world.connect()
        ids = await add(peer, 60)  # twenty pieces, of which some share a write
        log.writes_left, log.sync_errno = writes, 0 if writes is not None else errno.EIO
        await peer.send(command(b"ACKJOB", *ids) + command(b"QLEN", b"q"))
        await expect_silence(peer)
        assert world.turns.trouble
        await reader.ask(b"QLEN none\r\n", b":0\r\n")
        await reader.send(command(b"JSCAN", b"BUSYLOOP"))
        assert (await read(reader))[0] == b"0"  # type: ignore[index]
        log.heal()
        assert await read(peer) == 60
        assert await read(peer) == 0


@pytest.mark.parametrize("writes", [0, 1, 2])
async def test_jobs_given_while_the_log_fails_are_given_once_it_can_be_written(writes: int) -> None:
    log = FillingLog()
    async with running(log) as world:
        peer = world.connect()
        bodies = [b"%d" % number for number in range(8)]
        for body in bodies:
            await peer.send(command(b"ADDJOB", b"q", body, b"0", b"RETRY", b"0"))
            await peer.read_line()
        log.writes_left = writes
        await peer.send(command(b"GETJOB", b"COUNT", b"8", b"FROM", b"q"))
        await expect_silence(peer)
        assert world.turns.trouble
        log.heal()
        assert [job[2] for job in await read(peer)] == bodies  # type: ignore[attr-defined]


async def test_a_log_that_fails_while_the_next_piece_must_wait_ends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = FullLog()
    async with running(log) as world:
        peer = world.connect()
        ids = await add(peer, 6)
        jobs = world.broker.engine.state.jobs
        monkeypatch.setattr(Broker, "is_returning", property(lambda _: len(jobs) == 3))
        await peer.send(command(b"ACKJOB", *ids))
        while len(jobs) > 3:
            await trio.lowlevel.checkpoint()
        log.is_unsafe, log.sync_errno = True, errno.EIO
        world.turns.wake()
        await trio.testing.wait_all_tasks_blocked()
        assert world.turns.trouble
        monkeypatch.undo()
        monkeypatch.setattr(pacing, "PIECE", 3)
        await expect_silence(peer)
        log.is_unsafe, log.sync_errno = False, 0
        assert await read(peer) == 6


@pytest.mark.parametrize("count", [b"3", b"4"])
async def test_who_waits_for_many_when_the_log_fails_is_told_so(count: bytes) -> None:
    log = FullLog()
    async with running(log) as world:
        waiting, writer = world.connect(), world.connect()
        await waiting.send(command(b"GETJOB", b"COUNT", count, b"FROM", b"none"))
        await trio.testing.wait_all_tasks_blocked()
        log.write_errno = errno.ENOSPC
        await writer.send(ADD)
        await waiting.expect(MISCONF)
        await waiting.ask(b"QLEN none\r\n", b":0\r\n")
        assert not world.clients._hearers
        assert not world.broker.engine.state.getting


async def until_gone(world: World, count: int) -> None:
    while len(world.clients.by_id) > count:
        await trio.sleep(0.001)


async def test_long_reads_and_subscriptions_end_with_their_client() -> None:
    async with running() as world:
        peer, scanning = world.connect(), world.connect()
        names = [b"c%d" % number for number in range(600)]
        await peer.send(command(b"SUBSCRIBE", *names))
        while not world.broker.engine.state.topics.size:
            await trio.lowlevel.checkpoint()
        for number in (1, 2):
            world.shell.long_scans.acquire_on_behalf_of_nowait(number)
        await scanning.send(command(b"JSCAN", b"BUSYLOOP"))
        while not world.shell.long_scans.statistics().tasks_waiting:
            await trio.lowlevel.checkpoint()
        for client in list(world.clients.by_id.values()):
            client.die()
        await until_gone(world, 0)
        await trio.testing.wait_all_tasks_blocked()
        assert world.shell.long_scans.statistics().tasks_waiting == 0
        assert world.broker.engine.state.topics.size == 0
        assert not world.clients._hearers


async def test_what_is_gathered_for_a_client_counts_as_held_for_it() -> None:
    async with running() as world:
        peer = world.connect()
        await add(peer, 100)
        (client,) = world.clients.by_id.values()
        for words in ((b"QPEEK", b"q", b"100"), (b"JSCAN", b"BUSYLOOP", b"REPLY", b"all")):
            await peer.send(command(*words))
            most = 0
            while not client.waits:
                await trio.lowlevel.checkpoint()
            while client.waits:
                most = max(most, client.held_bytes)
                await trio.lowlevel.checkpoint()
            assert most > 3_000
            await read(peer)
            assert client.held_bytes == 0


async def test_a_long_answer_is_never_in_one_piece() -> None:
    async with running() as world:
        peer = world.connect()
        client = next(iter(world.clients.by_id.values()))
        found = pacing.Elements(client)
        for _ in range(30):
            found.add([bytes(100_000)])
        slots = [client.open_slot(world.clients.new_id()) for _ in range(3)]
        for slot, reply in zip(slots, (b"+1\r\n", found.array(), b"+3\r\n"), strict=True):
            client.fill(slot, reply)
        tracemalloc.start()
        try:
            taken = client.take_finished()
            client.send(taken)
            assert tracemalloc.get_traced_memory()[1] < 20_000
        finally:
            tracemalloc.stop()
        one = b"$100000\r\n%b\r\n" % bytes(100_000)
        whole = b"+1\r\n*30\r\n" + one * 30 + b"+3\r\n"
        assert len(client.backlog) > 20, "what the socket didn't take"
        assert (client.owed_bytes, len(taken)) == (0, len(whole))
        await peer.expect(whole)
        assert client.held_bytes == client.kept_bytes == found.size


async def test_few_elements_at_a_time_are_few_parts() -> None:
    async with running() as world:
        world.connect()
        found = pacing.Elements(next(iter(world.clients.by_id.values())))
        for _ in range(1_000):
            found.add([bytes(1_000)])
        assert len(found.array().parts) < 20
