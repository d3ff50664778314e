"""What a log says of a damaged place: what follows it, what was synced, what was written again. Pure, over a Disk.

Only a replay that has met damage needs this: it may read the rest of the log once more.
"""

from __future__ import annotations

from typing import Any

import attrs

from disque.aof import format as fmt
from disque.aof.disk import Disk

READ_BYTES = 64 << 10
EVERYTHING = 1 << 62


@attrs.define(eq=False)
class Survey:
    """What the records behind a damaged place say of it."""

    is_followed: bool = False  # by any valid record
    synced: int = 0  # so many bytes of that segment
    synced_to: tuple[int, int] = (0, 0)  # up to this place of the log
    good: int | None = None


class Surveyor:
    """Reads segments beyond the one that a replay is at."""

    def __init__(self, disk: Disk, segments: list[int], notes: list[str]) -> None:
        """`notes` hears of what can't be read."""
        self._disk = disk
        self._segments = segments
        self._notes = notes

    def load(self, segment: int) -> bytes:
        """The whole segment; what can't be read is zeros, so damage as any."""
        size = self._disk.size(segment)
        try:
            return self._disk.read(segment, 0, size)
        except OSError as error:
            self._notes.append(f"segment {segment} can't be read whole: {error}")
        parts = []
        for offset in range(0, size, READ_BYTES):
            length = min(READ_BYTES, size - offset)
            try:
                part = self._disk.read(segment, offset, length)
            except OSError:
                part = b""
            parts.append(part.ljust(length, b"\0"))
        return b"".join(parts)

    def survey_behind(self, segment: int) -> tuple[tuple[Any, ...], Survey]:
        """The last start, and what the segments behind this one say of it."""
        start: tuple[Any, ...] = ()
        later = Survey()
        for number in [each for each in self._segments if each > segment]:
            data = self.load(number)
            found = fmt.scan(data, fmt.seed_of(number, self._disk.salt(number)))
            for offset in found.offsets:
                self._take(later, segment, data, offset)
                if is_kind(data, offset, "start"):
                    start = fmt.record_at(data, offset).fields
        return start, later

    def survey_each(
        self, segment: int, data: bytes, found: fmt.Scan, later: Survey
    ) -> list[Survey]:
        """What follows each damage of a segment: the rest of it, then all later ones."""
        survey = later
        if any([is_kind(data, at, "lost") for at in found.offsets]):
            # Offsets were shifted when bytes were cut out: what others say of them holds no more.
            survey.good, survey.synced = None, len(data)
        surveys: list[Survey] = []
        left = list(found.offsets)
        for damage in reversed(found.damages):
            while left and left[-1] > damage.start:
                self._take(survey, segment, data, left.pop())
            surveys.insert(0, attrs.evolve(survey))
        return surveys

    def _take(self, survey: Survey, segment: int, data: bytes, offset: int) -> None:
        survey.is_followed = True
        if is_kind(data, offset, "end"):
            survey.synced, survey.synced_to = EVERYTHING, (EVERYTHING, 0)
        if not any([is_kind(data, offset, kind) for kind in ("segment", "synced", "prior")]):
            return
        record = fmt.record_at(data, offset)
        fields: Any = record.fields
        if record.kind == "segment":
            survey.good = dict(fields[5]).get(segment, survey.good)
        elif record.kind == "prior":
            survey.good = fields[1] if fields[0] == segment else survey.good
        else:
            survey.synced_to = max(survey.synced_to, (fields[0], fields[1]))
        if record.kind == "synced" and fields[0] >= segment:
            survey.synced = max(survey.synced, fields[1] if fields[0] == segment else EVERYTHING)


def is_kind(data: bytes, offset: int, kind: str) -> bool:
    """True if the record there is of this kind, without decoding it."""
    word = bytes((0xA0 | len(kind),)) + kind.encode()
    return data.startswith(word, offset + fmt.HEAD_BYTES + 1)


def half_turn(data: bytes, found: fmt.Scan, end: int) -> int:
    """Where a turn begins that was to end behind `end`; `end` if there is none, or bytes were cut out."""
    if any([is_kind(data, offset, "lost") for offset in found.offsets]):
        return end
    for offset in reversed(found.offsets):
        if offset < end and is_kind(data, offset, "turn"):
            size: Any = fmt.record_at(data, offset).fields[0]
            return offset if offset + fmt.size_at(data, offset) + size > end else end
    return end


def is_beginning(data: bytes, tail: fmt.Damage) -> bool:
    """True if the tail is what a write that was broken off leaves: the first bytes of a record."""
    size = tail.end - tail.start
    if tail.start == 0:
        return size < len(fmt.MAGIC) and fmt.MAGIC.startswith(data)
    if size < fmt.HEAD_BYTES:
        return True
    if fmt.size_at(data, tail.start) <= size:
        return False
    try:
        fmt.decode(memoryview(data)[tail.start + fmt.HEAD_BYTES : tail.end])
    except ValueError:
        return True
    # A whole record whose length is damaged.
    return False
