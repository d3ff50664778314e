"""The bus over real loopback sockets, driven by Memberships as the server's loop drives it."""

from __future__ import annotations

import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from cluster import handshake
from cluster.bus import (
    Bus,
    BusLimits,
    NodesFileLock,
    load_nodes_file,
    save_nodes_file,
)
from cluster.errors import LocalProtocolError, NodesFileError
from cluster.frame import FrameDecoder, encode_frame
from cluster.link import LinkLimits
from cluster.membership import Membership, MembershipConfig
from cluster.nodeid import NodeId
from cluster.nodesfile import StoredNodes
from cluster.ready import ConnId, Dial, DialId, Identity, Note

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


class Node:
    """A server's loop in small: turns Ready into bus calls."""

    def __init__(
        self, number: int, *, node_timeout_ms: int = 2_000, secret: bytes = b"s", **options
    ):
        self.id = NodeId(f"{number:040x}")
        self.node_timeout_ms = node_timeout_ms
        self.bus = Bus(self, secret=secret, **options)
        self.port = 0
        self.notes: list[Note] = []
        self.payloads: list[bytes] = []
        self.files: list[str] = []
        self.bodies: list[bytes] = []
        self.scope = trio.CancelScope()
        self._work = trio.Event()

    def now_ms(self) -> int:
        return int(trio.current_time() * 1000)

    async def start(self, nursery: trio.Nursery, host: str = "127.0.0.1") -> None:
        (self.port,) = await self.bus.listen([host], 0)
        self.membership = Membership(
            identity=Identity(self.id, 1, 1, "", 1, self.port),
            config=MembershipConfig(
                node_timeout_ms=self.node_timeout_ms, port=1, bus_port=self.port
            ),
            stored=StoredNodes(),
            dice=random.Random(int(self.id, 16)),
            now_ms=self.now_ms(),
        )
        await nursery.start(self._run)

    async def _run(self, task_status=trio.TASK_STATUS_IGNORED) -> None:
        with self.scope:
            async with trio.open_nursery() as nursery:
                await nursery.start(self.bus.run)
                task_status.started()
                while True:
                    self.turn()
                    await self._wait_for_work()

    def turn(self) -> None:
        self.membership.advance(self.now_ms())
        ready = self.membership.take_ready()
        if ready.nodes_file is not None:
            self.files.append(ready.nodes_file)
        self.notes += ready.notes
        self.payloads += [data for _, _, data in ready.payloads]
        self.bus.apply(ready.dials, ready.frames, ready.closes)

    async def _wait_for_work(self) -> None:
        due = self.membership.next_wakeup_ms()
        seconds = 1e6 if due is None else max(0.0, (due - self.now_ms()) / 1000)
        with trio.move_on_after(seconds):
            await self._work.wait()
        self._work = trio.Event()

    def meet(self, other: Node | int, host: str = "127.0.0.1") -> None:
        self.membership.meet(host, other if isinstance(other, int) else other.port)
        self.wake()

    def events(self, event: str) -> list[dict[str, object]]:
        return [dict(note.facts) for note in self.notes if note.event == event]

    def reaches(self, *others: Node) -> bool:
        members = self.membership.view().members
        return {m.id for m in members.values() if m.is_reachable} == {
            self.id,
            *(other.id for other in others),
        }

    # BusOwner

    def identity(self) -> Identity:
        return self.membership.identity

    def dialed(self, dial, conn, peer, own_host, remote_host) -> None:
        self.membership.dialed(dial, conn, peer, own_host, remote_host)

    def dial_failed(self, dial, reason) -> None:
        self.membership.dial_failed(dial, reason)

    def admits(self, peer, expected, is_meet):
        return self.membership.admits(peer, expected, is_meet)

    def accepted(self, conn, peer, is_meet, own_host, remote_host) -> None:
        self.membership.accepted(conn, peer, is_meet, own_host, remote_host)

    def frame(self, conn, body) -> None:
        self.bodies.append(body)
        self.membership.frame(conn, body)

    def closed(self, conn) -> None:
        self.membership.closed(conn)

    def note(self, note) -> None:
        self.notes.append(note)

    def finish(self) -> None:
        self.wake()

    def wake(self) -> None:
        self._work.set()


