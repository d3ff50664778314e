"""Addresses: which ones are this machine's own, and how a socket's is spelled. It opens nothing.

Protected mode asks `is_loopback` about the address of a socket, never about anything that a
client says.
"""

from __future__ import annotations

import socket
from typing import Any

from cluster.places import packed


def is_loopback(host: str) -> bool:
    """True for 127.0.0.0/8, ::1 and IPv4-mapped loopback; False for host names."""
    raw = packed(host)
    if raw is None:
        return False
    return raw[0] == 127 if len(raw) == 4 else raw == bytes(15) + b"\x01"


def join_host_port(host: str, port: int | str) -> str:
    """`host:port`, IPv6 bracketed."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def socket_host(address: Any) -> str:
    """The host of getpeername or getsockname, IPv4-mapped spelled as IPv4; "" for a unix socket."""
    if not isinstance(address, tuple):
        return ""
    host = str(address[0])
    raw = packed(host)
    return socket.inet_ntop(socket.AF_INET, raw) if raw is not None and len(raw) == 4 else host


def socket_name(address: Any, unix_path: str = "") -> str:
    """`host:port` of getpeername or getsockname; `unix:path` for a unix socket."""
    if not isinstance(address, tuple):
        return f"unix:{unix_path}"
    return join_host_port(socket_host(address), address[1])
