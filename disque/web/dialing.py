"""Dialing: connections to nodes: the own one over the leash, the others over TCP, under TLS where they want it.

Where nodes serve other machines under TLS only (`tls-only`), the port that they tell is no use: all are taken to have
the same tls-port as ours. They are known by who signed for them, not by a name, as on the bus.
"""

from __future__ import annotations

import ipaddress
import ssl
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from disque.web.leash import Leash, Settings


def open_own(
    tether: Leash, protocol: bytes, client: tuple[str, int] | None = None
) -> trio.SocketStream:
    """A connection to the own node, for `client` or for ourselves; OSError if the node has gone."""
    sock = tether.connect(protocol, client)
    sock.setblocking(False)
    return trio.SocketStream(trio.socket.from_stdlib_socket(sock))


def peer_dialer(
    settings: Callable[[], Settings], host: str, port: int
) -> Callable[[], Awaitable[trio.abc.Stream]]:
    """What opens connections to another node; each call raises OSError or BrokenResourceError."""

    async def dial() -> trio.abc.Stream:
        said = settings()
        if not host or not port:
            raise OSError("its address isn't known")
        if not said.peer_tls_port or _is_this_machine(host):
            return await trio.open_tcp_stream(host, port)
        plain = await trio.open_tcp_stream(host, said.peer_tls_port)
        stream = trio.SSLStream(plain, client_context(said), server_hostname=host)
        try:
            await stream.do_handshake()
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise
        return stream

    return dial


def client_context(settings: Settings) -> ssl.SSLContext:
    """For connections to other nodes: our certificate, if there is one, and whose we believe. OSError."""
    context = ssl.create_default_context(cafile=settings.ca_file or None)
    context.check_hostname = False
    if settings.cert_file:
        context.load_cert_chain(settings.cert_file, settings.key_file or None, password=lambda: "")
    return context


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
