"""Packing: fields as MessagePack, through one buffer that stays."""

from __future__ import annotations

import msgpack

_SHORT_HEADS = [b"\xc4%c" % size for size in range(1 << 8)]
KEPT_BYTES_MAX = 1 << 20  # of what was packed last: for more a buffer isn't kept

_packer = msgpack.Packer()


def pack(fields: object) -> bytes:
    """What msgpack.packb gives, and raises; but that has 256 KiB from the system each time."""
    global _packer
    packed: bytes = _packer.pack(fields)
    if len(packed) > KEPT_BYTES_MAX:
        _packer = msgpack.Packer()
    return packed


def pack_list_head(count: int) -> bytes:
    """What stands before the items of a list, each packed by itself."""
    head: bytes = _packer.pack_array_header(count)
    return head


def bytes_head(size: int) -> bytes:
    """What stands before so many bytes, as `pack` spells them."""
    if size < 1 << 8:
        return _SHORT_HEADS[size]
    return (
        b"\xc5" + size.to_bytes(2, "big") if size < 1 << 16 else b"\xc6" + size.to_bytes(4, "big")
    )
