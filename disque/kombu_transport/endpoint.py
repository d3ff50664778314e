"""Endpoint: which cluster a connection of Kombu's means, in the client's words. Pure."""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs
from kombu.utils.url import url_to_parts

from disque.client import Address, Endpoint, Options
from disque.client.url import DEFAULT_PORT, Tls, parse_address

# Seconds while no node can be reached; Kombu and Celery go on trying by their own settings.
FAILOVER_S: Final = 1.0
# Those of the transport options that Kombu itself heeds.
KOMBU_NAMES: Final = (
    "max_retries",
    "interval_start",
    "interval_step",
    "interval_max",
    "connect_retries_timeout",
    "polling_interval",
    "errback",
    "callback",
)
TLS_NAMES: Final = ("ca_certs", "certfile", "keyfile", "cert_reqs")


def endpoint_of(connection: Any) -> Endpoint:
    """The cluster that a Kombu connection means: its host, its alternates, its credentials, its transport options.

    ValueError for what can't be understood, and for files that can't be used.
    """
    if (virtual_host := (connection.virtual_host or "").strip("/")) not in ("", "0"):
        raise ValueError(
            f"there are no virtual hosts, got {virtual_host!r}: let names of queues begin so, or start another cluster"
        )
    addresses = [_address(connection.hostname or "localhost", connection.port)]
    for alternate in connection.alt or ():
        parts = url_to_parts(alternate if "://" in alternate else f"disque://{alternate}")
        if parts.query:
            told = ", ".join(parts.query)
            raise ValueError(f"options belong into transport options, not into the URL: {told}")
        addresses.append(Address(parts.hostname or "localhost", parts.port or DEFAULT_PORT))
    username, password = connection.userid or "", connection.password or ""
    if callable(password):
        password = password()
    if username and not password:
        # `disque://secret@host`: as in Disque, a lone word is the password
        username, password = "", username
    given = connection.transport_options or {}
    names = [field.name for field in attrs.fields(Options)]
    options = {name: given[name] for name in names if name in given}
    options.setdefault("failover_timeout", FAILOVER_S)
    tls = (
        tls_of(connection.ssl) if connection.ssl or connection.transport_cls == "disques" else None
    )
    if tls is not None:
        # Certificates need not name the addresses that nodes tell of each other.
        options.setdefault("discover", False)
    if connection.connect_timeout:
        options.setdefault("connect_timeout", float(connection.connect_timeout))
    places = tuple(dict.fromkeys(addresses))
    return Endpoint(places, username, password, Options(**options), tls)


def check_options(given: Iterable[str], of_channel: Iterable[str]) -> None:
    """ValueError for a transport option that nobody heeds, with those that there are."""
    ours = sorted({*of_channel, *[field.name for field in attrs.fields(Options)]})
    if unknown := sorted({*given} - {*ours, *KOMBU_NAMES}):
        raise ValueError(
            f"no transport option {', '.join(map(repr, unknown))}: there are {', '.join(ours)},"
            f" and Kombu's {', '.join(KOMBU_NAMES)}"
        )


def whole_s(name: str, given: Any) -> int:
    """A transport option in whole seconds. ValueError if it is none."""
    if isinstance(given, bool) or not isinstance(given, int | float) or not 1 <= given < 2**32:
        raise ValueError(f"{name} must be seconds, 1 or more, got {given!r}")
    return int(given)


def tls_of(given: Any) -> Tls:
    """Kombu's `ssl`, Celery's `broker_use_ssl`: True, or a dict of TLS_NAMES, each with or without `ssl_` before it."""
    words = given if isinstance(given, Mapping) else {}
    named = {str(name).removeprefix("ssl_"): value for name, value in words.items()}
    if unknown := named.keys() - TLS_NAMES:
        raise ValueError(f"ssl knows {', '.join(TLS_NAMES)}, got {', '.join(sorted(unknown))}")
    return Tls(
        ca=str(named.get("ca_certs") or ""),
        cert=str(named.get("certfile") or ""),
        key=str(named.get("keyfile") or ""),
        verify=named.get("cert_reqs") not in (ssl.CERT_NONE, "none", "CERT_NONE"),
    )


def _address(host: str, port: int | None) -> Address:
    """Kombu takes an alternate that is no URL for a host's name, port and all."""
    return parse_address(host) if host.count(":") == 1 else Address(host, port or DEFAULT_PORT)
