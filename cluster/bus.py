"""The bus: listeners, dials, handshakes and links, and the folder where nodes.conf lies.

It does what membership's Ready asks (`apply`) and calls a BusOwner back, synchronously, from its
reader tasks. It decides nothing but who gets through the handshake. Nothing that comes over a
socket raises.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import secrets
from typing import TYPE_CHECKING, Protocol

import attrs
import trio

from cluster import handshake, nodesfile
from cluster.errors import LocalProtocolError, NodesFileError, RemoteProtocolError
from cluster.handshake import AcceptorHandshake, DialerHandshake, HandshakeError
from cluster.link import Link, LinkLimits
from cluster.nodesfile import StoredNodes
from cluster.places import oldest_of_most, place_of
from cluster.ready import ConnId, Dial, DialId, Identity, Note, OnceAMinute

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from cluster.nodeid import NodeId

LINGER_BYTES_MAX = 1 << 16
LINGER_S = 1.0
UNREAD_BYTES_MIN = 1 << 20  # of a frame that isn't whole: from there on all links are looked at
READ_S = 0.01  # frames of one link are handled for so long in a row, before others have their turn
NODES_FILE_BYTES_MAX = 16 << 20
NEEDS_TLS = "the bus speaks TLS here (tls-cluster)"


class BusOwner(Protocol):
    """Whom the bus calls back; the server's loop, which calls the Broker. All calls return at once."""

    def identity(self) -> Identity:
        """Who this node is now."""
        ...

    def dialed(
        self, dial: DialId, conn: ConnId, peer: Identity, own_host: str, remote_host: str
    ) -> None:
        """A dial reached a proven peer that let us in."""
        ...

    def dial_failed(self, dial: DialId, reason: str) -> None:
        """A dial came to nothing."""
        ...

    def admits(self, peer: Identity, expected: NodeId | None, is_meet: bool) -> str | None:
        """None to let a proven dialer in, else the reason of refusal."""
        ...

    def accepted(
        self, conn: ConnId, peer: Identity, is_meet: bool, own_host: str, remote_host: str
    ) -> None:
        """A dialer was let in."""
        ...

    def frame(self, conn: ConnId, body: bytes) -> None:
        """A frame came; `finish` follows."""
        ...

    def finish(self) -> None:
        """All frames were given that had come: see to what they bring about."""
        ...

    def closed(self, conn: ConnId) -> None:
        """A connection ended, other than by `apply`."""
        ...

    def note(self, note: Note) -> None:
        """Something for the log."""
        ...

    def wake(self) -> None:
        """There was input: take a turn."""
        ...


@attrs.frozen
class BusLimits:
    """Bounds of the bus as a whole."""

    dial_timeout_s: float = 5.0  # resolve and connect
    handshake_timeout_s: float = 5.0
    # Accepted connections in handshake; the oldest go, of those from where most come
    unauthenticated_max: int = 100
    link: LinkLimits = attrs.Factory(LinkLimits)


@attrs.define
class BusFigures:
    """How often bounds of the bus have bitten since start."""

    handshakes_dropped: int = 0  # accepted, and ended because too many others were in handshake
    links_dropped: int = 0  # for what they kept unsent, how long, or a frame too long


