"""Disks: a small one of its own for a node's data, that can be filled to the last byte and freed."""

from __future__ import annotations

import errno
import shutil
import subprocess
from pathlib import Path
from typing import Final

from jepsen.hosts.base import HostsError

_BALLAST: Final = "ballast"
_CHUNK: Final = bytes(1 << 20)


def mount(folder: Path, size_bytes: int, label: str) -> None:
    """Put a file system in memory of this size on a folder; needs root. HostsError if it can't be.

    `label` stands in the table of mounts, and tells whose it is.
    """
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", label, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise HostsError(f"no disk of {size_bytes} bytes on {folder}: {done.stderr.strip()}")


def unmount(folder: Path) -> None:
    """Take it away, with all that is on it; nothing there is fine."""
    if folder.is_mount():
        subprocess.run(["umount", "--lazy", str(folder)], capture_output=True, check=False)


def fill(folder: Path) -> int:
    """Write until the disk is full; gives the bytes written. HostsError if this is no disk of `mount`'s."""
    if not folder.is_mount():
        raise HostsError(f"{folder} isn't a disk of its own; set disk_bytes")
    written = 0
    with (folder / _BALLAST).open("ab", buffering=0) as file:
        size = len(_CHUNK)
        while size:
            try:
                written += file.write(_CHUNK[:size])
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                size //= 2
    return written


def wipe(folder: Path, within: Path) -> None:
    """Remove all that is in a folder, but not the folder; HostsError unless it lies below `within`, the run's own."""
    if not folder.is_absolute() or within not in folder.resolve().parents:
        raise HostsError(f"{str(folder)!r} isn't below {within}: it stays as it is")
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def free(folder: Path) -> None:
    """Give back what `fill` took."""
    (folder / _BALLAST).unlink(missing_ok=True)
