"""Job ids: `D-<8 hex of the node>-<24 base64>-<4 hex TTL minutes>`, 40 ASCII bytes, as Disque's.

The last field tells any node how long an id it never met can matter: minutes of TTL, odd if the job is retried
(an unknown acked id is then worth remembering), even if it is delivered at most once.
"""

from __future__ import annotations

from binascii import b2a_base64
from typing import NewType, cast

from cluster.nodeid import NodeId
from disque.errors import CommandError

JobId = NewType("JobId", bytes)

JOB_ID_BYTES = 40
_BASE64 = b2a_base64
_RANDOM_BYTES = 18  # 24 base64 characters
_TTL_MINUTES_MAX = 0xFFFF
_HEX = b"0123456789abcdef"
_DASH = ord("-")


def make_job_id(node: NodeId, entropy: bytes, *, ttl_ms: int, is_retried: bool) -> JobId:
    """Spell an id; `entropy` is 18 random bytes, `ttl_ms` becomes minutes, rounded down, at most 65535."""
    head, tail = job_id_frame(node, ttl_ms=ttl_ms, is_retried=is_retried)
    return framed_job_id(head, entropy, tail)


def framed_job_id(head: bytes, entropy: bytes, tail: bytes) -> JobId:
    """The same within its frame, which many ids have in common."""
    if len(entropy) != _RANDOM_BYTES:
        raise ValueError(f"a job id takes {_RANDOM_BYTES} random bytes, got {len(entropy)}")
    return JobId(head + _BASE64(entropy, newline=False) + tail)


def job_id_frame(node: NodeId, *, ttl_ms: int, is_retried: bool) -> tuple[bytes, bytes]:
    """What stands before the random part, and behind it."""
    minutes = min(ttl_ms // 60_000, _TTL_MINUTES_MAX)
    return b"D-%b-" % node[:8].encode(), b"-%04x" % (minutes | 1 if is_retried else minutes & ~1)


def is_made_by(job: JobId, node: NodeId) -> bool:
    """True if the job was added at this node."""
    return job[2:10] == node[:8].encode()


def is_job_id(raw: bytes) -> bool:
    """Disque's test of validity: the length and the four marks, nothing else."""
    return (
        len(raw) == JOB_ID_BYTES and raw[10] == _DASH and raw[35] == _DASH and raw.startswith(b"D-")
    )


def parse_job_ids(raw: list[bytes]) -> tuple[JobId, ...]:
    """All or nothing: one malformed id refuses the whole command with BADID."""
    if not (_are_job_ids(raw) if len(raw) > _FEW else all(map(is_job_id, raw))):
        raise CommandError("Invalid Job ID format.", "BADID")
    return cast("tuple[JobId, ...]", tuple(raw))


_FEW = 16


def _are_job_ids(raw: list[bytes]) -> bool:
    """The same test for many at once: a command may name a million."""
    if any([len(each) != JOB_ID_BYTES for each in raw]):
        return False
    joined, count = b"".join(raw), len(raw)
    return all(
        [
            joined[at::JOB_ID_BYTES] == mark * count
            for at, mark in ((0, b"D"), (1, b"-"), (10, b"-"), (35, b"-"))
        ]
    )


def ttl_digits(job: JobId) -> bytes:
    """The TTL field as it is spelled."""
    return job[36:40]


def ttl_minutes(job: JobId) -> int:
    """The TTL field; digits that aren't hexadecimal count as 0, as in Disque."""
    minutes = 0
    for char in job[36:40].lower():
        minutes = minutes * 16 + max(_HEX.find(char), 0)
    return minutes


def is_endless(job: JobId) -> bool:
    """True if the TTL is longer than its field of the id can say."""
    return ttl_minutes(job) | 1 >= _TTL_MINUTES_MAX


def is_retried(job: JobId) -> bool:
    """True for an odd TTL field: RETRY > 0, so an ack of an unknown id deserves to be kept."""
    return ttl_minutes(job) % 2 == 1
