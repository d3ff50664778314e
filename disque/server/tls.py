"""Tls: contexts from certificate files, and clients' sockets that speak TLS without waiting.

A `TlsSocket` looks like the plain non-blocking socket that it took over: connections, the turn loop and the poller
don't know the difference, and plain ones pay nothing for it. Contexts are made anew when files have changed;
connections that stand keep the old ones.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import trio

from cluster.places import oldest_of_most, place_of
from cluster.tls import explain
from disque.errors import ConfigError
from disque.server.files import check_regular

if TYPE_CHECKING:
    from collections.abc import Callable

    from disque.server.config import Config
    from disque.server.eventlog import EventLog
    from disque.server.info import Figures

HANDSHAKE_S = 10.0
HANDSHAKES_MAX = 500  # at a time; the oldest go, of those from where most come
RECORD_BYTES = 16 << 10  # what a record of TLS holds at most
HEAD_BYTES = 5  # of a record; the last two are the size of what follows
OWN_WORDS_BYTES_MAX = 64 << 10  # of answers to TLS' own messages that aren't taken
SENT_AT_ONCE_BYTES = 1 << 20  # encrypted before others have their turn
_DATES = (9, 10)  # OpenSSL's verify codes: not yet valid, expired
_VERIFY = {"yes": ssl.CERT_REQUIRED, "optional": ssl.CERT_OPTIONAL, "no": ssl.CERT_NONE}


class TlsSocket(socket.socket):
    """A non-blocking socket under TLS; BlockingIOError where the plain one would raise it.

    OpenSSL never reads the socket itself: as long as nothing but messages to itself came, it wouldn't return.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        """Take a socket over that was accepted; then comes `shake`."""
        super().__init__(sock.family, sock.type, sock.proto, fileno=sock.detach())
        self.setblocking(False)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._record = b""  # of the handshake, what has come of it
        self._unsent = b""  # of what OpenSSL says
        self._owed = 0  # bytes in there that `send` hasn't counted
        self._is_shut = False

    def shake(self) -> bool:
        """Go on with the handshake as far as may be; True once it is over, but for what is unsent. OSError.

        Nothing behind it is read: nobody would look at that before more comes.
        """
        with contextlib.suppress(BlockingIOError):
            data = super().recv(_rest_of(self._record))
            self._record += data
            if not _rest_of(self._record):
                self._record = b""
            self._feed(data)
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        finally:
            self.flush()
        return True

    def flush(self) -> bool:
        """Send what OpenSSL has said; True if nothing of it is left."""
        if self._outgoing.pending:
            self._unsent += self._outgoing.read()
        while self._unsent:
            try:
                count = super().send(self._unsent)
            except BlockingIOError:
                return False
            self._unsent = self._unsent[count:]
        return True

    def send(self, data: Any, flags: int = 0) -> int:  # noqa: ARG002 - there are none
        """Bytes that were taken; a record that left in part isn't: it is said again, and is the same one."""
        view = memoryview(data)[:SENT_AT_ONCE_BYTES]
        if not self.flush():
            raise BlockingIOError
        sent, self._owed = self._owed, 0
        while sent < len(view):
            record = view[sent : sent + RECORD_BYTES]
            self._object.write(record)
            if not self.flush():
                self._owed = len(record)
                break
            sent += len(record)
        if not sent:
            raise BlockingIOError
        return sent

    def recv(self, buflen: int = RECORD_BYTES, flags: int = 0) -> bytes:
        """What has come, b"" at the end; nothing stays decrypted inside, where no selector would see it.

        After `shutdown` it is what comes on the wire, for whoever throws it away.
        """
        if self._is_shut:
            return super().recv(buflen, flags)
        parts: list[bytes] = []
        size = 0
        while size < buflen:
            try:
                data = super().recv(RECORD_BYTES)
            except BlockingIOError:
                break
            self._feed(data)
            part, has_ended = self._decrypt()
            parts.append(part)
            size += len(part)
            if has_ended:
                # TLS may have ended without TCP: the selector is to see it, too
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(self, socket.SHUT_RD)
                return b"".join(parts)
            if 2 * len(part) < len(data):
                break  # very small records, or none of data: others have their turn
        if not size:
            raise BlockingIOError
        return b"".join(parts)

    def shutdown(self, how: int) -> None:
        """Say that no more comes, in TLS and in TCP."""
        with contextlib.suppress(OSError, ValueError):
            self._object.unwrap()
        with contextlib.suppress(OSError):
            self.flush()
        self._is_shut = True
        super().shutdown(how)

    def _feed(self, data: bytes) -> None:
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()

    def _decrypt(self) -> tuple[bytes, bool]:
        """All that has come whole, and whether that was the last of it."""
        parts: list[bytes] = []
        try:
            while part := self._object.read(RECORD_BYTES):
                parts.append(part)
        except ssl.SSLWantReadError:
            return b"".join(parts), False
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            pass
        finally:
            if not self.flush() and len(self._unsent) > OWN_WORDS_BYTES_MAX:
                raise ConnectionAbortedError("it asks for answers of TLS, and reads none")
        return b"".join(parts), True


def _rest_of(record: bytes) -> int:
    """Bytes of a record of TLS that are still to come, of its head first."""
    size = HEAD_BYTES
    if len(record) >= HEAD_BYTES:
        size += int.from_bytes(record[HEAD_BYTES - 2 : HEAD_BYTES], "big")
    return size - len(record)


@attrs.frozen
class Contexts:
    """What this node shows, and asks for, on each kind of port; `peers` is for both sides of the bus."""

    clients: ssl.SSLContext
    peers: tuple[ssl.SSLContext, ssl.SSLContext] | None  # who accepts, who dials


