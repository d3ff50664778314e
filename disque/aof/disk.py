"""What the log needs of a disk: numbered, append-only segments in one folder. Pure: a Protocol.

`files.FileDisk` does it with files, the tests' and the simulator's disk in memory, with faults.
"""

from __future__ import annotations

from typing import Protocol


class LogError(Exception):
    """The log can't be used as it is; the message says what is wrong and what to do."""


class Disk(Protocol):
    """Each method may raise OSError, also ENOENT for a segment that isn't there."""

    def segments(self) -> list[int]:
        """Numbers of the segments there are, ascending."""

    def salt(self, segment: int) -> int:
        """The random u32 that was drawn for this segment when it was created."""

    def create(self, segment: int) -> None:
        """Begin an empty segment; one that is there is emptied."""

    def append(self, segment: int, data: bytes) -> int:
        """Write at the segment's end; returns how many bytes were written, fewer than asked for in want of space."""

    def truncate(self, segment: int, size: int) -> None:
        """Cut a segment to its first `size` bytes."""

    def sync(self, segment: int) -> None:
        """Return when the segment's bytes have reached the disk."""

    def sync_folder(self) -> None:
        """Return when creations and deletions of segments have reached the disk."""

    def size(self, segment: int) -> int:
        """Bytes of a segment."""

    def read(self, segment: int, offset: int, size: int) -> bytes:
        """These bytes; fewer at the segment's end."""

    def delete(self, segment: int) -> None:
        """Remove a segment."""

    def set_aside(self, segment: int, offset: int, data: bytes) -> str:
        """Keep damaged bytes of a segment in a file beside the log; returns its name. The same place, the same file."""

    def replace(self, segment: int, data: bytes) -> None:
        """Give a segment another content, at once and durably: after a crash it is the old or the new one."""
