"""FileDisk: the log's segments as files of one folder, `00000001-5f3a2b1c.log`: number and salt.

Nothing is decided here: every error of the system comes out as OSError. Reads and writes use the position in the file,
never a seek, so a thread may sync while the owner writes and reads. A reader that goes through a segment in order is
read ahead for (posix_fadvise), because bodies of a queue lie in the order in which they came.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import threading
from pathlib import Path

import attrs

from disque.aof.disk import LogError

LOCK = "lock"
READ_AHEAD_BYTES = 1 << 20
_NAME = re.compile(r"(\d{8,10})-([0-9a-f]{8})\.log")
_MODE = 0o640
_KERNEL_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@attrs.define(eq=False)
class _File:
    """An open segment. `read_to` is where the last read ended, `ahead_to` where the kernel reads to already."""

    path: Path
    salt: int
    fd: int = -1
    size: int = 0
    read_to: int = 0
    ahead_to: int = 0


class FileDisk:
    """disk.Disk over files."""

    def __init__(self, folder: Path, *, is_locked: bool = True, only: int | None = None) -> None:
        """Open the folder, which is made if it isn't there; LogError if it can't be a log, OSError.

        `is_locked`: nobody else may have it; else it is for reading, and never made. `only` this segment is seen.
        """
        self.folder = folder
        self._guard = threading.Lock()
        self._lock_fd = -1
        if folder.is_file():
            raise LogError(
                f"{folder} is a file, as C Disque writes it, and can't be read: the log is a folder. "
                "Move it away, or choose another appendfilename"
            )
        if is_locked:
            if not folder.is_dir():
                folder.mkdir(parents=True)
                _sync_path(folder.parent)
            self._lock()
        try:
            self._files = self._find(only)
        except BaseException:
            self.close()
            raise

    def _lock(self) -> None:
        self._lock_fd = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _MODE)
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock_fd)
            self._lock_fd = -1
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            raise LogError(f"{self.folder} is in use by another process") from error

    def _find(self, only: int | None) -> dict[int, _File]:
        found: dict[int, _File] = {}
        for path in sorted(self.folder.iterdir()):
            match = _NAME.fullmatch(path.name)
            if match is None or (only is not None and int(match[1]) != only):
                continue
            segment = int(match[1])
            if segment in found:
                raise LogError(f"two files for one segment: {found[segment].path} and {path.name}")
            found[segment] = _File(path, int(match[2], 16), size=path.stat().st_size)
        return dict(sorted(found.items()))

    def close(self) -> None:
        """Close every file and give up the lock."""
        with self._guard:
            for file in getattr(self, "_files", {}).values():
                if file.fd >= 0:
                    os.close(file.fd)
                    file.fd = -1
            if self._lock_fd >= 0:
                os.close(self._lock_fd)
                self._lock_fd = -1

    def _file(self, segment: int) -> _File:
        file = self._files.get(segment)
        if file is None:
            raise OSError(errno.ENOENT, f"the log has no segment {segment}")
        return file

    def _open(self, segment: int) -> _File:
        file = self._file(segment)
        if file.fd < 0:
            way = os.O_RDWR if self._lock_fd >= 0 else os.O_RDONLY
            file.fd = os.open(file.path, way | os.O_CLOEXEC)
        return file

    # disk.Disk

    def segments(self) -> list[int]:
        """As Disk."""
        return list(self._files)

    def salt(self, segment: int) -> int:
        """As Disk."""
        return self._file(segment).salt

    def create(self, segment: int) -> None:
        """As Disk."""
        with self._guard:
            if segment in self._files:
                self._cut(self._open(segment), 0)
                return
            salt = secrets.randbits(32)
            path = self.folder / f"{segment:08}-{salt:08x}.log"
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._files[segment] = _File(path, salt, os.open(path, flags, _MODE))

    def append(self, segment: int, data: bytes) -> int:
        """As Disk; asks again after a short write, so that its reason comes out."""
        with self._guard:
            file = self._open(segment)
        done, view = 0, memoryview(data)
        while done < len(data):
            written = os.pwrite(file.fd, view[done:], file.size)
            if not written:
                break
            file.size += written
            done += written
        return done

    def truncate(self, segment: int, size: int) -> None:
        """As Disk."""
        with self._guard:
            self._cut(self._open(segment), size)

    def _cut(self, file: _File, size: int) -> None:
        os.ftruncate(file.fd, size)
        file.size = size

    def sync(self, segment: int) -> None:
        """As Disk."""
        with self._guard:
            fd = self._open(segment).fd
        os.fdatasync(fd)

    def sync_folder(self) -> None:
        """As Disk."""
        _sync_path(self.folder)

    def size(self, segment: int) -> int:
        """As Disk."""
        return self._file(segment).size

    def read(self, segment: int, offset: int, size: int) -> bytes:
        """As Disk."""
        with self._guard:
            file = self._open(segment)
            data = os.pread(file.fd, size, offset)
            while data and len(data) < min(size, file.size - offset):
                # Linux gives at most 2 GiB at a time.
                more = os.pread(file.fd, size - len(data), offset + len(data))
                if not more:
                    break
                data += more
            self._read_ahead(file, offset, offset + len(data))
        return data

    def _read_ahead(self, file: _File, offset: int, end: int) -> None:
        """Ask for what comes next if this read went on about where the last one ended."""
        is_in_order = 0 <= offset - file.read_to < READ_AHEAD_BYTES
        file.read_to = end
        if not is_in_order:
            file.ahead_to = end
        elif end + READ_AHEAD_BYTES // 2 > file.ahead_to and end < file.size:
            start = max(end, file.ahead_to)
            os.posix_fadvise(file.fd, start, READ_AHEAD_BYTES, os.POSIX_FADV_WILLNEED)
            file.ahead_to = start + READ_AHEAD_BYTES

    def delete(self, segment: int) -> None:
        """As Disk."""
        with self._guard:
            file = self._file(segment)
        file.path.unlink(missing_ok=True)
        with self._guard:
            del self._files[segment]
        # Outside: to free a large file takes its time, and the owner wants to write.
        if file.fd >= 0:
            os.close(file.fd)

    def set_aside(self, segment: int, offset: int, data: bytes) -> str:
        """As Disk."""
        name = f"{self._file(segment).path.stem}.damaged-{offset}"
        _write_whole(self.folder / name, data)
        return name

    def replace(self, segment: int, data: bytes) -> None:
        """As Disk."""
        file = self._file(segment)
        _write_whole(file.path, data)
        with self._guard:
            if file.fd >= 0:
                os.close(file.fd)
            file.fd, file.size = -1, len(data)


def kernel_boot_id() -> str:
    """Another one after each start of the machine; where the system doesn't tell, another one each time."""
    try:
        return _KERNEL_BOOT_ID.read_text("ascii").strip()
    except OSError:
        return secrets.token_hex(16)


def _write_whole(path: Path, data: bytes) -> None:
    """Give a file this content: after a crash it has it whole, or is as it was."""
    new = path.with_name(path.name + ".new")
    try:
        with new.open("wb") as file:
            new.chmod(_MODE)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            new.unlink()
        raise
    _sync_path(path.parent)


def _sync_path(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
