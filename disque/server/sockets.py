"""Sockets: listening ones, opened before anything is promised; and what the kernel is asked of those of clients.

It knows addresses and ports, nothing of what is served there.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from disque.errors import ConfigError
from disque.server.addresses import join_host_port
from disque.server.directives import without_brackets

if TYPE_CHECKING:
    from collections.abc import Sequence

EVERYWHERE = ("0.0.0.0", "::")
_ALL = ("*", "")
_TAKEN = (errno.EADDRINUSE, errno.EACCES)
_DRAINED_BYTES = 32 << 10
_TCP_CLOSE, _TCP_CLOSE_WAIT = 7, 8  # states of TCP_INFO


def listen(hosts: Sequence[str], port: int, backlog: int) -> list[socket.socket]:
    """Non-blocking listeners on all `hosts` (none, or *: all interfaces, IPv4 and, where there is one, IPv6).

    ConfigError if one can't be opened; then none stays open.
    """
    listeners: list[socket.socket] = []
    if any(host in _ALL for host in hosts):
        hosts = ()
    try:
        for host in hosts or EVERYWHERE:
            try:
                listeners += _listen_on(host, port, backlog)
            except OSError as error:
                if not hosts and listeners and error.errno not in _TAKEN:
                    continue  # a machine without IPv6
                text = error.strerror or str(error)
                raise ConfigError(f"can't listen on {join_host_port(host, port)}: {text}") from None
    except ConfigError:
        for each in listeners:
            each.close()
        raise
    return listeners


def listen_unix(path: str, mode: int, backlog: int) -> socket.socket:
    """A non-blocking listener at a path, which a dead server may have left; ConfigError if it can't be."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if Path(path).is_socket():
            Path(path).unlink()
        sock.bind(path)
        if mode:
            os.chmod(path, mode)  # noqa: PTH101 - the path is a str all along
        sock.listen(backlog)
    except OSError as error:
        sock.close()
        raise ConfigError(f"can't listen on {path}: {error.strerror or error}") from None
    sock.setblocking(False)
    return sock


def _listen_on(host: str, port: int, backlog: int) -> list[socket.socket]:
    host = without_brackets(host)
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    listeners: list[socket.socket] = []
    try:
        for family, kind, proto, _, address in dict.fromkeys(found):
            sock = socket.socket(family, kind, proto)
            listeners.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind(address)
            sock.listen(backlog)
            sock.setblocking(False)
    except OSError:
        for each in listeners:
            each.close()
        raise
    return listeners


def send_at_once(sock: socket.socket, *, unsent_bytes: int) -> None:
    """Have TCP wait for no more to send; the kernel takes so many bytes ahead, where it can be told."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, unsent_bytes)


def keep_alive(sock: socket.socket, idle_s: int) -> None:
    """Have TCP find out whether the other side of an idle connection is there; 0: never."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, bool(idle_s))
    if idle_s and hasattr(socket, "TCP_KEEPIDLE"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle_s)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(idle_s // 3, 1))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)


async def drain(sock: socket.socket, patience_s: float) -> None:
    """End our side and read for a moment: closing over unread input destroys what we said."""
    sock.shutdown(socket.SHUT_WR)
    with contextlib.suppress(BlockingIOError):
        # Mostly the other side has ended: trio keeps a time limit till its end, and it lies in the way of memory
        if not sock.recv(_DRAINED_BYTES):
            return
    with trio.move_on_after(patience_s):
        while True:
            await trio.lowlevel.wait_readable(sock)
            if not sock.recv(_DRAINED_BYTES):
                return


def has_hung_up(sock: socket.socket, *, counts_end: bool) -> bool:
    """True if the other side has gone, though nobody reads from the socket now (Linux; else never).

    counts_end: an end of the stream, which unread input may hide from a command that it would end, is enough.
    """
    if sock.family == socket.AF_UNIX or not hasattr(socket, "TCP_INFO"):
        return False
    try:
        state = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    except OSError:
        return True
    return state == _TCP_CLOSE or (state == _TCP_CLOSE_WAIT and counts_end)
