"""Network: connections between simulated nodes, and everything bad that can happen to them.

A connection is two ends; frames keep their order in each direction, as TCP does. A *cut* is directed: what enters a cut
direction vanishes, or stalls till the cut ends (drawn per cut), or the connection is reset at once. A connection over
a cut dies sooner or later, at each end by itself. On top, single payload frames are dropped, doubled, held back
(chaos): the bus promises its payloads no better than that. No frame is older than `link_wait_max_ms` at its arrival,
because real links drop older ones (and M6 counts on it).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs

from cluster.ready import ConnId, Dial
from tests.sim.plan import Chaos, Profile
from tests.sim.streams import Streams

if TYPE_CHECKING:
    from tests.sim.node import Node
    from tests.sim.story import Story

DIAL_TIMEOUT_MS = 1000


@attrs.define(eq=False)
class End:
    """One side of a connection: the process there, and the id under which it knows the connection."""

    node: Node
    conn: ConnId
    is_open: bool = True
    last_arrival: int = 0  # at the other side, of frames sent from here
    # stalled frames sent from here: (sent at, body)
    held: list[tuple[int, bytes]] = attrs.Factory(list)
    is_known: bool = True  # False while the dialer hasn't heard of its success


@attrs.define(eq=False)
class Connection:
    """Both ends, dialer first."""

    ends: tuple[End, End]
    is_doomed: bool = False

    def other(self, end: End) -> End:
        """The opposite end."""
        return self.ends[1] if end is self.ends[0] else self.ends[0]


@attrs.define(eq=False)
class Attempt:
    """A dial under way, by the life of the process that began it."""

    source: Node
    life: int
    dial: Dial
    back: int = 0  # ms that the answer will take

    @property
    def is_alive(self) -> bool:
        """False once that process has ended, whatever runs at the node now."""
        return self.source.is_alive and self.source.life == self.life


class Network:
    """All connections and cuts of one world. `at` schedules a call: at(ms, function)."""

    def __init__(
        self,
        profile: Profile,
        streams: Streams,
        trace: Story,
        nodes: list[Node],
        at: Callable[[int, Callable[[], None]], None],
        is_payload: Callable[[bytes], bool],
    ) -> None:
        self.profile = profile
        self.chaos = profile.chaos
        self.link_wait_max_ms = profile.limits["link_wait_max_ms"]
        self.now = 0
        self.frames_sent = 0
        self._streams = streams
        self._trace = trace
        self._nodes = nodes
        self._at = at
        self._is_payload = is_payload
        self._next_conn = 0
        self._at_door: list[tuple[Attempt, Node]] = []  # knocked; the target's turn hasn't come
        self._connections: list[Connection] = []
        self._cuts: dict[
            tuple[int, int], list[str]
        ] = {}  # directed pair -> modes of the cuts in force

    # Cuts

    def cut(self, pairs: list[tuple[int, int]], mode: str) -> None:
        """Cut directed pairs; cuts of one pair add up."""
        for pair in pairs:
            self._cuts.setdefault(pair, []).append(mode)
        for connection in self._over(pairs):
            self._doom(connection, at_once=mode == "reset")

    def heal(self, pairs: list[tuple[int, int]], mode: str) -> None:
        """Take back one cut of each pair; stalled frames flow again where no other cut is left."""
        for pair in pairs:
            modes = self._cuts[pair]
            modes.remove(mode)
            if not modes:
                del self._cuts[pair]
        for connection in self._over(pairs):
            for end in connection.ends:
                self._flush(connection, end)

    def heal_all(self) -> None:
        """No cut anywhere, and no chaos from now on."""
        pairs = list(self._cuts)
        self._cuts.clear()
        self.chaos = Chaos()
        for connection in self._over(pairs):
            for end in connection.ends:
                self._flush(connection, end)

    def is_cut(self, source: int, target: int) -> bool:
        """True if nothing gets from source to target now."""
        return (source, target) in self._cuts

    def reset_between(self, a: int, b: int) -> None:
        """Break all connections between two nodes; both sides notice soon."""
        for connection in self._over([(a, b), (b, a)]):
            self._doom(connection, at_once=True)

    def _over(self, pairs: list[tuple[int, int]]) -> list[Connection]:
        wanted = dict.fromkeys(pairs)
        self._connections = [c for c in self._connections if c.ends[0].is_open or c.ends[1].is_open]
        return [
            c
            for c in self._connections
            if (c.ends[0].node.index, c.ends[1].node.index) in wanted
            or (c.ends[1].node.index, c.ends[0].node.index) in wanted
        ]

    def _doom(self, connection: Connection, *, at_once: bool) -> None:
        """Both ends will see the connection closed: at once, or when each one's patience ends."""
        if connection.is_doomed and not at_once:
            return
        connection.is_doomed = True
        for end in connection.ends:
            dice = self._streams[f"death {end.node.index}"]
            wait = (
                dice.randrange(1, 30)
                if at_once
                else dice.randrange(100, 4 * self.profile.node_timeout_ms)
            )
            self._at(self.now + wait, lambda end=end: self._close_end(end))

    def _flush(self, connection: Connection, end: End) -> None:
        held, end.held = end.held, []
        for sent_at, body in held:
            self._deliver_in_order(connection, end, body, sent_at)

    @property
    def has_chaos(self) -> bool:
        """True while single payload frames are dropped, doubled or held back."""
        return self.chaos.is_any

    # Dialing

    def dial(self, source: Node, dial: Dial) -> None:
        """Carry a dial to its end: dialed and accepted, or dial_failed."""
        attempt = Attempt(source, source.life, dial)
        target = next(
            (n for n in self._nodes if n.host == dial.host and n.bus_port == dial.bus_port), None
        )
        if target is None:
            self._fail(attempt, 1, "no such host")
        elif self._is_cut_between(source, target):
            self._fail(attempt, DIAL_TIMEOUT_MS, "timed out")
        else:
            there = self._latency(source.index, target.index)
            attempt.back = self._latency(target.index, source.index)
            self._at(self.now + there, lambda: self._knock(attempt, target))

    def _is_cut_between(self, a: Node, b: Node) -> bool:
        return self.is_cut(a.index, b.index) or self.is_cut(b.index, a.index)

    def _knock(self, attempt: Attempt, target: Node) -> None:
        """The dial arrives: the acceptor decides."""
        expected = attempt.dial.expected
        if not attempt.is_alive:
            return
        if self._is_cut_between(attempt.source, target):
            self._fail(attempt, DIAL_TIMEOUT_MS, "timed out")
        elif not target.is_alive:
            self._fail(attempt, attempt.back, "refused")
        elif expected is not None and expected != target.identity.id:
            self._fail(attempt, attempt.back, "wrong id")
        else:
            self._at_door.append((attempt, target))
            target.turn_with(lambda: self._accept(attempt, target))

    def _accept(self, attempt: Attempt, target: Node) -> None:
        self._at_door.remove((attempt, target))
        source, dial = attempt.source, attempt.dial
        if not attempt.is_alive:
            return
        refusal = target.broker.admits(source.identity, dial.expected, dial.is_meet)
        if refusal is not None:
            self._fail(attempt, attempt.back, refusal)
            return
        arrival = self.now + attempt.back
        dialer = End(source, self._new_conn(), last_arrival=self.now, is_known=False)
        acceptor = End(target, self._new_conn(), last_arrival=arrival)
        connection = Connection((dialer, acceptor))
        self._connections.append(connection)
        source.ends[dialer.conn] = (connection, dialer)
        target.ends[acceptor.conn] = (connection, acceptor)
        target.broker.accepted(
            acceptor.conn, source.identity, dial.is_meet, target.host, source.host
        )
        self._at(arrival, lambda: self._shaken(attempt, connection))

    def _shaken(self, attempt: Attempt, connection: Connection) -> None:
        """The dialer hears that it is welcome."""
        dialer, acceptor = connection.ends
        if not attempt.is_alive:
            return
        if not dialer.is_open:
            self._fail(attempt, 0, "broken")
            return
        dialer.is_known = True
        source, target = dialer.node, acceptor.node
        source.turn_with(
            lambda: source.broker.dialed(
                attempt.dial.dial, dialer.conn, target.identity, source.host, target.host
            )
        )

    def _fail(self, attempt: Attempt, wait: int, reason: str) -> None:
        def failed() -> None:
            if attempt.is_alive:
                attempt.source.turn_with(
                    lambda: attempt.source.broker.dial_failed(attempt.dial.dial, reason)
                )

        self._at(self.now + wait, failed)

    def _new_conn(self) -> ConnId:
        self._next_conn += 1
        return ConnId(self._next_conn)

    # Frames

    def send(self, source: Node, conn: ConnId, body: bytes) -> None:
        """Put a frame into a connection."""
        found = source.ends.get(conn)
        if found is None or not found[1].is_open:
            return
        connection, end = found
        target = connection.other(end)
        pair = (source.index, target.node.index)
        self.frames_sent += 1
        self._trace.mark(b"%d %d>%d %d;" % (self.now, *pair, zlib.crc32(body)))
        is_payload = self._is_payload(body)
        if self.is_cut(*pair):
            self._into_cut(connection, end, body, is_payload=is_payload)
            return
        if is_payload and self.has_chaos:
            dice = self._streams[f"chaos {pair[0]}>{pair[1]}"]
            if dice.random() < self.chaos.drop:
                self._lose(pair, body, "dropped")
                return
            if dice.random() < self.chaos.double:
                self._deliver(connection, end, body, self.now, self.now + self._late(dice))
            if dice.random() < self.chaos.late:
                self._deliver(connection, end, body, self.now, self.now + self._late(dice))
                return
        self._deliver_in_order(connection, end, body, self.now)

    def _late(self, dice: object) -> int:
        return 1 + dice.randrange(max(1, self.chaos.late_max_ms))  # type: ignore[attr-defined, no-any-return]

    def _into_cut(self, connection: Connection, end: End, body: bytes, *, is_payload: bool) -> None:
        pair = (end.node.index, connection.other(end).node.index)
        if "stall" in self._cuts[pair]:
            end.held.append((self.now, body))
        else:
            self._lose(pair, body, "cut")
        self._doom(connection, at_once=False)

    def _lose(self, pair: tuple[int, int], body: bytes, why: str) -> None:
        self._nodes[pair[0]].watch_lost(pair[1], body, why)

    def _deliver_in_order(
        self, connection: Connection, end: End, body: bytes, sent_at: int
    ) -> None:
        pair = (end.node.index, connection.other(end).node.index)
        arrival = max(self.now + self._latency(*pair), end.last_arrival)
        end.last_arrival = arrival
        self._deliver(connection, end, body, sent_at, arrival)

    def _deliver(
        self, connection: Connection, end: End, body: bytes, sent_at: int, arrival: int
    ) -> None:
        self._at(arrival, lambda: self._arrive(connection, end, body, sent_at))

    def _arrive(self, connection: Connection, end: End, body: bytes, sent_at: int) -> None:
        target = connection.other(end)
        pair = (end.node.index, target.node.index)
        if not target.is_open or not target.node.is_alive:
            return
        if self.is_cut(*pair):
            self._into_cut(connection, end, body, is_payload=self._is_payload(body))
        elif self.now - sent_at > self.link_wait_max_ms:
            self._lose(pair, body, "too old")
        else:
            target.node.turn_with(lambda: target.node.take_frame(target.conn, body, sent_at))

    def _latency(self, source: int, target: int) -> int:
        low, high = self.profile.latency_ms
        return self._streams[f"link {source}>{target}"].randint(low, high)

    # Closing

    def close(self, source: Node, conn: ConnId) -> None:
        """A node closes a connection; the other side hears of it behind all frames, unless the direction is cut."""
        found = source.ends.get(conn)
        if found is None:
            return
        connection, end = found
        end.is_open = False
        source.ends.pop(conn)
        self._tell_closed(connection, end)

    def _tell_closed(self, connection: Connection, end: End) -> None:
        other = connection.other(end)
        if not other.is_open:
            return
        if self.is_cut(end.node.index, other.node.index):
            self._doom(connection, at_once=False)
            return
        arrival = max(self.now + self._latency(end.node.index, other.node.index), end.last_arrival)
        self._at(arrival, lambda: self._close_end(other))

    def _close_end(self, end: End) -> None:
        """This side sees its connection closed by the network or by the peer."""
        if not end.is_open:
            return
        if not end.node.is_alive:
            end.is_open = False
            return
        end.node.turn_with(lambda: self._closed(end))

    def _closed(self, end: End) -> None:
        if end.is_open:
            end.is_open = False
            end.node.ends.pop(end.conn, None)
            if end.is_known:
                end.node.broker.closed(end.conn)

    def crash(self, node: Node, *, is_silent: bool) -> None:
        """A process ends: its connections break with a word to the peers, or silently (power loss)."""
        for connection, end in list(node.ends.values()):
            end.is_open = False
            other = connection.other(end)
            if not other.is_open:
                continue
            if is_silent:
                dice = self._streams[f"death {other.node.index}"]
                wait = dice.randrange(100, 4 * self.profile.node_timeout_ms)
                self._at(self.now + wait, lambda other=other: self._close_end(other))
            else:
                self._tell_closed(connection, end)
        node.ends.clear()
        stranded = [attempt for attempt, target in self._at_door if target is node]
        self._at_door = [each for each in self._at_door if each[1] is not node]
        for attempt in stranded:
            self._fail(attempt, DIAL_TIMEOUT_MS if is_silent else attempt.back, "broken")
