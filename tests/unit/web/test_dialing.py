"""Dialing: other machines' nodes are reached under TLS where they want it, and only by whom they believe."""

from __future__ import annotations

import ssl
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
import trio

from disque.web.dialing import peer_dialer
from disque.web.leash import Settings
from tests.certificates import Authority

if TYPE_CHECKING:
    from pathlib import Path

SOON_S = 5.0


async def greet(stream: trio.abc.Stream) -> None:
    """A server that only says hello."""
    with suppress(trio.BrokenResourceError):
        async with stream:
            await stream.send_all(b"hello")


async def serve(nursery: trio.Nursery, context: ssl.SSLContext | None) -> int:
    """Serve `greet` on loopback; the port."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port: int = listeners[0].socket.getsockname()[1]
    if context is None:
        nursery.start_soon(trio.serve_listeners, greet, listeners)
    else:
        secured = [trio.SSLListener(each, context) for each in listeners]
        nursery.start_soon(trio.serve_listeners, greet, secured)
    return port


async def heard(settings: Settings, host: str, port: int) -> bytes:
    """What a node says first."""
    with trio.fail_after(SOON_S):
        stream = await peer_dialer(lambda: settings, host, port)()
        try:
            return bytes(await stream.receive_some())
        finally:
            await trio.aclose_forcefully(stream)


async def test_without_tls_the_port_that_a_node_tells_is_dialled(nursery: trio.Nursery) -> None:
    port = await serve(nursery, None)
    assert await heard(Settings(), "127.0.0.1", port) == b"hello"
    assert await heard(Settings(peer_tls_port=1), "127.0.0.1", port) == b"hello"


@pytest.mark.parametrize(("host", "port"), [("", 7711), ("127.0.0.1", 0)])
async def test_a_node_without_an_address_is_not_looked_for_here(host: str, port: int) -> None:
    with pytest.raises(OSError, match="its address isn't known"):
        await heard(Settings(), host, port)


async def test_other_machines_are_dialled_under_tls_with_our_certificate(
    nursery: trio.Nursery, tmp_path: Path
) -> None:
    ours, other = Authority(tmp_path, "ours"), Authority(tmp_path, "other")
    server, client = ours.issue("server", "a.example"), ours.issue("client")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(ours.ca))
    context.load_cert_chain(server.cert, server.key)
    context.verify_mode = ssl.CERT_REQUIRED
    port = await serve(nursery, context)
    settings = Settings(
        cert_file=str(client.cert),
        key_file=str(client.key),
        ca_file=str(ours.ca),
        peer_tls_port=port,
    )
    assert await heard(settings, "localhost", 1) == b"hello"
    stranger = Settings(ca_file=str(other.ca), peer_tls_port=port)
    with pytest.raises(trio.BrokenResourceError):
        await heard(stranger, "localhost", 1)