@asynccontextmanager
async def running(*nodes: Node, host: str = "127.0.0.1") -> AsyncIterator[None]:
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            for node in nodes:
                await node.start(nursery, host)
            yield
            nursery.cancel_scope.cancel()


async def wait_until(condition, seconds: float = 8) -> None:
    with trio.fail_after(seconds):
        while not condition():
            await trio.sleep(0.01)


async def talk(port: int, data: bytes) -> bytes:
    """Say something raw, hear all that is answered till the end."""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(data)
        heard = bytearray()
        with trio.fail_after(8):
            try:
                while chunk := await stream.receive_some():
                    heard += chunk
            except trio.BrokenResourceError:
                pass
        return bytes(heard)


async def test_three_nodes_form_a_mesh_and_carry_payloads():
    a, b, c = (Node(number) for number in (1, 2, 3))
    async with running(a, b, c):
        a.meet(b)
        b.meet(c)
        await wait_until(lambda: a.reaches(b, c) and b.reaches(a, c) and c.reaches(a, b))
        big = bytes(3_000_000)
        for other in (b, c):
            # two dials of one node may cross: each side then keeps another one, and what was on the links is lost
            while big not in other.payloads:
                a.membership.send(other.id, b"small")
                a.membership.send(other.id, big)
                a.wake()
                with trio.move_on_after(2):
                    await wait_until(lambda other=other: big in other.payloads)
            assert other.payloads[other.payloads.index(big) - 1] == b"small"


async def test_node_that_goes_is_unreachable_at_once():
    a, b = Node(1), Node(2)
    async with running(a, b):
        a.meet(b)
        await wait_until(lambda: a.reaches(b) and b.reaches(a))
        b.scope.cancel()
        await wait_until(lambda: a.reaches(), 1)
        assert not a.membership.view().members[b.id].is_suspect
        await wait_until(lambda: a.membership.view().members[b.id].is_suspect)


async def test_meet_by_host_name_and_over_ipv6():
    a, b = Node(1), Node(2)
    async with running(a, host="::1"), running(b, host="::1"):
        a.meet(b, "::1")
        await wait_until(lambda: a.reaches(b) and b.reaches(a))
        assert b.membership.view().members[a.id].host == "::1"
    c, d = Node(3), Node(4)
    async with running(c, d):
        c.meet(d, "localhost")
        await wait_until(lambda: c.reaches(d) and d.reaches(c))
        assert c.membership.view().members[d.id].host == "127.0.0.1"


async def test_meet_of_a_closed_port_or_an_unknown_name_shows_the_reason():
    a = Node(1)
    sockets = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = sockets[0].socket.getsockname()[1]
    await sockets[0].aclose()
    async with running(a):
        a.meet(port)
        await wait_until(lambda: a.membership.statistics().last_handshake_failure is not None)
        assert a.membership.statistics().last_handshake_failure == (
            f"127.0.0.1:{port}",
            "no connection: Connection refused",
        )
        a.meet(1, "a..b")
        await wait_until(lambda: len(a.events("handshake_failed")) == 2)


async def test_w19_wrong_secret_is_never_listed_and_noted_once_a_minute():
    a, b = Node(1, secret=b"right"), Node(2, secret=b"wrong")
    async with running(a, b):
        b.meet(a)
        await wait_until(lambda: b.membership.statistics().handshakes_failed >= 3)
        assert len(a.membership.view().members) == len(b.membership.view().members) == 1
        (complaint,) = a.events("bus_connection_refused")
        assert complaint == {"host": "127.0.0.1", "reason": "wrong cluster-secret"}
        reason = b.membership.statistics().last_handshake_failure
        assert reason is not None
        assert reason[1] == "refused (unproved): wrong cluster-secret"


async def test_meet_of_the_own_address_is_one_that_ends():
    a = Node(1)
    async with running(a):
        a.meet(a)
        await wait_until(lambda: a.membership.statistics().handshakes_pending == 0)
        assert a.membership.statistics().handshakes_failed == 0
        assert list(a.membership.view().members) == [a.id]


