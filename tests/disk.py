"""MemoryDisk: disque.aof.disk.Disk in memory, with everything bad that can happen to a disk.

It knows what the process has written and what has reached the platter. A crash of the process loses nothing that was
written; power loss draws, for each segment, what became of the bytes that no sync covered: gone, a part of them, zeros,
a flipped bit, single sectors missing; and for each creation and deletion since the last sync of the folder, whether it
happened. All draws come from dice that are passed in.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator

import attrs

SECTOR_BYTES = 64  # small, so that short logs have many


class Crash(Exception):  # noqa: N818
    """The process ends here, in the middle of an operation of the disk."""


@attrs.define(eq=False)
class Segment:
    """`platter` is what would be left without power, but for what power_loss draws from there to `data`."""

    salt: int
    data: bytearray = attrs.Factory(bytearray)
    platter: bytearray = attrs.Factory(bytearray)
    dirty_from: int = 0  # before it, both are the same

    def sync(self) -> None:
        """Everything reaches the platter."""
        self.platter[self.dirty_from :] = self.data[self.dirty_from :]
        self.dirty_from = len(self.data)

    def change_from(self, offset: int) -> None:
        """Bytes from here on have changed."""
        self.dirty_from = min(self.dirty_from, offset)


@attrs.define(eq=False)
class MemoryDisk:
    """Set the fields to make it fail; each counts down or holds until it is set back."""

    dice: random.Random = attrs.Factory(lambda: random.Random(1))
    room: int | None = None  # bytes till ENOSPC; an append writes what fits
    is_short: bool = False  # want of room shows as a short write, not as an error
    append_errors: int = 0  # the next so many appends fail with EIO, after half of their bytes
    truncate_errors: int = 0
    sync_errors: int = 0
    aside_errors: int = 0
    read_errors: dict[int, None] = attrs.Factory(dict)  # segments
    # operations that change something, till a Crash in the middle of one
    crash_in: int | None = None
    changes: int = 0
    appends: int = 0
    syncs: int = 0
    files: dict[int, Segment] = attrs.Factory(dict)
    kept: dict[int, Segment] = attrs.Factory(dict)  # the folder as it is on the platter
    aside: dict[str, bytes] = attrs.Factory(dict)

    def _change(self) -> bool:
        """Count an operation; True if the process crashes in it."""
        self.changes += 1
        if self.crash_in is None:
            return False
        self.crash_in -= 1
        return self.crash_in < 0

    def _file(self, segment: int) -> Segment:
        if segment not in self.files:
            raise OSError(errno.ENOENT, f"no segment {segment}")
        return self.files[segment]

    # disk.Disk

    def segments(self) -> list[int]:
        return sorted(self.files)

    def salt(self, segment: int) -> int:
        return self._file(segment).salt

    def create(self, segment: int) -> None:
        is_last = self._change()
        if segment in self.files:
            self._cut(segment, 0)
        else:
            self.files[segment] = Segment(self.dice.getrandbits(32))
        if is_last:
            raise Crash

    def append(self, segment: int, data: bytes) -> int:
        is_last = self._change()
        self.appends += 1
        file = self._file(segment)
        size = len(data)
        if is_last:
            size = self.dice.randrange(len(data) + 1)
        elif self.append_errors:
            size //= 2
        elif self.room is not None:
            size = min(size, self.room)
        file.data += data[:size]
        if self.room is not None:
            self.room -= size
        if is_last:
            raise Crash
        if self.append_errors:
            self.append_errors -= 1
            raise OSError(errno.EIO, "no such luck")
        if size < len(data) and not self.is_short:
            raise OSError(errno.ENOSPC, "no room left")
        return size

    def truncate(self, segment: int, size: int) -> None:
        is_last = self._change()
        if self.truncate_errors:
            self.truncate_errors -= 1
            raise OSError(errno.EIO, "no such luck")
        self._cut(segment, size)
        if is_last:
            raise Crash

    def _cut(self, segment: int, size: int) -> None:
        file = self._file(segment)
        if self.room is not None:
            self.room += len(file.data) - size
        del file.data[size:]
        file.change_from(size)

    def sync(self, segment: int) -> None:
        file = self._file(segment)
        self.syncs += 1
        if self._change():
            raise Crash
        if self.sync_errors:
            self.sync_errors -= 1
            # The kernel gives up these pages: they look clean, and the platter never gets them.
            file.dirty_from = len(file.data)
            raise OSError(errno.EIO, "no such luck")
        file.sync()

    def sync_folder(self) -> None:
        if self._change():
            raise Crash
        self.kept = dict(self.files)

    def size(self, segment: int) -> int:
        return len(self._file(segment).data)

    def read(self, segment: int, offset: int, size: int) -> bytes:
        file = self._file(segment)
        if segment in self.read_errors:
            raise OSError(errno.EIO, "no such luck")
        return bytes(file.data[offset : offset + size])

    def delete(self, segment: int) -> None:
        if self._change():
            raise Crash
        size = self.size(segment)
        if self.room is not None:
            self.room += size
        del self.files[segment]

    def set_aside(self, segment: int, offset: int, data: bytes) -> str:
        if self._change():
            raise Crash
        if self.aside_errors:
            self.aside_errors -= 1
            raise OSError(errno.EROFS, "no such luck")
        name = f"{segment:08}.damaged-{offset}"
        self.aside[name] = data
        return name

    def replace(self, segment: int, data: bytes) -> None:
        if self._change():
            raise Crash
        file = Segment(self._file(segment).salt, bytearray(data), bytearray(data), len(data))
        self.files[segment] = file
        if segment in self.kept:
            self.kept[segment] = file

    # What happens to it

    def flip(self, segment: int, offset: int, bit: int = 0) -> None:
        """One bit rots, on the platter too."""
        file = self._file(segment)
        file.data[offset] ^= 1 << bit
        if offset < len(file.platter):
            file.platter[offset] ^= 1 << bit

    def mend(self) -> None:
        """No more failures."""
        self.room = self.crash_in = None
        self.append_errors = self.truncate_errors = self.sync_errors = self.aside_errors = 0
        self.read_errors.clear()

    def copy(self) -> MemoryDisk:
        """Another disk with the same content, on the platter, and no failures."""
        files = {
            n: Segment(f.salt, bytearray(f.data), bytearray(f.data), len(f.data))
            for n, f in self.files.items()
        }
        return MemoryDisk(random.Random(self.changes), files=files, kept=dict(files))

    def power_loss(self) -> None:
        """The machine goes down and comes back."""
        self.mend()
        files: dict[int, Segment] = {}
        for segment in sorted({*self.files, *self.kept}):
            now, before = self.files.get(segment), self.kept.get(segment)
            file = now if before is None or self.dice.random() < 0.5 else before
            if now is before:
                file = now
            elif before is None and self.dice.random() < 0.5:
                file = None
            if file is not None:
                files[segment] = Segment(file.salt, bytearray(self._survivor(file)))
                files[segment].sync()
        self.files, self.kept = files, dict(files)

    def _survivor(self, file: Segment) -> bytes:
        """What is left of a segment's bytes."""
        platter, data = bytes(file.platter), bytes(file.data)
        if platter == data:
            return data
        start = min(file.dirty_from, len(platter))
        match self.dice.randrange(6):
            case 0:
                return platter
            case 1:
                return data
            case 2:
                return data[: self.dice.randint(start, len(data))] if start < len(data) else data
            case 3:
                cut = self.dice.randint(start, len(data)) if start < len(data) else len(data)
                return data[:cut] + bytes(len(data) - cut)
            case 4:
                return bytes(self._flipped(data, start))
            case _:
                return b"".join(self._sectors(data, start))

    def _flipped(self, data: bytes, start: int) -> bytearray:
        left = bytearray(data)
        if start < len(data):
            left[self.dice.randrange(start, len(data))] ^= 1 << self.dice.randrange(8)
        return left

    def _sectors(self, data: bytes, start: int) -> Iterator[bytes]:
        """Some sectors of the changed part were never written."""
        yield data[:start]
        for at in range(start, len(data), SECTOR_BYTES):
            part = data[at : at + SECTOR_BYTES]
            yield part if self.dice.random() < 0.6 else bytes(len(part))
