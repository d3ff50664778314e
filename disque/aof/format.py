"""A segment's bytes: a magic, then records of length, CRC-32 and msgpack. Pure: bytes in, records out.

    segment = MAGIC record*          record = length (u32, big endian) crc (u32) payload

The CRC is taken over the segment's number and salt, the length and the payload: bytes of another segment, of another
log, or of a job's body that holds a copy of a record, are never believed. The salt lies in the segment's file name,
where no client sees it and no damage to the content reaches it.

A payload is msgpack of [kind, field...]. Beside the engine's kinds the log has its own, META:

    segment  number, node id, format version, oldest segment that the log still needs, is the log complete?, pairs of
             closed segments and their good lengths: what lies behind was never counted
    start    boot, since, boot id of the kernel, fsync policy (the weakest of this life so far)
    policy   name                the policy was changed at run time
    complete                     an initial rewrite is whole
    synced   segment, offset     everything before that place had reached the disk when this was written
    prior    segment, length     what lies behind this length was written again, before this record
    first    segment             older ones are about to be deleted
    lost     bytes               so many damaged bytes were cut out of this segment
    queued   ids                 SHUTDOWN REWRITE-AOF: what lay in the queues, in order
    turn     bytes               so many, of the records that follow, count together or not at all
    group    [kind, field...]... a base record and what follows it, whole or not at all
    end                          a clean stop
    off                          appendonly was switched off
"""

from __future__ import annotations

import re
import struct
import zlib
from array import array
from typing import Any, TypeAlias

import attrs
import msgpack

from cluster.packing import pack
from disque.core.ready import Record

MAGIC = b"DSQLOG01"
VERSION = 1
HEAD_BYTES = 8
# Above every body that the protocol lets in (512 MB): a larger length is damage.
RECORD_BYTES_MAX = 1 << 30

_STATE_META = ("segment", "start", "policy", "complete", "queued", "end", "off")
_PLACE_META = ("synced", "prior", "first", "lost", "turn", "group")
META = frozenset((*_STATE_META, *_PLACE_META))

Buffer: TypeAlias = bytes | memoryview

_HEAD = struct.Struct(">II")
_LENGTH = struct.Struct(">I")
# How a payload begins: an array, then a short string of letters. Zero-width, because beginnings may overlap.
_BEGINNING = re.compile(rb"(?=(?:[\x91-\x9f]|\xdc..)[\xa1-\xbf][a-z])", re.DOTALL)
# How the payload of a job begins: an array, its kind, then the id as bytes of at most 255.
_JOB = re.compile(rb"[\x91-\x9f]\xa3job\xc4(.)", re.DOTALL)


@attrs.frozen
class Damage:
    """Bytes [start, end) of a segment that hold no record."""

    start: int
    end: int


@attrs.define
class Scan:
    """What a segment holds: offsets of its records in order, and the damage between them."""

    offsets: array[int]
    damages: list[Damage]


def seed_of(segment: int, salt: int) -> int:
    """What the CRC of each record of this segment begins with."""
    return zlib.crc32(_HEAD.pack(segment & 0xFFFFFFFF, salt))


def encode(record: Record) -> bytes:
    """The payload of a record."""
    return pack((record.kind, *record.fields))


def group(records: list[Record]) -> Record:
    """These records of one id as one, so that no crash comes between them: half of them would pass for all."""
    if len(records) == 1:
        return records[0]
    return Record("group", tuple([(each.kind, *each.fields) for each in records]))


def members(record: Record) -> list[Record]:
    """The records of a group, or the record itself."""
    if record.kind != "group":
        return [record]
    rows: Any = record.fields
    return [Record(row[0], tuple(row[1:])) for row in rows]


def head(payload: bytes, seed: int) -> bytes:
    """The HEAD_BYTES that stand before this payload."""
    size = len(payload)
    assert size <= RECORD_BYTES_MAX, f"a record of {size} bytes, at most {RECORD_BYTES_MAX}"
    return _HEAD.pack(size, zlib.crc32(payload, zlib.crc32(_LENGTH.pack(size), seed)))


