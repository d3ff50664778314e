"""Bodies: what a job carries, so that a delivery names the one ADDJOB that it came from.

`jx:<run>:<v>:<crc32 of the part before, 8 hex digits>`, then `:` and filler up to the wanted size.
"""

from __future__ import annotations

from zlib import crc32

FILLER = b"."


def make(run: str, v: int, size: int = 0) -> bytes:
    """The body of value `v`, at least `size` bytes long."""
    head = f"jx:{run}:{v}".encode()
    body = b"%b:%08x" % (head, crc32(head))
    missing = size - len(body)
    return body + b":" + FILLER * (missing - 1) if missing > 0 else body


def value_of(body: bytes, run: str) -> int | None:
    """The value, None if the body isn't ours: another run, a wrong checksum, damaged filler."""
    parts = body.split(b":", 4)
    if len(parts) < 4 or parts[0] != b"jx" or parts[1] != run.encode():
        return None
    if parts[3] != b"%08x" % crc32(b":".join(parts[:3])):
        return None
    if len(parts) == 5 and parts[4].strip(FILLER):
        return None
    return int(parts[2]) if parts[2].isdigit() else None