def make_contexts(config: Config) -> Contexts | None:
    """The contexts of these settings, None without a certificate; ConfigError names the file that can't be used."""
    if not config.tls_cert_file:
        for name, is_wanted in (
            ("tls-port", config.tls_port),
            ("tls-stomp-port", config.tls_stomp_port),
            ("tls-cluster", config.tls_cluster),
        ):
            if is_wanted:
                raise ConfigError(f"{name} needs tls-cert-file (and tls-key-file)")
        return None
    for directive in ("tls-cert-file", "tls-key-file", "tls-ca-cert-file"):
        _check_file(directive, getattr(config, directive.replace("-", "_")))
    is_asking = config.tls_auth_clients != "no"
    if is_asking and not config.tls_ca_cert_file and (config.tls_port or config.tls_stomp_port):
        raise ConfigError(
            f"tls-auth-clients {config.tls_auth_clients} needs tls-ca-cert-file, which signs clients' certificates; "
            "set that, or tls-auth-clients no"
        )
    if config.tls_cluster and not config.tls_ca_cert_file:
        raise ConfigError("tls-cluster needs tls-ca-cert-file, which signs the nodes' certificates")
    verify = _VERIFY[config.tls_auth_clients] if config.tls_ca_cert_file else ssl.CERT_NONE
    clients = _context(config, ssl.PROTOCOL_TLS_SERVER, verify)
    peers = None
    if config.tls_cluster:
        peers = (
            _context(config, ssl.PROTOCOL_TLS_SERVER, ssl.CERT_REQUIRED),
            _context(config, ssl.PROTOCOL_TLS_CLIENT, ssl.CERT_REQUIRED),
        )
    return Contexts(clients, peers)


def _check_file(directive: str, path: str) -> None:
    """A file that isn't there is told before what it would be needed for."""
    if path:
        try:
            check_regular(Path(path))
            Path(path).open("rb").close()
        except OSError as error:
            raise ConfigError(f"{directive} {path}: {error.strerror}") from None


def _context(config: Config, protocol: int, verify: ssl.VerifyMode) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    # Nodes are known by who signed for them, not by a name: addresses change, and dials go through proxies
    context.check_hostname = False
    context.verify_mode = verify
    try:
        # A password for the key would be asked for at a terminal
        context.load_cert_chain(
            config.tls_cert_file, config.tls_key_file or None, password=lambda: ""
        )
    except OSError as error:
        name = config.tls_key_file or config.tls_cert_file
        raise ConfigError(
            f"tls-cert-file {config.tls_cert_file} and key {name}: {_why(error)}"
        ) from None
    if config.tls_ca_cert_file:
        try:
            context.load_verify_locations(config.tls_ca_cert_file)
        except OSError as error:
            text = f"tls-ca-cert-file {config.tls_ca_cert_file}: {_why(error)}"
            raise ConfigError(text) from None
    return context


def validity_trouble(config: Config) -> str:
    """Why nobody will believe the certificate today: its time is over, or hasn't come. "" if that is in order."""
    # No call tells the dates; who believes in it alone, and shakes hands with it, finds out
    server = _context(config, ssl.PROTOCOL_TLS_SERVER, ssl.CERT_NONE)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(config.tls_cert_file)
    here, there = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = (
        server.wrap_bio(here, there, server_side=True),
        client.wrap_bio(there, here),
    )
    for side in (*sides[::-1], *sides[::-1]):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLCertVerificationError as error:
            return error.verify_message if error.verify_code in _DATES else ""
        except ssl.SSLError:
            return ""
    return ""


def _why(error: OSError) -> str:
    """Why a file can't be used."""
    if isinstance(error, ssl.SSLError):
        return f"no usable PEM ({(error.reason or str(error)).lower().replace('_', ' ')})"
    return error.strerror or str(error)


class Handshakes:
    """Clients' handshakes: in time, not too many at a time, one step a turn of the scheduler: a signature takes ms."""

    def __init__(self, figures: Figures, events: EventLog) -> None:
        # Set where there is a port that speaks TLS
        self.context: Callable[[], ssl.SSLContext] | None = None
        self._figures = figures
        self._events = events
        self._under_way: dict[socket.socket, tuple[trio.CancelScope, str]] = {}  # with the place
        self._step = trio.Lock()

    async def shake(self, sock: socket.socket, host: str) -> TlsSocket | None:
        """The same connection under TLS; None, and closed, if the other side can't or may not do that."""
        assert self.context is not None, "no port speaks TLS"
        try:
            secured = TlsSocket(sock, self.context())
        except OSError:  # it has gone already
            sock.close()
            return None
        while len(self._under_way) >= HANDSHAKES_MAX:
            comers = [(each, place) for each, (_, place) in self._under_way.items()]
            self._under_way.pop(oldest_of_most(comers))[0].cancel()
        reason = f"none within {HANDSHAKE_S:g} s, or too many others"
        try:
            with trio.move_on_after(HANDSHAKE_S) as scope:
                self._under_way[secured] = (scope, place_of(host))
                await self._shake(secured)
                return secured
        except OSError as error:
            reason = explain(error)
        finally:
            self._under_way.pop(secured, None)
        self._figures.tls_handshakes_failed += 1
        self._events.seldom("warning", "tls-handshake-failed", host=host, reason=reason)
        secured.close()
        return None

    async def _shake(self, secured: TlsSocket) -> None:
        is_over = False
        while not is_over:
            async with self._step:
                is_over = secured.shake()
            while not secured.flush():
                await trio.lowlevel.wait_writable(secured)
            if not is_over:
                await trio.lowlevel.wait_readable(secured)