async def test_another_process_with_the_same_id_is_noted_on_both_sides():
    a, b = Node(1), Node(1)
    async with running(a, b):
        a.meet(b)
        await wait_until(lambda: bool(b.events("duplicate_node_id")))
        await wait_until(lambda: bool(a.events("handshake_failed")))
        assert handshake.DUPLICATE in str(a.events("handshake_failed")[0]["reason"])


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff\xff\xff\xff" + bytes(100),
        encode_frame(bytes(4096)),
        encode_frame(b""),
        encode_frame(b"\x93\x01\x02\x03"),
        b"DbuZ" + bytes(200),
    ],
)
async def test_garbage_is_refused_with_a_word_and_the_node_lives(data):
    a, b = Node(1), Node(2)
    async with running(a, b):
        heard = await talk(a.port, data)
        decoder = FrameDecoder(4096)
        decoder.feed(heard)
        answer = decoder.next_frame()
        assert answer is not None
        assert b"disque-bus" in answer
        a.meet(b)
        await wait_until(lambda: a.reaches(b) and b.reaches(a))
        assert len(a.events("bus_connection_refused")) == 1


async def test_host_that_isn_t_allowed_is_told_so():
    a = Node(1, objection=lambda host: f"DENIED {host} isn't loopback: set cluster-secret")
    b = Node(2)
    async with running(a, b):
        b.meet(a)
        await wait_until(lambda: b.membership.statistics().last_handshake_failure is not None)
        reason = b.membership.statistics().last_handshake_failure
        assert reason is not None
        assert reason[1].endswith("DENIED 127.0.0.1 isn't loopback: set cluster-secret")
        assert len(a.membership.view().members) == 1


async def test_silent_connections_make_room_for_others_and_time_out():
    a, b = Node(1, limits=BusLimits(handshake_timeout_s=1, unauthenticated_max=3)), Node(2)
    async with running(a, b):
        silent = [await trio.open_tcp_stream("127.0.0.1", a.port) for _ in range(3)]
        await wait_until(lambda: len(a.bus._unauthenticated) == 3)
        b.meet(a)
        await wait_until(lambda: a.reaches(b) and b.reaches(a))
        assert len(a.events("too_many_handshakes")) == 1
        assert a.bus.figures.handshakes_dropped >= 1
        await wait_until(lambda: not a.bus._unauthenticated)
        for stream in silent:
            await stream.aclose()


async def test_a_flood_of_connections_makes_room_for_itself():
    a = Node(1, limits=BusLimits(unauthenticated_max=3))
    async with running(a):
        slow = await trio.open_tcp_stream("127.0.0.1", a.port)
        await wait_until(lambda: len(a.bus._unauthenticated) == 1)
        first = next(iter(a.bus._unauthenticated))
        flood = [
            await trio.open_tcp_stream("127.0.0.1", a.port, local_address="127.0.0.2")
            for _ in range(8)
        ]
        await wait_until(lambda: a.bus.figures.handshakes_dropped == 6)
        assert first in a.bus._unauthenticated
        for stream in (slow, *flood):
            await stream.aclose()