def decode(payload: Buffer) -> Record:
    """The record of a payload; ValueError if it is none."""
    try:
        fields = msgpack.unpackb(payload, use_list=False, strict_map_key=False)
    except (ValueError, msgpack.UnpackException) as error:
        raise ValueError(f"no msgpack: {error}") from error
    if not isinstance(fields, tuple) or not fields or not isinstance(fields[0], str):
        raise ValueError(f"a record is [kind, field...], not {type(fields).__name__}")
    return Record(fields[0], fields[1:])


def size_at(data: Buffer, offset: int) -> int:
    """Bytes that the record at `offset` claims to take with its head; 0 if not even a head is there."""
    if offset + HEAD_BYTES > len(data):
        return 0
    return HEAD_BYTES + int(_LENGTH.unpack_from(data, offset)[0])


def is_record_at(data: Buffer, offset: int, seed: int) -> bool:
    """True if a whole and undamaged record begins there."""
    size = size_at(data, offset)
    if not HEAD_BYTES < size <= min(len(data) - offset, RECORD_BYTES_MAX + HEAD_BYTES):
        return False
    payload = memoryview(data)[offset + HEAD_BYTES : offset + size]
    crc: int = _HEAD.unpack_from(data, offset)[1]
    return zlib.crc32(payload, zlib.crc32(data[offset : offset + 4], seed)) == crc


def record_at(data: Buffer, offset: int) -> Record:
    """The record there, whose CRC was checked; ValueError if its payload is none."""
    return decode(memoryview(data)[offset + HEAD_BYTES : offset + size_at(data, offset)])


def walk(data: Buffer, start: int, seed: int, offsets: array[int]) -> int:
    """Add the offsets of the records that follow each other from `start`; returns where that ends."""
    view, crc32, unpack_head = memoryview(data), zlib.crc32, _HEAD.unpack_from
    offset, end = start, len(data)
    while offset + HEAD_BYTES < end:
        size, crc = unpack_head(view, offset)
        behind = offset + HEAD_BYTES + size
        if not 0 < size <= RECORD_BYTES_MAX or behind > end:
            break
        if crc32(view[offset + HEAD_BYTES : behind], crc32(view[offset : offset + 4], seed)) != crc:
            break
        offsets.append(offset)
        offset = behind
    return offset


def scan(data: Buffer, seed: int) -> Scan:
    """Find every record of a whole segment, beyond damage too: the next record is one whose CRC holds."""
    found = Scan(array("Q"), [])
    if not data:
        return found
    offset = len(MAGIC)
    if bytes(data[:offset]) != MAGIC:
        offset = _next_record(data, 0, seed)
        found.damages.append(Damage(0, offset))
    while offset < len(data):
        offset = walk(data, offset, seed, found.offsets)
        if offset < len(data):
            start, offset = offset, _next_record(data, offset, seed)
            found.damages.append(Damage(start, offset))
    return found


def job_ids(data: Buffer) -> list[bytes]:
    """Ids of jobs whose records seem to begin in these damaged bytes; a guess, for a report."""
    ids = []
    for match in _JOB.finditer(data):
        size = match[1][0]
        id_ = bytes(data[match.end() : match.end() + size])
        if len(id_) == size:
            ids.append(id_)
    return ids


def _next_record(data: Buffer, start: int, seed: int) -> int:
    """Where the next record begins at or after `start`; the end of the data if there is none."""
    # The length of the damaged record may be right still: then its body isn't searched.
    behind = start + size_at(data, start)
    if behind > start and is_record_at(data, behind, seed):
        return behind
    for match in _BEGINNING.finditer(data, start + HEAD_BYTES):
        if is_record_at(data, match.start() - HEAD_BYTES, seed):
            return match.start() - HEAD_BYTES
    return len(data)
