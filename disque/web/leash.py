"""Leash: the page's process on the socket that its node holds.

Over it come settings, one JSON object a line; back go ends of socket pairs, each with a byte that says which protocol
of the node's clients is spoken there, and for whom. So the page needs no address of its own node, whatever that listens
at. When the node is gone, however it went, the stream ends, and so does this process, at once: it must never keep the
node's port.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

RESP = b"R"
STOMP = b"S"
VISIT = b"V"
_READ_BYTES = 4096


@attrs.frozen
class Settings:
    """What the node says of itself; a later line replaces an earlier one."""

    password: str = ""  # requirepass: of the page, of this node, and of the others
    # Users beside default who have all rights: the SHA-256 of their passwords, in hexadecimal
    operators: Mapping[str, Sequence[str]] = attrs.Factory(dict)
    auth_failures_max: int = 60  # wrong passwords of an address in a minute; 0: no limit
    is_exposed: bool = False  # the page listens at more than loopback
    is_tls: bool = False  # the page speaks TLS, with the node's certificate
    asks_certificate: bool = False  # who comes under TLS to talk STOMP must show one of ca_file
    cert_file: str = ""
    key_file: str = ""  # "": it is in cert_file
    ca_file: str = ""  # who signs for other nodes; "": whom the system believes
    counts_visits: bool = False  # the node wants a VISIT for each of our connections
    knows_page: bool = False  # the node asks us ourselves for no password
    peer_tls_port: int = 0  # not 0: other machines' nodes are reached under TLS, at this port


class Leash:
    """The process's end. `settings` is what the node said last."""

    def __init__(self, sock: socket.socket) -> None:
        """Wait for the first settings; EOFError if the node ends before."""
        self._sock = sock
        self._buffer = b""
        self.on_change: Callable[[Settings], None] = lambda _: None  # called in the leash's thread
        self.settings = self._read_settings()

    def follow(self) -> None:
        """From now on take new settings, and end the process with the node; a thread does, even during imports."""
        threading.Thread(target=self._follow, name="leash", daemon=True).start()

    def connect(self, protocol: bytes, client: tuple[str, int] | None = None) -> socket.socket:
        """A new connection to the node, RESP or STOMP; OSError if the node has gone.

        `client`: the host and port for whom it is, to whom the node's rules for such a one apply; None: for ourselves.
        """
        where = b"" if client is None else f"{client[0]} {client[1]}".encode()
        ours, theirs = socket.socketpair()
        try:
            # One call, so that the node finds all of it, or nothing
            said = protocol + bytes([len(where)]) + where
            socket.send_fds(self._sock, [said], [theirs.fileno()])
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        return ours

    def _follow(self) -> None:
        status = 1
        try:
            while True:
                self.settings = self._read_settings()
                self.on_change(self.settings)
        except (EOFError, OSError):
            status = 0
        finally:
            os._exit(status)

    def _read_settings(self) -> Settings:
        while b"\n" not in self._buffer:
            data = self._sock.recv(_READ_BYTES)
            if not data:
                raise EOFError("the node has gone")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        said = json.loads(line)
        # A node may be older or newer than the files from which this process was started
        return Settings(**{name: said[name] for name in said if name in _KNOWN})


_KNOWN = {field.name for field in attrs.fields(Settings)}