async def test_dial_to_who_never_answers_times_out():
    a = Node(1, limits=BusLimits(handshake_timeout_s=0.2))
    (mute,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with running(a):
        a.meet(mute.socket.getsockname()[1])
        await wait_until(lambda: bool(a.events("handshake_failed")))
        assert a.events("handshake_failed")[0]["reason"] == "no handshake within 0.2 s"
    await mute.aclose()


async def test_forgotten_live_node_is_told_and_stays_out():
    a, b = Node(1), Node(2)
    async with running(a, b):
        a.meet(b)
        await wait_until(lambda: a.reaches(b) and b.reaches(a))
        a.membership.forget(b.id)
        a.wake()
        await wait_until(lambda: b.membership.statistics().forgotten_by == (a.id,))
        await wait_until(lambda: b.reaches())
        assert list(a.membership.view().members) == [a.id]
        assert sorted(b.membership.view().members) == [a.id, b.id]


async def test_dials_can_be_sent_through_a_proxy_for_tests():
    b = Node(2)
    a = Node(1, dial_map=lambda host, port: ("127.0.0.1", b.port))
    async with running(b), running(a):
        a.membership.meet("far.away.invalid", 5)
        a.wake()
        await wait_until(lambda: a.reaches(b))


async def test_link_whose_peer_stops_reading_is_dropped():
    """A peer that reads nothing: bytes pile up to the bound, then the link goes."""
    limits = BusLimits(link=LinkLimits(out_bytes_max=2_000_000))
    a, b = Node(1, limits=limits), Node(2)
    async with running(a, b):
        a.meet(b)
        await wait_until(lambda: a.reaches(b) and b.reaches(a))
        for _ in range(40):
            a.membership.send(b.id, bytes(1_000_000))
        a.turn()
        a.membership.send(b.id, bytes(3_000_000))
        a.turn()
        await wait_until(lambda: bool(a.events("link_dropped")))
        assert "at most 2000000 are allowed" in str(a.events("link_dropped")[0]["reason"])
        await wait_until(lambda: a.reaches(b) and b.reaches(a))


async def test_frames_that_several_begin_and_never_end_hold_so_much_and_no_more():
    limits = BusLimits(link=LinkLimits(frame_bytes_max=2_000_000))
    a, *others = Node(1, limits=limits), Node(2), Node(3), Node(4)
    async with running(a, *others):
        for each in others:
            a.meet(each)
        await wait_until(
            lambda: all(
                each.reaches(a, *[other for other in others if other is not each])
                for each in others
            )
        )
        for size, each in enumerate(others, 1_700_000):
            link = each.bus._links[each.membership._state.peers[a.id].link]
            link._put((1_999_999).to_bytes(4, "big") + bytes(size))
        await wait_until(lambda: bool(a.events("link_dropped")))
        assert "have begun, at most 4000000 are allowed" in str(
            a.events("link_dropped")[0]["reason"]
        )
        # The other two go on
        await wait_until(lambda: 3_400_000 < a.bus.held_bytes < 4_000_000)


async def test_hard_reset_meets_again_under_the_new_id():
    a, b = Node(1), Node(2)
    async with running(a, b):
        a.meet(b)
        await wait_until(lambda: a.reaches(b) and b.reaches(a))
        a.membership.reset(new_id=NodeId("9" * 40))
        a.id = NodeId("9" * 40)
        a.wake()
        await wait_until(lambda: b.reaches())
        b.membership.reset(new_id=None)
        b.wake()
        a.meet(b)
        await wait_until(lambda: a.reaches(b) and b.reaches(a))


async def test_taken_port_is_one_clear_error():
    (taken,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = taken.socket.getsockname()[1]
    with pytest.raises(OSError, match=rf"can't listen on bus address 127.0.0.1:{port}: "):
        await Node(1).bus.listen(["127.0.0.1"], port)
    await taken.aclose()


async def test_bus_that_isn_t_running_takes_no_orders():
    with pytest.raises(LocalProtocolError, match="isn't running"):
        Node(1).bus.apply([Dial(DialId(1), "h", 1, None, True)], [], [ConnId(1)])


# nodes.conf on disk


def test_nodes_file_is_replaced_whole(tmp_path: Path):
    path = tmp_path / "nodes.conf"
    assert load_nodes_file(path) == StoredNodes()
    text = f"vars boot 1 since 1 leaving no\n{'a' * 40} h:1@2 myself 0 0 connected\n"
    save_nodes_file(path, text)
    save_nodes_file(path, text.replace("boot 1", "boot 2"))
    assert load_nodes_file(path).boot == 2
    assert [each.name for each in tmp_path.iterdir()] == ["nodes.conf"]


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"\0" * 100, "100 NUL bytes"),
        (b"\xff\xfe\x80", "no line flagged myself"),
        (bytes(17 << 20), "16777216 bytes"),
    ],
)
def test_damaged_nodes_file_is_a_clear_error_with_its_path(tmp_path: Path, data, complaint):
    path = tmp_path / "nodes.conf"
    path.write_bytes(data)
    with pytest.raises(NodesFileError, match=rf"nodes\.conf: .*{complaint}"):
        load_nodes_file(path)
    assert path.read_bytes() == data


def test_folder_in_place_of_the_nodes_file_is_a_clear_error(tmp_path: Path):
    with pytest.raises(NodesFileError, match="can't be read"):
        load_nodes_file(tmp_path)


def test_second_process_on_one_nodes_file_is_refused(tmp_path: Path):
    path = tmp_path / "nodes.conf"
    lock = NodesFileLock(path)
    with pytest.raises(NodesFileError, match=r"is used by another process \(pid \d+\)"):
        NodesFileLock(path)
    lock.release()
    NodesFileLock(path).release()
