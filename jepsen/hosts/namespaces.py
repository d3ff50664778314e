"""Namespaces: sockets made inside another network namespace, and what they tell of the links between such.

A socket stays in the namespace where it was made, whoever uses it. The thread that enters a namespace ends there, so
that no thread of the harness is ever left in one.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import socket
import threading
from pathlib import Path
from typing import Final

import attrs
import trio

from jepsen.hosts.base import Link, all_links

_CLONE_NEWNET: Final = 0x4000_0000
PROBE_PORT: Final = 9
_ROUNDS: Final = 8
_ROUND_S: Final = 0.02
_DATAGRAM_BYTES_MAX: Final = 256


def named(name: str) -> Path:
    """The handle of a namespace that `ip netns add` made."""
    return Path("/run/netns") / name


def make_socket(handle: Path, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
    """A non-blocking IPv4 socket inside the namespace of this handle; OSError if it can't be entered."""
    made: list[socket.socket] = []
    errors: list[OSError] = []

    def work() -> None:
        try:
            _enter(handle)
            made.append(socket.socket(socket.AF_INET, kind))
        except OSError as error:
            errors.append(error)

    thread = threading.Thread(target=work, name="namespace")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    made[0].setblocking(False)
    return made[0]


def _enter(handle: Path) -> None:
    """Move this thread."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(handle, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(descriptor, _CLONE_NEWNET) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(handle))
    finally:
        os.close(descriptor)


async def connect(handle: Path, host: str, port: int) -> trio.SocketStream:
    """A TCP connection that begins in this namespace."""
    plain = make_socket(handle)
    try:
        sock = trio.socket.from_stdlib_socket(plain)
        await sock.connect((host, port))
    except BaseException:
        plain.close()
        raise
    return trio.SocketStream(sock)


@attrs.define(eq=False)
class Prober:
    """One UDP socket in each node's namespace; a link works if a datagram comes through in time."""

    _addresses: dict[str, str] = attrs.field(factory=dict, init=False)
    _sockets: dict[str, socket.socket] = attrs.field(factory=dict, init=False)
    _rounds: itertools.count[int] = attrs.field(factory=itertools.count, init=False)

    def open(self, node: str, handle: Path, address: str) -> None:
        """Make this node's socket in the namespace of `handle`, at its IPv4 address, instead of an older one."""
        self.close(node)
        sock = make_socket(handle, socket.SOCK_DGRAM)
        sock.bind((address, PROBE_PORT))
        self._sockets[node], self._addresses[node] = sock, address

    def close(self, node: str) -> None:
        """End this node's socket; its links carry nothing then."""
        sock = self._sockets.pop(node, None)
        if sock is not None:
            sock.close()

    async def probe(self) -> frozenset[Link]:
        """Links that carried one of a few datagrams; it takes 160 ms if any is silent."""
        number = next(self._rounds)
        wanted = all_links(tuple(self._sockets))
        heard: set[Link] = set()
        for _ in range(_ROUNDS):
            for source, target in sorted(wanted - heard):
                self._say(source, target, number)
            await trio.sleep(_ROUND_S)
            for target in self._sockets:
                heard.update((source, target) for source in self._hear(target, number))
            if wanted <= heard:
                break
        return frozenset(heard & wanted)

    def _say(self, source: str, target: str, number: int) -> None:
        # An error is an older datagram's, or says that there is no way: silence either way.
        with contextlib.suppress(OSError):
            text = f"{number} {source}".encode()
            self._sockets[source].sendto(text, (self._addresses[target], PROBE_PORT))

    def _hear(self, target: str, number: int) -> list[str]:
        """Who was heard in this round."""
        found: list[str] = []
        while True:
            try:
                data = self._sockets[target].recv(_DATAGRAM_BYTES_MAX)
            except BlockingIOError:
                return found
            except OSError:
                continue
            told, _, source = data.decode(errors="replace").partition(" ")
            if told == str(number):
                found.append(source)