class Bus:
    """Runs all connections of one node; `listen`, then `run` in a task, then `apply` at each turn."""

    def __init__(
        self,
        owner: BusOwner,
        *,
        secret: bytes = b"",
        limits: BusLimits | None = None,
        objection: Callable[[str], str | None] = lambda _host: None,
        dial_map: Callable[[str, int], tuple[str, int]] | None = None,
    ) -> None:
        """`objection` says why a dialer's host isn't served, or None. `dial_map` says where to connect instead of an
        address, for tests that put something between nodes: nobody else sees it.
        """
        self.secret = secret  # may be changed; links that stand stay
        # Contexts of who accepts and who dials; None: no TLS. As the secret
        self.tls: tuple[ssl.SSLContext, ssl.SSLContext] | None = None
        self._owner = owner
        self._limits = limits or BusLimits()
        self._link_limits = self._limits.link
        self._objection_to_host = objection
        self._dial_map = dial_map
        self._listeners: list[trio.SocketListener] = []
        self._nursery: trio.Nursery | None = None
        self._links: dict[ConnId, Link] = {}
        self._conns = itertools.count(1)
        self._nonces: set[bytes] = set()  # of dials under way; only asked for membership
        self._unauthenticated: dict[Link, str] = {}  # with the place that it comes from
        self.figures = BusFigures()
        self._noted = OnceAMinute()

    async def listen(self, hosts: Sequence[str], port: int) -> tuple[int, ...]:
        """Bind each host ("*" or "" for all addresses), give the bound ports; OSError names what failed."""
        for name in hosts or ("*",):
            host = name.removeprefix("[").removesuffix("]")
            where = None if host in ("", "*") else host
            try:
                self._listeners += await trio.open_tcp_listeners(port, host=where)
            except OSError as error:
                await self._close_listeners()
                text = f"can't listen on bus address {nodesfile.join_host(host or '*', port)}"
                raise OSError(error.errno, f"{text}: {error.strerror or error}") from error
        return tuple(listener.socket.getsockname()[1] for listener in self._listeners)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; then all connections are closed."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                if self._listeners:
                    serve = trio.serve_listeners
                    nursery.start_soon(
                        lambda: serve(self._serve, self._listeners, handler_nursery=nursery)
                    )
                task_status.started()
                await trio.sleep_forever()
        finally:
            self._nursery = None
            for link in self._links.values():
                link.close()
            self._links.clear()
            with trio.CancelScope(shield=True):
                await self._close_listeners()

    def apply(
        self,
        dials: Sequence[Dial],
        frames: Sequence[tuple[ConnId, bytes]],
        closes: Sequence[ConnId],
    ) -> None:
        """Do what a Ready asks: dial, send (one write a link), close; frames for gone ones are dropped."""
        for dial in dials:
            if self._nursery is None:
                raise LocalProtocolError("the bus isn't running")
            self._nursery.start_soon(self._dial, dial)
        bodies: dict[ConnId, list[bytes]] = {}
        for conn, body in frames:
            bodies.setdefault(conn, []).append(body)
        for conn, several in bodies.items():
            link = self._links.get(conn)
            if link is not None:
                link.send(several)
        for conn in closes:
            link = self._links.pop(conn, None)
            if link is not None and conn in bodies:
                link.close()  # its last words may arrive
            elif link is not None:
                link.abort()

    def set_limits(self, limits: BusLimits) -> None:
        """Change the bounds; links that stand get them, too."""
        self._limits, self._link_limits = limits, limits.link
        for link in self._links.values():
            link.limits = limits.link
            link.authenticated()

    @property
    def held_bytes(self) -> int:
        """Bytes in all links that sockets didn't take yet, or that are no whole frame yet."""
        return sum(link.waiting_bytes + link.unread_bytes for link in self._links.values())

    def _bound_unread(self) -> None:
        """What several links bring at a time has room for two of the largest frames; beyond, the largest one goes."""
        links = [link for link in self._links.values() if not link.is_closed]
        unread_bytes = sum(link.unread_bytes for link in links)
        most = 2 * self._link_limits.frame_bytes_max
        if unread_bytes > most:
            largest = max(links, key=lambda link: link.unread_bytes)
            largest.close(f"frames of {unread_bytes} bytes have begun, at most {most} are allowed")

    # Dialing

    async def _dial(self, dial: Dial) -> None:
        own = self._owner.identity()
        nonce = secrets.token_bytes(handshake.NONCE_BYTES)
        proof = DialerHandshake(
            own=own,
            secret=self.secret,
            nonce=nonce,
            expected=dial.expected,
            is_meet=dial.is_meet,
        )
        link: Link | None = None
        conn: ConnId | None = None
        self._nonces.add(nonce)
        try:
            link = Link(await self._connect(dial), self._link_limits)
            peer = await self._prove(link, proof)
            hosts = link.hosts()
            if own.id != self._owner.identity().id:
                raise HandshakeError("this node took a new id meanwhile")
            conn = self._add(link)
        except (OSError, ValueError, RemoteProtocolError) as error:
            self._owner.dial_failed(dial.dial, _reason(error))
            self._owner.wake()
            return
        finally:
            self._nonces.discard(nonce)
            if link is not None and conn is None:
                link.close()
        self._owner.dialed(dial.dial, conn, peer, *hosts)
        await self._carry(conn, link, hosts[1])

    async def _connect(self, dial: Dial) -> trio.SocketStream:
        """Resolve the name and connect, each time anew: names move."""
        host, port = dial.host, dial.bus_port
        if self._dial_map is not None:
            host, port = self._dial_map(host, port)
        try:
            with trio.move_on_after(self._limits.dial_timeout_s):
                return await trio.open_tcp_stream(host, port)
        except OSError as error:
            raise HandshakeError(handshake.UNREACHED + _reason(error)) from None
        raise HandshakeError(f"{handshake.UNREACHED}none within {self._limits.dial_timeout_s:g} s")

    async def _prove(self, link: Link, proof: DialerHandshake) -> Identity:
        with trio.move_on_after(self._limits.handshake_timeout_s):
            if self.tls is not None:
                await link.secure(self.tls[1], is_server=False)
            link.send([proof.start()])
            while proof.peer is None:
                answer = proof.receive(await _wait_frame(link))
                if answer is not None:
                    link.send([answer])
            return proof.peer
        raise HandshakeError(f"no handshake within {self._limits.handshake_timeout_s:g} s")

    # Accepting

    async def _serve(self, stream: trio.SocketStream) -> None:
        link = Link(stream, self._link_limits)
        try:
            own_host, remote_host = link.hosts()
        except OSError:  # gone already
            link.close()
            return
        while len(self._unauthenticated) >= self._limits.unauthenticated_max:
            # Who means well is done in ms: the oldest is the one that doesn't
            oldest = oldest_of_most(self._unauthenticated.items())
            del self._unauthenticated[oldest]
            self.figures.handshakes_dropped += 1
            limit = self._limits.unauthenticated_max
            self._complain("too_many_handshakes", remote_host, limit=limit)
            oldest.close()
        proof: AcceptorHandshake | None = None
        self._unauthenticated[link] = place_of(remote_host)
        try:
            proof = await self._admit(link, remote_host)
        finally:
            self._unauthenticated.pop(link, None)
            if proof is None:
                link.close()
        if proof is None or proof.peer is None:
            return
        conn = self._add(link)
        link.send([proof.accept()])
        self._owner.accepted(conn, proof.peer, proof.is_meet, own_host, remote_host)
        await self._carry(conn, link, remote_host)

    async def _admit(self, link: Link, remote_host: str) -> AcceptorHandshake | None:
        """Shake hands; None, after the dialer was told why, if it may not come in."""
        own = self._owner.identity()
        proof = AcceptorHandshake(
            own=own,
            secret=self.secret,
            nonce=secrets.token_bytes(handshake.NONCE_BYTES),
            own_nonces=self._nonces,
        )
        told = ""  # to the dialer, if not what our log says
        try:
            with trio.move_on_after(self._limits.handshake_timeout_s) as scope:
                denied = self._objection_to_host(remote_host)
                if self.tls is not None:
                    told = NEEDS_TLS
                    await link.secure(self.tls[0], is_server=True)
                    told = ""
                while proof.peer is None:
                    answer = proof.receive(await _wait_frame(link))
                    if denied is not None:
                        raise HandshakeError(denied)
                    if answer is not None:
                        link.send([answer])
            if scope.cancelled_caught:
                raise HandshakeError(f"none within {self._limits.handshake_timeout_s:g} s")
        except RemoteProtocolError as error:
            self._complain("bus_connection_refused", remote_host, reason=str(error))
            link.send([handshake.refusal(told or str(error))])
            await link.linger(LINGER_BYTES_MAX, LINGER_S)
            return None
        reason = self._objection(proof, own, remote_host)
        if reason is not None:
            link.send([proof.refuse(reason)])
            await link.linger(LINGER_BYTES_MAX, LINGER_S)
            self._owner.wake()
            return None
        return proof

    def _objection(self, proof: AcceptorHandshake, own: Identity, remote_host: str) -> str | None:
        peer = proof.peer
        if peer is None or own.id != self._owner.identity().id:
            return "this node took a new id meanwhile"
        reason = proof.conflict
        if reason is None:
            reason = self._owner.admits(peer, proof.expected, proof.is_meet)
        elif reason.startswith(handshake.DUPLICATE):
            self._complain("duplicate_node_id", remote_host, id=peer.id, port=peer.port)
        return reason

    # Carrying

    def _add(self, link: Link) -> ConnId:
        conn = ConnId(next(self._conns))
        link.authenticated()
        link.limits = self._link_limits
        self._links[conn] = link
        return conn

    async def _carry(self, conn: ConnId, link: Link, remote_host: str) -> None:
        """Read until the connection ends, from whichever side."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(link.write_waiting)
                await self._read(conn, link)
                nursery.cancel_scope.cancel()
        finally:
            link.close()
        if link.reason:
            self.figures.links_dropped += 1
            self._complain("link_dropped", remote_host, reason=link.reason)
        if self._links.pop(conn, None) is not None:
            self._owner.closed(conn)
            self._owner.wake()

    async def _read(self, conn: ConnId, link: Link) -> None:
        while True:
            until = trio.current_time() + READ_S
            try:
                for body in link.frames_read():
                    self._owner.frame(conn, body)
                    if trio.current_time() > until:
                        self._owner.finish()
                        await trio.lowlevel.checkpoint()
                        until = trio.current_time() + READ_S
            except RemoteProtocolError as error:
                link.close(str(error))
            self._owner.finish()
            if link.unread_bytes > UNREAD_BYTES_MIN:
                self._bound_unread()
            if link.is_closed or not await link.wait_read():
                return

    async def _close_listeners(self) -> None:
        for listener in self._listeners:
            await listener.aclose()
        self._listeners.clear()

    def _complain(self, event: str, host: str, **facts: object) -> None:
        """Note something about an address, at most once a minute."""
        if self._noted.allows(event, host, int(trio.current_time() * 1_000)):
            self._owner.note(Note("warning", event, (("host", host), *facts.items())))


class NodesFileLock:
    """nodes.conf is mine as long as this lives; the lock is on `<path>.lock`, since the file itself is replaced."""

    def __init__(self, path: Path) -> None:
        """Take the lock; NodesFileError if another process has it."""
        self._file = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(self._file, 20).decode(errors="replace").strip()
            os.close(self._file)
            raise NodesFileError(
                f"{path} is used by another process{f' (pid {holder})' if holder else ''}; "
                "each node needs its own"
            ) from error
        os.ftruncate(self._file, 0)
        os.write(self._file, f"{os.getpid()}\n".encode())

    def release(self) -> None:
        """Give the lock up; the end of the process does so, too."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def load_nodes_file(path: Path) -> StoredNodes:
    """Read nodes.conf; a missing or empty one is a fresh start; NodesFileError for one that can't be used."""
    try:
        with path.open("rb") as file:
            data = file.read(NODES_FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        return StoredNodes()
    except OSError as error:
        raise NodesFileError(f"{path}: can't be read: {error.strerror}") from error
    if len(data) > NODES_FILE_BYTES_MAX:
        raise NodesFileError(
            f"{path}: more than {NODES_FILE_BYTES_MAX} bytes, that's no nodes.conf"
        )
    try:
        return nodesfile.parse(data.decode(errors="replace"))
    except NodesFileError as error:
        raise NodesFileError(f"{path}: {error}") from error


def save_nodes_file(path: Path, text: str) -> None:
    """Replace nodes.conf so that a crash leaves the old or the new one whole; blocks for two fsyncs. OSError."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


async def _wait_frame(link: Link) -> bytes:
    body = await link.wait_frame()
    if body is None:
        raise HandshakeError("the other side closed the connection during the handshake")
    return body


def _reason(error: Exception) -> str:
    """What went wrong, in one line; trio hides the system's word in the cause."""
    cause: BaseException = error.__cause__ or error
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    if isinstance(cause, OSError) and (cause.errno or 0) > 0:
        return os.strerror(cause.errno or 0)
    if isinstance(cause, OSError) and cause.strerror:  # names that don't resolve
        return cause.strerror
    return str(error)
