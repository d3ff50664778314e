"""Addresses: which ones are this machine's own, and how a socket's is spelled. It opens nothing.

Protected mode asks `is_loopback` about the address of a socket, never about anything that a
client says.
"""

from __future__ import annotations

import socket
from typing import Any

_MAPPED = bytes(10) + b"\xff\xff"  # IPv4 in IPv6: ::ffff:a.b.c.d


def packed(host: str) -> bytes | None:
    """The 4 or 16 bytes of a literal address (IPv4-mapped: 4), or None for anything else."""
    host = host.removeprefix("[").removesuffix("]").split("%", 1)[0]
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            raw = socket.inet_pton(family, host)
        except (OSError, ValueError):
            continue
        return raw[12:] if raw.startswith(_MAPPED) else raw
    return None


def is_loopback(host: str) -> bool:
    """True for 127.0.0.0/8, ::1 and IPv4-mapped loopback; False for host names."""
    raw = packed(host)
    if raw is None:
        return False
    return raw[0] == 127 if len(raw) == 4 else raw == bytes(15) + b"\x01"


def place_of(host: str) -> str:
    """Of whom the same is counted together: an address, of IPv6 the network that one owner has (/64)."""
    raw = packed(host)
    if raw is None:
        return host
    if len(raw) == 4:
        return socket.inet_ntop(socket.AF_INET, raw)
    return socket.inet_ntop(socket.AF_INET6, raw[:8] + bytes(8)) + "/64"


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
