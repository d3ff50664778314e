"""Connection: one socket to one node, commands out and typed replies in; no fail-over.

The tool shows what the node says that it was pointed at: so, unlike disque.client, it stays there. Replies keep the
types that people see (`replies`).
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import click

from disque.cli.exits import NO_CONNECTION, REFUSED
from disque.cli.replies import ErrorReply, Reply, StreamError, plain, read_reply

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from disque.client.url import Tls

DEFAULT_PORT = 7711
CONNECT_S = 5.0  # for a connection, and each reply until it is logged in
MAYBE_TLS = "; does it speak TLS? then try --tls"
MAYBE_PLAIN = "; does it speak TLS? else leave out --tls or say disque://"
WHOM_TO_BELIEVE = "; --cacert (in a URL tls_ca) says whose certificates are believed"
NO_PASSWORD_HINT = "the password is taken from $DISQUE_PASSWORD, or -a"
PIPELINE_COMMANDS_MAX = 200  # sent before their replies are read
PIPELINE_BYTES_MAX = 4 << 20  # likewise; a single longer command goes alone

Word = str | bytes | int
T = TypeVar("T")


class ServerError(click.ClickException):
    """An error reply to a command that the tool needed; exit status 1."""

    exit_code = REFUSED

    def __init__(self, reply: ErrorReply) -> None:
        self.code = reply.text.split(b" ", 1)[0].decode("utf-8", "replace")
        text = reply.text.decode("utf-8", "replace")
        super().__init__(
            f"{text.rstrip('.')}; {NO_PASSWORD_HINT}" if self.code == "NOAUTH" else text
        )


class ConnectionFailed(click.ClickException):
    """No connection, or it broke; exit status 3. `was_sent`: the command may have been carried out."""

    exit_code = NO_CONNECTION

    def __init__(self, text: str, *, was_sent: bool = False) -> None:
        super().__init__(text)
        self.was_sent = was_sent


@attrs.frozen
class Address:
    """Where a node listens: host and port, or the path of a Unix socket."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return self.path
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@attrs.frozen
class Target:
    """Where to connect and who to be; the addresses are tried in order. `tls` None is plain TCP."""

    addresses: tuple[Address, ...] = (Address(),)
    user: str = ""
    password: str | None = attrs.field(default=None, repr=False)
    tls: Tls | None = None

    def at(self, address: Address) -> Target:
        """The same credentials at one other address."""
        return attrs.evolve(self, addresses=(address,))


def parse_url(url: str) -> Target:
    """The nodes and credentials of a URL as disque.client reads it; click.BadParameter names what is wrong with it."""
    from disque.client.url import parse_url as parse

    try:
        endpoint = parse(url)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="URL") from None
    addresses = tuple([Address(each.host, each.port) for each in endpoint.addresses])
    return Target(addresses, endpoint.username, endpoint.password or None, endpoint.tls)


