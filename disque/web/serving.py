"""Serving: Hypercorn around the page, on listeners that are there already, under TLS if the node says so."""

from __future__ import annotations

import ssl
import sys
from typing import TYPE_CHECKING

import trio
from hypercorn.config import Config
from hypercorn.trio import serve

from disque.web.app import make_app

if TYPE_CHECKING:
    from collections.abc import Sequence

    from disque.web.leash import Leash, Settings

IDLE_MAX_S = 600.0  # without any request, before the process ends
BACKLOG = 100
HANDSHAKE_S = 10  # of TLS


async def run(tether: Leash, listeners: Sequence[int]) -> None:
    """Serve on these file descriptors until nobody has come for IDLE_MAX_S."""
    config = _Config()
    config.bind = [f"fd://{each}" for each in listeners]
    config.backlog = BACKLOG
    config.loglevel = "WARNING"
    config.include_server_header = False
    config.graceful_timeout = 1.0
    config.ssl_handshake_timeout = HANDSHAKE_S
    if tether.settings.is_tls:
        context = config.context = make_context(tether.settings)
        tether.on_change = lambda settings: reload(context, settings)
    app = make_app(tether)

    async def wait_idle() -> None:
        while (left_s := IDLE_MAX_S - app.idle_s()) > 0:
            await trio.sleep(left_s)

    await serve(app, config, shutdown_trigger=wait_idle, mode="asgi")  # type: ignore[arg-type]


class _Config(Config):
    """Hypercorn's, with a context that we keep, since its certificate may be replaced."""

    context: ssl.SSLContext | None = None

    @property
    def ssl_enabled(self) -> bool:
        """True if the listeners speak TLS."""
        return self.context is not None

    def create_ssl_context(self) -> ssl.SSLContext | None:
        """Ours."""
        return self.context


def make_context(settings: Settings) -> ssl.SSLContext:
    """What browsers are shown; OSError if the files can't be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    _load(context, settings)
    return context


def reload(context: ssl.SSLContext, settings: Settings) -> None:
    """Show the certificate that is in the files now; the old one stays if that can't be used."""
    try:
        _load(context, settings)
    except OSError as error:
        sys.stderr.write(f"{settings.cert_file}: {error}\n")


def _load(context: ssl.SSLContext, settings: Settings) -> None:
    # A password for the key would be asked for at a terminal
    context.load_cert_chain(settings.cert_file, settings.key_file or None, password=lambda: "")