class Connection:
    """An open connection, logged in. Not for several threads at once."""

    def __init__(
        self,
        target: Target,
        *,
        protocol: int = 2,
        reply_timeout_s: float | None = None,
        connect_timeout_s: float = CONNECT_S,
    ) -> None:
        self.target = target
        self.address, self._socket = _open(target, connect_timeout_s)
        self._file = self._socket.makefile("rb")
        self._is_answered = False
        try:
            self._log_in(target, protocol)
            self.set_reply_timeout(reply_timeout_s)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection; safe to call again, and while another thread waits for a reply."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._file.close()
        self._socket.close()

    def set_reply_timeout(self, seconds: float | None) -> None:
        """Without a reply for so long, the connection counts as lost; None: never."""
        self._socket.settimeout(seconds)

    def _log_in(self, target: Target, protocol: int) -> None:
        if target.password is not None:
            user = [target.user] if target.user else []
            self.call("AUTH", *user, target.password)
        if protocol == 3:
            self.call("HELLO", 3)

    def send(self, *commands: Sequence[Word]) -> None:
        """Send commands; their replies are to be read."""
        try:
            self._socket.sendall(b"".join([encode(words) for words in commands]))
        except OSError as error:
            raise self._broken(error) from error

    def read(self) -> Reply:
        """The next reply, an error as a value. Raises ConnectionFailed."""
        try:
            reply = read_reply(self._file)
        except (OSError, StreamError) as error:
            raise self._broken(error) from error
        self._is_answered = True
        return reply

    def ask(self, *words: Word) -> Reply:
        """Send one command and return its reply, an error as a value."""
        self.send(words)
        return self.read()

    def call(self, *words: Word) -> Reply:
        """Send one command and return its reply; ServerError for an error."""
        reply = self.ask(*words)
        if isinstance(reply, ErrorReply):
            raise ServerError(reply)
        return reply

    def get(self, read: Callable[[Any], T], *words: Word) -> T:
        """Send one command and make a value of its reply with a reader of disque.client.results."""
        reply = self.call(*words)
        try:
            return read(plain(reply))
        except (ValueError, TypeError, KeyError, AttributeError):
            raise ConnectionFailed(
                f"{self.address}: {words[0]!s} answered {reply!r:.200}"
            ) from None

    def pipeline(self, commands: Sequence[Sequence[Word]]) -> list[Reply]:
        """Send many commands, some at a time; their replies in order, errors as values."""
        replies: list[Reply] = []
        batch: list[bytes] = []
        size = 0
        for at, words in enumerate(commands):
            batch.append(encode(words))
            size += len(batch[-1])
            is_last = at == len(commands) - 1
            if is_last or len(batch) >= PIPELINE_COMMANDS_MAX or size >= PIPELINE_BYTES_MAX:
                try:
                    self._socket.sendall(b"".join(batch))
                except OSError as error:
                    raise self._broken(error) from error
                replies += [self.read() for _ in batch]
                batch, size = [], 0
        return replies

    def _broken(self, error: Exception) -> ConnectionFailed:
        reason = "no answer in time" if isinstance(error, TimeoutError) else _reason(error)
        is_maybe_tls = not self._is_answered and self.target.tls is None and not self.address.path
        hint = MAYBE_TLS if is_maybe_tls else ""
        return ConnectionFailed(f"{self.address}: {reason}{hint}", was_sent=True)


def encode(words: Sequence[Word]) -> bytes:
    """A command as multibulk; text as UTF-8, with the bytes of the command line as they were."""
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        data = word if isinstance(word, bytes) else str(word).encode("utf-8", "surrogateescape")
        parts += (b"$%d\r\n" % len(data), data, b"\r\n")
    return b"".join(parts)


def _open(target: Target, timeout_s: float) -> tuple[Address, socket.socket]:
    complaints = []
    for address in target.addresses:
        try:
            return address, _connect(address, target.tls, timeout_s)
        except OSError as error:
            complaints.append(f"could not connect to {address}: {_reason(error)}")
    raise ConnectionFailed("\n".join(complaints))


def _connect(address: Address, tls: Tls | None, timeout_s: float) -> socket.socket:
    if address.path:
        opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        opened.settimeout(timeout_s)
        try:
            opened.connect(address.path)
        except BaseException:
            opened.close()
            raise
        return opened
    opened = socket.create_connection((address.host, address.port), timeout=timeout_s)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if tls is None:
        return opened
    try:
        return _context(tls).wrap_socket(opened, server_hostname=address.host)
    except ssl.SSLCertVerificationError as error:
        raise OSError(f"{error.verify_message.rstrip('.')}{WHOM_TO_BELIEVE}") from None
    except OSError as error:
        raise OSError(f"{_reason(error)}{MAYBE_PLAIN}") from None
    finally:
        # wrapped, it has been detached, and this does nothing
        opened.close()


def _context(tls: Tls) -> ssl.SSLContext:
    try:
        return tls.context()
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _reason(error: Exception) -> str:
    return (
        (error.strerror if isinstance(error, OSError) else None)
        or str(error)
        or type(error).__name__
    )
